package reconcile

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// Options say how a book is compared with a report. The zero Options do for a
// report of the one key that the book's calls used.
type Options struct {
	// Now is the time the comparison is made. Zero: the time of day.
	Now time.Time
	// FinalAfter is how long after its end a bucket is final: until then the
	// provider may add to it. Zero: an hour. Negative: at once.
	FinalAfter time.Duration
	// Skew is by how much the provider's clock may differ from the book's.
	// Zero: ten seconds. Negative: not at all.
	Skew time.Duration
	// Lag is how long a provider may go on with an attempt that was given up,
	// and bill it then. Zero: ten minutes. Negative: not at all.
	Lag time.Duration
	// Aliases maps names of models in the report to those of the book, where
	// they differ in more than the date of a snapshot.
	Aliases map[string]string
	// Whole: the caller vouches that the report is of all calls of the book's
	// key, of every kind. What it does not name was not billed, and a report
	// that is not grouped by model may be applied to several.
	Whole bool
	// Overrun books what a bill has above the net, too, on the last of the
	// assumed calls there.
	Overrun bool
}

// Result is a book held against a report.
type Result struct {
	Book string // its id
	Rows []Row  // by unit, time and model
	// Outside is what the book holds of calls that no bucket covers, or of
	// which the entries are pruned: of tokens if the report counts such, and
	// of cost likewise.
	Outside budget.Balance
}

// Row is a bucket of one model, or several that cannot be told apart: calls that
// lie on both sides of a boundary tie two buckets together, and names of models
// that a report may use for one another are one.
type Row struct {
	Unit       budget.Unit // budget.TokenUnit or budget.CostUnit
	Start, End time.Time   // End is not in it
	Buckets    int         // of the report
	Models     []string    // their names in the book; money is not compared by model
	Reported   []string    // their names in the report

	Bill  Amounts        // what the provider says
	Book  budget.Figures // what the book holds
	Drift int64          // bill - confirmed
	Calls int64          // reservations that the book's figures are of

	Verdict Verdict
	Final   bool // the provider adds nothing more
	// Blocked is why the row cannot be applied; empty if it can be, or if
	// nothing is left to do.
	Blocked []Block
	// Adjustments are what [Apply] books.
	Adjustments []Adjustment
}

// Verdict is where a bill lies.
type Verdict string

// The verdicts.
const (
	OK      Verdict = "ok"      // bill = confirmed = net
	Inside  Verdict = "inside"  // confirmed <= bill <= net, and something is assumed or held
	Above   Verdict = "above"   // bill > net: more than the book can explain
	Below   Verdict = "below"   // bill < confirmed: the report lags, or is of another key
	Unknown Verdict = "unknown" // the book does not know enough
)

// Block is one reason not to apply a row.
type Block struct {
	Reason Reason
	Text   string // for people, with the figures
}

// Reason names what keeps a row from being applied.
type Reason string

// The reasons.
const (
	NotFinal  Reason = "not_final" // the provider may add to it
	Open      Reason = "open"      // calls are under way, or were left open
	Pruned    Reason = "pruned"    // the book no longer holds the entries
	Partly    Reason = "partly"    // calls reach beyond what the report covers
	Horizon   Reason = "horizon"   // assumed calls that nothing can be booked on any more
	Unnamed   Reason = "unnamed"   // the report names the model nowhere
	Ungrouped Reason = "ungrouped" // it names no models, and the book has several
	Outside   Reason = "outside"   // the bill lies outside the bracket
	Split     Reason = "split"     // input or output would come out negative
	Money     Reason = "money"     // a report of money says nothing of tokens
)

// Adjustment is one piece of evidence for one reservation.
type Adjustment struct {
	RID      string
	Evidence budget.Evidence
}

// Outside reports whether the row shows the bill outside the bracket for good:
// above the net, or below what is confirmed though nothing more is to come.
func (r *Row) Outside() bool { return r.Verdict == Above || r.Verdict == Below && r.Final }

// Compare holds the entries of a book, from the oldest that is kept on, against
// a report. The memory it takes grows with what is open, assumed or refunded in
// the book and with the report, not with the calls. It reads and changes nothing
// else, so it may be used beside a book in use.
func Compare(report Report, entries iter.Seq2[journal.Entry, error], o Options) (Result, error) {
	bills, err := report.bills()
	if err != nil {
		return Result{}, err
	}
	if len(bills) == 0 {
		return Result{}, fmt.Errorf("%w: it has no bucket; ask for a span of time that has begun", ErrFormat)
	}
	o.defaults()
	var calendars []*calendar
	for _, b := range bills {
		calendars = append(calendars, newCalendar(b, &o))
	}
	h := newHistory(func(c *call) (err error) {
		for _, cal := range calendars {
			err = cmp.Or(err, cal.book(c))
		}
		return err
	})
	if err := h.read(entries); err != nil {
		return Result{}, err
	}
	r := Result{Book: h.book}
	for _, cal := range calendars {
		if err := cal.outside.Add(&h.unknown); err != nil {
			return Result{}, err
		}
		outside := cal.outside.of(cal.unit)
		if cal.unit == budget.CostUnit {
			r.Outside.Cost = outside
		} else {
			r.Outside.Tokens = outside
		}
		rows, err := cal.rows(h, &o)
		if err != nil {
			return Result{}, err
		}
		r.Rows = append(r.Rows, rows...)
	}
	return r, o.checkAliases(bills)
}

func (o *Options) defaults() {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	for _, d := range [...]struct {
		to   *time.Duration
		zero time.Duration
	}{{&o.FinalAfter, time.Hour}, {&o.Skew, 10 * time.Second}, {&o.Lag, 10 * time.Minute}} {
		*d.to = max(0, cmp.Or(*d.to, d.zero))
	}
}

// checkAliases refuses an alias that names nothing: it is misspelt, most likely.
func (o *Options) checkAliases(bills []*bill) error {
	for _, name := range slices.Sorted(maps.Keys(o.Aliases)) {
		if !slices.ContainsFunc(bills, func(b *bill) bool { return b.models[name] }) {
			return &budget.InvalidError{What: "alias", Reason: fmt.Sprintf("the report names no model %q", name)}
		}
	}
	return nil
}

// read reads all entries, and hands on what is left.
func (h *history) read(entries iter.Seq2[journal.Entry, error]) error {
	for e, err := range entries {
		if err == nil {
			err = h.add(&e)
		}
		if err != nil {
			return err
		}
	}
	for _, c := range slices.SortedFunc(maps.Values(h.calls), earlier) {
		if err := h.done(c); err != nil {
			return err
		}
	}
	return nil
}

// earlier is the order in which evidence is given to calls.
func earlier(a, b *call) int {
	return cmp.Or(cmp.Compare(a.opened, b.opened), cmp.Compare(a.rid, b.rid))
}

// rows judges all places of a calendar.
func (c *calendar) rows(h *history, o *Options) (rows []Row, err error) {
	models, buckets := map[string]bool{}, map[string][]int{}
	for at := range c.cells {
		models[at.model] = true
		buckets[at.model] = append(buckets[at.model], at.bucket)
	}
	for i := range c.buckets {
		for _, l := range c.buckets[i].Lines {
			buckets["\n"+l.Model] = append(buckets["\n"+l.Model], i) // no name holds a newline
		}
	}
	for _, class := range classes(models, c.models, o.Aliases) {
		var active []int
		for _, m := range class.book {
			active = append(active, buckets[m]...)
		}
		for _, m := range class.reported {
			active = append(active, buckets["\n"+m]...)
		}
		slices.Sort(active)
		for i := 0; i < len(active); {
			g := group{calendar: c, class: class, first: active[i], last: active[i]}
			for ; i < len(active) && (active[i] == g.last || active[i] == g.last+1 && g.tied()); i++ {
				g.last = active[i]
			}
			row, err := g.row(h, o)
			if err != nil {
				return nil, err
			}
			if row.Calls > 0 || row.Bill != (Amounts{}) {
				rows = append(rows, row)
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(a.Start.Compare(b.Start), a.End.Compare(b.End), slices.Compare(a.Models, b.Models), slices.Compare(a.Reported, b.Reported))
	})
	return rows, nil
}
