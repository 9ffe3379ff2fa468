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

// event reads one event. It wants those gone that are there only because the
// request was made to ask for them: usage, and no choice.
func (w *streamWatch) event(name string, data []byte) (swallow bool) {
	v, whole := parse(data)
	if string(v) == "[DONE]" {
		w.finished = true
		return false
	}
	var usage, failure value
	bare, wrote := true, int64(0)
	for k, m := range v.members() {
		switch string(k) {
		case "choices":
			for choice := range m.elements() {
				bare = false
				wrote += w.choice(choice)
			}
		case "usage":
			usage = m
		case "error":
			failure = m
		case "id":
			if w.id == "" {
				w.id = word(m.str())
			}
		}
	}
	if !whole {
		bare, wrote = false, int64(len(data)) // broken: count it all
	}
	w.generated += wrote
	if wrote > 0 {
		w.final = false // whatever was reported, it was not the end
	}
	if failure.present() || name == "error" {
		p := problemIn(bytes.TrimSpace(data))
		f := p.refusal(0)
		w.failure = &f
		return false
	}
	if usage.present() {
		u, ok := tokenUsage(usage, true)
		w.reported.see(u, ok)
		w.final = ok && (bare || w.stopped())
	}
	return bare && usage.present()
}

// choice reads one choice of a chunk and returns the size of what it adds.
func (w *streamWatch) choice(choice value) int64 {
	index, reason := int64(0), value(nil)
	for k, m := range choice.members() {
		switch string(k) {
		case "index":
			index, _ = m.tokens()
		case "finish_reason":
			reason = m
		}
	}
	if reason.kind() == '"' && len(reason) > 2 && index < w.choices { // some servers send "" all along
		if w.ended == nil {
			w.ended = make(map[int64]bool)
		}
		w.ended[index] = true
	}
	return generatedChoice(choice)
}
