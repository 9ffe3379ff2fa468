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

// recover finds the end of the newest segment and mends it after a crash, so
// that a new segment can follow. No other segment is read.
func (f *File) recover() error {
	names, err := f.fs.List(f.dir)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := f.sweep(names); err != nil {
		return fmt.Errorf("journal: remove unfinished file: %w", err)
	}
	numbers := segmentNumbers(names)
	for i := 1; i < len(numbers); i++ {
		if want := numbers[i-1] + 1; numbers[i] != want {
			return missingSegment(want)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	number := numbers[len(numbers)-1]
	name := segmentName(number)
	f.found.Segment = name
	s, err := openSegment(f.fs, f.dir, name, startOf(number))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err = f.mend(s)
	if err = errors.Join(err, s.close()); err != nil || !f.found.Unclean {
		return err
	}
	if err := f.rename(name); err != nil {
		return fmt.Errorf("journal: replace %s after a crash: %w", name, err)
	}
	return nil
}

// sweep removes what was never finished, and so was never in charge.
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

// mend reads the newest segment to its end and, unless it was closed cleanly,
// makes a sealed copy of what is good, to be put in its place. A copy, since
// after a failed fsync the good lines may be in memory only, and neither
// reading nor syncing them again would show it.
func (f *File) mend(s *segment) error {
	s.mend = true
	body, end := s.chain, int64(0) // behind the last line that is no seal
	err := s.each(func(e *Entry) error {
		if e.Kind != Seal {
			body, end = s.chain, s.good
		}
		return nil
	})
	if damage, ok := errors.AsType[*CorruptError](err); ok {
		var torn bool
		if torn, err = s.torn(); err == nil && !torn {
			return damage
		}
	}
	if err != nil {
		return fmt.Errorf("journal: read %s: %w", s.name, err)
	}
	switch {
	case s.chain.lines == 0:
		return &CorruptError{Segment: s.name, Line: 1, Reason: "the segment is empty"}
	case s.clean():
		f.chain, f.synced = s.chain, s.size
		return f.settle(s.name)
	}
	f.found.Unclean = true
	if err := f.keepTorn(s); err != nil {
		return full(fmt.Errorf("journal: keep the torn bytes of %s: %w", s.name, err))
	}
	if err := f.rewrite(s, body, end); err != nil {
		return full(fmt.Errorf("journal: rewrite %s after a crash: %w", s.name, err))
	}
	return nil
}

// settle makes seals durable that a killed writer may have written and not
// synced: once the next segment has its name, this one must end in them.
func (f *File) settle(name string) error {
	file, err := f.fs.Append(f.path(name))
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// keepTorn copies the bytes behind the good lines into a file of their own.
func (f *File) keepTorn(s *segment) error {
	if s.good == s.size {
		return nil
	}
	name, err := f.freeName(s.name + ".torn")
	if err != nil {
		return err
	}
	err = disk.WriteTemp(f.fs, f.path(name+disk.TempSuffix), func(w io.Writer) error {
		_, err := io.Copy(w, io.NewSectionReader(s.file, s.good, s.size-s.good))
		return err
	})
	if err != nil {
		return err
	}
	f.found.Torn, f.found.Kept = s.size-s.good, name
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
	err = disk.WriteTemp(f.fs, f.path(temp), func(w io.Writer) error {
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
