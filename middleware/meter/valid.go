package meter

import "bytes"

// maxDepth is how deep a request may nest.
const maxDepth = 500

// valid reports whether text is one JSON value (RFC 8259) and nothing else.
// encoding/json says the same in several times the time, which for a long
// prompt would be most of what a guard does.
func valid(text []byte) bool {
	i := validValue(text, skipSpace(text, 0), maxDepth)
	return i >= 0 && skipSpace(text, i) == len(text)
}

// validValue returns the index behind the value at i, -1 if it is none.
func validValue(b []byte, i, depth int) int {
	switch at(b, i) {
	case '{', '[':
		return validList(b, i, depth)
	case '"':
		return validString(b, i)
	case 't':
		return validLiteral(b, i, "true")
	case 'f':
		return validLiteral(b, i, "false")
	case 'n':
		return validLiteral(b, i, "null")
	}
	return validNumber(b, i)
}

// validList reads an object or an array, which differ in their ends and in the
// names of their items.
func validList(b []byte, i, depth int) int {
	named, end := b[i] == '{', b[i]+2 // '}' is two behind '{', ']' two behind '['
	if depth == 0 {
		return -1
	}
	if i = skipSpace(b, i+1); at(b, i) == end {
		return i + 1
	}
	for {
		if named {
			if i = validString(b, i); i < 0 {
				return -1
			}
			if i = skipSpace(b, i); at(b, i) != ':' {
				return -1
			}
			i = skipSpace(b, i+1)
		}
		if i = validValue(b, i, depth-1); i < 0 {
			return -1
		}
		switch i = skipSpace(b, i); at(b, i) {
		case end:
			return i + 1
		case ',':
			i = skipSpace(b, i+1)
		default:
			return -1
		}
	}
}

func validString(b []byte, i int) int {
	if at(b, i) != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c == '\\':
			if i++; at(b, i) == 'u' {
				for range 4 {
					if i++; !isHex(at(b, i)) {
						return -1
					}
				}
			} else if bytes.IndexByte([]byte(`"\/bfnrt`), at(b, i)) < 0 {
				return -1
			}
		}
	}
	return -1
}

func validLiteral(b []byte, i int, word string) int {
	if !bytes.HasPrefix(b[i:], []byte(word)) {
		return -1
	}
	return i + len(word)
}

func validNumber(b []byte, i int) int {
	digits := func() bool {
		from := i
		for isDigit(at(b, i)) {
			i++
		}
		return i > from
	}
	if at(b, i) == '-' {
		i++
	}
	if at(b, i) == '0' {
		i++
	} else if !digits() {
		return -1
	}
	if at(b, i) == '.' {
		if i++; !digits() {
			return -1
		}
	}
	if c := at(b, i); c == 'e' || c == 'E' {
		if i++; at(b, i) == '+' || at(b, i) == '-' {
			i++
		}
		if !digits() {
			return -1
		}
	}
	return i
}

// at is b[i], and 0 behind the end.
func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

func skipSpace(b []byte, i int) int { return len(b) - len(trimSpace(b[min(i, len(b)):])) }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }
