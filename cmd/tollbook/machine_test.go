package main

// Real processes over a real disk: what kills, faults of the system, full disks
// and readers beside a writer do to a book. These tests promise what no fake
// can: that the whole way down to the device behaves as the rules assume.
//
// Each runs a few seconds by default. The long forms:
//
//	go test ./cmd/tollbook -run Machine -machine.kills 1000 -machine.all -machine.images 100
//
// Here are the writer, a process that calls a book and says what it was
// answered, and the claims, which hold that against the book.

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// A writer's call has a key, and the key says everything about it: how much is
// held and used, and what is done in which order. So whoever knows the keys
// knows what may stand in the book, and nothing needs to be agreed.

// course is the way of one reservation: each step is one call and writes one entry.
type course []step

type step struct {
	kind   journal.Kind
	amount int64 // of the entry
	call   func(ctx context.Context, r *budget.Reservation) error
}

// courseOf returns the course that belongs to a key.
func courseOf(key string) course {
	h := fnv.New64a()
	io.WriteString(h, key)
	n := h.Sum64()
	hold, used := int64(100+n>>8%100), int64(1+n>>16%120) // sometimes above the hold
	reserve := step{journal.Reserve, hold, nil}
	extend := step{journal.Extend, hold, func(ctx context.Context, r *budget.Reservation) error {
		return r.Extend(ctx, budget.MaybeBilled, "timeout")
	}}
	extendFree := step{journal.Extend, 0, func(ctx context.Context, r *budget.Reservation) error {
		return r.Extend(ctx, budget.NotBilled, "429")
	}}
	settle := step{journal.Settle, used - hold, func(ctx context.Context, r *budget.Reservation) error {
		_, err := r.Settle(ctx, budget.Usage{Input: used})
		return err
	}}
	assume := step{journal.Settle, 0, func(_ context.Context, r *budget.Reservation) error { return r.Close() }}
	late := step{journal.Adjust, used - hold, settle.call}
	refund := step{journal.Refund, -hold, func(ctx context.Context, r *budget.Reservation) error {
		_, err := r.Refund(ctx, budget.NotBilled, "429")
		return err
	}}
	reclaim := step{journal.Reclaim, hold, func(ctx context.Context, r *budget.Reservation) error {
		_, err := r.Reclaim(ctx)
		return err
	}}
	adjust := step{journal.Adjust, used - hold, func(ctx context.Context, r *budget.Reservation) error {
		_, err := r.Adjust(ctx, budget.Evidence{Key: "report", Usage: budget.Usage{Input: used}})
		return err
	}}
	switch n % 16 {
	case 0:
		return course{reserve, refund}
	case 1:
		return course{reserve, refund, reclaim, adjust}
	case 2:
		return course{reserve, assume, late}
	case 3:
		return course{reserve} // left open
	case 4, 5:
		return course{reserve, extend, settle}
	case 6, 7:
		return course{reserve, extendFree, extend, settle}
	default:
		return course{reserve, settle}
	}
}

// What a writer says of each step, after the call returned.
const (
	saysDone    = "done"    // it is booked
	saysRefused = "refused" // it is not, for certain: the disk is full, or the book admits nothing more
	saysUnknown = "unknown" // it may be: the write failed
	saysFailed  = "failed"  // an error that should not be
)

// writerMain is the writer as a process. It opens the book when a line "open"
// comes on standard input and says "opened" or "locked", works until the
// book refuses it or it has served its keys, closes the book, says "closed", and waits
// for the next. It ends with its input.
func writerMain() {
	flags := flag.NewFlagSet("tollwriter", flag.ExitOnError)
	name := flags.String("name", "w", "begins its keys")
	workers := flags.Int("workers", 8, "goroutines; 1 stays on one thread")
	keys := flags.Int("keys", 0, "keys for each of them; 0: no end")
	segment := flags.Int64("segment", 64<<10, "bytes of a segment")
	full := flags.Int("full", 0, "one write in so many finds the disk full; 0: none")
	flags.Parse(os.Args[1:])
	if *workers == 1 {
		runtime.LockOSThread() // strace counts calls by thread
	}
	w := writer{name: *name, workers: *workers, keys: *keys, dir: bookOf(flags.Arg(0)), out: os.Stdout,
		options: journal.FileOptions{SegmentBytes: *segment, FS: disk.OS()}}
	if *full > 0 {
		w.options.FS = disk.Failing(disk.OS(), func(op disk.Op) disk.Fault {
			if op.Kind != disk.OpWrite || rand.IntN(*full) > 0 {
				return disk.Fault{}
			}
			return disk.Fault{Err: syscall.ENOSPC, Short: true, Bytes: rand.IntN(int(op.Bytes))}
		})
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		w.round++
		w.open()
	}
}

type writer struct {
	name          string
	workers, keys int
	options       journal.FileOptions
	dir           string
	round         int

	mu  sync.Mutex
	out io.Writer
}

func (w *writer) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, format+"\n", args...) // one write
}

func (w *writer) open() {
	book, err := openBook(w.dir, w.options)
	switch {
	case errors.Is(err, journal.ErrLocked):
		w.say("locked")
		return
	case err != nil:
		w.say("unopened %v", err)
		return
	}
	w.say("opened")
	if w.workers == 1 {
		w.work(book, 0)
	} else {
		var all sync.WaitGroup
		for n := range w.workers {
			all.Go(func() { w.work(book, n) })
		}
		all.Wait()
	}
	if err := book.Close(); err != nil {
		w.say("closed %v", err)
		return
	}
	w.say("closed")
}

func openBook(dir string, options journal.FileOptions) (*budget.Book, error) {
	j, err := journal.OpenFile(dir, options)
	if err != nil {
		return nil, err
	}
	book, err := budget.New(context.Background(), j)
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return book, nil
}

// work serves one key after another, until the book has refused a few.
func (w *writer) work(book *budget.Book, n int) {
	const enough = 3
	for i, refused := 0, 0; (w.keys == 0 || i < w.keys) && refused < enough; i++ {
		if w.serve(book, fmt.Sprintf("%s.%d.%d.%d", w.name, w.round, n, i)) != nil {
			refused++
		}
	}
}

// serve leads one reservation on its course, as far as it comes.
func (w *writer) serve(book *budget.Book, key string) error {
	ctx := context.Background()
	var r *budget.Reservation
	for n, s := range courseOf(key) {
		var err error
		if s.kind == journal.Reserve {
			r, err = book.Reserve(ctx, budget.Request{Key: key, Tokens: s.amount, Scope: "a/b"})
		} else {
			err = s.call(ctx, r)
		}
		switch {
		case err == nil:
			w.say("%s %s %d", saysDone, key, n+1)
			continue
		case errors.Is(err, budget.ErrBroken), errors.Is(err, journal.ErrFull):
			w.say("%s %s %d", saysRefused, key, n+1)
		case errors.Is(err, journal.ErrPoisoned):
			w.say("%s %s %d", saysUnknown, key, n+1)
		default:
			w.say("%s %s %d %v", saysFailed, key, n+1, err)
		}
		return err
	}
	return nil
}

// claims are what writers said: for each key, how many steps are booked, and
// whether the next surely is not.
type claims struct {
	mu      sync.Mutex
	done    map[string]int
	refused map[string]bool
	steps   int
	failed  []string
}

func newClaims() *claims { return &claims{done: map[string]int{}, refused: map[string]bool{}} }

func (c *claims) hear(says, key string, n int, line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch says {
	case saysDone:
		c.steps++
		c.done[key] = n
	case saysRefused:
		c.refused[key] = true
	case saysFailed:
		c.failed = append(c.failed, line)
	}
}

// count is how many steps were said to be done so far.
func (c *claims) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

// reaches waits until so many steps were said to be done.
func (c *claims) reaches(t *testing.T, steps int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.count() >= steps }, 20*time.Second, time.Millisecond)
}

// refusals is how many steps were said to be refused so far.
func (c *claims) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.refused)
}

// sofar is what a copy of the book taken from now on must hold at least.
func (c *claims) sofar() *claims {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := newClaims()
	now.steps = c.steps
	for key, n := range c.done {
		now.done[key] = n
	}
	return now
}

// hold checks a book that nobody writes: what was said to be booked is there
// once and in its order, what was refused is not, nothing else was made up, and
// the bytes and the rules are in order. later: steps that were taken after the
// claims were made may be there too.
func (c *claims) hold(t *testing.T, dir string, later bool) {
	t.Helper()
	require.Empty(t, c.failed)
	bytes, err := journal.Dir{Path: dir}.Verify()
	require.NoError(t, err)
	require.False(t, bytes.Damaged(), "%v", bytes.Findings)

	audit := budget.NewAudit()
	keys, found := map[string]string{}, map[string][]journal.Entry{} // rid -> key, key -> its entries
	for e, err := range (journal.Dir{Path: dir}).History() {
		require.NoError(t, err)
		audit.Add(&e)
		if e.Carried || e.Kind == journal.Open || e.Kind == journal.Limit {
			continue
		}
		key, known := keys[e.RID]
		if e.Kind == journal.Reserve {
			_, served := found[e.Key]
			require.False(t, known || served, "%s is served twice", e.Key)
			key, known = e.Key, true
			keys[e.RID] = key
		}
		require.True(t, known, "%s of a rid that was never reserved", e.Kind)
		found[key] = append(found[key], e)
	}
	require.Empty(t, audit.Violations)
	require.Empty(t, audit.MultiClosed)

	for key, entries := range found {
		want := courseOf(key)
		n := 0
		for i, e := range entries {
			if e.Why == "orphan" { // by who opened the book after its owner was gone
				require.Equal(t, len(entries)-1, i, "%s goes on after its owner was gone", key)
				require.Equal(t, journal.Settle, e.Kind)
				break
			}
			require.Less(t, i, len(want), "%s has more entries than calls", key)
			require.Equal(t, want[i].kind, e.Kind, "%s step %d", key, i+1)
			require.Equal(t, want[i].amount, e.Amount, "%s step %d", key, i+1)
			n++
		}
		require.GreaterOrEqual(t, n, c.done[key], "%s: acknowledged and lost", key)
		if !later {
			most := c.done[key] + 1 // one call was on its way
			if c.refused[key] {
				most--
			}
			require.LessOrEqual(t, n, most, "%s: booked, though nobody asked or it was refused", key)
		}
	}
	for key := range c.done {
		require.NotEmpty(t, found[key], "%s: acknowledged and lost", key)
	}
}

// writing is a writer's process.
type writing struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   chan string // all but claims
	ended  chan struct{}
	ending sync.Once
}

// startWriter starts a writer over a state directory, which waits to be told to
// open its book. under is a command to run it under, such as strace.
func startWriter(t *testing.T, c *claims, under []string, args ...string) *writing {
	t.Helper()
	link := filepath.Join(t.TempDir(), "tollwriter") // testscript.Main goes by the name
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, link))
	line := append(append(under[:len(under):len(under)], link), args...)
	w := &writing{t: t, cmd: exec.Command(line[0], line[1:]...), said: make(chan string, 16), ended: make(chan struct{})}
	w.in, err = w.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	w.cmd.Stderr = os.Stderr
	require.NoError(t, w.cmd.Start())
	t.Cleanup(w.kill)
	go func() {
		defer close(w.ended)
		defer close(w.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			word := strings.SplitN(lines.Text(), " ", 4)
			if len(word) >= 3 && (word[0] == saysDone || word[0] == saysRefused || word[0] == saysUnknown || word[0] == saysFailed) {
				n, err := strconv.Atoi(word[2])
				if err != nil {
					break // cut by a kill
				}
				c.hear(word[0], word[1], n, lines.Text())
				continue
			}
			w.said <- lines.Text()
		}
	}()
	return w
}

// open tells it to open the book.
func (w *writing) open() {
	w.t.Helper()
	_, err := io.WriteString(w.in, "open\n")
	require.NoError(w.t, err)
}

// hears returns the next thing it says besides its claims; empty at its end.
func (w *writing) hears() string { return <-w.said }

// kill kills it and hears it out.
func (w *writing) kill() {
	w.ending.Do(func() {
		w.cmd.Process.Kill()
		w.hearOut()
	})
}

// end lets it end by itself.
func (w *writing) end() *os.ProcessState {
	w.ending.Do(func() {
		w.in.Close()
		w.hearOut()
	})
	return w.cmd.ProcessState
}

func (w *writing) hearOut() {
	for range w.said {
	}
	<-w.ended
	w.cmd.Wait()
}

// verifies runs the real command over a state.
func verifies(t *testing.T, state string) {
	t.Helper()
	p := start(t, "verify", state)
	require.Equal(t, exitDone, p.exit(), "%s%s", &p.stdout, &p.said)
}
