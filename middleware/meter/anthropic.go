package meter

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/tollbook/tollbook/budget"
)

// AnthropicMessages is the meter of Anthropic's wire format: POST …/v1/messages.
// Its input is what was neither read from the cache nor written to it, those two
// come on top. A stream tells running totals, a name at a time: what an event
// leaves out stays as it was.
var AnthropicMessages Meter = anthropic{}

type anthropic struct{}

func (anthropic) Bound(r Request, o Options) (Bound, error) {
	var model, maxTokens, messages, system, tools, stream, thinking value
	beyond := newBeyond(o)
	other, err := readMembers(r.Body, map[string]*value{"model": &model, "max_tokens": &maxTokens, "messages": &messages,
		"system": &system, "tools": &tools, "stream": &stream, "thinking": &thinking}, exactly, beyond.anthropic)
	if err != nil {
		return Bound{}, err
	}
	b := Bound{Model: model.str(), Stream: stream.isTrue(), Choices: 1}
	if searches(b.Model) {
		if err := beyond.loops("model " + quotable(b.Model)); err != nil {
			return Bound{}, err
		}
	}
	if messages.kind() != '[' {
		return Bound{}, &BodyError{Reason: `"messages" is not a list`}
	}
	t := newTally(b.Model, o, beyond)
	t.add(t.perRequest)
	t.blocks(system)
	for m := range messages.elements() {
		t.fail(check(m, "role", "content"))
		t.add(t.perMessage)
		t.blocks(m.get("content"))
	}
	t.anthropicTools(tools)
	for _, v := range other {
		t.any(v)
	}
	if b.capping, b.Output, err = anthropicOutput(r.Body, b.Model, maxTokens, thinking, o); err == nil {
		err = t.err
	}
	b.Input = t.sum
	beyond.bound(&b)
	if err == nil && plus(b.Input, b.Output) > budget.MaxTokens {
		err = &BodyError{Reason: fmt.Sprintf("it may cost more than %d tokens", int64(budget.MaxTokens))}
	}
	if err != nil {
		return Bound{}, err
	}
	return b, nil
}

// anthropic says of a member that costs no tokens of its own that it does
// not, and refuses one that draws in more than the request. What is not known
// counts as its JSON.
func (b *beyond) anthropic(name string, v value) (costs bool, err error) {
	switch name {
	case "metadata", "stop_sequences", "temperature", "top_p", "top_k", "service_tier", "inference_geo", "speed", "cache_control":
		return false, nil
	case "mcp_servers", "container",
		"models", "fallbacks", "plugins", "preset", "web_search_options": // of gateways, in this format too
		if v.present() && string(v) != "[]" {
			return false, b.loops(name)
		}
	case "context_management":
		// Clearing takes something away; a compaction is a step of the model of its own.
		for edit := range v.get("edits").elements() {
			if kind := edit.get("type").str(); !strings.HasPrefix(kind, "clear_") {
				if err := b.loops("context_management of type " + quotable(kind)); err != nil {
					return false, err
				}
			}
		}
	}
	return true, nil
}

// anthropicOutput is the cap, which the format demands. Zero is meant: it fills the
// cache. A budget for thinking must stay below the cap; one above it spans several
// answers, and is let count in full.
func anthropicOutput(body []byte, model string, maxTokens, thinking value, o Options) (c capping, output int64, err error) {
	if n, ok := maxTokens.tokens(); maxTokens.present() {
		if !ok {
			return c, 0, &BodyError{Reason: fmt.Sprintf(`"max_tokens" is not a whole number from 0 to %d`, int64(budget.MaxTokens))}
		}
		if n > 0 {
			c.name(body, maxTokens, n)
		}
	} else if c, ok = assumed(model, o); ok {
		c.spots = []edit{place(body, body, maxTokens, "max_tokens")}
	} else {
		return c, 0, &UncappedError{Model: model}
	}
	if output = c.cap; thinking.get("budget_tokens").present() {
		more, ok := thinking.get("budget_tokens").tokens()
		if !ok {
			return c, 0, &BodyError{Reason: fmt.Sprintf(`"budget_tokens" is not a whole number from 0 to %d`, int64(budget.MaxTokens))}
		}
		output = c.think(more, 1)
	}
	return c, output, nil
}

// blocks is a text or a list of content blocks.
func (t *tally) blocks(v value) {
	if v.kind() != '[' {
		t.any(v)
		return
	}
	for block := range v.elements() {
		t.block(block)
	}
}

func (t *tally) block(v value) {
	if v.kind() == '"' {
		t.any(v)
		return
	}
	t.fail(check(v, "type", "source", "content"))
	kind := v.get("type").str()
	switch kind {
	case "text", "tool_use", "thinking", "redacted_thinking", "search_result", "tool_reference":
		t.any(v)
	case "tool_result":
		t.add(t.perMessage)
		t.any(v.get("tool_use_id"))
		t.blocks(v.get("content"))
	case "image", "document":
		t.source(kind, v)
	default:
		t.fail(t.draws("message content of type " + quotable(kind)))
	}
}

// source is a picture or a document. What the provider fetches or has on file,
// and a document that is not text, is bounded by nothing in the request; a
// picture is scaled down before a model sees it.
func (t *tally) source(kind string, v value) {
	source := v.get("source")
	t.fail(check(source, "type", "media_type", "data", "content"))
	from := source.get("type").str()
	switch {
	case kind == "image" && (from == "base64" || from == "url"):
		t.add(t.image)
	case kind == "document" && from == "text":
		t.any(source.get("data"))
	case kind == "document" && from == "content":
		t.blocks(source.get("content"))
	default:
		t.fail(t.draws(fmt.Sprintf("%s from %s", kind, quotable(cmp.Or(from, "nowhere")))))
	}
	for k, m := range v.members() {
		if name := string(k); name != "type" && name != "source" {
			t.any(m)
		}
	}
}

// The prompt that comes with a tool of Anthropic's own that the caller runs: up
// to 735 tokens are documented, for computer use, read in November 2026.
const anthropicToolPrompt = 1000

func (t *tally) anthropicTools(tools value) {
	if !tools.present() {
		return
	}
	if tools.kind() != '[' {
		t.fail(&BodyError{Reason: `"tools" is not a list`})
	}
	t.add(t.anyTools)
	for tool := range tools.elements() {
		t.fail(check(tool, "type", "name"))
		kind := tool.get("type").str()
		name, _, _ := strings.Cut(kind, "_20") // bash_20250124
		switch name {
		case "", "custom":
		case "bash", "text_editor", "computer", "memory":
			t.add(anthropicToolPrompt)
		default: // web_search, web_fetch, code_execution, …: the provider runs it
			t.fail(t.loops("tool " + quotable(kind)))
		}
		t.toolJSON(tool)
	}
}

func (anthropic) Streams(b Bound, h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "text/event-stream" || (b.Stream && media != "application/json")
}

func (m anthropic) Watch(b Bound, h http.Header, _ bool) Watch {
	if m.Streams(b, h) {
		return newAnthropicStream()
	}
	return newAnthropicJSON()
}

func (anthropic) Refused(status int, _ http.Header, body []byte) Refusal {
	return problemIn(body).refusal(status)
}
