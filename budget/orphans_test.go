package budget_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// case 18: what a book that opens does with the reservations it finds open, and
// what their owners' late calls, by rid, then come to: a correction, once. The
// same call again changes nothing and is told the same, also after another
// opening. The hold is 100 tokens an attempt.
func TestOrphanAndItsLateOwner(t *testing.T) {
	type want struct {
		wrote              string // kinds, in order
		err                error
		confirmed, assumed int64
	}
	calls := []struct {
		name string
		call func(*budget.Reservation) (budget.Receipt, error)
	}{
		{"settle", func(r *budget.Reservation) (budget.Receipt, error) {
			return r.Settle(t.Context(), budget.Usage{Input: 60})
		}},
		{"settle unknown", func(r *budget.Reservation) (budget.Receipt, error) { return r.Settle(t.Context(), budget.Usage{}) }},
		{"refund", func(r *budget.Reservation) (budget.Receipt, error) {
			return r.Refund(t.Context(), budget.NotBilled, "429")
		}},
		{"close", func(r *budget.Reservation) (budget.Receipt, error) {
			if err := r.Close(); err != nil {
				return budget.Receipt{}, err
			}
			return r.Receipt(t.Context())
		}},
		{"reclaim", func(r *budget.Reservation) (budget.Receipt, error) { return r.Reclaim(t.Context()) }},
		{"adjust", func(r *budget.Reservation) (budget.Receipt, error) {
			return r.Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.Usage{Input: 70}})
		}},
	}
	closed, flight := budget.ErrClosed, budget.ErrInFlight
	type row struct {
		policy   budget.OrphanPolicy
		attempts int
		found    want // what the opening wrote, and left
		calls    [6]want
	}
	for _, c := range []row{
		{budget.OrphanAssume, 1, want{"settle", nil, 0, 100}, [6]want{
			{"adjust", nil, 60, 0}, {"", nil, 0, 100}, {"", closed, 0, 100}, {"", nil, 0, 100}, {"", nil, 0, 100}, {"adjust", nil, 70, 0}}},
		{budget.OrphanRefund, 1, want{"refund", nil, 0, 0}, [6]want{
			{"reclaim adjust", nil, 60, 0}, {"", closed, 0, 0}, {"", nil, 0, 0}, {"", nil, 0, 0}, {"reclaim", nil, 0, 100}, {"", closed, 0, 0}}},
		{budget.OrphanKeep, 1, want{"", nil, 0, 0}, [6]want{
			{"settle", nil, 60, 0}, {"settle", nil, 0, 100}, {"refund", nil, 0, 0}, {"settle", nil, 0, 100}, {"", nil, 0, 0}, {"", flight, 0, 0}}},

		// After an attempt that may have been billed, that one stays charged
		// whatever becomes of the last. Given back with it standing, the orphan is
		// settled: what it used after all is for evidence to say.
		{budget.OrphanAssume, 2, want{"settle", nil, 0, 200}, [6]want{
			{"adjust", nil, 60, 100}, {"", nil, 0, 200}, {"", closed, 0, 200}, {"", nil, 0, 200}, {"", nil, 0, 200}, {"adjust", nil, 70, 100}}},
		{budget.OrphanRefund, 2, want{"settle", nil, 0, 100}, [6]want{
			{"", closed, 0, 100}, {"", closed, 0, 100}, {"", nil, 0, 100}, {"", nil, 0, 100}, {"", nil, 0, 100}, {"adjust", nil, 70, 0}}},
		{budget.OrphanKeep, 2, want{"", nil, 0, 0}, [6]want{
			{"settle", nil, 60, 100}, {"settle", nil, 0, 200}, {"settle", nil, 0, 100}, {"settle", nil, 0, 200}, {"", nil, 0, 0}, {"", flight, 0, 0}}},
	} {
		for i, late := range calls {
			t.Run(fmt.Sprintf("%s after %d/%s", c.policy, c.attempts, late.name), func(t *testing.T) {
				mem := disk.NewMem()
				s := desk{journal.Dir{Path: "book", FS: mem}}
				b := s.open(t)
				r, err := b.Reserve(t.Context(), budget.Request{RID: "r1", Tokens: 100})
				require.NoError(t, err)
				for range c.attempts - 1 {
					require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
				}
				s.FS = mem.Kill()
				story := s.story(t, "r1")
				check := func(w want) {
					t.Helper()
					held := int64(0)
					if story = strings.TrimSpace(story + " " + w.wrote); !strings.Contains(story, "settle") && !strings.Contains(story, "refund") {
						held = int64(c.attempts) * 100
					}
					require.Equal(t, story, s.story(t, "r1"))
					require.Equal(t, budget.Figures{Net: w.confirmed + w.assumed + held, Confirmed: w.confirmed, Assumed: w.assumed, Held: held}, b.Report().Tokens)
				}

				j, err := journal.OpenFile(s.Path, journal.FileOptions{FS: s.FS})
				require.NoError(t, err)
				b, err = budget.New(t.Context(), j, budget.OnOrphan(c.policy))
				require.NoError(t, err)
				orphans := b.Report().Orphans
				require.Len(t, orphans, 1)
				require.Equal(t, []any{"r1", c.policy, int64(c.attempts) * 100, int64(c.attempts)},
					[]any{orphans[0].RID, orphans[0].Policy, orphans[0].Tokens, orphans[0].Attempts})
				check(c.found)

				w := c.calls[i]
				first, err := late.call(b.Reservation("r1"))
				require.ErrorIs(t, err, w.err)
				require.Equal(t, w.wrote != "" && late.name != "close", first.Booked)
				check(w)
				w.wrote = ""
				for range 2 {
					again, err := late.call(b.Reservation("r1"))
					require.ErrorIs(t, err, w.err)
					first.Booked = false
					require.Equal(t, first, again)
					check(w)
					b = s.reopen(t, b)
				}
				require.NoError(t, b.Close())
			})
		}
	}
}
