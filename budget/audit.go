package budget

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/journal"
)

// Audit folds a ledger and tells what about it cannot be: the one checker of
// the invariants, for the command, for tests, and for books nobody here wrote.
// Unlike the guard it goes on after a contradiction, so that the counts cover
// every line. The zero Audit is not usable; make one with [NewAudit].
type Audit struct {
	Reserves, Extends, Settles, Refunds, Reclaims, Adjusts, Limits int64

	Net           int64            // sum of the amounts
	MultiClosed   map[string]int64 // rids closed (settled or refunded) more than once, with the number of closes
	Overruns      int64            // reservations that used more than they held
	OverrunTokens int64
	Violations    []Violation // in the order of the lines; may be taken away between two entries
	Line          int64       // of the last entry; Add counts on from it, so where lines were left out, set it

	ledger  *ledger
	undo    undo             // room for what is never taken back
	stray   map[string]int64 // closes of rids that were never reserved
	fetched uint64           // says nothing, and keeps the compiler from dropping a read
	failed  map[string]bool  // scopes whose figures were found wrong already
}

// Violation is one thing that cannot be.
type Violation struct {
	Line int64  // as [Audit.Line] counts
	Seq  uint64 // zero in ledgers that do not number their lines
	RID  string
	What string
}

func (v Violation) String() string {
	if v.Seq != 0 {
		return fmt.Sprintf("entry %d: %s", v.Seq, v.What)
	}
	return fmt.Sprintf("line %d: %s", v.Line, v.What)
}

// NewAudit returns an Audit of an empty ledger.
func NewAudit() *Audit {
	return &Audit{MultiClosed: map[string]int64{}, ledger: newLedger(), stray: map[string]int64{}, failed: map[string]bool{}}
}

// fetchAhead is how many entries AddAll looks up at a time.
const fetchAhead = 64

// AddAll is Add for each of entries, and quicker.
func (a *Audit) AddAll(entries []journal.Entry) {
	var hashes [fetchAhead]uint64
	for some := range slices.Chunk(entries, fetchAhead) {
		for i := range some {
			hashes[i] = a.ledger.hash(some[i].RID)
		}
		a.fetched ^= a.ledger.rids.fetch(hashes[:len(some)])
		for i := range some {
			a.add(hashes[i], &some[i])
		}
	}
}

// Add folds the next entry, which stays the caller's: nothing of it is kept, its
// strings neither. Opening and carried lines count only in the first segment; in
// later ones they are checked against the fold.
func (a *Audit) Add(e *journal.Entry) { a.add(a.ledger.hash(e.RID), e) }

// add is Add where the hash of the rid is known.
func (a *Audit) add(hash uint64, e *journal.Entry) {
	a.Line++
	a.ledger.seq = max(a.ledger.seq, e.Seq)
	if a.ledger.segments > 0 && e.Kind == journal.Open || a.ledger.segments > 1 && e.Carried {
		for _, err := range a.ledger.contradictions(e) {
			a.violation(e, err)
		}
	} else {
		a.count(e)
	}
	if e.Seq != 0 && !e.Carried && e.T < a.ledger.last {
		a.violation(e, fmt.Errorf("time goes back by %d microseconds", a.ledger.last-e.T))
	}
	h := a.ledger.hashed(hash, e.RID)
	if e.Seq == 0 && e.Prev == 0 { // a foreign ledger tells amounts only
		e = complete(*e, h)
	}
	if e.Kind == journal.Settle || e.Kind == journal.Refund {
		a.close(e, h)
	}
	if err := a.ledger.apply(hash, h, e, &a.undo); err != nil {
		a.violation(e, err)
	} else if h = a.undo.h; h != nil {
		a.checkPath(e, h)
	}
	a.Overruns, a.OverrunTokens = a.ledger.stats.overruns, a.ledger.stats.overrunTokens
	a.ledger.rest()
}

func (a *Audit) count(e *journal.Entry) {
	net := a.Net + e.Amount
	if (a.Net < net) != (e.Amount > 0) {
		a.violation(e, journal.ErrOverflow)
		net = a.Net
	}
	a.Net = net
	switch e.Kind {
	case journal.Reserve:
		a.Reserves++
	case journal.Extend:
		a.Extends++
	case journal.Settle:
		a.Settles++
	case journal.Refund:
		a.Refunds++
	case journal.Reclaim:
		a.Reclaims++
	case journal.Adjust:
		a.Adjusts++
	case journal.Limit:
		a.Limits++
	}
}

// close counts closes from the second on: that there was a first one, the
// state of the reservation tells.
func (a *Audit) close(e *journal.Entry, h *hold) {
	switch {
	case h == nil:
		n := a.stray[e.RID] + 1
		if a.stray[strings.Clone(e.RID)] = n; n > 1 {
			a.MultiClosed[strings.Clone(e.RID)] = n
		}
	case h.state != StateOpen:
		a.MultiClosed[strings.Clone(e.RID)] = max(a.MultiClosed[e.RID], 1) + 1
	}
}

// complete fills in what a line with only ev, rid, amount and t leaves open:
// what remains of a reservation after its settle is taken as confirmed, what a
// reclaim brings back as assumed.
func complete(e journal.Entry, h *hold) *journal.Entry {
	switch {
	case e.Kind == journal.Settle && h != nil && e.Confirmed == 0 && e.Assumed == 0:
		e.Confirmed = h.sum.Amount + e.Amount
	case e.Kind == journal.Reclaim && e.Assumed == 0:
		e.Assumed = e.Amount
	case e.Kind == journal.Adjust && e.Confirmed == 0 && e.Assumed == 0:
		e.Confirmed = e.Amount
	}
	return &e
}

// checkPath checks every balance that an entry moved: a hold is never
// negative, nothing spent is, and no admission leaves a limit exceeded.
func (a *Audit) checkPath(e *journal.Entry, h *hold) {
	if h.state == StateRefunded && (h.sum.Amount != 0 || h.sum.Cost != 0) {
		a.violation(e, fmt.Errorf("the refund of reservation %q leaves %d tokens and %d picodollars of it in the net", h.rid, h.sum.Amount, h.sum.Cost))
	}
	if h.state == StateSettled && h.sum.Amount != h.sum.Confirmed+h.sum.Assumed {
		a.violation(e, fmt.Errorf("reservation %q is settled with %d confirmed and %d assumed, and %d in the net", h.rid, h.sum.Confirmed, h.sum.Assumed, h.sum.Amount))
	}
	admits := (e.Kind == journal.Reserve || e.Kind == journal.Extend) && !e.Carried
	for _, at := range h.account.path {
		c := &at.sum
		held := c.Amount - c.Confirmed - c.Assumed
		if held|c.Confirmed|c.Assumed|(c.Cost-c.ConfirmedCost-c.AssumedCost) < 0 && !a.failed[at.scope] {
			a.failed[at.scope] = true
			a.violation(e, fmt.Errorf("scope %q: confirmed %d, assumed %d, held %d: none of these can be negative", at.scope, c.Confirmed, c.Assumed, held))
		}
		if !admits {
			continue
		}
		for u := TokenUnit; u <= RequestUnit; u++ {
			if c := &at.caps[u]; c.set && u.in(&e.Change) > 0 && u.in(&at.sum) > c.max {
				a.violation(e, fmt.Errorf("%s of %q was admitted above the limit of scope %q: %s in use of %s", e.Kind, e.RID, at.scope, u.Format(u.of(at.sum)), u.Format(c.max)))
			}
		}
	}
}

func (a *Audit) violation(e *journal.Entry, err error) {
	what := strings.TrimPrefix(err.Error(), ErrDamaged.Error()+": ")
	a.Violations = append(a.Violations, Violation{Line: a.Line, Seq: e.Seq, RID: strings.Clone(e.RID), What: what})
}

// Report returns the balances of all that was added.
func (a *Audit) Report() Report { return a.ledger.report() }

// Open is the number of reservations that are open.
func (a *Audit) Open() int64 { return a.ledger.root.open }
