package journal

import (
	"bytes"
	"errors"
	"io"
)

// rawLine is one line as it was found.
type rawLine struct {
	text []byte // without the newline; valid until the next call. Its capacity holds what quick may look at.
	off  int64  // of its first byte
	size int64  // of all its bytes, newline included
	done bool   // the newline was there
	long bool   // longer than allowed: text is only its beginning
}

// lineReader splits a stream into lines in bounded memory: an over-long line
// is passed over and reported as one, and is no end.
type lineReader struct {
	r      io.Reader
	size   int    // of buf, unless a longer line needs more
	buf    []byte // buf[:have] is read, of which buf[:used] was given out
	used   int
	have   int
	off    int64 // of buf[used]
	failed error // what the reader said last; io.EOF included
	idle   int   // reads in a row that brought nothing
}

// readSize is how much is read at once. It is a variable for tests, which take
// less.
var readSize = 256 << 10

// newLineReader reads from r, which holds about size bytes.
func newLineReader(r io.Reader, size int64) *lineReader {
	n := int(min(max(size, 512), int64(readSize)))
	return &lineReader{r: r, size: n, buf: lineBuffer(n)}
}

// lineBuffer has room for slack behind all that it may be filled with.
func lineBuffer(n int) []byte { return make([]byte, n+slack)[:n] }

var openPrefix = []byte(`{"ev":"open"`)

// next returns the next line; at the end io.EOF, or the reader's error.
func (l *lineReader) next() (rawLine, error) {
	scanned := 0
	for {
		rest := l.buf[l.used:l.have]
		if i := bytes.IndexByte(rest[scanned:], '\n'); i >= 0 {
			return l.take(scanned+i, 1), nil
		}
		scanned = len(rest)
		if limit := maxLine(bytes.HasPrefix(rest, openPrefix)); len(rest) > limit {
			return l.pass()
		}
		if l.failed != nil {
			if len(rest) == 0 || !errors.Is(l.failed, io.EOF) {
				return rawLine{}, l.failed
			}
			return l.take(len(rest), 0), nil
		}
		l.fill()
	}
}

// run returns as many whole lines as there are in one piece of the usual size,
// as if they were one. A line that is longer or has no end comes by itself, as
// next returns it.
func (l *lineReader) run() (rawLine, error) {
	for l.have-l.used < l.size && l.failed == nil {
		l.fill()
	}
	piece := l.buf[l.used:min(l.have, l.used+l.size)]
	if i := bytes.LastIndexByte(piece, '\n'); i >= 0 {
		return l.take(i, 1), nil
	}
	return l.next()
}

// swap leaves the buffer with what was given out of it to the caller, and goes
// on in another one. A buffer that grew for a long line is nobody's.
func (l *lineReader) swap(buf []byte) []byte {
	rest := l.buf[l.used:l.have]
	if len(buf) < l.size || len(buf) <= len(rest) {
		buf = lineBuffer(l.size + len(rest))
	}
	was := l.buf
	l.buf, l.used, l.have = buf, 0, copy(buf, rest)
	if len(was) > 2*l.size {
		return nil
	}
	return was
}

// take gives out n bytes of text and the newline behind it, if any. If there is
// none, nothing of what was read before stands behind them.
func (l *lineReader) take(n, newline int) rawLine {
	if newline == 0 {
		clear(l.buf[l.have : l.have+slack])
	}
	line := rawLine{text: l.buf[l.used : l.used+n], off: l.off, size: int64(n + newline), done: newline > 0}
	line.long = n+newline > maxLine(bytes.HasPrefix(line.text, openPrefix))
	l.used += n + newline
	l.off += line.size
	return line
}

// pass drops everything up to the next newline, which nobody may have to hold
// in memory, and reports it as one over-long line.
func (l *lineReader) pass() (rawLine, error) {
	line := rawLine{off: l.off, long: true}
	for {
		rest := l.buf[l.used:l.have]
		i := bytes.IndexByte(rest, '\n')
		if i >= 0 {
			rest, line.done = rest[:i+1], true
		}
		line.size += int64(len(rest))
		l.used += len(rest)
		if line.done || l.failed != nil {
			break
		}
		l.fill()
	}
	l.off += line.size
	if !line.done && !errors.Is(l.failed, io.EOF) {
		return rawLine{}, l.failed
	}
	return line, nil
}

// fill reads once, after making room: it moves what is left to the front, and
// doubles the buffer only if one line has filled it.
func (l *lineReader) fill() {
	if l.used > 0 {
		l.have = copy(l.buf, l.buf[l.used:l.have])
		l.used = 0
	}
	if l.have == len(l.buf) {
		was := l.buf
		l.buf = lineBuffer(2 * len(was))
		copy(l.buf, was)
	}
	n, err := l.r.Read(l.buf[l.have:min(len(l.buf), l.have+l.size)]) // no more behind a long line than behind another
	l.have += n
	l.failed = err
	if l.idle++; n > 0 {
		l.idle = 0
	} else if err == nil && l.idle > 100 {
		l.failed = io.ErrNoProgress
	}
}
