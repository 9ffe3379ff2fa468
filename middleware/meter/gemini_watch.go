package meter

import "github.com/tollbook/tollbook/budget"

// geminiUsage reads usageMetadata.
func geminiUsage(v value) (u budget.Usage, ok bool) {
	if v.kind() != '{' || !valid(v) {
		return u, false
	}
	var prompt, tools, candidates, thoughts int64
	total := int64(-1) // always told; zeros are left out
	ok = true
	read := func(to *int64, v value) {
		if v.present() {
			n, whole := v.tokens()
			ok, *to = ok && whole, n
		}
	}
	for k, m := range v.members() {
		switch string(k) {
		case "promptTokenCount":
			read(&prompt, m)
		case "toolUsePromptTokenCount":
			read(&tools, m)
		case "cachedContentTokenCount":
			read(&u.Cached, m)
		case "candidatesTokenCount":
			read(&candidates, m)
		case "thoughtsTokenCount":
			read(&thoughts, m)
		case "totalTokenCount":
			read(&total, m)
		}
	}
	u.Input, u.Output, u.Reasoning = plus(prompt, tools), plus(candidates, thoughts), thoughts
	switch parts := plus(u.Input, u.Output); {
	case !ok || total < parts:
		return u, false
	case total > parts: // more than the parts say was billed
		u.Output += total - parts
	}
	return u, u.Check() == nil
}

// geminiAnswer is what the chunks of one answer have told so far. Each repeats
// the usage so far; the last one has the reasons for the end. There is no marker
// behind it.
type geminiAnswer struct {
	choices   int64
	id        string
	reported  reported
	at        int64
	ended     map[int64]bool
	blocked   bool // the prompt was refused: no candidate comes
	generated int64
	pieces    int64 // of it
	failure   *Refusal
}

// chunk reads one chunk, if text is one and whole.
func (a *geminiAnswer) chunk(text []byte) (whole bool) {
	var candidates, feedback, usage, id, failure value
	if !walk(trimSpace(text), func(name []byte, v value) bool {
		switch string(name) {
		case "candidates":
			candidates = v
		case "promptFeedback":
			feedback = v
		case "usageMetadata":
			usage = v
		case "responseId":
			id = v
		case "error":
			failure = v
		}
		return true
	}) {
		return false
	}
	for c := range candidates.elements() {
		a.candidate(c)
	}
	a.blocked = a.blocked || feedback.get("blockReason").present()
	if a.id == "" {
		a.id = word(id.str())
	}
	if isError(failure) {
		f := problemOf(failure).refusal(0)
		a.failure = &f
	}
	if usage.present() {
		if a.reported.see(geminiUsage(usage)) {
			a.at = a.generated
		}
	}
	return true
}

func (a *geminiAnswer) candidate(v value) {
	index, before := int64(0), a.generated
	ended := false
	for k, m := range v.members() {
		switch string(k) {
		case "index":
			index, _ = m.tokens()
		case "finishReason":
			ended = m.kind() == '"' && len(m) > 2
		case "content":
			a.generated += generated(m)
		}
	}
	if a.generated > before {
		a.pieces++
	}
	if ended && index < max(a.choices, 1) {
		if a.ended == nil {
			a.ended = make(map[int64]bool)
		}
		a.ended[index] = true
	}
}

func (a *geminiAnswer) stopped() bool { return a.blocked || int64(len(a.ended)) >= max(a.choices, 1) }

// reading is what is known, of a stream that lost so many bytes unread.
func (a *geminiAnswer) reading(lost int64, over bool) Reading {
	r := Reading{Stopped: a.stopped(), Failure: a.failure, Generated: a.generated + lost, Pieces: a.pieces}
	r.Finished = over && r.Stopped
	r.Usage = a.reported.verdict(r.Generated > 0, true, a.id)
	if r.Usage.Why == NoUsage && lost > 0 {
		r.Usage.Why = Unreadable
	}
	r.Final = r.Usage.Known() && r.Stopped && r.Generated == a.at
	return r
}

// geminiStream follows an answer in chunks: server-sent events, or the elements of
// one JSON list.
type geminiStream struct {
	geminiAnswer
	events *sse
	list   elements
	over   bool
	cut    bool
}

func newGeminiStream(choices int64, events bool) *geminiStream {
	w := &geminiStream{geminiAnswer: geminiAnswer{choices: choices}}
	w.list.read = func(text []byte) {
		if !w.chunk(text) {
			w.generated += int64(len(text))
		}
	}
	if events {
		w.events = &sse{read: w.event}
	}
	return w
}

func (w *geminiStream) event(_, data []byte, last bool) verdict {
	switch {
	case w.chunk(data):
	case !last && span(trimSpace(data)) == 0:
		return more
	default:
		w.generated += int64(len(data))
	}
	return pass
}

func (w *geminiStream) Write(p []byte) []byte {
	if w.events != nil {
		return w.events.Write(p)
	}
	w.list.write(p)
	return p
}

// Cut says that the stream did not come to its own end. There is no marker, and
// some servers give the reason for the end with every chunk: only a body that
// ends by itself, a list with its bracket, is a whole answer.
func (w *geminiStream) Cut() { w.cut = true }

func (w *geminiStream) End() []byte {
	w.over = true
	if w.events != nil {
		return w.events.End()
	}
	w.list.end()
	return nil
}

func (w *geminiStream) Reading() Reading {
	lost := w.list.lost
	if w.events != nil {
		lost = w.events.lost
	}
	r := w.reading(lost, w.over)
	if w.cut || w.over && w.events == nil && !w.list.closed {
		r.Finished, r.Final = false, false
	}
	return r
}

// elements cuts the objects out of a JSON list, or of a sequence, that comes in
// pieces. One that is longer than maxLine passes unread.
type elements struct {
	read    func(object []byte)
	depth   int // within an object
	quoted  bool
	escaped bool
	text    []byte
	lost    int64
	closed  bool // the bracket behind the last was seen
}

func (e *elements) write(p []byte) {
	for _, c := range p {
		if e.depth > 0 || c == '{' {
			if len(e.text) < maxLine {
				e.text = append(e.text, c)
			} else {
				e.lost++
			}
		}
		switch {
		case e.escaped:
			e.escaped = false
		case e.quoted:
			e.escaped, e.quoted = c == '\\', c != '"'
		case c == '"':
			e.quoted = true
		case c == '{':
			e.depth++
		case c == ']' && e.depth == 0:
			e.closed = true
		case c == '}' && e.depth > 0:
			if e.depth--; e.depth == 0 {
				e.done()
			}
		}
	}
}

func (e *elements) done() {
	if len(e.text) < maxLine {
		e.read(e.text)
	} else {
		e.lost += int64(len(e.text))
	}
	e.text = e.text[:0]
}

// end counts what was cut off.
func (e *elements) end() {
	e.lost += int64(len(e.text))
	e.text, e.depth = e.text[:0], 0
}

// geminiJSON follows an answer that comes whole.
type geminiJSON struct {
	skim
	id, usage, candidates, feedback, failed kept
}

func newGeminiJSON() *geminiJSON {
	w := &geminiJSON{}
	w.id.limit, w.usage.limit, w.candidates.limit, w.feedback.limit, w.failed.limit = 512, 64<<10, 64<<10, 64<<10, MaxRefusalBytes
	w.keep = map[string]*kept{"responseId": &w.id, "usageMetadata": &w.usage, "candidates": &w.candidates, "promptFeedback": &w.feedback, "error": &w.failed}
	return w
}

func (w *geminiJSON) Write(p []byte) []byte {
	w.write(p)
	return p
}

func (w *geminiJSON) End() []byte { return nil }

func (w *geminiJSON) Reading() Reading {
	r := Reading{Finished: w.done}
	switch v := w.candidates.value(); {
	case v.kind() == '[':
		for c := range v.elements() {
			r.Generated += generated(c.get("content"))
		}
	case len(w.candidates.text) > 0 && v.kind() != 'n':
		r.Generated = 1 // too long to be kept, or of no known shape
	}
	var found reported
	switch v := w.usage.value(); {
	case v.present():
		found.see(geminiUsage(v))
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
