package budget

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/tollbook/tollbook/journal"
)

// ledger is the fold of a journal: every account and every reservation that
// its entries add up to. Only the guard's leader (or a lone reader) touches it.
type ledger struct {
	root     *account
	accounts map[string]*account
	numbered []*account // by account.number
	recent   recent[*account]

	thresholds []int // of soft limits, in percent; none where nobody is told

	seed    maphash.Seed
	rids    table            // every reservation that is known
	holds   []*hold          // by place
	idle    []ref            // places whose hold is not used
	touched []*hold          // by the batch in hand, and to be put away
	closed  archive          // the closed ones that a late call may still name
	keys    map[string]*hold // the open ones that carry a key
	open    hold             // head of the ring of the open ones

	ahead    bool              // of the guard, when nobody has a handle: what is closed and plain goes at once
	guarded  bool              // entries come from the guard, and their strings stay; else what is kept is copied
	texts    strings.Builder   // the newest of these copies
	names    map[string]string // copies of what is named again and again: models, price tables
	named    recent[string]
	book     string
	unused   undo   // room for what is never taken back
	segments int    // open lines seen; from the second on, carried lines repeat what is known
	last     int64  // largest T so far, carried lines apart
	seq      uint64 // of what was read: the largest so far
	stats    stats
}

// stats counts what a report tells besides balances.
type stats struct {
	overruns, overrunTokens int64
	unknown                 map[string]*int64 // attempts charged at an assumed figure, by reason
}

// reason returns the count of a reason; past maxNames of them there is one for all others.
func (s *stats) reason(why string) *int64 {
	if s.unknown[why] == nil && len(s.unknown) >= maxNames {
		why = "other"
	}
	if s.unknown[why] == nil {
		s.unknown[strings.Clone(why)] = new(int64)
	}
	return s.unknown[why]
}

// minHorizon is how long a closed reservation is remembered at least.
const minHorizon = 14 * 24 * time.Hour

func newLedger() *ledger {
	root := &account{}
	root.path = []*account{root}
	l := &ledger{root: root, accounts: map[string]*account{"": root}, numbered: []*account{root}, seed: maphash.MakeSeed(), keys: map[string]*hold{},
		names: map[string]string{}, stats: stats{unknown: map[string]*int64{}}}
	l.open.prev, l.open.next = &l.open, &l.open
	return l
}

// undo takes one applied entry back, as long as nothing was applied after it.
type undo struct {
	kind journal.Kind
	last int64
	h    *hold
	was  standing // of h, unless the entry made it
	old  *hold    // whose rid a reserve took again, past the horizon
	why  *int64   // reason that was counted as unknown
	at   *account // limit
	unit Unit
	cap  capacity // that it was
}

// fold applies one entry of a journal, for good.
func (l *ledger) fold(e *journal.Entry) error {
	l.seq = max(l.seq, e.Seq)
	hash := l.hash(e.RID)
	err := l.apply(hash, l.hashed(hash, e.RID), e, &l.unused)
	l.rest()
	return err
}

// foldAll is fold for many entries.
func (l *ledger) foldAll(entries []journal.Entry) error {
	for i := range entries {
		if err := l.fold(&entries[i]); err != nil {
			return err
		}
	}
	return nil
}

// apply applies one entry to the ledger, where h is what it knows of the entry's
// rid and, where that is nothing, hash is that of the rid; and fills u with the
// way back. Either the entry is applied whole, or the ledger is as it was and the
// error says what about the entry cannot be.
func (l *ledger) apply(hash uint64, h *hold, e *journal.Entry, u *undo) error {
	u.kind, u.last, u.h, u.old, u.why = e.Kind, l.last, nil, nil, nil
	if h != nil {
		hash = h.hash
	}
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
		return l.carry(hash, h, e, u)
	case journal.Reserve:
		return l.reserve(hash, h, e, u)
	case journal.Extend, journal.Settle, journal.Refund, journal.Reclaim, journal.Adjust:
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
	if e.Cap.Told < 0 || e.Cap.Told > 100 {
		return fmt.Errorf("%w: limit line %d says that %d %% are told", ErrDamaged, e.Seq, e.Cap.Told)
	}
	u.at, u.unit = l.account(e.Scope), unit
	c := &u.at.caps[unit]
	u.cap, *c = *c, capacity{set: !e.Cap.Unlimited, max: e.Cap.Max, told: uint8(e.Cap.Told)}
	c.arm(l.thresholds)
	l.note(e)
	return nil
}

// reserve folds a reserve line, also a carried one. Its rid may be one that was
// used before, past the horizon.
func (l *ledger) reserve(hash uint64, old *hold, e *journal.Entry, u *undo) error {
	if old != nil && !old.forgettable(e.T-minHorizon.Microseconds()) {
		return fmt.Errorf("%w: reservation %q is reserved again while %s", ErrDamaged, e.RID, old.state)
	}
	each, eachCost, lost, tries := e.Amount, e.Cost, int64(0), int64(1)
	if p := e.Past; p != nil {
		each, eachCost, lost, tries = p.Each, p.EachCost, p.Lost, e.Tries
	}
	if each < 0 || eachCost < 0 || lost < 0 || e.Amount < 0 || e.Amount > maxHold || e.Cost < 0 || e.Cost > maxHold {
		return fmt.Errorf("%w: reservation %q holds %d tokens and %d picodollars", ErrDamaged, e.RID, e.Amount, e.Cost)
	}
	account := l.account(e.Scope)
	if err := account.add(&e.Change); err != nil {
		return err
	}
	h := l.enter(hash, old)
	h.rid, h.key, h.model, h.prices = l.own(e.RID), l.own(e.Key), l.name(e.Model), l.name(e.Prices)
	h.named, h.account, h.opened, h.each, h.eachCost = e.Named, account, e.T, each, eachCost
	h.state, h.lost, h.tries, h.sum = StateOpen, lost, tries, e.Change
	l.opened(h, 1)
	l.note(e)
	u.h, u.old = h, old
	return nil
}

// change folds an entry of a reservation that is there.
func (l *ledger) change(h *hold, e *journal.Entry, u *undo) error {
	if h == nil {
		return fmt.Errorf("%w: %s of reservation %q, which was never reserved", ErrDamaged, e.Kind, e.RID)
	}
	u.h, u.was = h, h.standing
	if h.state != StateOpen {
		l.touch(h)
	}
	if err := h.apply(e); err != nil {
		return err
	}
	if err := h.account.add(&e.Change); err != nil {
		h.standing = u.was
		return err
	}
	if u.was.state == StateOpen && h.state != StateOpen {
		l.touch(h)
		l.opened(h, -1)
	}
	l.stats.overran(&h.standing, &u.was)
	if e.Maybe > 0 && e.Kind != journal.Reclaim {
		u.why = l.stats.reason(cmp.Or(e.Why, "unknown"))
		*u.why++
	}
	l.note(e)
	return nil
}

// overran counts what one entry changed in what a reservation used above its
// hold.
func (s *stats) overran(now, was *standing) {
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
	if l.guarded || s == "" {
		return s
	}
	if l.texts.Cap()-l.texts.Len() < len(s) {
		l.texts = strings.Builder{}
		l.texts.Grow(max(textsEach, len(s)))
	}
	from := l.texts.Len()
	l.texts.WriteString(s)
	return l.texts.String()[from:]
}

// textsEach is how many bytes are taken from the heap for several texts at once.
// One that stays keeps its neighbours.
const textsEach = 512

// maxNames bounds the names that are remembered for their copies, and the reasons
// that are counted.
const maxNames = 1 << 12

// name is own for what many entries repeat.
func (l *ledger) name(s string) string {
	if l.guarded || s == "" {
		return s
	}
	last := l.named.at(s)
	if *last == s {
		return *last
	}
	name, ok := l.names[s]
	if !ok {
		if len(l.names) >= maxNames {
			clear(l.names)
		}
		name = strings.Clone(s)
		l.names[name] = name
	}
	*last = name
	return name
}

func (l *ledger) note(e *journal.Entry) {
	if !e.Carried {
		l.last = max(l.last, e.T)
	}
}

// undo takes the last applied entry back.
func (l *ledger) undo(u *undo) {
	l.last = u.last
	switch u.kind {
	case journal.Limit:
		u.at.caps[u.unit] = u.cap
	case journal.Reserve:
		l.opened(u.h, -1)
		take(u.h.account.path, u.h.sum)
		l.withdraw(u.h, u.old)
	case journal.Extend, journal.Settle, journal.Refund, journal.Reclaim, journal.Adjust:
		change, _ := u.h.sum.Plus(u.was.sum.Negated())
		if u.was.state == StateOpen && u.h.state != StateOpen {
			l.opened(u.h, 1)
		}
		l.stats.overran(&u.was, &u.h.standing)
		if u.why != nil {
			*u.why--
		}
		u.h.standing = u.was
		take(u.h.account.path, change)
	}
}
