package journal

import (
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// parser eats a line from the front. After the first thing that does not fit,
// bad is set, nothing is left to eat, and all further calls do nothing. Strings
// are parts of the line, unless they had escapes.
type parser struct {
	line string
	at   int // how much of it is eaten
	bad  badLine
	next byte // first letter of the next field's name, for begins
}

func (p *parser) rest() string { return p.line[p.at:] }

func (p *parser) fail(reason badLine) {
	if p.bad == "" {
		p.bad = reason
	}
	p.at = len(p.line)
}

func (p *parser) check(ok bool, reason badLine) {
	if !ok {
		p.fail(reason)
	}
}

// skip eats a text if it is what comes next.
func (p *parser) skip(text string) bool {
	rest := p.line[p.at:]
	if len(rest) < len(text) || rest[:len(text)] != text {
		return false
	}
	p.at += len(text)
	return true
}

func (p *parser) want(text string) {
	if !p.skip(text) {
		p.fail("expected " + badLine(text))
	}
}

// begins reports whether the next field can be that of name, such as
// `,"seq":`, by its first letter. Most fields of a line are not there: these
// are passed by for the price of this.
func (p *parser) begins(name string) bool { return p.next == name[2] }

// ended is called behind every value.
func (p *parser) ended() {
	p.next = 0
	if rest := p.rest(); len(rest) > 2 {
		p.next = rest[2]
	}
}

// optional reads an integer that is left out if zero.
func (p *parser) optional(name string) int64 {
	if p.begins(name) {
		return p.number(name)
	}
	return 0
}

func (p *parser) number(name string) int64 {
	if !p.skip(name) {
		return 0
	}
	n := p.integer()
	p.check(n != 0, "zero written out")
	return n
}

// flag reads a field that is left out if false.
func (p *parser) flag(name string) bool {
	if !p.begins(name) || !p.skip(name) {
		return false
	}
	p.ended()
	return true
}

func (p *parser) integer() int64 {
	negative := p.skip("-")
	return p.signed(negative, p.natural())
}

func (p *parser) signed(negative bool, n uint64) int64 {
	p.ended()
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
	s, n, i := p.rest(), uint64(0), 0
	for len(s)-i >= 8 {
		w := load8(s[i:])
		if !digits8(w) {
			break
		}
		n = n*1e8 + value8(w)
		i += 8
	}
	for ; i < len(s) && s[i]-'0' <= 9; i++ {
		n = n*10 + uint64(s[i]-'0')
	}
	if i == 0 || i > 1 && s[0] == '0' {
		p.fail("not a plain number")
		return 0
	}
	if i > 19 { // as long a number always fits, a longer one may not
		var err error
		if n, err = strconv.ParseUint(s[:i], 10, 64); err != nil {
			p.fail("number overflows 64 bits")
			return 0
		}
	}
	p.at += i
	return n
}

// micros reads Unix seconds with up to six decimals.
func (p *parser) micros() int64 {
	negative := p.skip("-")
	seconds := p.natural()
	high, micros := bits.Mul64(seconds, 1e6)
	p.check(high == 0, "time overflows 64 bits")
	if p.skip(".") {
		s, unit, i := p.rest(), uint64(1e6), 0
		decimals := uint64(0)
		for ; i < len(s) && i <= 6 && s[i]-'0' <= 9; i++ {
			decimals = decimals*10 + uint64(s[i]-'0')
			unit /= 10
		}
		if i == 0 || s[i-1] == '0' {
			p.fail("decimals that end in zero")
			return 0
		}
		var carry uint64
		micros, carry = bits.Add64(micros, decimals*unit, 0)
		p.check(carry == 0 && i <= 6, "time out of range")
		p.at = min(p.at+i, len(p.line))
	}
	return p.signed(negative, micros)
}

func (p *parser) hex() uint32 {
	s := p.rest()
	if len(s) < 8 {
		p.fail("not 8 hex digits")
		return 0
	}
	var n uint32
	for i := range 8 {
		switch c := s[i]; {
		case c-'0' <= 9:
			n = n<<4 | uint32(c-'0')
		case c-'a' <= 5:
			n = n<<4 | uint32(c-'a'+10)
		default:
			p.fail("not 8 lower-case hex digits")
			return 0
		}
	}
	p.at += 8
	return n
}

// optionalText reads a string that is left out if empty.
func (p *parser) optionalText(name string) string {
	if p.begins(name) {
		return p.named(name)
	}
	return ""
}

func (p *parser) named(name string) string {
	if !p.skip(name) {
		return ""
	}
	s := p.text()
	p.check(s != "", "empty string written out")
	return s
}

// text reads a string with its quotes.
func (p *parser) text() string {
	p.want(`"`)
	s := p.rest()
	n := plainLen(s)
	if n < len(s) && s[n] == '"' {
		p.at += n + 1
		p.ended()
		return s[:n]
	}
	return p.special()
}

// special is text behind the first quote, for strings that do not stand there
// as they are.
func (p *parser) special() string {
	var s []byte
	for !p.skip(`"`) {
		if p.at == len(p.line) || p.line[p.at] < ' ' {
			p.fail("string without an end")
			return ""
		}
		c := p.line[p.at]
		if c != '\\' {
			p.at++
		} else if c = p.escape(); p.bad != "" {
			return ""
		}
		s = append(s, c)
	}
	p.check(utf8.Valid(s), "string is not UTF-8")
	p.ended()
	return string(s)
}

func (p *parser) escape() byte {
	switch {
	case p.skip(`\"`):
		return '"'
	case p.skip(`\\`):
		return '\\'
	case p.skip(`\n`):
		return '\n'
	case p.skip(`\r`):
		return '\r'
	case p.skip(`\t`):
		return '\t'
	}
	for c := byte(0); c < ' '; c++ { // rare enough to be found by trying
		var text [6]byte
		if appended := appendEscape(text[:0], c); len(appended) == 6 && p.skip(string(appended)) {
			return c
		}
	}
	p.fail("escape that is never written")
	return 0
}
