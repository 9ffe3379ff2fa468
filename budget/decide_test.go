package budget

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal"
)

// What decisions leave behind in the book and in an op: nothing stale, and
// nothing that grows with what callers say (I2, I10).

func TestOpDecidedAgainStartsAnew(t *testing.T) {
	b := Memory()
	o := &op{kind: opClose, rid: "gone", hold: &hold{}, receipt: Receipt{RID: "gone", Confirmed: 7}}
	b.decide(o)
	require.NoError(t, o.err)
	require.Zero(t, o.receipt)
}

// Ledgers of others hold adjusts that no decision of ours would write.
func TestAdjustOfWhatWasPlain(t *testing.T) {
	l := newLedger()
	for _, e := range []journal.Entry{
		{Kind: journal.Reserve, RID: "x", Change: journal.Change{Amount: 10}},
		{Kind: journal.Settle, RID: "x", Change: journal.Change{Amount: -3, Confirmed: 7}},
		{Kind: journal.Adjust, RID: "x", Change: journal.Change{Amount: 1, Confirmed: 1}, Evidence: "bill"},
		{Kind: journal.Adjust, RID: "x", Change: journal.Change{Amount: 1, Confirmed: 1}, Evidence: "another"},
	} {
		require.NoError(t, l.fold(&e))
		require.NoError(t, l.inconsistent())
	}
	damaged := journal.Entry{Kind: journal.Refund, RID: "x"}
	require.ErrorIs(t, l.fold(&damaged), ErrDamaged)
	require.NoError(t, l.inconsistent())
}

// Whoever words each failure anew fills neither the report nor memory.
func TestReasonsAreBounded(t *testing.T) {
	b := Memory()
	for i := range maxNames + 10 {
		r, err := b.Reserve(t.Context(), Request{Tokens: 1})
		require.NoError(t, err)
		_, err = r.Settle(t.Context(), Usage{Why: fmt.Sprint("timeout ", i)})
		require.NoError(t, err)
	}
	unknown := b.Report().Unknown
	require.Len(t, unknown, maxNames+1)
	require.Equal(t, int64(10), unknown["other"])
}

// A remark that is cut does not keep the whole text in memory.
func TestNoteIsACopy(t *testing.T) {
	whole := strings.Repeat("x", 1000)
	cut := note(whole)
	require.Len(t, cut, 128)
	require.NotSame(t, unsafe.StringData(whole), unsafe.StringData(cut))
}
