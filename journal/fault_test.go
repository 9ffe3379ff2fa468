// An entry is durable before its append returns, and a disk that fails leaves
// nothing in doubt that was acknowledged (I5; rules 1, 2, 8, 10, 12, 13, 22).
package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

var errDisk = errors.New("disk fails")

func openOn(t testing.TB, fsys disk.FS, dir string) *File {
	t.Helper()
	f, err := OpenFile(dir, FileOptions{FS: fsys})
	require.NoError(t, err)
	return f
}

// Rules 2, 9, 12, 13 and B5, B7, B18: what is done to the disk, and in which order.
func TestOrderOfOperations(t *testing.T) {
	fsys, dir := newTestFS(), filepath.Join(t.TempDir(), "book")
	f := openOn(t, fsys, dir)
	require.Equal(t, []string{"mkdir", "syncdir"}, fsys.take())

	pos := rotate(t, f, 0)
	require.Equal(t, []string{"create 000001.jsonl.tmp", "write 000001.jsonl.tmp", "sync 000001.jsonl.tmp", "close 000001.jsonl.tmp",
		"create BALLAST.tmp", "allocate BALLAST.tmp", "sync BALLAST.tmp", "close BALLAST.tmp", "rename BALLAST", "syncdir",
		"rename 000001.jsonl", "syncdir", "append 000001.jsonl"}, fsys.take(),
		"the segment is durable before anything is acknowledged in it")

	pos = put(t, f, pos, reserve("a", 1), reserve("b", 1), reserve("c", 1))
	require.Equal(t, []string{"write 000001.jsonl", "sync 000001.jsonl"}, fsys.take(), "one write and one sync a batch")

	pos = rotate(t, f, pos)
	require.Equal(t, []string{"create 000002.jsonl.tmp", "write 000002.jsonl.tmp", "sync 000002.jsonl.tmp", "close 000002.jsonl.tmp",
		"write 000001.jsonl", "sync 000001.jsonl", "close 000001.jsonl",
		"rename 000002.jsonl", "syncdir", "append 000002.jsonl"}, fsys.take(), "next built, old sealed, next named")

	put(t, f, pos, reserve("d", 1))
	crash(t, f)
	path := filepath.Join(dir, "000002.jsonl")
	write(t, path, append(read(t, path), "torn"...))
	fsys.take()
	f = openOn(t, fsys, dir)
	require.Equal(t, []string{"mkdir", "syncdir",
		"create 000002.jsonl.torn.tmp", "write 000002.jsonl.torn.tmp", "sync 000002.jsonl.torn.tmp", "close 000002.jsonl.torn.tmp",
		"rename 000002.jsonl.torn", "syncdir",
		"create 000002.jsonl.tmp", "write 000002.jsonl.tmp", "write 000002.jsonl.tmp", "sync 000002.jsonl.tmp", "close 000002.jsonl.tmp",
		"rename 000002.jsonl", "syncdir"}, fsys.take(), "an unclean end is rewritten before anything is served")
	rotate(t, f, f.chain.lastEntry())
	fsys.take()
	require.NoError(t, f.Close())
	require.Equal(t, []string{"write 000003.jsonl", "sync 000003.jsonl", "close 000003.jsonl"}, fsys.take())

	f = openOn(t, fsys, dir)
	require.Equal(t, []string{"mkdir", "syncdir", "append 000003.jsonl", "truncate 000003.jsonl", "write 000003.jsonl", "sync 000003.jsonl", "close 000003.jsonl"}, fsys.take(),
		"seals whose sync may have failed are written anew before another segment follows")
	require.NoError(t, f.Close())
	clean(t, dir)
}

// Rule 8, B14: the n-th sync fails, and from then on all succeed. Every later call
// returns the first error, nothing is written or synced any more, and the next
// to open finds all that was acknowledged and nothing after it.
func TestFailedSyncPoisons(t *testing.T) {
	for _, broken := range []string{"sync", "write"} {
		for n := 1; n <= 4; n++ {
			fsys, dir := newTestFS(), t.TempDir()
			f := openOn(t, fsys, dir)
			pos := rotate(t, f, 0)
			count := 0
			fsys.fail = func(_ int, op string) (int, error) {
				if strings.HasPrefix(op, broken) {
					if count++; count == n {
						return 20, errDisk
					}
				}
				return 0, nil
			}
			acked := []string{"open"}
			var first error
			for i := range 6 {
				rid := fmt.Sprint(i)
				next, err := f.Append(ctx, pos, batch(reserve(rid, 1), reserve(rid, 1)))
				if err == nil {
					require.NoError(t, first, "nothing succeeds after a failure")
					pos, acked = next, append(acked, rid, rid)
					continue
				}
				require.ErrorIs(t, err, errDisk)
				require.ErrorIs(t, err, ErrPoisoned)
				if first == nil {
					first = err
					require.Len(t, acked, 2*n-1)
					fsys.take()
				}
				require.Equal(t, first, err)
			}
			_, err := f.Rotate(ctx, pos, opening())
			require.Equal(t, first, err)
			require.Equal(t, acked, rids(t, f.Entries(ctx, 0)), "reading goes on")
			require.ErrorIs(t, f.Close(), errDisk)
			require.Equal(t, []string{"close 000001.jsonl"}, fsys.take())

			f = open(t, dir)
			require.True(t, f.Recovery().Unclean)
			goOn(t, dir, f, acked)
		}
	}
}

// Rules 8 and 9 for the seals: their sync fails and the process dies, so they
// read well and are not on the disk. Who goes on behind them has them there.
func TestFailedSyncOfTheSeals(t *testing.T) {
	m := disk.NewMem()
	dying := false
	f, err := OpenFile("book", FileOptions{FS: disk.Failing(m, func(op disk.Op) disk.Fault {
		switch {
		case !dying:
		case op.Kind == disk.OpSync:
			return disk.Fault{Err: errDisk}
		case op.Kind == disk.OpTruncate:
			m.Kill()
		}
		return disk.Fault{}
	})})
	require.NoError(t, err)
	put(t, f, rotate(t, f, 0), reserve("a", 1))
	dying = true
	require.ErrorIs(t, f.Close(), errDisk)
	m = m.Kill()
	f, err = OpenFile("book", FileOptions{FS: m})
	require.NoError(t, err)
	require.False(t, f.Recovery().Unclean, "the seals read well")
	rotate(t, f, f.chain.lastEntry())
	m = m.Crash(rand.New(rand.NewPCG(1, 2)))
	require.Equal(t, []string{"open", "a", "open"}, rids(t, Dir{Path: "book", FS: m}.History()))
}

// Rule 2: a write that is short without an error is an error.
func TestShortWritePoisons(t *testing.T) {
	fsys := newTestFS()
	f := openOn(t, fsys, t.TempDir())
	pos := rotate(t, f, 0)
	fsys.fail = func(_ int, op string) (int, error) { return 9, errShort }
	_, err := f.Append(ctx, pos, batch(reserve("a", 1)))
	require.ErrorIs(t, err, ErrPoisoned)
	require.ErrorContains(t, err, "short write")
}

// Rule 10, B15, case 14: the disk is full after k bytes of a batch, for every k. Only
// that batch fails, nothing of it is left, and later ones go on.
func TestFullDisk(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		fsys, dir := newTestFS(unsynced{disk.OS()}), t.TempDir()
		f := openOn(t, fsys, dir)
		pos := rotate(t, f, 0)
		want := []string{"open"}
		lines := f.synced
		for k := 0; k <= 300; k++ { // the batch has some 260 bytes
			fsys.fail = func(_ int, op string) (int, error) {
				if strings.HasPrefix(op, "write") {
					return k, &fs.PathError{Op: "write", Err: full}
				}
				return 0, nil
			}
			_, err := f.Append(ctx, pos, batch(reserve("lost", 1), reserve("lost", 1)))
			require.ErrorIs(t, err, ErrFull)
			require.NotErrorIs(t, err, ErrPoisoned)
			require.Equal(t, string(read(t, filepath.Join(dir, "000001.jsonl")))[lines:], "", "k = %d", k)
			fsys.fail = nil
			if k%50 == 0 {
				pos = put(t, f, pos, reserve(fmt.Sprint(k), 1))
				want = append(want, fmt.Sprint(k))
				lines = f.synced
			}
		}
		require.NoError(t, f.Close())
		require.Equal(t, want, rids(t, Dir{Path: dir}.History()))
		clean(t, dir)
	}
}

// Rule 10: a full disk that cannot be cut back, or that shows at the sync, is in doubt.
func TestFullDiskInDoubt(t *testing.T) {
	for _, then := range []string{"truncate", "sync"} {
		fsys := newTestFS()
		f := openOn(t, fsys, t.TempDir())
		pos := rotate(t, f, 0)
		fsys.fail = func(_ int, op string) (int, error) {
			if strings.HasPrefix(op, "write") {
				return 3, syscall.ENOSPC
			}
			if strings.HasPrefix(op, then) {
				return 0, errDisk
			}
			return 0, nil
		}
		_, err := f.Append(ctx, pos, batch(reserve("a", 1)))
		require.ErrorIs(t, err, ErrPoisoned)
		require.ErrorIs(t, err, errDisk)
		require.ErrorIs(t, err, syscall.ENOSPC)
	}
	fsys := newTestFS()
	f := openOn(t, fsys, t.TempDir())
	pos := rotate(t, f, 0)
	fsys.fail = func(_ int, op string) (int, error) {
		if strings.HasPrefix(op, "sync") {
			return 0, syscall.ENOSPC
		}
		return 0, nil
	}
	_, err := f.Append(ctx, pos, batch(reserve("a", 1)))
	require.ErrorIs(t, err, ErrPoisoned)
	require.NotErrorIs(t, err, ErrFull)
}

// Rule 13: a rotation fails at every operation. Up to the seal the old segment
// stays in charge and the rotation may be tried again; after it the journal is
// poisoned. Either way the next to open finds everything, in order.
func TestRotationFailsAtEveryStep(t *testing.T) {
	for _, cause := range []error{errDisk, syscall.ENOSPC} {
		for step := 0; ; step++ {
			fsys, dir := newTestFS(), t.TempDir()
			f := openOn(t, fsys, dir)
			pos := rotate(t, f, 0)
			pos = put(t, f, pos, reserve("a", 1))
			fsys.take()
			failed := ""
			fsys.fail = func(i int, op string) (int, error) {
				if i == step {
					failed = op
					return 7, cause
				}
				return 0, nil
			}
			_, err := f.Rotate(ctx, pos, opening())
			fsys.fail = nil
			if failed == "" {
				require.NoError(t, err)
				require.NoError(t, f.Close())
				require.Equal(t, 10, step)
				break
			}
			if failed == "write 000001.jsonl" && cause == syscall.ENOSPC {
				require.NoError(t, err, "the seals went into the room of the ballast")
				require.ErrorIs(t, f.Low(), ErrFull)
				require.NoError(t, f.Close())
				clean(t, dir)
				continue
			}
			require.ErrorIs(t, err, cause, failed)
			if strings.HasSuffix(failed, ".tmp") {
				require.NotErrorIs(t, err, ErrPoisoned, failed)
				if cause == syscall.ENOSPC {
					require.ErrorIs(t, err, ErrFull, failed)
				}
				pos = put(t, f, pos, reserve("b", 1))
				rotate(t, f, pos)
				require.NoError(t, f.Close())
				require.Equal(t, []string{"open", "a", "b", "open"}, rids(t, Dir{Path: dir}.History()), failed)
				clean(t, dir)
				continue
			}
			require.ErrorIs(t, err, ErrPoisoned, failed)
			require.ErrorIs(t, f.Close(), cause)
			f = open(t, dir)
			history := rids(t, Dir{Path: dir}.History())
			require.Equal(t, []string{"open", "a"}, history[:2], failed)
			put(t, f, rotate(t, f, f.chain.lastEntry()), reserve("b", 1))
			require.NoError(t, f.Close())
			clean(t, dir)
		}
	}
}

// Rule 22: whoever closes, and however many, gets the same answer; an append
// that comes too late says so, and nothing is half closed.
func TestConcurrentClose(t *testing.T) {
	for _, cause := range []error{nil, errDisk, syscall.ENOSPC} {
		fsys, dir := newTestFS(), t.TempDir()
		f := openOn(t, fsys, dir)
		pos := rotate(t, f, 0)
		pos = put(t, f, pos, reserve("a", 1))
		fsys.fail = func(_ int, op string) (int, error) {
			if strings.HasPrefix(op, "write") {
				return 5, cause
			}
			return 0, nil
		}
		if cause == nil {
			fsys.fail = nil
		}
		fsys.take()
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = f.Close() })
		}
		wg.Wait()
		for _, err := range errs {
			require.Equal(t, errs[0], err)
		}
		if cause == nil {
			require.NoError(t, errs[0])
			require.Equal(t, []string{"write 000001.jsonl", "sync 000001.jsonl", "close 000001.jsonl"}, fsys.take())
		} else {
			require.ErrorIs(t, errs[0], cause)
		}
		_, err := f.Append(ctx, pos, batch(reserve("late", 1)))
		require.ErrorIs(t, err, ErrClosed)
		f = open(t, dir)
		require.Equal(t, cause != nil, f.Recovery().Unclean)
		goOn(t, dir, f, []string{"open", "a"})
	}
}

// Case 14: no journal, no admission: what cannot be made is not opened.
func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	_, err := OpenFile(filepath.Join(file, "book"), FileOptions{})
	require.ErrorIs(t, err, syscall.ENOTDIR)
	for _, op := range []string{"mkdir", "syncdir"} {
		fsys := newTestFS()
		fsys.fail = func(_ int, got string) (int, error) {
			if got == op {
				return 0, fs.ErrPermission
			}
			return 0, nil
		}
		_, err := OpenFile(filepath.Join(t.TempDir(), "book"), FileOptions{FS: fsys})
		require.ErrorIs(t, err, fs.ErrPermission)
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, lockName), 0o700))
	_, err = OpenFile(dir, FileOptions{})
	require.Error(t, err)
}

// Rule 14: Due asks for a new segment by size, and never for one that would be half of
// what it replaces.
func TestDue(t *testing.T) {
	f, err := OpenFile(t.TempDir(), FileOptions{SegmentBytes: 2000})
	require.NoError(t, err)
	require.False(t, f.Due(0), "there is no segment yet")
	pos := rotate(t, f, 0)
	for f.synced < 2000 {
		require.False(t, f.Due(0))
		pos = put(t, f, pos, reserve("r", 1))
	}
	lines := int(f.chain.lines)
	require.True(t, f.Due(lines/2))
	require.False(t, f.Due(lines/2+1))
	require.NoError(t, f.Close())
}

// A segment that is removed or replaced under its writer poisons it: nothing
// that will be lost is acknowledged.
func TestSegmentRemovedInUse(t *testing.T) {
	for name, strike := range map[string]func(dir string) error{
		"removed":  func(dir string) error { return os.Remove(filepath.Join(dir, "000001.jsonl")) },
		"replaced": func(dir string) error { return replaceFile(filepath.Join(dir, "000001.jsonl")) },
		"all gone": os.RemoveAll,
		"lock removed, opened by another": func(dir string) error {
			if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
				return err
			}
			f, err := OpenFile(dir, FileOptions{FS: elsewhere{disk.OS()}})
			if err != nil {
				return err
			}
			return f.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "book")
			f, err := OpenFile(dir, FileOptions{})
			require.NoError(t, err)
			pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
			require.NoError(t, strike(dir))
			_, err = f.Append(t.Context(), pos, Batch{ID: uuid.New(), Entries: []Entry{reserve("b", 1)}})
			require.ErrorIs(t, err, ErrPoisoned)
			require.ErrorContains(t, err, "removed or replaced while in use")
			require.ErrorIs(t, f.Close(), ErrPoisoned)
		})
	}
}

func replaceFile(name string) error {
	content, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name+".new", content, 0o600)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	return err
}

// elsewhere locks like another process that finds a new LOCK: the table of this
// process does not know it.
type elsewhere struct{ disk.FS }

func (e elsewhere) Lock(name, holder string) (io.Closer, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}
