package meter

import "bytes"

// streamWatch follows a stream of the OpenAI shape.
type streamWatch struct {
	sse
	choices int64

	id        string
	reported  reported
	at        int64 // size when the usage was reported
	finished  bool
	ended     map[int64]bool // choices that gave their finish reason, by index
	generated int64
	pieces    int64 // of it
	garbled   bool  // an event was broken that may have held usage
	failure   *Refusal
}

func newStreamWatch(choices int64, hide bool) *streamWatch {
	w := &streamWatch{choices: max(choices, 1)}
	w.sse = sse{read: w.event, hide: hide}
	return w
}

func (w *streamWatch) stopped() bool { return int64(len(w.ended)) >= w.choices }

// size is what was generated at most: what was too long to be read may have been.
func (w *streamWatch) size() int64 { return w.generated + w.lost }

func (w *streamWatch) Reading() Reading {
	r := Reading{Finished: w.finished, Stopped: w.stopped(), Failure: w.failure, Generated: w.size(), Pieces: w.pieces}
	r.Usage = w.reported.verdict(r.Generated > 0, true, w.id)
	if r.Usage.Why == NoUsage && (w.garbled || w.lost > 0) {
		r.Usage.Why = Unreadable
	}
	r.Final = r.Usage.Known() && (r.Finished || r.Stopped) && r.Generated == w.at
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
	case bytes.HasPrefix([]byte("[DONE]"), bytes.TrimSpace(data)):
		return pass // the end marker, cut
	default:
		w.generated += int64(len(data))
		w.garbled = w.garbled || bytes.Contains(data, []byte(`"usage"`))
		return pass
	}
	bare := true
	for choice := range choices.elements() {
		bare = false
		w.choice(choice)
	}
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
	if w.reported.see(u, ok) {
		w.at = w.size()
	}
	if bare {
		return swallow
	}
	return pass
}

// choice reads one choice of a chunk.
func (w *streamWatch) choice(choice value) {
	index, reason, before := int64(0), value(nil), w.generated
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
	if w.generated > before {
		w.pieces++
	}
	if reason.kind() == '"' && len(reason) > 2 && index < w.choices { // some servers send "" all along
		if w.ended == nil {
			w.ended = make(map[int64]bool)
		}
		w.ended[index] = true
	}
}
