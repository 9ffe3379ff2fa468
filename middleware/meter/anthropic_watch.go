package meter

import (
	"bytes"

	"github.com/tollbook/tollbook/budget"
)

// anthropicUsage is what the events of one answer have told so far: a later
// figure replaces the one before, one that is missing leaves it.
type anthropicUsage struct {
	input, written, cached, output, thinking int64
	seen                                     bool
}

// see takes a usage object and returns what is known with it. ok is false where
// a figure is none, or where the output is not told.
//
// Where the model took several steps (a compaction, an advisor), the figures
// beside "iterations" are those of the last one; the list has them all.
func (a *anthropicUsage) see(v value) (u budget.Usage, ok bool) {
	if v.kind() != '{' || !valid(v) {
		return u, false
	}
	ok = a.read(v)
	if steps := v.get("iterations"); ok && steps.kind() == '[' && len(steps) > 2 {
		var all anthropicUsage
		for step := range steps.elements() {
			var one anthropicUsage
			if !one.read(step) {
				return u, false
			}
			all.input, all.written, all.cached = plus(all.input, one.input), plus(all.written, one.written), plus(all.cached, one.cached)
			all.output, all.thinking = plus(all.output, one.output), plus(all.thinking, one.thinking)
		}
		// The figures beside the list are those of its last step.
		if all.input < figure(v, "input_tokens") || all.output < figure(v, "output_tokens") ||
			all.cached < figure(v, "cache_read_input_tokens") || all.written < figure(v, "cache_creation_input_tokens") {
			return u, false
		}
		all.seen = true
		*a = all
	}
	if !ok {
		return u, false
	}
	u = budget.Usage{Input: plus(a.input, plus(a.written, a.cached)), Cached: a.cached, CacheWrite: a.written, Output: a.output, Reasoning: min(a.thinking, a.output)}
	return u, u.Check() == nil
}

// figure is a number of tokens in v, 0 if there is none.
func figure(v value, name string) int64 {
	n, _ := v.get(name).tokens()
	return n
}

func (a *anthropicUsage) read(v value) (ok bool) {
	ok = true
	read := func(to *int64, v value) {
		if v.present() {
			n, whole := v.tokens()
			ok, *to = ok && whole, n
		}
	}
	counted := false
	for k, m := range v.members() {
		switch string(k) {
		case "input_tokens":
			read(&a.input, m)
		case "cache_creation_input_tokens":
			read(&a.written, m)
		case "cache_read_input_tokens":
			read(&a.cached, m)
		case "output_tokens":
			read(&a.output, m)
			counted = m.present()
		case "output_tokens_details":
			read(&a.thinking, m.get("thinking_tokens"))
		}
	}
	a.seen = a.seen || counted
	return ok && a.seen
}

// anthropicStream follows the events of a message.
type anthropicStream struct {
	sse
	id        string
	told      anthropicUsage
	reported  reported
	at        int64 // size when the usage was reported
	finished  bool
	stopped   bool
	generated int64
	pieces    int64 // of it
	garbled   bool
	failure   *Refusal
}

func newAnthropicStream() *anthropicStream {
	w := &anthropicStream{}
	w.sse = sse{read: w.event}
	return w
}

func (w *anthropicStream) size() int64 { return w.generated + w.lost }

func (w *anthropicStream) Reading() Reading {
	r := Reading{Finished: w.finished, Stopped: w.stopped, Failure: w.failure, Generated: w.size(), Pieces: w.pieces}
	r.Usage = w.reported.verdict(r.Generated > 0, true, w.id)
	if r.Usage.Why == NoUsage && (w.garbled || w.lost > 0) {
		r.Usage.Why = Unreadable
	}
	// The first event's output is a partial count: only the one that comes with
	// the reason for the end is the last word.
	r.Final = r.Usage.Known() && r.Stopped && r.Generated == w.at
	return r
}

func (w *anthropicStream) event(name, data []byte, last bool) verdict {
	var kind, message, usage, delta, block, failure value
	whole := walk(trimSpace(data), func(member []byte, v value) bool {
		switch string(member) {
		case "type":
			kind = v
		case "message":
			message = v
		case "usage":
			usage = v
		case "delta":
			delta = v
		case "content_block":
			block = v
		case "error":
			failure = v
		}
		return true
	})
	if !whole {
		if !last && span(trimSpace(data)) == 0 {
			return more
		}
		w.generated += int64(len(data))
		w.garbled = w.garbled || bytes.Contains(data, []byte(`"usage"`))
		return pass
	}
	before := w.generated
	defer func() {
		if w.generated > before {
			w.pieces++
		}
	}()
	switch string(kind) {
	case `"message_start"`:
		if w.id == "" {
			w.id = word(message.get("id").str())
		}
		w.generated += generated(message.get("content"))
		w.usage(message.get("usage"))
	case `"content_block_start"`:
		w.generated += generated(block)
	case `"content_block_delta"`:
		w.generated += generated(delta)
	case `"message_delta"`:
		w.stopped = w.stopped || delta.get("stop_reason").kind() == '"'
		w.usage(usage)
	case `"message_stop"`:
		w.finished = true
	case `"ping"`, `"content_block_stop"`:
	default:
		if isError(failure) || string(name) == "error" {
			f := problemIn(data).refusal(0)
			w.failure = &f
			break
		}
		w.generated += generated(value(trimSpace(data))) // of a later version
		w.usage(usage)
	}
	return pass
}

func (w *anthropicStream) usage(v value) {
	if !v.present() {
		return
	}
	u, ok := w.told.see(v)
	if w.reported.see(u, ok) {
		w.at = w.size()
	}
}

// anthropicJSON follows a message that comes whole.
type anthropicJSON struct {
	skim
	id, usage, content, failed kept
}

func newAnthropicJSON() *anthropicJSON {
	w := &anthropicJSON{}
	w.id.limit, w.usage.limit, w.content.limit, w.failed.limit = 512, 64<<10, 64<<10, MaxRefusalBytes
	w.keep = map[string]*kept{"id": &w.id, "usage": &w.usage, "content": &w.content, "error": &w.failed}
	return w
}

func (w *anthropicJSON) Write(p []byte) []byte {
	w.write(p)
	return p
}

func (w *anthropicJSON) End() []byte { return nil }

func (w *anthropicJSON) Reading() Reading {
	r := Reading{Finished: w.done}
	switch v := w.content.value(); {
	case v.kind() == '[':
		r.Generated = generated(v)
	case len(w.content.text) > 0 && v.kind() != 'n':
		r.Generated = 1 // too long to be kept, or of no known shape
	}
	var found reported
	var told anthropicUsage
	switch v := w.usage.value(); {
	case v.present():
		found.see(told.see(v))
	case w.odd, w.bad, v == nil && len(w.usage.text) > 0:
		found.bad = true
	}
	r.Usage = found.verdict(r.Generated > 0 || !w.done, true, word(w.id.value().str()))
	r.Final = r.Usage.Known()
	if v := w.failed.value(); isError(v) {
		f := problemOf(v).refusal(0)
		r.Failure = &f
	}
	return r
}
