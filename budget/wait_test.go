package budget_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// Waiting reserves: first come first served, bounded, cancellable, retested
// after each close and limit change, never in the way of an extend.

func reserve(t *testing.T, b *budget.Book, tokens int64, wait time.Duration) *budget.Reservation {
	t.Helper()
	r, err := b.Reserve(t.Context(), budget.Request{Tokens: tokens, MaxWait: wait})
	require.NoError(t, err)
	return r
}

func settle(t *testing.T, r *budget.Reservation, used int64) budget.Receipt {
	t.Helper()
	receipt, err := r.Settle(t.Context(), budget.Usage{Input: used})
	require.NoError(t, err)
	return receipt
}

func TestWaitIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int64
		b := budget.Memory(budget.Tokens(100), budget.Observe(func(e journal.Entry) {
			if e.Kind == journal.Reserve {
				order = append(order, e.Amount)
			}
		}))
		first, second := reserve(t, b, 50, 0), reserve(t, b, 50, 0)
		for _, tokens := range []int64{80, 10, 20} { // the large one came first
			go func() {
				r, err := b.Reserve(t.Context(), budget.Request{Tokens: tokens, MaxWait: time.Minute})
				if err == nil {
					_, err = r.Settle(t.Context(), budget.Usage{Input: 1})
				}
				if err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		settle(t, first, 1)
		synctest.Wait()
		require.Len(t, order, 2, "small ones do not pass the large one")
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: 1})
		require.ErrorIs(t, err, budget.ErrBusy, "nor does one that came later, though it would fit")
		settle(t, second, 1)
		synctest.Wait()
		require.Equal(t, []int64{50, 50, 80, 10, 20}, order)
		require.Equal(t, budget.Figures{Net: 5, Confirmed: 5}, b.Report().Tokens)
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(100))
		reserve(t, b, 100, 0)
		start := time.Now()
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: 1, MaxWait: time.Minute})
		require.ErrorIs(t, err, budget.ErrBusy)
		require.Equal(t, time.Minute, time.Since(start))

		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(enough) })
		_, err = b.Reserve(ctx, budget.Request{Tokens: 1, MaxWait: time.Minute})
		require.ErrorIs(t, err, enough)
		require.Equal(t, time.Minute+time.Second, time.Since(start))

		time.AfterFunc(time.Second, func() { b.Close() })
		_, err = b.Reserve(t.Context(), budget.Request{Tokens: 1, MaxWait: time.Minute})
		require.ErrorIs(t, err, budget.ErrBookClosed)
		require.Zero(t, b.Report().Waiting)
	})
}

// What can never fit is told at once: larger than the limit ("a request larger
// than the limit hangs" in other tools), or no longer possible after a close.
func TestWaitNeverForWhatCannotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(100))
		start := time.Now()
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: 101, MaxWait: time.Minute})
		require.ErrorIs(t, err, budget.ErrExhausted)
		require.Contains(t, err.Error(), "one call alone is larger than the limit")

		r := reserve(t, b, 100, 0)
		done := make(chan error, 1)
		go func() {
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60, MaxWait: time.Minute})
			done <- err
		}()
		synctest.Wait()
		settle(t, r, 50)
		require.ErrorIs(t, <-done, budget.ErrExhausted)
		require.Zero(t, time.Since(start))
	})
}

func TestWaitEndsWithARaisedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(100))
		reserve(t, b, 100, 0)
		done := make(chan error, 1)
		go func() {
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60, MaxWait: time.Minute})
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(160)))
		require.NoError(t, <-done)
	})
}

func TestExtendGoesBeforeWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(100))
		r, other := reserve(t, b, 30, 0), reserve(t, b, 40, 0)
		done := make(chan error, 1)
		go func() {
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: 70, MaxWait: time.Hour})
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
		err := r.Extend(t.Context(), budget.MaybeBilled, "timeout")
		require.ErrorIs(t, err, budget.ErrBusy, "it does not wait either")
		alone := budget.Memory(budget.Tokens(100))
		err = reserve(t, alone, 60, 0).Extend(t.Context(), budget.MaybeBilled, "timeout")
		require.ErrorIs(t, err, budget.ErrExhausted, "only its own hold is in the way, and that will be spent")
		require.NoError(t, r.Extend(t.Context(), budget.NotBilled, "429"), "it asks for nothing more")
		settle(t, other, 1)
		settle(t, r, 1)
		require.ErrorIs(t, <-done, budget.ErrExhausted, "30 lost and 2 confirmed leave 68")
	})
}

// A scope that is full does not keep the others waiting.
func TestWaitersOfOneScopeDoNotBlockAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(1000), budget.Tokens(10).On("a"))
		full, err := b.Reserve(t.Context(), budget.Request{Scope: "a", Tokens: 10})
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := b.Reserve(t.Context(), budget.Request{Scope: "a/x", Tokens: 10, MaxWait: time.Minute})
			done <- err
		}()
		synctest.Wait()
		_, err = b.Reserve(t.Context(), budget.Request{Scope: "b", Tokens: 900})
		require.NoError(t, err)
		_, err = full.Refund(t.Context(), budget.NotBilled, "429")
		require.NoError(t, err)
		require.NoError(t, <-done)
	})
}
