package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pair is what one call writes: a reserve and a settle.
func pair() []Entry {
	return []Entry{
		{Kind: Reserve, RID: "0198f3a2-7c1e-7d44-9b1a-3f0f7a1c2d3e", Change: Change{Amount: 800, Cost: 1_200_000_000, Requests: 1}, T: 1796061258_123456,
			Scope: "nightly/shard-3", Model: "gpt-5-mini", Prices: "2026-11-01"},
		{Kind: Settle, RID: "0198f3a2-7c1e-7d44-9b1a-3f0f7a1c2d3e", Change: Change{Amount: -180, Cost: -270_000_000, Confirmed: 620, ConfirmedCost: 930_000_000},
			T: 1796061260_900000, Usage: Usage{In: 500, Cached: 100, Out: 120}, Tries: 1, Ref: "req_0123456789abcdef"},
	}
}

func BenchmarkEncode(b *testing.B) {
	entries := pair()
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		buf, _ = AppendLine(buf[:0], &entries[i%2])
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkDecode(b *testing.B) {
	var lines [2][]byte
	var texts [2]string
	for i, e := range pair() {
		lines[i], _ = AppendLine(nil, &e)
		lines[i] = lines[i][:len(lines[i])-1]
		texts[i] = string(lines[i])
	}
	var e Entry
	b.SetBytes(int64(len(lines[0])+len(lines[1])) / 2)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := parseLine(lines[i%2], texts[i%2], &e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkQuick is BenchmarkDecode for lines with nothing unusual in them.
func BenchmarkQuick(b *testing.B) {
	var lines [2][]byte
	var texts [2]string
	for i, e := range pair() {
		lines[i], _ = AppendLine(nil, &e)
		texts[i] = string(lines[i]) + zeros
	}
	var e Entry
	b.SetBytes(int64(len(lines[0])+len(lines[1])) / 2)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if quick(lines[i%2], texts[i%2], &e) == 0 {
			b.Fatal("left to others")
		}
	}
}

// BenchmarkRead reads and checks a whole segment.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	f := open(b, dir)
	pos := rotate(b, f, 0)
	var many []Entry
	for range 500 {
		many = append(many, pair()...)
	}
	for range 20 {
		pos = put(b, f, pos, many...)
	}
	require.NoError(b, f.Close())
	b.SetBytes(int64(len(read(b, filepath.Join(dir, "000001.jsonl")))))
	for b.Loop() {
		for _, err := range (Dir{Path: dir}).History() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	m := NewMemory()
	pos := rotate(b, m, 0)
	entries := pair()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pos, _ = m.Append(ctx, pos, Batch{Entries: entries[i%2 : i%2+1]})
		if i%1000 == 0 && m.Due(0) {
			pos = rotate(b, m, pos)
		}
	}
}

// BenchmarkDurable appends batches of a size and, in turn, writes and syncs
// the same bytes bare. "bare/journal" is 1 where the journal costs nothing.
func BenchmarkDurable(b *testing.B) {
	for _, size := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := open(b, b.TempDir())
			pos := rotate(b, f, 0)
			bare, err := os.OpenFile(filepath.Join(b.TempDir(), "bare"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			require.NoError(b, err)
			defer bare.Close()
			var entries []Entry
			for len(entries) < size {
				entries = append(entries, pair()...)
			}
			entries = entries[:size]
			line, _ := AppendLine(nil, &entries[0])
			same := bytes.Repeat(line, size)
			var ours, theirs time.Duration
			for b.Loop() {
				start := time.Now()
				if pos, err = f.Append(ctx, pos, Batch{Entries: entries}); err != nil {
					b.Fatal(err)
				}
				middle := time.Now()
				_, err := bare.Write(same)
				if err == nil {
					err = dataSync(bare)
				}
				if err != nil {
					b.Fatal(err)
				}
				ours += middle.Sub(start)
				theirs += time.Since(middle)
			}
			b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ns/append")
			b.ReportMetric(float64(theirs)/float64(ours), "bare/journal")
			require.NoError(b, f.Close())
		})
	}
}
