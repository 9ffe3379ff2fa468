package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"strings"
)

// maxProblems is how many faults of an input are listed before "and more".
const maxProblems = 10

// input is a Batch input file that was checked from end to end. Of each item it
// keeps only where its line starts: 8 bytes.
type input struct {
	Fingerprint string // SHA-256 of the file's bytes, in hex

	file   *os.File
	stat   os.FileInfo // when it was read: a file that changes under a run is an error
	starts []int64     // start of each item's line, and the end of the last
}

// openInput reads and checks the whole file. The error names every faulty line
// (up to maxProblems), before any call is made.
func openInput(path string) (in *input, err error) {
	stat, err := os.Stat(path) // before it is opened: a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	if !stat.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; it is read more than once, so save a stream to a file first", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if stat, err = f.Stat(); err != nil {
		return nil, err
	}
	in = &input{file: f, stat: stat}
	return in, in.check(path)
}

// check is the one pass over the file.
func (in *input) check(path string) error {
	faults := &inputError{}
	sum := sha256.New()
	lines := lineReader{r: bufio.NewReaderSize(io.TeeReader(in.file, sum), 1<<20)}
	if head, _ := lines.r.Peek(2); string(head) == "\x1f\x8b" {
		return fmt.Errorf("%s is compressed with gzip; unpack it first", path)
	}
	seed := maphash.MakeSeed()
	var ids []uint64 // hash of each custom_id, only while checking
	for {
		line, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil && !errors.Is(err, errLongLine) {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if err == nil && len(line) == 0 {
			continue
		}
		var it item
		if err == nil {
			it, err = parseItem(line)
		}
		if err != nil {
			faults.add(fmt.Sprintf("%s: line %d", path, lines.number), err)
			continue
		}
		in.starts = append(in.starts, lines.start)
		ids = append(ids, maphash.String(seed, it.ID))
	}
	switch {
	case faults.count > 0:
		return faults
	case len(in.starts) == 0:
		return fmt.Errorf("%s holds no requests", path)
	}
	in.starts = slices.Clip(append(in.starts, lines.offset))
	in.Fingerprint = hex.EncodeToString(sum.Sum(nil))
	if twice := repeated(ids); len(twice) > 0 {
		return in.duplicates(path, seed, twice)
	}
	return nil
}

// repeated returns the values that stand in hashes more than once; it sorts
// hashes in place.
func repeated(hashes []uint64) map[uint64]bool {
	slices.Sort(hashes)
	twice := map[uint64]bool{}
	for i := 1; i < len(hashes); i++ {
		if hashes[i] == hashes[i-1] {
			twice[hashes[i]] = true
		}
	}
	return twice
}

// duplicates reads the file once more to say which custom_id stands on which
// two lines. Only names whose hashes meet are kept in memory, and two that
// merely share a hash are no fault.
func (in *input) duplicates(path string, seed maphash.Seed, twice map[uint64]bool) error {
	faults := &inputError{}
	if _, err := in.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	lines := lineReader{r: bufio.NewReaderSize(in.file, 1<<20)}
	first := map[string]int{}
	for {
		line, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if len(line) == 0 {
			continue
		}
		it, err := parseItem(line)
		if err != nil {
			return fmt.Errorf("%s changed while it was read: line %d: %w", path, lines.number, err)
		}
		if !twice[maphash.String(seed, it.ID)] {
			continue
		}
		if n, ok := first[it.ID]; ok {
			faults.add(fmt.Sprintf("%s: line %d", path, lines.number), fmt.Errorf("custom_id %s is on line %d already", quote(it.ID), n))
			continue
		}
		first[it.ID] = lines.number
	}
	if faults.count > 0 {
		return faults
	}
	return nil
}

// Len is the number of items.
func (in *input) Len() int { return len(in.starts) - 1 }

// At reads item i from the file. It is safe for concurrent use.
func (in *input) At(i int) (item, error) {
	if now, err := in.file.Stat(); err != nil || now.Size() != in.stat.Size() || !now.ModTime().Equal(in.stat.ModTime()) {
		return item{}, errors.Join(errors.New("the input file changed while the run was reading it"), err)
	}
	line := make([]byte, in.starts[i+1]-in.starts[i])
	if _, err := in.file.ReadAt(line, in.starts[i]); err != nil {
		return item{}, fmt.Errorf("reading item %d of the input: %w", i+1, err)
	}
	it, err := parseItem(trim(line))
	if err != nil {
		return item{}, fmt.Errorf("item %d of the input: %w", i+1, err)
	}
	return it, nil
}

// where says on which line item i is. It reads the file up to there: it is for
// errors.
func (in *input) where(i int) string {
	lines := lineReader{r: bufio.NewReader(io.NewSectionReader(in.file, 0, in.starts[i+1]))}
	for lines.offset <= in.starts[i] {
		if _, err := lines.next(); err != nil {
			break
		}
	}
	return fmt.Sprintf("%s: line %d", in.file.Name(), lines.number)
}

// Close closes the file.
func (in *input) Close() error { return in.file.Close() }

// inputError lists what is wrong with an input file.
type inputError struct {
	count int
	lines []string // the first maxProblems
}

func (e *inputError) add(where string, what error) {
	if e.count++; e.count <= maxProblems {
		e.lines = append(e.lines, fmt.Sprintf("%s: %v", where, what))
	}
}

func (e *inputError) Error() string {
	text := strings.Join(e.lines, "\n")
	if more := e.count - len(e.lines); more > 0 {
		text += fmt.Sprintf("\nand %d more", more)
	}
	return text
}
