package budget

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/tollbook/tollbook/journal"
)

// A rotation is the snapshot: the new segment begins with the balances of all
// that is closed, the limits, the open reservations, and what a late call may
// still name. All else may be forgotten.

// rotate starts a new segment.
func (b *Book) rotate() error {
	now := b.now()
	if b.ledger.segments == 0 {
		b.ledger.book = b.batchID.String()
	}
	carried, forget := b.ledger.snapshot(now, now-b.horizon.Microseconds())
	pos, err := b.journal.Rotate(b.ctx, b.pos, carried)
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	b.pos, b.carried = pos, len(carried)
	b.ledger.segments = max(b.ledger.segments, 1)
	b.ledger.last = max(b.ledger.last, now)
	for _, h := range forget {
		h.forgotten = true
		delete(b.ledger.holds, h.rid)
	}
	return nil
}

// rotateIfDue rotates where the journal finds its segment large enough.
func (b *Book) rotateIfDue() {
	j, ok := b.journal.(interface{ Due(carried int) bool })
	if !ok || b.broken != nil || b.finished || !j.Due(b.carried+int(b.ledger.root.open)) {
		return
	}
	if err := b.rotate(); err != nil {
		b.logger.LogAttrs(b.ctx, slog.LevelError, "the book's segment could not be rotated", slog.Any("error", err))
		b.breakDown(err)
	}
}

// snapshot returns the lines a new segment begins with, and the reservations
// that are not in it.
func (l *ledger) snapshot(now, horizon int64) (carried []journal.Entry, forget []*hold) {
	held := map[*account]journal.Change{}
	var open, closed []journal.Entry
	for _, h := range l.holds {
		switch {
		case h.state == StateOpen:
			for _, a := range h.account.path {
				held[a], _ = held[a].Plus(h.sum)
			}
			open = append(open, h.carriedReserve())
		case h.named || h.state == StateRefunded || h.sum.Maybe > 0 || h.key != "" || len(h.proofs) > 0:
			if h.closed >= horizon {
				closed = append(closed, h.carry())
				continue
			}
			fallthrough
		default:
			forget = append(forget, h)
		}
	}
	head := journal.Entry{Kind: journal.Open, T: now, Opening: &journal.Opening{Book: l.book}}
	for _, scope := range slices.Sorted(maps.Keys(l.accounts)) {
		a := l.accounts[scope]
		rest, _ := a.sum.Plus(held[a].Negated())
		if scope == "" {
			head.Change = rest
		} else if rest != (journal.Change{}) {
			head.Opening.Balances = append(head.Opening.Balances, journal.Balance{Scope: scope, Change: rest})
		}
	}
	carried = append(carried, head)
	for _, limit := range l.limits() {
		carried = append(carried, journal.Entry{Kind: journal.Limit, T: now, Scope: limit.Scope, Carried: true,
			Cap: &journal.Cap{Kind: limit.Unit.String(), Max: limit.Max}})
	}
	byTime := func(a, b journal.Entry) int { return cmp.Or(cmp.Compare(a.T, b.T), cmp.Compare(a.RID, b.RID)) }
	slices.SortFunc(open, byTime)
	slices.SortFunc(closed, byTime)
	return append(append(carried, open...), closed...), forget
}

// carriedReserve is the reserve line of an open hold in a new segment.
func (h *hold) carriedReserve() journal.Entry {
	e := journal.Entry{Kind: journal.Reserve, RID: h.rid, T: h.opened, Change: h.sum, Scope: h.account.scope, Key: h.key,
		Model: h.model, Prices: h.prices, Named: h.named, Carried: true}
	if h.tries > 1 {
		e.Tries = h.tries
		e.Past = &journal.Past{State: h.state.String(), Each: h.each, EachCost: h.eachCost, Lost: h.lost}
	}
	return e
}

// carry is the line that remembers a closed hold in a new segment. It changes
// no balance: these are in the open line.
func (h *hold) carry() journal.Entry {
	return journal.Entry{Kind: journal.Carry, RID: h.rid, T: h.closed, Scope: h.account.scope, Key: h.key, Model: h.model,
		Prices: h.prices, Named: h.named, Carried: true, Tries: h.tries, Usage: h.usage,
		Past: &journal.Past{State: h.state.String(), Opened: h.opened, Each: h.each, EachCost: h.eachCost, Lost: h.lost,
			Confirmed: h.sum.Confirmed, ConfirmedCost: h.sum.ConfirmedCost, Assumed: h.sum.Assumed, AssumedCost: h.sum.AssumedCost,
			Maybe: h.sum.Maybe, Over: h.over, OverCost: h.overCost, Unsent: h.unsent, Reclaimed: h.reclaimed, Evidence: slices.Clone(h.proofs)}}
}

// carry folds such a line.
func (l *ledger) carry(e *journal.Entry) error {
	p := e.Past
	if p == nil || parseState(p.State) <= StateOpen {
		return fmt.Errorf("%w: carry line %d of %q names no closed state", ErrDamaged, e.Seq, e.RID)
	}
	if l.holds[e.RID] != nil {
		return fmt.Errorf("%w: reservation %q is carried twice", ErrDamaged, e.RID)
	}
	l.holds[e.RID] = &hold{rid: e.RID, key: e.Key, model: e.Model, prices: e.Prices, named: e.Named, account: l.account(e.Scope),
		state: parseState(p.State), opened: p.Opened, closed: e.T, each: p.Each, eachCost: p.EachCost, lost: p.Lost, tries: e.Tries,
		sum: journal.Change{Amount: p.Confirmed + p.Assumed, Cost: p.ConfirmedCost + p.AssumedCost, Confirmed: p.Confirmed,
			ConfirmedCost: p.ConfirmedCost, Assumed: p.Assumed, AssumedCost: p.AssumedCost, Maybe: p.Maybe},
		usage: e.Usage, over: p.Over, overCost: p.OverCost, unsent: p.Unsent, reclaimed: p.Reclaimed, proofs: p.Evidence}
	return nil
}

// limits returns the limits in force, by scope and unit.
func (l *ledger) limits() []Limit {
	limits := []Limit{}
	for _, scope := range slices.Sorted(maps.Keys(l.accounts)) {
		for u := TokenUnit; u <= RequestUnit; u++ {
			if c := l.accounts[scope].caps[u]; c.set {
				limits = append(limits, Limit{Unit: u, Max: c.max, Scope: scope})
			}
		}
	}
	return limits
}
