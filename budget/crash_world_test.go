package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// world is a disk, a book on it, now and then, and its callers. A call that
// fails the test panics with a failure, to be caught where the case is named.
type world struct {
	rng     *rand.Rand
	disk    *machine
	know    *knowledge
	soft    tidings
	clock   time.Time
	segment int64 // SegmentBytes
	crowd   int   // most calls that are made together
	book    *budget.Book
	file    *heldBack
	trace   func(format string, args ...any) // nil: silent

	did        map[string]bool // what was done so far, in all lives
	opens      int             // of these, that came to a book
	metTrouble bool
	poisoned   bool // the book said so in this life
	broken     bool // a close failed in this life
	tight      bool // the disk has an end
}

type failure string

func fail(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	return &world{rng: rng, disk: &machine{mem: disk.NewMem(), rng: rng}, know: &knowledge{limits: map[string][]int64{"": {-1}, "a": {-1}}},
		clock: time.Unix(1_800_000_000, 0), segment: 3000, crowd: 10, did: map[string]bool{}}
}

// copy is the same world before the next process starts, with chance of its own.
func (w *world) copy(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	return &world{rng: rng, disk: &machine{mem: w.disk.mem.Kill(), rng: rng}, know: w.know.clone(), soft: w.soft.clone(),
		clock: w.clock, segment: w.segment, crowd: w.crowd, did: map[string]bool{}, trace: w.trace}
}

// meet sets the trouble to come; it is counted from here.
func (w *world) meet(plan ...strike) {
	w.disk = &machine{mem: w.disk.mem, rng: w.rng, plan: plan}
	w.say("trouble: %v", plan)
}

func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		w.trace(format, args...)
	}
}

// heldBack is the journal; an append can be held back until others have queued.
type heldBack struct {
	*journal.File
	gate chan struct{}
}

func (h *heldBack) Append(ctx context.Context, after journal.Pos, batch journal.Batch) (journal.Pos, error) {
	if gate := h.gate; gate != nil {
		h.gate = nil
		<-gate
	}
	return h.File.Append(ctx, after, batch)
}

const bookDir = "book"

func (w *world) fs() disk.FS { return disk.Failing(w.disk.mem, w.disk.fault) }

// open starts a process: it recovers the book and knows then where everything
// stands. It reports whether there is a book.
func (w *world) open(policy budget.OrphanPolicy) bool {
	w.poisoned, w.broken = false, false
	w.file = nil
	hold := func(f *journal.File) budget.Journal {
		w.file = &heldBack{File: f}
		return w.file
	}
	b, err := budget.OpenFile(context.Background(), bookDir, journal.FileOptions{FS: w.fs(), SegmentBytes: w.segment}, hold,
		budget.OnOrphan(policy), w.soft.hear(), budget.Clock(func() time.Time {
			w.clock = w.clock.Add(time.Second)
			return w.clock
		}))
	if w.file != nil && policy == budget.OrphanAssume {
		w.know.orphaned(err == nil)
	}
	if err != nil {
		w.say("open: %v", err)
		w.excuse("open", err)
		if w.file != nil {
			w.excuse("close", w.file.Close())
		}
		return false
	}
	w.say("opened: %+v, orphans %s", w.file.Recovery(), policy)
	w.book = b
	w.opens++
	w.check()
	return true
}

// excuse accepts an error that trouble with the disk can be behind.
func (w *world) excuse(what string, err error) {
	if err == nil {
		return
	}
	if errors.Is(err, journal.ErrCorrupt) || errors.Is(err, budget.ErrDamaged) {
		fail("false alarm of corruption: %s: %v", what, err)
	}
	for _, cause := range []error{errDevice, disk.ErrGone, io.ErrShortWrite, syscall.ENOSPC} {
		if errors.Is(err, cause) && (w.disk.found || w.tight) {
			return
		}
	}
	fail("%s: %v", what, err)
}

// check reads the book and its whole history and compares them with what the
// callers know, who know more afterwards.
func (w *world) check() {
	if w.poisoned || w.disk.dead {
		return // what is not durable may still be read
	}
	folded, audit := &fold{of: map[string]*told{}}, budget.NewAudit()
	var history []journal.Entry
	for e, err := range w.dir().History() {
		if err == nil {
			err = folded.add(&e)
		}
		if err != nil {
			fail("history: %v", err)
		}
		audit.Add(&e)
		history = append(history, e)
	}
	if len(audit.Violations)+len(audit.MultiClosed) > 0 {
		fail("audit: %v, closed twice: %v", audit.Violations, audit.MultiClosed)
	}
	if folded.opens > w.opens {
		w.did["rotate"] = true
	}
	w.did["told"] = w.did["told"] || len(w.soft.told) > 0
	if err := w.soft.compare(history); err != nil {
		fail("%v", err)
	}
	report := w.book.Report()
	if err := w.know.compare(folded, &report); err != nil {
		fail("%v", err)
	}
	for _, t := range w.know.tickets {
		receipt, err := w.book.Reservation(t.rid).Receipt(context.Background())
		if errors.Is(err, budget.ErrUnknown) && !w.known(t) {
			continue
		}
		w.sameReceipt(t, receipt, err)
	}
}

func (w *world) dir() journal.Dir { return journal.Dir{Path: bookDir, FS: w.disk.mem} }

func (w *world) sameReceipt(t *ticket, r budget.Receipt, err error) {
	is, _ := t.is()
	if err != nil || r.State != is.state || r.Attempts != is.tries || r.Confirmed != is.confirmed || r.Assumed != is.assumed {
		fail("receipt of %.20q: %+v, %v; it stands at %+v", t.key, r, err, is)
	}
}

// step is one thing that happens in the life of a process. It reports whether
// the life goes on.
func (w *world) step() bool {
	time.Sleep(300 * time.Millisecond) // of the bubble's time: a full disk is looked at again
	switch n := w.rng.IntN(100); {
	case n < 70:
		w.make(w.any(nil))
	case n < 78:
		var calls []*act
		for range 2 + w.rng.IntN(w.crowd) {
			calls = append(calls, w.any(calls))
		}
		w.together(calls)
	case n < 84:
		w.setLimit([]string{"", "a"}[w.rng.IntN(2)], []int64{-1, 300, 1000, 3000}[w.rng.IntN(4)])
	case n < 88:
		w.prune()
	case n < 92:
		w.room(w.disk.mem.Used() + w.rng.Int64N(4000))
	case n < 94:
		w.room(-1)
	case n < 96:
		w.check()
	case n < 97:
		w.clock = w.clock.Add(time.Duration(17+2*w.rng.IntN(12)) * 12 * time.Hour) // no sum of such is near the horizon
	default:
		w.did["reopen"] = true
		return w.close() && w.open(w.policy())
	}
	return !w.disk.dead
}

func (w *world) policy() budget.OrphanPolicy {
	return []budget.OrphanPolicy{budget.OrphanAssume, budget.OrphanKeep}[w.rng.IntN(2)]
}

func (w *world) setLimit(scope string, n int64) {
	limit := budget.Tokens(n).On(scope)
	if n < 0 {
		limit.Unlimited, limit.Max = true, 0
	}
	err := w.book.SetLimit(context.Background(), limit)
	w.did["limit"] = true
	w.say("limit of %q: %d: %v", scope, n, err)
	switch {
	case err == nil:
		w.know.limits[scope] = []int64{n}
	case errors.Is(err, budget.ErrBroken):
	default:
		w.excuse("limit", err)
		if !w.poisoned && (!errors.Is(err, journal.ErrFull) || errors.Is(err, journal.ErrPoisoned)) {
			w.know.limits[scope] = append(w.know.limits[scope], n)
		}
		w.poisoned = w.poisoned || errors.Is(err, journal.ErrPoisoned)
	}
}

// prune removes every segment that may go. Its entries are compared before.
func (w *world) prune() {
	if w.poisoned || w.disk.dead {
		return
	}
	w.check()
	d := journal.Dir{Path: bookDir, FS: w.fs()}
	pruned, err := d.Prune(w.clock.Add(time.Hour))
	if len(pruned.Segments) > 0 {
		w.did["prune"] = true
	}
	w.say("prune: %v, %v", pruned, err)
	w.excuse("prune", err)
	w.know.pruned = true
}

func (w *world) room(bytes int64) {
	w.did["room"] = w.did["room"] || bytes >= 0
	w.say("room for %d", bytes)
	w.tight = w.tight || bytes >= 0
	if !w.disk.dead {
		w.disk.mem.SetCapacity(bytes)
	}
}

// close ends the process cleanly, if it can, and reports whether it could.
func (w *world) close() bool {
	err := w.book.Close()
	w.say("close: %v", err)
	w.excuse("close", err)
	w.book = nil
	return err == nil && !w.disk.dead
}

// end is whatever end of a process: after it the disk is as the next finds it.
func (w *world) end() {
	m := w.disk
	w.metTrouble = w.metTrouble || m.found
	switch {
	case m.after != nil:
		m.mem = m.after
	case m.dead || w.rng.IntN(3) == 0:
		m.mem = m.mem.Kill()
	case w.rng.IntN(2) == 0:
		w.say("power cut at the end")
		m.mem = m.mem.Crash(w.rng)
	default:
		if w.book != nil {
			w.close()
		}
		m.mem = m.mem.Kill() // a book that was not made has no handle to close
	}
	w.book = nil
	w.meet()
	m = w.disk
	m.mem.SetCapacity(-1)
	w.tight = false
}

// live is one process: it opens the book, takes some steps and ends somehow.
func (w *world) live(steps int) {
	if w.open(w.policy()) {
		for range steps {
			if !w.step() {
				break
			}
		}
	}
	w.end()
}

// outlive checks that all can be read and goes on, and that what one recovery
// has seen is durable.
func (w *world) outlive() {
	for range 2 {
		if !w.open(budget.OrphanKeep) {
			fail("there is no book")
		}
		w.disk.mem = w.disk.mem.Crash(w.rng)
		w.meet()
	}
	if !w.open(budget.OrphanAssume) || !w.close() {
		fail("it does not end well")
	}
	audit, err := w.dir().Verify()
	if err != nil || audit.Damaged() {
		fail("verify: %v, %v", err, audit.Findings)
	}
}

// attemptTo runs f and returns how it failed, if it did.
func attemptTo(f func()) (what failure) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			what = p
		default:
			panic(p)
		}
	}()
	f()
	return ""
}
