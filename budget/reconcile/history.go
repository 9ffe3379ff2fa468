package reconcile

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// longestCall is how long after it began an attempt can end: longer than any
// HTTP exchange lasts. It bounds the calls of a process that died, which are
// closed when somebody opens the book again, be it weeks later.
const longestCall = 24 * time.Hour

// call is what a book holds of one reservation.
type call struct {
	rid, model string
	opened     int64 // Unix microseconds of its reserve
	last       int64 // when its last attempt began
	closed     int64 // zero: it is open
	state      budget.State
	sum        journal.Change
	used       journal.Usage // what makes up sum.Confirmed
	evidence   bool          // a part of it was assumed, and corrected
	segment    int64         // the last that names it
}

// span is the time in which the call's attempts were billed, if they were: a
// provider books an attempt when it works on it.
func (c *call) span(now int64) (from, to int64) {
	if c.closed == 0 {
		return c.opened, max(c.opened, min(now, c.last+longestCall.Microseconds()))
	}
	return c.opened, min(c.closed, c.last+longestCall.Microseconds())
}

// history reads the entries of a book once, in order. It knows only the calls
// whose figures may still change; what is confirmed for good is handed on and
// forgotten.
type history struct {
	done    func(*call) error
	calls   map[string]*call
	book    string
	segment int64          // the newest seen
	opens   int            // open lines seen
	begun   int64          // time of the last of them
	since   int64          // all that was closed from here on is known
	unknown journal.Change // what was closed before, and is not known call by call
}

// newHistory knows nothing yet, and so that nothing came before.
func newHistory(done func(*call) error) *history {
	return &history{done: done, calls: map[string]*call{}, since: math.MinInt64}
}

func (h *history) add(e *journal.Entry) error {
	switch {
	case e.Kind == journal.Open:
		return h.open(e)
	case e.Kind == journal.Limit, e.Kind == journal.Seal:
		return nil
	}
	c := h.calls[e.RID]
	switch {
	case e.Carried && h.opens > 1:
		if c != nil {
			c.segment = h.segment
		}
		return nil
	case e.Kind == journal.Reserve:
		if c != nil { // its rid is used again, past the horizon
			if err := h.finish(c); err != nil {
				return err
			}
		}
		last := e.T
		if e.Carried && e.Past != nil {
			last = h.begun // when it was extended is pruned
		}
		h.enter(e, budget.StateOpen, e.T, last)
		return nil
	case e.Kind == journal.Carry && e.Past != nil:
		return h.carry(e)
	case c == nil:
		return fmt.Errorf("%w: entry %d is a %s of reservation %q, of which there is no other", budget.ErrDamaged, e.Seq, e.Kind, e.RID)
	}
	return h.change(c, e)
}

// enter notes a call. The strings of an entry share memory with many others.
func (h *history) enter(e *journal.Entry, state budget.State, opened, last int64) *call {
	c := &call{rid: strings.Clone(e.RID), model: strings.Clone(e.Model), opened: opened, last: last, state: state, sum: e.Change, segment: h.segment}
	h.calls[c.rid] = c
	return c
}

// open begins a segment. Refunds that the one before did not carry can never be
// reclaimed.
func (h *history) open(e *journal.Entry) error {
	if e.Opening == nil {
		return fmt.Errorf("%w: open line %d says nothing", budget.ErrDamaged, e.Seq)
	}
	if h.opens++; h.opens == 1 {
		h.book, h.unknown = strings.Clone(e.Opening.Book), e.Change
		if e.Change != (journal.Change{}) {
			h.since = e.T
		}
	}
	for rid, c := range h.calls {
		if c.state == budget.StateRefunded && c.segment < h.segment {
			delete(h.calls, rid)
		}
	}
	h.segment, h.begun = e.Opening.Segment, e.T
	return nil
}

// carry takes a call over whose own entries are pruned.
func (h *history) carry(e *journal.Entry) error {
	p := e.Past
	state := budget.StateSettled
	if p.State == budget.StateRefunded.String() {
		state = budget.StateRefunded
	}
	c := h.enter(e, state, p.Opened, e.T)
	c.closed, c.evidence = e.T, len(p.Evidence) > 0
	c.sum = journal.Change{Amount: p.Confirmed + p.Assumed, Confirmed: p.Confirmed, Assumed: p.Assumed, Maybe: p.Maybe,
		Cost: p.ConfirmedCost + p.AssumedCost, ConfirmedCost: p.ConfirmedCost, AssumedCost: p.AssumedCost}
	before := c.sum.Negated()
	if err := h.unknown.Add(&before); err != nil {
		return err
	}
	return h.settled(c)
}

// change adds a further entry of a call.
func (h *history) change(c *call, e *journal.Entry) error {
	if err := c.sum.Add(&e.Change); err != nil {
		return fmt.Errorf("%w: reservation %q: %w", budget.ErrDamaged, e.RID, err)
	}
	c.segment = h.segment
	if e.Confirmed > 0 {
		c.used.In, c.used.Out = c.used.In+e.Usage.In, c.used.Out+e.Usage.Out
		c.used.Cached, c.used.Write = c.used.Cached+e.Usage.Cached, c.used.Write+e.Usage.Write
	}
	switch e.Kind {
	case journal.Extend:
		c.last = e.T
	case journal.Settle:
		c.state, c.closed = budget.StateSettled, e.T
	case journal.Refund:
		c.state, c.closed = budget.StateRefunded, e.T
	case journal.Adjust:
		c.evidence = true
	case journal.Reclaim: // the job came back; whenever that was, it was before
		c.state, c.closed, c.last = budget.StateSettled, e.T, e.T
	}
	return h.settled(c)
}

// settled hands a call on if nothing can change its tokens any more.
func (h *history) settled(c *call) error {
	if c.state != budget.StateSettled || c.sum.Maybe != 0 {
		return nil
	}
	return h.finish(c)
}

func (h *history) finish(c *call) error {
	delete(h.calls, c.rid)
	return h.done(c)
}
