package meter

import "bytes"

// maxLine is the longest line, and the longest event, that is read. What is
// longer passes unread.
const maxLine = 1 << 20

// sse cuts server-sent events out of a stream that comes in pieces, and hands
// the bytes on as they are. If hide is set, events that read wants gone are
// taken out; for that, an event is held back until its data is whole.
//
// Event data that is one whole JSON value is read at the end of its line, not
// of the event: some servers leave the blank line out.
type sse struct {
	// read takes the data of an event. It asks for more if the data is not
	// whole and more may come; last says that it may not.
	read func(event, data []byte, last bool) verdict
	hide bool

	begun bool   // a line was read
	line  []byte // the begun line
	long  bool   // inside a line that is too long
	name  []byte // of the event, if it gave one
	data  []byte // of an event over several lines
	lost  int64  // bytes that were too long to read

	held []byte // of the event, if hide
	sent bool   // part of the event is handed on already
	gone bool   // the event was taken out; its blank line goes too
	out  []byte
}

type verdict int

const (
	pass verdict = iota
	swallow
	more
)

func (s *sse) Write(p []byte) []byte {
	s.out = s.out[:0]
	for rest := p; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(rest)
		}
		s.piece(rest[:n], whole)
		rest = rest[n:]
	}
	if !s.hide {
		return p
	}
	return s.out
}

// piece takes the next part of a line, up to its end if whole.
func (s *sse) piece(p []byte, whole bool) {
	switch {
	case s.long:
		s.lost += int64(len(p))
		s.hold(p)
		s.release()
		s.long = !whole
	case len(s.line)+len(p) > maxLine:
		s.lost += int64(len(s.line) + len(p))
		s.sent, s.long = true, !whole
		s.hold(s.line)
		s.hold(p)
		s.release()
		s.line = s.line[:0]
	case !whole:
		s.line = append(s.line, p...)
	case len(s.line) > 0:
		s.line = append(s.line, p...)
		s.whole(s.line)
		s.line = s.line[:0]
	default:
		s.whole(p)
	}
}

// whole takes one line with its end.
func (s *sse) whole(line []byte) {
	text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if !s.begun {
		s.begun, text = true, bytes.TrimPrefix(text, []byte("\ufeff")) // a byte order mark
	}
	if len(text) == 0 {
		s.blank(line)
		return
	}
	s.gone = false
	if s.hold(line); text[0] == ':' && len(s.held) == len(line) {
		s.release() // a comment alone is a sign of life, which waits for nothing
	}
	field, text, _ := bytes.Cut(bytes.TrimLeft(text, " "), []byte(":"))
	text = bytes.TrimPrefix(text, []byte(" "))
	switch string(field) {
	case "event":
		s.name = append(s.name[:0], text...)
	case "data":
		s.dataLine(text)
	}
}

func (s *sse) dataLine(text []byte) {
	if len(s.data) > 0 {
		if len(s.data)+1+len(text) > maxLine {
			s.lost += int64(len(s.data) + len(text))
			s.sent, s.data = true, nil
			s.release()
			return
		}
		s.data = append(append(s.data, '\n'), text...)
		return
	}
	if s.dispatch(text, false) == more {
		s.data = append(s.data, text...)
	}
}

// blank takes the line that ends an event.
func (s *sse) blank(line []byte) {
	if s.gone {
		s.gone, s.name = false, s.name[:0]
		return
	}
	if len(s.data) > 0 {
		data := s.data
		s.data = s.data[:0]
		s.dispatch(data, true)
	}
	if !s.gone {
		s.hold(line)
		s.release()
	}
	s.name, s.sent, s.gone = s.name[:0], false, false
}

// dispatch reads one event, and takes it out or lets it go.
func (s *sse) dispatch(data []byte, last bool) verdict {
	v := s.read(s.name, data, last)
	switch {
	case v == more:
		return v
	case v == swallow && s.hide && !s.sent:
		s.held, s.gone = s.held[:0], true
	default:
		s.release()
	}
	s.name = s.name[:0]
	return v
}

// End takes the last line even if it has no end, as some servers leave it.
func (s *sse) End() []byte {
	s.out = s.out[:0]
	if len(s.line) > 0 {
		line := s.line
		s.line = nil
		s.whole(line)
	}
	if len(s.data) > 0 {
		data := s.data
		s.data = nil
		s.dispatch(data, true)
	}
	s.release()
	return s.out
}

func (s *sse) hold(p []byte) {
	if !s.hide {
		return
	}
	if len(s.held)+len(p) > maxLine {
		s.sent = true
		s.release()
	}
	s.held = append(s.held, p...)
}

func (s *sse) release() {
	if s.hide {
		s.out = append(s.out, s.held...)
		s.held = s.held[:0]
	}
}
