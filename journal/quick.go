package journal

import "math/bits"

// Nearly all lines of a book are of four kinds and have nothing unusual in
// them. quick reads such a line in one go, several bytes at a time and without a
// look at what stands further on. Whatever else there is, damage included, it
// leaves to parseLine, which alone says what a line is.

// slack is how many bytes must stand behind a text for quick to look at. A
// newline or zeros before them keep it from going further.
const slack = 64

// quick fills e from the line that s begins with, and returns where the next one
// begins. It returns 0, and e may hold anything, for what is not certainly a line
// by the rules of parseLine. line is the same memory as s.
//
// What is no number or string sends at back to the beginning, where nothing
// stands that is expected later.
func quick(line []byte, s string, e *Entry) (next int) {
	*e = Entry{}
	if s[:7] != `{"ev":"` {
		return 0
	}
	at := 0
	switch {
	case s[7:15] == `reserve"`:
		e.Kind, at = Reserve, 15
	case s[7:14] == `settle"`:
		e.Kind, at = Settle, 14
	case s[7:14] == `extend"`:
		e.Kind, at = Extend, 14
	case s[7:14] == `refund"`:
		e.Kind, at = Refund, 14
	default:
		return 0
	}
	if s[at:at+8] != `,"rid":"` {
		return 0
	}
	e.RID, at = quoted(s, at+8)
	if s[at:at+10] != `,"amount":` {
		return 0
	}
	if at += 10; s[at:at+2] == `0,` {
		at++
	} else {
		e.Amount, at = integer(s, at)
	}
	if s[at:at+5] != `,"t":` {
		return 0
	}
	e.T, at = micros(s, at+5)

	if s[at:at+7] == `,"seq":` {
		e.Seq, at = natural(s, at+7)
	}
	if s[at:at+10] == `,"synced":` {
		e.Synced, at = integer(s, at+10)
	}
	if s[at:at+10] == `,"scope":"` {
		e.Scope, at = nonempty(s, at+10)
	}
	if s[at:at+8] == `,"key":"` {
		e.Key, at = nonempty(s, at+8)
	}
	if s[at:at+10] == `,"model":"` {
		e.Model, at = nonempty(s, at+10)
	}
	if s[at:at+8] == `,"cost":` {
		e.Cost, at = integer(s, at+8)
	}
	if s[at:at+12] == `,"requests":` {
		e.Requests, at = integer(s, at+12)
	}
	if s[at:at+13] == `,"confirmed":` {
		e.Confirmed, at = integer(s, at+13)
	}
	if s[at:at+16] == `,"confirmed_cost` && s[at+16:at+18] == `":` {
		e.ConfirmedCost, at = integer(s, at+18)
	}
	if s[at:at+11] == `,"assumed":` {
		e.Assumed, at = integer(s, at+11)
	}
	if s[at:at+16] == `,"assumed_cost":` {
		e.AssumedCost, at = integer(s, at+16)
	}
	if s[at:at+9] == `,"maybe":` {
		e.Maybe, at = integer(s, at+9)
	}
	if s[at:at+10] == `,"usage":{` {
		at = quickUsage(s, at+10, &e.Usage)
	}
	if s[at:at+9] == `,"tries":` {
		e.Tries, at = integer(s, at+9)
	}
	if s[at:at+8] == `,"why":"` {
		e.Why, at = nonempty(s, at+8)
	}
	if s[at:at+8] == `,"ref":"` {
		e.Ref, at = nonempty(s, at+8)
	}
	if s[at:at+11] == `,"prices":"` {
		e.Prices, at = nonempty(s, at+11)
	}
	if s[at:at+13] == `,"named":true` {
		e.Named, at = true, at+13
	}

	if s[at:at+9] != `,"prev":"` {
		return 0
	}
	prev := hexOf(s[at+9 : at+17])
	if prev>>32 != 0 || s[at+17:at+26] != `","crc":"` || s[at+34:at+37] != "\"}\n" {
		return 0
	}
	crc := checksum(line[:at+18])
	if hexOf(s[at+26:at+34]) != uint64(crc) {
		return 0
	}
	e.Prev, e.CRC = uint32(prev), crc
	return at + 37
}

// quickUsage reads the members of a usage, the first of which has no comma, and
// the closing brace. What is not counted in tokens is rare, and left to the parser.
func quickUsage(s string, at int, u *Usage) (next int) {
	first := at
	at--
	if s[at+1:at+6] == `"in":` {
		u.In, at = integer(s, at+6)
	}
	if s[at+1:at+10] == `"cached":` && (s[at] == ',' || at < first) {
		u.Cached, at = integer(s, at+10)
	}
	if s[at+1:at+9] == `"write":` && (s[at] == ',' || at < first) {
		u.Write, at = integer(s, at+9)
	}
	if s[at+1:at+7] == `"out":` && (s[at] == ',' || at < first) {
		u.Out, at = integer(s, at+7)
	}
	if s[at+1:at+13] == `"reasoning":` && (s[at] == ',' || at < first) {
		u.Reasoning, at = integer(s, at+13)
	}
	if s[at] != '}' {
		return 0
	}
	return at + 1
}

// natural reads up to sixteen digits, the first of them no zero.
func natural(s string, at int) (n uint64, next int) {
	w := load8(s[at:at+8]) ^ ones*'0'
	odd := above9(w)
	if odd == 0 {
		return longer(s, at+8, value8(w))
	}
	if uint8(w)-1 > 8 {
		return 0, 0
	}
	bit := bits.TrailingZeros64(odd)
	return value8(w << ((71 - bit) & 63)), at + bit/8
}

// longer reads on behind eight digits.
func longer(s string, at int, high uint64) (n uint64, next int) {
	if s[at-8] == '0' {
		return 0, 0
	}
	low, count := few(s, at)
	return high*pow10[count] + low, at + count
}

// few is the number that up to eight digits at s[at:] write, and how many they
// are.
func few(s string, at int) (n uint64, count int) {
	w := load8(s[at:at+8]) ^ ones*'0'
	odd := above9(w)
	if odd == 0 {
		return value8(w), 8
	}
	bit := bits.TrailingZeros64(odd)
	return value8(w << 1 << (70 - bit)), bit / 8
}

// integer reads a number other than zero.
func integer(s string, at int) (n int64, next int) {
	if s[at] == '-' {
		n, next := natural(s, at+1)
		return -int64(n), next
	}
	u, next := natural(s, at)
	return int64(u), next
}

// micros reads a time from 1970 on.
func micros(s string, at int) (t int64, next int) {
	seconds, at := natural(s, at)
	if seconds > 1e12 {
		return 0, 0
	}
	t = int64(seconds) * 1e6
	if s[at] != '.' {
		return t, at
	}
	n, count := few(s, at+1)
	if count == 0 || count > 6 || s[at+count] == '0' {
		return 0, 0
	}
	return t + int64(n*pow10[6-count]), at + 1 + count
}

// quoted reads a string behind its opening quote that stands there as it is.
func quoted(s string, at int) (text string, next int) {
	for end := at; ; end += 8 {
		if odd := odd8(load8(s[end : end+8])); odd != 0 {
			end += bits.TrailingZeros64(odd) / 8
			if s[end] != '"' {
				return "", 0
			}
			return s[at:end], end + 1
		}
	}
}

func nonempty(s string, at int) (text string, next int) {
	if s[at] == '"' {
		return "", 0
	}
	return quoted(s, at)
}
