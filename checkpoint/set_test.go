package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A set against the map it stands for, and its text read back.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		s, model := newSet(n), map[int]bool{}
		for _, i := range rapid.SliceOf(rapid.IntRange(0, n-1)).Draw(t, "members") {
			if model[i] {
				s.remove(i)
				delete(model, i)
			} else {
				s.add(i)
				model[i] = true
			}
		}
		require.Equal(t, len(model), s.count())
		from := rapid.IntRange(0, n).Draw(t, "from")
		for _, want := range []bool{true, false} {
			first := from
			for first < n && model[first] != want {
				first++
			}
			require.Equal(t, first, s.next(from, n, want))
		}
		back := newSet(n)
		require.NoError(t, back.addRanges(s.ranges(0, n), 0, n))
		require.Equal(t, s, back)
	})
}

func TestRanges(t *testing.T) {
	s := newSet(200)
	for _, i := range []int{3, 4, 5, 7, 64, 65, 128, 199} {
		s.add(i)
	}
	require.Equal(t, "5,7,64-65,128,199", s.ranges(5, 200))
	for _, bad := range []string{"x", "3-", "-3", "5-4", "4,4", "9,3", "200", "1", "3,", "3--4", " 3", "99999999999999999999"} {
		require.Error(t, newSet(200).addRanges(bad, 2, 200), bad)
	}
}

// A key is found, whatever other keys share the bits that are left of its hash.
func TestKeyTable(t *testing.T) {
	keys := make([]string, 300)
	for i := range keys {
		keys[i] = strings.Repeat("k", i+1)
	}
	key := func(i int) (string, error) { return keys[i], nil }
	for _, bits := range []int{1, 4, 55} {
		t.Run(fmt.Sprint(bits, " bits"), func(t *testing.T) {
			table, _, err := readKeys(t.Context(), len(keys), key)
			require.NoError(t, err)
			// The same table with fewer bits of hash.
			few := *table
			few.low = 1<<(64-bits) - 1
			for i := range keys {
				few.slots[i] = few.hash(keys[i]) | uint64(i)
			}
			slices.Sort(few.slots)
			require.NoError(t, few.unique())
			for i := range keys {
				got, ok, err := few.find(keys[i])
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, i, got)
			}
			_, ok, err := few.find("other")
			require.NoError(t, err)
			require.False(t, ok)

			keys[200], keys[299] = keys[7], keys[7]
			defer func() { keys[200], keys[299] = strings.Repeat("k", 201), strings.Repeat("k", 300) }()
			for i := range keys {
				few.slots[i] = few.hash(keys[i]) | uint64(i)
			}
			slices.Sort(few.slots)
			require.Equal(t, &DuplicateError{Key: keys[7], First: 7, Second: 200}, few.unique())
		})
	}
}

// The fingerprint tells keys apart that only together are the same bytes.
func TestFingerprint(t *testing.T) {
	of := func(keys ...string) string {
		_, f, err := readKeys(t.Context(), len(keys), func(i int) (string, error) { return keys[i], nil })
		require.NoError(t, err)
		return f
	}
	require.NotEqual(t, of("ab", "c"), of("a", "bc"))
	require.Equal(t, of("ab", "c"), of("ab", "c"))
}
