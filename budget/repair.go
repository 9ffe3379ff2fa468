package budget

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tollbook/tollbook/journal"
)

// Repaired is what [Repair] did to a book and what was lost.
type Repaired struct {
	journal.Repaired
	// Missing is how many tokens the net lacks by undamaged entries that could
	// not be kept. What damaged ones said can have been more, or less than none.
	Missing int64
	// Silent is how many lost entries say nothing. If Endless, there may have
	// been more, behind the last that is left.
	Silent  uint64
	Endless bool
	// Raised are the limits that must have been raised by what was lost, each
	// as low as it can have been. They are in force: set them to what they
	// ought to be.
	Raised []Limit
}

// Repair makes a damaged book in directory dir one that can be opened, deleting
// no byte, and says what it lost: see [journal.Repair]. What was lost can have
// raised or lowered the net, and only the provider's own report can tell. A
// reservation whose close was lost is open again, and charged as any orphan.
//
// It may be called for any book that is not in use; one that is in order is not
// changed. After an error, Repaired says what was done and lost before.
func Repair(dir string, opts journal.FileOptions) (Repaired, error) {
	var fold *refold
	r, err := journal.Repair(dir, opts, func() journal.Fold {
		fold = &refold{ledger: newLedger()}
		return fold
	})
	repaired := Repaired{Repaired: r}
	if r.Segment != "" {
		repaired.reckon(fold)
		repaired.Raised = fold.inForce()
	}
	if err != nil {
		err = fmt.Errorf("budget: repair: %w", err)
	}
	return repaired, err
}

// Harmless reports whether no fact is lost.
func (r *Repaired) Harmless() bool {
	return !slices.ContainsFunc(r.Lost, func(l journal.Lost) bool { return !l.Harmless() })
}

// reckon adds up what the lost entries say. What a reservation lost is the sum
// of its lost changes; where only its close is known, that tells what was used.
func (r *Repaired) reckon(fold *refold) {
	missing, opened := map[string]int64{}, map[string]bool{}
	for i := range r.Lost {
		lost := &r.Lost[i]
		switch n := lost.Last - lost.First + 1; {
		case lost.Harmless():
		case lost.Whole:
			e := &lost.Entries[0]
			opened[e.RID] = opened[e.RID] || e.Kind == journal.Reserve || fold.find(e.RID) != nil
			if e.Kind == journal.Settle && !opened[e.RID] {
				missing[e.RID] = e.Confirmed + e.Assumed
			} else {
				missing[e.RID] += e.Amount
			}
		case lost.Last == 0:
			r.Endless = true
		default:
			r.Silent += n - min(n, uint64(len(lost.Entries)))
		}
	}
	for _, n := range missing {
		r.Missing += max(0, n)
	}
}

// refold is the fold of a book that has lost entries.
type refold struct {
	*ledger
	raises []journal.Entry
}

// Keep folds an entry that is to stand in the repaired book.
func (r *refold) Keep(e *journal.Entry) ([]journal.Entry, error) {
	if !e.Carried && e.T < r.last {
		return nil, errors.New("its time is before that of an entry before it")
	}
	err := r.fold(e)
	if err != nil && e.RID != "" && e.Kind != journal.Reserve && r.find(e.RID) == nil {
		err = errors.New("its reserve is not there")
	}
	if err != nil {
		return nil, err
	}
	limits := r.raised(e)
	r.raises = append(r.raises, limits...)
	return append(limits, *e), nil
}

// raised returns the limits without which e would not have been admitted: that
// they were raised is among what was lost. No more is said than must have been
// true.
func (r *refold) raised(e *journal.Entry) (limits []journal.Entry) {
	if e.Kind != journal.Reserve && e.Kind != journal.Extend || e.Carried {
		return nil
	}
	for _, at := range r.find(e.RID).account.path {
		for u := TokenUnit; u <= RequestUnit; u++ {
			if c := &at.caps[u]; c.set && u.of(e.Change) > 0 && u.of(at.sum) > c.max {
				*c = capacity{set: true, max: u.of(at.sum)}
				limits = append(limits, journal.Entry{Kind: journal.Limit, T: e.T, Scope: at.scope, Cap: &journal.Cap{Kind: u.String(), Max: c.max}})
			}
		}
	}
	return limits
}

// inForce returns those of the limits in force that were raised here.
func (r *refold) inForce() (raised []Limit) {
	for _, l := range r.limits() {
		if slices.ContainsFunc(r.raises, func(e journal.Entry) bool {
			return e.Scope == l.Scope && e.Cap.Kind == l.Unit.String() && e.Cap.Max == l.Max
		}) {
			raised = append(raised, l)
		}
	}
	return raised
}

// Snapshot returns what a segment behind the entries kept so far begins with.
func (r *refold) Snapshot() []journal.Entry {
	return r.snapshot(r.last, math.MinInt64) // the horizon is its opener's
}
