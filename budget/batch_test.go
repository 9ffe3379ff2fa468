package budget_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// Calls that meet in one batch, batches that fail or lose a conflict, and
// callers whose own functions panic: nothing decided on entries that never came
// to be is told to anybody (I2 to I5).

// gated is a journal whose appends wait to be let through, each with its error.
type gated struct {
	*flaky
	gate chan error
}

func (g *gated) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	if err := <-g.gate; err != nil {
		return after, err
	}
	return g.flaky.Append(ctx, after, b)
}

// Rule 1: a batch that fails is taken back, and who was decided on it is decided
// again.
func TestWhatWasRolledBackIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &gated{newFlaky(), make(chan error, 1)}
		j.gate <- nil // the limit
		b, err := budget.New(t.Context(), j, budget.Tokens(1000))
		require.NoError(t, err)
		errs := map[string]chan error{}
		call := func(name string, f func() error) {
			errs[name] = make(chan error, 1)
			go func() { errs[name] <- f() }()
			synctest.Wait()
		}
		call("lead", func() error { _, err := b.Reserve(t.Context(), budget.Request{Tokens: 1}); return err })
		call("reserve", func() error { _, err := b.Reserve(t.Context(), budget.Request{RID: "x", Tokens: 100}); return err })
		call("close", func() error { return b.Reservation("x").Close() })
		call("close again", func() error { return b.Reservation("x").Close() })
		j.gate <- nil             // lead
		j.gate <- journal.ErrFull // the other three, as one batch
		synctest.Wait()
		require.NoError(t, <-errs["lead"])
		require.ErrorIs(t, <-errs["reserve"], journal.ErrFull)
		require.ErrorIs(t, <-errs["close"], journal.ErrFull)
		require.ErrorIs(t, <-errs["close again"], budget.ErrUnknown, "its reservation never was")
		_, err = budget.Fold(seq(j.all))
		require.NoError(t, err)
		require.Equal(t, int64(1), b.Report().Tokens.Net)
	})
}

// Rule 21: while one batch is on its way to the disk the next collects, however
// many come, and nothing waits for a timer. Everybody gets the error of the
// batch that held his own entry.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 50
		j := &gated{newFlaky(), make(chan error)}
		b, err := budget.New(t.Context(), j)
		require.NoError(t, err)
		start := time.Now()
		call := func(n int) (answers chan error) {
			answers = make(chan error, n)
			for range n {
				go func() { _, err := b.Reserve(t.Context(), budget.Request{Tokens: 1}); answers <- err }()
			}
			synctest.Wait()
			return answers
		}
		batch := func(err error) { j.gate <- err; synctest.Wait() } // one append comes to its end
		all := func(answers chan error, want error) {
			t.Helper()
			require.Len(t, answers, cap(answers), "answered")
			for range cap(answers) {
				require.ErrorIs(t, <-answers, want)
			}
		}
		first := call(1)
		second := call(callers)
		batch(nil)
		all(first, nil)
		third := call(callers)
		require.Empty(t, second, "its own batch is on its way")
		batch(journal.ErrFull)
		all(second, journal.ErrFull)
		batch(nil)
		all(third, nil)
		require.Zero(t, time.Since(start))
		require.Equal(t, int64(1+callers), b.Report().Tokens.Net)
	})
}

// sized is a journal that notes how long its batches are.
type sized struct {
	*gated
	sizes []int
}

func (s *sized) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	s.sizes = append(s.sizes, len(b.Entries))
	return s.gated.Append(ctx, after, b)
}

// Rule 21: a batch is bounded, whether its calls come at once or have waited.
func TestBatchIsBounded(t *testing.T) {
	const callers, most = 6000, 4096
	for name, limit := range map[string]int64{"come at once": 2 * callers, "have waited": callers} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &sized{gated: &gated{newFlaky(), make(chan error, 1)}}
				j.gate <- nil // the limit
				b, err := budget.New(t.Context(), j, budget.Tokens(limit))
				require.NoError(t, err)
				answers := make(chan error, callers)
				whole := make(chan *budget.Reservation, 1)
				go func() { whole <- reserve(t, b, callers, 0) }()
				synctest.Wait()
				for range callers {
					go func() {
						_, err := b.Reserve(t.Context(), budget.Request{Tokens: 1, MaxWait: time.Hour})
						answers <- err
					}()
				}
				synctest.Wait()
				close(j.gate)
				_, err = (<-whole).Settle(t.Context(), budget.NothingUsed)
				require.NoError(t, err)
				for range callers {
					require.NoError(t, <-answers)
				}
				require.Equal(t, int64(callers), b.Report().Tokens.Held)
				require.Greater(t, len(j.sizes), 3)
				require.LessOrEqual(t, slices.Max(j.sizes), most)
			})
		})
	}
}

// Late calls of one batch meet on what was put away: together they are undone,
// together they stand (I2, I3).
func TestLateCallsOfOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &gated{newFlaky(), make(chan error, 10)}
		through := func(n int, err error) {
			for range n {
				j.gate <- err
			}
		}
		b, err := budget.New(t.Context(), j)
		require.NoError(t, err)
		through(4, nil)
		r, err := b.Reserve(t.Context(), budget.Request{RID: "x", Tokens: 100})
		require.NoError(t, err)
		require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
		require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
		require.NoError(t, r.Close())
		for _, outcome := range []error{journal.ErrFull, nil} {
			errs := make(chan error, 4)
			call := func(f func() error) {
				go func() { errs <- f() }()
				synctest.Wait()
			}
			adjust := func(key string) func() error {
				return func() error {
					_, err := b.Reservation("x").Adjust(t.Context(), budget.Evidence{Key: key, Usage: budget.Usage{Input: 7}})
					return err
				}
			}
			call(func() error { _, err := b.Reserve(t.Context(), budget.Request{Tokens: 1}); return err })
			call(adjust("a"))
			call(func() error { return r.Close() })
			call(adjust("b"))
			through(1, nil) // the reserve that leads
			through(1, outcome)
			synctest.Wait()
			failed := 0
			for range 4 {
				if err := <-errs; err != nil {
					require.ErrorIs(t, err, outcome)
					failed++
				}
			}
			receipt, err := r.Receipt(t.Context())
			require.NoError(t, err)
			if outcome != nil {
				require.Equal(t, 2, failed, "the adjusts")
				require.Equal(t, []int64{0, 300}, []int64{receipt.Confirmed, receipt.Assumed})
			} else {
				require.Zero(t, failed)
				require.Equal(t, []int64{14, 100}, []int64{receipt.Confirmed, receipt.Assumed})
			}
			require.NoError(t, budget.Inconsistent(b))
		}
		_, err = budget.Fold(seq(j.all))
		require.NoError(t, err)
	})
}

// open opens a book over a journal that others may use, too.
func open(t *testing.T, j budget.Journal, opts ...budget.Option) *budget.Book {
	t.Helper()
	b, err := budget.New(t.Context(), j, append(opts, budget.OnOrphan(budget.OrphanKeep))...)
	require.NoError(t, err)
	return b
}

// Two books over one journal: every append may lose a conflict.
func TestSharedJournal(t *testing.T) {
	const limit = 500
	j := newFlaky()
	a, b := open(t, j, budget.Tokens(limit)), open(t, late{j})
	errs := together(8, func(w int) error {
		book, rnd := []*budget.Book{a, b}[w%2], rand.New(rand.NewPCG(1, uint64(w)))
		for range 150 {
			r, err := book.Reserve(t.Context(), budget.Request{Tokens: 1 + rnd.Int64N(200), Scope: "s", MaxWait: time.Duration(rnd.IntN(3)) * time.Millisecond})
			if errors.Is(err, budget.ErrBusy) || errors.Is(err, budget.ErrExhausted) {
				continue
			}
			if err != nil {
				return err
			}
			if err := r.Extend(t.Context(), budget.NotBilled, "429"); err != nil {
				return err
			}
			switch rnd.IntN(3) {
			case 0:
				_, err = r.Settle(t.Context(), budget.NothingUsed)
			case 1:
				_, err = r.Refund(t.Context(), budget.NotBilled, "429")
			case 2:
				if err = r.Close(); err == nil {
					_, err = r.Settle(t.Context(), budget.NothingUsed)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	audit := budget.NewAudit()
	for _, e := range j.all {
		audit.Add(&e)
	}
	require.Empty(t, audit.Violations[:min(3, len(audit.Violations))])
	require.Empty(t, audit.MultiClosed)
	require.Zero(t, audit.Open())
	require.Zero(t, audit.Net)
}

// interposed is a journal that lets another writer go first, once.
type interposed struct {
	*flaky
	first func()
}

func (i *interposed) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	if first := i.first; first != nil {
		i.first = nil
		first()
	}
	return i.flaky.Append(ctx, after, b)
}

// Rule 26, B23: between seeing an orphan and taking it over its owner settles
// it. The settle stands, and nothing was taken over.
func TestTakeOverLosesToTheOwner(t *testing.T) {
	for _, policy := range []budget.OrphanPolicy{budget.OrphanAssume, budget.OrphanRefund} {
		j := newFlaky()
		a := open(t, j)
		r := reserve(t, a, 100, 0)
		reserve(t, a, 7, 0) // another, whose owner is gone
		var settled budget.Receipt
		b, err := budget.New(t.Context(), &interposed{j, func() { settled = settle(t, r, 60) }}, budget.OnOrphan(policy), budget.Tokens(1000))
		require.NoError(t, err)
		require.True(t, settled.Booked)
		report := b.Report()
		require.Len(t, report.Orphans, 1)
		require.Equal(t, int64(7), report.Orphans[0].Tokens)
		require.Equal(t, int64(60), report.Tokens.Confirmed)
		require.Equal(t, []budget.Limit{budget.Tokens(1000)}, b.Limits())
		audit := budget.NewAudit()
		for i := range j.all {
			audit.Add(&j.all[i])
		}
		require.Empty(t, audit.Violations)
		require.Empty(t, audit.MultiClosed)
		require.Equal(t, report.Tokens.Net, audit.Net)
	}
}

// Rule 21: orphans are taken over by the batch. Those of the first are taken over
// though the second finds that an owner came before it.
func TestTakeOverIsBounded(t *testing.T) {
	const orphans, most = 5000, 4096
	j := newFlaky()
	a := open(t, j)
	var last *budget.Reservation
	for range orphans {
		last = reserve(t, a, 1, 0)
	}
	from := len(j.all)
	shared := &interposed{flaky: j}
	shared.first = func() { // at the first append
		shared.first = func() { // at the second
			require.Equal(t, from+1+orphans+most, len(j.all))
			settle(t, last, 1)
		}
	}
	b, err := budget.New(t.Context(), shared)
	require.NoError(t, err)
	report := b.Report()
	require.Equal(t, orphans-1, len(report.Orphans))
	require.Zero(t, report.Balance.Open)
	require.Equal(t, int64(orphans-1), report.Tokens.Assumed)
}

// late is a journal another book has opened already: it has its segment.
type late struct{ *flaky }

func (l late) Rotate(_ context.Context, after journal.Pos, _ []journal.Entry) (journal.Pos, error) {
	return after, nil
}

// Entries that a rotation by another book took out of reach are not passed over.
func TestConflictBehindARotation(t *testing.T) {
	j := newFlaky()
	a := open(t, j)
	require.NoError(t, a.SetLimit(t.Context(), budget.Tokens(10)))
	b := open(t, late{j})
	reserve(t, b, 8, 0)
	open(t, j) // rotates
	_, err := a.Reserve(t.Context(), budget.Request{Tokens: 8})
	require.ErrorIs(t, err, budget.ErrDamaged)
	_, err = a.Reserve(t.Context(), budget.Request{Tokens: 1})
	require.ErrorIs(t, err, budget.ErrBroken)
}

// One caller's long text is cut or refused, and never the batch of all.
func TestLongTexts(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j)
	require.NoError(t, err)
	long := strings.Repeat("x", 1<<21)
	_, err = b.Reserve(t.Context(), budget.Request{Model: long})
	require.ErrorIs(t, err, budget.ErrInvalid)
	r := reserve(t, b, 10, 0)
	require.NoError(t, r.Extend(t.Context(), budget.NotBilled, long))
	_, err = r.Settle(t.Context(), budget.Usage{Input: 1, Ref: long + "\n", Why: "\x00" + long})
	require.NoError(t, err)
	for _, e := range j.all {
		require.LessOrEqual(t, len(e.Why)+len(e.Ref), 256)
	}
}

// panicky is a journal, a log handler and a clock of a caller's that panic.
type panicky struct {
	*flaky
	slog.Handler
	now bool
}

func (p *panicky) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	if p.now {
		panic("append")
	}
	return p.flaky.Append(ctx, after, b)
}

func (p *panicky) Enabled(context.Context, slog.Level) bool { return p.Handler != nil }

func (p *panicky) Handle(context.Context, slog.Record) error { panic("log") }

// A panic in a caller's own function ends the book and leaves nobody waiting,
// nor granted what has no entry.
func TestPanicEndsTheBook(t *testing.T) {
	for name, c := range map[string]struct {
		says any
		open func(*panicky, budget.Option) (*budget.Book, error)
	}{
		"append": {"append", func(p *panicky, l budget.Option) (*budget.Book, error) {
			return budget.New(t.Context(), p, l)
		}},
		"observer": {"observer", func(p *panicky, l budget.Option) (*budget.Book, error) {
			return budget.New(t.Context(), p.flaky, l, budget.Observe(func(journal.Entry) {
				if p.now {
					panic("observer")
				}
			}))
		}},
		"clock": {"clock", func(p *panicky, l budget.Option) (*budget.Book, error) {
			return budget.New(t.Context(), p.flaky, l, budget.Clock(func() time.Time {
				if p.now {
					panic("clock")
				}
				return time.Now()
			}))
		}},
		"log": {"log", func(p *panicky, l budget.Option) (*budget.Book, error) {
			p.Handler = slog.DiscardHandler
			return budget.New(t.Context(), p.flaky, l, budget.Logger(slog.New(p)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &panicky{flaky: newFlaky()}
				b, err := c.open(p, budget.Tokens(100))
				require.NoError(t, err)
				r := reserve(t, b, 100, 0)
				waiter := make(chan error, 1)
				go func() {
					_, err := b.Reserve(t.Context(), budget.Request{RID: "w", Tokens: 60, MaxWait: time.Hour})
					waiter <- err
				}()
				synctest.Wait()
				p.now = true
				require.PanicsWithValue(t, c.says, func() { r.Settle(t.Context(), budget.Usage{Input: 1}) })
				p.now = false
				booked := func(e journal.Entry) bool { return e.RID == "w" }
				if err := <-waiter; !slices.ContainsFunc(p.all, booked) {
					require.ErrorIs(t, err, budget.ErrBroken, "no grant without an entry")
				}
				_, err = b.Reserve(t.Context(), budget.Request{MaxWait: time.Hour})
				require.ErrorIs(t, err, budget.ErrBroken)
				require.ErrorIs(t, b.Report().Broken, budget.ErrBroken)
				require.NoError(t, b.Close())
			})
		})
	}
}

// dueAlways is a journal that wants to rotate and is poisoned by it.
type dueAlways struct {
	*flaky
	due bool
}

func (d *dueAlways) Due(int) bool { return d.due }

func (d *dueAlways) Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error) {
	if d.due {
		return 0, journal.ErrPoisoned
	}
	return d.flaky.Rotate(ctx, after, carried)
}

func TestWaitersHearThatTheBookBroke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &dueAlways{flaky: newFlaky()}
		b, err := budget.New(t.Context(), j, budget.Tokens(100))
		require.NoError(t, err)
		reserve(t, b, 100, 0)
		waiter, start := make(chan error, 1), time.Now()
		go func() {
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60, MaxWait: time.Hour})
			waiter <- err
		}()
		synctest.Wait()
		j.due = true
		b.Report()
		require.ErrorIs(t, <-waiter, budget.ErrBroken)
		require.Zero(t, time.Since(start))
	})
}

// A limit that another writer set is in force behind a rotation, too.
func TestLimitBehindARotation(t *testing.T) {
	j := newFlaky()
	a := open(t, j)
	require.NoError(t, a.SetLimit(t.Context(), budget.Requests(0)))
	b := open(t, late{j})
	require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(10)))
	require.NoError(t, b.SetLimit(t.Context(), budget.Limit{Unit: budget.RequestUnit, Unlimited: true}))
	open(t, j) // rotates
	require.NoError(t, a.SetLimit(t.Context(), budget.Tokens(20).On("x")))
	_, err := a.Reserve(t.Context(), budget.Request{Tokens: 11})
	require.ErrorIs(t, err, budget.ErrExhausted)
	reserve(t, a, 10, 0)
}

// A handle may be used by others while a close of it fails and is undone.
func TestHandleDuringAFailedClose(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j)
	require.NoError(t, err)
	r := reserve(t, b, 1, 0)
	j.fail = journal.ErrFull
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 1000 {
			if r.RID() == "" {
				t.Error("no rid")
			}
		}
	})
	for range 100 {
		_, err := r.Settle(t.Context(), budget.Usage{Input: 1})
		require.ErrorIs(t, err, journal.ErrFull)
	}
	wg.Wait()
}

// Who waits behind another hears at once that waiting cannot help.
func TestExhaustedBehindAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.Memory(budget.Tokens(100))
		small, rest := reserve(t, b, 10, 0), reserve(t, b, 90, 0)
		first, second := make(chan error, 1), make(chan error, 1)
		wait := func(tokens int64, done chan error) {
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: tokens, MaxWait: time.Hour})
			done <- err
		}
		go wait(20, first)
		synctest.Wait()
		go wait(95, second)
		synctest.Wait()
		start := time.Now()
		settle(t, small, 10)
		require.ErrorIs(t, <-second, budget.ErrExhausted)
		require.Zero(t, time.Since(start))
		settle(t, rest, 1)
		require.NoError(t, <-first)
	})
}
