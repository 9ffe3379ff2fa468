package checkpoint

import (
	"errors"
	"io"
	"sync"

	"github.com/tollbook/tollbook/journal/disk"
)

// end is how an item ended. The zero end is none: the item is pending.
type end uint8

const (
	done end = iota + 1
	failed
	dead
)

// ending is one item's end, as one line of a file records it.
type ending struct {
	item int
	end  end
}

// lineFile appends lines durably. Lines of concurrent callers share one write
// and one sync: while one batch is being synced the next collects, so that no
// timer is needed.
type lineFile struct {
	path string
	file disk.File
	// landed is told what is durable before any caller of the batch returns,
	// one batch at a time, with the file's durable size.
	landed func(batch []ending, size int64)

	mu         sync.Mutex
	collecting *batch // nil: nobody waits for the file
	newest     *batch // the last one that collected; it may still be syncing
	spare      []byte // for the lines of the next batch

	// Used by the caller that commits, one at a time.
	size   int64 // everything before it is durable
	poison error // the first failure that left the file in doubt
}

type batch struct {
	lines []byte
	ends  []ending
	over  chan struct{} // closed when the batch is durable or has failed
	err   error
}

// maxSpare bounds the memory kept between batches, in bytes.
const maxSpare = 1 << 20

// append returns when line and its newline are durable, or surely not in the
// file, or the file is in doubt and poisoned.
func (f *lineFile) append(line []byte, e ending) error {
	f.mu.Lock()
	b, before := f.collecting, f.newest
	first := b == nil
	if first {
		b = &batch{over: make(chan struct{}), lines: f.spare[:0]}
		f.collecting, f.newest, f.spare = b, b, nil
	}
	b.lines = append(append(b.lines, line...), '\n')
	b.ends = append(b.ends, e)
	f.mu.Unlock()

	if !first {
		<-b.over
		return b.err
	}
	if before != nil {
		<-before.over
	}
	f.mu.Lock()
	f.collecting = nil
	f.mu.Unlock()
	b.err = f.commit(b)
	close(b.over)
	f.mu.Lock()
	if cap(b.lines) <= maxSpare {
		f.spare = b.lines
	}
	b.lines = nil
	f.mu.Unlock()
	return b.err
}

// commit writes the batch at once and syncs it. If the write fails, the file
// is cut back so that nothing of the batch stays: then only this batch has
// failed. A failed sync is final, see package disk.
func (f *lineFile) commit(b *batch) error {
	if f.poison != nil {
		return f.poison
	}
	n, err := f.file.Write(b.lines)
	if err == nil && n < len(b.lines) {
		err = io.ErrShortWrite
	}
	if err != nil {
		cut := f.file.Truncate(f.size)
		if cut == nil {
			cut = f.file.Sync()
		}
		err = &WriteError{f.path, errors.Join(err, cut)}
		if cut != nil {
			f.poison = err
		}
		return err
	}
	if err := f.file.Sync(); err != nil {
		f.poison = &WriteError{f.path, err}
		return f.poison
	}
	f.size += int64(len(b.lines))
	f.landed(b.ends, f.size)
	return nil
}
