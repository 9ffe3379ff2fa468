// Damage is reported, never skipped (I8): a torn end is cut and kept aside,
// anything else refuses writing, and every line that was whole is there
// afterwards (rules 5 to 9, 13, 16).
package journal

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// crash ends a journal as a killed process does: nothing more is written, and
// the lock is free.
func crash(t testing.TB, f *File) {
	t.Helper()
	require.NoError(t, f.active.Close())
	require.NoError(t, f.lock.Close())
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, content, 0o600))
}

// segmentOf returns a small segment with two carried lines and three batches,
// one of them of two entries, with or without seals.
func segmentOf(t testing.TB, sealed bool) []byte {
	t.Helper()
	dir := t.TempDir()
	f := open(t, dir)
	held := reserve("held", 3)
	held.Carried = true
	pos := rotate(t, f, 0, held, held)
	pos = put(t, f, pos, reserve("a", 5))
	pos = put(t, f, pos, settle("a", -1))
	put(t, f, pos, reserve("b", 5), reserve("c", 6))
	if sealed {
		require.NoError(t, f.Close())
	} else {
		crash(t, f)
	}
	return read(t, filepath.Join(dir, "000001.jsonl"))
}

var all = []string{"open", "held", "held", "a", "a", "b", "c"}

// lineAt returns the number of the line that byte i is in, from 0, and where
// it begins.
func lineAt(content []byte, i int) (number, start int) {
	before := content[:i]
	return bytes.Count(before, []byte("\n")), bytes.LastIndexByte(before, '\n') + 1
}

// unsynced is a disk for sweeps that are about content and not about syncing.
type unsynced struct{ disk.FS }

func (u unsynced) SyncDir(string) error { return nil }

func (u unsynced) Create(name string) (disk.File, error) {
	f, err := u.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

func (u unsynced) Append(name string) (disk.File, error) {
	f, err := u.FS.Append(name)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

type unsyncedFile struct{ disk.File }

func (unsyncedFile) Sync() error { return nil }

// openSeeing opens a book whose visit sees what Entries yields afterwards.
func openSeeing(t testing.TB, dir string, fsys disk.FS) (*File, error) {
	t.Helper()
	var seen []Entry
	f, err := OpenFile(dir, FileOptions{FS: fsys, Visit: func(entries []Entry) error {
		require.NotEmpty(t, entries)
		seen = appendKept(seen, entries)
		return nil
	}})
	if err == nil {
		var stand []Entry
		for e, err := range f.Entries(ctx, 0) {
			require.NoError(t, err)
			stand = append(stand, e)
		}
		require.Equal(t, stand, seen, "what was visited is what stands in the book")
	}
	return f, err
}

// reopened opens a book whose only segment has this content. Files that an
// earlier book left in the directory are removed.
func reopened(t testing.TB, dir string, content []byte) (f *File, err error) {
	t.Helper()
	names, err := disk.OS().List(dir)
	require.NoError(t, err)
	for _, name := range names {
		if name != "000001.jsonl" {
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	write(t, filepath.Join(dir, "000001.jsonl"), content)
	return openSeeing(t, dir, unsynced{disk.OS()})
}

// goOn appends to a book that was opened, closes it and checks the result:
// all of before can be read, then what is new, and every byte is in order.
func goOn(t testing.TB, dir string, f *File, before []string) {
	t.Helper()
	require.Equal(t, before, rids(t, f.Entries(ctx, 0)))
	pos := rotate(t, f, f.chain.lastEntry())
	put(t, f, pos, reserve("new", 1))
	require.NoError(t, f.Close())
	require.Equal(t, append(slices.Clone(before), "open", "new"), rids(t, Dir{Path: dir}.History()))
	clean(t, dir)
}

func clean(t testing.TB, dir string) {
	t.Helper()
	audit, err := Dir{Path: dir}.Verify()
	require.NoError(t, err)
	require.Empty(t, audit.Findings)
}

func TestCleanEnd(t *testing.T) {
	content, dir := segmentOf(t, true), t.TempDir()
	f, err := reopened(t, dir, content)
	require.NoError(t, err)
	require.Equal(t, Recovery{Segment: "000001.jsonl"}, f.Recovery())
	goOn(t, dir, f, all)
	require.Equal(t, string(content), string(read(t, filepath.Join(dir, "000001.jsonl"))), "a closed segment is not touched")
}

// Rule 7: nobody appends behind a tail that somebody else wrote. An append
// before the first rotation is refused, and no later one touches the old
// segment.
func TestNothingIsAppendedBehindAnother(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		dir := t.TempDir()
		f, err := reopened(t, dir, segmentOf(t, sealed))
		require.NoError(t, err)
		_, err = f.Append(ctx, f.chain.lastEntry(), batch(reserve("behind", 1)))
		require.ErrorContains(t, err, "before the first Rotate")
		before := read(t, filepath.Join(dir, "000001.jsonl"))
		goOn(t, dir, f, all)
		require.Equal(t, string(before), string(read(t, filepath.Join(dir, "000001.jsonl"))))
	}
}

// Whatever the error of a visit is, it is that of opening, and neither damage
// nor an end: nothing is cut, kept aside or mended for it.
func TestVisitRefuses(t *testing.T) {
	for _, refusal := range []error{errDisk, &CorruptError{Reason: "of the visitor's"}, io.EOF, errOdd} {
		for _, content := range [][]byte{segmentOf(t, true), segmentOf(t, false), segmentOf(t, false)[:len(segmentOf(t, false))-10]} {
			for n := 1; ; n++ {
				mem, calls := bookOf(t, content), 0
				f, err := OpenFile("book", FileOptions{FS: mem, Visit: func([]Entry) error {
					if calls++; calls == n {
						return refusal
					}
					require.Less(t, calls, n, "nothing is visited after that")
					return nil
				}})
				if calls < n {
					require.NoError(t, err)
					require.NoError(t, f.Close())
					require.Greater(t, n, 1)
					break
				}
				require.ErrorIs(t, err, refusal)
				names, err := mem.List("book")
				require.NoError(t, err)
				require.ElementsMatch(t, []string{"000001.jsonl", lockName}, names)
				left, err := disk.ReadFile(mem, "book/000001.jsonl", 1<<20)
				require.NoError(t, err)
				require.Equal(t, string(content), string(left))
				f, err = OpenFile("book", FileOptions{FS: mem})
				require.NoError(t, err, "the lock was given back")
				require.NoError(t, f.Close())
			}
		}
	}
}

// Rule 5, B1, case 70: the file is cut at every byte of its last batch. Lines that are
// whole are kept, also without their newline, the rest is kept aside.
func TestTornAtEveryByte(t *testing.T) {
	content := segmentOf(t, false)
	lines := bytes.SplitAfter(content, []byte("\n"))
	lines = lines[:len(lines)-1]
	dir := t.TempDir()
	durable := len(content) - len(lines[5]) - len(lines[6]) // before the last batch
	for size := durable; size <= len(content); size++ {
		f, err := reopened(t, dir, content[:size])
		require.NoError(t, err, "cut to %d of %d bytes", size, len(content))
		kept, good := 5, durable
		if size >= durable+len(lines[5])-1 {
			kept, good = 6, durable+len(lines[5])
		}
		if size >= len(content)-1 {
			kept, good = 7, len(content)
		}
		torn := max(0, size-good)
		found := Recovery{Segment: "000001.jsonl", Unclean: true, Torn: int64(torn)}
		if torn > 0 {
			found.Kept = "000001.jsonl.torn"
			require.Equal(t, string(content[good:size]), string(read(t, filepath.Join(dir, found.Kept))))
		}
		require.Equal(t, found, f.Recovery(), "cut to %d", size)
		goOn(t, dir, f, all[:kept])
	}
}

// Rule 5, B2, B8, B10: what a disk can leave, and what it cannot.
func TestNewestSegment(t *testing.T) {
	closed, crashed := segmentOf(t, true), segmentOf(t, false)
	nuls := make([]byte, 64<<10)
	at := func(content []byte, text string) int { return bytes.Index(content, []byte(text)) }
	b := at(crashed, `{"ev":"reserve","rid":"b"`)
	c := at(crashed, `{"ev":"reserve","rid":"c"`)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	lost := func(from, to int) []byte { // a block that did not reach the disk
		return join(crashed[:from], make([]byte, to-from), crashed[to:])
	}
	for name, test := range map[string]struct {
		content []byte
		kept    []string // nil: corrupt
	}{
		"NULs behind the seals":            {join(closed, nuls), all},
		"NULs behind the last line":        {join(crashed, nuls), all},
		"NULs before the last batch":       {join(closed[:b], nuls, closed[b:]), nil},
		"NULs before a durable line":       {join(crashed[:at(crashed, `{"ev":"settle"`)], nuls, crashed[at(crashed, `{"ev":"settle"`):]), nil},
		"one seal":                         {closed[:len(closed)-len(lastLine(closed))], all},
		"a third seal":                     {join(closed, lastLine(closed)), nil},
		"a line behind the seals":          {join(closed, crashed[c:]), nil},
		"first block of the batch lost":    {lost(b, b+100), all[:5]},
		"last block of the batch lost":     {lost(c+10, len(crashed)), all[:6]},
		"whole batch lost":                 {lost(b, len(crashed)), all[:5]},
		"durable block lost":               {lost(b-50, b+50), nil},
		"a line of twice the longest":      {join(crashed, bytes.Repeat([]byte("x"), 2*MaxLine), []byte("\n")), all},
		"... before a durable line":        {join(crashed[:b], bytes.Repeat([]byte("x"), 2*MaxLine), []byte("\n"), crashed[b:]), all[:5]},
		"... and a proof that it was good": {join(closed[:b], bytes.Repeat([]byte("x"), 2*MaxLine), []byte("\n"), closed[b:]), nil},
		"empty":                            {nil, nil},
		"cut after a carried line":         {closed[:bytes.LastIndex(closed[:at(closed, `{"ev":"reserve","rid":"a"`)], []byte(`{"ev":`))], nil},
		"cut after the carried lines":      {closed[:at(closed, `{"ev":"reserve","rid":"a"`)], all[:3]},
		"only NULs":                        {nuls, nil},
		"a line left out":                  {join(crashed[:b], crashed[c:]), nil},
		"a line twice":                     {join(crashed[:c], crashed[b:]), nil},
		"the open line twice":              {join(crashed, crashed[:at(crashed, "\n")+1]), nil},
		"another segment's name":           {bytes.Replace(closed, []byte(`"segment":1`), []byte(`"segment":2`), 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f, err := reopened(t, dir, test.content)
			if test.kept == nil {
				require.ErrorIs(t, err, ErrCorrupt)
				require.Equal(t, string(test.content), string(read(t, filepath.Join(dir, "000001.jsonl"))))
				_, err = OpenFile(dir, FileOptions{})
				require.ErrorIs(t, err, ErrCorrupt, "the lock was given back, the damage stays")
				return
			}
			require.NoError(t, err)
			require.True(t, f.Recovery().Unclean)
			goOn(t, dir, f, test.kept)
		})
	}
}

func lastLine(content []byte) []byte {
	return content[bytes.LastIndexByte(content[:len(content)-1], '\n')+1:]
}

// A crash may come again before the first was mended to the end. Nothing that
// was kept aside is lost by that.
func TestTornBytesAreKeptTwice(t *testing.T) {
	content := segmentOf(t, false)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "000001.jsonl"), content[:len(content)-5])
	write(t, filepath.Join(dir, "000001.jsonl.torn"), []byte("first"))
	f := open(t, dir)
	require.Equal(t, "000001.jsonl.torn.2", f.Recovery().Kept)
	require.Equal(t, "first", string(read(t, filepath.Join(dir, "000001.jsonl.torn"))))
	goOn(t, dir, f, all[:6])
}

// Rule 6: a gap in the numbers refuses, wherever it is. B12: damage inside an
// older segment is not looked for at open; it is found by who reads it.
func TestOlderSegments(t *testing.T) {
	book := func() string {
		dir := t.TempDir()
		for i := range 4 {
			f := open(t, dir)
			pos := rotate(t, f, f.chain.lastEntry())
			put(t, f, pos, reserve(fmt.Sprint("r", i), 1))
			require.NoError(t, f.Close())
		}
		return dir
	}
	t.Run("gap", func(t *testing.T) {
		dir := book()
		require.NoError(t, os.Remove(filepath.Join(dir, "000002.jsonl")))
		_, err := OpenFile(dir, FileOptions{})
		var damage *CorruptError
		require.ErrorAs(t, err, &damage)
		require.Equal(t, "000002.jsonl", damage.Segment)
		require.Equal(t, []string{"open", "r3"}, rids(t, Dir{Path: dir}.Newest()), "the state can still be read")
		requireHistory(t, dir, []string{"open", "r0"}, "000002.jsonl")
	})
	t.Run("the oldest are gone", func(t *testing.T) {
		dir := book()
		require.NoError(t, os.Remove(filepath.Join(dir, "000001.jsonl")))
		require.NoError(t, os.Remove(filepath.Join(dir, "000002.jsonl")))
		require.Equal(t, []string{"open", "r2", "open", "r3"}, rids(t, Dir{Path: dir}.History()))
		clean(t, dir)
		require.NoError(t, open(t, dir).Close())
	})
	for name, harm := range map[string]func([]byte) []byte{
		"tail":      func(b []byte) []byte { return b[:len(b)-20] },
		"seals":     func(b []byte) []byte { return b[:bytes.Index(b, []byte(`{"ev":"seal"`))] },
		"a byte":    func(b []byte) []byte { b[len(b)-10] ^= 1; return b },
		"last byte": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"more":      func(b []byte) []byte { return append(b, "x"...) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := book()
			path := filepath.Join(dir, "000001.jsonl")
			write(t, path, harm(read(t, path)))
			require.NoError(t, open(t, dir).Close(), "open reads the newest only")
			requireHistory(t, dir, []string{"open", "r0"}, "000001.jsonl")
			audit, err := Dir{Path: dir}.Verify()
			require.NoError(t, err)
			require.True(t, audit.Damaged())
			for _, f := range audit.Findings {
				require.Equal(t, "000001.jsonl", f.Segment, f)
			}
		})
	}
	t.Run("another book's segment", func(t *testing.T) {
		dir := book()
		write(t, filepath.Join(dir, "000001.jsonl"), read(t, filepath.Join(book(), "000001.jsonl")))
		requireHistory(t, dir, []string{"open", "r0"}, "000002.jsonl")
	})
}

// requireHistory expects entries and then damage to a segment.
func requireHistory(t testing.TB, dir string, want []string, damaged string) {
	t.Helper()
	got := []string{}
	var last error
	for e, err := range (Dir{Path: dir}).History() {
		if last = err; err == nil {
			got = append(got, cmp.Or(e.RID, e.Kind.String()))
		}
	}
	var damage *CorruptError
	require.ErrorAs(t, last, &damage)
	require.Equal(t, damaged, damage.Segment)
	require.Equal(t, want, got)
}

// Rule 16: what was never finished is swept and never read.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	put(t, f, rotate(t, f, 0), reserve("a", 1))
	require.NoError(t, f.Close())
	for _, name := range []string{"000001.jsonl.tmp", "000002.jsonl.tmp", "x.tmp", "000002.jsonl.old", "2.jsonl", "notes.txt"} {
		write(t, filepath.Join(dir, name), []byte("old"))
	}
	f = open(t, dir)
	require.Equal(t, Recovery{Segment: "000001.jsonl", Swept: 3}, f.Recovery())
	goOn(t, dir, f, []string{"open", "a"})
	names, err := f.fs.List(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"000001.jsonl", "000002.jsonl", "000002.jsonl.old", "2.jsonl", "BALLAST", "LOCK", "notes.txt"}, names)
}

// A block of another, longer book behind the end cannot be told from lines that
// were durable: it is refused, and nothing is cut.
func TestBlockOfAnotherBook(t *testing.T) { // Rule 6
	other, dir := open(t, t.TempDir()), t.TempDir()
	pos := rotate(t, other, 0)
	for range 50 {
		pos = put(t, other, pos, reserve("other", 1))
	}
	f := open(t, dir)
	put(t, f, rotate(t, f, 0), reserve("a", 1))
	crash(t, f)
	path := filepath.Join(dir, "000001.jsonl")
	block := read(t, filepath.Join(other.dir, "000001.jsonl"))
	content := append(read(t, path), block[len(block)-4096:]...)
	write(t, path, content)
	_, err := OpenFile(dir, FileOptions{})
	var damage *CorruptError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, dir, damage.Dir)
	require.ErrorContains(t, err, path+" is damaged in line 3")
	require.ErrorContains(t, err, "let Repair keep what is good")
	require.Equal(t, content, read(t, path))
}
