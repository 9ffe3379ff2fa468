package meter

import (
	"fmt"

	"github.com/tollbook/tollbook/budget"
)

// DefaultImageTokens is what an image is reserved at. The most that OpenAI
// documents for one is 48,169 (gpt-4o-mini: 2,833 and 8 tiles of 5,667); most
// models stay below 3,000, so those who send many images set
// Options.ImageTokens.
const DefaultImageTokens = 50_000

// tally adds up the tokens of a prompt, on the safe side.
//
// Chat models see more than the messages. For OpenAI's own models the frame is
// known (openai-cookbook, How_to_count_tokens_with_tiktoken, read in November
// 2026): 3 tokens a message, 1 more for a name, 3 for the reply, and a formula
// for functions with a flat schema, which holds for the gpt-3.5, gpt-4 and
// gpt-4o families. Everything the formula does not cover counts as its JSON.
// For other models the frame depends on the server's chat template; the
// allowances for them are above every template we know (Llama's dated system
// prompt, 36 tokens; Anthropic's tool prompt, up to 804) and are no published
// figures.
type tally struct {
	frame
	*beyond
	model   string // as the counter knows it; empty for any
	counter Counter
	image   int64
	system  bool // a system message was among the messages
	sum     int64
	err     error
}

// frame is what a provider puts around the parts of a prompt, in tokens.
type frame struct {
	perRequest int64
	perMessage int64
	perInput   int64 // of a completion or an embedding
	perTool    int64
	anyTools   int64 // once, if there are tools
	toolFactor int64 // of the tokens of a tool's JSON; 0: by the cookbook's formula
}

func newTally(model string, o Options, b *beyond) *tally {
	t := &tally{beyond: b, model: model, frame: frameOf(model), counter: o.Counter, image: o.ImageTokens}
	if t.image <= 0 {
		t.image = DefaultImageTokens
	}
	return t
}

func (t *tally) add(n int64) { t.sum = plus(t.sum, n) }

// fail keeps the first error, if there is one.
func (t *tally) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// count is the tokens of text: at most a token a byte.
func (t *tally) count(text string) int64 {
	if t.counter == nil || text == "" {
		return int64(len(text))
	}
	return max(t.counter.Count(t.model, text), 1)
}

// size is the tokens of v: of its text if it is a string, else of its JSON.
func (t *tally) size(v value) int64 {
	switch {
	case !v.present():
		return 0
	case v.kind() == '"' && t.counter == nil:
		return v.size()
	case v.kind() == '"':
		return t.count(v.str())
	}
	return t.count(string(v))
}

func (t *tally) any(v value) { t.add(t.size(v)) }

func (t *tally) message(m value) {
	if m.kind() != '{' {
		t.fail(&BodyError{Reason: `an element of "messages" is not an object`})
	}
	t.fail(check(m, "role", "content", "name", "audio"))
	t.add(t.perMessage)
	for k, v := range m.members() {
		switch string(k) {
		case "content":
			t.content(v)
		case "name":
			t.add(1)
			t.any(v)
		case "audio":
			if v.present() {
				t.fail(t.draws("audio of an earlier answer"))
			}
		case "role":
			t.system = t.system || string(v) == `"system"` || string(v) == `"developer"`
			t.any(v)
		default: // tool_calls, tool_call_id, refusal, reasoning_content, …
			t.any(v)
		}
	}
}

// content is a text or a list of parts.
func (t *tally) content(v value) {
	switch v.kind() {
	case '[':
		for part := range v.elements() {
			t.part(part)
		}
	case '{':
		t.part(v)
	default:
		t.any(v)
	}
}

func (t *tally) part(v value) {
	if v.kind() == '"' {
		t.any(v)
		return
	}
	t.fail(check(v, "type", "image_url"))
	kind := v.get("type").str()
	switch kind {
	case "image_url":
		t.add(t.image)
	case "text", "refusal":
	default:
		t.fail(t.draws("message content of type " + quotable(kind)))
		return
	}
	for k, m := range v.members() {
		// An image, by address or as a data: URL, is never text to a model.
		if string(k) != "type" && string(k) != "image_url" {
			t.any(m)
		}
	}
}

// inputs tallies what a completion or an embedding reads, a text, a list of
// token ids or a list of either, and returns how many there are. An empty one
// still costs the token that ends it.
func (t *tally) inputs(v value, name string) (n int64) {
	one := func(tokens int64) {
		n++
		t.add(plus(max(tokens, 1), t.perInput))
	}
	ids := int64(0)
	for e := range v.elements() {
		switch k := e.kind(); {
		case k == '"':
			one(t.size(e))
		case k == '[':
			one(t.ids(e, name))
		case isNumber(e):
			ids++
		default:
			t.fail(unreadable(name))
		}
	}
	switch k := v.kind(); {
	case k == '"':
		one(t.size(v))
	case k == '[' && ids > 0:
		one(ids)
	case k == '[' && n > 0:
	case k == '[' || !v.present():
		one(0)
	default:
		t.fail(unreadable(name))
	}
	return n
}

// ids counts a list of token ids.
func (t *tally) ids(v value, name string) (n int64) {
	for id := range v.elements() {
		if n++; !isNumber(id) {
			t.fail(unreadable(name))
		}
	}
	return n
}

func isNumber(v value) bool { return isDigit(v.kind()) }

func unreadable(name string) error {
	return &BodyError{Reason: fmt.Sprintf("%q has other content than text and token ids", name)}
}

// quotable returns a word of the request for an error, if it is one.
func quotable(s string) string {
	if w := word(s); w != "" {
		return w
	}
	return "unknown"
}

// plus and times stop above [budget.MaxTokens], which no bound may reach.
func plus(a, b int64) int64 {
	if b > budget.MaxTokens || a > budget.MaxTokens-b {
		return budget.MaxTokens + 1
	}
	return a + b
}

func times(a, b int64) int64 {
	if a != 0 && b > budget.MaxTokens/a {
		return budget.MaxTokens + 1
	}
	return a * b
}
