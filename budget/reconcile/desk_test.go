package reconcile

import (
	"context"
	"fmt"
	"iter"

	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// desk is a book in a file journal, on a disk in memory, and a clock.
type desk struct {
	t       require.TestingT
	mem     *disk.Mem
	now     time.Time
	segment int64 // bytes
	opts    []budget.Option
	book    *budget.Book
	calls   int
}

func newDesk(t require.TestingT, opts ...budget.Option) *desk {
	d := &desk{t: t, mem: disk.NewMem(), now: nov1.AddDate(0, 0, -1), opts: opts}
	d.open()
	return d.at(nov1.Add(time.Hour))
}

// open opens the book as the command does that applies a report.
func (d *desk) open() {
	j, err := journal.OpenFile("book", journal.FileOptions{FS: d.mem, SegmentBytes: d.segment})
	require.NoError(d.t, err)
	d.book, err = budget.New(context.Background(), j, append(d.opts, budget.OnOrphan(budget.OrphanKeep), budget.Clock(func() time.Time { return d.now }))...)
	require.NoError(d.t, err)
}

// kill ends the process, and opens the book again.
func (d *desk) kill() {
	d.mem = d.mem.Kill()
	d.open()
}

func (d *desk) entries() iter.Seq2[journal.Entry, error] {
	return journal.Dir{Path: "book", FS: d.mem}.History()
}

// at moves the clock.
func (d *desk) at(t time.Time) *desk { d.now = t; return d }

func (d *desk) reserve(model string, tokens int64) *budget.Reservation {
	d.calls++
	r, err := d.book.Reserve(context.Background(), budget.Request{RID: fmt.Sprintf("r%d", d.calls), Model: model, Tokens: tokens})
	require.NoError(d.t, err)
	return r
}

func (d *desk) settle(r *budget.Reservation, u budget.Usage) {
	_, err := r.Settle(context.Background(), u)
	require.NoError(d.t, err)
}

// settled is a call that the provider reported.
func (d *desk) settled(model string, input, output int64) {
	d.settle(d.reserve(model, input+output+50), budget.Usage{Input: input, Output: output})
}

// assumed is a call that was charged at its hold.
func (d *desk) assumed(model string, tokens int64) *budget.Reservation {
	r := d.reserve(model, tokens)
	require.NoError(d.t, r.Close())
	return r
}

// late are options of a comparison long after all was billed.
var late = Options{Now: time.Date(2024, 12, 1, 0, 0, 0, 0, time.UTC)}

func (d *desk) compare(report Report, o Options) Result {
	r, err := Compare(report, d.entries(), o)
	require.NoError(d.t, err)
	return r
}

func (d *desk) apply(r Result) Applied {
	a, err := Apply(context.Background(), d.book, r)
	require.NoError(d.t, err)
	return a
}

// usage is a report of whole buckets from nov1 on, of width w.
func usageOf(w time.Duration, buckets ...[]Line) (r Report) {
	for i, lines := range buckets {
		start := nov1.Add(time.Duration(i) * w)
		r.Buckets = append(r.Buckets, Bucket{Source: "completions", Unit: budget.TokenUnit, Start: start, End: start.Add(w), Lines: lines})
	}
	return r
}

const day = 24 * time.Hour

// used is a line of a report.
func used(model string, input, output int64) Line {
	return Line{model, Amounts{Input: input, Output: output}}
}

// says is a row in short.
func says(r Row) string {
	s := fmt.Sprintf("%s %s %s bill %d confirmed %d assumed %d held %d drift %d %s", r.Start.Format("02T15"), r.End.Format("02T15"), r.Models,
		r.Bill.of(r.Unit), r.Book.Confirmed, r.Book.Assumed, r.Book.Held, r.Drift, r.Verdict)
	for _, b := range r.Blocked {
		s += " " + string(b.Reason)
	}
	return s
}

func sayAll(r Result) (all []string) {
	for _, row := range r.Rows {
		all = append(all, says(row))
	}
	return all
}
