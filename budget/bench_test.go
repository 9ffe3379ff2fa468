package budget_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/tollbook/tollbook/budget"
)

// The target is 300 ns and at most one allocation for reserve + settle in
// memory with the rid given, and no slower beside a million open reservations.
// The time is not reached: a rid given by the caller is remembered for the
// horizon, and putting what is remembered into a map takes longer than that by
// itself. BenchmarkRemember, run beside it, shows how long.
func BenchmarkReserveSettle(b *testing.B) {
	for _, open := range []int{0, 1_000_000} {
		b.Run("open="+strconv.Itoa(open), func(b *testing.B) {
			ctx := context.Background()
			book := budget.Memory(budget.Tokens(budget.MaxTokens))
			defer book.Close()
			for i := range open {
				if _, err := book.Reserve(ctx, budget.Request{RID: "open" + strconv.Itoa(i), Tokens: 1}); err != nil {
					b.Fatal(err)
				}
			}
			rids := make([]string, b.N)
			for i := range rids {
				rids[i] = strconv.Itoa(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				r, err := book.Reserve(ctx, budget.Request{RID: rids[i], Tokens: 800})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := r.Settle(ctx, budget.Usage{Input: 500, Output: 120}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRemember is the part of the above that remembering alone takes: one
// insert of an object of a reservation's size into a map that grows.
func BenchmarkRemember(b *testing.B) {
	type reservation struct {
		_ [352 - 16]byte
		_ *string
		_ *string
	}
	rids, remembered := make([]string, b.N), map[string]*reservation{}
	for i := range rids {
		rids[i] = strconv.Itoa(i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if remembered[rids[i]] == nil {
			remembered[rids[i]] = new(reservation)
		}
	}
}
