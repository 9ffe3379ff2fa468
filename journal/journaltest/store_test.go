package journaltest

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal"
)

// store is the plainest journal: lines in a list, which all handles share. A
// fault breaks one of its promises.
type store struct {
	fault string

	mu       sync.Mutex
	lines    []line
	newest   int // index of the newest segment's first line
	seq      journal.Pos
	segment  int64
	book     string
	batches  map[uuid.UUID][2]journal.Pos // where each began and ended
	failNext bool
	lent     map[uint64]journal.Entry // the entries themselves, by a fault
}

type line struct {
	seq  journal.Pos
	text []byte
}

func (s *store) asStore() Store {
	return Store{
		Open: func(testing.TB) Journal { return s.open() }, Keeps: true, Shared: true,
		Kill: func(testing.TB) { s.end("loses the last batch when killed") },
		FailAppend: func(testing.TB) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.failNext = true
		},
	}
}

func (s *store) has(fault string) bool { return s.fault == fault }

func (s *store) open() *handle {
	return &handle{store: s, own: map[uuid.UUID]bool{}}
}

func (s *store) end(fault string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(fault) && len(s.lines) > s.newest+1 {
		s.lines = s.lines[:len(s.lines)-1]
		s.seq--
	}
}

// handle is one of many on a store.
type handle struct {
	*store
	own    map[uuid.UUID]bool // batches appended by it
	closed bool
}

var errLost = fmt.Errorf("the answer was lost")

func (h *handle) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	if h.has("checks, then writes") {
		h.mu.Lock()
		end := h.seq
		h.mu.Unlock()
		if after != end {
			return 0, journal.ErrConflict
		}
		runtime.Gosched()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ready(ctx); err != nil {
		return 0, err
	}
	if h.segment == 0 && !h.has("appends before the first rotation") {
		return 0, fmt.Errorf("no segment was begun")
	}
	known, repeated := h.batches[b.ID]
	repeated = repeated && b.ID != uuid.Nil && (known[0] == after || h.has("knows a batch anywhere"))
	switch {
	case h.has("knows repeats on one handle only") && !h.own[b.ID],
		h.has("takes a repeat for a conflict"):
		repeated = false
	case h.has("writes a repeated batch twice") && repeated:
		after, repeated = h.seq, false
	}
	if repeated {
		return known[1], nil
	}
	if after != h.seq && !h.has("forgets the conflict check") && !h.has("checks, then writes") {
		return 0, fmt.Errorf("%w: %d is not %d", journal.ErrConflict, after, h.seq)
	}
	if len(b.Entries) == 0 && h.has("remembers batches by nothing") {
		h.seq++
	}
	return h.append(b)
}

func (h *handle) append(b journal.Batch) (journal.Pos, error) {
	begin, lines := h.seq, len(h.lines)
	entries := b.Entries
	if h.has("acknowledges half a batch") {
		entries = entries[:(len(entries)+1)/2]
	}
	for i := range entries {
		kind := entries[i].Kind
		err := h.add(entries[i])
		if kind == journal.Open || kind == journal.Seal {
			err = fmt.Errorf("an entry of kind %s cannot be appended", kind)
		}
		if err != nil {
			if !h.has("keeps what stood before a bad entry") {
				h.seq, h.lines = begin, h.lines[:lines]
			}
			return 0, err
		}
	}
	if h.failNext {
		h.failNext = false
		if h.has("forgets that a failed append is in") {
			return 0, errLost
		}
		h.remember(b.ID, begin)
		return 0, errLost
	}
	h.remember(b.ID, begin)
	return begin + journal.Pos(len(b.Entries)), nil
}

func (h *handle) remember(id uuid.UUID, begin journal.Pos) {
	if h.batches == nil {
		h.batches = map[uuid.UUID][2]journal.Pos{}
	}
	h.batches[id], h.own[id] = [2]journal.Pos{begin, h.seq}, true
}

// add writes one line.
func (h *handle) add(e journal.Entry) error {
	h.seq++
	if h.has("leaves a position out") && h.seq%10 == 0 {
		h.seq++
	}
	switch {
	case h.has("loses a field"):
		e.Maybe = 0
	case h.has("cuts long texts"):
		e.Why = e.Why[:min(len(e.Why), 1<<16)]
	}
	e.Seq = uint64(h.seq)
	text, err := journal.AppendLine(nil, &e)
	h.lines = append(h.lines, line{h.seq, text})
	if h.has("keeps the caller's memory") || h.has("hands out its own memory") {
		if h.lent == nil {
			h.lent = map[uint64]journal.Entry{}
		}
		if h.has("hands out its own memory") {
			e = detached(e)
		}
		h.lent[e.Seq] = e
	}
	return err
}

func (h *handle) ready(ctx context.Context) error {
	if h.closed && !h.has("works on when closed") {
		return journal.ErrClosed
	}
	if h.has("ignores the context") {
		return nil
	}
	return ctx.Err()
}

func (h *handle) Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ready(ctx); err != nil {
		return 0, err
	}
	if after != h.seq && !h.has("rotates anywhere") {
		return 0, journal.ErrConflict
	}
	if !h.has("takes any beginning") {
		if err := h.beginning(carried); err != nil {
			return 0, err
		}
	}
	if h.book == "" || h.has("names the book anew") {
		h.book = uuid.NewString()
	}
	begin, lines := h.seq, len(h.lines)
	if h.has("drops what is carried") {
		carried = carried[:1]
	}
	for i, e := range carried {
		if i == 0 && e.Opening != nil {
			e.Opening = &journal.Opening{Book: h.book, Segment: h.segment + 1, Balances: e.Opening.Balances}
		}
		if err := h.add(e); err != nil {
			h.seq, h.lines = begin, h.lines[:lines]
			return 0, err
		}
	}
	h.newest, h.segment = lines, h.segment+1
	return h.seq, nil
}

func (h *handle) beginning(carried []journal.Entry) error {
	if len(carried) == 0 || carried[0].Opening == nil || (carried[0].Opening.Book != "" && carried[0].Opening.Book != h.book) {
		return fmt.Errorf("a segment begins with an open entry of its book")
	}
	for _, e := range carried[1:] {
		if e.Kind == journal.Open || e.Kind == journal.Seal {
			return fmt.Errorf("an entry of kind %s cannot be carried", e.Kind)
		}
	}
	return nil
}

func (h *handle) Entries(ctx context.Context, after journal.Pos) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		h.mu.Lock()
		err, end, segment := h.ready(ctx), len(h.lines), h.segment
		next := h.newest
		h.mu.Unlock()
		if err != nil {
			yield(journal.Entry{}, err)
			return
		}
		if h.has("begins with the oldest segment") {
			next = 0
		}
		if h.has("counts positions from nought") {
			after--
		}
		for ; ; next++ {
			e, ok := h.entry(next, end, segment)
			if !ok {
				return
			}
			if journal.Pos(e.Seq) > after && !yield(e, nil) && !h.has("reads on after a stop") {
				return
			}
		}
	}
}

// entry reads one line; ok is false at the end.
func (h *handle) entry(i, end int, segment int64) (e journal.Entry, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.has("never ends a reading") && i >= end:
		i = end - 1
	case h.has("reads over into the next segment"):
		end = len(h.lines)
	}
	if i >= end {
		return e, false
	}
	if e, ok = h.lent[uint64(h.lines[i].seq)]; ok {
		return e, true
	}
	e, err := journal.ParseLine(h.lines[i].text)
	if h.has("reads what is not whole") && i == end-1 {
		e.Key = ""
		e.RID = e.RID[:len(e.RID)/2]
	}
	return e, err == nil
}

func (h *handle) Due(carried int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.lines)-h.newest >= 2*carried || h.has("is always due")
}

func (h *handle) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.end("loses the last batch when closed")
	return nil
}
