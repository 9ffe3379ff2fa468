package journal

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Memory is a journal that ends with the process: the same answers and the same
// errors as [File], and nothing on disk. Entries have no Synced, Prev and CRC
// there, since nothing can be torn, and no seals take two positions at the end
// of a segment. All methods may be called concurrently.
type Memory struct {
	mu      sync.Mutex
	blocks  [][]Entry // all of blockLen; the newest segment fills them from the front
	count   int       // entries in use
	first   Pos       // position of the first of them
	last    lastBatch
	book    string
	segment int64
	closed  bool
}

const blockLen = 256

// memoryDue is the number of entries from which a new segment is due. The
// blocks of that many are used again by every segment.
const memoryDue = 512 * blockLen

// NewMemory returns an empty journal.
func NewMemory() *Memory { return &Memory{first: 1} }

// end is the position of the last entry.
func (m *Memory) end() Pos { return m.first + Pos(m.count) - 1 }

// Append adds the batch if the journal still ends at after, as [File.Append]
// does.
func (m *Memory) Append(ctx context.Context, after Pos, batch Batch) (Pos, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return 0, err
	}
	switch {
	case m.segment == 0:
		return 0, errNotRotated
	case m.last.repeated(batch.ID, after):
		return m.last.end, nil
	case after != m.end():
		return 0, m.conflict(after)
	case len(batch.Entries) == 0:
		return after, nil
	}
	for i := range batch.Entries {
		if err := errors.Join(appendable(&batch.Entries[i]), batch.Entries[i].fits()); err != nil {
			return 0, err
		}
	}
	for i := range batch.Entries {
		m.add(&batch.Entries[i])
	}
	m.last = lastBatch{id: batch.ID, after: after, end: m.end()}
	return m.end(), nil
}

// ready holds back calls that can no longer succeed.
func (m *Memory) ready(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

func (m *Memory) conflict(after Pos) error {
	return fmt.Errorf("%w: it ends at %d, not at %d", ErrConflict, m.end(), after)
}

func (m *Memory) add(e *Entry) {
	if m.count == len(m.blocks)*blockLen {
		m.blocks = append(m.blocks, make([]Entry, blockLen))
	}
	e.Seq = uint64(m.first) + uint64(m.count)
	kept := &m.blocks[m.count/blockLen][m.count%blockLen]
	*kept = *e
	kept.detach()
	m.count++
}

// detach gives e memory of its own where it points to somebody else's.
func (e *Entry) detach() {
	if e.Cap != nil {
		e.Cap = new(*e.Cap)
	}
	if e.Opening != nil {
		e.Opening = new(*e.Opening)
		e.Opening.Balances = slices.Clone(e.Opening.Balances)
	}
	if e.Past != nil {
		e.Past = new(*e.Past)
		e.Past.Evidence = slices.Clone(e.Past.Evidence)
	}
}

// Rotate drops everything and begins with carried, as [File.Rotate] does.
func (m *Memory) Rotate(ctx context.Context, after Pos, carried []Entry) (Pos, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return 0, err
	}
	if after != m.end() {
		return 0, m.conflict(after)
	}
	if err := checkCarried(carried, m.book); err != nil {
		return 0, err
	}
	for i := range carried {
		if err := carried[i].fits(); err != nil {
			return 0, err
		}
	}
	o := carried[0].Opening
	m.segment++
	o.place(&chain{segment: m.segment}, carried)
	m.first, m.count, m.book, m.last = m.end()+1, 0, o.Book, lastBatch{}
	if keep := memoryDue / blockLen; len(m.blocks) > keep {
		clear(m.blocks[keep:])
		m.blocks = m.blocks[:keep]
	}
	for i := range carried {
		m.add(&carried[i])
	}
	return m.end(), nil
}

// Due is as [File.Due], by number of entries.
func (m *Memory) Due(carried int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count >= memoryDue && m.count >= 2*carried
}

// Entries yields what stands after a position, as [File.Entries] does. A
// rotation meanwhile ends it with [ErrConflict].
func (m *Memory) Entries(ctx context.Context, after Pos) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		m.mu.Lock()
		end, next := m.end(), max(after+1, m.first)
		m.mu.Unlock()
		var some [32]Entry
		for next <= end {
			n, err := m.copy(ctx, some[:], next, end)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for i := range some[:n] {
				if !yield(some[i], nil) {
					return
				}
			}
			next += Pos(n)
		}
	}
}

// copy fills some with the entries from next up to end, as far as they go.
func (m *Memory) copy(ctx context.Context, some []Entry, next, end Pos) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return 0, err
	}
	if next < m.first {
		return 0, fmt.Errorf("%w: a new segment began while reading", ErrConflict)
	}
	i := int(next - m.first)
	block := m.blocks[i/blockLen][i%blockLen:]
	n := copy(some, block[:min(len(block), int(end-next)+1)])
	for i := range some[:n] {
		some[i].detach()
	}
	return n, nil
}

// Close ends the journal; calls that come later fail with [ErrClosed].
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.blocks = nil
	return nil
}
