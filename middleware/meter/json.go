package meter

import (
	"bytes"
	"encoding/json"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tollbook/tollbook/budget"
)

// value is the text of one JSON value, read in place: nothing is copied, and a
// walk stops where the text is broken. Where a broken text must not pass, valid
// is asked first.
type value []byte

// parse returns the value that text holds, and whether it is whole: one
// bracketed or quoted value with nothing behind it.
func parse(text []byte) (v value, whole bool) {
	text = bytes.TrimRight(trimSpace(text), " \t\r\n")
	n := span(text)
	return text[:n], n > 0 && n == len(text)
}

// kind is '{', '[', '"', 't', 'f', 'n', the first byte of a number, or 0.
func (v value) kind() byte {
	if len(v) == 0 {
		return 0
	}
	return v[0]
}

// present reports whether there is a value that is not null.
func (v value) present() bool { return len(v) > 0 && v[0] != 'n' }

// isTrue reports whether v is the literal true.
func (v value) isTrue() bool { return string(v) == "true" }

// members yields the members of an object; of anything else, nothing. A key
// that stands twice is yielded twice.
func (v value) members() iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) { walk(v, yield) }
}

// walk calls visit with the members of the object at the start of b for as long
// as it returns true, and reports whether the object was whole and the last.
func walk(b []byte, visit func(name []byte, v value) bool) (whole bool) {
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	for b = trimSpace(b[1:]); len(b) > 0 && b[0] == '"'; {
		n := stringSpan(b)
		if n == 0 {
			return false
		}
		name := key(b[:n])
		if b = trimSpace(b[n:]); len(b) == 0 || b[0] != ':' {
			return false
		}
		b = trimSpace(b[1:])
		if n = span(b); n == 0 || !visit(name, value(b[:n])) {
			return false
		}
		if b = trimSpace(b[n:]); len(b) == 0 || b[0] != ',' {
			break
		}
		b = trimSpace(b[1:])
	}
	return len(b) > 0 && b[0] == '}' && len(trimSpace(b[1:])) == 0
}

// elements yields the elements of an array; of anything else, nothing.
func (v value) elements() iter.Seq[value] {
	return func(yield func(value) bool) {
		if v.kind() != '[' {
			return
		}
		for b := trimSpace(v[1:]); len(b) > 0; {
			n := span(b)
			if n == 0 || !yield(value(b[:n])) {
				return
			}
			if b = trimSpace(b[n:]); len(b) == 0 || b[0] != ',' {
				return
			}
			b = trimSpace(b[1:])
		}
	}
}

// get returns the last member of that name, as most readers of JSON would.
func (v value) get(name string) (found value) {
	for k, m := range v.members() {
		if string(k) == name {
			found = m
		}
	}
	return found
}

// str returns the text of a string, empty for anything else.
func (v value) str() string {
	if v.kind() != '"' || len(v) < 2 {
		return ""
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	var s string
	if json.Unmarshal(v, &s) != nil {
		return string(v)
	}
	return s
}

// size is len(v.str()), without making the string.
func (v value) size() int64 {
	if v.kind() != '"' || len(v) < 2 {
		return 0
	}
	inner := v[1 : len(v)-1]
	n := len(inner)
	if !utf8.Valid(inner) {
		n += 2 * invalid(inner) // each becomes the 3 bytes of U+FFFD
	}
	for {
		i := bytes.IndexByte(inner, '\\')
		if i < 0 || i+1 >= len(inner) {
			return int64(n)
		}
		if inner[i+1] != 'u' {
			n, inner = n-1, inner[i+2:]
			continue
		}
		r, length := hexRune(inner[i:])
		n, inner = n-length+utf8.RuneLen(r), inner[i+length:]
	}
}

// hexRune reads \uXXXX, or a surrogate pair of two, at the start of b.
func hexRune(b []byte) (r rune, length int) {
	unit := func(b []byte) rune {
		if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	switch r = unit(b); {
	case r < 0:
		return utf8.RuneError, min(len(b), 2)
	case r < 0xD800 || r > 0xDFFF:
		return r, 6
	case r < 0xDC00:
		if low := unit(b[6:]); low >= 0xDC00 && low <= 0xDFFF {
			return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00), 12
		}
	}
	return utf8.RuneError, 6 // a lone surrogate
}

// invalid counts the bytes of b that are no UTF-8.
func invalid(b []byte) (n int) {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			n++
		}
		b = b[size:]
	}
	return n
}

// tokens reads a number of tokens: a whole number from 0 to [budget.MaxTokens],
// also as 12.0 or 1e3. Anything else is not ok: a fraction, a negative, a
// string.
func (v value) tokens() (n int64, ok bool) {
	if validNumber(v, 0) != len(v) { // strconv takes more than JSON does
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil || f != math.Trunc(f) || f < 0 || f > budget.MaxTokens {
			return 0, false
		}
		n = int64(f)
	}
	return n, n >= 0 && n <= budget.MaxTokens
}

// span is the length of the value at the start of b, 0 if it does not end
// there. Brackets and quotes are matched, what stands between is not judged.
func span(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return stringSpan(b)
	case '{', '[':
	default: // a number or a literal
		for i, c := range b {
			switch c {
			case ',', ':', ']', '}', '"', ' ', '\t', '\r', '\n':
				return i
			}
		}
		return len(b)
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			n := stringSpan(b[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// stringSpan is the length of the string at the start of b, quotes included.
func stringSpan(b []byte) int {
	for i := 1; i < len(b); {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			break
		}
		i += n + 1
		// Behind an odd number of backslashes the quote is part of the text.
		slashes := 0
		for b[i-2-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
	return 0
}

// key returns a member's name without its quotes. "max_tok\u0065ns" names the
// same member as "max_tokens", so escapes count.
func key(quoted value) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	return []byte(quoted.str())
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\r' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}
