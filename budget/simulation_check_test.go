package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/reconcile"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// simLedger is what must be in the book: every entry that was told to be durable,
// and what they add up to.
type simLedger struct {
	opening bool                     // entries of an opening, which the fold of it has
	entries map[uint64]journal.Entry // by position
	sum     journal.Change
	open    map[string]*simHold // by key, in this life
	rids    map[string]*simHold
}

type simHold struct {
	rid      string
	hold     int64
	attempts int64
	closes   int
	reclaims int
	refunded int64
}

func newSimLedger() simLedger {
	return simLedger{entries: map[uint64]journal.Entry{}, open: map[string]*simHold{}, rids: map[string]*simHold{}}
}

// observe is told of every entry that is durable.
func (p *process) observe(e journal.Entry) {
	if p.dead.Load() {
		return
	}
	l := &p.ledger
	p.count(func(c *simCounts) { c.entries++ })
	l.entries[e.Seq] = e
	if l.opening {
		return // what is open may be of entries that nobody was told of
	}
	if err := l.sum.Add(&e.Change); err != nil {
		p.fail("I3: %v", err)
	}
	if e.Kind == journal.Reserve || e.Kind == journal.Extend {
		if e.Amount > 0 && l.sum.Amount > p.cap {
			p.fail("I4: %s of %d to a net of %d, and the cap is %d", e.Kind, e.Amount, l.sum.Amount, p.cap)
		}
		if p.unbooked.Load() {
			p.fail("I5: %s, after a close that could not be written", e.Kind)
		}
	}
	if err := l.take(&e); err != nil {
		p.fail("I2: %s: %w", e.Kind, err)
	}
}

// take follows the life of a reservation.
func (l *simLedger) take(e *journal.Entry) error {
	h := l.rids[e.RID]
	switch {
	case e.Kind == journal.Reserve:
		if h != nil {
			return errors.New("it is opened twice")
		}
		h = &simHold{rid: e.RID, hold: e.Amount, attempts: 1}
		l.rids[e.RID], l.open[e.Key] = h, h
		return nil
	case e.RID == "":
		return nil
	case h == nil:
		return errors.New("it was never opened")
	}
	switch e.Kind {
	case journal.Extend:
		if h.attempts++; e.Amount != 0 && e.Amount != h.hold {
			return fmt.Errorf("%d more, on a hold of %d", e.Amount, h.hold)
		}
	case journal.Settle, journal.Refund:
		if h.closes++; h.closes > 1 {
			return fmt.Errorf("it is closed %d times", h.closes)
		}
		if h.refunded = 0; e.Kind == journal.Refund {
			h.refunded = -e.Amount
		}
	case journal.Reclaim:
		if h.reclaims++; h.reclaims > 1 || h.refunded == 0 || e.Amount != h.refunded || e.Assumed != e.Amount {
			return fmt.Errorf("%d back (assumed %d), for the %d-th time, after a refund of %d", e.Amount, e.Assumed, h.reclaims, h.refunded)
		}
	}
	return nil
}

// begin is called when a book is open: what it holds is what is told here.
func (p *process) begin() {
	l := &p.ledger
	l.opening = false
	l.open, l.rids = map[string]*simHold{}, map[string]*simHold{}
	fold, violations := p.history(p.machine.mem)
	if violations != nil {
		p.fail("%w", violations)
	}
	report := p.book.Report()
	if report.Tokens != fold.Tokens || report.Requests != fold.Requests || report.Maybe != fold.Maybe || report.Balance.Open != fold.Balance.Open {
		p.fail("I3: the book says %+v, its entries %+v", report.Balance, fold.Balance)
	}
	t := report.Tokens
	l.sum = journal.Change{Amount: t.Net, Confirmed: t.Confirmed, Assumed: t.Assumed, Requests: report.Requests, Maybe: report.Maybe}
	p.bracket("after the opening")
}

// again takes an entry of the history: all are known then.
func (l *simLedger) again(e *journal.Entry) error {
	if e.Carried || e.Kind == journal.Open {
		return nil
	}
	return l.take(e)
}

// history folds all that is kept, checks it, and that every entry that was told
// to be durable is in it, unchanged.
func (w *simulation) history(on *disk.Mem) (budget.Report, error) {
	dir := journal.Dir{Path: "book", FS: on}
	audit := budget.NewAudit()
	left := len(w.ledger.entries)
	var wrong error
	report, err := budget.Fold(func(yield func(journal.Entry, error) bool) {
		for e, err := range dir.History() {
			if err == nil {
				audit.Add(&e)
				if was, told := w.ledger.entries[e.Seq]; told {
					left--
					if was.Kind != e.Kind || was.RID != e.RID || was.Change != e.Change || was.Usage != e.Usage || was.T != e.T {
						wrong = fmt.Errorf("I1: entry %d was %+v and is %+v", e.Seq, was, e)
					}
				}
				if err := w.ledger.again(&e); err != nil && wrong == nil {
					wrong = fmt.Errorf("I2: entry %d, %s: %w", e.Seq, e.Kind, err)
				}
			}
			if !yield(e, err) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return report, fmt.Errorf("I8: the book cannot be read: %w", err)
	case wrong != nil:
		return report, wrong
	case left > 0:
		return report, fmt.Errorf("I1: %d entries that were durable are gone", left)
	case len(audit.Violations) > 0:
		return report, fmt.Errorf("I2: %v", audit.Violations)
	case len(audit.MultiClosed) > 0:
		return report, fmt.Errorf("I2: closed more than once: %v", audit.MultiClosed)
	}
	return report, nil
}

// checkNow is the check after each step.
func (p *process) checkNow() {
	if !p.opened || p.dead.Load() {
		return
	}
	p.bracket("at step %d", p.steps)
}

// bracket checks I6.
func (p *process) bracket(format string, args ...any) {
	bill, l := p.provider.Bill().TotalTokens, &p.ledger
	when := fmt.Sprintf(format, args...)
	if l.sum.Confirmed > bill {
		p.fail("I6: %s: confirmed are %d, on the bill are %d", when, l.sum.Confirmed, bill)
	}
	if p.style.exact() && bill > l.sum.Amount {
		p.fail("I6: %s: on the bill are %d, the net is %d", when, bill, l.sum.Amount)
	}
}

// sent is called when an attempt leaves.
func (p *process) sent(key, name string) {
	p.sends[key]++
	n := p.sends[key]
	p.count(func(c *simCounts) { c.sent++ })
	h := p.ledger.open[key]
	switch {
	case p.finished[name]:
		p.fail("I9: %s is sent again, and had ended", name)
	case h == nil:
		p.fail("I5: %s leaves, and no entry holds for it", name)
	case h.closes > 0:
		p.fail("I5: %s leaves, and its reservation is closed", name)
	case n > h.attempts:
		p.fail("I5: attempt %d of %s leaves, and %d are paid for", n, name, h.attempts)
	case p.rng.IntN(8) == 0 && !p.broken.Load(): // what would be left if the power went now
		left := p.machine.mem.Foresee(p.rng)
		kept := false
		for e, err := range (journal.Dir{Path: "book", FS: left}).History() {
			if err != nil {
				break // torn, which the next opening mends
			}
			kept = kept || e.RID == h.rid && !e.Carried
		}
		if !kept {
			p.fail("I5: %s leaves, and a power cut would take the entry that holds for it", name)
		}
	}
}

// delivered is called when an answer was read to its end, or a refusal.
func (p *process) delivered(key string) {
	if h := p.ledger.open[key]; !p.dead.Load() && !p.unbooked.Load() && (h == nil || h.closes == 0) {
		p.fail("I5: the answer to %s comes, and its close is not durable", key)
	}
}

// excuse takes an error that trouble of the disk, or the end of the process, is
// behind.
func (p *process) excuse(what string, err error) {
	if err == nil || p.dead.Load() {
		return
	}
	if errors.Is(err, journal.ErrCorrupt) || errors.Is(err, budget.ErrDamaged) || errors.Is(err, checkpoint.ErrDamaged) {
		p.fail("I8: false alarm: %s: %w", what, err)
		return
	}
	for _, cause := range []error{errDevice, disk.ErrGone, io.ErrShortWrite, syscall.ENOSPC, journal.ErrFull, budget.ErrBroken} {
		if errors.Is(err, cause) && (p.broken.Load() || p.style.diskRoom) {
			return
		}
	}
	p.fail("%s: %w", what, err)
}

// finish ends a process that was not killed.
func (p *process) finish() {
	if p.dead.Load() {
		return
	}
	report := p.book.Report()
	if report.Broken == nil {
		t := report.Tokens
		if t.Net != p.ledger.sum.Amount || t.Confirmed != p.ledger.sum.Confirmed || t.Assumed != p.ledger.sum.Assumed {
			p.fail("I3: the book says %+v, what it told adds up to %+v", t, p.ledger.sum)
		}
		if n := len(report.Open); n > 0 && (p.style.orphans != budget.OrphanKeep || n > len(report.Orphans)) {
			p.fail("I2: %d reservations stay open: %+v", n, report.Open)
		}
	} else if !p.broken.Load() && !p.style.diskRoom {
		p.fail("the book broke: %w", report.Broken)
	}
	if p.err != nil && !errors.Is(p.err, checkpoint.ErrPaused) && !errors.Is(p.err, checkpoint.ErrFailed) {
		p.excuse("run", p.err)
	}
	p.excuse("close", p.book.Close())
}

// end leaves the disk as the next process finds it.
func (p *process) end() (over bool) {
	w := p.simulation
	m := p.machine
	if m.dead && m.after == nil {
		m.after = m.mem.Kill()
	}
	switch {
	case m.after != nil:
		w.disk = m.after
	case p.rng.IntN(2) == 0: // of a machine that goes off when the process has ended
		w.disk = m.mem.Crash(p.rng)
	default:
		w.disk = m.mem.Kill()
	}
	w.disk.SetCapacity(-1)
	if !p.dead.Load() && p.opened {
		ended := w.endedItems(w.disk)
		if n := len(ended); n < p.sum.Done && !p.broken.Load() {
			w.fail("I9: %d items are done, and %d lines are left", p.sum.Done, n)
		}
	}
	if errors.Is(p.err, checkpoint.ErrPaused) && w.style.tight {
		w.cap += 300 + p.rng.Int64N(1000)
	}
	return !p.dead.Load() && p.opened && p.err == nil && p.sum.Pending == 0
}

// judge looks at the end: all is done once, nothing is open, and the provider's own
// report closes what is assumed.
func (w *simulation) judge() {
	if ended := w.endedItems(w.disk); len(ended) != len(w.items) {
		w.fail("I9: %d of %d items have a line", len(ended), len(w.items))
	}
	file, err := journal.OpenFile("book", journal.FileOptions{FS: w.disk, SegmentBytes: w.style.segment})
	if err != nil {
		w.fail("the book does not open again: %w", err)
		return
	}
	ctx := context.Background()
	book, err := budget.New(ctx, file, budget.OnOrphan(budget.OrphanKeep))
	if err != nil {
		w.fail("the book does not open again: %w", err)
		return
	}
	defer book.Close()
	w.ledger.rids = map[string]*simHold{}
	if _, err := w.history(w.disk); err != nil {
		w.fail("%w", err)
	}
	bill, report := w.provider.Bill().TotalTokens, book.Report()
	if n := len(report.Open); n > 0 {
		w.fail("%d reservations are open at the end", n)
	}
	if report.Tokens.Confirmed > bill || w.style.exact() && bill > report.Tokens.Net {
		w.fail("I6: at the end the bill is %d, the book says %+v", bill, report.Tokens)
	}
	if w.wrong != nil || !w.style.exact() {
		return
	}
	time.Sleep(72 * time.Hour) // until the report is final
	for range 2 {              // the second time there is nothing to do
		if err := w.reconcile(ctx, book); err != nil {
			w.fail("reconcile: %w", err)
			return
		}
		t := book.Report().Tokens
		if t.Confirmed != bill || t.Net != bill {
			w.fail("the report leaves a drift: the bill is %d, the book says %+v", bill, t)
		}
	}
}

// reconcile applies the provider's own usage report.
func (w *simulation) reconcile(ctx context.Context, book *budget.Book) error {
	var pages []io.Reader
	for _, kind := range []string{"completions", "embeddings"} {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://provider/v1/organization/usage/%s?start_time=%d&bucket_width=1d&group_by=model&limit=31", kind, time.Date(1999, 12, 30, 0, 0, 0, 0, time.UTC).Unix()), nil)
		if err != nil {
			return err
		}
		resp, err := w.net.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		pages = append(pages, resp.Body)
	}
	report, err := reconcile.Read(pages...)
	if err != nil {
		return err
	}
	result, err := reconcile.Compare(report, journal.Dir{Path: "book", FS: w.disk}.History(), reconcile.Options{Whole: true})
	if err != nil {
		return err
	}
	for _, row := range result.Rows {
		if row.Verdict != reconcile.OK && row.Verdict != reconcile.Inside || len(row.Blocked) > 0 {
			return fmt.Errorf("%v to %v, %v: %s, %v: bill %+v, book %+v", row.Start, row.End, row.Models, row.Verdict, row.Blocked, row.Bill, row.Book)
		}
	}
	_, err = reconcile.Apply(ctx, book, result)
	return err
}
