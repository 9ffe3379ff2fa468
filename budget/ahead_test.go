package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/journal"
)

// The fold of a book that is being opened drops at once what no late call may
// name. What is left, and what a rotation carries, is the same as if it had not
// (rule 14).
func TestFoldAheadCarriesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, now := t.Context(), time.Unix(1_800_000_000, 0)
		var entries []journal.Entry
		b := Memory(Clock(func() time.Time { return now }), Observe(func(e journal.Entry) { entries = append(entries, e) }))
		var held []*Reservation
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				q := Request{Tokens: rapid.Int64Range(0, 300).Draw(t, "tokens"), Scope: rapid.SampledFrom([]string{"", "a", "a/b"}).Draw(t, "scope"), Key: rapid.SampledFrom([]string{"", "k"}).Draw(t, "key")}
				if rapid.IntRange(0, 3).Draw(t, "own") == 0 {
					q.RID = fmt.Sprintf("r%d", rapid.IntRange(0, 4).Draw(t, "rid"))
				}
				if r, err := b.Reserve(ctx, q); err == nil {
					held = append(held, r)
				}
			},
			"call": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				r := rapid.SampledFrom(held).Draw(t, "r")
				switch rapid.IntRange(0, 7).Draw(t, "call") {
				case 0:
					r.Extend(ctx, Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")), "w")
				case 1:
					r.Refund(ctx, NotBilled, "w")
				case 2:
					r.Close()
				case 3:
					r.Reclaim(ctx)
				case 4:
					r.Adjust(ctx, Evidence{Key: "e", Usage: Usage{Input: 3}})
				default:
					r.Settle(ctx, Usage{Input: rapid.Int64Range(0, 300).Draw(t, "input"), Output: 1})
				}
			},
			"tick": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 24 * time.Hour, minHorizon + time.Hour}).Draw(t, "dt"))
			},
		})
		whole, ahead := newLedger(), newLedger()
		ahead.ahead = true
		require.NoError(t, whole.foldAll(entries))
		require.NoError(t, ahead.foldAll(entries))
		require.NoError(t, ahead.inconsistent())
		at := now.UnixMicro()
		for _, horizon := range []int64{0, at - minHorizon.Microseconds(), at} {
			require.Equal(t, whole.snapshot(at, horizon), ahead.snapshot(at, horizon))
		}
		require.Equal(t, whole.report(), ahead.report())
		require.Equal(t, whole.last, ahead.last)
		for i := range ahead.closed.blocks {
			require.Zero(t, ahead.closed.blocks[i].plain)
		}
	})
}
