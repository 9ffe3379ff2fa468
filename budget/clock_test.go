package budget_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
)

// Rule 25: the clock goes back by hours, in a run and between two. No entry is
// earlier than the one before, and nobody waits longer for it.
func TestClockGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newFlaky()
		var clock atomic.Int64 // seconds; the waiter reads it too, at its timeout
		clock.Store(1_800_000_000)
		open := func() *budget.Book {
			b, err := budget.New(t.Context(), j, budget.Tokens(100), budget.Clock(func() time.Time { return time.Unix(clock.Load(), 0) }))
			require.NoError(t, err)
			return b
		}
		b := open()
		for range 3 {
			kept := reserve(t, b, 60, 0)
			clock.Add(-3600)
			require.NoError(t, kept.Extend(t.Context(), budget.NotBilled, "429"))
			began := time.Now()
			waiter := make(chan error, 1)
			go func() {
				_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60, MaxWait: time.Minute})
				waiter <- err
			}()
			synctest.Wait()
			clock.Add(-3600)
			require.ErrorIs(t, <-waiter, budget.ErrBusy)
			require.Equal(t, time.Minute, time.Since(began))
			settle(t, kept, 1)
			require.NoError(t, b.Close())
			b = open()
		}
		last := int64(0)
		for _, e := range j.all {
			if !e.Carried {
				require.GreaterOrEqual(t, e.T, last)
				last = e.T
			}
		}
		require.NotZero(t, last)
		require.NoError(t, b.Close())
	})
}
