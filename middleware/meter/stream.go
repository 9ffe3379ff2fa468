package meter

import "bytes"

// streamWatch follows a stream of the OpenAI shape.
type streamWatch struct {
	sse
	choices int64

	id        string
	reported  reported
	final     bool
	finished  bool
	ended     map[int64]bool // choices that gave their finish reason, by index
	generated int64
	failure   *Refusal
}

func newStreamWatch(choices int64, hide bool) *streamWatch {
	w := &streamWatch{choices: max(choices, 1)}
	w.sse = sse{read: w.event, hide: hide}
	return w
}

func (w *streamWatch) stopped() bool { return int64(len(w.ended)) >= w.choices }

func (w *streamWatch) Reading() Reading {
	r := Reading{Finished: w.finished, Stopped: w.stopped(), Failure: w.failure, Generated: w.generated}
	r.Usage = w.reported.verdict(w.generated > 0, w.id)
	if r.Usage.Why == NoUsage && w.lost {
		r.Usage.Why = Unreadable
	}
	r.Final = w.final && r.Usage.Known()
	return r
}

// event reads one event. It takes out those that are there only because the
// request was made to ask for them: usage, and no choice.
func (w *streamWatch) event(name, data []byte, last bool) verdict {
	var choices, usage, groq, failure, id value
	whole := walk(trimSpace(data), func(member []byte, v value) bool {
		switch string(member) {
		case "choices":
			choices = v
		case "usage":
			usage = v
		case "x_groq":
			groq = v
		case "error":
			failure = v
		case "id":
			id = v
		}
		return true
	})
	switch {
	case whole:
	case string(bytes.TrimSpace(data)) == "[DONE]":
		w.finished = true
		return pass
	case !last && span(trimSpace(data)) == 0:
		return more
	default:
		w.generated += int64(len(data))
		w.lost = w.lost || bytes.Contains(data, []byte(`"usage"`))
		return pass
	}
	bare, before := true, w.generated
	for choice := range choices.elements() {
		bare = false
		w.choice(choice)
	}
	// Usage on a chunk without choices is the last word, by OpenAI's contract;
	// not where output still follows, or where it tells of the prompt only.
	w.final = w.final && w.generated == before
	if !usage.present() {
		usage = groq.get("usage") // Groq's own place for it
	}
	if w.id == "" {
		w.id = word(id.str())
	}
	if isError(failure) || string(name) == "error" {
		f := problemIn(data).refusal(0)
		w.failure = &f
		return pass
	}
	if !usage.present() {
		return pass
	}
	u, ok := tokenUsage(usage, true)
	w.reported.see(u, ok)
	w.final = ok && (w.stopped() || (bare && u.Output > 0))
	if bare {
		return swallow
	}
	return pass
}

// choice reads one choice of a chunk.
func (w *streamWatch) choice(choice value) {
	index, reason := int64(0), value(nil)
	for k, m := range choice.members() {
		switch string(k) {
		case "index":
			index, _ = m.tokens()
		case "finish_reason":
			reason = m
		case "delta", "text", "message":
			w.generated += generated(m)
		}
	}
	if reason.kind() == '"' && len(reason) > 2 && index < w.choices { // some servers send "" all along
		if w.ended == nil {
			w.ended = make(map[int64]bool)
		}
		w.ended[index] = true
	}
}
