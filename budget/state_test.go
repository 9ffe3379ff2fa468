package budget

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal"
)

// Every state against every call: what is written, what it leaves, what is
// refused (I2). The hold is 100 tokens an attempt throughout.

// made brings a fresh hold into a named state by real entries.
func made(t *testing.T, state string) *hold {
	t.Helper()
	l := newLedger()
	reserve := journal.Entry{Kind: journal.Reserve, RID: "r", T: 1, Change: journal.Change{Amount: 100, Requests: 1}}
	err := l.apply(l.hash(reserve.RID), nil, &reserve, new(undo))
	require.NoError(t, err)
	h := l.find("r")
	do := func(entries []journal.Entry, err error) {
		t.Helper()
		require.NoError(t, err)
		for _, e := range entries {
			e.RID, e.T = "r", 2
			err := l.apply(h.hash, h, &e, new(undo))
			require.NoError(t, err)
		}
	}
	known := money{known: true}
	extend := func(o Outcome) { do(h.extend(nil, o, "why")) }
	switch state {
	case "open":
	case "open, second try after a maybe":
		extend(MaybeBilled)
	case "settled":
		do(h.settle(nil, Usage{Input: 60}, known))
	case "settled above":
		do(h.settle(nil, Usage{Input: 130}, known))
	case "settled with nothing":
		do(h.settle(nil, NothingUsed, known))
	case "assumed":
		do(h.settle(nil, Usage{}, known))
	case "estimated":
		do(h.settle(nil, Usage{Input: 30, Estimated: true}, known))
	case "part assumed":
		extend(MaybeBilled)
		do(h.settle(nil, Usage{Input: 60}, known))
	case "twice assumed":
		extend(MaybeBilled)
		do(h.settle(nil, Usage{}, known))
	case "refunded":
		do(h.refund(nil, NotBilled, "429"))
	case "refunded, never sent":
		do(h.refund(nil, NeverSent, "dial"))
	case "refunded after a maybe":
		extend(MaybeBilled)
		do(h.refund(nil, NotBilled, "429"))
	case "reclaimed":
		do(h.refund(nil, NotBilled, "429"))
		do(h.reclaim(nil), nil)
	case "adjusted":
		do(h.settle(nil, Usage{}, known))
		do(h.adjust(nil, Evidence{Key: "bill", Usage: Usage{Input: 70}}, known))
	default:
		t.Fatalf("no state %q", state)
	}
	return h
}

// Rule 18: decided before anything changes, and a repeat answers as the first.
func TestEveryStateEveryCall(t *testing.T) {
	type want struct {
		wrote              string // kinds, in order
		err                error
		state              State
		confirmed, assumed int64
	}
	calls := []struct {
		name string
		call func(*hold) ([]journal.Entry, error)
	}{
		{"extend maybe", func(h *hold) ([]journal.Entry, error) { return h.extend(nil, MaybeBilled, "") }},
		{"extend not billed", func(h *hold) ([]journal.Entry, error) { return h.extend(nil, NotBilled, "") }},
		{"settle 60", func(h *hold) ([]journal.Entry, error) {
			return h.settle(nil, Usage{Input: 60}, money{known: true})
		}},
		{"settle 50", func(h *hold) ([]journal.Entry, error) {
			return h.settle(nil, Usage{Input: 50}, money{known: true})
		}},
		{"settle unknown", func(h *hold) ([]journal.Entry, error) { return h.settle(nil, Usage{}, money{known: true}) }},
		{"settle estimate 30", func(h *hold) ([]journal.Entry, error) {
			return h.settle(nil, Usage{Input: 30, Estimated: true}, money{known: true})
		}},
		{"settle nothing", func(h *hold) ([]journal.Entry, error) { return h.settle(nil, NothingUsed, money{known: true}) }},
		{"refund", func(h *hold) ([]journal.Entry, error) { return h.refund(nil, NotBilled, "429") }},
		{"reclaim", func(h *hold) ([]journal.Entry, error) { return h.reclaim(nil), nil }},
		{"adjust 70", func(h *hold) ([]journal.Entry, error) {
			return h.adjust(nil, Evidence{Key: "bill", Usage: Usage{Input: 70}}, money{known: true})
		}},
	}
	closed, flight := ErrClosed, ErrInFlight
	same := func(s State, c, a int64) want { return want{state: s, confirmed: c, assumed: a} }
	no := func(err error, s State, c, a int64) want { return want{err: err, state: s, confirmed: c, assumed: a} }
	wrote := func(kinds string, s State, c, a int64) want {
		return want{wrote: kinds, state: s, confirmed: c, assumed: a}
	}
	const o, s, r = StateOpen, StateSettled, StateRefunded

	// In the order of calls above.
	table := map[string][]want{
		"open": {wrote("extend", o, 0, 0), wrote("extend", o, 0, 0), wrote("settle", s, 60, 0), wrote("settle", s, 50, 0), wrote("settle", s, 0, 100),
			wrote("settle", s, 0, 30), wrote("settle", s, 0, 0), wrote("refund", r, 0, 0), same(o, 0, 0), no(flight, o, 0, 0)},
		"open, second try after a maybe": {wrote("extend", o, 0, 0), wrote("extend", o, 0, 0), wrote("settle", s, 60, 100), wrote("settle", s, 50, 100), wrote("settle", s, 0, 200),
			wrote("settle", s, 0, 130), wrote("settle", s, 0, 100), wrote("settle", s, 0, 100), same(o, 0, 0), no(flight, o, 0, 0)},
		"settled": {no(closed, s, 60, 0), no(closed, s, 60, 0), same(s, 60, 0), no(closed, s, 60, 0), no(closed, s, 60, 0),
			no(closed, s, 60, 0), no(closed, s, 60, 0), no(closed, s, 60, 0), same(s, 60, 0), no(closed, s, 60, 0)},
		"settled above": {no(closed, s, 130, 0), no(closed, s, 130, 0), no(closed, s, 130, 0), no(closed, s, 130, 0), no(closed, s, 130, 0),
			no(closed, s, 130, 0), no(closed, s, 130, 0), no(closed, s, 130, 0), same(s, 130, 0), no(closed, s, 130, 0)},
		"settled with nothing": {no(closed, s, 0, 0), no(closed, s, 0, 0), no(closed, s, 0, 0), no(closed, s, 0, 0), no(closed, s, 0, 0),
			no(closed, s, 0, 0), same(s, 0, 0), no(closed, s, 0, 0), same(s, 0, 0), no(closed, s, 0, 0)},
		"assumed": {no(closed, s, 0, 100), no(closed, s, 0, 100), wrote("adjust", s, 60, 0), wrote("adjust", s, 50, 0), same(s, 0, 100),
			no(closed, s, 0, 100), wrote("adjust", s, 0, 0), no(closed, s, 0, 100), same(s, 0, 100), wrote("adjust", s, 70, 0)},
		"estimated": {no(closed, s, 0, 30), no(closed, s, 0, 30), wrote("adjust", s, 60, 0), wrote("adjust", s, 50, 0), same(s, 0, 30),
			same(s, 0, 30), wrote("adjust", s, 0, 0), no(closed, s, 0, 30), same(s, 0, 30), wrote("adjust", s, 70, 0)},
		"part assumed": {no(closed, s, 60, 100), no(closed, s, 60, 100), same(s, 60, 100), no(closed, s, 60, 100), no(closed, s, 60, 100),
			no(closed, s, 60, 100), no(closed, s, 60, 100), no(closed, s, 60, 100), same(s, 60, 100), wrote("adjust", s, 130, 0)},
		"twice assumed": {no(closed, s, 0, 200), no(closed, s, 0, 200), wrote("adjust", s, 60, 100), wrote("adjust", s, 50, 100), same(s, 0, 200),
			no(closed, s, 0, 200), wrote("adjust", s, 0, 100), no(closed, s, 0, 200), same(s, 0, 200), wrote("adjust", s, 70, 100)},
		"refunded": {no(closed, r, 0, 0), no(closed, r, 0, 0), wrote("reclaim adjust", s, 60, 0), wrote("reclaim adjust", s, 50, 0), no(closed, r, 0, 0),
			no(closed, r, 0, 0), same(r, 0, 0), same(r, 0, 0), wrote("reclaim", s, 0, 100), no(closed, r, 0, 0)},
		"refunded, never sent": {no(closed, r, 0, 0), no(closed, r, 0, 0), wrote("reclaim adjust", s, 60, 0), wrote("reclaim adjust", s, 50, 0), no(closed, r, 0, 0),
			no(closed, r, 0, 0), same(r, 0, 0), same(r, 0, 0), wrote("reclaim", s, 0, 100), no(closed, r, 0, 0)},
		"refunded after a maybe": {no(closed, s, 0, 100), no(closed, s, 0, 100), no(closed, s, 0, 100), no(closed, s, 0, 100), no(closed, s, 0, 100),
			no(closed, s, 0, 100), same(s, 0, 100), same(s, 0, 100), same(s, 0, 100), wrote("adjust", s, 70, 0)},
		"reclaimed": {no(closed, s, 0, 100), no(closed, s, 0, 100), wrote("adjust", s, 60, 0), wrote("adjust", s, 50, 0), same(s, 0, 100),
			no(closed, s, 0, 100), wrote("adjust", s, 0, 0), no(closed, s, 0, 100), same(s, 0, 100), wrote("adjust", s, 70, 0)},
		"adjusted": {no(closed, s, 70, 0), no(closed, s, 70, 0), no(closed, s, 70, 0), no(closed, s, 70, 0), no(closed, s, 70, 0),
			no(closed, s, 70, 0), no(closed, s, 70, 0), no(closed, s, 70, 0), same(s, 70, 0), same(s, 70, 0)},
	}
	for state, wants := range table {
		require.Len(t, wants, len(calls), state)
		for i, c := range calls {
			t.Run(state+"/"+c.name, func(t *testing.T) {
				h := made(t, state)
				before, want := *h, wants[i]
				entries, err := c.call(h)
				if want.err != nil {
					require.ErrorIs(t, err, want.err)
					require.Empty(t, entries, "a refused call writes nothing")
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, before, *h, "a decision changes nothing")
				kinds := ""
				for j := range entries {
					entries[j].RID, entries[j].T = "r", 3
					require.NoError(t, h.apply(&entries[j]))
					if j > 0 {
						kinds += " "
					}
					kinds += entries[j].Kind.String()
				}
				require.Equal(t, want.wrote, kinds)
				got := h.receipt()
				require.Equal(t, want.state, got.State)
				require.Equal(t, want.confirmed, got.Confirmed, "confirmed")
				require.Equal(t, want.assumed, got.Assumed, "assumed")
				if h.state != StateOpen {
					require.Equal(t, got.Confirmed+got.Assumed, h.sum.Amount, "closed: the net is confirmed and assumed")
				}
				if want.err == nil && c.name[:3] != "ext" { // the identical repeat writes nothing
					again, err := c.call(h)
					require.NoError(t, err)
					require.Empty(t, again)
				}
			})
		}
	}
}

// A recorded entry that no decision can have written is damage, and changes
// nothing.
func TestApplyRefusesOnlyDamage(t *testing.T) {
	change := func(k journal.Kind) journal.Entry { return journal.Entry{Kind: k, RID: "r", Seq: 9} }
	for _, c := range []struct {
		state string
		kind  journal.Kind
		ok    bool
	}{
		{"open", journal.Extend, true}, {"open", journal.Settle, true}, {"open", journal.Refund, true}, {"open", journal.Reclaim, false}, {"open", journal.Adjust, false},
		{"settled", journal.Extend, false}, {"settled", journal.Settle, false}, {"settled", journal.Refund, false}, {"settled", journal.Reclaim, false}, {"settled", journal.Adjust, true},
		{"refunded", journal.Extend, false}, {"refunded", journal.Settle, false}, {"refunded", journal.Refund, false}, {"refunded", journal.Reclaim, true}, {"refunded", journal.Adjust, false},
		{"reclaimed", journal.Reclaim, false}, {"reclaimed", journal.Adjust, true},
	} {
		h := made(t, c.state)
		before, e := *h, change(c.kind)
		err := h.apply(&e)
		if c.ok {
			require.NoError(t, err, "%s on %s", c.kind, c.state)
			continue
		}
		require.ErrorIs(t, err, ErrDamaged, "%s on %s", c.kind, c.state)
		require.Equal(t, before, *h)
	}
}

// Evidence: once per key, the same key with other figures is a conflict, more
// attempts than are assumed is refused.
func TestAdjustByEvidence(t *testing.T) {
	h := made(t, "twice assumed")
	first := Evidence{Key: "a", Usage: Usage{Input: 10}}
	apply := func(ev Evidence) {
		entries, err := h.adjust(nil, ev, money{known: true})
		require.NoError(t, err)
		for i := range entries {
			require.NoError(t, h.apply(&entries[i]))
		}
	}
	_, err := h.adjust(nil, Evidence{Key: "a", Usage: Usage{Input: 10}, Attempts: 3}, money{})
	require.ErrorIs(t, err, ErrInvalid)
	apply(first)
	apply(first)
	require.Equal(t, int64(110), h.sum.Amount)
	_, err = h.adjust(nil, Evidence{Key: "a", Usage: Usage{Input: 11}}, money{})
	require.ErrorIs(t, err, ErrConflict)
	apply(Evidence{Key: "b", Usage: Usage{Input: 20}})
	require.Equal(t, journal.Change{Amount: 30, Confirmed: 30, Requests: 2}, h.sum)
	_, err = h.adjust(nil, Evidence{Key: "c", Usage: Usage{Input: 20}}, money{})
	require.ErrorIs(t, err, ErrClosed, "nothing is assumed any more")

	h = made(t, "twice assumed")
	apply(Evidence{Key: "both", Usage: Usage{Input: 90}, Attempts: 2})
	require.Equal(t, journal.Change{Amount: 90, Confirmed: 90, Requests: 2}, h.sum)
}

func TestClosedErrorNamesTheState(t *testing.T) {
	_, err := made(t, "settled").refund(nil, NotBilled, "")
	var closed *ClosedError
	require.True(t, errors.As(err, &closed))
	require.Equal(t, ClosedError{RID: "r", State: StateSettled, Call: "refund"}, *closed)
	_, err = made(t, "open").refund(nil, MaybeBilled, "")
	require.ErrorIs(t, err, ErrInvalid, "what may have been billed is no refund")
}
