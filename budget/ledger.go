package budget

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tollbook/tollbook/journal"
)

// ledger is the fold of a journal: every account and every reservation that
// its entries add up to. Only the guard's leader (or a lone reader) touches it.
type ledger struct {
	root     *account
	accounts map[string]*account
	holds    map[string]*hold // by rid: the open ones, and those a late call may still name
	keys     map[string]*hold // the open ones that carry a key
	open     hold             // head of the ring of the open ones, oldest first

	guarded  bool              // entries come from the guard, and their strings stay; else what is kept is copied
	names    map[string]string // copies of what is named again and again: models, price tables
	book     string
	segments int   // open lines seen; from the second on, carried lines repeat what is known
	last     int64 // largest T so far, carried lines apart
	stats    stats
}

// stats counts what a report tells besides balances.
type stats struct {
	overruns, overrunTokens int64
	unknown                 map[string]int64 // attempts charged at an assumed figure, by reason
}

// minHorizon is how long a closed reservation is remembered at least.
const minHorizon = 14 * 24 * time.Hour

// maxScopes bounds the scopes of a book, whose balances must fit into the open
// line of a segment.
const maxScopes = 100_000

// account is what stands on one scope, all below it included.
type account struct {
	scope   string
	path    []*account // itself, its parent, … the root
	sum     journal.Change
	open    int64
	caps    [RequestUnit + 1]capacity // by Unit
	waiters int                       // reserves waiting for room here
	pass    int                       // of the waiters' last retest that found it full
}

type capacity struct {
	set bool
	max int64
}

func newLedger() *ledger {
	root := &account{}
	root.path = []*account{root}
	l := &ledger{root: root, accounts: map[string]*account{"": root}, holds: map[string]*hold{}, keys: map[string]*hold{},
		names: map[string]string{}, stats: stats{unknown: map[string]int64{}}}
	l.open.prev, l.open.next = &l.open, &l.open
	return l
}

// account returns the account of a scope, made where it is new.
func (l *ledger) account(scope string) *account {
	if a := l.accounts[scope]; a != nil {
		return a
	}
	parent, scope := "", strings.Clone(scope)
	if i := strings.LastIndexByte(scope, '/'); i >= 0 {
		parent = scope[:i]
	}
	a := &account{scope: scope}
	a.path = append([]*account{a}, l.account(parent).path...)
	l.accounts[scope] = a
	return a
}

// nearest returns the account of a scope, or of what stands above it as long as
// nothing was booked on it: the same limits hold for both.
func (l *ledger) nearest(scope string) *account {
	for {
		if a := l.accounts[scope]; a != nil {
			return a
		}
		scope = scope[:max(0, strings.LastIndexByte(scope, '/'))]
	}
}

// room refuses a scope that is one too many.
func (l *ledger) room(scope string) error {
	if l.accounts[scope] == nil && len(l.accounts)+strings.Count(scope, "/") >= maxScopes {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q would be one too many: the book has %d; scopes are for teams, runs and shards, keys are for calls", scope, len(l.accounts))}
	}
	return nil
}

// checkScope refuses paths that are not ones: empty segments, control
// characters, more than 256 bytes.
func checkScope(scope string) error {
	if scope == "" {
		return nil
	}
	if strings.HasPrefix(scope, "/") || strings.HasSuffix(scope, "/") || strings.Contains(scope, "//") {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q has an empty segment; write it as a/b/c", scope)}
	}
	if strings.ContainsAny(scope, "\"\\") {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q holds a quote or a backslash", scope)}
	}
	return checkText("scope", scope)
}

// admit tells whether ask fits under every limit on the path of a. For an
// extend, own is what the reservation holds already: that much will be spent,
// so it is not in the way for a time only; and a unit of which the extend asks
// nothing is no matter. A reserve must find every limit in order, and a limit
// of zero admits none.
func admit(a *account, ask journal.Change, own *journal.Change) *ExhaustedError {
	var busy *ExhaustedError
	for _, at := range a.path {
		for u := TokenUnit; u <= RequestUnit; u++ {
			limit := at.caps[u]
			asked := u.of(ask)
			if !limit.set || (own != nil && asked == 0) || (asked <= limit.max-u.of(at.sum) && limit.max > 0) {
				continue
			}
			spent := u.spent(at.sum)
			err := &ExhaustedError{Scope: at.scope, Kind: u, Asked: asked, Limit: limit.max, Net: u.of(at.sum), Held: u.of(at.sum) - spent}
			if own != nil && u != RequestUnit {
				spent += u.of(*own)
			}
			if err.Busy = limit.max > 0 && asked <= limit.max-spent; !err.Busy {
				return err
			}
			if busy == nil {
				busy = err
			}
		}
	}
	return busy
}

// capped reports whether any limit of unit u is on the path.
func (a *account) capped(u Unit) bool {
	for _, at := range a.path {
		if at.caps[u].set {
			return true
		}
	}
	return false
}

// undo takes one applied entry back, as long as nothing was applied after it.
type undo struct {
	kind journal.Kind
	h    *hold
	was  life   // h before, unless the entry made it
	old  *hold  // whose rid a reserve took again, past the horizon
	why  string // reason that was counted as unknown
	at   *account
	caps [RequestUnit + 1]capacity
	last int64
}

// apply folds one entry and fills u with the way back. Either the entry is
// applied whole, or the ledger is as it was and the error says what about the
// entry cannot be.
func (l *ledger) apply(e *journal.Entry, u *undo) error { return l.applyTo(nil, e, u) }

// applyTo is apply for an entry whose reservation was looked up already.
func (l *ledger) applyTo(h *hold, e *journal.Entry, u *undo) error {
	*u = undo{kind: e.Kind, last: l.last}
	if e.Carried && l.segments > 1 {
		u.kind = journal.Seal // nothing to take back
		return nil
	}
	switch e.Kind {
	case journal.Open:
		return l.opening(e)
	case journal.Seal:
		return nil
	case journal.Limit:
		return l.limit(e, u)
	case journal.Carry:
		return l.carry(e, u)
	case journal.Reserve:
		return l.reserve(e, u)
	case journal.Extend, journal.Settle, journal.Refund, journal.Reclaim, journal.Adjust:
		if h == nil {
			h = l.holds[e.RID]
		}
		return l.change(h, e, u)
	}
	return fmt.Errorf("%w: entry %d is of no known kind", ErrDamaged, e.Seq)
}

func (l *ledger) opening(e *journal.Entry) error {
	if e.Opening == nil {
		return fmt.Errorf("%w: open line %d says nothing", ErrDamaged, e.Seq)
	}
	if l.segments > 0 && e.Opening.Book != l.book {
		return fmt.Errorf("%w: segment %d is of book %s, not of %s", ErrDamaged, e.Opening.Segment, e.Opening.Book, l.book)
	}
	l.last = max(l.last, e.T)
	if l.segments++; l.segments > 1 {
		return nil
	}
	l.book, l.root.sum = strings.Clone(e.Opening.Book), e.Change
	for _, b := range e.Opening.Balances {
		l.account(b.Scope).sum = b.Change
	}
	return nil
}

func (l *ledger) limit(e *journal.Entry, u *undo) error {
	if e.Cap == nil {
		return fmt.Errorf("%w: limit line %d says nothing", ErrDamaged, e.Seq)
	}
	unit := parseUnit(e.Cap.Kind)
	if unit == 0 {
		return fmt.Errorf("%w: limit line %d is on %q, which is no unit", ErrDamaged, e.Seq, e.Cap.Kind)
	}
	u.at = l.account(e.Scope)
	u.caps = u.at.caps
	u.at.caps[unit] = capacity{set: !e.Cap.Unlimited, max: e.Cap.Max}
	l.note(e)
	return nil
}

// reserve folds a reserve line, also a carried one.
func (l *ledger) reserve(e *journal.Entry, u *undo) error {
	u.old = l.holds[e.RID]
	if old := u.old; old != nil && !old.forgettable(e.T-minHorizon.Microseconds()) {
		return fmt.Errorf("%w: reservation %q is reserved again while %s", ErrDamaged, e.RID, old.state)
	}
	h := &hold{life: life{rid: l.own(e.RID), key: l.own(e.Key), model: l.name(e.Model), prices: l.name(e.Prices), named: e.Named,
		state: StateOpen, opened: e.T, each: e.Amount, eachCost: e.Cost, tries: 1, sum: e.Change}}
	if p := e.Past; p != nil {
		h.each, h.eachCost, h.lost, h.tries = p.Each, p.EachCost, p.Lost, e.Tries
	}
	if h.each < 0 || h.eachCost < 0 || h.lost < 0 || h.sum.Amount < 0 || h.sum.Amount > maxHold || h.sum.Cost < 0 || h.sum.Cost > maxHold {
		return fmt.Errorf("%w: reservation %q holds %d tokens and %d picodollars", ErrDamaged, e.RID, e.Amount, e.Cost)
	}
	h.account = l.account(e.Scope)
	if err := h.account.add(e.Change); err != nil {
		return err
	}
	if u.old != nil {
		u.old.forgotten = true // its handles must not reach the new life of the rid
		delete(l.holds, h.rid) // with its copy of the rid
	}
	l.holds[h.rid] = h
	l.opened(h, 1)
	l.note(e)
	u.h = h
	return nil
}

// change folds an entry of a reservation that is there.
func (l *ledger) change(h *hold, e *journal.Entry, u *undo) error {
	if h == nil {
		return fmt.Errorf("%w: %s of reservation %q, which was never reserved", ErrDamaged, e.Kind, e.RID)
	}
	u.h, u.was = h, h.life
	if err := h.apply(e); err != nil {
		return err
	}
	if err := h.account.add(e.Change); err != nil {
		h.life = u.was
		return err
	}
	if u.was.state == StateOpen && h.state != StateOpen {
		l.opened(h, -1)
	}
	l.stats.overran(&h.life, &u.was)
	if e.Maybe > 0 && e.Kind != journal.Reclaim {
		u.why = l.name(cmp.Or(e.Why, "unknown"))
		l.stats.unknown[u.why]++
	}
	l.note(e)
	return nil
}

// overran counts what one entry changed in what a reservation used above its
// hold.
func (s *stats) overran(now, was *life) {
	s.overrunTokens += now.overrun() - was.overrun()
	is, before := now.overrun()+now.overrunCost() > 0, was.overrun()+was.overrunCost() > 0
	switch {
	case is && !before:
		s.overruns++
	case before && !is:
		s.overruns--
	}
}

// opened counts h in (1) or out (-1) of the open reservations.
func (l *ledger) opened(h *hold, by int64) {
	for _, a := range h.account.path {
		a.open += by
	}
	if by > 0 {
		h.prev, h.next = l.open.prev, &l.open
		h.prev.next, h.next.prev = h, h
	} else {
		h.prev.next, h.next.prev = h.next, h.prev
	}
	switch {
	case h.key == "":
	case by > 0:
		l.keys[h.key] = h
	case l.keys[h.key] == h:
		delete(l.keys, h.key)
	}
}

// own returns s as it may be kept: the strings of an entry that was read share
// one large piece of memory with those of many others.
func (l *ledger) own(s string) string {
	if l.guarded {
		return s
	}
	return strings.Clone(s)
}

// maxNames bounds the names that are remembered for their copies.
const maxNames = 1 << 12

// name is own for what many entries repeat.
func (l *ledger) name(s string) string {
	if l.guarded || s == "" {
		return s
	}
	name, ok := l.names[s]
	if !ok {
		if len(l.names) >= maxNames {
			clear(l.names)
		}
		name = strings.Clone(s)
		l.names[name] = name
	}
	return name
}

func (l *ledger) note(e *journal.Entry) {
	if !e.Carried {
		l.last = max(l.last, e.T)
	}
}

// add moves every balance along the path, or none.
func (a *account) add(c journal.Change) error {
	for i, at := range a.path {
		sum, err := at.sum.Plus(c)
		if err != nil {
			for _, done := range a.path[:i] {
				done.sum, _ = done.sum.Plus(c.Negated())
			}
			return fmt.Errorf("%w: scope %q: %w", ErrDamaged, at.scope, err)
		}
		at.sum = sum
	}
	return nil
}

// undo takes the last applied entry back.
func (l *ledger) undo(u *undo) {
	l.last = u.last
	switch u.kind {
	case journal.Limit:
		u.at.caps = u.caps
	case journal.Reserve:
		l.opened(u.h, -1)
		delete(l.holds, u.h.rid)
		if u.old != nil {
			u.old.forgotten = false
			l.holds[u.old.rid] = u.old
		}
		u.h.account.take(u.h.sum)
	case journal.Extend, journal.Settle, journal.Refund, journal.Reclaim, journal.Adjust:
		change, _ := u.h.sum.Plus(u.was.sum.Negated())
		if u.was.state == StateOpen && u.h.state != StateOpen {
			l.opened(u.h, 1)
		}
		l.stats.overran(&u.was, &u.h.life)
		if u.why != "" {
			if l.stats.unknown[u.why]--; l.stats.unknown[u.why] == 0 {
				delete(l.stats.unknown, u.why)
			}
		}
		u.h.life = u.was
		u.h.account.take(change)
	}
}

// take is add for a change that is known to be in the balances.
func (a *account) take(c journal.Change) {
	for _, at := range a.path {
		at.sum, _ = at.sum.Plus(c.Negated())
	}
}

func parseUnit(word string) Unit {
	for u := TokenUnit; u <= RequestUnit; u++ {
		if unitNames[u] == word {
			return u
		}
	}
	return 0
}
