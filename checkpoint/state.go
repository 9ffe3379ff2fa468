package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// state is what a state directory knows: which items have ended. It costs three
// bits an item.
type state struct {
	fsys  disk.FS
	dir   string // the directory of the cursors
	lock  io.Closer
	pin   manifest
	files []*lineFile // the outputs in their order, then the marks

	repairs []Repair

	mu     sync.Mutex
	shards []shard
	known  []int64 // per file: all lines before it are in shards
	count  [4]int  // items by end, over all shards; a dead letter to be sent again is pending
	again  bool    // dead letters are sent again
	turn   int     // the shard that gives the next item
}

type shard struct {
	n                   int
	ended, failed, dead set
	low                 int  // no pending item is below it
	next                int  // no item from here on was started by this run
	dirty               bool // changed since its cursor was saved
}

func newShards(items, shards int) []shard {
	s := make([]shard, shards)
	for i := range s {
		n := (items - i + shards - 1) / shards
		s[i] = shard{n: n, ended: newSet(n), failed: newSet(n), dead: newSet(n)}
	}
	return s
}

func (s *shard) at(k int) end {
	switch {
	case !s.ended.has(k):
		return 0
	case s.failed.has(k):
		return failed
	case s.dead.has(k):
		return dead
	default:
		return done
	}
}

// load takes what a cursor says of the shard's items.
func (s *shard) load(c cursor) error {
	if c.Items != s.n || c.Low < 0 || c.Low > s.n {
		return fmt.Errorf("%w: %d items, low %d; the shard has %d", errUnreadable, c.Items, c.Low, s.n)
	}
	for k := range c.Low {
		s.ended.add(k)
	}
	s.low, s.next = c.Low, c.Low
	if err := errors.Join(s.ended.addRanges(c.Above, c.Low, s.n), s.failed.addRanges(c.Failed, 0, s.n), s.dead.addRanges(c.Dead, 0, s.n)); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

// place is where item i stands.
func (s *state) place(i int) (sh *shard, k int) {
	return &s.shards[i%len(s.shards)], i / len(s.shards)
}

// set records how an item ended. The caller holds mu, or is alone.
func (s *state) set(i int, e end) {
	sh, k := s.place(i)
	had := sh.at(k)
	if s.again && had == dead {
		had = 0
	}
	s.count[had]--
	s.count[e]++
	sh.ended.add(k)
	sh.failed.remove(k)
	sh.dead.remove(k)
	if e == failed {
		sh.failed.add(k)
	}
	if e == dead {
		sh.dead.add(k)
	}
	sh.dirty = true
}

// landed is what a file calls when lines of it are durable.
func (s *state) landed(file int) func([]ending, int64) {
	return func(batch []ending, size int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range batch {
			s.set(e.item, e.end)
		}
		s.known[file] = size
	}
}

// pick returns the next item that this run has not started, the shards taking
// turns. The caller holds mu.
func (s *state) pick() (item int, ok bool) {
	for range s.shards {
		i, sh := s.turn, &s.shards[s.turn]
		s.turn = (s.turn + 1) % len(s.shards)
		k := sh.ended.next(sh.next, sh.n, false)
		if s.again {
			k = min(k, sh.dead.next(sh.next, sh.n, true))
		}
		sh.next = min(k+1, sh.n)
		if k < sh.n {
			return k*len(s.shards) + i, true
		}
	}
	return 0, false
}

// retryDead has the dead letters sent again. In the shards they stay what they
// are until they end anew, so that a run that is killed makes none pending.
func (s *state) retryDead() {
	s.again = true
	s.count[0], s.count[dead] = s.count[0]+s.count[dead], 0
	for i := range s.shards {
		s.shards[i].next = 0
	}
}

// save writes the cursors of the shards that changed, or of all.
func (s *state) save(all bool) error {
	for i := range s.shards {
		s.mu.Lock()
		sh := &s.shards[i]
		if !all && !sh.dirty {
			s.mu.Unlock()
			continue
		}
		sh.dirty = false
		sh.low = sh.ended.next(sh.low, sh.n, false)
		// Copied, so that workers wait for a copy and not for the disk.
		low, n, offsets := sh.low, sh.n, slices.Clone(s.known)
		ended, failed, dead := slices.Clone(sh.ended), slices.Clone(sh.failed), slices.Clone(sh.dead)
		s.mu.Unlock()

		err := writeSealed(s.fsys, filepath.Join(s.dir, cursorName(i)), cursor{
			Version: version, Keys: s.pin.Keys, Shard: i, Shards: len(s.shards), Items: n, Offsets: offsets,
			Low: low, Above: ended.ranges(low, n), Failed: failed.ranges(0, n), Dead: dead.ranges(0, n),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// saveEvery is how long a cursor may lag behind the files: what a resume after
// a kill has to read.
const saveEvery = time.Second

// keepSaving saves until stop is closed or a save fails. One save is under way
// at a time and the next takes everything since; where saving is slow, it is
// done less often, so that it takes a tenth of the time at most.
func (s *state) keepSaving(stop <-chan struct{}) error {
	pause := saveEvery
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(pause):
		}
		start := time.Now()
		if err := s.save(false); err != nil {
			return err
		}
		pause = max(saveEvery, 10*time.Since(start))
	}
}

// close leaves the state for others. The files hold nothing that is not synced.
func (s *state) close() error {
	var errs []error
	for _, f := range s.files {
		if err := f.file.Close(); err != nil {
			errs = append(errs, &WriteError{f.path, err})
		}
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// mark is a line of marks.jsonl: the end of an item that wrote no line to an
// output. The last mark of an item holds, and a line in an output overrules it.
type mark struct {
	Key      string      `json:"key"`
	End      string      `json:"end"`
	Attempts int         `json:"attempts,omitempty"` // as the item's function said
	Error    string      `json:"error,omitempty"`    // in the words of Options.Why, at most maxWhy bytes
	T        json.Number `json:"t,omitempty"`        // Unix seconds; failed and dead only
}

const marksName = "marks.jsonl"

// maxWhy bounds the words kept with a mark, in bytes.
const maxWhy = 1000

var endNames = [...]string{done: "done", failed: "failed", dead: "dead"}

// markLine returns a line of marks.jsonl.
func markLine(key string, e end, attempts int, why string) ([]byte, error) {
	m := mark{Key: key, End: endNames[e], Attempts: attempts, Error: strings.ToValidUTF8(why, "\uFFFD")}
	if len(m.Error) > maxWhy {
		m.Error = strings.ToValidUTF8(m.Error[:maxWhy], "")
	}
	if e != done {
		now := time.Now()
		m.T = json.Number(fmt.Sprintf("%d.%06d", now.Unix(), now.Nanosecond()/1000))
	}
	return json.Marshal(m)
}

func readMark(line []byte) (key string, e end, err error) {
	var m mark
	if err := json.Unmarshal(line, &m); err != nil {
		return "", 0, err
	}
	e = end(slices.Index(endNames[:], m.End))
	if m.End == "" || e > dead {
		return "", 0, fmt.Errorf("unknown end %q", m.End)
	}
	return m.Key, e, nil
}
