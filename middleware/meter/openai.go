package meter

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/tollbook/tollbook/budget"
)

// The meters of OpenAI's wire format, which most other providers and gateways
// speak too; an Azure deployment stands in the path.
var (
	OpenAIChat        Meter = openAI{chatCost, true}        // POST …/chat/completions
	OpenAICompletions Meter = openAI{completionCost, true}  // POST …/completions
	OpenAIEmbeddings  Meter = openAI{embeddingsCost, false} // POST …/embeddings
)

// openAI is one endpoint. Endpoints differ in what a request costs.
type openAI struct {
	cost      func(*request, *tally, Options) (cost, error)
	generates bool
}

// cost is what a request asks for, its prompt apart, which is in the tally.
type cost struct {
	choices int64 // answers side by side
	output  int64 // tokens of one answer, at most
	capping capping
}

func (m openAI) Bound(r Request, o Options) (Bound, error) {
	beyond := newBeyond(o)
	req, err := readRequest(r.Body, beyond)
	if err != nil {
		return Bound{}, err
	}
	b := Bound{Model: req.model.str(), Stream: req.stream.isTrue()}
	model := b.Model // that answers
	if name := deployment(r.Path); name != "" {
		model = name
		b.Model = cmp.Or(b.Model, name)
	}
	if req.models.present() {
		model = "" // any of several
	}
	if err := req.searches(b.Model, model); err != nil {
		return Bound{}, err
	}
	t := newTally(model, o, beyond)
	t.fail(check(req.streamOptions, "include_usage"))
	for _, other := range req.other {
		t.any(other)
	}
	c, err := m.cost(req, t, o)
	if err == nil {
		err = t.err
	}
	if err != nil {
		return Bound{}, err
	}
	b.Input, b.Choices = t.sum, c.choices
	b.Output = times(c.output, c.choices)
	b.capping = c.capping
	if o.DefaultOutput <= 0 && t.sum > windowOf(model)-c.capping.cap {
		b.capping.write = false // prompt and cap together would be refused, and the model ends by itself
	}
	beyond.bound(&b)
	if plus(b.Input, b.Output) > budget.MaxTokens {
		return Bound{}, &BodyError{Reason: fmt.Sprintf("it may cost more than %d tokens", int64(budget.MaxTokens))}
	}
	if b.Stream && m.generates {
		if b.usage = req.asksUsage(); b.usage != nil {
			b.WithUsage = splice(r.Body, *b.usage)
		}
	}
	return b, nil
}

func (m openAI) Streams(b Bound, h http.Header) bool {
	// Some servers give a stream no type, or text/plain.
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "text/event-stream" || (b.Stream && media != "application/json")
}

func (m openAI) Watch(b Bound, h http.Header, sent bool) Watch {
	if m.Streams(b, h) {
		return newStreamWatch(b.Choices, sent && b.WithUsage != nil)
	}
	return newJSONWatch(m.generates)
}

func (m openAI) Refused(status int, _ http.Header, body []byte) Refusal {
	return problemIn(body).refusal(status)
}

// deployment returns the name in an Azure path, …/deployments/{name}/…: what
// answers, whatever model the body names. It is taken for the model of its name.
func deployment(path string) string {
	_, rest, _ := strings.Cut(path, "/deployments/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// chatCost tallies the prompt of a chat and finds its output cap.
func chatCost(r *request, t *tally, o Options) (cost, error) {
	if r.messages.kind() != '[' {
		return cost{}, &BodyError{Reason: `"messages" is not a list`}
	}
	t.add(t.perRequest)
	for m := range r.messages.elements() {
		t.message(m)
	}
	t.tools(r.tools, r.functions)
	for _, alien := range [...]value{r.prompt, r.input, r.suffix} {
		t.any(alien)
	}
	return generation(r, t, o, 1, false)
}

// completionCost is the same for plain completions. Each prompt of a list gets
// its own answers.
func completionCost(r *request, t *tally, o Options) (cost, error) {
	if r.messages.present() || r.tools.present() || r.functions.present() || r.input.present() {
		return cost{}, &BodyError{Reason: "it is not one of a plain completion"}
	}
	prompts := t.inputs(r.prompt, "prompt")
	t.any(r.suffix)
	return generation(r, t, o, prompts, true)
}

func embeddingsCost(r *request, t *tally, _ Options) (cost, error) {
	if r.messages.present() {
		return cost{}, &BodyError{Reason: "it is not one of an embedding"}
	}
	t.inputs(r.input, "input")
	for _, alien := range [...]value{r.prompt, r.suffix} {
		t.any(alien)
	}
	return cost{choices: 1}, nil
}

// generation finds what the answers to a number of prompts may cost.
func generation(r *request, t *tally, o Options, prompts int64, plain bool) (cost, error) {
	c, err := outputCap(r, t, o, plain)
	if err != nil {
		return c, err
	}
	// All best_of answers are generated and billed; n of them are returned.
	n, err := count(r.n, "n")
	if err != nil {
		return c, err
	}
	best, err := count(r.bestOf, "best_of")
	if err != nil {
		return c, err
	}
	c.choices = times(prompts, max(n, best))
	// A predicted output costs what the model rejects of it, on top of what it
	// writes in its place. Whether an echoed prompt counts as output depends on
	// the server.
	c.output = plus(c.output, t.size(r.prediction))
	if r.echo.present() && r.echo.kind() != 'f' {
		c.output = plus(c.output, t.sum)
	}
	return c, nil
}

// outputCap finds what one answer may cost: the largest cap that the request
// names, for it is the provider's choice which one counts. A cap of zero is
// none, unless zero is known to be meant (a completion that echoes only).
func outputCap(r *request, t *tally, o Options, plain bool) (c cost, err error) {
	var zeros []edit
	capped := false
	for _, f := range r.caps() {
		if !f.v.present() {
			continue
		}
		n, ok := f.v.tokens()
		if !ok {
			return c, &BodyError{Reason: fmt.Sprintf("%q is not a whole number from 0 to %d", f.name, int64(budget.MaxTokens))}
		}
		if capped = capped || n > 0 || plain; n > 0 {
			c.capping.name(r.body, *f.v, n)
		} else {
			zeros = append(zeros, instead(r.body, *f.v, "%d"))
		}
	}
	if c.output = c.capping.cap; capped {
		return c, nil
	}
	known := false
	if c.capping, known = assumed(t.model, o); !known {
		return c, &UncappedError{Model: r.model.str()}
	}
	switch c.output = c.capping.cap; {
	case plain && o.DefaultOutput <= 0:
		c.capping = capping{} // without a cap servers write 16 tokens or so: the maximum would make more of them
	case zeros != nil:
		c.capping.spots = zeros
	case !plain && reasons(t.model, r.model.str()):
		c.capping.spots = []edit{place(r.body, r.body, r.maxCompletionTokens, "max_completion_tokens")}
	default:
		c.capping.spots = []edit{place(r.body, r.body, r.maxTokens, "max_tokens")}
	}
	return c, nil
}

// count reads a number of answers; absent, it is one.
func count(v value, name string) (int64, error) {
	if !v.present() {
		return 1, nil
	}
	n, ok := v.tokens()
	if !ok || n < 1 {
		return 0, &BodyError{Reason: fmt.Sprintf("%q is not a whole number from 1 to %d", name, int64(budget.MaxTokens))}
	}
	return n, nil
}
