package journal

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tollbook/tollbook/journal/disk"
)

// Recovery is what opening a file journal found and mended.
type Recovery struct {
	Unclean bool   // the last writer did not close it: a crash, or a failed write
	Segment string // file that was the newest; empty in a new journal
	Torn    int64  // bytes of an unfinished write, cut off its end
	Kept    string // file the torn bytes are kept in
	Swept   int    // unfinished files removed
}

// recover finds out how the last writer ended, and makes the journal one that
// a new segment can follow, or refuses. This is the whole decision. Of the
// segments only the newest is read, since it is the whole state, and once: what
// it holds goes to visit on the way.
func (f *File) recover(visit func([]Entry) error) error {
	names, numbers, err := listSegments(f.fs, f.dir)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	// What has a temporary name was never finished, and so never in charge.
	if err := f.sweep(names); err != nil {
		return fmt.Errorf("journal: remove unfinished file: %w", err)
	}
	if len(numbers) == 0 {
		// A new journal, or one that ended before its first segment had a name:
		// nothing was ever acknowledged.
		return nil
	}
	if hole := gap(numbers); hole > 0 {
		// Segments come at the end and go at the beginning, each durably before
		// the next: no crash leaves a hole.
		return missingSegment(f.dir, hole)
	}
	number := numbers[len(numbers)-1]
	f.found.Segment = segmentName(number)
	s, err := openSegment(f.fs, f.dir, f.found.Segment, startOf(number))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	switch end, readErr := s.ending(visit); {
	case readErr != nil:
		err = fmt.Errorf("journal: read %s: %w", s.name, readErr)
	case end.damage != nil && !end.torn:
		// Something shows that the bad bytes were once durable. To cut them off
		// would lose what was acknowledged.
		err = end.damage
	case s.clean():
		// Sealed and nothing behind. The seals may be in memory only, if their
		// writer was killed before its sync; the next segment relies on them.
		f.chain, f.synced = s.chain, s.size
		err = f.settle(s, end.size)
	default:
		// In use when its writer died, or a write failed: the end is missing or
		// torn, and after a failed sync the good lines may be in memory only.
		// Neither reading nor syncing them again would show it, so they are
		// written anew, and sealed. What is torn is kept aside first.
		f.found.Unclean = true
		err = f.mend(s, end)
	}
	if err = errors.Join(err, s.close()); err != nil || !f.found.Unclean {
		return err
	}
	if err := f.rename(s.name); err != nil {
		return fmt.Errorf("journal: replace %s after a crash: %w", s.name, err)
	}
	return nil
}

// sweep removes what was never finished.
func (f *File) sweep(names []string) error {
	for _, name := range names {
		if !strings.HasSuffix(name, disk.TempSuffix) {
			continue
		}
		if err := f.fs.Remove(f.path(name)); err != nil {
			return err
		}
		f.found.Swept++
	}
	return nil
}

// ending is how the newest segment ends when nobody writes it.
type ending struct {
	facts  chain         // behind the last good line that is no seal
	size   int64         // bytes up to there
	damage *CorruptError // the first line that is not good; nil if all are
	torn   bool          // it can be a write that never ended; see [segment.torn]
}

// ending reads the segment to its end or its first damage, and shows visit what
// is good, but for seals. An error is visit's or the disk's.
func (s *segment) ending(visit func([]Entry) error) (end ending, err error) {
	s.mend = true
	end.facts = s.chain
	var refused error // whatever it is, it is no damage of the segment
	good := func(entries []Entry) error {
		end.facts, end.size = s.chain, s.good
		refused = visit(entries)
		return refused
	}
	err = s.blocks(good) // which hold no seals
	if errors.Is(err, errOdd) {
		one := make([]Entry, 1)
		err = s.each(func(e *Entry) error {
			if e.Kind == Seal {
				return nil
			}
			one[0] = *e
			return good(one)
		})
	}
	if refused != nil {
		return end, refused
	}
	if errors.As(err, &end.damage) {
		end.torn, err = s.torn()
	}
	return end, err
}

// settle makes seals durable that are there, behind the first end bytes. They
// are written anew, as after a failed sync another one would not write them.
// What is before them was durable when they were made. If it is cut short, the
// seals may be missing: the next opening then mends the segment as after a
// crash. A sealed copy would save these at the price of reading and writing all
// of the segment at each opening.
func (f *File) settle(s *segment, end int64) error {
	seals := make([]byte, s.size-end)
	if _, err := s.file.ReadAt(seals, end); err != nil {
		return fmt.Errorf("journal: read %s: %w", s.name, err)
	}
	if err := f.inRoom(func() error { return f.replaceEnd(s.name, end, seals) }); err != nil {
		return full(fmt.Errorf("journal: seal %s again: %w", s.name, err))
	}
	return nil
}

// replaceEnd cuts a file and appends the end anew, durably.
func (f *File) replaceEnd(name string, at int64, end []byte) error {
	file, err := f.fs.Append(f.path(name))
	if err != nil {
		return err
	}
	if err = file.Truncate(at); err == nil {
		var n int
		if n, err = file.Write(end); err == nil && n != len(end) {
			err = io.ErrShortWrite
		}
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// mend makes, under the temporary name, a sealed copy of what is good in s.
func (f *File) mend(s *segment, end ending) error {
	if err := f.inRoom(func() error { return f.keepTorn(s) }); err != nil {
		return full(fmt.Errorf("journal: keep the torn bytes of %s: %w", s.name, err))
	}
	if err := f.inRoom(func() error { return f.rewrite(s, end.facts, end.size) }); err != nil {
		return full(fmt.Errorf("journal: rewrite %s after a crash: %w", s.name, err))
	}
	return nil
}

// keepTorn copies the bytes behind the good lines into a file of their own.
func (f *File) keepTorn(s *segment) error {
	if s.good == s.size {
		return nil
	}
	name, err := f.freeName(s.name + tornSuffix)
	if err != nil {
		return err
	}
	f.found.Torn, f.found.Kept = s.size-s.good, name
	return f.copyOut(s, s.good, name)
}

// copyOut copies the bytes of a segment from an offset on into another file.
func (f *File) copyOut(s *segment, from int64, name string) error {
	err := disk.WriteTemp(f.fs, f.path(name+disk.TempSuffix), func(w disk.File) error {
		_, err := io.Copy(w, io.NewSectionReader(s.file, from, s.size-from))
		return err
	})
	if err != nil {
		return err
	}
	return f.rename(name)
}

// freeName returns name, or name.2 and so on if an earlier crash took it.
func (f *File) freeName(name string) (string, error) {
	names, err := f.fs.List(f.dir)
	if err != nil {
		return "", err
	}
	taken := map[string]bool{}
	for _, n := range names {
		taken[n] = true
	}
	free := name
	for i := 2; taken[free]; i++ {
		free = fmt.Sprintf("%s.%d", name, i)
	}
	return free, nil
}

// rewrite makes, under the temporary name, a sealed copy of the first end
// bytes, behind which the chain is body.
func (f *File) rewrite(s *segment, body chain, end int64) error {
	var last [1]byte
	if _, err := s.file.ReadAt(last[:], end-1); err != nil {
		return err
	}
	var tail []byte
	if last[0] != '\n' {
		tail = append(tail, '\n') // the last line was whole but for that
	}
	sealed := body
	tail, err := sealed.appendSeals(tail, end+int64(len(tail)))
	if err != nil {
		return err
	}
	temp := s.name + disk.TempSuffix
	err = disk.WriteTemp(f.fs, f.path(temp), func(w disk.File) error {
		if _, err := io.Copy(w, io.NewSectionReader(s.file, 0, end)); err != nil {
			return err
		}
		_, err := w.Write(tail)
		return err
	})
	if err != nil {
		return err
	}
	f.chain, f.synced = sealed, end+int64(len(tail))
	return f.verify(temp, startOf(sealed.segment), sealed, f.synced)
}
