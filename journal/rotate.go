package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal/disk"
)

// Rotate starts a new segment that begins with carried, if the journal still
// ends at after, and returns the position behind it. The first of carried is
// an Open entry; Version, Segment, LastCRC and Carries of its Opening are
// filled in here, and so is Book, which stays the same for all segments and is
// made up for the first.
//
// The order makes every moment safe to crash in: the new segment is written,
// synced and read back under a temporary name; the old one is sealed and
// synced; the new one gets its name; the directory is synced. Up to the seal
// an error leaves the old segment in charge and the call may be repeated;
// after it, an error poisons the journal.
func (f *File) Rotate(ctx context.Context, after Pos, carried []Entry) (Pos, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ready(ctx); err != nil {
		return 0, err
	}
	if !f.chain.at(after) {
		return 0, f.conflict(after)
	}
	if err := checkCarried(carried, f.chain.book); err != nil {
		return 0, err
	}
	sealed := f.chain
	if f.active != nil {
		var err error
		if f.buf, err = sealed.appendSeals(f.buf[:0], f.synced); err != nil {
			return 0, err
		}
	}
	name := segmentName(sealed.segment + 1)
	var next chain
	var size int64
	build := func() (err error) {
		next, size, err = f.build(name, sealed.following(), carried)
		return err
	}
	var err error
	if f.active == nil {
		err = f.inRoom(build)
	} else { // it need not be: the old segment can grow on
		err = build()
	}
	if err != nil {
		return 0, full(fmt.Errorf("journal: write segment %s: %w", name, err))
	}
	f.keepBallast(size)
	if f.active != nil {
		if err := f.seal(); err != nil {
			return 0, errors.Join(err, f.fs.Remove(f.path(name+disk.TempSuffix)))
		}
	}
	if err := f.promote(name); err != nil {
		return 0, f.fail(err)
	}
	f.chain, f.synced, f.last = next, size, lastBatch{}
	return Pos(next.seq), nil
}

// checkCarried refuses what no segment may begin with, and names the book.
func checkCarried(carried []Entry, book string) error {
	if len(carried) == 0 || carried[0].Kind != Open || carried[0].Opening == nil {
		return errors.New("journal: a segment begins with an open entry")
	}
	for i := range carried[1:] {
		if err := appendable(&carried[1+i]); err != nil {
			return err
		}
	}
	o := carried[0].Opening
	switch {
	case o.Book == "" && book == "":
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("journal: make a book id: %w", err)
		}
		o.Book = id.String()
	case o.Book == "":
		o.Book = book
	case book != "" && o.Book != book:
		return fmt.Errorf("journal: carried entries are of book %.64q, this is book %.64q", o.Book, book)
	}
	return nil
}

// place fills in what an open entry says about its place.
func (o *Opening) place(c *chain, carried []Entry) {
	o.Version, o.Segment, o.LastCRC, o.Carries = Version, c.segment, c.crc, int64(len(carried)-1)
}

// build writes a new segment under its temporary name, durably, reads it back
// and returns its size and the chain behind it; before is the chain before it.
func (f *File) build(name string, before chain, carried []Entry) (after chain, size int64, err error) {
	after = before
	carried[0].Opening.place(&after, carried)
	name += disk.TempSuffix
	var buf []byte
	err = disk.WriteTemp(f.fs, f.path(name), func(w disk.File) error {
		for i := range carried {
			if buf, err = after.append(buf, &carried[i], 0); err != nil {
				return err
			}
			if len(buf) >= readSize || i == len(carried)-1 {
				n, err := w.Write(buf)
				if err != nil {
					return err
				}
				size += int64(n)
				buf = buf[:0]
			}
		}
		return nil
	})
	if err == nil {
		err = f.verify(name, before, after, size)
	}
	return after, size, err
}

// verify reads a file back that takes the chain from before to after, and
// removes it if it does not.
func (f *File) verify(name string, before, after chain, size int64) error {
	s, err := openSegment(f.fs, f.dir, name, before)
	if err != nil {
		return err
	}
	err = s.batches(ignore)
	if err == nil && (s.chain != after || s.good != size || s.size != size) {
		err = fmt.Errorf("journal: %s reads back as %d lines in %d bytes, written were %d in %d", name, s.chain.lines, s.good, after.lines, size)
	}
	if err = errors.Join(err, s.close()); err != nil {
		return errors.Join(err, f.fs.Remove(f.path(name)))
	}
	return nil
}

// seal ends the active segment. It stays active if the disk is full.
func (f *File) seal() error {
	sealed := f.chain
	var err error
	if f.buf, err = sealed.appendSeals(f.buf[:0], f.synced); err != nil {
		return err
	}
	if err := f.write(f.buf); err != nil {
		return err
	}
	f.chain = sealed
	err = f.active.Close()
	f.active = nil
	if err != nil {
		return f.fail(err)
	}
	return nil
}

// promote gives a finished segment its name, and opens it for appending.
func (f *File) promote(name string) error {
	if err := f.rename(name); err != nil {
		return err
	}
	active, err := f.fs.Append(f.path(name))
	if err != nil {
		return err
	}
	f.active = active
	return nil
}

// rename gives a finished file its name, durably.
func (f *File) rename(name string) error {
	if err := f.fs.Rename(f.path(name+disk.TempSuffix), f.path(name)); err != nil {
		return err
	}
	return f.fs.SyncDir(f.dir)
}

// full adds [ErrFull] to an error that comes from a full disk.
func full(err error) error {
	if disk.IsFull(err) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
