package budget

import (
	"testing"

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
