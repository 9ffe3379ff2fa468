package main

import (
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
