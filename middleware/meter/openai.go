package meter

import (
	"encoding/json"
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
	capped  bool
}

func (m openAI) Bound(r Request, o Options) (Bound, error) {
	if len(r.Body) > MaxRequestBytes {
		return Bound{}, &BodyError{Reason: fmt.Sprintf("it has %d bytes, more than %d", len(r.Body), MaxRequestBytes)}
	}
	req, err := readRequest(r.Body)
	if err != nil {
		return Bound{}, err
	}
	b := Bound{Model: req.model.str(), Stream: req.stream.isTrue()}
	if b.Model == "" {
		b.Model = deployment(r.Path)
	}
	if what := searches(b.Model); what != "" {
		return Bound{}, &UnboundedError{What: what}
	}
	t := newTally(b.Model, o)
	if req.models.present() {
		t = newTally("", o) // any of several models may answer
	}
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
	b.Input, b.Choices, b.Capped = t.sum, c.choices, c.capped
	b.Output = times(c.output, c.choices)
	if plus(b.Input, b.Output) > budget.MaxTokens {
		return Bound{}, &BodyError{Reason: fmt.Sprintf("it may cost more than %d tokens", int64(budget.MaxTokens))}
	}
	if b.Stream && m.generates {
		b.WithUsage = withUsage(r.Body, req.streamOptions)
	}
	return b, nil
}

func (m openAI) Watch(b Bound, h http.Header, sent bool) Watch {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if media == "text/event-stream" || (media == "" && b.Stream) {
		return newStreamWatch(b.Choices, sent && b.WithUsage != nil)
	}
	return newJSONWatch(m.generates)
}

func (m openAI) Refused(status int, _ http.Header, body []byte) Refusal {
	return problemIn(body).refusal(status)
}

// deployment returns the name in an Azure path, …/deployments/{name}/….
func deployment(path string) string {
	_, rest, _ := strings.Cut(path, "/deployments/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// withUsage returns body with stream_options.include_usage set to true, all
// else byte for byte as it is; nil if the caller set it already, or set
// something that is not understood. options is a part of body, or nothing.
func withUsage(body []byte, options value) []byte {
	asked := options.get("include_usage")
	switch {
	case len(options) == 0:
		end := len(body) - 1
		for body[end] != '}' {
			end--
		}
		return replace(body, value(body[end:end]), `,"stream_options":{"include_usage":true}`)
	case !options.present():
		return replace(body, options, `{"include_usage":true}`)
	case options.kind() != '{' || asked.isTrue():
		return nil
	case len(asked) > 0 && (asked.kind() == 'f' || asked.kind() == 'n'):
		return replace(body, asked, "true")
	case len(asked) > 0:
		return nil
	case len(trimSpace(options[1:])) == 1: // {}
		return replace(body, options, `{"include_usage":true}`)
	}
	return replace(body, options[:1], `{"include_usage":true,`)
}

// replace returns a copy of body with part, a subslice of it, exchanged.
func replace(body []byte, part value, with string) []byte {
	// A subslice ends where its array ends, so the capacities tell where it begins.
	at := cap(body) - cap(part)
	out := make([]byte, 0, len(body)-len(part)+len(with))
	out = append(append(out, body[:at]...), with...)
	return append(out, body[at+len(part):]...)
}

// request is the body of a request, its members apart. An absent one is empty.
type request struct {
	model, models, messages, prompt, suffix, input  value
	tools, functions, n, bestOf, echo, prediction   value
	maxTokens, maxCompletionTokens, maxOutputTokens value
	stream, streamOptions                           value
	other                                           []value
}

func (r *request) field(name []byte) *value {
	switch string(name) {
	case "model":
		return &r.model
	case "models":
		return &r.models
	case "messages":
		return &r.messages
	case "prompt":
		return &r.prompt
	case "suffix":
		return &r.suffix
	case "input":
		return &r.input
	case "tools":
		return &r.tools
	case "functions":
		return &r.functions
	case "n":
		return &r.n
	case "best_of":
		return &r.bestOf
	case "echo":
		return &r.echo
	case "prediction":
		return &r.prediction
	case "max_tokens":
		return &r.maxTokens
	case "max_completion_tokens":
		return &r.maxCompletionTokens
	case "max_output_tokens":
		return &r.maxOutputTokens
	case "stream":
		return &r.stream
	case "stream_options":
		return &r.streamOptions
	}
	return nil
}

// readRequest takes a body apart. A member that stands twice is refused: which
// one counts is up to the provider.
func readRequest(body []byte) (*request, error) {
	if !json.Valid(body) {
		return nil, &BodyError{Reason: "it is not JSON"}
	}
	v, _ := parse(body)
	if v.kind() != '{' {
		return nil, &BodyError{Reason: "it is not a JSON object"}
	}
	r := &request{}
	for name, m := range v.members() {
		if field := r.field(name); field != nil {
			if *field != nil {
				return nil, &BodyError{Reason: fmt.Sprintf("%q stands in it twice", word(string(name)))}
			}
			*field = m
			continue
		}
		switch string(name) {
		case "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
			"seed", "stop", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
			"prompt_cache_retention", "reasoning_effort", "verbosity", "parallel_tool_calls", "modalities", "audio",
			"encoding_format", "dimensions":
			// Settings, which no model reads.
		case "web_search_options", "search_parameters", "web_search", "enable_search", "plugins",
			"previous_response_id", "conversation", "file_ids":
			if m.present() && m.kind() != 'f' {
				return nil, &UnboundedError{What: string(name)}
			}
		default:
			// What is not known may end up in the prompt: response_format does,
			// and chat_template_kwargs.
			r.other = append(r.other, m)
		}
	}
	return r, nil
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
	c, err := outputCap(r, t, o, false)
	if err != nil {
		return c, err
	}
	// A predicted output costs what the model rejects of it, on top of what it
	// writes in its place.
	if r.prediction.present() {
		c.output = plus(c.output, t.size(r.prediction))
	}
	c.choices, err = count(r.n, "n")
	return c, err
}

// completionCost is the same for plain completions. Each prompt of a list gets
// n answers, chosen from best_of that are all generated and all billed.
func completionCost(r *request, t *tally, o Options) (cost, error) {
	prompts := t.inputs(r.prompt, "prompt")
	t.any(r.suffix)
	c, err := outputCap(r, t, o, true)
	if err != nil {
		return c, err
	}
	n, err := count(r.n, "n")
	if err != nil {
		return c, err
	}
	best, err := count(r.bestOf, "best_of")
	if err != nil {
		return c, err
	}
	// Whether an echoed prompt counts as output depends on the server.
	if r.echo.present() && r.echo.kind() != 'f' {
		c.output = plus(c.output, t.sum)
	}
	c.choices = times(prompts, max(n, best))
	return c, nil
}

func embeddingsCost(r *request, t *tally, _ Options) (cost, error) {
	t.inputs(r.input, "input")
	return cost{choices: 1, capped: true}, nil
}

// outputCap finds what one answer may cost: the largest cap that the request
// names, for it is the provider's choice which one counts. A cap of zero is
// none, unless zero is known to be meant (a completion that echoes only).
func outputCap(r *request, t *tally, o Options, zero bool) (c cost, err error) {
	for _, v := range [...]struct {
		name string
		v    value
	}{{"max_tokens", r.maxTokens}, {"max_completion_tokens", r.maxCompletionTokens}, {"max_output_tokens", r.maxOutputTokens}} {
		if !v.v.present() {
			continue
		}
		n, ok := v.v.tokens()
		if !ok {
			return c, &BodyError{Reason: fmt.Sprintf("%q is not a whole number from 0 to %d", v.name, int64(budget.MaxTokens))}
		}
		c.output, c.capped = max(c.output, n), c.capped || n > 0 || zero
	}
	switch {
	case c.capped:
		return c, nil
	case o.DefaultOutput > 0:
		c.output = min(o.DefaultOutput, budget.MaxTokens)
		return c, nil
	}
	var known bool
	if c.output, known = maxOutput(t.model); !known {
		return c, &UncappedError{Model: r.model.str()}
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
