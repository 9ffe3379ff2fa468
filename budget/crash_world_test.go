package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// trouble is what happens to the disk at one operation.
type trouble uint8

const (
	none     trouble = iota
	powerCut         // the machine stops before the operation
	killed           // the process does, in the middle of it if it is a write
	refused          // it fails and does nothing, or of a write a part
	behind           // it does its work, and then fails
	short            // a write stops short, without an error
	full             // there is no room, at a write, a sync or whatever makes something
)

var troubleNames = [...]string{"", "power cut", "kill", "error", "error behind", "short write", "full disk"}

func (t trouble) String() string { return troubleNames[t] }

// strikes reports whether an operation is one that this can happen to.
func (t trouble) strikes(op disk.Op) bool {
	switch t {
	case powerCut, killed, behind:
		return !op.Kind.Reads()
	case refused:
		return true
	case short:
		return op.Kind == disk.OpWrite
	case full:
		return !op.Kind.Reads() && op.Kind != disk.OpRemove && op.Kind != disk.OpLock
	}
	return false
}

var errDevice = errors.New("the device fails")

// strike is trouble at an operation: the at-th, from 1, of those it can happen to,
// counted from the strike before.
type strike struct {
	with trouble
	at   int
}

// machine is a disk that meets with trouble.
type machine struct {
	mem   *disk.Mem
	rng   *rand.Rand
	plan  []strike
	found bool      // some trouble
	dead  bool      // it ended the process
	after *disk.Mem // then, the disk that the next one finds
}

func (m *machine) fault(op disk.Op) disk.Fault {
	if m.dead && m.after == nil {
		m.after = m.mem.Kill()
	}
	if m.dead || len(m.plan) == 0 || !m.plan[0].with.strikes(op) {
		return disk.Fault{}
	}
	if m.plan[0].at--; m.plan[0].at > 0 {
		return disk.Fault{}
	}
	with := m.plan[0].with
	m.plan, m.found, m.dead = m.plan[1:], true, with == powerCut || with == killed
	some := 0
	if op.Kind == disk.OpWrite {
		some = m.rng.IntN(int(op.Bytes) + 1)
	}
	switch with {
	case powerCut:
		m.after = m.mem.Crash(m.rng)
	case killed:
		if op.Kind == disk.OpWrite {
			return disk.Fault{Err: disk.ErrGone, Bytes: some}
		}
		m.after = m.mem.Kill()
	case refused:
		return disk.Fault{Err: errDevice, Bytes: some}
	case behind:
		return disk.Fault{Err: errDevice, Done: true}
	case short:
		return disk.Fault{Short: true, Bytes: min(some, max(0, int(op.Bytes)-1))}
	case full:
		return disk.Fault{Err: syscall.ENOSPC, Bytes: some}
	}
	return disk.Fault{}
}

// world is a disk, a book on it, now and then, and its callers. A call that
// fails the test panics with a failure, to be caught where the case is named.
type world struct {
	rng     *rand.Rand
	disk    *machine
	know    *knowledge
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
	tight      bool // the disk has an end
}

type failure string

func fail(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func newWorld(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	return &world{rng: rng, disk: &machine{mem: disk.NewMem(), rng: rng}, clock: time.Unix(1_800_000_000, 0), segment: 3000, crowd: 10, did: map[string]bool{},
		know: &knowledge{limits: map[string][]int64{"": {-1}, "a": {-1}}}}
}

// copy is the same world before the next process starts, with chance of its own.
func (w *world) copy(seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	return &world{rng: rng, disk: &machine{mem: w.disk.mem.Kill(), rng: rng}, clock: w.clock, segment: w.segment, crowd: w.crowd, know: w.know.clone(), trace: w.trace, did: map[string]bool{}}
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
	w.poisoned = false
	f, err := journal.OpenFile(bookDir, journal.FileOptions{FS: w.fs(), SegmentBytes: w.segment})
	if err != nil {
		w.say("open: %v", err)
		w.excuse("open", err)
		return false
	}
	w.file = &heldBack{File: f}
	b, err := budget.New(context.Background(), w.file, budget.OnOrphan(policy), budget.Clock(func() time.Time {
		w.clock = w.clock.Add(time.Second)
		return w.clock
	}))
	for _, t := range w.know.tickets {
		var closed []standing
		for i, s := range t.may {
			if policy == budget.OrphanAssume && s.state == budget.StateOpen {
				closed = append(closed, s.assumedClosed(t.hold))
				if err == nil {
					t.may[i] = closed[len(closed)-1]
				}
			}
		}
		if err != nil {
			t.may = append(t.may, closed...)
		}
	}
	if err != nil {
		w.say("open: %v", err)
		w.excuse("open", err)
		w.excuse("close", f.Close())
		return false
	}
	w.say("opened: %+v, orphans %s", f.Recovery(), policy)
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
	for e, err := range w.dir().History() {
		if err == nil {
			err = folded.add(&e)
		}
		if err != nil {
			fail("history: %v", err)
		}
		audit.Add(&e)
	}
	if len(audit.Violations)+len(audit.MultiClosed) > 0 {
		fail("audit: %v, closed twice: %v", audit.Violations, audit.MultiClosed)
	}
	if folded.opens > w.opens {
		w.did["rotate"] = true
	}
	report := w.book.Report()
	if err := w.know.compare(folded, &report); err != nil {
		fail("%v", err)
	}
	for _, t := range w.know.tickets {
		is, _ := t.is()
		receipt, err := w.book.Reservation(t.rid).Receipt(context.Background())
		if errors.Is(err, budget.ErrUnknown) && !t.named && is.state == budget.StateSettled && is.assumed == 0 {
			continue // nobody can name it any more
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
	switch {
	case err == nil:
		c.t.may = []standing{c.then}
		if c.then.state > budget.StateOpen && len(c.maybe) > 0 {
			c.t.closed = c.do
		}
		if c.asked > 0 {
			if err := w.know.overAdmitted(c.t.scope); err != nil {
				fail("%s: %v", c.what, err)
			}
		}
		if len(c.maybe) == 0 && r.Booked {
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
	for _, err := range errs {
		w.poisoned = w.poisoned || errors.Is(err, journal.ErrPoisoned)
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
			t.rid = r.RID()
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
	ctx := context.Background()
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
			return budget.Receipt{}, b.Reservation(t.rid).Extend(ctx, outcome, "again")
		})
		c.then.last = w.billed(t.hold)
		c.then.bill += c.then.last
	case s.state == budget.StateOpen && choice < 5:
		closing("settle", s.settled(t.hold), func(b *budget.Book) (budget.Receipt, error) { return b.Reservation(t.rid).Settle(ctx, usage(s.last)) })
	case s.state == budget.StateOpen && choice < 6 && s.last == 0:
		closing("refund", s.refunded(t.hold), func(b *budget.Book) (budget.Receipt, error) {
			return b.Reservation(t.rid).Refund(ctx, budget.NotBilled, "429")
		})
	case s.state == budget.StateOpen:
		closing("close", s.assumedClosed(t.hold), func(b *budget.Book) (budget.Receipt, error) { return budget.Receipt{}, b.Reservation(t.rid).Close() })
	case s.state == budget.StateRefunded && choice < 3:
		s.last = w.some(t.hold)
		s.bill += s.last
		closing("reclaim", s.reclaimed(t.hold), func(b *budget.Book) (budget.Receipt, error) { return b.Reservation(t.rid).Reclaim(ctx) })
	case s.state == budget.StateRefunded && choice < 6: // two entries, which a crash may part
		s.last = w.some(t.hold)
		s.bill += s.last
		c.maybe = []standing{s.reclaimed(t.hold)}
		closing("settle late", s.reclaimed(t.hold).learnt(t.hold), func(b *budget.Book) (budget.Receipt, error) { return b.Reservation(t.rid).Settle(ctx, usage(s.last)) })
	case s.unsure && choice < 3:
		closing("settle late", s.learnt(t.hold), func(b *budget.Book) (budget.Receipt, error) { return b.Reservation(t.rid).Settle(ctx, usage(s.last)) })
	case s.state == budget.StateSettled && choice < 6 && (s.unsure || len(s.lost) > 0):
		used := s.last
		if len(s.lost) > 0 {
			used = s.lost[0]
		}
		t.evidence++
		evidence := budget.Evidence{Key: fmt.Sprintf("proof %d", t.evidence), Usage: usage(used)}
		closing("adjust", s.proved(t.hold), func(b *budget.Book) (budget.Receipt, error) { return b.Reservation(t.rid).Adjust(ctx, evidence) })
	case t.closed != nil && choice < 7: // says what it said, and changes nothing
		c.what, c.do = "repeat", t.closed
	default: // the one that was deferred
		c.what, c.do = "close again", func(b *budget.Book) (budget.Receipt, error) { return budget.Receipt{}, b.Reservation(t.rid).Close() }
	}
	return c
}

// touchable returns the tickets that somebody can act on: where they stand is
// certain, and the book can still name them.
func (w *world) touchable() (some []*ticket) {
	for _, t := range w.know.tickets {
		if s, certain := t.is(); certain && s.state != 0 && (t.named || s.state != budget.StateSettled || s.assumed > 0) {
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

// step is one thing that happens in the life of a process. It reports whether
// the life goes on.
func (w *world) step() bool {
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
	case n < 91:
		w.room(w.disk.mem.Used() + w.rng.Int64N(4000))
	case n < 94:
		w.room(-1)
	case n < 97:
		w.check()
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

// attempt runs f and returns how it failed, if it did.
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

// tracing logs every step of a case that is looked into.
func (w *world) tracing(t *testing.T) *world {
	w.trace = t.Logf
	return w
}
