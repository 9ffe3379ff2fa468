package main

// What reconcile prints: a row for each span and model on stdout, and on stderr
// a sentence for each that is not as it should be.

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/reconcile"
)

// reconcileJSON is what reconcile --json prints.
type reconcileJSON struct {
	Book    string       `json:"book"`
	Rows    []rowJSON    `json:"rows"`
	Outside outsideJSON  `json:"outside"` // calls that the report does not cover
	Applied *appliedJSON `json:"applied"` // null without --apply
}

type outsideJSON struct {
	figuresJSON
	Cost figuresJSON `json:"cost"`
}

type rowJSON struct {
	Unit     string    `json:"unit"` // tokens, or cost in picodollars
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	Buckets  int       `json:"buckets"`
	Models   []string  `json:"models"`   // as the book names them
	Reported []string  `json:"reported"` // as the report does
	Bill     billJSON  `json:"bill"`
	figuresJSON
	Drift   int64             `json:"drift"` // bill - confirmed
	Calls   int64             `json:"calls"`
	Verdict reconcile.Verdict `json:"verdict"`
	Final   bool              `json:"final"`
	Apply   int               `json:"to_apply"` // calls whose figure --apply would correct
	Blocked []blockJSON       `json:"blocked"`
}

type billJSON struct {
	Total      int64 `json:"total"` // tokens or picodollars, by unit
	Input      int64 `json:"input"`
	Cached     int64 `json:"cached"`
	CacheWrite int64 `json:"cache_write"`
	Output     int64 `json:"output"`
	Requests   int64 `json:"requests"`
}

type blockJSON struct {
	Reason reconcile.Reason `json:"reason"`
	Text   string           `json:"text"`
}

type appliedJSON struct {
	Calls    int64 `json:"calls"`
	Released int64 `json:"released"`
	Unpriced int64 `json:"unpriced"`
}

func toReconcileJSON(r *reconcile.Result, applied *reconcile.Applied) reconcileJSON {
	v := reconcileJSON{Book: r.Book, Rows: []rowJSON{}, Outside: outsideJSON{figuresJSON(r.Outside.Tokens), figuresJSON(r.Outside.Cost)}}
	if applied != nil {
		v.Applied = (*appliedJSON)(applied)
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		j := rowJSON{Unit: row.Unit.String(), Start: row.Start.UTC(), End: row.End.UTC(), Buckets: row.Buckets, Models: append([]string{}, row.Models...),
			Reported: append([]string{}, row.Reported...), figuresJSON: figuresJSON(row.Book), Drift: row.Drift, Calls: row.Calls, Verdict: row.Verdict, Final: row.Final,
			Apply: len(row.Adjustments), Blocked: []blockJSON{},
			Bill: billJSON{Total: row.Drift + row.Book.Confirmed, Input: row.Bill.Input, Cached: row.Bill.Cached, CacheWrite: row.Bill.CacheWrite, Output: row.Bill.Output, Requests: row.Bill.Requests}}
		for _, b := range row.Blocked {
			j.Blocked = append(j.Blocked, blockJSON(b))
		}
		v.Rows = append(v.Rows, j)
	}
	return v
}

// reconciled prints a comparison, and returns what the command exits with.
func (u *ui) reconciled(r *reconcile.Result, applied *reconcile.Applied, o *reconcileOptions) error {
	if o.asJSON {
		u.data(toReconcileJSON(r, applied))
	} else {
		u.reconcileTable(r)
	}
	outside, left, said, hints := 0, 0, 0, newHints()
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Outside() {
			outside++
		}
		if len(row.Blocked) > 0 && row.Unit == budget.TokenUnit && row.Book.Net > row.Book.Confirmed {
			left++
		}
		if row.Verdict == reconcile.OK || row.Verdict == reconcile.Inside && (row.Unit == budget.CostUnit || len(row.Blocked) == 0 || applied == nil) {
			continue
		}
		if said++; said <= maxShown {
			u.sayRow(row, hints, applied != nil)
		}
	}
	if more := said - maxShown; more > 0 {
		u.say("and %s more of which there is something to say; --json tells all", count(int64(more), "row"))
	}
	if len(r.Rows) == 0 {
		u.say("the report bills nothing, and the book has no call in the time that it covers")
	}
	if r.Outside != (budget.Balance{}) {
		u.say("the report does not cover %s", balanceText(r.Outside))
	}
	if applied != nil {
		u.say("%s corrected, %s released", count(applied.Calls, "call"), count(applied.Released, "token"))
		if applied.Unpriced > 0 {
			u.say("the money of %s stays assumed: the model's price is not known", count(applied.Unpriced, "call"))
		}
	}
	for _, hint := range hints.texts {
		u.hint("%s", hint)
	}
	switch {
	case outside > 0:
		return &exitError{Code: exitFailed, Err: fmt.Errorf("the bill lies outside the book's bracket in %s", count(int64(outside), "row"))}
	case applied != nil && left > 0:
		return &exitError{Code: exitPartly, Err: fmt.Errorf("%s not applied", count(int64(left), "row"))}
	}
	return nil
}

func (u *ui) reconcileTable(r *reconcile.Result) {
	w := tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "from\tto\tmodel\tbill\tconfirmed\tassumed\theld\tdrift\tverdict\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		amount := group
		if row.Unit == budget.CostUnit {
			amount = budget.FormatUSD
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", minute(row.Start), minute(row.End), modelsText(row), amount(row.Drift+row.Book.Confirmed),
			amount(row.Book.Confirmed), amount(row.Book.Assumed), amount(row.Book.Held), amount(row.Drift), verdictText(row))
	}
	w.Flush()
}

// verdictText is the verdict, with what keeps the row from being applied.
func verdictText(row *reconcile.Row) string {
	text := string(row.Verdict)
	for _, b := range row.Blocked {
		if b.Reason != reconcile.Outside && b.Reason != reconcile.Money { // the verdict says so, or the report
			text += ", " + strings.ReplaceAll(string(b.Reason), "_", " ")
		}
	}
	return text
}

// minute writes the bound of a bucket.
func minute(t time.Time) string { return t.UTC().Format("2006-01-02T15:04Z") }

// modelsText names the models of a row, by the book if it has them.
func modelsText(row *reconcile.Row) string {
	names := row.Models
	if len(names) == 0 {
		names = row.Reported
	}
	if len(names) > 3 {
		return fmt.Sprintf("%d models", len(names))
	}
	return cmp.Or(strings.Join(names, ","), "all")
}

// sayRow says what about a row is not as it should be.
func (u *ui) sayRow(row *reconcile.Row, hints *hints, applying bool) {
	name := fmt.Sprintf("%s to %s, %s", minute(row.Start), minute(row.End), modelsText(row))
	bill, over := row.Unit.Format(row.Drift+row.Book.Confirmed), row.Unit.Format(row.Drift+row.Book.Confirmed-row.Book.Net)
	switch {
	case row.Verdict == reconcile.Above && row.Calls == 0:
		u.say("%s: the provider bills %s, and the book has no call there", name, bill)
		hints.add("does something else use this key? Give each book a key or a project of its own")
	case row.Verdict == reconcile.Above:
		u.say("%s: the provider bills %s, %s more than the book can explain", name, bill, over)
		hints.add("does something else use this key? Give each book a key or a project of its own")
	case row.Verdict == reconcile.Below && row.Final:
		u.say("%s: the provider bills %s, less than the %s that it confirmed to the book", name, bill, row.Unit.Format(row.Book.Confirmed))
		hints.add("is the report of another key or project, or is it not complete yet?")
	case row.Verdict == reconcile.Below:
		u.say("%s: the report does not have all calls yet", name)
	case row.Verdict == reconcile.Unknown && row.Unit == budget.CostUnit:
		u.say("%s: the book does not know the price of all its calls, so the money cannot be compared", name)
	}
	for _, b := range row.Blocked {
		if !applying || b.Reason == reconcile.Money {
			continue // the table has it, in a word
		}
		u.say("%s: not to be applied: %s", name, b.Text)
		hints.add(blockHints[b.Reason])
	}
}

// blockHints say what to try where a row cannot be applied.
var blockHints = map[reconcile.Reason]string{
	reconcile.NotFinal:  "apply it later; --final-after says when a report is final",
	reconcile.Open:      "let the run end, or go on and end: it closes what it left open",
	reconcile.Partly:    "give a report that begins earlier, or ends later",
	reconcile.Unnamed:   "--alias REPORT=BOOK gives the model's name in the report; --whole says that the report is of all calls of the key",
	reconcile.Ungrouped: "fetch the report grouped by model, or say with --whole that it is of all calls of the key",
	reconcile.Outside:   "--overrun books what is above the net on an assumed call, if all of it is this book's",
}

// hints are hints, each once.
type hints struct {
	known map[string]bool
	texts []string
}

func newHints() *hints { return &hints{known: map[string]bool{"": true}} }

func (h *hints) add(text string) {
	if !h.known[text] {
		h.known[text] = true
		h.texts = append(h.texts, text)
	}
}
