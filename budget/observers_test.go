package budget_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// A job has two observers, a callback of the provider and a poll, and both may
// see it end, more than once, with different news. Whoever comes first closes its
// reservation, once; the others are told what is booked, or what of their news is
// refused (I2). All on a book on disk, which is opened again afterwards.

// desk is where a book lies.
type desk struct{ journal.Dir }

func newDesk(t *testing.T) desk {
	return desk{journal.Dir{Path: filepath.Join(t.TempDir(), "book")}}
}

func (s desk) open(t *testing.T, opts ...budget.Option) *budget.Book {
	t.Helper()
	j, err := journal.OpenFile(s.Path, journal.FileOptions{FS: s.FS})
	require.NoError(t, err)
	return open(t, j, opts...)
}

// reopen closes a book and opens it again. Its entries add up to what it said.
func (s desk) reopen(t *testing.T, b *budget.Book, opts ...budget.Option) *budget.Book {
	t.Helper()
	said := b.Report()
	require.NoError(t, b.Close())
	held := said
	held.Open = nil // what is open is meant to be
	budgettest.Check(t, held, s.History())
	b = s.open(t, opts...)
	require.Equal(t, said.Balance, b.Report().Balance)
	require.Equal(t, said.Open, b.Report().Open)
	return b
}

// story is what was written of a reservation, over all segments.
func (s desk) story(t *testing.T, rid string) string {
	t.Helper()
	var kinds []string
	for e, err := range s.History() {
		require.NoError(t, err)
		if e.RID == rid && !e.Carried {
			kinds = append(kinds, e.Kind.String())
		}
	}
	return strings.Join(kinds, " ")
}

// charged reserves seven tokens for a job.
func charged(t *testing.T, b *budget.Book, rid string) *budget.Reservation {
	t.Helper()
	r, err := b.Reserve(t.Context(), budget.Request{RID: rid, Tokens: 7})
	require.NoError(t, err)
	return r
}

// news is what an observer says of a job.
type news func(*budget.Reservation) (budget.Receipt, error)

func completed(t *testing.T) news {
	return func(r *budget.Reservation) (budget.Receipt, error) {
		return r.Settle(t.Context(), budget.Usage{Input: 5})
	}
}

func failed(t *testing.T) news {
	return func(r *budget.Reservation) (budget.Receipt, error) {
		return r.Refund(t.Context(), budget.NotBilled, "failed")
	}
}

func recovered(t *testing.T) news {
	return func(r *budget.Reservation) (budget.Receipt, error) { return r.Reclaim(t.Context()) }
}

// case 57: sixteen failure notifications at once over eight workers are one
// refund, and the balance moves once.
func TestFailureNotificationsRefundOnce(t *testing.T) {
	s := newDesk(t)
	b := s.open(t, budget.Tokens(7))
	charged(t, b, "job-a")
	var booked atomic.Int64
	queue := make(chan struct{}, 16)
	for range cap(queue) {
		queue <- struct{}{}
	}
	close(queue)
	for _, err := range together(8, func(int) error {
		for range queue {
			receipt, err := failed(t)(b.Reservation("job-a"))
			if err != nil {
				return err
			}
			if receipt.Booked {
				booked.Add(1)
			}
			receipt.Booked = false
			if want := (budget.Receipt{RID: "job-a", State: budget.StateRefunded, Attempts: 1}); receipt != want {
				return fmt.Errorf("receipt %+v, want %+v", receipt, want)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, booked.Load())
	require.Equal(t, int64(7), b.Report().Limits[0].Free)
	b = s.reopen(t, b)
	receipt, err := failed(t)(b.Reservation("job-a"))
	require.NoError(t, err)
	require.False(t, receipt.Booked)
	require.Equal(t, "reserve refund", s.story(t, "job-a"))
	require.NoError(t, b.Close())
}

// Completion and failure compete. A failure that comes second is refused; a
// completion that comes second is a fact of the bill, and corrects the refund.
func TestCompletionAndFailureCompete(t *testing.T) {
	s := newDesk(t)
	b := s.open(t)
	seen := map[string]int{}
	for round := range 40 {
		rid := fmt.Sprint("job-", round)
		charged(t, b, rid)
		var closes atomic.Int64
		order := rand.New(rand.NewPCG(uint64(round), 0)).Perm(16)
		errs := together(16, func(i int) error {
			says := []news{completed(t), failed(t)}[order[i]%2]
			receipt, err := says(b.Reservation(rid))
			if receipt.Booked {
				closes.Add(1)
			}
			return err
		})
		for i, err := range errs {
			if closed, ok := errors.AsType[*budget.ClosedError](err); ok {
				require.Equal(t, 1, order[i]%2, "only a failure is refused")
				require.Equal(t, budget.ClosedError{RID: rid, State: budget.StateSettled, Call: "refund"}, *closed)
			} else {
				require.NoError(t, err)
			}
		}
		story := s.story(t, rid)
		require.Equal(t, map[string]int64{"reserve settle": 1, "reserve refund reclaim adjust": 2}[story], closes.Load(), story)
		seen[story]++
	}
	require.Len(t, seen, 2, "%v", seen)
	require.Equal(t, budget.Figures{Net: 40 * 5, Confirmed: 40 * 5}, b.Report().Tokens)
	require.NoError(t, s.reopen(t, b).Close())
}

// cases 58, 67: a job that is completed already stays so, whatever comes.
func TestCompletedJob(t *testing.T) {
	s := newDesk(t)
	b := s.open(t)
	receipt, err := completed(t)(charged(t, b, "job-a"))
	require.NoError(t, err)
	require.True(t, receipt.Booked)
	receipt.Booked = false
	for range 2 {
		for _, err := range together(16, func(int) error { _, err := failed(t)(b.Reservation("job-a")); return err }) {
			require.ErrorIs(t, err, budget.ErrClosed)
			require.ErrorContains(t, err, "it is settled already; nothing was written")
		}
		again, err := completed(t)(b.Reservation("job-a"))
		require.NoError(t, err)
		require.Equal(t, receipt, again, "the identical call gets the stored receipt")
		_, err = b.Reservation("job-a").Settle(t.Context(), budget.Usage{Input: 6})
		require.ErrorIs(t, err, budget.ErrClosed)
		b = s.reopen(t, b)
	}
	require.Equal(t, "reserve settle", s.story(t, "job-a"))
	require.NoError(t, b.Close())
}

// The disk fails while the balance is written: nothing is changed, the book
// admits nothing more, and after the next opening a later attempt finishes, once.
// Where what was written can neither be synced nor cut off again, nobody can know
// before whether it is there then.
func TestRefundThatCannotBeWritten(t *testing.T) {
	errDisk := errors.New("disk fails")
	for name, c := range map[string]struct {
		fails []disk.Kind
		fault disk.Fault
		end   func(*disk.Mem) *disk.Mem // of the machine, or of the process
		there bool                      // the entry is there at the next opening
	}{
		"write":                  {[]disk.Kind{disk.OpWrite}, disk.Fault{Err: errDisk}, nil, false},
		"half a write, killed":   {[]disk.Kind{disk.OpWrite}, disk.Fault{Err: errDisk, Short: true, Bytes: 40}, (*disk.Mem).Kill, false},
		"sync":                   {[]disk.Kind{disk.OpSync}, disk.Fault{Err: errDisk}, nil, false},
		"sync, power cut":        {[]disk.Kind{disk.OpSync}, disk.Fault{Err: errDisk}, unplugged, false},
		"all but write, killed":  {[]disk.Kind{disk.OpSync, disk.OpTruncate}, disk.Fault{Err: errDisk}, (*disk.Mem).Kill, true},
		"synced, yet it says no": {[]disk.Kind{disk.OpSync, disk.OpTruncate}, disk.Fault{Err: errDisk, Done: true}, unplugged, false},
	} {
		t.Run(name, func(t *testing.T) {
			mem, bad := disk.NewMem(), false
			s := desk{journal.Dir{Path: "book", FS: disk.Failing(mem, func(op disk.Op) disk.Fault {
				if bad && slices.Contains(c.fails, op.Kind) && strings.HasSuffix(op.Name, ".jsonl") {
					return c.fault
				}
				return disk.Fault{}
			})}}
			b := s.open(t, budget.Tokens(7))
			charged(t, b, "job-a")
			bad = true
			for range 3 {
				_, err := failed(t)(b.Reservation("job-a"))
				require.ErrorIs(t, err, errDisk)
			}
			require.Equal(t, budget.Figures{Net: 7, Held: 7}, b.Report().Tokens)
			_, err := b.Reserve(t.Context(), budget.Request{Tokens: 0})
			require.ErrorIs(t, err, budget.ErrBroken)
			if c.end != nil {
				mem = c.end(mem)
			} else {
				require.ErrorIs(t, b.Close(), journal.ErrPoisoned)
			}

			s.FS = mem
			b = s.open(t)
			was := budget.Figures{Net: 7, Held: 7}
			if c.there {
				was = budget.Figures{}
			}
			require.Equal(t, was, b.Report().Tokens)
			receipt, err := failed(t)(b.Reservation("job-a"))
			require.NoError(t, err)
			require.Equal(t, !c.there, receipt.Booked)
			require.Zero(t, b.Report().Tokens)
			b = s.reopen(t, b)
			require.Equal(t, "reserve refund", s.story(t, "job-a"))
			require.NoError(t, b.Close())
		})
	}
}

// unplugged is the machine after a power cut.
func unplugged(m *disk.Mem) *disk.Mem { return m.Crash(rand.New(rand.NewPCG(1, 2))) }

// News of a job that nobody knows changes nothing.
func TestUnknownJob(t *testing.T) {
	s := newDesk(t)
	b := s.open(t, budget.Tokens(7))
	charged(t, b, "job-a")
	for range 2 {
		before := b.Report()
		r := b.Reservation("job-b")
		for name, call := range map[string]func() error{
			"settle":  func() error { _, err := completed(t)(r); return err },
			"refund":  func() error { _, err := failed(t)(r); return err },
			"reclaim": func() error { _, err := recovered(t)(r); return err },
			"close":   r.Close,
			"extend":  func() error { return r.Extend(t.Context(), budget.MaybeBilled, "timeout") },
			"receipt": func() error { _, err := r.Receipt(t.Context()); return err },
			"adjust": func() error {
				_, err := r.Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.NothingUsed})
				return err
			},
		} {
			require.ErrorIs(t, call(), budget.ErrUnknown, name)
		}
		require.Equal(t, before, b.Report())
		b = s.reopen(t, b)
	}
	require.NoError(t, b.Close())
}

// There is no balance row to be missing: a balance is what the entries of its
// scope add up to, and a scope without a limit is unlimited. One on which nothing
// stands is in no opening's balances, and yet takes a late reclaim.
func TestBalanceWithoutARow(t *testing.T) {
	s := newDesk(t)
	b := s.open(t, budget.Tokens(7).On("team/a"))
	r, err := b.Reserve(t.Context(), budget.Request{RID: "job-a", Scope: "team/b", Tokens: 1_000_000})
	require.NoError(t, err)
	_, err = r.Refund(t.Context(), budget.NeverSent, "dial")
	require.NoError(t, err)
	b = s.reopen(t, b)
	for e, err := range s.Newest() {
		require.NoError(t, err)
		require.True(t, e.Opening == nil || len(e.Opening.Balances) == 0, "no balance is written")
	}
	receipt, err := recovered(t)(b.Reservation("job-a"))
	require.NoError(t, err)
	require.Equal(t, int64(1_000_000), receipt.Assumed)
	b = s.reopen(t, b)
	for _, scope := range b.Report().Scopes {
		if scope.Scope != "team/a" {
			require.Equal(t, int64(1_000_000), scope.Tokens.Assumed, scope.Scope)
		}
	}
	require.NoError(t, b.Close())
}

// case 68: what conflicts with an entry is told as a conflict, never swallowed.
func TestConflictingEntries(t *testing.T) {
	s := newDesk(t)
	b := s.open(t)
	charged(t, b, "job-a")
	_, err := b.Reserve(t.Context(), budget.Request{RID: "job-a", Tokens: 8})
	require.ErrorIs(t, err, budget.ErrConflict)
	require.ErrorContains(t, err, "open with 7 tokens")
	require.NoError(t, b.Reservation("job-a").Close())
	bill := budget.Evidence{Key: "bill", Usage: budget.Usage{Input: 3}}
	_, err = b.Reservation("job-a").Adjust(t.Context(), bill)
	require.NoError(t, err)
	for range 2 {
		receipt, err := b.Reservation("job-a").Adjust(t.Context(), bill)
		require.NoError(t, err)
		require.False(t, receipt.Booked)
		_, err = b.Reservation("job-a").Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.Usage{Input: 4}})
		require.ErrorIs(t, err, budget.ErrConflict)
		_, err = b.Reserve(t.Context(), budget.Request{RID: "job-a", Tokens: 8})
		require.ErrorIs(t, err, budget.ErrConflict)
		b = s.reopen(t, b)
	}
	require.NoError(t, b.Close())

	// A second refund in the journal itself, by whatever wrote it: the book does
	// not open, and the audit names it.
	twice := newDesk(t)
	j, err := journal.OpenFile(twice.Path, journal.FileOptions{})
	require.NoError(t, err)
	hold := journal.Change{Amount: 7, Requests: 1}
	pos, err := j.Rotate(t.Context(), 0, []journal.Entry{{Kind: journal.Open, Opening: &journal.Opening{Book: "b"}}})
	require.NoError(t, err)
	_, err = j.Append(t.Context(), pos, journal.Batch{Entries: []journal.Entry{
		{Kind: journal.Reserve, RID: "job-a", Change: hold, Named: true},
		{Kind: journal.Refund, RID: "job-a", Change: journal.Change{Amount: -7}},
		{Kind: journal.Refund, RID: "job-a", Change: journal.Change{Amount: -7}},
	}})
	require.NoError(t, err)
	require.NoError(t, j.Close())
	_, err = budget.Open(t.Context(), twice.Path)
	require.ErrorIs(t, err, budget.ErrDamaged)
	require.ErrorContains(t, err, `refund of reservation "job-a", which is refunded`)
	audit := budget.NewAudit()
	for e, err := range twice.History() {
		require.NoError(t, err)
		audit.Add(&e)
	}
	require.Equal(t, map[string]int64{"job-a": 2}, audit.MultiClosed)
}

// The rule that makes it work: the ordinary success path may reclaim
// unconditionally, however often it runs. It books what was refunded, as it was
// recorded, whatever prices say now; and nothing where nothing was refunded.
func TestSuccessReclaimsUnconditionally(t *testing.T) {
	s := newDesk(t)
	b := s.open(t, budget.Prices(table{}))
	for _, rid := range []string{"succeeded", "recovered"} {
		_, err := b.Reserve(t.Context(), budget.Request{RID: rid, Model: "m", Tokens: 40, Output: 10})
		require.NoError(t, err)
	}
	_, err := completed(t)(b.Reservation("succeeded"))
	require.NoError(t, err)
	_, err = failed(t)(b.Reservation("recovered"))
	require.NoError(t, err)
	b = s.reopen(t, b) // without its prices
	var booked sync.Map
	for range 2 {
		for _, rid := range []string{"succeeded", "recovered"} {
			for i, err := range together(5, func(i int) error {
				receipt, err := recovered(t)(b.Reservation(rid))
				if receipt.Booked {
					_, twice := booked.LoadOrStore(rid, true)
					require.False(t, twice)
				}
				return err
			}) {
				require.NoError(t, err, i)
			}
		}
		b = s.reopen(t, b)
	}
	require.Equal(t, "reserve settle", s.story(t, "succeeded"))
	require.Equal(t, "reserve refund reclaim", s.story(t, "recovered"))
	receipt, err := b.Reservation("recovered").Receipt(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{0, 40, 30*3 + 10*7}, []int64{receipt.Confirmed, receipt.Assumed, receipt.AssumedCost})
	require.NoError(t, b.Close())
}

// cases 58, 59: sixteen closers at once, through the owner's handle and through
// others, with all that can be said of one job. One entry closes it; of the late
// corrections each comes once; who says the same again gets the stored receipt.
func TestManyClosers(t *testing.T) {
	s := newDesk(t)
	b := s.open(t)
	const rounds = 60
	seen := map[string]int{}
	for round := range rounds {
		rid := fmt.Sprint("job-", round)
		owner := charged(t, b, rid)
		if round%2 == 1 { // its owner is gone, and another process has the book
			b = s.reopen(t, b)
			owner = b.Reservation(rid)
		}
		seen[closeByMany(t, s, uint64(round), owner, b.Reservation(rid))]++
	}
	require.GreaterOrEqual(t, len(seen), 3, "%v", seen)
	require.Equal(t, budget.Figures{Net: 5 * rounds, Confirmed: 5 * rounds}, b.Report().Tokens)
	b = s.reopen(t, b)
	for round := range rounds {
		receipt, err := completed(t)(b.Reservation(fmt.Sprint("job-", round)))
		require.NoError(t, err)
		require.False(t, receipt.Booked)
	}
	require.NoError(t, b.Close())
}

// closeByMany lets sixteen observers close one reservation of seven tokens, some
// of whom know that it used five, and returns what was written. seed is of the
// order in which they set out.
func closeByMany(t *testing.T, s desk, seed uint64, handles ...*budget.Reservation) string {
	t.Helper()
	says := []func(*budget.Reservation) (budget.Receipt, error){
		completed(t), failed(t),
		func(r *budget.Reservation) (budget.Receipt, error) { return budget.Receipt{}, r.Close() },
		func(r *budget.Reservation) (budget.Receipt, error) { // the success path
			if receipt, err := recovered(t)(r); err != nil || receipt.Booked {
				return receipt, err
			}
			return completed(t)(r)
		},
	}
	receipts, errs := make([]budget.Receipt, 16), make([]error, 16)
	order := rand.New(rand.NewPCG(seed, 0)).Perm(len(receipts))
	together(len(receipts), func(i int) error {
		i = order[i]
		receipts[i], errs[i] = says[i%len(says)](handles[i/len(says)%len(handles)])
		return nil
	})
	entries := strings.Fields(s.story(t, handles[0].RID()))
	wrote := map[string]int{}
	for _, kind := range entries {
		wrote[kind]++
	}
	require.Equal(t, 1, wrote["settle"]+wrote["refund"], "%v: one close", entries)
	require.LessOrEqual(t, wrote["reclaim"], wrote["refund"], "%v", entries)
	require.LessOrEqual(t, wrote["adjust"], 1, "%v", entries)
	for i, err := range errs {
		if err != nil { // only a failure that came second is refused
			require.Equal(t, 1, i%len(says))
			require.ErrorIs(t, err, budget.ErrClosed)
		}
	}
	for i := 0; i < len(receipts); i += len(says) {
		require.Equal(t, [2]int64{5, 0}, [2]int64{receipts[i].Confirmed, receipts[i].Assumed}, "who settles is told what is booked")
	}
	return strings.Join(entries, " ")
}
