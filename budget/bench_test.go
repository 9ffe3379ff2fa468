package budget_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/tollbook/tollbook/budget"
)

// The target is 300 ns and at most one allocation for reserve + settle in
// memory with the rid given, and no slower beside a million open reservations.
// The time is not reached. A part of it is remembering: a rid given by the
// caller stays for the horizon, and BenchmarkRemember, run beside it, shows what
// putting it into a map takes by itself. The larger part is the guard's own.
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

// BenchmarkRemember is what remembering takes by itself: one insert into a map
// that grows, of an object of a reservation's size. A small one is no quicker:
// it is the map that takes the time.
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
