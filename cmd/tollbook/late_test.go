package main

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// A book that a run holds is nobody else's to change.
func TestLateCallsBesideARun(t *testing.T) {
	state := t.TempDir()
	book, err := budget.Open(t.Context(), filepath.Join(state, "book"))
	require.NoError(t, err)
	defer book.Close()
	r, err := book.Reserve(t.Context(), budget.Request{Tokens: 100})
	require.NoError(t, err)
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.NoError(t, err)
	before := book.Report()
	for _, args := range [][]string{
		{"reclaim", state, r.RID()},
		{"adjust", state, r.RID(), "--evidence", "e", "--nothing"},
		{"limit", state, "5"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, exitFailed, tollbook(args, strings.NewReader(""), &stdout, &stderr), args)
		require.Empty(t, stdout.String(), args)
		require.Regexp(t, `is in use by process \d+`, stderr.String(), args)
		require.Contains(t, stderr.String(), "one process at a time", args)
	}
	require.Equal(t, before, book.Report())

	var stderr strings.Builder
	tollbook([]string{"limit", state, "5"}, strings.NewReader(""), io.Discard, &stderr)
	require.Contains(t, stderr.String(), "interrupt it and run it again with another --budget")
}

// What a reservation's entries add up to is what its owner was told.
func TestReceiptOfALife(t *testing.T) {
	state := t.TempDir()
	book, err := budget.Open(t.Context(), state)
	require.NoError(t, err)
	var receipts []budget.Receipt
	call := func(rid string, end func(*budget.Reservation) (budget.Receipt, error)) {
		r, err := book.Reserve(t.Context(), budget.Request{RID: rid, Tokens: 100, Cost: 7})
		require.NoError(t, err)
		receipt, err := end(r)
		require.NoError(t, err)
		receipts = append(receipts, receipt)
	}
	call("settled", func(r *budget.Reservation) (budget.Receipt, error) {
		return r.Settle(t.Context(), budget.Usage{Input: 60, Cost: 5})
	})
	call("overrun", func(r *budget.Reservation) (budget.Receipt, error) {
		require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
		return r.Settle(t.Context(), budget.Usage{Input: 130, Cost: 9})
	})
	call("refunded", func(r *budget.Reservation) (budget.Receipt, error) {
		require.NoError(t, r.Extend(t.Context(), budget.NotBilled, "429"))
		return r.Refund(t.Context(), budget.NotBilled, "429")
	})
	call("corrected", func(r *budget.Reservation) (budget.Receipt, error) {
		if _, err := r.Settle(t.Context(), budget.Usage{}); err != nil {
			return budget.Receipt{}, err
		}
		return r.Adjust(t.Context(), budget.Evidence{Key: "e", Usage: budget.Usage{Input: 170, Cost: 8}})
	})
	call("open", func(r *budget.Reservation) (budget.Receipt, error) { return r.Receipt(t.Context()) })
	for range 3 {
		for _, want := range receipts {
			l, err := findLife(state, want.RID)
			require.NoError(t, err)
			want.Booked = false
			require.Equal(t, want, l.receipt())
		}
		require.NoError(t, book.Close())
		book, err = budget.Open(t.Context(), state, budget.OnOrphan(budget.OrphanKeep)) // carries them over
		require.NoError(t, err)
		_, err = journal.Dir{Path: state}.Prune(time.UnixMicro(math.MaxInt64)) // at last, that is all there is
		require.NoError(t, err)
	}
	require.NoError(t, book.Close())
}

// A rid that is past the horizon may be used again: what comes late then is about
// its new life, and of the old one nothing is told in its place.
func TestLateCallsOfARIDUsedAgain(t *testing.T) {
	state := t.TempDir()
	life := func(days int, end func(*budget.Reservation) (budget.Receipt, error)) {
		day := time.Now().AddDate(0, 0, -days)
		book, err := budget.Open(t.Context(), state, budget.Clock(func() time.Time { return day }))
		require.NoError(t, err)
		r, err := book.Reserve(t.Context(), budget.Request{RID: "x", Key: fmt.Sprint("item-", days), Tokens: 100})
		require.NoError(t, err)
		_, err = end(r)
		require.NoError(t, err)
		require.NoError(t, book.Close())
	}
	life(40, func(r *budget.Reservation) (budget.Receipt, error) {
		if _, err := r.Refund(t.Context(), budget.NotBilled, "429"); err != nil {
			return budget.Receipt{}, err
		}
		return r.Reclaim(t.Context())
	})
	life(0, func(r *budget.Reservation) (budget.Receipt, error) {
		return r.Settle(t.Context(), budget.Usage{Input: 60})
	})

	var stdout, stderr strings.Builder
	require.Equal(t, exitDone, tollbook([]string{"reclaim", state, "x"}, strings.NewReader(""), &stdout, &stderr), stderr.String())
	require.Contains(t, stderr.String(), "it was never refunded")
	require.Regexp(t, `(?m)^confirmed +60 tokens$`, stdout.String())
	require.Regexp(t, `(?m)^assumed +0 tokens$`, stdout.String())

	for name, want := range map[string]int{"x": 2, "item-40": 1, "item-0": 1} {
		lives, err := findLives(journal.Dir{Path: state}, name)
		require.NoError(t, err)
		require.Len(t, lives, want, name)
		for _, l := range lives {
			require.Equal(t, journal.Reserve, l.entries[0].Kind, name)
		}
	}
}
