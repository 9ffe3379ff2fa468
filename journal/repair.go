package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/tollbook/tollbook/journal/disk"
)

// Repaired is what [Repair] found and did. The zero value: there was nothing to
// repair.
type Repaired struct {
	// The newest segment, if it was damaged and is replaced.
	Segment  string
	Damage   *CorruptError // the first in it
	Original string        // file with its bytes as they were
	Begun    string        // segment from which its beginning was made anew; empty if that was good
	Kept     int64         // entries before the damage, which stand as they stood
	Moved    int64         // good entries behind damage, which were written anew
	Lost     []Lost        // what could not be kept, in order

	// Segments that are no longer part of the journal: older ones, oldest first,
	// and before them an empty one that never was.
	Aside []Aside
}

// Changed reports whether anything was repaired.
func (r *Repaired) Changed() bool { return r.Segment != "" || len(r.Aside) > 0 }

// Lost is a stretch of the damaged segment that was not kept.
type Lost struct {
	Offset, Bytes int64  // in the original; no bytes: the entries are not there at all, and without First maybe none were
	First, Last   uint64 // Seq of the entries lost. First is 0 if there are none, Last if nobody knows how many
	Reason        string // in words; never repeats what a line holds
	// Entries are what the lines say. If Whole, they are undamaged and cannot
	// follow the entries that are left. Else only Kind, RID and Amount are
	// filled in, of those lines that can still be read, and may be wrong.
	Entries []Entry
	Whole   bool
}

// Harmless reports whether no fact is lost with it.
func (l *Lost) Harmless() bool { return l.First == 0 && l.Bytes > 0 }

// Aside is a segment that was given another name.
type Aside struct {
	Name, Now string
	Reason    string // what is wrong with it, or behind it; empty if that is said of a later one
}

// Fold knows what entries mean, of which a journal knows nothing.
type Fold interface {
	// Keep folds the next entry and returns what is to be written for it: the
	// entry, and before it whatever it cannot follow without. An error says why
	// it cannot follow the entries kept so far.
	Keep(e *Entry) ([]Entry, error)
	// Snapshot returns what a segment behind the entries kept so far begins
	// with, as [File.Rotate] takes it.
	Snapshot() []Entry
}

// ErrIrreparable is wrapped where [Repair] cannot do anything: it changed
// nothing.
var ErrIrreparable = errors.New("journal: cannot be repaired")

// Repair makes a journal that [OpenFile] or [Dir.History] refuses one that they
// take, and says what is lost. It needs the lock, and is only ever called
// because somebody decided so. newFold makes an empty Fold; it may be called
// more than once.
//
// Of a damaged newest segment, the good lines before the damage are kept byte
// for byte, and of those behind it every one that is good in itself and can
// still follow is written anew, as the same fact with a new place. If its very
// beginning is damaged, that is made anew from the segment before. Of older
// segments, which are history only, those up to the newest damaged or missing
// one are set aside. No byte is deleted: the original of what is replaced stays
// beside it as NNNNNN.jsonl.damaged, a good segment set aside as NNNNNN.jsonl.aside.
//
// A crash in between leaves either the old or the new, and repeating goes on
// from there. After an error, Repaired says what had been done before.
func Repair(dir string, opts FileOptions, newFold func() Fold) (r Repaired, err error) {
	f, err := newFile(dir, opts)
	if err != nil {
		return r, err
	}
	// Before there is a LOCK in what may be anybody's directory.
	if _, numbers, err := listSegments(f.fs, f.dir); err != nil {
		return r, fmt.Errorf("journal: %w", err)
	} else if len(numbers) == 0 {
		return r, fmt.Errorf("%w: there are no segments in %s", ErrIrreparable, f.dir)
	}
	if err := f.takeLock(); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.lock.Close()) }()
	names, numbers, err := listSegments(f.fs, f.dir)
	if err != nil {
		return r, fmt.Errorf("journal: %w", err)
	}
	if err := f.sweep(names); err != nil {
		return r, fmt.Errorf("journal: remove unfinished file: %w", err)
	}
	if stray, err := f.stray(numbers); err != nil {
		return r, err
	} else if stray {
		last := len(numbers) - 1
		a := Aside{Name: segmentName(numbers[last]), Reason: "it is empty, and the segment before it was not closed"}
		if err := f.putAside(&r, numbers[last], a, damagedSuffix); err != nil {
			return r, err
		}
		numbers = numbers[:last]
	}
	h, err := f.history(numbers)
	if err != nil {
		return r, err
	}
	return r, f.mendAll(&r, h, newFold)
}

// stray reports whether the newest segment never was one: it is empty, and the
// one before has no seals, without which none follows.
func (f *File) stray(numbers []int64) (bool, error) {
	n := len(numbers)
	if n < 2 || numbers[n-2] != numbers[n-1]-1 {
		return false, nil
	}
	s, err := openSegment(f.fs, f.dir, segmentName(numbers[n-1]), startOf(numbers[n-1]))
	if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	if err := s.close(); err != nil || s.size > 0 {
		return false, err
	}
	if s, err = openSegment(f.fs, f.dir, segmentName(numbers[n-2]), startOf(numbers[n-2])); err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	end, err := s.ending(ignore)
	return (end.damage == nil || end.torn) && !s.clean(), errors.Join(err, s.close())
}

// history is what is known of the segments before the newest.
type history struct {
	numbers []int64  // of all segments
	reasons []string // why history does not go through them
	damaged []bool   // because of what they hold
	from    int      // the first from which one follows the other up to the newest
	before  chain    // behind the last of them; not joined: the newest follows none
}

func (h *history) newest() int64 { return h.numbers[len(h.numbers)-1] }

// cut makes history begin with segment i, for a reason with the one before.
func (h *history) cut(i int, reason string, damaged bool) {
	h.from, h.reasons[i-1], h.damaged[i-1], h.before = i, reason, damaged, chain{}
}

// history reads all segments but the newest.
func (f *File) history(numbers []int64) (*history, error) {
	h := &history{numbers: numbers, reasons: make([]string, len(numbers)), damaged: make([]bool, len(numbers))}
	for i, number := range numbers {
		if i > 0 && number != numbers[i-1]+1 {
			h.cut(i, segmentName(numbers[i-1]+1)+" is missing behind it", false)
		}
		if i == len(numbers)-1 {
			break
		}
		start := startOf(number)
		if h.before.joined {
			start = h.before.following()
		}
		end, damage, misplaced, err := f.readAll(start)
		if misplaced && err == nil {
			h.cut(i, segmentName(number)+" does not follow it", false)
			end, damage, _, err = f.readAll(startOf(number))
		}
		if err != nil {
			return nil, err
		}
		if h.before = end; damage != nil {
			h.cut(i+1, "damaged in "+damage.where(), true)
		}
	}
	return h, nil
}

// readAll reads a segment that must be whole, and returns the chain behind it.
// misplaced: its first line is good, but not behind what start is the chain of.
func (f *File) readAll(start chain) (end chain, damage *CorruptError, misplaced bool, err error) {
	s, err := openSegment(f.fs, f.dir, segmentName(start.segment), start)
	if err != nil {
		return end, nil, false, fmt.Errorf("journal: %w", err)
	}
	err = s.each(func(*Entry) error { return nil })
	if errors.As(err, &damage) {
		err = nil
	} else if err == nil && !s.clean() {
		damage = s.noSeal()
	}
	return s.chain, damage, start.seq > 0 && s.chain.lines == 0 && s.whole, errors.Join(err, s.close())
}

// mendAll judges the newest segment, sets aside what it does not follow, and
// last replaces it, if it is damaged: what was lost is said by the call that
// took its place, or not at all.
func (f *File) mendAll(r *Repaired, h *history, newFold func() Fold) error {
	s, err := openSegment(f.fs, f.dir, segmentName(h.newest()), startOf(h.newest()))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	v, err := f.examine(s, h)
	if err != nil {
		return errors.Join(fmt.Errorf("journal: repair %s: %w", s.name, err), s.close())
	}
	if err := f.setAside(r, h); err != nil || v == nil {
		return errors.Join(err, s.close())
	}
	v.newFold = newFold
	found, err := v.replacement()
	if err = errors.Join(err, s.close()); err == nil {
		err = f.fs.Rename(f.path(s.name+disk.TempSuffix), f.path(s.name))
	}
	if err == nil { // maybe not for good, but it is there
		found.Aside = r.Aside
		*r = found
		err = f.fs.SyncDir(f.dir)
	}
	if err != nil {
		return full(fmt.Errorf("journal: repair %s: %w", s.name, err))
	}
	return nil
}

// examine judges the newest segment, and returns what is to be done about it,
// or nil.
func (f *File) examine(s *segment, h *history) (*salvage, error) {
	end, err := s.ending(ignore)
	if err != nil {
		return nil, err
	}
	if s.chain.lines > 0 && h.before.joined {
		open, err := Dir{Path: f.dir, FS: f.fs}.opening(f.fs, h.newest())
		if err != nil {
			return nil, err
		}
		if open.Prev != h.before.crc || open.Seq != h.before.seq+1 {
			h.cut(len(h.numbers)-1, s.name+" does not follow it", false)
		}
	}
	if end.damage == nil || end.torn { // what else there may be, opening mends
		return nil, nil
	}
	v := &salvage{f: f, s: s, end: end}
	damage := *end.damage
	damage.Dir = "" // its advice is to repair
	if s.chain.lines == 0 && s.firstIsWhole() {
		why := "and not understood, as one of a later version of this program would be"
		if s.whole {
			why = "and does not belong here"
		}
		return nil, fmt.Errorf("%w: its first line is undamaged %s: %w", ErrIrreparable, why, &damage)
	}
	if s.chain.lines <= s.chain.carries {
		if !h.before.joined {
			return nil, fmt.Errorf("%w: its beginning is damaged, and there is no good segment before it to make it anew from: %w", ErrIrreparable, &damage)
		}
		v.before = h.before
	}
	return v, nil
}

// firstIsWhole reports whether the first line is as it was written.
func (s *segment) firstIsWhole() bool {
	line, err := newLineReader(io.NewSectionReader(s.file, 0, s.size), s.size).next()
	n := len(line.text) - len(crcField)
	return err == nil && !line.long && n > 0 && string(appendCRC([]byte(crcField[:8]), checksum(line.text[:n])))+`"}` == string(line.text[n:])
}

// setAside gives those before the first that history begins with another name,
// oldest first, so that there is no new gap at any time.
func (f *File) setAside(r *Repaired, h *history) error {
	for i, number := range h.numbers[:h.from] {
		suffix := asideSuffix
		if h.damaged[i] {
			suffix = damagedSuffix
		}
		if err := f.putAside(r, number, Aside{Name: segmentName(number), Reason: h.reasons[i]}, suffix); err != nil {
			return err
		}
	}
	return nil
}

// putAside gives a segment another name, durably. As a copy: a crash may take
// both names of a rename. One that was pruned meanwhile is no longer there to be
// set aside.
func (f *File) putAside(r *Repaired, number int64, a Aside, suffix string) (err error) {
	if a.Now, err = f.freeName(a.Name + suffix); err == nil {
		err = f.copyTo(number, a.Now)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = f.fs.Remove(f.path(a.Name))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.Aside = append(r.Aside, a)
		err = f.fs.SyncDir(f.dir)
	}
	if err != nil {
		return full(fmt.Errorf("journal: set %s aside: %w", a.Name, err))
	}
	return nil
}

// copyTo makes a copy of a segment under another name, durably.
func (f *File) copyTo(number int64, name string) error {
	s, err := openSegment(f.fs, f.dir, segmentName(number), startOf(number))
	if err != nil {
		return err
	}
	err = f.inRoom(func() error { return f.copyOut(s, 0, name) })
	return errors.Join(err, s.close())
}
