package budget_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// Calls that come late, while the book forgets: what a rotation left out is
// acted on by nobody, and a handle reaches its own reservation or none (I2, I3).

// Rule 17: past the horizon the segment has nothing of a reservation, whatever
// memory has. An entry of it would keep the book from being opened again.
func TestLateCallPastTheHorizon(t *testing.T) {
	bill := budget.Usage{Input: 3}
	closeIt := func(r *budget.Reservation) error { return r.Close() }
	refund := func(r *budget.Reservation) error {
		_, err := r.Refund(t.Context(), budget.NotBilled, "429")
		return err
	}
	for name, c := range map[string]struct {
		first, late func(*budget.Reservation) error
	}{
		"adjust": {closeIt, func(r *budget.Reservation) error {
			_, err := r.Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: bill})
			return err
		}},
		"settle":  {closeIt, func(r *budget.Reservation) error { _, err := r.Settle(t.Context(), bill); return err }},
		"reclaim": {refund, func(r *budget.Reservation) error { _, err := r.Reclaim(t.Context()); return err }},
	} {
		for _, reopened := range []bool{false, true} {
			j, now := newFlaky(), time.Unix(1_800_000_000, 0)
			clock := budget.Clock(func() time.Time { return now })
			b := open(t, j, clock)
			r, err := b.Reserve(t.Context(), budget.Request{RID: "x", Tokens: 10})
			require.NoError(t, err)
			require.NoError(t, c.first(r))
			now = now.Add(15 * 24 * time.Hour)
			if reopened {
				b = open(t, j, clock)
				r = b.Reservation("x")
			}
			entries := len(j.all)
			require.ErrorIs(t, c.late(r), budget.ErrUnknown, name)
			require.Len(t, j.all, entries)
			b = open(t, j, clock)
			require.ErrorIs(t, c.late(b.Reservation("x")), budget.ErrUnknown, name)
			open(t, j, clock)
		}
	}
}

// turning is a journal that wants to rotate after every batch.
type turning struct{ *flaky }

func (turning) Due(int) bool { return true }

// A rotation takes nobody's answer away.
func TestHandleBehindARotation(t *testing.T) {
	b := open(t, turning{newFlaky()})
	r := reserve(t, b, 10, 0)
	booked := settle(t, r, 7)
	for range 3 {
		settle(t, reserve(t, b, 1, 0), 1)
	}
	again := settle(t, r, 7)
	require.True(t, booked.Booked)
	booked.Booked = false
	require.Equal(t, booked, again)
	now, err := r.Receipt(t.Context())
	require.NoError(t, err)
	require.Equal(t, booked, now)
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.ErrorIs(t, err, budget.ErrClosed)
}

// A rid that one book has forgotten is used again by another, in the same
// microsecond by the clock: the first one's handle does not reach the new life.
func TestHandleAndTheNextLifeOfItsRID(t *testing.T) {
	j, clock := newFlaky(), budget.Clock(func() time.Time { return time.Unix(1_800_000_000, 0) })
	a := open(t, j, clock)
	old := reserve(t, a, 10, 0)
	settle(t, old, 7)
	b := open(t, j, clock) // forgets it
	fresh, err := b.Reserve(t.Context(), budget.Request{RID: old.RID(), Tokens: 50})
	require.NoError(t, err)
	settle(t, reserve(t, a, 1, 0), 1) // a reads on
	_, err = old.Refund(t.Context(), budget.NotBilled, "stale")
	require.ErrorIs(t, err, budget.ErrUnknown)
	require.NoError(t, old.Close())
	receipt, err := fresh.Receipt(t.Context())
	require.NoError(t, err)
	require.Equal(t, budget.StateOpen, receipt.State)
}

// Rule 6, 17: a repair does not know the horizon of the book it mends, and so
// leaves nothing out for its age.
func TestRepairKeepsWhateverTheHorizon(t *testing.T) {
	mem, now := disk.NewMem(), time.Unix(1_800_000_000, 0)
	reopened := func() *budget.Book {
		j, err := journal.OpenFile("book", journal.FileOptions{FS: mem})
		require.NoError(t, err)
		return open(t, j, budget.Clock(func() time.Time { return now }), budget.Horizon(90*24*time.Hour))
	}
	b := reopened()
	x, err := b.Reserve(t.Context(), budget.Request{RID: "x", Tokens: 10})
	require.NoError(t, err)
	require.NoError(t, x.Close())
	now = now.Add(20 * 24 * time.Hour)
	settle(t, reserve(t, b, 1, 0), 1)
	require.NoError(t, b.Close())
	b = reopened()
	_, err = b.Reservation("x").Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.Usage{Input: 3}})
	require.NoError(t, err)
	require.NoError(t, b.Close())

	mem = filesOf(t, mem).with(middle, func(content []byte) []byte { // its open line
		content[bytes.IndexByte(content, '\n')/2] ^= 1
		return content
	}).mem(t)
	_, err = budget.Repair("book", journal.FileOptions{FS: mem})
	require.NoError(t, err)
	b = reopened()
	receipt, err := b.Reservation("x").Receipt(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(3), receipt.Confirmed)
	require.NoError(t, b.Close())
}
