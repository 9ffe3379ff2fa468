package budget_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/tollbook/tollbook/budget"
)

// The target is 300 ns and at most one allocation for reserve + settle in
// memory with the rid given, and no slower beside a million open reservations.
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
