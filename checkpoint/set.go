package checkpoint

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// set is a set of small integers: one bit each.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) has(i int) bool { return s[i/64]>>(i%64)&1 == 1 }
func (s set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) remove(i int)   { s[i/64] &^= 1 << (i % 64) }

func (s set) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// next returns the first i >= from, below n, for which has(i) == want; n if there is none.
func (s set) next(from, n int, want bool) int {
	for i := from; i < n; i = (i/64 + 1) * 64 {
		w := s[i/64]
		if !want {
			w = ^w
		}
		if w >>= i % 64; w != 0 {
			return min(i+bits.TrailingZeros64(w), n)
		}
	}
	return n
}

// ranges writes the members from from to below n for people and machines: "3-7,9".
func (s set) ranges(from, n int) string {
	var b []byte
	for i := s.next(from, n, true); i < n; {
		end := s.next(i, n, false)
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i), 10)
		if end-i > 1 {
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(end-1), 10)
		}
		i = s.next(end, n, true)
	}
	return string(b)
}

// addRanges is the reverse of ranges. Members must lie in [from, n) and rise:
// anything else was not written by ranges.
func (s set) addRanges(text string, from, n int) error {
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, b, isRange := strings.Cut(part, "-")
		first, err1 := strconv.Atoi(a)
		last, err2 := first, error(nil)
		if isRange {
			last, err2 = strconv.Atoi(b)
		}
		if err1 != nil || err2 != nil || first < from || last < first || last >= n {
			return fmt.Errorf("range %q does not fit %d to %d", part, from, n-1)
		}
		for i := first; i <= last; i++ {
			s.add(i)
		}
		from = last + 1
	}
	return nil
}
