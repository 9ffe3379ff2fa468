// Retention takes whole segments from the old end, never the newest two, and
// changes no balance; whoever writes or reads beside it is not disturbed
// (I3, I8; rules 15, 24).
package journal

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// days makes a book of n segments, a day each: segment i begins at the start
// of day i and holds the rid of that number. The first has torn bytes beside it.
func days(t testing.TB, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range n {
		f := open(t, dir)
		addDay(t, f, i)
		require.NoError(t, f.Close())
	}
	write(t, filepath.Join(dir, "000001.jsonl.torn"), []byte("torn"))
	write(t, filepath.Join(dir, "000001.jsonl.torn.2"), []byte("again"))
	return dir
}

var dayNames = []string{"mo", "tu", "we", "th", "fr"}

func day(i int) time.Time { return time.Unix(1_796_000_000, 0).AddDate(0, 0, i) }

func addDay(t testing.TB, f *File, i int) {
	t.Helper()
	begin := opening()
	begin[0].T = day(i).UnixMicro()
	pos, err := f.Rotate(ctx, f.chain.lastEntry(), begin)
	require.NoError(t, err)
	e := reserve(dayNames[i], 1)
	e.T = begin[0].T + 1
	put(t, f, pos, e)
}

// left are the rids of a book's history.
func left(t testing.TB, dir string) (list []string) {
	t.Helper()
	for _, rid := range rids(t, Dir{Path: dir}.History()) {
		if rid != "open" {
			list = append(list, rid)
		}
	}
	return list
}

func TestPrune(t *testing.T) { // Rule 15, 24
	for _, c := range []struct {
		name     string
		keepFrom time.Time
		left     []string
	}{
		{"nothing is old", day(0), dayNames},
		{"a day ends with the next one's beginning", day(1), dayNames},
		{"one day", day(1).Add(time.Microsecond), dayNames[1:]},
		{"two", day(2).Add(time.Hour), dayNames[2:]},
		{"never the newest two", day(99), dayNames[3:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := days(t, 5)
			pruned, err := Dir{Path: dir}.Prune(c.keepFrom)
			require.NoError(t, err)
			require.Equal(t, c.left, left(t, dir))
			require.Len(t, pruned.Segments, 5-len(c.left))
			require.Equal(t, len(c.left), pruned.Left)
			_, err = os.Stat(filepath.Join(dir, "000001.jsonl.torn.2"))
			require.Equal(t, len(c.left) < 5, os.IsNotExist(err), "torn bytes go with their segment")
			require.Equal(t, len(c.left) < 5, pruned.Bytes > 0)
			clean(t, dir)
			again, err := Dir{Path: dir}.Prune(c.keepFrom)
			require.NoError(t, err)
			require.Equal(t, Pruned{Left: len(c.left), Beside: pruned.Beside, BesideBytes: pruned.BesideBytes}, again)
			if len(c.left) == 5 {
				require.Equal(t, []string{"000001.jsonl.torn", "000001.jsonl.torn.2"}, pruned.Beside)
				require.EqualValues(t, len("torn"+"again"), pruned.BesideBytes)
			} else {
				require.Empty(t, pruned.Beside)
			}
			require.NoError(t, open(t, dir).Close())
		})
	}
	pruned, err := Dir{Path: t.TempDir()}.Prune(day(99))
	require.NoError(t, err)
	require.Zero(t, pruned)
}

func TestPruneBesideAWriter(t *testing.T) { // Rule 24
	dir := days(t, 3)
	f := open(t, dir)
	addDay(t, f, 3)
	pruned, err := Dir{Path: dir}.Prune(day(99))
	require.NoError(t, err)
	require.Equal(t, []string{"000001.jsonl", "000002.jsonl"}, pruned.Segments)
	pos := put(t, f, f.chain.lastEntry(), reserve("more", 1))
	rotate(t, f, pos)
	require.NoError(t, f.Close())
	require.Equal(t, []string{"we", "th", "more"}, left(t, dir))
	clean(t, dir)
}

// pruning is a disk on which something happens before the n-th file is opened.
type pruning struct {
	disk.FS
	n    int
	then func()
}

func (p *pruning) Open(name string) (disk.File, error) {
	if p.n--; p.n == 0 {
		p.then()
	}
	return p.FS.Open(name)
}

// A reader that finds the oldest gone looks again; one that has told of what
// was before cannot, and says so.
func TestPruneBesideAReader(t *testing.T) { // Rule 24
	reader := func(n int) (Dir, string) {
		dir := days(t, 5)
		return Dir{Path: dir, FS: &pruning{FS: disk.OS(), n: n, then: func() {
			_, err := Dir{Path: dir}.Prune(day(99))
			require.NoError(t, err)
		}}}, dir
	}
	d, _ := reader(1)
	require.Equal(t, []string{"open", "th", "open", "fr"}, rids(t, d.History()))

	d, _ = reader(2)
	var got []string
	var last error
	for e, err := range d.History() {
		if last = err; err == nil && e.RID != "" {
			got = append(got, e.RID)
		}
	}
	require.Equal(t, []string{"mo"}, got)
	require.ErrorIs(t, last, ErrConflict)
	require.ErrorContains(t, last, "000002.jsonl was pruned meanwhile; read again")

	for n := 1; n <= 5; n++ {
		d, dir := reader(n)
		audit, err := d.Verify()
		require.NoError(t, err)
		require.Empty(t, audit.Findings)
		require.Equal(t, []string{"th", "fr"}, left(t, dir))
	}
}

// Two prunings at once remove the same, whoever comes first to what.
func TestPruneBesideAPrune(t *testing.T) { // Rule 24
	for n := 1; ; n++ {
		dir := days(t, 5)
		fsys := &pruning{FS: disk.OS(), n: n, then: func() {
			_, err := Dir{Path: dir}.Prune(day(99))
			require.NoError(t, err)
		}}
		pruned, err := Dir{Path: dir, FS: fsys}.Prune(day(99))
		require.NoError(t, err, n)
		require.Equal(t, 2, pruned.Left, n)
		require.Equal(t, dayNames[3:], left(t, dir))
		clean(t, dir)
		if fsys.n > 0 {
			require.Greater(t, n, 5)
			break
		}
	}
}

// listing is a disk whose first listing lacks a name, as one that was made
// while segments went can.
type listing struct {
	disk.FS
	lacks string
}

func (l *listing) List(dir string) (names []string, err error) {
	names, err = l.FS.List(dir)
	for i, name := range names {
		if name == l.lacks {
			l.lacks = ""
			return append(names[:i], names[i+1:]...), err
		}
	}
	return names, err
}

func TestListedWhilePruned(t *testing.T) { // Rule 24
	dir := days(t, 4)
	fsys := &listing{FS: disk.OS()}
	for _, read := range []func() error{
		func() error { _, err := Dir{dir, fsys}.Prune(day(0)); return err },
		func() error { _, err := OpenFile(dir, FileOptions{FS: fsys}); return err },
		func() error { require.Len(t, rids(t, Dir{dir, fsys}.History()), 8); return nil },
		func() error {
			audit, err := Dir{dir, fsys}.Verify()
			require.Empty(t, audit.Findings)
			return err
		},
	} {
		fsys.lacks = "000002.jsonl"
		require.NoError(t, read())
		require.Empty(t, fsys.lacks)
	}
}

// What is damaged, or what the damaged may need, stays.
func TestPruneRefuses(t *testing.T) { // Rule 15
	flip := func(b []byte) []byte { b[len(b)/3] ^= 1; return b }
	for name, c := range map[string]struct {
		segment string
		harm    func([]byte) []byte
		left    int
		reason  string
	}{
		"the newest":             {"000005.jsonl", flip, 5, "checksum does not match"},
		"the newest is empty":    {"000005.jsonl", func([]byte) []byte { return nil }, 5, "the segment is empty"},
		"the oldest":             {"000001.jsonl", flip, 5, "checksum does not match"},
		"the oldest has no seal": {"000001.jsonl", func(b []byte) []byte { return b[:len(b)-len(lastLine(b))] }, 5, "the segment does not end in two seals, though another follows"},
		"the oldest of another":  {"000001.jsonl", func([]byte) []byte { return read(t, filepath.Join(days(t, 1), "000001.jsonl")) }, 5, "the next segment does not follow this one"},
		"a later one":            {"000003.jsonl", flip, 4, "checksum does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := days(t, 5)
			path := filepath.Join(dir, c.segment)
			write(t, path, c.harm(read(t, path)))
			pruned, err := Dir{Path: dir}.Prune(day(99))
			var damage *CorruptError
			require.ErrorAs(t, err, &damage)
			require.Equal(t, c.segment, damage.Segment)
			require.Equal(t, c.reason, damage.Reason)
			require.Equal(t, c.left, pruned.Left)
			require.FileExists(t, path)
		})
	}
	dir := days(t, 5)
	require.NoError(t, os.Remove(filepath.Join(dir, "000003.jsonl")))
	_, err := Dir{Path: dir}.Prune(day(99))
	require.ErrorIs(t, err, ErrCorrupt, "a gap")
	require.FileExists(t, filepath.Join(dir, "000001.jsonl"))
}

// A file system that needs room to remove a file gets it.
func TestPruneOnAFullDisk(t *testing.T) { // Rule 11
	fsys, dir := disk.OS(), days(t, 4)
	full := true
	failing := disk.Failing(fsys, func(op disk.Op) disk.Fault {
		switch {
		case op.Kind != disk.OpRemove:
		case strings.HasSuffix(op.Name, ballastName):
			full = false
		case full:
			return disk.Fault{Err: syscall.ENOSPC}
		}
		return disk.Fault{}
	})
	f := open(t, dir)
	addDay(t, f, 4)
	require.NoError(t, f.Close())
	pruned, err := Dir{Path: dir, FS: failing}.Prune(day(99))
	require.NoError(t, err)
	require.Equal(t, 2, pruned.Left)
}

// The disk fails at every operation. What is left opens without a gap, and a
// second pruning does the rest.
func TestPruneFailsAtEveryStep(t *testing.T) { // Rule 24
	for step := 0; ; step++ {
		require.Less(t, step, 100)
		fsys, dir := newTestFS(), days(t, 5)
		failed := ""
		fsys.fail = func(i int, op string) (int, error) {
			if i == step {
				failed = op
				return 0, errDisk
			}
			return 0, nil
		}
		d := Dir{Path: dir, FS: fsys}
		pruned, err := d.Prune(day(99))
		ops := strings.Join(fsys.take(), ", ")
		if failed == "" {
			require.NoError(t, err)
			require.Equal(t, "remove 000001.jsonl.torn, remove 000001.jsonl.torn.2, remove 000001.jsonl, syncdir, "+
				"remove 000002.jsonl, syncdir, remove 000003.jsonl, syncdir", ops, "each is gone for good before the next goes")
			break
		}
		require.ErrorIs(t, err, errDisk)
		clean(t, dir)
		require.NoError(t, open(t, dir).Close())
		require.Equal(t, dayNames[5-pruned.Left:], left(t, dir))
		fsys.fail = nil
		_, err = d.Prune(day(99))
		require.NoError(t, err)
		require.Equal(t, dayNames[3:], left(t, dir))
	}
}
