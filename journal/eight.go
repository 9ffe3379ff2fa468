package journal

import "math/bits"

// Eight bytes at once, the first in the lowest place: what most of a line is
// read by.

const ones = 0x0101010101010101 // times a byte: that byte in all eight places

func load8(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// digits8 reports whether all eight are decimal digits: their high halves are
// that of '0', also after 6 is added, which carries from a low half above 9.
func digits8(w uint64) bool { return w&(w+ones*6)&(ones*0xf0) == ones*0x30 }

// value8 is the number that eight digits write: neighbours make a pair, two of
// these make four, and two of those the whole.
func value8(w uint64) uint64 {
	const pairs = 0x000000ff000000ff
	w -= ones * '0'
	w = w*10 + w>>8
	return (w&pairs*(100+1000000<<32) + w>>16&pairs*(1+10000<<32)) >> 32
}

// plainLen is the number of bytes at the front that [plain] is true of.
func plainLen(s string) int {
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		// The lowest bit that odd has is the highest of the first byte that is
		// not plain; behind it, there may be false ones.
		w := load8(s[n:])
		quote, slash := w^ones*'"', w^ones*'\\'
		odd := (quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w | w
		if odd &= ones * 0x80; odd != 0 {
			return n + bits.TrailingZeros64(odd)/8
		}
	}
	for n < len(s) && plain(s[n]) {
		n++
	}
	return n
}
