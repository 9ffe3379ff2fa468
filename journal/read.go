package journal

import (
	"cmp"
	"errors"
	"fmt"
	"iter"

	"github.com/tollbook/tollbook/journal/disk"
)

// Dir reads the file journal in a directory without its lock, also while a
// [File] writes it or after a crash. It changes nothing. A line that is being
// written at the moment is not yielded and is no error, and neither is the torn
// end that a crash leaves: that is for [OpenFile] to mend and for [Dir.Verify] to
// report. Any other damage ends the reading with a [*CorruptError], and a segment
// that was pruned before its turn came with [ErrConflict].
//
// The batch whose sync is under way may be yielded, as the last: if the sync
// fails, it is taken back, and a later reading does not have it.
type Dir struct {
	Path string
	FS   disk.FS // nil: the operating system's, disk.OS()
}

// Newest yields the entries of the newest segment, which is the whole state,
// without seals. Like those of all that is read here, the strings of an entry
// share memory with some hundred lines around it: clone what is kept for long.
func (d Dir) Newest() iter.Seq2[Entry, error] { return oneByOne(d.batches(true, true)) }

// History yields the entries of all segments that are kept, oldest first,
// without seals. Open entries and those marked Carried repeat, in each segment
// but the first, what was yielded before.
func (d Dir) History() iter.Seq2[Entry, error] { return oneByOne(d.batches(false, true)) }

// NewestBatches is Newest for many entries at a time, which are valid until the
// next are asked for. Then their strings change too, as no other strings do:
// clone what is kept. It reads and checks ahead in other goroutines, which have
// ended when the loop has.
func (d Dir) NewestBatches() iter.Seq2[[]Entry, error] { return d.batches(true, false) }

// HistoryBatches is History for many entries at a time, as
// [Dir.NewestBatches] is Newest.
func (d Dir) HistoryBatches() iter.Seq2[[]Entry, error] { return d.batches(false, false) }

// oneByOne yields the entries of batches.
func oneByOne(batches iter.Seq2[[]Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for entries, err := range batches {
			for i := range entries {
				if !yield(entries[i], nil) {
					return
				}
			}
			if err != nil && !yield(Entry{}, err) {
				return
			}
		}
	}
}

// errStopped is returned by a visit that has seen enough.
var errStopped = errors.New("stopped")

// batches yields the entries of the newest segment or of all; their strings stay
// or not.
func (d Dir) batches(newest, stay bool) iter.Seq2[[]Entry, error] {
	return func(yield func([]Entry, error) bool) {
		err := d.visit(newest, stay, func(entries []Entry) error {
			if entries = unsealed(entries); len(entries) > 0 && !yield(entries, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// unsealed leaves out the seals, which are the last lines of a segment.
func unsealed(entries []Entry) []Entry {
	n := len(entries)
	for n > 0 && entries[n-1].Kind == Seal {
		n--
	}
	return entries[:n]
}

func (d Dir) visit(newest, stay bool, visit func([]Entry) error) error {
	fsys := d.fs()
	s, numbers, err := d.first(fsys, newest)
	if err != nil || s == nil {
		return err
	}
	for _, number := range numbers[1:] {
		s.stay = stay
		err := s.batches(visit)
		if err == nil && !s.clean() {
			err = s.noSeal()
		}
		if err := errors.Join(err, s.close()); err != nil {
			return err
		}
		next := s.chain.following()
		if number != next.segment {
			return missingSegment(d.Path, next.segment)
		}
		s, err = openSegment(fsys, d.Path, segmentName(number), next)
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
	}
	return d.live(fsys, s, visit)
}

func (d Dir) fs() disk.FS {
	if d.FS == nil {
		return disk.OS()
	}
	return d.FS
}

// first lists the segments to read and opens the first of them; nil if there
// is none. Retention takes the oldest: one that is gone was listed too early.
func (d Dir) first(fsys disk.FS, newest bool) (s *segment, numbers []int64, err error) {
	for range 10 {
		if _, numbers, err = listSegments(fsys, d.Path); err != nil {
			return nil, nil, fmt.Errorf("journal: %w", err)
		}
		if len(numbers) == 0 {
			return nil, nil, nil
		}
		if newest {
			numbers = numbers[len(numbers)-1:]
		}
		s, err = openSegment(fsys, d.Path, segmentName(numbers[0]), startOf(numbers[0]))
		if err == nil {
			return s, numbers, nil
		}
		if !errors.Is(err, ErrConflict) {
			return nil, nil, fmt.Errorf("journal: %w", err)
		}
	}
	return nil, nil, fmt.Errorf("journal: the segments of %s are removed faster than they can be read", d.Path)
}

// live reads the newest segment, to which somebody may be appending; see
// [durable].
func (d Dir) live(fsys disk.FS, s *segment, visit func([]Entry) error) error {
	last := durable{visit: visit}
	for again := false; ; again = true {
		before := s.start
		s.stay = true // of what is held back
		err := s.batches(last.add)
		damage, isDamage := errors.AsType[*CorruptError](err)
		if isDamage && !again {
			last.again()
			if err := s.close(); err != nil {
				return err
			}
			if s, err = openSegment(fsys, d.Path, s.name, before); err != nil {
				return fmt.Errorf("journal: %w", err)
			}
			continue
		}
		if isDamage {
			var torn bool
			if torn, err = s.torn(); err == nil && !torn {
				err = damage
			}
		}
		if err == nil || isDamage {
			err = cmp.Or(last.flush(), err)
		}
		return errors.Join(err, s.close())
	}
}
