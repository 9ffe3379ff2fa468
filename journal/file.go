package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/tollbook/tollbook/journal/disk"
)

// FileOptions are the few things about a file journal that can be chosen. The
// zero value is right for a book.
type FileOptions struct {
	FS           disk.FS // nil: the operating system's, disk.OS()
	SegmentBytes int64   // size from which [File.Due] asks for a new segment; 0: 64 MiB

	// Visit gets, while OpenFile judges the newest segment, the entries that
	// Entries(ctx, 0) would yield behind it, in order and many at a time, which
	// saves reading them again. They and their strings are valid until it
	// returns. What it was given counts only if OpenFile succeeds; its error is
	// that of OpenFile, and nothing is mended then. nil: nothing is visited.
	Visit func([]Entry) error
}

// DefaultSegmentBytes is the size from which a new segment is due.
const DefaultSegmentBytes = 64 << 20

// File is a journal in a directory: one file a segment, named 000001.jsonl and
// so on, a line an entry (see [AppendLine]), and LOCK, which keeps a second
// writer out. The newest segment is the whole state, since each begins with
// what the ones before add up to; the older ones are history. Directories are
// made 0700, files 0600. Network file systems are not supported.
//
// An append is one write and one fsync. When it returns, its entries survive a
// power cut (on Windows, the end of the process: a directory cannot be synced
// there).
//
// A write or fsync that fails and leaves the file in doubt poisons the
// journal: that call and every later one fail with [ErrPoisoned] and the first
// cause, nothing is written any more, and only opening it anew finds out what
// the disk holds. A full disk is milder: first a file named BALLAST goes, which
// keeps room for such times, and [File.Low] says so. When that is used up too
// and the file can be cut back, only the batch in hand fails, with [ErrFull].
//
// All methods may be called concurrently. [Dir] reads without the lock, also
// while a File writes.
type File struct {
	dir   string
	fs    disk.FS
	due   int64
	lock  io.Closer
	found Recovery

	mu     sync.Mutex
	active disk.File // newest segment; nil before the first Rotate and at the end
	chain  chain     // of the newest segment
	synced int64     // its length, all of it durable
	buf    []byte    // lines in the making
	last   lastBatch
	room
	poison error // the first failure that left the file in doubt
	closed bool
	ended  error // what Close returned
}

// Recovery says what opening the journal found and mended.
func (f *File) Recovery() Recovery { return f.found }

// Append makes the batch durable if the journal still ends at after, and
// returns the position behind it; else it fails with [ErrConflict]. The newest
// batch, repeated at the same position, is success and written once. The
// entries get their Seq, Synced, Prev and CRC. A context that is done keeps an
// append from starting; one that has started is carried through.
func (f *File) Append(ctx context.Context, after Pos, batch Batch) (Pos, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ready(ctx); err != nil {
		return 0, err
	}
	if f.active == nil {
		return 0, errNotRotated
	}
	if f.last.repeated(batch.ID, after) {
		return f.last.end, nil
	}
	if !f.chain.at(after) {
		return 0, f.conflict(after)
	}
	if len(batch.Entries) == 0 {
		return after, nil
	}
	next, err := f.encode(f.chain, batch.Entries)
	if err != nil {
		return 0, err
	}
	if err := f.write(f.buf); err != nil {
		return 0, err
	}
	f.chain = next
	end := Pos(next.seq)
	f.last = lastBatch{id: batch.ID, after: after, end: end}
	return end, nil
}

var errNotRotated = errors.New("journal: nothing can be appended before the first Rotate")

func (f *File) conflict(after Pos) error {
	return fmt.Errorf("%w: it ends at %d, not at %d", ErrConflict, f.chain.seq, after)
}

// encode fills f.buf with the lines of entries and returns the chain behind.
func (f *File) encode(c chain, entries []Entry) (chain, error) {
	f.buf = f.buf[:0]
	for i := range entries {
		if err := appendable(&entries[i]); err != nil {
			return c, err
		}
		var err error
		if f.buf, err = c.append(f.buf, &entries[i], f.synced); err != nil {
			return c, err
		}
	}
	return c, nil
}

// appendable refuses what only Rotate and Close write.
func appendable(e *Entry) error {
	if e.Kind == Open || e.Kind == Seal {
		return fmt.Errorf("journal: an entry of kind %s cannot be appended", e.Kind)
	}
	return nil
}

// ready holds back calls that can no longer succeed.
func (f *File) ready(ctx context.Context) error {
	switch {
	case f.closed:
		return ErrClosed
	case f.poison != nil:
		return f.poison
	}
	return ctx.Err()
}

// write makes lines durable, on a full disk in the room of the ballast.
func (f *File) write(lines []byte) error {
	f.keepBallast(f.synced + int64(len(lines)))
	err := f.inRoom(func() error { return f.writeOnce(lines) })
	if f.poison == nil {
		err = full(err)
	}
	return err
}

// writeOnce is one write and one fsync.
func (f *File) writeOnce(lines []byte) error {
	n, err := f.active.Write(lines)
	if err == nil && n != len(lines) {
		err = io.ErrShortWrite
	}
	if disk.IsFull(err) {
		return f.cutBack(err)
	}
	if err == nil {
		err = f.active.Sync()
	}
	if err == nil {
		err = f.linked()
	}
	if err != nil {
		// Best effort, and never synced: if the disk still does what it is
		// told, who opens the journal next does not find lines whose writer
		// was told that they failed.
		f.active.Truncate(f.synced)
		return f.fail(err)
	}
	f.synced += int64(n)
	return nil
}

// linked fails if the segment is no longer in the directory: somebody removed
// it, or removed LOCK and let another process mend what is still in use.
func (f *File) linked() error {
	switch ok, err := f.active.Linked(); {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("segment %s was removed or replaced while in use; nobody but its writer may touch LOCK or a segment", segmentName(f.chain.segment))
	}
	return nil
}

// cutBack removes what a full disk left of a batch, durably.
func (f *File) cutBack(full error) error {
	err := f.active.Truncate(f.synced)
	if err == nil {
		err = f.active.Sync()
	}
	if err != nil {
		return f.fail(errors.Join(full, err))
	}
	return full
}

// fail poisons the journal.
func (f *File) fail(err error) error {
	f.poison = fmt.Errorf("%w: %w; close it and open it anew", ErrPoisoned, err)
	return f.poison
}

// Due reports whether a new segment is due: the newest is long enough, and
// holds at least twice as many lines as the next would begin with, so that
// what rotations cost stays in proportion to what was appended. While the disk
// is full none is, as the next would take room that closes need.
func (f *File) Due(carried int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active != nil && f.low() == nil && f.synced >= f.due && f.chain.lines >= 2*int64(carried)
}

// Entries yields what stands after a position, in order and without seals. A
// position before the newest segment, such as 0, yields that segment from its
// open entry, which makes whatever was known before superfluous. What is
// appended after the call is not yielded. For strings, see [Dir.Newest].
func (f *File) Entries(ctx context.Context, after Pos) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f.mu.Lock()
		c, closed := f.chain, f.closed
		f.mu.Unlock()
		end := c.lastEntry()
		if closed {
			yield(Entry{}, ErrClosed)
			return
		}
		if after >= end {
			return
		}
		err := f.newest(c.segment, func(e *Entry) error {
			if Pos(e.Seq) <= after {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if !yield(*e, nil) || Pos(e.Seq) == end {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(Entry{}, err)
		}
	}
}

func (f *File) newest(number int64, visit func(*Entry) error) error {
	s, err := openSegment(f.fs, f.dir, segmentName(number), startOf(number))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	s.stay = true
	err = s.batches(func(entries []Entry) error {
		for i := range entries {
			if err := visit(&entries[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, s.close())
}

// Close seals the newest segment and gives the lock back. Calls that come
// later fail with [ErrClosed]; every call of Close returns the same error.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.ended = errors.Join(f.finish(), f.lock.Close())
	}
	return f.ended
}

// finish ends the active segment, if there is one.
func (f *File) finish() error {
	if f.active == nil {
		return f.poison
	}
	err := f.poison
	if err == nil {
		err = f.seal()
	}
	if f.active != nil { // not sealed: the next open finds an unclean end
		err = errors.Join(err, f.active.Close())
		f.active = nil
	}
	return err
}
