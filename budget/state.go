package budget

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/journal"
)

// This file is a reservation's whole life, and pure: the decisions read a hold
// and append to dst the entries that would change it (none where it stands as
// asked already); apply changes it by an entry. A decision may refuse; apply of a
// recorded entry refuses only what no decision of any version can have written.
//
//	              extend (before each further attempt)
//	               ┌──┐
//	 reserve ──▶  open ──settle──▶ settled ──adjust──▶ settled
//	                │                  ▲
//	                └──refund──▶ refunded ──reclaim──┘
//
// A hold's sum is what its entries add up to. While it is open, that is the
// hold of every attempt that may have been billed, the last one included.

// State is where a reservation stands. The zero State is not valid.
type State uint8

// The states.
const (
	StateOpen     State = iota + 1 // reserved; attempts may be under way
	StateSettled                   // closed with what was used, reported or assumed
	StateRefunded                  // closed with provably nothing used
)

var stateNames = [...]string{StateOpen: "open", StateSettled: "settled", StateRefunded: "refunded"}

// String returns "open", "settled" or "refunded".
func (s State) String() string {
	if s >= StateOpen && s <= StateRefunded {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

func parseState(word string) State {
	for s := StateOpen; s <= StateRefunded; s++ {
		if stateNames[s] == word {
			return s
		}
	}
	return 0
}

// Outcome is what became of an attempt, as far as the bill goes. The zero
// Outcome is the careful one.
type Outcome uint8

// The outcomes.
const (
	MaybeBilled Outcome = iota // it left, and the provider may bill it
	NotBilled                  // it was refused in a way that is surely free
	NeverSent                  // it never reached the provider; it does not count as a request either
)

// maxHold bounds what one reservation may hold after all its extends, in tokens
// and in picodollars, so that no figure derived from it leaves 64 bits.
const maxHold = 1 << 61

// maxProofs bounds the evidence of one reservation, which a rotation carries in
// one line.
const maxProofs = 256

// money is a cost in picodollars, where it is known.
type money struct {
	amount int64
	known  bool
}

// lateSettle is the evidence key of a settle that comes after an assumed close.
const lateSettle = "settle"

// life is the state of one reservation. It is only touched by the leader.
type life struct {
	rid, key, model, prices string
	named                   bool // the rid was the caller's own
	account                 *account
	opened                  int64 // Unix microseconds of the reserve
	each, eachCost          int64 // the hold of one attempt
	standing
}

// standing is the part of a life that entries change.
type standing struct {
	state State
	lost  int64 // earlier attempts that may have been billed and stand at their hold
	tries int64
	sum   journal.Change

	// Once closed:
	closed         int64         // Unix microseconds of the last entry
	usage          journal.Usage // of the attempt that reported
	lastCost       int64         // the part of the assumed cost that stands for the last attempt
	held, heldCost int64         // what it held when it was closed
	unsent         bool          // refunded, and the last attempt was never sent
	proofs         []journal.Proof
}

// assumedLast reports whether the last attempt stands at an assumed figure.
func (h *life) assumedLast() bool { return h.state == StateSettled && h.sum.Maybe > h.lost }

// settle decides a settle. An unknown usage is charged at the hold, an
// estimated one as told, both as assumed.
func (h *life) settle(dst []journal.Entry, u Usage, cost money) ([]journal.Entry, error) {
	reported := u.Known() && !u.Estimated
	switch {
	case h.state == StateOpen:
		return h.closing(dst, u, cost), nil
	case h.state == StateRefunded && reported && u.free():
		return dst, nil // what the refund says already
	case h.state == StateRefunded && reported:
		reclaimed := h.reclaimEntry(dst, "settled after a refund")
		back := *h
		if err := back.apply(&reclaimed[len(dst)]); err != nil {
			return dst, err
		}
		return back.adjustEntry(reclaimed, Evidence{Key: lateSettle, Usage: u}, 0, cost), nil
	case h.assumedLast() && reported:
		return h.adjustEntry(dst, Evidence{Key: lateSettle, Usage: u}, 0, cost), nil
	case h.state == StateSettled && reported == !h.assumedLast() && h.repeats(u):
		return dst, nil
	}
	return dst, &ClosedError{RID: h.rid, State: h.state, Call: "settle"}
}

// repeats reports whether u is what the last attempt was closed with.
func (h *life) repeats(u Usage) bool {
	booked := h.sum.ConfirmedCost
	if u.Estimated {
		booked = h.lastCost
	}
	return !u.Known() || u.figures() == h.usage && (u.Cost == 0 || u.Cost == booked || len(h.proofs) > 0)
}

// next appends a blank entry, to be filled in place: entries are large.
func next(dst []journal.Entry, k journal.Kind) ([]journal.Entry, *journal.Entry) {
	dst = slices.Grow(dst, 1)[:len(dst)+1]
	e := &dst[len(dst)-1]
	*e = journal.Entry{}
	e.Kind = k
	return dst, e
}

// closing appends the settle entry of an open hold.
func (h *life) closing(dst []journal.Entry, u Usage, cost money) []journal.Entry {
	dst, e := next(dst, journal.Settle)
	e.Usage, e.Tries, e.Why, e.Ref = u.figures(), h.tries, u.Why, u.Ref
	e.Assumed, e.AssumedCost = h.lost*h.each, h.lost*h.eachCost
	switch {
	case u.Known() && !u.Estimated:
		e.Confirmed = u.Total()
		if cost.known {
			e.ConfirmedCost = cost.amount
		} else {
			e.AssumedCost += h.eachCost
		}
	case u.Known():
		e.Assumed, e.Maybe = e.Assumed+u.Total(), 1
		if cost.known {
			e.AssumedCost += cost.amount
		} else {
			e.AssumedCost += h.eachCost
		}
	default:
		e.Assumed, e.AssumedCost, e.Maybe = e.Assumed+h.each, e.AssumedCost+h.eachCost, 1
	}
	e.Amount = e.Confirmed + e.Assumed - h.sum.Amount
	e.Cost = e.ConfirmedCost + e.AssumedCost - h.sum.Cost
	return dst
}

// refund decides a refund: the last attempt was provably not billed. Earlier
// ones that may have been stay charged, and the entry is a settle then.
func (h *life) refund(dst []journal.Entry, last Outcome, why string) ([]journal.Entry, error) {
	switch {
	case last != NotBilled && last != NeverSent:
		return dst, &InvalidError{What: "refund", Reason: "a refund says that nothing was billed; settle with what is known instead"}
	case h.state == StateRefunded,
		h.state == StateSettled && h.lost+int64(len(h.proofs)) > 0 && !h.assumedLast() && h.usage == (journal.Usage{}):
		return dst, nil // a refund after attempts that may have been billed
	case h.state != StateOpen:
		return dst, &ClosedError{RID: h.rid, State: h.state, Call: "refund"}
	}
	dst = h.closing(dst, NothingUsed, money{known: true})
	e := &dst[len(dst)-1]
	e.Why = why
	if h.lost == 0 {
		e.Kind = journal.Refund
	}
	if last == NeverSent {
		e.Requests = -1
	}
	return dst, nil
}

// extend decides the hold of one further attempt.
func (h *life) extend(dst []journal.Entry, last Outcome, why string) ([]journal.Entry, error) {
	if h.state != StateOpen {
		return dst, &ClosedError{RID: h.rid, State: h.state, Call: "extend"}
	}
	change := journal.Change{Requests: 1}
	switch last {
	case MaybeBilled:
		if h.sum.Amount > maxHold-h.each || h.sum.Cost > maxHold-h.eachCost {
			return dst, &InvalidError{What: "extend", Reason: fmt.Sprintf("reservation %q holds %d tokens after %d attempts; close it and reserve anew", h.rid, h.sum.Amount, h.tries)}
		}
		change.Amount, change.Cost, change.Maybe = h.each, h.eachCost, 1
	case NotBilled:
	case NeverSent:
		change.Requests = 0
	default:
		return dst, &InvalidError{What: "extend", Reason: fmt.Sprintf("unknown outcome %d", last)}
	}
	dst, e := next(dst, journal.Extend)
	e.Change, e.Why = change, why
	return dst, nil
}

// reclaim decides a reclaim: nothing to do unless there was a refund.
func (h *life) reclaim(dst []journal.Entry) []journal.Entry {
	if h.state != StateRefunded {
		return dst
	}
	return h.reclaimEntry(dst, "")
}

// reclaimEntry reverses the refund by exactly what it gave back.
func (h *life) reclaimEntry(dst []journal.Entry, why string) []journal.Entry {
	dst, e := next(dst, journal.Reclaim)
	e.Why = why
	e.Amount, e.Cost = h.each, h.eachCost
	e.Assumed, e.AssumedCost, e.Maybe = h.each, h.eachCost, 1
	if h.unsent {
		e.Requests = 1
	}
	return dst
}

// adjust decides a correction by evidence.
func (h *life) adjust(dst []journal.Entry, ev Evidence, cost money) ([]journal.Entry, error) {
	if ev.Attempts == 0 {
		ev.Attempts = 1
	}
	for _, p := range h.proofs {
		if p.Key == ev.Key {
			if p.Usage != ev.Usage.figures() || ev.Usage.Cost != 0 && p.Cost != ev.Usage.Cost {
				return dst, fmt.Errorf("%w: evidence %q of reservation %q was booked with other figures", ErrConflict, ev.Key, h.rid)
			}
			return dst, nil
		}
	}
	switch {
	case h.state == StateOpen:
		return dst, fmt.Errorf("%w: reservation %q is open; settle it with the figure", ErrInFlight, h.rid)
	case h.state == StateRefunded, h.sum.Maybe == 0:
		return dst, &ClosedError{RID: h.rid, State: h.state, Call: "adjust"}
	case len(h.proofs) >= maxProofs:
		return dst, &InvalidError{What: "evidence", Reason: fmt.Sprintf("reservation %q has %d pieces already; give one for all attempts that are left", h.rid, len(h.proofs))}
	case ev.Attempts < 0 || ev.Attempts > h.sum.Maybe:
		return dst, &InvalidError{What: "evidence", Reason: fmt.Sprintf("it covers %d attempts, %d of reservation %q are assumed", ev.Attempts, h.sum.Maybe, h.rid)}
	}
	return h.adjustEntry(dst, ev, min(ev.Attempts, h.lost), cost), nil
}

// adjustEntry replaces the assumed figure of the attempts that ev covers, lost
// of them earlier ones, by what the evidence says.
func (h *life) adjustEntry(dst []journal.Entry, ev Evidence, lost int64, cost money) []journal.Entry {
	attempts := max(ev.Attempts, 1)
	dst, e := next(dst, journal.Adjust)
	e.Evidence, e.Usage, e.Ref, e.Why = ev.Key, ev.Usage.figures(), ev.Usage.Ref, ev.Usage.Why
	e.Assumed, e.AssumedCost = -lost*h.each, -lost*h.eachCost
	if attempts > lost { // the last attempt, whatever stands for it
		e.Assumed -= h.sum.Assumed - h.lost*h.each
		e.AssumedCost -= h.lastCost
	}
	e.Confirmed, e.Maybe = ev.Usage.Total(), -attempts
	if !cost.known {
		e.AssumedCost = 0 // tokens are known now, the money stays assumed
	} else {
		e.ConfirmedCost = cost.amount
	}
	e.Amount = e.Confirmed + e.Assumed
	e.Cost = e.ConfirmedCost + e.AssumedCost
	return dst
}

// apply changes h by a recorded entry of its own, any but reserve and carry.
func (h *life) apply(e *journal.Entry) error {
	want := StateOpen
	switch e.Kind {
	case journal.Reclaim:
		want = StateRefunded
	case journal.Adjust:
		want = StateSettled
	}
	if h.state != want {
		return fmt.Errorf("%w: %s of reservation %q, which is %s", ErrDamaged, e.Kind, h.rid, h.state)
	}
	held, heldCost := h.sum.Amount, h.sum.Cost
	if err := h.sum.Add(&e.Change); err != nil {
		return fmt.Errorf("%w: reservation %q: %w", ErrDamaged, h.rid, err)
	}
	switch e.Kind {
	case journal.Extend:
		h.tries++
		h.lost += e.Maybe
	case journal.Settle:
		h.state, h.usage = StateSettled, e.Usage
		h.held, h.heldCost = held, heldCost
		h.lastCost = e.AssumedCost - h.lost*h.eachCost
	case journal.Refund:
		h.state, h.unsent = StateRefunded, e.Requests < 0
		h.held, h.heldCost = held, heldCost
	case journal.Reclaim:
		h.state, h.lastCost = StateSettled, e.AssumedCost
	case journal.Adjust:
		earlier := min(-e.Maybe, h.lost)
		if e.Evidence == lateSettle {
			earlier = 0
		}
		if h.lost -= earlier; -e.Maybe > earlier { // it covers the last attempt
			h.usage, h.lastCost = e.Usage, 0
		}
		h.proofs = append(slices.Clip(h.proofs), journal.Proof{Key: strings.Clone(e.Evidence), Usage: e.Usage, Cost: e.ConfirmedCost})
	}
	if h.state != StateOpen {
		h.closed = e.T
	}
	return nil
}

// receipt is h as its owner sees it.
func (h *life) receipt() Receipt {
	return Receipt{RID: h.rid, State: h.state, Confirmed: h.sum.Confirmed, Assumed: h.sum.Assumed,
		ConfirmedCost: h.sum.ConfirmedCost, AssumedCost: h.sum.AssumedCost,
		Attempts: h.tries, Overrun: h.overrun(), OverrunCost: h.overrunCost()}
}

// overrun is what was used above the hold, as far as it is known.
func (h *standing) overrun() int64 {
	if h.state == StateOpen {
		return 0
	}
	return max(0, h.sum.Amount-h.held)
}

func (h *standing) overrunCost() int64 {
	if h.state == StateOpen {
		return 0
	}
	return max(0, h.sum.Cost-h.heldCost)
}
