package budget_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// act is a call of a caller's: what it is, and where the reservation stands
// after it, told so or not.
type act struct {
	what  string
	t     *ticket
	asked int64 // of the limits
	do    func(*budget.Book) (budget.Receipt, error)
	then  standing
	maybe []standing // if it failed: these, or as before
}

// learn takes the answer of a call.
func (w *world) learn(c *act, r budget.Receipt, err error, alone bool) {
	w.did[c.what] = true
	w.say("%s %.12q: %v", c.what, c.t.key, err)
	writes := len(c.maybe) > 0
	switch {
	case errors.Is(err, budget.ErrUnknown) && w.past(c.t) && (writes || c.t.of != w.book):
		w.did["too late"] = true
	case err == nil && writes && w.past(c.t):
		fail("%s of %.20q, past the horizon", c.what, c.t.key)
	case err == nil:
		if w.broken && (c.what == "reserve" || c.what == "extend") {
			fail("%s was admitted after a close could not be written (I5)", c.what)
		}
		c.t.may = []standing{c.then}
		if writes {
			c.t.last = w.clock.UnixMicro()
		}
		if c.then.state > budget.StateOpen && writes {
			c.t.closed = c.do
		}
		if c.asked > 0 {
			if err := w.know.overAdmitted(c.t.scope); err != nil {
				fail("%s: %v", c.what, err)
			}
		}
		if !writes && r.Booked {
			fail("%s of %.20q is booked again", c.what, c.t.key)
		}
		if r.RID != "" {
			w.sameReceipt(c.t, r, nil)
		}
	case errors.Is(err, budget.ErrBroken):
	case errors.Is(err, budget.ErrExhausted), errors.Is(err, budget.ErrBusy):
		if c.asked == 0 || alone && !w.know.couldRefuse(c.t.scope, c.asked) {
			fail("%s of %d refused: %v", c.what, c.asked, err)
		}
	default:
		w.excuse(c.what, err)
		if !w.poisoned && (!errors.Is(err, journal.ErrFull) || errors.Is(err, journal.ErrPoisoned)) {
			c.t.may, c.t.closed = append(c.t.may, c.maybe...), nil
		}
	}
}

// answered is learn for calls that came to an answer together.
func (w *world) answered(calls []*act, receipts []budget.Receipt, errs []error) {
	for i, c := range calls {
		w.learn(c, receipts[i], errs[i], len(calls) == 1)
	}
	for i, err := range errs {
		w.poisoned = w.poisoned || errors.Is(err, journal.ErrPoisoned)
		w.broken = w.broken || err != nil && slices.Contains([]string{"settle", "refund", "close"}, calls[i].what)
		if errors.Is(err, journal.ErrFull) && w.rng.IntN(4) == 0 {
			w.disk.plan = []strike{{powerCut, 1}} // what was told is to hold now
		}
	}
}

// make runs one call.
func (w *world) make(c *act) {
	r, err := c.do(w.book)
	w.answered([]*act{c}, []budget.Receipt{r}, []error{err})
}

// together runs calls so that all but one or two of them meet in one batch.
func (w *world) together(calls []*act) {
	gate := make(chan struct{})
	w.file.gate = gate
	receipts, errs := make([]budget.Receipt, len(calls)), make([]error, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { receipts[i], errs[i] = c.do(w.book) })
		synctest.Wait() // in order, and the first one to write is held back
	}
	w.file.gate = nil
	close(gate)
	wg.Wait()
	w.did["together"] = true
	w.say("together:")
	w.answered(calls, receipts, errs)
}

func (w *world) some(n int64) int64 { return 1 + w.rng.Int64N(n) }

// billed is what the provider bills for an attempt, often nothing.
func (w *world) billed(hold int64) int64 {
	if w.rng.IntN(3) == 0 {
		return 0
	}
	return w.some(hold)
}

func (w *world) reserve() *act {
	k := w.know
	k.made++
	t := &ticket{key: fmt.Sprintf("k%d", k.made), hold: w.some(300), scope: []string{"", "a", "a/b", "c"}[w.rng.IntN(4)], may: []standing{{}}}
	if w.rng.IntN(3) == 0 {
		t.key += strings.Repeat("-", 200)
	}
	request := budget.Request{Key: t.key, Scope: t.scope, Tokens: t.hold, Cost: 1000 * t.hold}
	if t.named = w.rng.IntN(2) == 0; t.named {
		t.rid = fmt.Sprintf("r%d", k.made)
		request.RID = t.rid
	}
	k.tickets = append(k.tickets, t)
	unsent := standing{state: budget.StateOpen, tries: 1}
	sent := unsent
	sent.last = w.billed(t.hold)
	sent.bill = sent.last
	return &act{what: "reserve", t: t, asked: t.hold, then: sent, maybe: []standing{unsent}, do: func(b *budget.Book) (budget.Receipt, error) {
		r, err := b.Reserve(context.Background(), request)
		if err == nil {
			t.rid, t.handle, t.of = r.RID(), r, b
		}
		return budget.Receipt{}, err
	}}
}

func usage(tokens int64) budget.Usage {
	if tokens == 0 {
		return budget.NothingUsed
	}
	return budget.Usage{Input: tokens}
}

// touch is some call that a caller can make on a ticket.
func (w *world) touch(t *ticket) *act {
	s, _ := t.is()
	ctx, byHandle := context.Background(), w.rng.IntN(2) == 0
	r := func(b *budget.Book) *budget.Reservation { return t.reach(b, byHandle) }
	c := &act{t: t, then: s}
	closing := func(what string, then standing, do func(*budget.Book) (budget.Receipt, error)) *act {
		c.what, c.do, c.then, c.maybe = what, do, then, append(c.maybe, then)
		return c
	}
	switch choice := w.rng.IntN(8); {
	case s.state == budget.StateOpen && choice < 3:
		outcome := []budget.Outcome{budget.MaybeBilled, budget.NotBilled, budget.NeverSent}[w.rng.IntN(3)]
		if s.last > 0 {
			outcome = budget.MaybeBilled
		}
		if outcome == budget.MaybeBilled {
			c.asked = t.hold
		}
		unsent := s.extended(outcome == budget.MaybeBilled)
		closing("extend", unsent, func(b *budget.Book) (budget.Receipt, error) {
			return budget.Receipt{}, r(b).Extend(ctx, outcome, "again")
		})
		c.then.last = w.billed(t.hold)
		c.then.bill += c.then.last
	case s.state == budget.StateOpen && choice < 5:
		closing("settle", s.settled(t.hold), func(b *budget.Book) (budget.Receipt, error) { return r(b).Settle(ctx, usage(s.last)) })
	case s.state == budget.StateOpen && choice < 6 && s.last == 0:
		closing("refund", s.refunded(t.hold), func(b *budget.Book) (budget.Receipt, error) {
			return r(b).Refund(ctx, budget.NotBilled, "429")
		})
	case s.state == budget.StateOpen:
		closing("close", s.assumedClosed(t.hold), func(b *budget.Book) (budget.Receipt, error) { return budget.Receipt{}, r(b).Close() })
	case s.state == budget.StateRefunded && choice < 3:
		s.last = w.some(t.hold)
		s.bill += s.last
		closing("reclaim", s.reclaimed(t.hold), func(b *budget.Book) (budget.Receipt, error) { return r(b).Reclaim(ctx) })
	case s.state == budget.StateRefunded && choice < 6: // two entries, which a crash may part
		s.last = w.some(t.hold)
		s.bill += s.last
		c.maybe = []standing{s.reclaimed(t.hold)}
		closing("settle late", s.reclaimed(t.hold).learnt(t.hold), func(b *budget.Book) (budget.Receipt, error) { return r(b).Settle(ctx, usage(s.last)) })
	case s.unsure && choice < 3:
		closing("settle late", s.learnt(t.hold), func(b *budget.Book) (budget.Receipt, error) { return r(b).Settle(ctx, usage(s.last)) })
	case s.state == budget.StateSettled && choice < 6 && (s.unsure || len(s.lost) > 0):
		used := s.last
		if len(s.lost) > 0 {
			used = s.lost[0]
		}
		t.evidence++
		evidence := budget.Evidence{Key: fmt.Sprintf("proof %d", t.evidence), Usage: usage(used)}
		closing("adjust", s.proved(t.hold), func(b *budget.Book) (budget.Receipt, error) { return r(b).Adjust(ctx, evidence) })
	case t.closed != nil && choice < 7: // says what it said, and changes nothing
		c.what, c.do = "repeat", t.closed
	default: // the one that was deferred
		c.what, c.do = "close again", func(b *budget.Book) (budget.Receipt, error) { return budget.Receipt{}, r(b).Close() }
	}
	return c
}

// horizon is the book's.
const horizon = 14 * 24 * time.Hour

// past reports whether a ticket is closed, and past the horizon.
func (w *world) past(t *ticket) bool {
	s, _ := t.is()
	return s.state > budget.StateOpen && w.clock.Sub(time.UnixMicro(t.last)) > horizon
}

// known reports whether the book can name a ticket: it was reserved with this
// very book, or a rotation carries it.
func (w *world) known(t *ticket) bool {
	s, _ := t.is()
	return t.of == w.book || !w.past(t) && (t.named || s.state != budget.StateSettled || s.assumed > 0)
}

// touchable returns the tickets that somebody can act on: where they stand is
// certain, and so is whether the book can name them, or they are past the horizon.
func (w *world) touchable() (some []*ticket) {
	for _, t := range w.know.tickets {
		if s, certain := t.is(); certain && s.state != 0 && (w.known(t) || w.past(t)) {
			some = append(some, t)
		}
	}
	return some
}

// any is some call on a ticket, or on a new one.
func (w *world) any(taken []*act) *act {
	some := slices.DeleteFunc(w.touchable(), func(t *ticket) bool {
		return slices.ContainsFunc(taken, func(c *act) bool { return c.t == t })
	})
	if len(some) == 0 || w.rng.IntN(3) == 0 {
		return w.reserve()
	}
	return w.touch(some[w.rng.IntN(len(some))])
}
