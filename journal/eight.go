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

// digits returns the number that the decimal digits at the front of s write,
// and how many they are. With more than 19 the number is not to be used.
func digits(s string) (n uint64, count int) {
	for len(s)-count >= 8 {
		w := load8(s[count:]) ^ ones*'0' // of a digit, its value
		if odd := above9(w); odd != 0 {
			k := bits.TrailingZeros64(odd) / 8
			return n*pow10[k] + value8(w<<(64-8*k)), count + k
		}
		n, count = n*1e8+value8(w), count+8
	}
	for count < len(s) && s[count]-'0' <= 9 {
		n, count = n*10+uint64(s[count]-'0'), count+1
	}
	return n, count
}

// above9 has the highest bit of each byte of w that is above 9: adding 0x76
// carries into it.
func above9(w uint64) uint64 { return (w&(ones*0x7f) + ones*0x76 | w) & (ones * 0x80) }

var pow10 = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// value8 is the number of eight digits, whose values w holds: neighbours make a
// pair, two of these make four, and two of those the whole.
func value8(w uint64) uint64 {
	const pairs = 0x000000ff000000ff
	w = w*10 + w>>8
	return (w&pairs*(100+1000000<<32) + w>>16&pairs*(1+10000<<32)) >> 32
}

// hexOf is the number that eight lower-case hex digits write, and one above 32
// bits for anything else.
func hexOf(s string) uint64 {
	w := load8(s)
	v := w&(ones*0x0f) + w>>6&ones*9 // of a letter, the sixth bit is set
	letter := (v + ones*(0x80-10)) >> 7 & ones
	if v&(ones*0xf0) != 0 || w != v+ones*'0'+letter*('a'-'0'-10) {
		return 1 << 32
	}
	v = (v<<4 | v>>8) & 0x00ff00ff00ff00ff // the first of two digits is the higher one
	v = (v | v>>8) & 0x0000ffff0000ffff
	return uint64(bits.ReverseBytes32(uint32(v | v>>16)))
}

// odd8 tells which of eight bytes are not [plain]: the lowest bit that it has is
// the highest of the first of these; behind it, there may be false ones.
func odd8(w uint64) uint64 {
	quote, slash := w^ones*'"', w^ones*'\\'
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w | w) & (ones * 0x80)
}

// plainLen is the number of bytes at the front that [plain] is true of.
func plainLen(s string) int {
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		if odd := odd8(load8(s[n:])); odd != 0 {
			return n + bits.TrailingZeros64(odd)/8
		}
	}
	for n < len(s) && plain(s[n]) {
		n++
	}
	return n
}
