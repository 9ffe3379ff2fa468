// Reading needs no lock and disturbs nobody: a live segment never yields an
// unfinished line and never an error (B3), any ledger is taken as it stands,
// and Verify finds all damage there is (rules 6, 24, 29).
package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// B3: a reader follows a writer whose batches come in pieces, rotate, and are
// cut back by a full disk; what it sees is always a beginning of the truth.
func TestReadWhileWriting(t *testing.T) {
	fsys, dir := newTestFS(unsynced{disk.OS()}), t.TempDir()
	f := openOn(t, fsys, dir)
	pos := rotate(t, f, 0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			seen := 0
			for {
				for _, entries := range []func() (int, error){
					func() (n int, err error) {
						lost := 0
						for e, err := range (Dir{Path: dir}).History() {
							if err != nil {
								return n, err
							}
							switch {
							case e.Kind != Reserve:
							case e.RID == "lost":
								lost++ // in flight, and about to be cut back: at the end only
							case lost > 0 || e.RID != fmt.Sprint(n):
								return n, fmt.Errorf("rid %s follows %d others and %d that were never durable", e.RID, n, lost)
							default:
								n++
							}
						}
						return n, nil
					},
					func() (n int, err error) {
						for _, err := range (Dir{Path: dir}).Newest() {
							if err != nil {
								return n, err
							}
						}
						return 1 << 30, nil
					},
					func() (int, error) {
						audit, err := Dir{Path: dir}.Verify()
						if err == nil && audit.Damaged() {
							err = fmt.Errorf("%v", audit.Findings)
						}
						return 1 << 30, err
					},
				} {
					n, err := entries()
					if err != nil {
						t.Error(err)
						return
					}
					if n < seen {
						t.Errorf("%d entries after %d", n, seen)
						return
					}
					if n < 1<<30 {
						seen = n
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 200 {
		if i%7 == 3 {
			fsys.fail = func(_ int, op string) (int, error) {
				if strings.HasPrefix(op, "write") {
					return 50 * (i % 5), syscall.ENOSPC
				}
				return 0, nil
			}
			_, err := f.Append(ctx, pos, batch(reserve("lost", 1), reserve("lost", 1)))
			require.ErrorIs(t, err, ErrFull)
			fsys.fail = nil
		}
		if i%60 == 50 {
			pos = rotate(t, f, pos)
		}
		e := reserve(fmt.Sprint(i), 1)
		e.Key = strings.Repeat("k", i%3*10_000) // more than a page, so that a write can be seen half done
		pos = put(t, f, pos, e)
	}
	close(stop)
	wg.Wait()
	require.NoError(t, f.Close())
	clean(t, dir)
}

// Every beginning of a live segment is read without an error, and never with a
// line whose newline is not there yet.
func TestUnfinishedLineIsNotYielded(t *testing.T) {
	content, dir := segmentOf(t, false), t.TempDir()
	from := bytes.Index(content, []byte(`{"ev":"reserve","rid":"a"`)) // durable since the segment was named
	for size := from; size <= len(content); size++ {
		write(t, filepath.Join(dir, "000001.jsonl"), content[:size])
		want := all[:bytes.Count(content[:size], []byte("\n"))]
		require.Equal(t, want, rids(t, Dir{Path: dir}.Newest()), size)
	}
}

func TestReadNoBook(t *testing.T) {
	for _, entries := range []func(Dir) error{
		func(d Dir) error { return last(d.Newest()) },
		func(d Dir) error { return last(d.History()) },
		func(d Dir) error { _, err := d.Verify(); return err },
	} {
		require.ErrorIs(t, entries(Dir{Path: filepath.Join(t.TempDir(), "none")}), fs.ErrNotExist)
		require.NoError(t, entries(Dir{Path: t.TempDir()}), "an empty book is no error")
	}
}

// last returns the last error of a reading.
func last(entries func(func(Entry, error) bool)) (last error) {
	for _, err := range entries {
		last = err
	}
	return last
}

// pruned removes segments right after they were listed.
type pruned struct {
	unsynced
	dir  string
	gone []string
}

func (p *pruned) List(dir string) ([]string, error) {
	names, err := p.unsynced.List(dir)
	for _, name := range p.gone {
		err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
	}
	p.gone = nil
	return names, err
}

// Rule 24: a reader that loses a file to retention looks again.
func TestReadWhilePruning(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	pos := Pos(0)
	for i := range 3 {
		pos = put(t, f, rotate(t, f, pos), reserve(fmt.Sprint(i), 1))
	}
	require.NoError(t, f.Close())
	fsys := &pruned{dir: dir, gone: []string{"000001.jsonl"}}
	fsys.FS = newTestFS()
	require.Equal(t, []string{"open", "1", "open", "2"}, rids(t, Dir{Path: dir, FS: fsys}.History()))
}

func TestLedger(t *testing.T) {
	own, _ := encode(t, golden[0].e)
	ledger := `{"ev": "reserve", "rid": "a", "amount": 5, "t": 1.5}` + "\n\n" +
		`{"ev":"refund","rid":"a","amount":-5}` + "\r\n" + string(own) +
		`{"ev":"seal","rid":"","amount":0}` + "\nnonsense\n" +
		strings.Replace(string(own), "800", "900", 1) +
		strings.Repeat("x", 2*MaxLine) + "\n" +
		`{"ev":"settle","rid":"b","amount":7}`
	var got, bad []string
	for e, err := range ReadLedger("run.jsonl", iotest(ledger)) {
		var damage *CorruptError
		if errors.As(err, &damage) {
			bad = append(bad, fmt.Sprintf("%d@%d %s", damage.Line, damage.Offset, damage.Reason))
			require.False(t, damage.Unfinished)
			require.Equal(t, int64(strings.Index(ledger, map[int64]string{6: "nonsense", 7: `{"ev":"reserve","rid":"0198f3","amount":900`, 8: "xxx"}[damage.Line])), damage.Offset)
			continue
		}
		require.NoError(t, err)
		got = append(got, fmt.Sprint(e.Kind, " ", e.Amount))
	}
	require.Equal(t, []string{"reserve 5", "refund -5", "reserve 800", "settle 7"}, got)
	require.Len(t, bad, 3)

	err := last(ReadLedger("cut", strings.NewReader(string(own)+string(own[:50]))))
	var damage *CorruptError
	require.ErrorAs(t, err, &damage)
	require.True(t, damage.Unfinished)
	require.ErrorIs(t, last(ReadLedger("gone", io.MultiReader(strings.NewReader(string(own)), failing{}))), errDisk)
}

// iotest returns few bytes at a time, as a pipe may.
func iotest(s string) io.Reader { return &trickle{s: s} }

type trickle struct {
	s string
	n int
}

func (r *trickle) Read(p []byte) (int, error) {
	if r.s == "" {
		return 0, io.EOF
	}
	r.n = r.n%9973 + 1
	n := copy(p[:min(len(p), r.n)], r.s)
	r.s = r.s[n:]
	return n, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }

// Rule 29, B10: a file without a newline is read in bounded memory, and is an error.
func TestBoundedMemory(t *testing.T) {
	const size = 64 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := last(ReadLedger("dump", io.LimitReader(endless{}, size)))
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, ErrCorrupt)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16*MaxLine))

	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "000001.jsonl"))
	require.NoError(t, err)
	_, err = file.Write(segmentOf(t, false))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(size)) // NULs, without taking room
	require.NoError(t, file.Close())
	runtime.ReadMemStats(&before)
	audit, err := Dir{Path: dir}.Verify()
	require.NoError(t, err)
	require.False(t, audit.Damaged())
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16*MaxLine))
}

// Rule 29: what is read ahead on many cores is many blocks, not many long lines.
func TestLongLinesAreNotKept(t *testing.T) {
	defer func(was int) { readSize = was }(readSize)
	readSize = 512
	line := `{"ev":"reserve"` + strings.Repeat("x", MaxLine-100) + "\n"
	bad := 0
	err := inBlocks(newLineReader(strings.NewReader(strings.Repeat(line, 20)), math.MaxInt64), false, (*block).ofLedger, func(b *block) error {
		bad += len(b.skipped)
		require.LessOrEqual(t, cap(b.buf), 2*readSize)
		require.Zero(t, cap(b.text))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 20, bad)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestVerify(t *testing.T) {
	closed, crashed := segmentOf(t, true), segmentOf(t, false)
	_, second := lineAt(closed, bytes.IndexByte(closed, '\n')+1)
	cut := func(content []byte, from, to int) []byte {
		return append(bytes.Clone(content[:from]), content[to:]...)
	}
	flip := func(content []byte, at ...int) []byte {
		content = bytes.Clone(content)
		for _, i := range at {
			content[i] ^= 4
		}
		return content
	}
	for name, test := range map[string]struct {
		content []byte
		want    []string // findings: line, and * for a note
	}{
		"closed":                        {closed, nil},
		"in use or crashed":             {crashed, []string{"8*"}},
		"torn":                          {crashed[:len(crashed)-3], []string{"7*", "8*"}},
		"torn seal":                     {closed[:len(closed)-3], []string{"9*", "10*"}},
		"damage inside a crashed one":   {flip(crashed, bytes.Index(crashed, []byte(`"rid":"a"`))), []string{"4", "8*"}},
		"empty":                         {nil, []string{"1"}},
		"one line bad":                  {flip(closed, second+5), []string{"2"}},
		"two stretches bad":             {flip(closed, 5, second+5, len(closed)-200-len(lastLine(closed))), []string{"1", "7"}},
		"a line missing":                {cut(closed, second, bytes.Index(closed, []byte(`{"ev":"reserve","rid":"a"`))), []string{"2"}},
		"carried lines of a fresh file": {flip(crashed[:bytes.Index(crashed, []byte(`{"ev":"reserve","rid":"a"`))], second+5), []string{"2", "4*"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "000001.jsonl"), test.content)
			audit, err := Dir{Path: dir}.Verify()
			require.NoError(t, err)
			var got []string
			damaged := false
			for _, f := range audit.Findings {
				require.Equal(t, "000001.jsonl", f.Segment)
				damaged = damaged || !f.Note
				got = append(got, fmt.Sprint(f.Line)+map[bool]string{true: "*"}[f.Note])
			}
			require.Equal(t, test.want, got, "%v", audit.Findings)
			require.Equal(t, damaged, audit.Damaged())
			require.Equal(t, []int64{1, int64(len(test.content))}, []int64{int64(audit.Segments), audit.Bytes})
		})
	}
}

// A plain reader that knows the first four fields adds up a segment, carried
// lines included, to what the guard counts (I3), as the script of article 004
// does.
func TestPlainReplay(t *testing.T) {
	sums := map[string]int{}
	for e, err := range ReadLedger("000001.jsonl", bytes.NewReader(segmentOf(t, true))) {
		require.NoError(t, err)
		sums["net"] += int(e.Amount)
		sums[e.Kind.String()]++
	}
	require.Equal(t, map[string]int{"net": 3 + 3 + 5 - 1 + 5 + 6, "open": 1, "reserve": 5, "settle": 1}, sums)
}

// swapFS puts other content in place of a segment's when a reader comes for
// its second piece.
type swapFS struct {
	disk.FS
	swap func()
}

func (s swapFS) Open(name string) (disk.File, error) {
	f, err := s.FS.Open(name)
	return &swapFile{File: f, swap: s.swap}, err
}

type swapFile struct {
	disk.File
	swap  func()
	reads int
}

func (s *swapFile) ReadAt(p []byte, off int64) (int, error) {
	if s.reads++; s.reads == 2 {
		s.swap()
	}
	return s.File.ReadAt(p, off)
}

// A batch that a full disk cuts back while it is read, and whose place another
// one takes, hides nothing: the reader has the entries that took its place.
func TestBatchReplacedWhileRead(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenFile(dir, FileOptions{})
	require.NoError(t, err)
	pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
	path, chain, synced := filepath.Join(dir, "000001.jsonl"), f.chain, f.synced
	content := func(entries ...Entry) []byte { // of the segment with these behind
		require.NoError(t, f.active.Truncate(synced))
		f.chain, f.synced = chain, synced
		put(t, f, put(t, f, pos, entries...), reserve("z", 1))
		return read(t, path)
	}
	long, d := reserve("lost", 1), reserve("d", 1)
	long.Key = strings.Repeat("k", 3*readSize)
	d.Key = long.Key
	after := content(reserve("b", 1), reserve("c", 1), d)
	content(reserve("lost", 1), long) // is there first
	crash(t, f)
	swapped := false
	reader := Dir{Path: dir, FS: swapFS{disk.OS(), func() {
		if !swapped {
			swapped = true
			write(t, path, after)
		}
	}}}
	require.Equal(t, []string{"open", "a", "b", "c", "d", "z"}, rids(t, reader.Newest()))
	require.True(t, swapped)
}

// The lines that a segment was begun with were durable before it had its name:
// one that ends within them, be it at the end of a line, is damaged.
func TestSegmentCutShort(t *testing.T) { // Rule 6
	content := segmentOf(t, false)
	carried := bytes.Index(content, []byte(`{"ev":"reserve","rid":"a"`))
	for size := 0; size <= carried; size++ {
		dir := t.TempDir()
		d, path := Dir{Path: dir}, filepath.Join(dir, "000001.jsonl")
		write(t, path, content[:size])
		audit, err := d.Verify()
		require.NoError(t, err)
		_, openErr := OpenFile(dir, FileOptions{})
		if size >= carried-1 { // all there, but for the last newline
			require.Equal(t, size < carried, audit.Damaged())
			require.NoError(t, openErr)
			continue
		}
		require.True(t, audit.Damaged(), size)
		require.ErrorIs(t, openErr, ErrCorrupt, size)
		require.Equal(t, content[:size], read(t, path))
		require.ErrorIs(t, last(d.Newest()), ErrCorrupt, size)
	}
}
