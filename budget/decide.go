package budget

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tollbook/tollbook/journal"
)

// What each call comes to, in the leader: the rules of a reservation are in
// state.go, those of limits in ledger.go; here they meet the book.

// decide finds out what an op comes to and applies it to the ledger; commit
// makes it durable or rollback takes it back.
func (b *Book) decide(o *op) {
	o.wrote, o.got, o.receipt, o.err = false, nil, Receipt{}, nil
	from := len(b.entries)
	h, err := b.decision(o)
	if err == nil && len(b.entries) > from {
		if err = b.applyFrom(from, h); err != nil {
			err = b.explain(o, err)
		} else if o.kind == opReserve {
			err = b.takenAgain(o)
		}
		o.wrote = err == nil
	}
	switch {
	case err != nil:
		o.err = err
		return
	case o.kind == opReserve:
		if o.wrote {
			o.got = b.undos[len(b.undos)-1].h
			o.opened, o.granted = o.got.opened, o.got.each
		}
	case h != nil:
		o.receipt = h.receipt()
		o.receipt.Booked = o.wrote
	}
	b.freed = b.freed || o.wrote && o.kind != opReserve && o.kind != opExtend
}

// takenAgain takes a reserve back whose rid the book still remembers: the
// journal may hold such a thing, since books forget, and this one has not.
func (b *Book) takenAgain(o *op) error {
	old := b.undos[len(b.undos)-1].old
	if old == nil || !b.inHorizon(old) {
		return nil
	}
	b.unapply(len(b.undos) - 1)
	b.entries = b.entries[:len(b.entries)-1]
	return b.known(o, &old.life)
}

// explain says in the caller's terms why an entry that was decided could not be
// applied: the rid is known, or a sum would leave 64 bits.
func (b *Book) explain(o *op, err error) error {
	if o.kind == opReserve {
		if known := b.ledger.find(o.rid); known != nil {
			return b.known(o, &known.life)
		}
	}
	if errors.Is(err, journal.ErrOverflow) {
		return &InvalidError{What: opNames[o.kind], Reason: "the balance would be more than 64 bits hold"}
	}
	return err
}

// decision appends to b.entries what an op would write.
func (b *Book) decision(o *op) (h *hold, err error) {
	switch o.kind {
	case opReserve:
		return nil, b.reserve(o)
	case opLimit:
		return nil, b.setLimit(*o.limit)
	case opCancel:
		b.cancel(o)
		return nil, nil
	case opRead:
		o.read(b.ledger)
		return nil, nil
	case opFinish:
		b.finished, b.freed = true, true // those who wait are told
		return nil, nil
	}
	if h = b.named(o); h == nil {
		if o.kind == opClose && o.hold != nil {
			return nil, nil // it was open, and what is open is not forgotten: it is closed
		}
		return nil, o.unknown()
	}
	from := len(b.entries)
	switch o.kind {
	case opExtend:
		err = b.extend(h, o)
	case opSettle:
		b.entries, err = h.settle(b.entries, o.usage, b.cost(h, &o.usage))
	case opRefund:
		b.entries, err = h.refund(b.entries, o.last, o.why)
	case opClose:
		if h.state == StateOpen {
			b.entries, err = h.settle(b.entries, Usage{Why: "closed without a result"}, money{})
		}
	case opReclaim:
		b.entries = h.reclaim(b.entries)
	case opAdjust:
		b.entries, err = h.adjust(b.entries, *o.evidence, b.cost(h, &o.evidence.Usage))
	}
	switch {
	case len(b.entries) == from:
		return h, err
	case !b.inHorizon(h): // memory may know it still, and the segment not any more
		err = o.unknown()
	case b.finished:
		err = fmt.Errorf("%w: %s of %q", b.admitting(), opNames[o.kind], o.rid)
	default:
		return h, err
	}
	b.entries = b.entries[:from]
	return nil, err
}

func (o *op) unknown() error {
	return fmt.Errorf("%w: %s of %q: no such rid in the book, or it is past the horizon", ErrUnknown, opNames[o.kind], o.rid)
}

// inHorizon reports whether a rotation by now would carry h, if anybody needs it.
func (b *Book) inHorizon(h *hold) bool {
	return h.state == StateOpen || h.closed >= b.time-b.horizon.Microseconds()
}

// named returns the reservation that an op is about, or nil. A handle knows its
// hold, as long as that is its own, and never reaches a new life of its rid.
func (b *Book) named(o *op) *hold {
	if h := o.hold; h != nil && h.state != 0 && h.opened == o.opened && h.rid == o.rid {
		return h
	}
	h := b.ledger.find(o.rid)
	if h != nil && o.hold != nil && h.opened != o.opened {
		return nil
	}
	return h
}

// applyFrom stamps and applies the entries from index i on, all or none.
func (b *Book) applyFrom(i int, h *hold) error {
	undone := len(b.undos)
	for j := i; j < len(b.entries); j++ {
		e := &b.entries[j]
		e.T = b.time
		if h != nil {
			e.RID = h.rid
		}
		hash := uint64(0)
		if h == nil && e.RID != "" {
			hash = b.ledger.hash(e.RID)
			h = b.ledger.hashed(hash, e.RID)
		}
		b.undos = slices.Grow(b.undos, 1)[:len(b.undos)+1]
		if err := b.ledger.apply(hash, h, e, &b.undos[len(b.undos)-1]); err != nil {
			b.undos = b.undos[:len(b.undos)-1]
			b.unapply(undone)
			b.entries = b.entries[:i]
			return err
		}
	}
	return nil
}

// reserve decides a reserve, or puts it into the waiting line. That the rid is
// new is left to apply, which has to look it up; only what is refused here must
// be told first if it is known.
func (b *Book) reserve(o *op) error {
	r := &o.request
	a, ask := b.ledger.nearest(r.Scope), b.ask(o, r.Tokens)
	full, err := b.admitted(o, a, ask)
	if r.Least > 0 && errors.Is(err, ErrExhausted) {
		ask = b.reduced(o, a)
		full, err = b.admitted(o, a, ask)
	}
	if err == nil {
		var e *journal.Entry
		b.entries, e = next(b.entries, journal.Reserve)
		e.RID, e.Change, e.Scope, e.Key, e.Model, e.Prices, e.Named = o.rid, ask, r.Scope, r.Key, r.Model, o.prices, r.RID != ""
		return nil
	}
	if h := b.ledger.find(o.rid); h != nil && b.inHorizon(h) {
		return b.known(o, &h.life)
	}
	if full != nil && r.MaxWait > 0 {
		b.wait(o, full, err)
	}
	return err
}

// admitted returns nil if the reserve may be booked. full is the account that
// others hold full, if that is all that is in the way.
func (b *Book) admitted(o *op, a *account, ask journal.Change) (full *account, err error) {
	r := &o.request
	if err := b.admitting(); err != nil {
		return nil, err
	}
	if err := b.ledger.room(r.Scope); err != nil {
		return nil, err
	}
	if r.Key != "" {
		if other := b.ledger.keys[r.Key]; other != nil {
			return nil, fmt.Errorf("%w: key %q is served by reservation %q", ErrInFlight, r.Key, other.rid)
		}
	}
	if !o.priced && a.capped(CostUnit) {
		return nil, fmt.Errorf("%w: scope %q has a money limit and the price of model %q is not known; give Request.Cost or a Pricer that knows it", ErrNoPrice, r.Scope, r.Model)
	}
	if refused := admit(a, ask, nil); refused != nil {
		if refused.Busy {
			full = b.ledger.accounts[refused.Scope]
		}
		return full, refused
	}
	if o.waitsAt == nil {
		if full = a.crowded(); full != nil {
			return full, full.behind(ask)
		}
	}
	return nil, nil
}

// known answers a second reserve of a rid, which is never a second hold: h is
// what came of the first, be it with fewer tokens than were asked.
func (b *Book) known(o *op, h *life) error {
	r := &o.request
	ask := b.ask(o, r.Tokens)
	if r.Least > 0 {
		ask = b.ask(o, min(max(r.Least, h.each), r.Tokens))
	}
	switch {
	case h.each != ask.Amount || h.eachCost != ask.Cost || h.account.scope != r.Scope:
		return fmt.Errorf("%w: reservation %q is %s with %d tokens, %d picodollars on scope %q; asked are %d, %d on %q",
			ErrConflict, h.rid, h.state, h.each, h.eachCost, h.account.scope, r.Tokens, r.Cost, r.Scope)
	case h.state == StateOpen:
		return fmt.Errorf("%w: reservation %q; take it over with Extend if its owner is gone", ErrInFlight, h.rid)
	}
	return &ClosedError{RID: h.rid, State: h.state, Call: "reserve"}
}

func (b *Book) extend(h *hold, o *op) (err error) {
	from := len(b.entries)
	if b.entries, err = h.extend(b.entries, o.last, o.why); err != nil {
		return err
	}
	if err = b.admitting(); err == nil {
		if refused := admit(h.account, b.entries[from].Change, &h.sum); refused != nil {
			err = refused
		}
	}
	if err != nil {
		b.entries = b.entries[:from]
	}
	return err
}

// admitting returns why the book admits nothing more, if so.
func (b *Book) admitting() error {
	if b.broken != nil {
		return b.broken
	}
	if b.finished {
		return ErrBookClosed
	}
	return b.space.low
}

func (b *Book) setLimit(l Limit) error {
	if b.finished {
		return b.admitting()
	}
	if err := b.ledger.room(l.Scope); err != nil {
		return err
	}
	limit := capacity{}
	if a := b.ledger.accounts[l.Scope]; a != nil {
		limit = a.caps[l.Unit]
	}
	if limit.set == !l.Unlimited && (l.Unlimited || limit.max == l.Max) {
		if errors.Is(b.broken, journal.ErrPoisoned) {
			return b.broken // an earlier change, told as failed, may be what the next opening finds
		}
		return nil
	}
	e := journal.Entry{Kind: journal.Limit, Scope: l.Scope, Cap: &journal.Cap{Kind: l.Unit.String(), Max: l.Max, Told: int64(b.ledger.stillTold(l)), Unlimited: l.Unlimited}}
	if l.Unlimited {
		e.Cap.Max = 0
	}
	b.entries = append(b.entries, e)
	return nil
}

// cost prices usage for a reservation: by what the caller knows, else by the
// book's table. A reservation that holds no money costs none.
func (b *Book) cost(h *hold, u *Usage) money {
	switch {
	case u.Cost > 0 || h.eachCost == 0 || u.free():
		return money{u.Cost, true}
	case b.pricer == nil || !u.Known():
		return money{}
	}
	cost, err := b.pricer.Cost(h.model, *u)
	return money{cost, err == nil && cost >= 0 && cost <= MaxCost}
}
