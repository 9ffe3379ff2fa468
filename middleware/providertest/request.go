package providertest

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// What a request costs beside its words. Each is at most what the published
// count for chat takes (3 a message and 3 a reply; for a function 7 or more).
const (
	perMessage  = 3
	perReply    = 3
	perFunction = 4
	perMedia    = 85 // an image in low detail; here also for audio and files

	defaultCap    = 16 // of /v1/completions, as the API documents it
	maxCap        = 1<<31 - 1
	maxChoices    = 128
	maxInputs     = 2048
	maxDimensions = 3072
)

// call is a request as the provider understood it.
type call struct {
	report string // the usage report it goes to, which is also its kind
	chat   bool   // or plain completions
	model  string
	prompt int64 // billed for input

	limit        int64 // completion tokens of one choice; 0: none asked
	choices      int   // given back
	generated    int   // generated and billed: best_of
	stream       bool
	includeUsage bool
	function     string   // that an answer may call
	echo         []string // prompts to repeat, per choice

	inputs     []input
	inputBytes int64
	dimensions int
	base64     bool
}

// problem is an error in OpenAI form.
type problem struct {
	status            int
	message           string
	kind, param, code string // empty: null
}

func invalid(param, format string, args ...any) *problem {
	return &problem{status: 400, message: fmt.Sprintf(format, args...), kind: "invalid_request_error", param: param}
}

type body struct {
	Model    string          `json:"model"`
	Messages []message       `json:"messages"`
	Prompt   json.RawMessage `json:"prompt"`
	Input    json.RawMessage `json:"input"`

	MaxTokens           *int64 `json:"max_tokens"`
	MaxCompletionTokens *int64 `json:"max_completion_tokens"`
	N                   *int   `json:"n"`
	BestOf              *int   `json:"best_of"`
	Echo                bool   `json:"echo"`
	Stream              bool   `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	Tools []struct {
		Function function `json:"function"`
	} `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`

	Dimensions     *int   `json:"dimensions"`
	EncodingFormat string `json:"encoding_format"`
}

type message struct {
	Name      string          `json:"name"`
	Content   json.RawMessage `json:"content"`
	ToolCalls []struct {
		Function function `json:"function"`
	} `json:"tool_calls"`
}

type function struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Arguments   string `json:"arguments"`
}

func (f function) words() int64 { return Words(f.Name) + Words(f.Description) + Words(f.Arguments) }

// understand reads a request, or says what is wrong with it. A request with a
// problem is not billed.
func understand(path string, raw []byte) (*call, *problem) {
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		if typ, ok := err.(*json.UnmarshalTypeError); ok && typ.Field != "" {
			return nil, invalid(typ.Field, "Invalid type for '%s': got %s.", typ.Field, typ.Value)
		}
		return nil, invalid("", "We could not parse the JSON body of your request.")
	}
	if b.Model == "" {
		return nil, invalid("model", "you must provide a model parameter")
	}
	c := &call{model: b.Model, report: "completions", choices: 1, generated: 1, stream: b.Stream, includeUsage: b.StreamOptions.IncludeUsage}
	switch path {
	case "/v1/chat/completions":
		c.chat = true
		if bad := c.output(&b); bad != nil {
			return nil, bad
		}
		return c, c.messages(&b)
	case "/v1/completions":
		if bad := c.output(&b); bad != nil {
			return nil, bad
		}
		return c, c.prompts(&b)
	default:
		c.report, c.stream = "embeddings", false
		return c, c.embed(&b)
	}
}

// output reads how much may be generated. Of two caps the newer name wins.
func (c *call) output(b *body) *problem {
	for _, m := range []struct {
		name string
		n    *int64
	}{{"max_tokens", b.MaxTokens}, {"max_completion_tokens", b.MaxCompletionTokens}} {
		switch {
		case m.n == nil:
		case *m.n < 1 || *m.n > maxCap:
			return invalid(m.name, "Invalid '%s': expected a value from 1 to %d, but got %d instead.", m.name, maxCap, *m.n)
		default:
			c.limit = *m.n
		}
	}
	if c.limit == 0 && !c.chat {
		c.limit = defaultCap
	}
	if b.N != nil {
		c.choices, c.generated = *b.N, *b.N
	}
	if b.BestOf != nil && !c.chat {
		c.generated = *b.BestOf
	}
	switch {
	case c.choices < 1 || c.choices > maxChoices:
		return invalid("n", "Invalid 'n': expected a value from 1 to %d, but got %d instead.", maxChoices, c.choices)
	case c.generated < c.choices || c.generated > maxChoices:
		return invalid("best_of", "Invalid 'best_of': expected a value from n to %d, but got %d instead.", maxChoices, c.generated)
	}
	return nil
}

func (c *call) messages(b *body) *problem {
	if len(b.Messages) == 0 {
		return invalid("messages", "Missing required parameter: 'messages'.")
	}
	c.prompt = perReply
	for i, m := range b.Messages {
		n, ok := content(m.Content)
		if !ok {
			return invalid(fmt.Sprintf("messages[%d].content", i), "Invalid type for 'messages[%d].content': expected a string or an array of parts.", i)
		}
		c.prompt += perMessage + Words(m.Name) + n
		for _, t := range m.ToolCalls {
			c.prompt += t.Function.words()
		}
	}
	for _, t := range b.Tools {
		c.prompt += perFunction + t.Function.words()
	}
	if len(b.Tools) > 0 && string(b.ToolChoice) != `"none"` {
		c.function = b.Tools[0].Function.Name
	}
	return nil
}

// content bills a message's content: a string, null, or a list of parts.
func content(raw json.RawMessage) (int64, bool) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 {
		return 0, true
	}
	switch raw[0] {
	case 'n':
		return 0, true
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return Words(s), err == nil
	}
	var parts []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return 0, false
	}
	var n int64
	for _, p := range parts {
		if n += Words(p.Text) + Words(p.Refusal); p.Type != "text" && p.Type != "refusal" {
			n += perMedia
		}
	}
	return n, true
}

// input is one text, or one list of tokens made elsewhere.
type input struct {
	text   string
	tokens []int64
}

// inputs reads the four forms of a prompt or an embedding's input: a string,
// strings, tokens, lists of tokens.
func inputs(raw json.RawMessage) []input {
	var (
		s  string
		ss []string
		ts []int64
		tt [][]int64
		in []input
	)
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] == 'n' {
		return nil
	}
	switch {
	case json.Unmarshal(raw, &s) == nil:
		in = append(in, input{text: s})
	case json.Unmarshal(raw, &ss) == nil:
		for _, s := range ss {
			in = append(in, input{text: s})
		}
	case json.Unmarshal(raw, &ts) == nil && len(ts) > 0:
		in = append(in, input{tokens: ts})
	case json.Unmarshal(raw, &tt) == nil:
		for _, ts := range tt {
			in = append(in, input{tokens: ts})
		}
	}
	return in
}

func (i input) bill() int64 { return Words(i.text) + int64(len(i.tokens)) }

func (c *call) prompts(b *body) *problem {
	in := inputs(b.Prompt)
	if len(in) == 0 || len(in) > maxInputs {
		return invalid("prompt", "Invalid 'prompt': expected a string, an array of at most %d strings, or arrays of tokens.", maxInputs)
	}
	if len(in)*c.generated > maxInputs {
		return invalid("prompt", "Invalid 'prompt': %d prompts with %d completions each are above %d.", len(in), c.generated, maxInputs)
	}
	for _, p := range in {
		c.prompt += p.bill()
		for range c.choices {
			if b.Echo {
				c.echo = append(c.echo, p.text)
			}
		}
	}
	c.choices *= len(in)
	c.generated *= len(in)
	return nil
}

func (c *call) embed(b *body) *problem {
	c.inputs = inputs(b.Input)
	if len(c.inputs) == 0 || len(c.inputs) > maxInputs {
		return invalid("input", "Invalid 'input': expected a string, an array of at most %d strings, or arrays of tokens.", maxInputs)
	}
	for _, in := range c.inputs {
		if in.text == "" && len(in.tokens) == 0 {
			return invalid("input", "Invalid 'input': input cannot be an empty string.")
		}
		c.prompt += in.bill()
		c.inputBytes += int64(len(in.text) + len(in.tokens))
	}
	if c.dimensions = 16; b.Dimensions != nil {
		c.dimensions = *b.Dimensions
	}
	if c.dimensions < 1 || c.dimensions > maxDimensions {
		return invalid("dimensions", "Invalid 'dimensions': expected a value from 1 to %d, but got %d instead.", maxDimensions, c.dimensions)
	}
	switch b.EncodingFormat {
	case "", "float":
	case "base64":
		c.base64 = true
	default:
		return invalid("encoding_format", "Invalid 'encoding_format': expected 'float' or 'base64'.")
	}
	return nil
}
