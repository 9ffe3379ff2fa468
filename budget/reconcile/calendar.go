package reconcile

import (
	"sort"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// calendar sorts the calls of a book into the buckets of a bill. A call whose
// time lies on both sides of a boundary ties the buckets together: on which
// side it was billed nobody knows.
type calendar struct {
	*bill
	skew    int64 // of Options, in microseconds
	lag     int64
	now     int64
	starts  []int64 // of the buckets
	ends    []int64
	gaps    []int // before each bucket
	cells   map[place]*cell
	tied    map[place]bool // to the next bucket
	outside figures        // of calls that no bucket covers
}

// place is a bucket of one model of the book.
type place struct {
	model  string
	bucket int
}

// cell is what the book holds in one place.
type cell struct {
	figures
	partly  figures // the part of closed calls that reach beyond what the report covers
	assumed []*call // whose figures evidence can replace
	open    []*call
}

// figures are sums over calls.
type figures struct {
	journal.Change
	used     journal.Usage // what makes up Confirmed
	calls    int64
	unpriced int64 // calls that hold tokens and no money
}

func (f *figures) add(c *call) error {
	err := f.Add(&c.sum)
	f.used.In, f.used.Out = f.used.In+c.used.In, f.used.Out+c.used.Out
	f.used.Cached, f.used.Write = f.used.Cached+c.used.Cached, f.used.Write+c.used.Write
	f.calls++
	if c.sum.Amount > 0 && c.sum.Cost == 0 {
		f.unpriced++
	}
	return err
}

func (f *figures) plus(g *figures) error {
	err := f.Add(&g.Change)
	f.used.In, f.used.Out = f.used.In+g.used.In, f.used.Out+g.used.Out
	f.used.Cached, f.used.Write = f.used.Cached+g.used.Cached, f.used.Write+g.used.Write
	f.calls, f.unpriced = f.calls+g.calls, f.unpriced+g.unpriced
	return err
}

// of are the figures in one unit.
func (f *figures) of(u budget.Unit) budget.Figures {
	if u == budget.CostUnit {
		return budget.Figures{Net: f.Cost, Confirmed: f.ConfirmedCost, Assumed: f.AssumedCost, Held: f.Cost - f.ConfirmedCost - f.AssumedCost}
	}
	return budget.Figures{Net: f.Amount, Confirmed: f.Confirmed, Assumed: f.Assumed, Held: f.Amount - f.Confirmed - f.Assumed}
}

func newCalendar(b *bill, o *Options) *calendar {
	c := &calendar{bill: b, skew: o.Skew.Microseconds(), lag: o.Lag.Microseconds(), now: o.Now.UnixMicro(), cells: map[place]*cell{}, tied: map[place]bool{}}
	for i := range b.buckets {
		start, end, gaps := b.buckets[i].Start.UnixMicro(), b.buckets[i].End.UnixMicro(), 0
		if i > 0 {
			gaps = c.gaps[i-1]
			if c.ends[i-1] < start {
				gaps++
			}
		}
		c.starts, c.ends, c.gaps = append(c.starts, start), append(c.ends, end), append(c.gaps, gaps)
	}
	return c
}

// cell returns that of a place, made if it is new.
func (c *calendar) cell(model string, bucket int) *cell {
	at := place{model, bucket}
	if c.cells[at] == nil {
		c.cells[at] = &cell{}
	}
	return c.cells[at]
}

// book adds a call.
func (c *calendar) book(call *call) error {
	if call.sum.Amount == 0 && call.sum.Cost == 0 && call.sum.Maybe == 0 && call.closed != 0 && !call.evidence {
		// Nothing of it was billed, whenever it was. One that got a share of
		// nothing ties buckets as before: those of the others rely on it.
		return nil
	}
	from, to := call.span(c.now)
	from, to = from-c.skew, to+c.skew
	if call.sum.Maybe > 0 || call.evidence {
		to += c.lag
	}
	first := sort.Search(len(c.ends), func(i int) bool { return from < c.ends[i] })
	last := sort.Search(len(c.starts), func(i int) bool { return to < c.starts[i] }) - 1
	if first > last {
		return c.outside.add(call)
	}
	model := call.model
	if c.unit == budget.CostUnit {
		model = "" // money is not compared by model
	}
	home := max(first, min(last, sort.Search(len(c.ends), func(i int) bool { return call.opened < c.ends[i] })))
	at := c.cell(model, home)
	for i := first; i < last; i++ {
		c.cell(model, i)
		c.cell(model, i+1)
		c.tied[place{model, i}] = true
	}
	if call.closed != 0 && (from < c.starts[first] || to >= c.ends[last] || c.gaps[first] != c.gaps[last]) {
		if err := at.partly.add(call); err != nil {
			return err
		}
	}
	switch {
	case call.closed == 0:
		at.open = append(at.open, call)
	case call.sum.Maybe > 0:
		at.assumed = append(at.assumed, call)
	}
	return at.add(call)
}
