package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// Pruned is what [Dir.Prune] removed.
type Pruned struct {
	Segments []string // names, oldest first
	Bytes    int64    // of these, and of the torn bytes kept beside them
	Left     int      // segments that are still there
	// Beside are the files *.torn, *.damaged and *.aside that are there, which
	// openings and repairs kept. They are evidence: only people remove them.
	Beside      []string
	BesideBytes int64
}

// Prune removes whole segments from the old end: those of which every entry is
// older than keepFrom, and never the newest two. No balance changes by that,
// since each segment begins with what the ones before add up to.
//
// It needs no lock and no room on the disk but that of the ballast, and can run beside a writer and
// beside readers; a reader that has not come to the pruned segments yet starts
// over or fails with [ErrConflict]. Nothing is removed unless the newest
// segment can be read, and a segment that is damaged, or not the one its
// successor follows, is never removed: both are a [*CorruptError]. After an
// error, Pruned says what had gone before.
func (d Dir) Prune(keepFrom time.Time) (pruned Pruned, err error) {
	for range 10 { // somebody else may prune as well
		if err = d.prune(&pruned, keepFrom); !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err == nil {
		err = pruned.beside(d)
	}
	return pruned, err
}

// beside finds what is kept beside the segments.
func (p *Pruned) beside(d Dir) error {
	names, err := d.fs().List(d.Path)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	for _, name := range names {
		if strings.Contains(name, segmentSuffix+".") && !strings.HasSuffix(name, disk.TempSuffix) {
			p.Beside = append(p.Beside, name)
			p.BesideBytes += d.sizeOf(name)
		}
	}
	return nil
}

// sizeOf returns the size of a file; 0 if it cannot be told.
func (d Dir) sizeOf(name string) int64 {
	file, err := d.fs().Open(filepath.Join(d.Path, name))
	if err != nil {
		return 0
	}
	defer file.Close()
	size, _ := file.Size()
	return size
}

func (d Dir) prune(pruned *Pruned, keepFrom time.Time) error {
	fsys := d.fs()
	names, numbers, err := listSegments(fsys, d.Path)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	pruned.Left = len(numbers)
	if hole := gap(numbers); hole > 0 {
		return missingSegment(d.Path, hole)
	}
	if len(numbers) == 0 {
		return nil
	}
	// The newest is the whole state; what a crash leaves at its end is no damage.
	if err := d.visit(true, false, func([]Entry) error { return nil }); err != nil {
		return err
	}
	for ; len(numbers) > 2; numbers = numbers[1:] {
		if old, err := d.wholly(fsys, numbers[0], keepFrom); err != nil || !old {
			return err
		}
		if err := pruned.segment(d, names, segmentName(numbers[0])); err != nil {
			return err
		}
	}
	return nil
}

// segment removes a segment, and before it the torn bytes kept beside it. It
// is gone for good before the next goes: else a crash could leave a hole.
func (p *Pruned) segment(d Dir, names []string, name string) error {
	for _, beside := range names {
		if !strings.HasPrefix(beside, name+tornSuffix) {
			continue
		}
		if err := p.remove(d, beside); err != nil {
			return err
		}
	}
	if err := p.remove(d, name); err != nil {
		return err
	}
	p.Segments = append(p.Segments, name)
	p.Left--
	if err := d.fs().SyncDir(d.Path); err != nil {
		return fmt.Errorf("journal: prune %s: %w", name, err)
	}
	return nil
}

// wholly reports whether all of a segment is older than keepFrom, by the time
// of the line that the next one begins with. It is an error if it is damaged,
// or not what that line follows.
func (d Dir) wholly(fsys disk.FS, number int64, keepFrom time.Time) (older bool, err error) {
	open, err := d.opening(fsys, number+1)
	if err != nil || open.T >= keepFrom.UnixMicro() {
		return false, err
	}
	s, err := openSegment(fsys, d.Path, segmentName(number), startOf(number))
	if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	err = s.each(func(*Entry) error { return nil })
	switch {
	case err != nil:
	case !s.clean():
		err = s.noSeal()
	case s.chain.crc != open.Opening.LastCRC:
		err = s.damage(rawLine{off: s.good}, "the next segment does not follow this one")
	}
	return err == nil, errors.Join(err, s.close())
}

// opening returns the line that a segment begins with.
func (d Dir) opening(fsys disk.FS, number int64) (open Entry, err error) {
	s, err := openSegment(fsys, d.Path, segmentName(number), startOf(number))
	if err != nil {
		return open, fmt.Errorf("journal: %w", err)
	}
	err = errors.Join(s.next(&open), s.close())
	return open, err
}

// remove deletes a file, which somebody else may have done before.
func (p *Pruned) remove(d Dir, name string) error {
	fsys, path := d.fs(), filepath.Join(d.Path, name)
	p.Bytes += d.sizeOf(name)
	err := fsys.Remove(path)
	if disk.IsFull(err) && fsys.Remove(filepath.Join(d.Path, ballastName)) == nil { // some file systems write to remove
		err = fsys.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: prune %s: %w", name, err)
	}
	return nil
}
