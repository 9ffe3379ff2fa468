package budget_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// simulation is a batch of items that one process after the other works on: each
// opens the same book and the same state on the same disk, talks to the same
// provider, and ends somehow.
type simulation struct {
	seed     uint64
	rng      *rand.Rand
	say      func(format string, args ...any)
	style    style
	items    []simItem
	provider *providertest.Provider
	net      http.RoundTripper
	disk     *disk.Mem
	ledger   simLedger // what must be in the book
	lives    int
	calm     bool  // no trouble any more: the batch is to end
	cap      int64 // tokens
	trace    uint64

	mu     sync.Mutex // momentary: nothing waits while it is held
	wrong  error      // the first promise that was broken
	counts simCounts
}

func (w *simulation) count(f func(*simCounts)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.counts)
}

// simCounts is what was met, so that a test can tell that it met it.
type simCounts struct{ seeds, lives, steps, crashes, pauses, troubles, sent, entries, late, strayed int }

// style is what one seed is like.
type style struct {
	faults    providertest.Faults
	overruns  bool // answers may be longer than their cap
	onAbort   middleware.AbortPolicy
	orphans   budget.OrphanPolicy
	workers   int
	shards    int
	segment   int64
	attempts  int
	refusals  float64 // dials that fail, and requests that break off
	wayward   float64 // callers that do not read to the end
	maxWait   time.Duration
	tight     bool  // the cap does not do for all
	least     int64 // of CapOutput; 0: none
	diskRoom  bool  // the disk may be full
	lifetimes int
}

// exact reports whether the book never shows less than the bill.
func (s *style) exact() bool {
	return !s.overruns && s.onAbort != middleware.ObservedOnAbort && s.orphans != budget.OrphanRefund
}

type simItem struct {
	name string
	path string
	body string
}

// newSimulation must be called in the bubble.
func newSimulation(seed uint64, say func(string, ...any)) *simulation {
	rng := rand.New(rand.NewPCG(seed, 4))
	w := &simulation{seed: seed, rng: rng, say: say, disk: disk.NewMem()}
	s := &w.style
	s.faults = providertest.Faults{}
	for _, kind := range providertest.Kinds() {
		if kind != providertest.Overrun && rng.IntN(3) > 0 {
			s.faults[kind] = rng.Float64() * 0.08
		}
	}
	if s.overruns = rng.IntN(8) == 0; s.overruns {
		s.faults[providertest.Overrun] = 0.1
	}
	s.onAbort = []middleware.AbortPolicy{middleware.ChargeHold, middleware.ChargeHold, middleware.DrainOnAbort, middleware.DrainOnAbort, middleware.ObservedOnAbort}[rng.IntN(5)]
	s.orphans = []budget.OrphanPolicy{budget.OrphanAssume, budget.OrphanAssume, budget.OrphanAssume, budget.OrphanAssume, budget.OrphanKeep, budget.OrphanRefund}[rng.IntN(6)]
	s.workers, s.shards, s.attempts = 1+rng.IntN(6), 1+rng.IntN(3), 1+rng.IntN(4)
	s.segment = []int64{2_000, 5_000, 50_000}[rng.IntN(3)]
	s.refusals = []float64{0, 0.05, 0.2}[rng.IntN(3)]
	s.wayward = []float64{0, 0.2, 0.5}[rng.IntN(3)]
	s.maxWait = []time.Duration{0, time.Second, time.Minute}[rng.IntN(3)]
	s.tight, s.diskRoom = rng.IntN(2) == 0, rng.IntN(5) == 0
	s.lifetimes, s.least = 1+rng.IntN(5), []int64{0, 0, 3}[rng.IntN(3)]
	longest := []int{12, 12, 12, 60}[rng.IntN(4)]
	for i := range 3 + rng.IntN(8) {
		w.items = append(w.items, newItem(i, longest, rng))
	}
	w.cap = 1_000_000
	if s.tight {
		w.cap = 200 + rng.Int64N(1200)
	}
	w.provider = providertest.New(providertest.Options{Seed: seed, Pick: w.pickFault, Longest: longest, StallFor: 20 * time.Second,
		Latency: 20 * time.Millisecond, ChunkLatency: 5 * time.Millisecond, RetryAfter: 50 * time.Millisecond, BillAsSent: rng.IntN(3) == 0})
	w.net = w.provider.RoundTripper()
	w.disk.Mkdir("state")
	if err := errors.Join(w.disk.SyncDir("state"), w.disk.SyncDir(".")); err != nil {
		panic(err)
	}
	w.ledger = newSimLedger()
	return w
}

func newItem(i, longest int, rng *rand.Rand) simItem {
	it := simItem{name: fmt.Sprintf("item-%d", i)}
	text := strings.Repeat("word ", 1+rng.IntN(120/longest)) + it.name
	switch rng.IntN(6) {
	case 0:
		it.path, it.body = "/v1/embeddings", fmt.Sprintf(`{"model":"text-embedding-3-small","input":%q}`, text)
	case 1:
		it.path, it.body = "/v1/completions", fmt.Sprintf(`{"model":"gpt-3.5-turbo-instruct","max_tokens":%d,"prompt":%q}`, 1+rng.IntN(3*longest), text)
	default:
		it.path, it.body = "/v1/chat/completions", fmt.Sprintf(`{"model":"gpt-4o","stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, rng.IntN(3) > 0, 1+rng.IntN(3*longest), text)
	}
	return it
}

// pickFault draws by the seed, the request and the attempt.
func (w *simulation) pickFault(r providertest.Request) providertest.Fault {
	if w.calm {
		return ""
	}
	u := chance(w.seed, string(r.Body), r.Attempt).Float64()
	for _, kind := range providertest.Kinds() {
		if u -= w.style.faults[kind]; u < 0 {
			return kind
		}
	}
	return ""
}

// chance is that of one thing, whatever else happens before.
func chance(seed uint64, of string, n int) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, c := range []byte(of) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed^uint64(n)<<48, h))
}

func (w *simulation) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == nil {
		w.wrong = fmt.Errorf("life %d: %w", w.lives, fmt.Errorf(format, args...))
	}
}

func (w *simulation) tell(format string, args ...any) {
	if w.say != nil {
		w.say(format, args...)
	}
}

// run leads lives until the batch is done, and judges the end.
func (w *simulation) run() error {
	for over := false; !over && w.wrong == nil; {
		w.lives++
		w.counts.lives++
		if w.calm = w.lives > w.style.lifetimes; w.calm {
			w.cap = 10_000_000
		}
		if w.lives > w.style.lifetimes+4 {
			w.fail("the batch does not come to its end")
			break
		}
		over = w.live() && w.calm
	}
	if w.wrong == nil {
		w.judge()
	}
	w.provider.Close()
	return w.wrong
}

// process is one life.
type process struct {
	*simulation
	*scheduler
	rng      *rand.Rand // of this life
	machine  *machine
	dead     atomic.Bool     // and nothing that it does reaches the outside
	finished map[string]bool // items that had ended when it began
	file     *journal.File
	book     *budget.Book
	guard    *middleware.Guard
	sum      checkpoint.Summary
	err      error
	opened   bool
	broken   atomic.Bool      // a trouble was met: errors are excused
	unbooked atomic.Bool      // a close could not be written
	sends    map[string]int64 // attempts that left, by key
}

// closeErrors hears of closes that could not be written: the guard logs nothing
// else as an error.
type closeErrors struct {
	slog.Handler
	p *process
}

func (c closeErrors) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}

func (c closeErrors) Handle(context.Context, slog.Record) error {
	c.p.unbooked.Store(true)
	return nil
}

// live is one process, from its start to its end. It reports whether that was
// clean, with nothing left to do.
func (w *simulation) live() (over bool) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(w.lives)))
	p := &process{simulation: w, scheduler: newScheduler(rng), rng: rng, machine: &machine{mem: w.disk, rng: rng}, sends: map[string]int64{}}
	p.scheduler.say, p.scheduler.check, p.scheduler.die = w.say, p.checkNow, p.kill
	p.finished = w.endedItems(w.disk)
	if w.calm { // nothing takes too long
		p.passes = []time.Duration{time.Millisecond}
	} else {
		switch rng.IntN(4) {
		case 0:
			p.last = 1 + rng.IntN(400)
		case 1, 2:
			p.machine.plan = []strike{{powerCut + trouble(rng.IntN(6)), 1 + rng.IntN(80)}, {powerCut + trouble(rng.IntN(6)), 1 + rng.IntN(30)}}[:1+rng.IntN(2)]
		}
		if w.style.diskRoom {
			w.disk.SetCapacity(w.disk.Used() + 200_000 + rng.Int64N(100_000))
		}
	}
	w.tell("style %+v", w.style)
	w.tell("life %d: cap %d, calm %t, ends at step %d, %v", w.lives, w.cap, w.calm, p.last, p.machine.plan)
	over1 := make(chan struct{})
	go func() {
		defer close(over1)
		p.main()
	}()
	p.scheduler.run(over1)
	w.trace = w.trace*31 + p.scheduler.trace
	w.counts.steps += p.steps
	return p.end()
}

// kill ends the life at once: a power cut, or the end of the process alone.
func (p *process) kill(why string) {
	if p.dead.Load() {
		return
	}
	if p.rng.IntN(2) == 0 {
		p.note("power cut: %s", why)
		p.machine.after = p.machine.mem.Crash(p.rng)
	} else {
		p.note("killed: %s", why)
		p.machine.after = p.machine.mem.Kill()
	}
	p.machine.dead = true
	p.died()
}

func (p *process) died() {
	p.dead.Store(true)
	p.count(func(c *simCounts) { c.crashes++ })
	p.release()
}

// fs is the disk: every operation that changes it waits for its turn.
func (p *process) fs() disk.FS {
	return gatedFS{disk.Failing(p.machine.mem, func(op disk.Op) disk.Fault {
		before := p.machine.found
		f := p.machine.fault(op)
		if p.machine.found && !before {
			p.count(func(c *simCounts) { c.troubles++ })
			p.note("trouble at %s", op)
			p.broken.Store(true)
		}
		if p.machine.dead && !p.dead.Load() {
			if p.machine.after == nil { // killed in the middle of a write: as soon as that is made
				return f
			}
			p.died()
		}
		return f
	}), p}
}

// main is what the program does.
func (p *process) main() {
	ctx := context.Background()
	orphans := p.style.orphans
	if p.calm {
		orphans = budget.OrphanAssume
	}
	if p.style.orphans == budget.OrphanRefund && p.calm {
		orphans = budget.OrphanRefund
	}
	opened := func(f *journal.File) budget.Journal {
		p.file = f
		p.ledger.opening = true
		return f
	}
	var err error
	p.book, err = budget.OpenFile(ctx, "book", journal.FileOptions{FS: p.fs(), SegmentBytes: p.style.segment}, opened, budget.Tokens(p.cap), budget.OnOrphan(orphans), budget.Observe(p.observe))
	if err != nil {
		p.excuse("open", err)
		return
	}
	p.opened = true
	p.begin()
	options := []middleware.Option{}
	if p.style.least > 0 {
		options = append(options, middleware.CapOutput(p.style.least))
	}
	p.guard = middleware.Transport(p.book, append(options, middleware.Base(p), middleware.OnAbort(p.style.onAbort), middleware.MaxWait(p.style.maxWait), middleware.Logger(slog.New(closeErrors{slog.DiscardHandler, p})),
		middleware.Bounds(meter.Options{DefaultOutput: 30}), middleware.Timeouts(3*time.Second, 2*time.Second),
		middleware.Retry(retry.Policy{Attempts: p.style.attempts, LongestWait: 2 * time.Second, Backoff: func(n int) time.Duration { return time.Duration(n) * 40 * time.Millisecond }}))...)
	p.sum, p.err = checkpoint.RunTasks(ctx, simSource(p.items), checkpoint.Options[simItem]{
		Dir: "state", Key: func(it simItem) string { return it.name }, Shards: p.style.shards, Workers: p.style.workers, FS: p.fs(),
		IsPause: middleware.IsPause, RetryDead: p.calm, Outputs: []checkpoint.Output{{Path: "out.jsonl", Key: lineKey}},
	}, p.item)
	p.guard.Wait()
	p.gate("the end of the run")
	p.finish()
}

type simSource []simItem

func (s simSource) Len() int                  { return len(s) }
func (s simSource) At(i int) (simItem, error) { return s[i], nil }

func lineKey(line []byte) (string, error) {
	var l struct{ Item string }
	err := json.Unmarshal(line, &l)
	return l.Item, err
}

type simKey struct{}

// item is what the caller's function does with one item.
func (p *process) item(ctx context.Context, t checkpoint.Task[simItem]) (checkpoint.Line, error) {
	it := t.Item
	rng := chance(p.seed, it.name, p.lives*100+t.Start)
	p.gate("start %s", it.name)
	key := fmt.Sprintf("%s/%d/%d", it.name, p.lives, t.Start)
	var receipts []budget.Receipt
	ctx, cancel := context.WithCancel(context.WithValue(middleware.WithReceipt(middleware.WithKey(middleware.WithScope(ctx, t.ShardName()), key), func(r budget.Receipt) {
		receipts = append(receipts, r)
	}), simKey{}, key))
	defer cancel()
	wayward := !p.calm && rng.Float64() < p.style.wayward
	way := rng.IntN(4)
	if wayward && way == 0 { // its time is short
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, time.Duration(rng.IntN(4000))*time.Millisecond)
		defer end()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider"+it.path, strings.NewReader(it.body))
	if err != nil {
		panic(err)
	}
	resp, err := p.guard.RoundTrip(req)
	p.gate("back %s", it.name)
	status := 0
	if err == nil {
		status = resp.StatusCode
		err = p.read(it.name, key, resp, cancel, wayward, way, rng)
	}
	if !p.dead.Load() && len(receipts) == 1 {
		p.observers(it.name, key, receipts[0], rng)
	}
	switch {
	case err != nil && middleware.IsPause(err):
		p.count(func(c *simCounts) { c.pauses++ })
		return checkpoint.Line{}, err
	case err == nil && status == http.StatusOK:
		return checkpoint.Line{JSON: fmt.Appendf(nil, `{"item":%q,"life":%d}`, it.name, p.lives)}, nil
	case err == nil:
		err = fmt.Errorf("HTTP %d", status)
	}
	switch rng.IntN(4) {
	case 0:
		return checkpoint.Line{}, checkpoint.Dead(p.style.attempts, err)
	case 1:
		if t.Start < 3 {
			return checkpoint.Line{}, checkpoint.Later(time.Now().Add(300*time.Millisecond), err)
		}
	}
	return checkpoint.Line{}, err
}

// read reads an answer, or leaves it half-way: closes it, cancels, or forgets it,
// and lets its context end.
func (p *process) read(name, key string, resp *http.Response, cancel func(), wayward bool, way int, rng *rand.Rand) error {
	if !wayward || way == 0 {
		defer resp.Body.Close()
		_, err := io.Copy(io.Discard, resp.Body)
		if err == nil {
			p.delivered(key)
		}
		return err
	}
	io.CopyN(io.Discard, resp.Body, rng.Int64N(600))
	p.gate("leave %s", name)
	switch way {
	case 1:
		return resp.Body.Close()
	case 2:
		cancel()
		return resp.Body.Close()
	}
	cancel()
	return nil
}

// observers call again what is closed already: a poll beside a callback, a
// success after all. None of it may count twice.
func (p *process) observers(name, key string, r budget.Receipt, rng *rand.Rand) {
	ctx := context.Background()
	for range rng.IntN(3) {
		p.gate("observe %s", name)
		res := p.book.Reservation(r.RID)
		var again budget.Receipt
		var err error
		switch rng.IntN(3) {
		case 0:
			again, err = res.Reclaim(ctx)
		case 1:
			again, err = res.Receipt(ctx)
		case 2:
			err = res.Close()
			again = r
		}
		p.count(func(c *simCounts) { c.late++ })
		switch {
		case err != nil:
			p.excuse("observe", err)
		case r.State == budget.StateSettled && (again.Booked || again.Confirmed != r.Confirmed || again.Assumed != r.Assumed) && again.RID == r.RID && again != r:
			p.fail("the reservation of %s was closed with %+v, and a late call makes %+v of it", key, r, again)
		case err == nil && again.State != 0:
			again.Booked = r.Booked
			r = again
		}
	}
}

// RoundTrip is the network: the base of the guard.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	key, _ := r.Context().Value(simKey{}).(string)
	name, _, _ := strings.Cut(key, "/")
	p.gate("send %s", name)
	if p.dead.Load() {
		return nil, errNetwork
	}
	rng := chance(p.seed, key, int(p.sends[key]))
	if !p.calm && rng.Float64() < p.style.refusals {
		if rng.IntN(2) == 0 {
			p.note("no connection for %s", name)
			return nil, errNetwork
		}
		p.note("%s breaks off in the request", name)
		io.CopyN(io.Discard, r.Body, 5)
		return nil, errNetwork
	}
	p.sent(key, name)
	resp, err := p.net.RoundTrip(r)
	p.gate("answer %s", name)
	if err != nil {
		return nil, err
	}
	resp.Body = &simBody{resp.Body, p, name}
	if p.dead.Load() {
		resp.Body.Close()
		return nil, errNetwork
	}
	return resp, nil
}

var errNetwork = errors.New("the network fails")

// simBody is a body whose bytes come when the scheduler says.
type simBody struct {
	io.ReadCloser
	p    *process
	name string
}

func (b *simBody) Read(to []byte) (int, error) {
	b.p.gate("read %s", b.name)
	if b.p.dead.Load() {
		return 0, errNetwork
	}
	return b.ReadCloser.Read(to[:min(len(to), 200)])
}

// gatedFS waits for its turn before each operation that changes something.
type gatedFS struct {
	disk.FS
	p *process
}

func (f gatedFS) Mkdir(d string) error { f.p.gate("disk: mkdir %s", d); return f.FS.Mkdir(d) }
func (f gatedFS) Rename(from, to string) error {
	f.p.gate("disk: rename %s", to)
	return f.FS.Rename(from, to)
}
func (f gatedFS) Remove(n string) error  { f.p.gate("disk: remove %s", n); return f.FS.Remove(n) }
func (f gatedFS) SyncDir(d string) error { f.p.gate("disk: sync dir %s", d); return f.FS.SyncDir(d) }
func (f gatedFS) Create(n string) (disk.File, error) {
	f.p.gate("disk: create %s", n)
	return f.file(n, f.FS.Create)
}
func (f gatedFS) Append(n string) (disk.File, error) { return f.file(n, f.FS.Append) }

func (f gatedFS) file(n string, open func(string) (disk.File, error)) (disk.File, error) {
	file, err := open(n)
	if err != nil {
		return nil, err
	}
	return gatedFile{file, n, f.p}, nil
}

type gatedFile struct {
	disk.File
	name string
	p    *process
}

func (f gatedFile) Write(b []byte) (int, error) {
	f.p.gate("disk: write %s", f.name)
	return f.File.Write(b)
}

func (f gatedFile) Sync() error {
	f.p.gate("disk: sync %s", f.name)
	return f.File.Sync()
}

// endedItems reads which items have ended, as the next process finds them.
func (w *simulation) endedItems(on *disk.Mem) map[string]bool {
	ended := map[string]bool{}
	f, err := on.Open("out.jsonl")
	if errors.Is(err, os.ErrNotExist) {
		return ended
	}
	if err != nil {
		w.fail("out.jsonl: %v", err)
		return ended
	}
	defer f.Close()
	size, _ := f.Size()
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && err != io.EOF {
		w.fail("out.jsonl: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, "\n") {
			continue // torn, and not done
		}
		name, err := lineKey([]byte(line))
		if err != nil {
			continue
		}
		if ended[name] {
			w.fail("I9: two lines of %s", name)
		}
		ended[name] = true
	}
	return ended
}
