package journal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
// without seals.
func (d Dir) Newest() iter.Seq2[Entry, error] { return d.entries(true) }

// History yields the entries of all segments that are kept, oldest first,
// without seals. Open entries and those marked Carried repeat, in each segment
// but the first, what was yielded before.
func (d Dir) History() iter.Seq2[Entry, error] { return d.entries(false) }

func (d Dir) entries(newest bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := d.visit(newest, func(e *Entry) error {
			if e.Kind != Seal && !yield(*e, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(Entry{}, err)
		}
	}
}

func (d Dir) visit(newest bool, visit func(*Entry) error) error {
	fsys := d.fs()
	s, numbers, err := d.first(fsys, newest)
	if err != nil || s == nil {
		return err
	}
	for _, number := range numbers[1:] {
		err := s.each(visit)
		if err == nil && !s.clean() {
			err = s.noSeal()
		}
		if err := errors.Join(err, s.close()); err != nil {
			return err
		}
		next := s.chain.following()
		if number != next.segment {
			return missingSegment(next.segment)
		}
		s, err = openSegment(fsys, d.Path, segmentName(number), next)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s was pruned meanwhile; read again", ErrConflict, segmentName(number))
		}
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
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("journal: %w", err)
		}
	}
	return nil, nil, fmt.Errorf("journal: the segments of %s are removed faster than they can be read", d.Path)
}

// live reads the newest segment, to which somebody may be appending. Damage
// that is not there at a second look was a batch that a full disk cut back and
// that others took the place of, while it was being read. So a batch is held
// back until what follows it says that it was durable, or until the end.
func (d Dir) live(fsys disk.FS, s *segment, visit func(*Entry) error) error {
	var seen uint64
	var batch []Entry
	yield := func() error {
		for i := range batch {
			seen = batch[i].Seq
			if err := visit(&batch[i]); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	again := false
	for {
		before := s.start
		err := s.each(func(e *Entry) error {
			if e.Seq <= seen {
				return nil
			}
			if len(batch) > 0 && e.Synced > batch[0].Synced {
				if err := yield(); err != nil {
					return err
				}
			}
			batch = append(batch, *e)
			if s.chain.lines <= 1+s.chain.carries { // durable since the segment got its name
				return yield()
			}
			return nil
		})
		damage, isDamage := errors.AsType[*CorruptError](err)
		if isDamage && !again {
			again, batch = true, batch[:0]
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
			err = cmp.Or(yield(), err)
		}
		return errors.Join(err, s.close())
	}
}

// ReadLedger yields the entries of one file as it stands, whoever wrote it. A
// line needs "ev", "rid" and "amount"; spaces and other fields are no matter,
// and nothing is asked of the lines before. Empty lines and seals are skipped.
// For a line that is none it yields a [*CorruptError] that has name as its
// Segment, and goes on behind it if the caller does; after any other error it
// ends.
func ReadLedger(name string, r io.Reader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		lines := newLineReader(r, readSize)
		for number := int64(1); ; number++ {
			line, err := lines.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(Entry{}, fmt.Errorf("journal: read %s: %w", name, err))
				return
			}
			e, err := ledgerLine(line)
			if err != nil {
				err = &CorruptError{Segment: name, Offset: line.off, Line: number, Reason: err.Error(), Unfinished: !line.done}
			} else if e.Kind == 0 || e.Kind == Seal {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// ledgerLine returns the zero Entry for an empty line.
func ledgerLine(line rawLine) (e Entry, err error) {
	if line.long {
		return e, badLine("longer than any line of a ledger")
	}
	if len(bytes.TrimSpace(line.text)) == 0 {
		return e, nil
	}
	if e, err = parseForeign(line.text); err != nil {
		return Entry{}, err
	}
	return e, nil
}
