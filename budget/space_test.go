package budget_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// On a full disk nothing is admitted any more, everything open is closed and
// corrected as ever, and when there is room again the book goes on (I3, I5;
// rule 11).
func TestFullDiskClosesAndAdmitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		openBook := func(opts ...budget.Option) *budget.Book {
			j, err := journal.OpenFile("book", journal.FileOptions{FS: mem, SegmentBytes: 64 << 10})
			require.NoError(t, err)
			return open(t, j, opts...)
		}
		book := openBook(budget.Tokens(100))
		settled, refunded, left, assumed := reserve(t, book, 10, 0), reserve(t, book, 10, 0), reserve(t, book, 10, 0), reserve(t, book, 10, 0)
		waits := make(chan error)
		go func() {
			_, err := book.Reserve(t.Context(), budget.Request{Tokens: 70, MaxWait: time.Hour})
			waits <- err
		}()
		synctest.Wait()

		mem.SetCapacity(mem.Used())
		require.True(t, settle(t, settled, 7).Booked, "it is written in the room of the ballast")
		told := <-waits
		require.ErrorIs(t, told, journal.ErrFull, "who waits is told at once")
		require.ErrorContains(t, told, "budget: open calls can be closed, and none admitted: journal: disk full: no room to spare in book, free up 1 MiB: ")
		_, err := book.Reserve(t.Context(), budget.Request{Tokens: 1})
		require.ErrorIs(t, err, journal.ErrFull)
		_, err = book.Reserve(t.Context(), budget.Request{Tokens: 1, MaxWait: time.Hour})
		require.ErrorIs(t, err, journal.ErrFull, "and so is who would wait")
		require.ErrorIs(t, left.Extend(t.Context(), budget.MaybeBilled, "timeout"), journal.ErrFull)

		receipt, err := refunded.Refund(t.Context(), budget.NeverSent, "dial")
		require.NoError(t, err)
		require.True(t, receipt.Booked)
		receipt, err = refunded.Reclaim(t.Context())
		require.NoError(t, err)
		require.True(t, receipt.Booked)
		require.NoError(t, assumed.Close())
		require.Equal(t, int64(3), settle(t, assumed, 3).Confirmed)
		require.NoError(t, book.SetLimit(t.Context(), budget.Tokens(200)))
		require.Equal(t, budget.Figures{Net: 30, Confirmed: 10, Assumed: 10, Held: 10}, book.Report().Tokens)
		require.NoError(t, book.Report().Broken)

		// It is opened again in what is left of the room that the ballast took.
		require.NoError(t, book.Close())
		mem.SetCapacity(mem.Used())
		mem = mem.Kill()
		mem.SetCapacity(mem.Used() + 8<<10)
		book = openBook()
		require.Equal(t, budget.Figures{Net: 30, Confirmed: 10, Assumed: 10, Held: 10}, book.Report().Tokens)
		_, err = book.Reserve(t.Context(), budget.Request{Tokens: 1})
		require.ErrorIs(t, err, journal.ErrFull)

		mem.SetCapacity(-1)
		time.Sleep(time.Second)
		settle(t, reserve(t, book, 50, 0), 50)
		require.NoError(t, book.Close())

		audit := budget.NewAudit()
		for e, err := range (journal.Dir{Path: "book", FS: mem}).History() {
			require.NoError(t, err)
			audit.Add(&e)
		}
		require.Empty(t, audit.Violations)
		require.Equal(t, int64(80), audit.Net)
	})
}

// A close for which there is no room at all leaves its hold open and breaks the
// book, which the next opening mends.
func TestNoRoomForACloseBreaksTheBook(t *testing.T) {
	mem := disk.NewMem()
	full := false
	fsys := disk.Failing(mem, func(op disk.Op) disk.Fault {
		if full && op.Kind == disk.OpRemove { // the ballast cannot be given up
			return disk.Fault{Err: errors.New("disk fails")}
		}
		return disk.Fault{}
	})
	j, err := journal.OpenFile("book", journal.FileOptions{FS: fsys, SegmentBytes: 64 << 10})
	require.NoError(t, err)
	book := open(t, j)
	r := reserve(t, book, 10, 0)
	mem.SetCapacity(mem.Used())
	full = true
	_, err = r.Settle(t.Context(), budget.Usage{Input: 5})
	require.ErrorIs(t, err, journal.ErrFull)
	require.ErrorIs(t, book.Report().Broken, budget.ErrBroken)
	require.Equal(t, int64(10), book.Report().Tokens.Held)
	full = false
	require.NoError(t, book.Close())
	j, err = journal.OpenFile("book", journal.FileOptions{FS: fsys, SegmentBytes: 64 << 10})
	require.NoError(t, err)
	book = open(t, j)
	require.Equal(t, budget.Figures{Net: 10, Held: 10}, book.Report().Tokens)
	require.NoError(t, book.Close())
}
