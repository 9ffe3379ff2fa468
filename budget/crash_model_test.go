package budget_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// What the callers of a book know: what they asked and what they were told, and
// so where each reservation can stand. It knows nothing of disks and entries,
// and shares no code with the book.

// standing is a place where a reservation can stand.
type standing struct {
	state     budget.State // 0: the book has never heard of it
	tries     int64
	lost      []int64 // true bills of earlier attempts that are charged at the hold
	last      int64   // true bill of the last attempt
	unsure    bool    // closed, and the last attempt is charged at the hold
	confirmed int64   // once closed
	assumed   int64   // once closed
	bill      int64   // what the provider billed for all attempts
}

// figures is what a book and a journal say of a reservation.
type figures struct {
	state                          budget.State
	tries, net, confirmed, assumed int64
}

func (s standing) figures(hold int64) figures {
	f := figures{s.state, s.tries, s.confirmed + s.assumed, s.confirmed, s.assumed}
	if s.state == budget.StateOpen {
		f.net = hold * int64(1+len(s.lost))
	}
	return f
}

// ticket is a reservation as its caller knows it.
type ticket struct {
	key, rid, scope string // rid is empty until the book told it
	named           bool
	hold            int64
	may             []standing // one, or after a call that failed several
	evidence        int
	last            int64                                      // Unix microseconds of the last entry, or seconds later
	handle          *budget.Reservation                        // what Reserve returned
	of              *budget.Book                               // by this book
	closed          func(*budget.Book) (budget.Receipt, error) // the last call that closed or corrected it, with success
}

// reach returns the handle of the caller, if the book made it and it is wanted,
// else one by rid.
func (t *ticket) reach(b *budget.Book, byHandle bool) *budget.Reservation {
	if byHandle && t.of == b {
		return t.handle
	}
	return b.Reservation(t.rid)
}

// is returns where the ticket stands, if that is certain.
func (t *ticket) is() (s standing, certain bool) { return t.may[0], len(t.may) == 1 }

func (t *ticket) netRange() (low, high int64) {
	low = t.may[0].figures(t.hold).net
	for _, s := range t.may {
		n := s.figures(t.hold).net
		low, high = min(low, n), max(high, n)
	}
	return low, high
}

// The calls, as far as the promises fix what they do. Each returns what the book
// may hold after it, step by step; the last is the whole call.

func (s standing) extended(maybe bool) standing {
	if s.tries++; maybe {
		s.lost = append(slices.Clip(s.lost), s.last)
	}
	s.last = 0
	return s
}

func (s standing) settled(hold int64) standing {
	s.state, s.confirmed, s.assumed = budget.StateSettled, s.last, int64(len(s.lost))*hold
	return s
}

func (s standing) assumedClosed(hold int64) standing {
	s.state, s.unsure, s.assumed = budget.StateSettled, true, int64(1+len(s.lost))*hold
	return s
}

func (s standing) refunded(hold int64) standing {
	if len(s.lost) > 0 {
		return s.settled(hold)
	}
	s.state = budget.StateRefunded
	return s
}

func (s standing) reclaimed(hold int64) standing {
	s.state, s.unsure, s.assumed = budget.StateSettled, true, hold
	return s
}

// learnt is a late settle: the last attempt's figure is known after all.
func (s standing) learnt(hold int64) standing {
	s.unsure, s.assumed, s.confirmed = false, s.assumed-hold, s.confirmed+s.last
	return s
}

// proved is evidence for one attempt, an earlier one first.
func (s standing) proved(hold int64) standing {
	if len(s.lost) == 0 {
		return s.learnt(hold)
	}
	s.assumed, s.confirmed, s.lost = s.assumed-hold, s.confirmed+s.lost[0], s.lost[1:]
	return s
}

// knowledge is all that the callers of one book know.
type knowledge struct {
	tickets []*ticket
	limits  map[string][]int64 // by scope, what it may be; -1 is none
	pruned  bool               // old segments were removed
	made    int                // tickets ever
}

func (k *knowledge) clone() *knowledge {
	c := &knowledge{limits: map[string][]int64{}, pruned: k.pruned, made: k.made}
	for scope, may := range k.limits {
		c.limits[scope] = slices.Clone(may)
	}
	for _, t := range k.tickets {
		copied := *t
		copied.may = slices.Clone(t.may)
		c.tickets = append(c.tickets, &copied)
	}
	return c
}

// orphaned closes every open ticket as assumed: an opening does that, if it comes
// to its end.
func (k *knowledge) orphaned(ended bool) {
	for _, t := range k.tickets {
		for i, s := range t.may {
			switch {
			case s.state != budget.StateOpen:
			case ended:
				t.may[i] = s.assumedClosed(t.hold)
			default:
				t.may = append(t.may, s.assumedClosed(t.hold))
			}
		}
	}
}

// on reports whether a reservation on scope draws on the limits of at.
func on(scope, at string) bool {
	return at == "" || scope == at || strings.HasPrefix(scope, at+"/")
}

// net is the least and the most that is in use on a scope.
func (k *knowledge) net(at string) (low, high int64) {
	for _, t := range k.tickets {
		if on(t.scope, at) {
			l, h := t.netRange()
			low, high = low+l, high+h
		}
	}
	return low, high
}

// overAdmitted says which limit an admission on scope has broken.
func (k *knowledge) overAdmitted(scope string) error {
	for at, may := range k.limits {
		if low, _ := k.net(at); on(scope, at) && !slices.Contains(may, -1) && low > slices.Max(may) {
			return fmt.Errorf("admitted on %q: at least %d in use of %d on %q", scope, low, slices.Max(may), at)
		}
	}
	return nil
}

// couldRefuse reports whether a limit can be in the way of so much more.
func (k *knowledge) couldRefuse(scope string, asked int64) bool {
	for at, may := range k.limits {
		for _, limit := range may {
			if _, high := k.net(at); on(scope, at) && limit >= 0 && high+asked > limit {
				return true
			}
		}
	}
	return false
}

// fold adds up a history by the line format alone.
type fold struct {
	sum   journal.Change
	of    map[string]*told // by rid
	opens int
}

type told struct {
	figures
	last             int64
	key              string
	closes, reclaims int
	evidence         map[string]bool
}

func (f *fold) add(e *journal.Entry) error {
	if e.Kind == journal.Open {
		f.opens++
	}
	if f.opens > 1 && (e.Kind == journal.Open || e.Carried) {
		return nil
	}
	sum, err := f.sum.Plus(e.Change)
	if err != nil {
		return err
	}
	f.sum = sum
	if e.RID == "" {
		return nil
	}
	r := f.of[e.RID]
	if (r == nil) != (e.Kind == journal.Reserve || e.Kind == journal.Carry) {
		return fmt.Errorf("%s of %q, known %t", e.Kind, e.RID, r != nil)
	}
	if r == nil {
		r = &told{key: e.Key}
		f.of[e.RID] = r
	}
	r.last = e.T
	r.net, r.confirmed, r.assumed = r.net+e.Amount, r.confirmed+e.Confirmed, r.assumed+e.Assumed
	switch e.Kind {
	case journal.Reserve:
		r.state, r.tries = budget.StateOpen, max(1, e.Tries)
	case journal.Extend:
		r.tries++
	case journal.Carry:
		r.figures = figures{budget.StateSettled, e.Tries, e.Past.Confirmed + e.Past.Assumed, e.Past.Confirmed, e.Past.Assumed}
		if e.Past.State == "refunded" {
			r.state = budget.StateRefunded
		}
	case journal.Settle:
		r.closes++
		r.state = budget.StateSettled
	case journal.Refund:
		r.closes++
		r.state = budget.StateRefunded
	case journal.Reclaim:
		r.reclaims++
		r.state = budget.StateSettled
	case journal.Adjust:
		if r.evidence[e.Evidence] {
			return fmt.Errorf("evidence %q of %q is booked twice", e.Evidence, e.RID)
		}
		if r.evidence == nil {
			r.evidence = map[string]bool{}
		}
		r.evidence[e.Evidence] = true
	}
	if r.closes > 1 || r.reclaims > 1 {
		return fmt.Errorf("%q is closed %d times and reclaimed %d times", e.RID, r.closes, r.reclaims)
	}
	return nil
}

// compare finds out where each ticket stands now, and fails if one stands where
// it cannot.
func (k *knowledge) compare(f *fold, r *budget.Report) error {
	byKey := map[string]string{}
	for rid, told := range f.of {
		if other, ok := byKey[told.key]; ok {
			return fmt.Errorf("invented: key %.20q has the rids %q and %q", told.key, rid, other)
		}
		byKey[told.key] = rid
	}
	kept := k.tickets[:0]
	for _, t := range k.tickets {
		rid, ok := byKey[t.key]
		delete(byKey, t.key)
		if ok && t.rid != "" && t.rid != rid {
			return fmt.Errorf("ticket %.20q is of rid %q, and was %q", t.key, rid, t.rid)
		}
		is, certain := t.is()
		if !ok && certain && k.pruned && is.state > budget.StateOpen {
			kept = append(kept, t)
			continue // its entries are gone; it counts in the balances
		}
		var have figures
		if ok {
			t.rid, t.last, have = rid, f.of[rid].last, f.of[rid].figures
		}
		i := slices.IndexFunc(t.may, func(s standing) bool { return s.figures(t.hold) == have })
		if i < 0 {
			return fmt.Errorf("lost or invented: %.20q (%q, hold %d) stands at %+v; it can be %+v", t.key, t.rid, t.hold, have, t.may)
		}
		t.may = []standing{t.may[i]}
		if ok {
			kept = append(kept, t)
		}
	}
	k.tickets = kept
	for key, rid := range byKey {
		return fmt.Errorf("invented: rid %q with key %.20q", rid, key)
	}
	return cmp.Or(k.balances(f, r), k.bracket(r), k.sameLimits(r))
}

// balances: the book's counters are the sums of the journal's changes (I3), and
// those of the callers, on every scope.
func (k *knowledge) balances(f *fold, r *budget.Report) error {
	have := journal.Change{Amount: r.Tokens.Net, Confirmed: r.Tokens.Confirmed, Assumed: r.Tokens.Assumed, Cost: r.Cost.Net,
		ConfirmedCost: r.Cost.Confirmed, AssumedCost: r.Cost.Assumed, Requests: r.Requests, Maybe: r.Maybe}
	if have != f.sum {
		return fmt.Errorf("the book counts %+v, its entries add up to %+v", have, f.sum)
	}
	scopes := append(slices.Clone(r.Scopes), budget.ScopeReport{Balance: r.Balance})
	for _, s := range scopes {
		var want budget.Figures
		open := int64(0)
		for _, t := range k.tickets {
			if is, _ := t.is(); on(t.scope, s.Scope) {
				f := is.figures(t.hold)
				want.Net, want.Confirmed, want.Assumed = want.Net+f.net, want.Confirmed+f.confirmed, want.Assumed+f.assumed
				if is.state == budget.StateOpen {
					open++
				}
			}
		}
		want.Held = want.Net - want.Confirmed - want.Assumed
		if s.Tokens != want || s.Open != open {
			return fmt.Errorf("scope %q stands at %+v with %d open, and should at %+v with %d", s.Scope, s.Tokens, s.Open, want, open)
		}
	}
	return nil
}

// bracket: confirmed <= the true bill <= net (I6), of each and of all.
func (k *knowledge) bracket(r *budget.Report) error {
	bill := int64(0)
	for _, t := range k.tickets {
		is, _ := t.is()
		f := is.figures(t.hold)
		if f.confirmed > is.bill || is.bill > f.net {
			return fmt.Errorf("%.20q: confirmed %d, billed %d, net %d", t.key, f.confirmed, is.bill, f.net)
		}
		bill += is.bill
	}
	if r.Tokens.Confirmed > bill || bill > r.Tokens.Net {
		return fmt.Errorf("confirmed %d, billed %d, net %d", r.Tokens.Confirmed, bill, r.Tokens.Net)
	}
	return nil
}

func (k *knowledge) sameLimits(r *budget.Report) error {
	for at, may := range k.limits {
		have := int64(-1)
		for _, l := range r.Limits {
			if l.Scope == at {
				have = l.Max
			}
		}
		if !slices.Contains(may, have) {
			return fmt.Errorf("the limit of %q is %d; it can be %v", at, have, may)
		}
		k.limits[at] = []int64{have}
	}
	return nil
}
