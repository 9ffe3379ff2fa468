package budget_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// A book that is closed and opened again and again, with segments of any size,
// answers every call as one that never was (I3, and what a rotation carries).

// state is what two reports must agree in: balances, limits, what is open.
func state(r budget.Report) string {
	scopes := slices.DeleteFunc(r.Scopes, func(s budget.ScopeReport) bool { return s.Balance == budget.Balance{} })
	for i := range r.Open {
		r.Open[i].Since = time.Time{}
	}
	slices.SortFunc(r.Open, func(a, b budget.OpenReservation) int { return strings.Compare(a.RID, b.RID) })
	return fmt.Sprintf("%+v|%+v|%+v|%+v", r.Balance, scopes, r.Limits, r.Open)
}

// Rule 17: what is folded from the journal is what the guard had, however often.
func TestReopenedBookAnswersTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, mem := context.Background(), disk.NewMem()
		now := time.Unix(1_800_000_000, 0)
		clock := budget.Clock(func() time.Time { return now })
		segment := rapid.SampledFrom([]int64{1, 3000, 1 << 20}).Draw(t, "segment bytes")
		open := func() *budget.Book {
			b, err := budget.OpenFile(ctx, "book", journal.FileOptions{FS: mem, SegmentBytes: segment}, nil, budget.OnOrphan(budget.OrphanKeep), clock, budget.Prices(table{}))
			require.NoError(t, err)
			return b
		}
		a := open()
		m := budget.Memory(clock, budget.OnOrphan(budget.OrphanKeep), budget.Prices(table{}))
		both := func(f func(b *budget.Book) (any, error)) {
			x, e := f(a)
			y, e2 := f(m)
			require.Equal(t, fmt.Sprint(e2), fmt.Sprint(e))
			require.Equal(t, y, x)
		}
		scopes := []string{"", "a", "a/b", "a/b/c", "d"}
		rid := func(t *rapid.T) string { return fmt.Sprintf("r%d", rapid.IntRange(0, 4).Draw(t, "rid")) }
		usage := func(t *rapid.T) budget.Usage {
			switch rapid.IntRange(0, 5).Draw(t, "u") {
			case 0:
				return budget.Usage{}
			case 1:
				return budget.NothingUsed
			case 2:
				return budget.CostOnly(rapid.Int64Range(0, 500).Draw(t, "c"))
			}
			u := budget.Usage{Input: rapid.Int64Range(0, 300).Draw(t, "in"), Output: rapid.Int64Range(1, 100).Draw(t, "out"), Estimated: rapid.Bool().Draw(t, "est")}
			if rapid.Bool().Draw(t, "hascost") {
				u.Cost = rapid.Int64Range(1, 2000).Draw(t, "cost")
			}
			return u
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, state(m.Report()), state(a.Report()))
				require.NoError(t, errors.Join(budget.Inconsistent(a), budget.Inconsistent(m)))
			},
			"reserve": func(t *rapid.T) {
				q := budget.Request{RID: rid(t), Tokens: rapid.Int64Range(0, 300).Draw(t, "tok"), Scope: rapid.SampledFrom(scopes).Draw(t, "scope"),
					Key: rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(t, "key"), Model: rapid.SampledFrom([]string{"", "m"}).Draw(t, "model")}
				if rapid.Bool().Draw(t, "hascost") {
					q.Cost = rapid.Int64Range(1, 2000).Draw(t, "cost")
				}
				both(func(b *budget.Book) (any, error) { _, err := b.Reserve(ctx, q); return nil, err })
			},
			"extend": func(t *rapid.T) {
				r, o := rid(t), budget.Outcome(rapid.IntRange(0, 2).Draw(t, "o"))
				both(func(b *budget.Book) (any, error) { return nil, b.Reservation(r).Extend(ctx, o, "w") })
			},
			"settle": func(t *rapid.T) {
				r, u := rid(t), usage(t)
				both(func(b *budget.Book) (any, error) { return b.Reservation(r).Settle(ctx, u) })
			},
			"refund": func(t *rapid.T) {
				r, o := rid(t), budget.Outcome(rapid.IntRange(1, 2).Draw(t, "o"))
				both(func(b *budget.Book) (any, error) { return b.Reservation(r).Refund(ctx, o, "w") })
			},
			"close": func(t *rapid.T) {
				r := rid(t)
				both(func(b *budget.Book) (any, error) { return nil, b.Reservation(r).Close() })
			},
			"reclaim": func(t *rapid.T) {
				r := rid(t)
				both(func(b *budget.Book) (any, error) { return b.Reservation(r).Reclaim(ctx) })
			},
			"adjust": func(t *rapid.T) {
				r, u := rid(t), usage(t)
				e := budget.Evidence{Key: rapid.SampledFrom([]string{"e1", "e2", "e3"}).Draw(t, "ek"), Usage: u, Attempts: rapid.Int64Range(0, 3).Draw(t, "n")}
				both(func(b *budget.Book) (any, error) { return b.Reservation(r).Adjust(ctx, e) })
			},
			"receipts": func(t *rapid.T) {
				for i := range 5 {
					both(func(b *budget.Book) (any, error) { return b.Reservation(fmt.Sprintf("r%d", i)).Receipt(ctx) })
				}
			},
			"limit": func(t *rapid.T) {
				l := budget.Limit{Unit: budget.Unit(rapid.IntRange(1, 3).Draw(t, "unit")), Max: rapid.Int64Range(0, 3000).Draw(t, "max"), Scope: rapid.SampledFrom(scopes).Draw(t, "s"), Unlimited: rapid.Bool().Draw(t, "unl")}
				both(func(b *budget.Book) (any, error) { return nil, b.SetLimit(ctx, l) })
			},
			"tick": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(-5, 50).Draw(t, "dt")) * time.Millisecond)
			},
			"reopen": func(t *rapid.T) {
				require.NoError(t, a.Close())
				a = open()
			},
		})
		require.NoError(t, a.Close())
		audit := budget.NewAudit()
		for e, err := range (journal.Dir{Path: "book", FS: mem}).History() {
			require.NoError(t, err)
			audit.Add(&e)
		}
		require.Empty(t, audit.Violations)
		require.Empty(t, audit.MultiClosed)
	})
}
