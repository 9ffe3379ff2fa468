package journal

import (
	"math"
	"math/bits"
	"unicode/utf8"
)

// parser eats a line from the front. After the first thing that does not fit,
// bad is set, nothing is left to eat, and all further calls do nothing.
type parser struct {
	rest  []byte
	bad   error
	words *words
}

func (p *parser) fail(reason string) {
	if p.bad == nil {
		p.bad = badLine(reason)
	}
	p.rest = nil
}

func (p *parser) check(ok bool, reason string) {
	if !ok {
		p.fail(reason)
	}
}

// skip eats a text if it is what comes next.
func (p *parser) skip(text string) bool {
	if len(p.rest) < len(text) || string(p.rest[:len(text)]) != text {
		return false
	}
	p.rest = p.rest[len(text):]
	return true
}

func (p *parser) want(text string) {
	if !p.skip(text) {
		p.fail("expected " + text)
	}
}

// optional reads an integer that is left out if zero.
func (p *parser) optional(name string) int64 {
	if !p.skip(name) {
		return 0
	}
	n := p.integer()
	p.check(n != 0, "zero written out")
	return n
}

func (p *parser) integer() int64 {
	negative := p.skip("-")
	return p.signed(negative, p.natural())
}

func (p *parser) signed(negative bool, n uint64) int64 {
	switch {
	case negative && n == 0:
		p.fail("minus zero")
	case negative && n <= -math.MinInt64:
		return int64(-n)
	case n > math.MaxInt64:
		p.fail("number overflows 64 bits")
	}
	return int64(n)
}

func (p *parser) natural() uint64 {
	var n uint64
	i := 0
	for ; i < len(p.rest) && p.rest[i]-'0' <= 9; i++ {
		high, low := bits.Mul64(n, 10)
		sum, carry := bits.Add64(low, uint64(p.rest[i]-'0'), 0)
		if high|carry != 0 {
			p.fail("number overflows 64 bits")
			return 0
		}
		n = sum
	}
	if i == 0 || (i > 1 && p.rest[0] == '0') {
		p.fail("not a plain number")
		return 0
	}
	p.rest = p.rest[i:]
	return n
}

// micros reads Unix seconds with up to six decimals.
func (p *parser) micros() int64 {
	negative := p.skip("-")
	seconds := p.natural()
	high, micros := bits.Mul64(seconds, 1e6)
	p.check(high == 0, "time overflows 64 bits")
	if p.skip(".") {
		unit, i := uint64(1e5), 0
		var last byte
		for ; i < len(p.rest) && p.rest[i]-'0' <= 9; i++ {
			last = p.rest[i]
			var carry uint64
			micros, carry = bits.Add64(micros, uint64(last-'0')*unit, 0)
			p.check(carry == 0 && unit > 0, "time out of range")
			unit /= 10
		}
		if i == 0 || last == '0' {
			p.fail("decimals that end in zero")
			return 0
		}
		p.rest = p.rest[min(i, len(p.rest)):]
	}
	return p.signed(negative, micros)
}

func (p *parser) hex() uint32 {
	if len(p.rest) < 8 {
		p.fail("not 8 hex digits")
		return 0
	}
	var n uint32
	for _, c := range p.rest[:8] {
		switch {
		case c-'0' <= 9:
			n = n<<4 | uint32(c-'0')
		case c-'a' <= 5:
			n = n<<4 | uint32(c-'a'+10)
		default:
			p.fail("not 8 lower-case hex digits")
			return 0
		}
	}
	p.rest = p.rest[8:]
	return n
}

func (p *parser) optionalText(name string) string {
	if !p.skip(name) {
		return ""
	}
	s := p.text()
	p.check(s != "", "empty string written out")
	return s
}

// text reads a string with its quotes.
func (p *parser) text() string { return string(p.bytes()) }

// word reads an optional string that is likely to come again.
func (p *parser) word(name string) string {
	if !p.skip(name) {
		return ""
	}
	b := p.bytes()
	p.check(len(b) > 0, "empty string written out")
	return p.words.get(b)
}

// bytes reads a string with its quotes. The result is part of the line, unless
// it had escapes.
func (p *parser) bytes() []byte {
	p.want(`"`)
	n, ascii := 0, true
	for n < len(p.rest) && p.rest[n] >= ' ' && p.rest[n] != '"' && p.rest[n] != '\\' {
		ascii = ascii && p.rest[n] < utf8.RuneSelf
		n++
	}
	s := p.rest[:n]
	p.rest = p.rest[n:]
	if !p.skip(`"`) {
		s = p.unescape(s)
	}
	if !ascii || len(s) != n {
		p.check(utf8.Valid(s), "string is not UTF-8")
	}
	return s
}

// unescape goes on behind head where the first escape is, or an error.
func (p *parser) unescape(head []byte) []byte {
	s := append([]byte(nil), head...)
	for !p.skip(`"`) {
		if len(p.rest) == 0 || p.rest[0] < ' ' {
			p.fail("string without an end")
			return nil
		}
		if p.rest[0] != '\\' {
			s = append(s, p.rest[0])
			p.rest = p.rest[1:]
			continue
		}
		c, ok := p.escape()
		if !ok {
			p.fail("escape that is never written")
			return nil
		}
		s = append(s, c)
	}
	return s
}

func (p *parser) escape() (c byte, ok bool) {
	switch {
	case p.skip(`\"`):
		return '"', true
	case p.skip(`\\`):
		return '\\', true
	case p.skip(`\n`):
		return '\n', true
	case p.skip(`\r`):
		return '\r', true
	case p.skip(`\t`):
		return '\t', true
	}
	for c := byte(0); c < ' '; c++ { // rare enough to be found by trying
		var text [6]byte
		if appended := appendEscape(text[:0], c); len(appended) == 6 && p.skip(string(appended)) {
			return c, true
		}
	}
	return 0, false
}

// words keeps strings that come again and again, such as scopes and models, so
// that reading a book does not allocate one for each line.
type words [256]string

func (w *words) get(b []byte) string {
	if w == nil || len(b) > 64 {
		return string(b)
	}
	slot := &w[checksum(b)%uint32(len(w))]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}
