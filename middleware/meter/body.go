package meter

import "bytes"

// skim goes through a JSON object that comes in pieces and keeps the text of
// the few members it is asked for, so that a body of any size is read in little
// memory.
type skim struct {
	keep map[string]*kept // the members asked for

	depth   int
	quoted  bool // inside a string
	escaped bool // behind a backslash in it
	naming  bool // the next string in the outermost object is a name
	name    []byte
	now     *kept // where the current member's value goes; nil: nowhere

	odd  bool // a member that looks like a usage, under a name not asked for
	bad  bool // not an object
	done bool // the closing bracket was seen
}

// kept is the text of one member, up to limit bytes.
type kept struct {
	limit int
	text  []byte
	over  bool // there was more
}

// value is the member's value: nothing unless the text is whole.
func (k *kept) value() value {
	if v, whole := parse(k.text); whole && !k.over {
		return v
	}
	return nil
}

func (k *kept) add(p []byte) {
	if k == nil {
		return
	}
	if room := k.limit - len(k.text); len(p) > room {
		p, k.over = p[:room], true
	}
	k.text = append(k.text, p...)
}

const maxName = 64

func (s *skim) write(p []byte) {
	from := 0 // of what is to be kept in p
	for i, c := range p {
		switch {
		case s.done || s.bad:
			return
		case s.escaped:
			s.escaped = false
		case s.quoted:
			switch {
			case c == '\\':
				s.escaped = true
			case c == '"':
				s.quoted = false
			case s.naming && s.depth == 1 && len(s.name) < maxName:
				s.name = append(s.name, c)
			}
		case c == '"':
			s.quoted = true
			if s.naming && s.depth == 1 {
				s.name = s.name[:0]
			}
		case c == '{' || c == '[':
			if s.depth++; s.depth == 1 {
				s.naming, s.bad = true, c == '['
			}
		case c == '}' || c == ']':
			if s.depth--; s.depth <= 0 {
				s.now.add(p[from:i])
				s.now, s.done = nil, s.depth == 0
				s.bad = s.depth < 0
			}
		case c == ':' && s.depth == 1 && s.naming:
			s.naming, s.now, from = false, s.keep[string(s.name)], i+1
			s.odd = s.odd || (s.now == nil && bytes.Contains(s.name, []byte("usage")))
		case c == ',' && s.depth == 1:
			s.now.add(p[from:i])
			s.naming, s.now = true, nil
		}
	}
	s.now.add(p[from:])
}

// jsonWatch follows a JSON body of the OpenAI shape.
type jsonWatch struct {
	skim
	generates                        bool // else embeddings
	id, usage, choices, data, failed kept
}

// The limits hold many times what providers send; a choices array beyond its
// limit is an answer that is not empty, which is all that is asked of it.
func newJSONWatch(generates bool) *jsonWatch {
	w := &jsonWatch{generates: generates}
	w.id.limit, w.usage.limit, w.choices.limit = 512, 64<<10, 64<<10
	w.data.limit, w.failed.limit = 512, MaxRefusalBytes
	w.keep = map[string]*kept{"id": &w.id, "usage": &w.usage, "choices": &w.choices, "data": &w.data, "error": &w.failed}
	return w
}

func (w *jsonWatch) Write(p []byte) []byte {
	w.write(p)
	return p
}

func (w *jsonWatch) End() []byte { return nil }

func (w *jsonWatch) Reading() Reading {
	r := Reading{Finished: w.done, Generated: w.generated()}
	var found reported
	switch v := w.usage.value(); {
	case v.present():
		found.see(tokenUsage(v, w.generates))
	case w.odd, w.bad, v == nil && len(w.usage.text) > 0:
		found.bad = true
	}
	// What of a body did not come may hold an answer.
	r.Usage = found.verdict(r.Generated > 0 || !w.done, w.generates, word(w.id.value().str()))
	r.Final = r.Usage.Known()
	if v := w.failed.value(); isError(v) {
		f := problemOf(v).refusal(0)
		r.Failure = &f
	}
	return r
}

// generated is the size of what the answer holds, at least 1 if it holds any.
func (w *jsonWatch) generated() (n int64) {
	for _, answers := range [...]*kept{&w.choices, &w.data} {
		if v := answers.value(); len(answers.text) > 0 && v.kind() != '[' && v.kind() != 'n' {
			return 1 // too long to be kept, or of no known shape
		}
	}
	for choice := range w.choices.value().elements() {
		for k, m := range choice.members() {
			if string(k) == "message" || string(k) == "text" {
				n += generated(m)
			}
		}
	}
	for range w.data.value().elements() {
		n++
	}
	return n
}
