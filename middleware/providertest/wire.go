package providertest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// wire writes answers in the forms of the OpenAI API.
type wire struct {
	id      string
	created int64
	call    *call
	usage   json.RawMessage // nil: left out
}

type completionJSON struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choiceJSON    `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`
}

type choiceJSON struct {
	Index   int          `json:"index"`
	Message *messageJSON `json:"message,omitempty"`
	Delta   *deltaJSON   `json:"delta,omitempty"`
	Text    *string      `json:"text,omitempty"`
	Finish  *string      `json:"finish_reason"`
}

type messageJSON struct {
	Role      string         `json:"role"`
	Content   *string        `json:"content"` // null beside tool calls
	Refusal   *string        `json:"refusal"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
}

type deltaJSON struct {
	Role      string         `json:"role,omitempty"`
	Content   *string        `json:"content,omitempty"`
	ToolCalls []toolCallJSON `json:"tool_calls,omitempty"`
}

type toolCallJSON struct {
	Index    *int   `json:"index,omitempty"` // in streams
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type embeddingJSON struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float32, or base64 of them
}

// whole is the answer as one JSON body.
func (w wire) whole(a answer) reply {
	v := completionJSON{w.id, "text_completion", w.created, w.call.model, nil, w.usage}
	if w.call.chat {
		v.Object = "chat.completion"
	}
	for i, ch := range a.choices {
		c := choiceJSON{Index: i, Finish: &ch.finish}
		text := strings.Join(ch.words, " ")
		switch {
		case !w.call.chat:
			text = w.echo(i) + text
			c.Text = &text
		case ch.call:
			c.Message = &messageJSON{Role: "assistant", ToolCalls: []toolCallJSON{w.toolCall(i, nil, arguments(text))}}
		default:
			c.Message = &messageJSON{Role: "assistant", Content: &text}
		}
		v.Choices = append(v.Choices, c)
	}
	return single(200, "application/json", frame{marshal(v), a.completion})
}

func (w wire) echo(i int) string {
	if i < len(w.call.echo) {
		return w.call.echo[i]
	}
	return ""
}

func arguments(text string) string { return `{"text":"` + text + `"}` }

func (w wire) toolCall(i int, index *int, arguments string) toolCallJSON {
	t := toolCallJSON{Index: index, ID: fmt.Sprintf("call_%s_%d", w.id[len(w.id)-8:], i), Type: "function"}
	t.Function.Name, t.Function.Arguments = w.call.function, arguments
	return t
}

// stream is the answer as server-sent events, a word each; choices follow one
// another.
func (w wire) stream(a answer) reply {
	v := completionJSON{w.id, "text_completion", w.created, w.call.model, nil, nil}
	if w.call.chat {
		v.Object = "chat.completion.chunk"
	}
	if w.call.includeUsage && w.usage != nil {
		v.Usage = json.RawMessage("null")
	}
	var frames []frame
	send := func(tokens int64, choices ...choiceJSON) {
		v.Choices = append([]choiceJSON{}, choices...) // none is [], not null
		frames = append(frames, event(marshal(v), tokens))
	}
	hidden := a.completion // of choices not given back; billed with the first frame
	for _, ch := range a.choices {
		hidden -= int64(len(ch.words)) + ch.reasoning
	}
	for i, ch := range a.choices {
		first, piece := w.pieces(i, ch)
		send(hidden+ch.reasoning, first)
		hidden = 0
		for j, word := range ch.words {
			if j > 0 {
				word = " " + word
			}
			send(1, piece(word))
		}
		if ch.call {
			send(0, piece(`"}`))
		}
		end := choiceJSON{Index: i, Finish: &ch.finish}
		if w.call.chat {
			end.Delta = &deltaJSON{}
		} else {
			end.Text = new(string)
		}
		send(0, end)
	}
	if w.call.includeUsage && w.usage != nil {
		v.Usage = w.usage
		send(0)
	}
	return reply{status: 200, header: map[string]string{"Content-Type": "text/event-stream"},
		frames: append(frames, event([]byte("[DONE]"), 0))}
}

// pieces returns the first chunk of a choice, and what makes the others.
func (w wire) pieces(i int, ch choice) (choiceJSON, func(string) choiceJSON) {
	chat := func(d deltaJSON) choiceJSON { return choiceJSON{Index: i, Delta: &d} }
	switch {
	case !w.call.chat:
		text := func(s string) choiceJSON { return choiceJSON{Index: i, Text: &s} }
		return text(w.echo(i)), text
	case ch.call:
		call := w.toolCall(i, new(int), `{"text":"`)
		return chat(deltaJSON{Role: "assistant", ToolCalls: []toolCallJSON{call}}), func(s string) choiceJSON {
			t := toolCallJSON{Index: new(int)}
			t.Function.Arguments = s
			return chat(deltaJSON{ToolCalls: []toolCallJSON{t}})
		}
	default:
		return chat(deltaJSON{Role: "assistant", Content: new(string)}), func(s string) choiceJSON {
			return chat(deltaJSON{Content: &s})
		}
	}
}

// embeddings is a vector of length 1 for each input, made of the seed, the
// model and the input alone.
func (w wire) embeddings(seed uint64) reply {
	data := make([]embeddingJSON, len(w.call.inputs))
	for i, in := range w.call.inputs {
		v := vector(seed, fmt.Sprint(w.call.model, "\x00", in.tokens, in.text), w.call.dimensions)
		data[i] = embeddingJSON{"embedding", i, v}
		if w.call.base64 {
			raw, _ := binary.Append(nil, binary.LittleEndian, v) // a slice of floats always encodes
			data[i].Embedding = base64.StdEncoding.EncodeToString(raw)
		}
	}
	return single(200, "application/json", frame{data: marshal(struct {
		Object string          `json:"object"`
		Data   []embeddingJSON `json:"data"`
		Model  string          `json:"model"`
		Usage  json.RawMessage `json:"usage,omitempty"`
	}{"list", data, w.call.model, w.usage})})
}

func vector(seed uint64, of string, dimensions int) []float32 {
	rng := rand.New(rand.NewChaCha8(sha256.Sum256(binary.BigEndian.AppendUint64([]byte(of), seed))))
	v, square := make([]float32, dimensions), 0.0
	for i := range v {
		x := rng.NormFloat64()
		v[i], square = float32(x), square+x*x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(square))
	}
	return v
}

func event(data []byte, tokens int64) frame {
	return frame{append(append([]byte("data: "), data...), "\n\n"...), tokens}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("providertest: answer: %v", err)) // strings, integers and finite floats only
	}
	return b
}

// usage is the figure that the answer reports, nil for none.
func usage(c *call, a answer, fault Fault, variant int) json.RawMessage {
	type details map[string]int64
	u := map[string]any{"prompt_tokens": c.prompt, "total_tokens": c.prompt + a.completion}
	if c.report != "embeddings" {
		u["completion_tokens"] = a.completion
		u["prompt_tokens_details"] = details{"cached_tokens": 0, "audio_tokens": 0}
		u["completion_tokens_details"] = details{"reasoning_tokens": a.reasoning, "audio_tokens": 0,
			"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
	}
	switch fault {
	case NoUsage:
		return nil
	case BadUsage:
		return marshal(spoil(u, c.prompt, variant))
	}
	return marshal(u)
}

// spoil makes figures that cannot be true. None could pass for a true one, so
// that a guard which believes one has a fault.
func spoil(u map[string]any, prompt int64, variant int) map[string]any {
	switch variant % 6 {
	case 0:
		u["prompt_tokens"], u["total_tokens"] = -prompt-1, -prompt-1
	case 1:
		u["prompt_tokens"], u["total_tokens"] = json.Number("1e30"), json.Number("1e30")
	case 2:
		u["prompt_tokens"] = fmt.Sprint(prompt)
	case 3:
		for k := range u {
			u[k] = 0
		}
		delete(u, "prompt_tokens_details")
		delete(u, "completion_tokens_details")
	case 4:
		u["prompt_tokens"], u["total_tokens"] = float64(prompt)+0.7, float64(prompt)+0.7
	case 5:
		u["total_tokens"] = prompt - 1
	}
	return u
}
