package budget_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
)

// Whatever gives room, or takes it for good, is told to those who wait at once:
// no time passes before they have their answer.
func TestWaitersHearOfEveryChange(t *testing.T) {
	// A book of 100 tokens: 30 assumed, 20 refunded, 40 held, and one waits for
	// 40 more, of which 30 are free.
	type scene struct {
		*budget.Book
		assumed, refunded, held *budget.Reservation
	}
	limit := func(l budget.Limit) func(*testing.T, scene) error {
		return func(t *testing.T, s scene) error { return s.SetLimit(t.Context(), l) }
	}
	adjust := func(used int64) func(*testing.T, scene) error {
		return func(t *testing.T, s scene) error {
			_, err := s.assumed.Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.Usage{Input: used}})
			return err
		}
	}
	late := func(used int64) func(*testing.T, scene) error {
		return func(t *testing.T, s scene) error {
			_, err := s.refunded.Settle(t.Context(), budget.Usage{Input: used})
			return err
		}
	}
	extend := func(t *testing.T, s scene) error {
		require.ErrorIs(t, s.held.Extend(t.Context(), budget.MaybeBilled, "timeout"), budget.ErrExhausted)
		return nil
	}
	still := errors.New("it waits still")
	for _, c := range []struct {
		name   string
		change func(*testing.T, scene) error
		want   error
	}{
		{"a settle", func(t *testing.T, s scene) error { settle(t, s.held, 30); return nil }, nil},
		{"a refund", func(t *testing.T, s scene) error {
			_, err := s.held.Refund(t.Context(), budget.NotBilled, "429")
			return err
		}, nil},
		{"a close that is charged in full", func(_ *testing.T, s scene) error { return s.held.Close() }, budget.ErrExhausted},
		{"an overrun", func(t *testing.T, s scene) error { settle(t, s.held, 50); return nil }, budget.ErrExhausted},
		{"a settle that frees too little", func(t *testing.T, s scene) error { settle(t, s.held, 31); return nil }, budget.ErrExhausted},
		{"a limit that is raised", limit(budget.Tokens(110)), nil},
		{"one that is raised too little", limit(budget.Tokens(109)), still},
		{"one that is lifted", limit(budget.Limit{Unit: budget.TokenUnit, Unlimited: true}), nil},
		{"one that is lowered, and has room", limit(budget.Tokens(70)), still},
		{"one that is lowered too far", limit(budget.Tokens(69)), budget.ErrExhausted},
		{"one of zero", limit(budget.Tokens(0)), budget.ErrExhausted},
		{"a limit on requests", limit(budget.Requests(1)), budget.ErrExhausted},
		{"a limit below it", limit(budget.Tokens(39).On("a")), budget.ErrExhausted},
		{"a limit on money without a price", limit(budget.Picodollars(1)), budget.ErrNoPrice},
		{"evidence that gives back", adjust(20), nil},
		{"evidence that gives too little", adjust(21), still},
		{"evidence that takes", adjust(61), budget.ErrExhausted},
		{"a reclaim", func(t *testing.T, s scene) error { _, err := s.refunded.Reclaim(t.Context()); return err }, still},
		{"a job that came back with more than it held", late(31), budget.ErrExhausted},
		{"and with as much as there is", late(30), still},
		{"the end of the book", func(_ *testing.T, s scene) error { return s.Close() }, budget.ErrBookClosed},
		{"an extend that there is no room for", extend, still},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := scene{Book: budget.Memory(budget.Tokens(100))}
				s.assumed, s.refunded, s.held = reserve(t, s.Book, 30, 0), reserve(t, s.Book, 20, 0), reserve(t, s.Book, 40, 0)
				require.NoError(t, s.assumed.Close())
				_, err := s.refunded.Refund(t.Context(), budget.NotBilled, "429")
				require.NoError(t, err)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				done := make(chan error, 1)
				start := time.Now()
				go func() {
					_, err := s.Reserve(ctx, budget.Request{Scope: "a/b", Tokens: 40, MaxWait: time.Hour})
					done <- err
				}()
				synctest.Wait()
				require.EqualValues(t, 1, s.Report().Waiting)
				require.NoError(t, c.change(t, s))
				synctest.Wait()
				if c.want == still {
					require.Empty(t, done)
					cancel(still)
				}
				require.ErrorIs(t, <-done, c.want)
				require.Zero(t, time.Since(start))
				require.Zero(t, s.Report().Waiting)
			})
		})
	}
}

// Who goes makes room in the line: the next is tried at once.
func TestWaitersMoveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(100))
		held := reserve(t, b, 60, 0)
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		large := func(ctx context.Context, wait time.Duration) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := b.Reserve(ctx, budget.Request{Tokens: 80, MaxWait: wait})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first, second := large(ctx, time.Hour), large(t.Context(), time.Minute)
		small := ask(t, b, budget.Request{Tokens: 40, MaxWait: time.Hour})
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		synctest.Wait()
		require.Empty(t, small, "another large one is before it")
		require.ErrorIs(t, <-second, budget.ErrBusy)
		settle(t, granted(t, small, 40), 1)
		require.Equal(t, time.Minute, time.Since(start))
		settle(t, held, 1)
	})
}

// A large one is not starved by small ones, however many come: it is granted as
// soon as those that came before it have ended.
func TestLargeOneIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(100))
		var over atomic.Bool
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / 20) // so that some are open at any time
				for range 100 {
					r, err := b.Reserve(t.Context(), budget.Request{Tokens: 10, MaxWait: time.Hour})
					if err == nil {
						time.Sleep(time.Second)
						_, err = r.Refund(t.Context(), budget.NotBilled, "429")
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
				over.Store(true)
			})
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		large := reserve(t, b, 100, time.Hour)
		require.LessOrEqual(t, time.Since(start), 3*time.Second, "ten small ones were open and ten in line")
		require.False(t, over.Load())
		_, err := large.Refund(t.Context(), budget.NotBilled, "429")
		require.NoError(t, err)
		wg.Wait()
	})
}

// Open calls that need a further attempt while others wait for what they hold:
// none waits for another, so the line moves.
func TestExtendsAndWaitersDoNotLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(1000))
		var wg sync.WaitGroup
		var refused, served, extended atomic.Int64
		start := time.Now()
		for range 64 {
			wg.Go(func() {
				r, err := b.Reserve(t.Context(), budget.Request{Tokens: 90, MaxWait: time.Hour})
				if err != nil {
					if refused.Add(1); !errors.Is(err, budget.ErrExhausted) {
						t.Error(err)
					}
					return
				}
				served.Add(1)
				for range 2 {
					time.Sleep(time.Second)
					if err := r.Extend(t.Context(), budget.MaybeBilled, "timeout"); err == nil {
						extended.Add(1)
					} else if !errors.Is(err, budget.ErrBusy) && !errors.Is(err, budget.ErrExhausted) {
						t.Error(err)
					}
				}
				if _, err := r.Settle(t.Context(), budget.Usage{Input: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Less(t, time.Since(start), time.Hour, "nobody was waited out")
		require.EqualValues(t, 64, refused.Load()+served.Load())
		require.Greater(t, served.Load(), int64(11), "more than fit at once")
		require.NotZero(t, extended.Load())
		require.Zero(t, b.Report().Tokens.Held)
	})
}

// A cancel and a grant may cross. Either the caller has the reservation or nothing
// is held.
func TestCancelAndGrantCross(t *testing.T) {
	b := budgettest.New(t, budget.Tokens(100))
	var wg sync.WaitGroup
	var got, cancelled atomic.Int64
	for i := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(i)))
			for range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				steps := rnd.IntN(20)
				go func() {
					for range steps {
						b.Report() // a round of the guard
					}
					cancel()
				}()
				r, err := b.Reserve(ctx, budget.Request{Tokens: 10 + rnd.Int64N(60), MaxWait: time.Minute})
				<-ctx.Done()
				switch {
				case err == nil:
					got.Add(1)
					_, err = r.Refund(t.Context(), budget.NotBilled, "429")
				case errors.Is(err, context.Canceled):
					cancelled.Add(1)
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 16*200, got.Load()+cancelled.Load())
	require.NotZero(t, got.Load())
	require.NotZero(t, cancelled.Load())
	report := b.Report()
	require.Zero(t, report.Tokens.Net)
	require.Zero(t, report.Waiting)
}
