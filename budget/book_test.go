package budget_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// together runs f n times at once, behind a barrier, and returns the errors.
func together(n int, f func(i int) error) []error {
	errs, start, wg := make([]error, n), make(chan struct{}), sync.WaitGroup{}
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func accepted(errs []error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

// case 1
func TestParallelReservesNeverExceedTheLimit(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	settle(t, reserve(t, b, 90, 0), 90)
	errs := together(8, func(int) error {
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: 10})
		return err
	})
	require.Equal(t, 1, accepted(errs))
	for _, err := range errs {
		if err != nil {
			require.True(t, errors.Is(err, budget.ErrBusy) || errors.Is(err, budget.ErrExhausted), err)
		}
	}
	require.Equal(t, budget.Figures{Net: 100, Confirmed: 90, Held: 10}, b.Report().Tokens)
}

// case 54: two goroutines at the edge, ten thousand times: one fits, the other
// does not, and what is given back is there for the next round.
func TestTwoAtTheEdge(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	settle(t, reserve(t, b, 85, 0), 85)
	for range 10_000 {
		held := make([]*budget.Reservation, 2)
		errs := together(2, func(i int) (err error) {
			held[i], err = b.Reserve(t.Context(), budget.Request{Tokens: 10})
			return err
		})
		if n := accepted(errs); n != 1 {
			t.Fatalf("%d of two reserves of 10 accepted, with 15 free: %v", n, errs)
		}
		for i, err := range errs {
			if err == nil {
				_, err = held[i].Refund(t.Context(), budget.NotBilled, "429")
				require.NoError(t, err)
			} else if !errors.Is(err, budget.ErrBusy) {
				t.Fatal(err)
			}
		}
	}
	require.Equal(t, budget.Figures{Net: 85, Confirmed: 85}, b.Report().Tokens)
}

// case 2
func TestParallelEstimatesOfVariousSizes(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	sizes := []int64{58, 80, 175, 175, 175}
	errs := together(len(sizes), func(i int) error {
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: sizes[i]})
		return err
	})
	require.Equal(t, 1, accepted(errs[:2]))
	require.Zero(t, accepted(errs[2:]))
}

// cases 6 and 10: a limit is a limit, zero is zero, absent is unlimited
func TestLimits(t *testing.T) {
	b := budget.Memory(budget.Tokens(500_000))
	for range 10 {
		settle(t, reserve(t, b, 50_000, 0), 50_000)
	}
	_, err := b.Reserve(t.Context(), budget.Request{Tokens: 50_000})
	var exhausted *budget.ExhaustedError
	require.ErrorAs(t, err, &exhausted)
	require.Equal(t, budget.ExhaustedError{Kind: budget.TokenUnit, Asked: 50_000, Limit: 500_000, Net: 500_000}, *exhausted)
	require.Zero(t, exhausted.Free())

	for _, none := range []budget.Limit{budget.Tokens(0), budget.USD("0"), budget.Requests(0)} {
		_, err = budget.Memory(none).Reserve(t.Context(), budget.Request{Tokens: 1, Cost: 1})
		require.ErrorIs(t, err, budget.ErrExhausted, none.Unit)
		_, err = budget.Memory(none.On("a")).Reserve(t.Context(), budget.Request{Tokens: 1, Cost: 1})
		require.NoError(t, err)
	}
	reserve(t, budget.Memory(), budget.MaxTokens, 0)
}

// A reservation draws on all limits of its path, or on none.
func TestLimitsAlongThePath(t *testing.T) {
	b := budget.Memory(budget.Tokens(100), budget.Requests(3).On("a"), budget.Tokens(50).On("a/b"))
	ask := func(scope string, tokens int64) error {
		_, err := b.Reserve(t.Context(), budget.Request{Scope: scope, Tokens: tokens})
		return err
	}
	require.NoError(t, ask("a/b", 50))
	require.ErrorIs(t, ask("a/b", 1), budget.ErrBusy)
	require.NoError(t, ask("a", 20))
	require.NoError(t, ask("a/c", 20))
	require.ErrorContains(t, ask("a/c", 1), `3 requests for scope "a"`)
	require.NoError(t, ask("", 10), "the refused ones drew on nothing")
	require.Equal(t, int64(4), b.Report().Requests)
	require.True(t, b.Limited("a/b/c", budget.RequestUnit))
	require.False(t, b.Limited("ab", budget.RequestUnit))

	require.NoError(t, b.SetLimit(t.Context(), budget.Limit{Unit: budget.RequestUnit, Scope: "a", Unlimited: true}))
	require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(120)))
	require.NoError(t, ask("a/c", 20))
	require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(10)), "below what is in use")
	require.ErrorIs(t, ask("", 1), budget.ErrBusy)
	require.Equal(t, []budget.Limit{budget.Tokens(10), budget.Tokens(50).On("a/b")}, b.Limits())
}

// cases 10, 65, 66: what a book on disk says of limits it says again when it is
// opened anew: zero is zero, absent is unlimited, the same twice is one entry, and
// an id that was refused was never used.
func TestLimitsOverReopenings(t *testing.T) {
	s := newDesk(t)
	b := s.open(t, budget.Tokens(0))
	ask := func() error {
		_, err := b.Reserve(t.Context(), budget.Request{RID: "r1", Tokens: 1})
		return err
	}
	limits := func() (n int) {
		for e, err := range s.History() {
			require.NoError(t, err)
			if e.Kind == journal.Limit && !e.Carried {
				n++
			}
		}
		return n
	}
	for range 2 {
		require.ErrorIs(t, ask(), budget.ErrExhausted)
		require.Zero(t, s.story(t, "r1"))
		b = s.reopen(t, b)
		require.Equal(t, []budget.Limit{budget.Tokens(0)}, b.Limits())
	}
	for range 2 {
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(200)))
		b = s.reopen(t, b, budget.Tokens(200))
	}
	require.Equal(t, 2, limits())
	require.NoError(t, ask())
	b = s.reopen(t, b)
	require.ErrorIs(t, ask(), budget.ErrInFlight)
	require.NoError(t, b.SetLimit(t.Context(), budget.Limit{Unit: budget.TokenUnit, Unlimited: true}))
	b = s.reopen(t, b)
	require.Empty(t, b.Limits())
	reserve(t, b, budget.MaxTokens, 0)
	require.Equal(t, 3, limits())
	require.NoError(t, b.Close())
}

// case 22, 23, 65, 68: an id is one hold
func TestOneRIDOneHold(t *testing.T) {
	b := budget.Memory(budget.Tokens(1000))
	ask := func(tokens int64) (*budget.Reservation, error) {
		return b.Reserve(t.Context(), budget.Request{RID: "r1", Tokens: tokens})
	}
	_, err := ask(1001)
	require.ErrorIs(t, err, budget.ErrExhausted)
	r, err := ask(100)
	require.NoError(t, err, "a refused id was never used")
	_, err = ask(100)
	require.ErrorIs(t, err, budget.ErrInFlight)
	_, err = ask(150)
	require.ErrorIs(t, err, budget.ErrConflict)
	require.Equal(t, int64(100), b.Report().Tokens.Held)
	settle(t, r, 60)
	_, err = ask(100)
	var closed *budget.ClosedError
	require.ErrorAs(t, err, &closed)
	require.Equal(t, budget.StateSettled, closed.State)
	require.Equal(t, budget.Figures{Net: 60, Confirmed: 60}, b.Report().Tokens)
}

func TestOneKeyInFlightOnce(t *testing.T) {
	b := budget.Memory()
	r, err := b.Reserve(t.Context(), budget.Request{Key: "doc-17"})
	require.NoError(t, err)
	_, err = b.Reserve(t.Context(), budget.Request{Key: "doc-17"})
	require.ErrorIs(t, err, budget.ErrInFlight)
	settle(t, r, 1)
	_, err = b.Reserve(t.Context(), budget.Request{Key: "doc-17"})
	require.NoError(t, err, "several may serve one key over time")
}

// case 23: figures that no call can have change nothing
func TestInvalidInput(t *testing.T) {
	b := budget.Memory(budget.Tokens(1000))
	for name, r := range map[string]budget.Request{
		"negative": {Tokens: -1}, "huge": {Tokens: math.MaxInt64}, "cost": {Cost: -1}, "output above tokens": {Tokens: 1, Output: 2},
		"rid": {RID: "a\nb"}, "long rid": {RID: strings.Repeat("r", 65)}, "scope": {Scope: "/a"}, "scope 2": {Scope: "a//b"}, "scope 3": {Scope: "a\x00"},
		"key": {Key: strings.Repeat("k", 257)}, "key 2": {Key: "\xff"},
	} {
		_, err := b.Reserve(t.Context(), r)
		require.ErrorIs(t, err, budget.ErrInvalid, name)
	}
	r := reserve(t, b, 10, 0)
	for name, u := range map[string]budget.Usage{
		"negative": {Input: -1}, "huge": {Output: math.MaxInt64}, "sum": {Input: budget.MaxTokens, Output: 1},
		"cached": {Input: 5, Cached: 6}, "reasoning": {Output: 5, Reasoning: 6}, "cost": {Input: 1, Cost: -1},
	} {
		_, err := r.Settle(t.Context(), u)
		require.ErrorIs(t, err, budget.ErrInvalid, name)
		_, err = r.Adjust(t.Context(), budget.Evidence{Key: "e", Usage: u})
		require.ErrorIs(t, err, budget.ErrInvalid, name)
	}
	for _, e := range []budget.Evidence{{Usage: budget.Usage{Input: 1}}, {Key: "settle", Usage: budget.Usage{Input: 1}}, {Key: "e"}, {Key: "e", Usage: budget.Usage{Input: 1, Estimated: true}}} {
		_, err := r.Adjust(t.Context(), e)
		require.ErrorIs(t, err, budget.ErrInvalid)
	}
	for _, l := range []budget.Limit{{}, budget.Tokens(-1), budget.USD("banana"), budget.USD(""), budget.USD("1."), budget.USD("-1"), budget.USD("1e3"), budget.USD("0.0000000000001"), budget.USD("99999999"), budget.Tokens(1).On("a/")} {
		require.ErrorIs(t, b.SetLimit(t.Context(), l), budget.ErrInvalid, "%+v", l)
	}
	require.Equal(t, budget.Figures{Net: 10, Held: 10}, b.Report().Tokens)
}

// Sixteen closers, one wins; with one handle and in memory.
func TestManyClosersOneWins(t *testing.T) {
	for range 50 {
		j := newFlaky()
		b, err := budget.New(t.Context(), j)
		require.NoError(t, err)
		r := reserve(t, b, 100, 0)
		errs := together(16, func(i int) (err error) {
			switch i % 3 {
			case 0:
				_, err = r.Settle(t.Context(), budget.Usage{Input: 60})
			case 1:
				_, err = r.Refund(t.Context(), budget.NotBilled, "429")
			case 2:
				err = r.Close()
			}
			return err
		})
		for _, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, budget.ErrClosed)
			}
		}
		wrote := map[journal.Kind]int{}
		for _, e := range j.all {
			wrote[e.Kind]++
		}
		require.Equal(t, 1, wrote[journal.Settle]+wrote[journal.Refund], "one close")
		require.LessOrEqual(t, wrote[journal.Adjust], 1, "and one correction, by the settle that came late")
		require.Equal(t, budget.Figures{Net: 60, Confirmed: 60}, b.Report().Tokens, "a settle was among them")
	}
}

// case 61, and "a charge that crosses the cap vanishes" in other tools: an
// overrun is recorded in full, and the next reserve is refused (Rule 19).
func TestOverrun(t *testing.T) {
	b := budget.Memory()
	require.Equal(t, int64(30), settle(t, reserve(t, b, 100, 0), 130).Overrun)
	require.Equal(t, budget.Figures{Net: 130, Confirmed: 130}, b.Report().Tokens)

	b = budget.Memory(budget.Tokens(100))
	settle(t, reserve(t, b, 90, 0), 90)
	receipt := settle(t, reserve(t, b, 10, 0), 30)
	require.Equal(t, int64(20), receipt.Overrun)
	report := b.Report()
	require.Equal(t, budget.Figures{Net: 120, Confirmed: 120}, report.Tokens)
	require.Equal(t, []int64{1, 20, -20}, []int64{report.Overruns, report.OverrunTokens, report.Limits[0].Free})
	_, err := b.Reserve(t.Context(), budget.Request{Tokens: 0})
	require.ErrorIs(t, err, budget.ErrExhausted)

	// and of a job that came back after its refund
	b = budget.Memory(budget.Tokens(100))
	r := reserve(t, b, 100, 0)
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.NoError(t, err)
	_, err = r.Reclaim(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(30), settle(t, r, 130).Overrun)
	require.Equal(t, budget.Figures{Net: 130, Confirmed: 130}, b.Report().Tokens)
}

// "A failed attempt's hold is not given back" in other tools: three attempts
// that surely were not billed cost nothing.
func TestAttempts(t *testing.T) {
	b := budget.Memory(budget.Tokens(100), budget.Requests(10))
	r := reserve(t, b, 100, 0)
	for range 3 {
		require.NoError(t, r.Extend(t.Context(), budget.NotBilled, "429"))
	}
	require.Equal(t, int64(4), settle(t, r, 60).Attempts)
	report := b.Report()
	require.Equal(t, budget.Figures{Net: 60, Confirmed: 60}, report.Tokens)
	require.Equal(t, int64(4), report.Requests)

	// case 45: attempt 1 stalls, attempt 2 is reported
	b = budget.Memory()
	r = reserve(t, b, 200, 0)
	require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
	receipt := settle(t, r, 100)
	require.Equal(t, []int64{100, 200, 2}, []int64{receipt.Confirmed, receipt.Assumed, receipt.Attempts})
	require.Equal(t, map[string]int64{"timeout": 1}, b.Report().Unknown)

	// what was never sent is no request
	b = budget.Memory(budget.Requests(1))
	r = reserve(t, b, 1, 0)
	require.NoError(t, r.Extend(t.Context(), budget.NeverSent, "dial"))
	_, err := r.Refund(t.Context(), budget.NeverSent, "dial")
	require.NoError(t, err)
	require.Zero(t, b.Report().Requests)
	reserve(t, b, 1, 0)
}

// case 21: no usage is not zero usage
func TestUnknownUsageUsesUpTheBudget(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	for range 5 {
		_, err := reserve(t, b, 20, 0).Settle(t.Context(), budget.Usage{})
		require.NoError(t, err)
	}
	_, err := b.Reserve(t.Context(), budget.Request{Tokens: 20})
	require.ErrorIs(t, err, budget.ErrExhausted)
}

// case 15: the counter is the sum of the journal is the sum of the usage
func TestCounterIsTheSum(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j, budget.Tokens(1_000_000))
	require.NoError(t, err)
	var want int64
	for k := range int64(20) { // between two rounds nothing is under way
		errs := together(50, func(i int) error {
			r, err := b.Reserve(t.Context(), budget.Request{Tokens: 1000, Scope: "s"})
			if err == nil {
				_, err = r.Settle(t.Context(), budget.Usage{Input: int64(i + 1), Output: k})
			}
			return err
		})
		require.Equal(t, 50, accepted(errs))
		want += 50*51/2 + 50*k
		require.Equal(t, budget.Figures{Net: want, Confirmed: want}, b.Report().Tokens)
		folded, err := budget.Fold(seq(j.all))
		require.NoError(t, err)
		require.Equal(t, want, folded.Tokens.Net)
	}
	require.NoError(t, b.Close())
	b, err = budget.New(t.Context(), j)
	require.NoError(t, err)
	require.Equal(t, budget.Figures{Net: want, Confirmed: want}, b.Report().Tokens)
	require.Equal(t, []budget.Limit{budget.Tokens(1_000_000)}, b.Limits(), "limits are in the book")
}

// Rule 20, case 14 and I5: what cannot be written is refused, and the counter is as before
func TestNoDurableEntryNoAdmission(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j, budget.Tokens(100))
	require.NoError(t, err)
	open := reserve(t, b, 40, 0)
	j.fail = journal.ErrFull
	errs := together(8, func(int) error {
		_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60})
		return err
	})
	for _, err := range errs {
		require.ErrorIs(t, err, journal.ErrFull, "not: exhausted by a reserve that never was")
	}
	j.fail = nil
	reserve(t, b, 60, 0)

	j.fail = journal.ErrFull
	_, err = open.Settle(t.Context(), budget.Usage{Input: 1})
	require.ErrorIs(t, err, journal.ErrFull)
	j.fail = nil
	_, err = b.Reserve(t.Context(), budget.Request{})
	require.ErrorIs(t, err, budget.ErrBroken, "a close that was not written leaves its hold, and nothing more is admitted")
	require.Equal(t, int64(100), b.Report().Tokens.Held)
	require.ErrorIs(t, open.Extend(t.Context(), budget.NotBilled, ""), budget.ErrBroken)
	require.Equal(t, int64(1), settle(t, open, 1).Confirmed, "it may still be closed if the journal takes it")
}

// cases 18, 63: a hold outlives its owner, and the first report after an opening
// shows what became of it
func TestOrphans(t *testing.T) {
	for _, c := range []struct {
		policy budget.OrphanPolicy
		first  budget.Figures
	}{
		{budget.OrphanKeep, budget.Figures{Net: 100, Held: 100}},
		{budget.OrphanAssume, budget.Figures{Net: 100, Assumed: 100}},
		{budget.OrphanRefund, budget.Figures{}},
	} {
		j := newFlaky()
		b, err := budget.New(t.Context(), j)
		require.NoError(t, err)
		_, err = b.Reserve(t.Context(), budget.Request{RID: "r1", Tokens: 100, Scope: "shard-3"})
		require.NoError(t, err)

		b, err = budget.New(t.Context(), j, budget.OnOrphan(c.policy)) // the first owner is gone without a word
		require.NoError(t, err)
		report := b.Report()
		require.Len(t, report.Orphans, 1)
		require.Equal(t, "r1", report.Orphans[0].RID)
		require.Equal(t, int64(100), report.Orphans[0].Tokens)
		require.Equal(t, c.first, report.Tokens, c.policy)

		late := b.Reservation("r1")
		require.True(t, settle(t, late, 60).Booked, "the late owner corrects it")
		require.False(t, settle(t, late, 60).Booked, "once")
		require.Equal(t, budget.Figures{Net: 60, Confirmed: 60}, b.Report().Tokens)

		b, err = budget.New(t.Context(), j) // carried over a rotation
		require.NoError(t, err)
		require.False(t, settle(t, b.Reservation("r1"), 60).Booked)
		_, err = b.Reservation("r1").Settle(t.Context(), budget.Usage{Input: 61})
		require.ErrorIs(t, err, budget.ErrClosed)
	}
}

func TestClosedBook(t *testing.T) {
	b := budget.Memory()
	r := reserve(t, b, 1, 0)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	_, err := b.Reserve(t.Context(), budget.Request{})
	require.ErrorIs(t, err, budget.ErrBookClosed)
	_, err = r.Settle(t.Context(), budget.Usage{Input: 1})
	require.ErrorIs(t, err, budget.ErrBookClosed)
	require.ErrorIs(t, b.SetLimit(t.Context(), budget.Tokens(1)), budget.ErrBookClosed)
	require.Equal(t, int64(1), b.Report().Tokens.Held, "reads go on")
}

func TestOpenRefuses(t *testing.T) {
	_, err := budget.Open(t.Context(), "")
	require.ErrorIs(t, err, budget.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "book")
	_, err = budget.Open(ctx, dir)
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, dir)
	require.NotNil(t, budget.Memory(nil))
}

func TestCancelledContextReservesNothing(t *testing.T) {
	b := budget.Memory()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Reserve(ctx, budget.Request{Tokens: 1})
	require.ErrorIs(t, err, context.Canceled)
	r := reserve(t, b, 1, 0)
	_, err = r.Settle(ctx, budget.Usage{Input: 1})
	require.NoError(t, err, "a close is never given up")
	require.Equal(t, budget.Figures{Net: 1, Confirmed: 1}, b.Report().Tokens)
}
