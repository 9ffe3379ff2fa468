// Package reconcile holds a book against a provider's own usage report: what
// the book has confirmed, assumed and held, beside the bill, for each span of
// time and model. It says where the bill lies outside the bracket
//
//	confirmed <= bill <= net
//
// and can book the difference: an assumed figure is replaced by what the report
// leaves for it.
//
//	report, err := reconcile.Read(file)
//	result, err := reconcile.Compare(report, journal.Dir{Path: dir}.History(), reconcile.Options{})
//	applied, err := reconcile.Apply(ctx, book, result)
//
// A report knows neither calls nor runs, only a key or a project, so it says
// something about a book if nothing else used that key.
package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// Errors of reports, for errors.Is.
var (
	// ErrFormat: it is no usage report that is known, or something in it
	// cannot be true.
	ErrFormat = errors.New("reconcile: not a usage report")
	// ErrIncomplete: a page says that more follow, and they are not there.
	ErrIncomplete = errors.New("reconcile: incomplete report")
	// ErrOverlap: two parts of a report are about the same time, so what they
	// say cannot be added up.
	ErrOverlap = errors.New("reconcile: overlapping report")
)

// Report is what providers say was used and what it cost. Make one with [Read],
// or fill it in from elsewhere. The order of its buckets says nothing.
type Report struct{ Buckets []Bucket }

// Bucket is what one kind of report says of one span of time.
type Bucket struct {
	// Source is the kind of report, such as "completions". The kinds that
	// count one unit are added up, and must be about the same spans of time.
	// Empty: it does not say. A bucket without lines that does not say counts
	// only if none says.
	Source string
	// Unit is what the lines count: budget.TokenUnit or budget.CostUnit. Zero
	// is tokens where there are no lines.
	Unit budget.Unit
	// Start is in it, End is not.
	Start, End time.Time
	// Lines are added up. None says that nothing was used.
	Lines []Line
}

// Line is what one model used.
type Line struct {
	Model string // empty: the report does not say
	Amounts
}

// Amounts are figures of a report.
type Amounts struct {
	Input      int64 // tokens, Cached and CacheWrite included
	Cached     int64 // part of Input
	CacheWrite int64 // part of Input
	Output     int64 // tokens
	Requests   int64 // as far as the report counts them
	Cost       int64 // picodollars
}

// Tokens is Input + Output.
func (a *Amounts) Tokens() int64 { return a.Input + a.Output }

// of is the figure that a report of unit u is about.
func (a *Amounts) of(u budget.Unit) int64 {
	if u == budget.CostUnit {
		return a.Cost
	}
	return a.Tokens()
}

// check refuses what no line can say. Figures are bounded, so that a sum of
// two never leaves 64 bits unseen.
func (a *Amounts) check() error {
	u := budget.Usage{Input: a.Input, Cached: a.Cached, CacheWrite: a.CacheWrite, Output: a.Output}
	if err := u.Check(); err != nil {
		return err
	}
	if a.Requests < 0 || a.Requests > budget.MaxTokens {
		return fmt.Errorf("%d requests are outside 0 to %d", a.Requests, int64(budget.MaxTokens))
	}
	if a.Cost < 0 || a.Cost > budget.MaxCost {
		return fmt.Errorf("a cost of %s is outside 0 to %s", budget.FormatUSD(a.Cost), budget.FormatUSD(budget.MaxCost))
	}
	return nil
}

// add adds b, which was checked, to a.
func (a *Amounts) add(b *Amounts) error {
	sum := *a
	for _, f := range [...]struct {
		to *int64
		n  int64
	}{{&sum.Input, b.Input}, {&sum.Cached, b.Cached}, {&sum.CacheWrite, b.CacheWrite}, {&sum.Output, b.Output}, {&sum.Requests, b.Requests}} {
		if *f.to += f.n; *f.to > budget.MaxTokens {
			return fmt.Errorf("%w: its sums are above %d", ErrFormat, int64(budget.MaxTokens))
		}
	}
	if sum.Cost += b.Cost; sum.Cost > budget.MaxCost {
		return fmt.Errorf("%w: its sums are above %s", ErrFormat, budget.FormatUSD(budget.MaxCost))
	}
	*a = sum
	return nil
}

// bill is what a report says in one unit: its buckets in order, none over
// another.
type bill struct {
	unit    budget.Unit
	buckets []Bucket
	models  map[string]bool // that lines name; "" has none
}

// bills sorts a report out by unit.
func (r *Report) bills() (bills []*bill, err error) {
	by := map[budget.Unit]*bill{}
	for _, b := range r.known() {
		if b.Unit != budget.TokenUnit && b.Unit != budget.CostUnit {
			return nil, fmt.Errorf("%w: a bucket counts %s; tokens and cost can be compared", ErrFormat, b.Unit)
		}
		if by[b.Unit] == nil {
			by[b.Unit] = &bill{unit: b.Unit, models: map[string]bool{}}
		}
		by[b.Unit].buckets = append(by[b.Unit].buckets, b)
	}
	for _, unit := range [...]budget.Unit{budget.TokenUnit, budget.CostUnit} {
		if by[unit] == nil {
			continue
		}
		if err := by[unit].merge(); err != nil {
			return nil, err
		}
		bills = append(bills, by[unit])
	}
	return bills, nil
}

// known leaves out empty buckets that do not say of what report they are, if
// others do.
func (r *Report) known() []Bucket {
	known := slices.Clone(r.Buckets)
	if slices.ContainsFunc(known, func(b Bucket) bool { return b.Source != "" }) {
		known = slices.DeleteFunc(known, func(b Bucket) bool { return b.Source == "" && len(b.Lines) == 0 })
	}
	for i := range known {
		if b := &known[i]; b.Unit == 0 && len(b.Lines) == 0 {
			b.Unit = budget.TokenUnit
		}
	}
	return known
}

// merge makes one bucket of those of the same bounds, and checks that this can
// be done.
func (b *bill) merge() error {
	slices.SortStableFunc(b.buckets, func(x, y Bucket) int {
		return cmp.Or(x.Start.Compare(y.Start), x.End.Compare(y.End), cmp.Compare(x.Source, y.Source))
	})
	sources := map[string]bool{}
	for i := range b.buckets {
		sources[b.buckets[i].Source] = true
	}
	var merged []Bucket
	covered := map[string]bool{} // sources of the last of merged that have spoken
	said := map[string]bool{}    // those of them with lines
	whole := func() error {
		for _, s := range slices.Sorted(maps.Keys(sources)) {
			if n := len(merged); n > 0 && !covered[s] {
				return fmt.Errorf("%w: %s is not in the report of %s, but in another; give reports of the same time and bucket width", ErrIncomplete, span(merged[n-1].Start, merged[n-1].End), s)
			}
		}
		return nil
	}
	for _, next := range b.buckets {
		if err := next.check(); err != nil {
			return err
		}
		n := len(merged)
		same := n > 0 && merged[n-1].Start.Equal(next.Start) && merged[n-1].End.Equal(next.End)
		switch {
		case same && said[next.Source] && len(next.Lines) > 0:
			return fmt.Errorf("%w: %s of %s comes twice; give each page once", ErrOverlap, span(next.Start, next.End), next.Source)
		case !same && n > 0 && next.Start.Before(merged[n-1].End):
			return fmt.Errorf("%w: %s and %s; give reports of one bucket width", ErrOverlap, span(merged[n-1].Start, merged[n-1].End), span(next.Start, next.End))
		case !same:
			if err := whole(); err != nil {
				return err
			}
			merged = append(merged, Bucket{Source: next.Source, Unit: b.unit, Start: next.Start, End: next.End})
			clear(covered)
			clear(said)
		}
		covered[next.Source] = true
		said[next.Source] = said[next.Source] || len(next.Lines) > 0
		last := &merged[len(merged)-1]
		for _, l := range next.Lines {
			if b.unit == budget.CostUnit {
				l.Model = "" // line items name services; money is compared as a whole
			}
			if l.Model == "" && l.Amounts == (Amounts{}) {
				continue
			}
			b.models[l.Model] = true // named, be it with nothing used
			if err := last.count(l); err != nil {
				return err
			}
		}
	}
	if err := whole(); err != nil {
		return err
	}
	if b.models[""] && len(b.models) > 1 {
		return fmt.Errorf("%w: some of its lines name a model and some do not; fetch it grouped by model", ErrFormat)
	}
	b.buckets = merged
	return nil
}

// count adds a line to that of its model.
func (b *Bucket) count(l Line) error {
	i, found := slices.BinarySearchFunc(b.Lines, l.Model, func(have Line, model string) int { return cmp.Compare(have.Model, model) })
	if !found {
		b.Lines = slices.Insert(b.Lines, i, Line{Model: l.Model})
	}
	return b.Lines[i].add(&l.Amounts)
}

func (b *Bucket) check() error {
	if !b.Start.Before(b.End) {
		return fmt.Errorf("%w: a bucket from %s to %s", ErrFormat, clock(b.Start), clock(b.End))
	}
	for i := range b.Lines {
		l := &b.Lines[i]
		if err := l.check(); err != nil {
			return fmt.Errorf("%w: %s: model %q: %w", ErrFormat, span(b.Start, b.End), l.Model, err)
		}
	}
	return nil
}

// span writes a span of time, in UTC.
func span(start, end time.Time) string { return clock(start) + " to " + clock(end) }

func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z07:00") }

// Counts reports whether r has a bucket of unit u, which may say that nothing
// was used.
func (r *Report) Counts(u budget.Unit) bool {
	return slices.ContainsFunc(r.known(), func(b Bucket) bool { return b.Unit == u })
}
