package journal

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var zeros = strings.Repeat("\x00", slack)

// quickly reports whether quick reads a line, whatever stands behind it: then
// ParseLine does, and finds the same in it.
func quickly(t testing.TB, line []byte) (read bool) {
	e, err := ParseLine(line)
	for i, behind := range []string{"\n", "\n" + string(line) + "\n", "", string(line)} {
		var fast Entry
		all := append(append(bytes.Clone(line), behind...), zeros...)
		n := quick(all, string(all), &fast)
		if i == 0 {
			read = n > 0
		}
		if n > 0 {
			require.NoError(t, err)
			require.Equal(t, len(line)+1, n)
			require.Equal(t, byte('\n'), all[len(line)])
			require.Equal(t, e, fast)
		}
		require.Equal(t, n > 0, read && behind != "" && behind[0] == '\n')
	}
	return read
}

// What a guard writes all day is read quickly.
func TestQuick(t *testing.T) {
	usual := pair()
	all := Entry{Kind: Settle, RID: "my own rid", T: 2_000_001, Seq: 1, Synced: 9999999999999999, Scope: "s", Key: "k", Model: "m",
		Change: Change{0, -1, 22, 333, 4444, 55555, 666666, 7777777}, Usage: Usage{In: 1, Cached: 22, Write: 333, Out: 4444, Reasoning: 55555}, Tries: 88888888, Why: "w", Ref: "r", Prices: "p",
		Named: true, Prev: 0xffffffff}
	usual = append(usual, all, Entry{Kind: Extend, RID: "r", Change: Change{Requests: 1}, T: 1796061258_000000, Why: "429"},
		Entry{Kind: Refund, RID: "r", Change: Change{Amount: -800, Cost: -1_200_000_000, Requests: -1}, T: 1796061258_100000, Why: "dial", Prev: 0xa0})
	for i := range 5 {
		e := Entry{Kind: Settle, RID: "12345678"[:4+i], T: 3_000_000}
		*[]*int64{&e.Usage.In, &e.Usage.Cached, &e.Usage.Write, &e.Usage.Out, &e.Usage.Reasoning}[i] = 7
		usual = append(usual, e)
	}
	for _, e := range usual {
		line, err := AppendLine(nil, &e)
		require.NoError(t, err)
		line = line[:len(line)-1]
		require.True(t, quickly(t, line), "%s", line)
		for i := range line {
			line[i] ^= 1
			require.False(t, quickly(t, line), "byte %d", i)
			line[i] ^= 1
			require.False(t, quickly(t, line[:i]), "the first %d bytes", i)
		}
	}
}

// What a buffer held before does not make a line of the beginning of one.
func TestUnfinishedLineInAUsedBuffer(t *testing.T) {
	defer func(was int) { readSize = was }(readSize)
	readSize = 512
	e := pair()[0]
	line, err := AppendLine(nil, &e)
	require.NoError(t, err)
	for short := 1; short < len(line); short++ {
		whole, bad := 0, (*CorruptError)(nil)
		for lines, err := range ReadLedgerBatches("cut", bytes.NewReader(bytes.Repeat(line, 50)[:50*len(line)-short])) {
			whole += len(lines.Entries)
			require.True(t, err == nil || errors.As(err, &bad))
		}
		if short == 1 { // without its newline it is whole
			require.Equal(t, 50, whole)
			require.Nil(t, bad)
			continue
		}
		require.Equal(t, 49, whole)
		require.True(t, bad.Unfinished)
	}
}

func TestHexOf(t *testing.T) {
	const digits = "09af1e5b"
	for i := range digits {
		for c := range 256 {
			s := digits[:i] + string([]byte{byte(c)}) + digits[i+1:]
			want, err := strconv.ParseUint(s, 16, 32)
			if err != nil || strings.ToLower(s) != s {
				want = 1 << 32
			}
			require.Equal(t, want, min(hexOf(s), 1<<32), "%q", s)
		}
	}
}
