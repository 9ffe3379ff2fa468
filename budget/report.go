package budget

import (
	"cmp"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/tollbook/tollbook/journal"
)

// Figures are the four parts of a balance: Net = Confirmed + Assumed + Held.
type Figures struct {
	Net       int64 // counts against limits
	Confirmed int64 // spent as the provider reported it
	Assumed   int64 // spent as far as must be assumed
	Held      int64 // reserved and still open
}

// Balance is what stands on a scope, all below it included.
type Balance struct {
	Tokens   Figures
	Cost     Figures // picodollars
	Requests int64   // attempts that left, or may have left
	Maybe    int64   // attempts that may have been billed and stand at their hold or an estimate
	Open     int64   // reservations
}

func balanceOf(a *account) Balance {
	c := a.sum
	return Balance{
		Tokens:   Figures{c.Amount, c.Confirmed, c.Assumed, c.Amount - c.Confirmed - c.Assumed},
		Cost:     Figures{c.Cost, c.ConfirmedCost, c.AssumedCost, c.Cost - c.ConfirmedCost - c.AssumedCost},
		Requests: c.Requests, Maybe: c.Maybe, Open: a.open,
	}
}

// Report is the state of a book at one moment, as its entries add up.
type Report struct {
	Book    string // its id
	Seq     uint64 // position of its last durable entry, which only grows
	Balance        // of the whole book
	Scopes  []ScopeReport
	Limits  []LimitReport
	Open    []OpenReservation // oldest first
	Orphans []Orphan          // found at this opening
	Waiting int               // reserves waiting for room
	// Recovery is what Open found and mended after a crash; of a book over a
	// journal of the caller's it is zero.
	Recovery journal.Recovery

	// Since this opening (of a fold: in all its entries):
	Overruns      int64            // reservations that used more than they held
	OverrunTokens int64            // and by how much
	Unknown       map[string]int64 // attempts charged at an assumed figure, by reason; past 4,096 reasons, by "other"
	Broken        error            // why the book admits nothing more, or nil
}

// ScopeReport is the balance of one scope below the root.
type ScopeReport struct {
	Scope string
	Balance
}

// LimitReport is a limit and what it has left: Max - Net.
type LimitReport struct {
	Limit
	Net, Held, Free int64
	Told            int // percent of the highest soft limit told; zero is none
}

// OpenReservation is a reservation that is not closed yet.
type OpenReservation struct {
	RID, Scope, Key, Model string
	Tokens, Cost           int64 // held, all attempts together
	Attempts               int64
	Since                  time.Time
}

// Orphan is a reservation found open when the book was opened.
type Orphan struct {
	OpenReservation
	Policy OrphanPolicy // what was done about it
}

// String returns "assume", "keep" or "refund".
func (p OrphanPolicy) String() string {
	switch p {
	case OrphanKeep:
		return "keep"
	case OrphanRefund:
		return "refund"
	}
	return "assume"
}

// Report returns the state of the book after the last durable batch.
func (b *Book) Report() Report {
	var r Report
	o := b.op(opRead)
	o.read = func(l *ledger) {
		r = l.report()
		r.Seq = uint64(b.pos)
		r.Orphans = slices.Clone(b.orphans)
		r.Waiting = len(b.waiting)
		r.Broken, r.Recovery = b.broken, b.recovery
	}
	b.do(b.ctx, o)
	b.done(o)
	return r
}

// Fold adds up entries as they are read from a journal, without a guard over
// it: the state of a book that another process may hold. It stops at the first
// error of the sequence and at the first entry that cannot be.
func Fold(entries iter.Seq2[journal.Entry, error]) (Report, error) {
	l := newLedger()
	for e, err := range entries {
		if err == nil {
			err = l.fold(&e)
		}
		if err != nil {
			return l.report(), err
		}
	}
	return l.report(), nil
}

func (l *ledger) report() Report {
	r := Report{Book: l.book, Seq: l.seq, Balance: balanceOf(l.root), Overruns: max(0, l.stats.overruns), OverrunTokens: max(0, l.stats.overrunTokens), Unknown: map[string]int64{}}
	for why, n := range l.stats.unknown {
		if *n > 0 {
			r.Unknown[why] = *n
		}
	}
	for _, scope := range slices.Sorted(maps.Keys(l.accounts)) {
		if scope != "" {
			r.Scopes = append(r.Scopes, ScopeReport{scope, balanceOf(l.accounts[scope])})
		}
	}
	for _, limit := range l.limits() {
		a := l.accounts[limit.Scope]
		net := limit.Unit.of(a.sum)
		r.Limits = append(r.Limits, LimitReport{Limit: limit, Net: net, Held: net - limit.Unit.spent(a.sum), Free: limit.Max - net, Told: int(a.caps[limit.Unit].told)})
	}
	for _, h := range l.openHolds() {
		r.Open = append(r.Open, h.public())
	}
	return r
}

// openHolds returns the open reservations, oldest first.
func (l *ledger) openHolds() []*hold {
	var open []*hold
	for h := l.open.next; h != &l.open; h = h.next {
		open = append(open, h)
	}
	slices.SortStableFunc(open, func(a, b *hold) int { return cmp.Compare(a.opened, b.opened) })
	return open
}

func (h *life) public() OpenReservation {
	return OpenReservation{RID: h.rid, Scope: h.account.scope, Key: h.key, Model: h.model, Tokens: h.sum.Amount, Cost: h.sum.Cost,
		Attempts: h.tries, Since: time.UnixMicro(h.opened)}
}

// closedOp is what the log tells of a call that closed or corrected something.
type closedOp struct {
	kind    opKind
	receipt Receipt
}

func (b *Book) worthLogging(o *op) bool {
	return o.wrote && o.kind != opReserve && o.kind != opExtend && o.kind != opLimit &&
		(o.receipt.Overrun > 0 || o.receipt.OverrunCost > 0 || b.logger.Enabled(b.ctx, slog.LevelDebug))
}

func (b *Book) log(c closedOp) {
	level, text, r := slog.LevelDebug, opNames[c.kind], &c.receipt
	if r.Overrun > 0 || r.OverrunCost > 0 {
		level, text = slog.LevelWarn, "a call used more than it held"
	}
	b.logger.LogAttrs(b.ctx, level, text, slog.String("rid", r.RID), slog.String("state", r.State.String()), slog.Int64("confirmed", r.Confirmed),
		slog.Int64("assumed", r.Assumed), slog.Int64("overrun", r.Overrun), slog.Int64("attempts", r.Attempts))
}
