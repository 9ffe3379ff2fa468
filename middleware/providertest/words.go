package providertest

import (
	"unicode"
	"unicode/utf8"
)

// wordBytes is how much of a long word one token of the bill covers. No token
// of o200k_base or cl100k_base that lies within a word is longer (the longest
// found is a Thai one of 61 bytes; TestNoTokenHoldsMore looks at them all).
const wordBytes = 64

// Words counts s by the provider's own rule, the unit of its bill.
//
// A word is a run of letters, digits, marks and apostrophes with at least one
// letter or digit in it. It counts one per started 64 bytes between its first
// and its last letter or digit; text in between is free. So English is one a
// word, and a Chinese sentence about one a clause.
//
// The rule never counts more than o200k_base and cl100k_base do, nor than s has
// bytes. Both vocabularies split text before they merge bytes, and a split
// piece that holds a letter or a digit can hold another character than the
// four kinds above only at its beginning. Such a piece therefore touches one
// word, a piece without letter or digit lies inside one word or outside all
// of them (as far as counted here), and so no token serves two words. Counting
// CJK characters one by one, or one in four, would break this: "ありがとうございました"
// is one token of o200k_base.
func Words(s string) int64 {
	var n int64
	first, last := -1, 0 // of the letters and digits of the word at hand
	end := func() {
		if first >= 0 {
			n += int64((last-first-1)/wordBytes) + 1
			first = -1
		}
	}
	for i, r := range s {
		switch {
		case letterOrDigit(r):
			if first < 0 {
				first = i
			}
			last = i + utf8.RuneLen(r)
		case r == '\'' || unicode.IsMark(r):
		default:
			end()
		}
	}
	end()
	return n
}

func letterOrDigit(r rune) bool {
	if r < utf8.RuneSelf {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	}
	return unicode.IsLetter(r) || unicode.IsNumber(r)
}
