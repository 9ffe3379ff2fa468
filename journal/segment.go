package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tollbook/tollbook/journal/disk"
)

const (
	segmentSuffix = ".jsonl"

	// Behind the name of a segment:
	tornSuffix    = ".torn"    // the bytes that recovery cut off its end
	damagedSuffix = ".damaged" // what it was before a repair
	asideSuffix   = ".aside"   // it, good, behind which history ends
)

func segmentName(number int64) string { return fmt.Sprintf("%06d%s", number, segmentSuffix) }

// segmentNumbers picks the segments from the names in a directory, in order.
func segmentNumbers(names []string) (numbers []int64) {
	for _, name := range names {
		n, err := strconv.ParseInt(strings.TrimSuffix(name, segmentSuffix), 10, 64)
		if err == nil && n > 0 && name == segmentName(n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// gap returns the first number that is missing between two others, or 0.
func gap(numbers []int64) int64 {
	for i := 1; i < len(numbers); i++ {
		if want := numbers[i-1] + 1; numbers[i] != want {
			return want
		}
	}
	return 0
}

// listSegments returns the names in a directory and the segments among them. A
// listing made while segments are pruned can miss one and still have an older
// one, so a gap is looked at again before it is believed.
func listSegments(fsys disk.FS, dir string) (names []string, numbers []int64, err error) {
	for range 3 {
		if names, err = fsys.List(dir); err != nil {
			return nil, nil, err
		}
		if numbers = segmentNumbers(names); gap(numbers) == 0 {
			break
		}
	}
	return names, numbers, nil
}

func missingSegment(dir string, number int64) *CorruptError {
	return &CorruptError{Dir: dir, Segment: segmentName(number), Line: 1, Reason: "the segment is missing between two others"}
}

// segment reads one segment from its beginning, checking each line against the
// one before.
type segment struct {
	dir   string
	name  string
	file  disk.File
	size  int64 // when it was opened; what is written later is not read
	lines *lineReader
	start chain // before its first line
	chain chain // behind the last good line
	good  int64 // bytes up to here are good lines
	ended bool  // the last of them has its newline

	stay bool // the strings of batches do

	// A last line without its newline is not read, since its writer may be at
	// work. Recovery, when there is none, sets mend to have it if it is whole.
	mend bool
	// whole: the line that next refused is undamaged, but not what follows here.
	whole bool
}

// openSegment opens the segment that c is the chain for. One that was pruned
// since it was listed is an [ErrConflict].
func openSegment(fsys disk.FS, dir, name string, c chain) (*segment, error) {
	file, err := fsys.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		if names, err := fsys.List(dir); err == nil && slices.Contains(names, name) {
			return nil, &CorruptError{Dir: dir, Segment: name, Line: 1, Reason: "a link to nothing stands in its place"}
		}
		return nil, fmt.Errorf("%w: %s was pruned meanwhile; read again", ErrConflict, name)
	}
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	lines := newLineReader(io.NewSectionReader(file, 0, size), size)
	return &segment{dir: dir, name: name, file: file, size: size, lines: lines, start: c, chain: c}, nil
}

func (s *segment) close() error { return s.file.Close() }

// next reads the next good line into e. It returns io.EOF behind the last one,
// a [*CorruptError] at a line that is not good, or the error of the disk.
func (s *segment) next(e *Entry) error {
	line, err := s.lines.next()
	if err == nil && !line.done && !s.mend {
		err = io.EOF
	}
	if errors.Is(err, io.EOF) && s.short() {
		return s.cutShort()
	}
	if err != nil {
		return err
	}
	if line.long {
		return s.damage(line, "longer than any line that is written")
	}
	if err := parseLine(line.text, string(line.text), e); err != nil {
		return s.damage(line, err.Error())
	}
	if bad := s.chain.misfit(e, line.off); bad != "" {
		s.whole = true
		return s.damage(line, bad)
	}
	s.chain.took(e)
	s.good, s.ended = line.off+line.size, line.done
	return nil
}

// clean reports, behind the last line, whether the segment was sealed and
// holds nothing else.
func (s *segment) clean() bool { return s.chain.seals == 2 && s.good == s.size && s.ended }

func (s *segment) damage(line rawLine, reason string) *CorruptError {
	return &CorruptError{Dir: s.dir, Segment: s.name, Offset: line.off, Line: s.chain.lines + 1, Reason: reason}
}

// short reports, behind the last line, that not all lines are there that were
// durable before the segment got its name.
func (s *segment) short() bool { return s.chain.lines <= s.chain.carries }

func (s *segment) cutShort() *CorruptError {
	if s.size == 0 {
		return s.empty()
	}
	return s.damage(rawLine{off: s.good}, "the segment ends before the last of the lines that it was begun with")
}

// torn reports, after next returned a [*CorruptError], whether the bad bytes
// can be a write that never ended: nothing shows that they were once durable.
// Three things would. The lines that became durable together with the open line
// were so before the segment got its name. A line that is whole but out of its
// place was not torn by a crash. And any line further on says up to where the
// segment was durable when that line was made; one with an older seq is none
// of them, but a block of a deleted file that the crash brought up.
func (s *segment) torn() (bool, error) {
	if s.chain.lines <= s.chain.carries || s.whole {
		return false, nil
	}
	for {
		line, err := s.lines.next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		var e Entry
		if !line.long && parseLine(line.text, string(line.text), &e) == nil && e.Seq > s.chain.seq && e.Synced > s.good {
			return false, nil
		}
	}
}

func (s *segment) noSeal() *CorruptError {
	return &CorruptError{Dir: s.dir, Segment: s.name, Offset: s.good, Line: s.chain.lines + 1, Reason: "the segment does not end in two seals, though another follows"}
}

func (s *segment) empty() *CorruptError {
	return &CorruptError{Dir: s.dir, Segment: s.name, Line: 1, Reason: "the segment is empty"}
}

// each visits the lines up to the end or to the first damage, which is
// returned.
func (s *segment) each(visit func(*Entry) error) error {
	var e Entry
	for {
		if err := s.next(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := visit(&e); err != nil {
			return err
		}
	}
}
