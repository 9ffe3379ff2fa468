package budget

import (
	"cmp"
	"errors"
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
	b.ledger.last++ // see forget
	now := b.now()
	if b.ledger.segments == 0 {
		b.ledger.book = b.batchID.String()
	}
	carried := b.ledger.snapshot(now, now-b.horizon.Microseconds())
	pos, err := b.journal.Rotate(b.ctx, b.pos, carried)
	if err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	b.pos, b.carried = pos, len(carried)
	b.ledger.segments = max(b.ledger.segments, 1)
	b.ledger.last = max(b.ledger.last, now)
	return nil
}

// forgettable reports whether nothing needs h any more: it is plain, or it was
// closed before horizon.
func (h *life) forgettable(horizon int64) bool {
	return h.state != StateOpen && (h.closed < horizon || h.plain())
}

// plain reports whether h is closed, never had an uncertain figure, and its rid
// is one we made.
func (h *life) plain() bool {
	return h.state == StateSettled && !h.named && h.sum.Maybe == 0 && len(h.proofs) == 0
}

// forgetEach is how many bytes are put away until it pays to look for what can be
// forgotten: some 16,000 closes, or fewer late calls with much evidence. What
// was closed after the last look stays for one more.
const forgetEach = 1 << 20

// tidy keeps the ledger and the segment in proportion to what must be known,
// at a cost in proportion to the calls made.
func (b *Book) tidy() {
	if b.broken != nil || b.finished {
		return
	}
	if b.due != nil && b.pos >= b.notBefore && b.due(b.carried+int(b.ledger.root.open)) {
		err := b.rotate()
		switch {
		case errors.Is(err, journal.ErrPoisoned):
			b.breakDown(err)
		case err != nil: // the old segment is in charge, and grows on
			b.notBefore = b.pos + retryRotation
			b.logger.LogAttrs(b.ctx, slog.LevelError, "the book's segment could not be rotated; it grows on", slog.Any("error", err))
		}
	}
	if b.ledger.closed.added >= forgetEach {
		b.ledger.forget(b.now() - b.horizon.Microseconds())
	}
}

// retryRotation is how many entries later a rotation that failed is tried again.
const retryRotation = 10_000

// snapshot returns the lines a new segment begins with.
func (l *ledger) snapshot(now, horizon int64) []journal.Entry {
	head := journal.Entry{Kind: journal.Open, T: now, Opening: &journal.Opening{Book: l.book}}
	closed := l.closedBalances()
	head.Change = closed[""]
	for _, scope := range slices.Sorted(maps.Keys(closed)) {
		if scope != "" && closed[scope] != (journal.Change{}) {
			head.Opening.Balances = append(head.Opening.Balances, journal.Balance{Scope: scope, Change: closed[scope]})
		}
	}
	limits, open, late := l.limits(), l.openHolds(), l.late(horizon)
	carried := append(make([]journal.Entry, 0, 1+len(limits)+len(open)+len(late)), head)
	for _, limit := range limits {
		carried = append(carried, journal.Entry{Kind: journal.Limit, T: now, Scope: limit.Scope, Carried: true,
			Cap: &journal.Cap{Kind: limit.Unit.String(), Max: limit.Max, Told: int64(l.accounts[limit.Scope].caps[limit.Unit].told)}})
	}
	for _, h := range open {
		carried = append(carried, h.carriedReserve())
	}
	for i := range late {
		h, _ := l.closed.get(late[i].at, l.numbered)
		carried = append(carried, h.carry())
	}
	return carried
}

// closedAt says when a reservation was closed, and where it is put away.
type closedAt struct {
	t   int64
	rid string
	at  ref
}

// late returns the closed reservations that a late call may name, in the order
// of their last entries. Of many, these are quicker to sort than the lines.
func (l *ledger) late(horizon int64) (late []closedAt) {
	for i := range l.closed.blocks {
		l.closed.each(i, l.numbered, func(at ref, h *life) {
			if !h.forgettable(horizon) {
				late = append(late, closedAt{h.closed, h.rid, at})
			}
		})
	}
	slices.SortFunc(late, func(a, b closedAt) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.rid, b.rid)) })
	return late
}

// closedBalances is what stands on each scope without what is open.
func (l *ledger) closedBalances() map[string]journal.Change {
	closed := make(map[string]journal.Change, len(l.accounts))
	for scope, a := range l.accounts {
		closed[scope] = a.sum
	}
	for h := l.open.next; h != &l.open; h = h.next {
		for _, a := range h.account.path {
			closed[a.scope], _ = closed[a.scope].Plus(h.sum.Negated())
		}
	}
	return closed
}

// contradictions compares a line that a later segment begins with with what
// the entries before it add up to.
func (l *ledger) contradictions(e *journal.Entry) (found []error) {
	wrong := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	h := l.find(e.RID)
	switch {
	case e.Kind == journal.Open && e.Opening != nil:
		said := map[string]journal.Change{"": e.Change}
		for _, b := range e.Opening.Balances {
			said[b.Scope] = b.Change
		}
		for scope, have := range l.closedBalances() {
			if have != said[scope] {
				wrong("segment %d begins with %d tokens closed on scope %q; the entries before it add up to %d", e.Opening.Segment, said[scope].Amount, scope, have.Amount)
			}
			delete(said, scope)
		}
		for scope := range said {
			wrong("segment %d begins with a balance on scope %q, of which there is no entry", e.Opening.Segment, scope)
		}
	case e.Kind != journal.Reserve && e.Kind != journal.Carry:
	case h == nil:
		wrong("reservation %q is carried, and there is no entry of it", e.RID)
	case e.Kind == journal.Reserve && (h.state != StateOpen || h.sum != e.Change):
		wrong("reservation %q is carried as open with %d tokens; by its entries it is %s with %d", e.RID, e.Amount, h.state, h.sum.Amount)
	case e.Kind == journal.Carry && (e.Past == nil || h.state.String() != e.Past.State || h.sum.Confirmed != e.Past.Confirmed || h.sum.Assumed != e.Past.Assumed):
		wrong("reservation %q is carried otherwise than its entries leave it: %s with %d confirmed, %d assumed", e.RID, h.state, h.sum.Confirmed, h.sum.Assumed)
	}
	return found
}

// carriedReserve is the reserve line of an open hold in a new segment.
func (h *life) carriedReserve() journal.Entry {
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
func (h *life) carry() journal.Entry {
	return journal.Entry{Kind: journal.Carry, RID: h.rid, T: h.closed, Scope: h.account.scope, Key: h.key, Model: h.model,
		Prices: h.prices, Named: h.named, Carried: true, Tries: h.tries, Usage: h.usage,
		Past: &journal.Past{State: h.state.String(), Opened: h.opened, Each: h.each, EachCost: h.eachCost, Lost: h.lost,
			Confirmed: h.sum.Confirmed, ConfirmedCost: h.sum.ConfirmedCost, Assumed: h.sum.Assumed, AssumedCost: h.sum.AssumedCost,
			Maybe: h.sum.Maybe, LastCost: h.lastCost, Held: h.held, HeldCost: h.heldCost, Unsent: h.unsent, Evidence: slices.Clone(h.proofs)}}
}

// carry folds such a line.
func (l *ledger) carry(hash uint64, known *hold, e *journal.Entry, u *undo) error {
	p := e.Past
	if p == nil || parseState(p.State) <= StateOpen {
		return fmt.Errorf("%w: carry line %d of %q names no closed state", ErrDamaged, e.Seq, e.RID)
	}
	if known != nil {
		return fmt.Errorf("%w: reservation %q is carried twice", ErrDamaged, e.RID)
	}
	proofs := slices.Clone(p.Evidence)
	for i := range proofs {
		proofs[i].Key = l.own(proofs[i].Key)
	}
	u.h = &hold{hash: hash, life: life{rid: l.own(e.RID), key: l.own(e.Key), model: l.name(e.Model), prices: l.name(e.Prices), named: e.Named,
		account: l.account(e.Scope), opened: p.Opened, each: p.Each, eachCost: p.EachCost, standing: standing{state: parseState(p.State),
			closed: e.T, lost: p.Lost, tries: e.Tries,
			sum: journal.Change{Amount: p.Confirmed + p.Assumed, Cost: p.ConfirmedCost + p.AssumedCost, Confirmed: p.Confirmed,
				ConfirmedCost: p.ConfirmedCost, Assumed: p.Assumed, AssumedCost: p.AssumedCost, Maybe: p.Maybe},
			usage: e.Usage, lastCost: p.LastCost, held: p.Held, heldCost: p.HeldCost, unsent: p.Unsent, proofs: proofs}}}
	u.h.at = l.closed.add(&u.h.life)
	l.rids.put(u.h.hash, u.h.at)
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
