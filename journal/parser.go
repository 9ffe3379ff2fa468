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

// has eats the name of a field, such as `,"seq":`, if it is what comes next.
// Most fields of a line are not there: the first letter tells most of these.
func (p *parser) has(name string) bool { return p.next == name[2] && p.skip(name) }

// ended is called behind every value, so that has can do its work.
func (p *parser) ended() {
	p.next = 0
	if rest := p.rest(); len(rest) > 2 {
		p.next = rest[2]
	}
}

// optional reads an integer that is left out if zero. It is small, as are has
// and skip, so that they become part of their callers.
func (p *parser) optional(there bool) int64 {
	if there {
		return p.nonzero()
	}
	return 0
}

func (p *parser) nonzero() int64 {
	n := p.integer()
	p.check(n != 0, "zero written out")
	return n
}

// flag reads a field that is left out if false.
func (p *parser) flag(there bool) bool {
	if there {
		p.ended()
	}
	return there
}

func (p *parser) integer() int64 {
	negative := p.minus()
	return p.signed(negative, p.natural())
}

func (p *parser) minus() bool {
	if rest := p.rest(); rest == "" || rest[0] != '-' {
		return false
	}
	p.at++
	return true
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
	s := p.rest()
	n, count := digits(s)
	if count == 0 || count > 1 && s[0] == '0' {
		p.fail("not a plain number")
		return 0
	}
	if count > 19 { // as long a number always fits, a longer one may not
		var err error
		if n, err = strconv.ParseUint(s[:count], 10, 64); err != nil {
			p.fail("number overflows 64 bits")
			return 0
		}
	}
	p.at += count
	return n
}

// micros reads Unix seconds with up to six decimals.
func (p *parser) micros() int64 {
	negative := p.minus()
	high, micros := bits.Mul64(p.natural(), 1e6)
	p.check(high == 0, "time out of range")
	if rest := p.rest(); len(rest) > 0 && rest[0] == '.' {
		decimals, count := digits(rest[1:])
		if count == 0 || count > 6 || rest[count] == '0' {
			p.fail("not one to six decimals, the last no zero")
			return 0
		}
		var carry uint64
		micros, carry = bits.Add64(micros, decimals*pow10[6-count], 0)
		p.check(carry == 0, "time out of range")
		p.at += 1 + count
	}
	return p.signed(negative, micros)
}

func (p *parser) hex() uint32 {
	n := uint64(math.MaxUint64)
	if s := p.rest(); len(s) >= 8 {
		n = hexOf(s[:8])
	}
	if n > math.MaxUint32 {
		p.fail("not 8 lower-case hex digits")
		return 0
	}
	p.at += 8
	return uint32(n)
}

// optionalText reads a string that is left out if empty.
func (p *parser) optionalText(there bool) string {
	if there {
		return p.nonempty()
	}
	return ""
}

func (p *parser) nonempty() string {
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
