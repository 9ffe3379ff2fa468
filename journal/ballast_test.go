// On a full disk what is open can still be closed, and what was not closed can
// still be opened: room was kept for that (rules 10, 11).
package journal

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

const small = 64 << 10 // size of a segment, and so of its ballast

func openSmall(t testing.TB, fsys disk.FS) *File {
	t.Helper()
	f, err := OpenFile("book", FileOptions{FS: fsys, SegmentBytes: small})
	require.NoError(t, err)
	return f
}

// takeRoom takes all the room of a disk.
func takeRoom(mem *disk.Mem) { mem.SetCapacity(mem.Used()) }

// sizeOf is the length of a file, -1 if there is none.
func sizeOf(t testing.TB, fsys disk.FS, name string) int64 {
	t.Helper()
	f, err := fsys.Open(filepath.Join("book", name))
	if err != nil {
		return -1
	}
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	return size
}

func TestFullDiskUsesTheBallast(t *testing.T) { // Rule 10, 11
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		f := openSmall(t, mem)
		require.NoError(t, f.Low(), "nothing is said before the first segment")
		pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
		low, err := Dir{Path: "book", FS: mem}.Low()
		require.NoError(t, err)
		require.False(t, low)
		room := sizeOf(t, mem, ballastName)
		require.Greater(t, room, f.synced)
		require.NoError(t, f.Low())

		takeRoom(mem)
		want := []string{"open", "a"}
		for {
			var next Pos
			if next, err = f.Append(ctx, pos, batch(reserve("b", 1))); err != nil {
				break
			}
			pos, want = next, append(want, "b")
			require.ErrorIs(t, f.Low(), ErrFull)
			require.EqualValues(t, -1, sizeOf(t, mem, ballastName))
			low, err := Dir{Path: "book", FS: mem}.Low()
			require.NoError(t, err)
			require.True(t, low)
			require.False(t, f.Due(0), "a rotation would take the room of closes")
		}
		require.ErrorIs(t, err, ErrFull)
		require.NotErrorIs(t, err, ErrPoisoned)
		require.Greater(t, f.synced, room-200, "all the room was used")
		require.Equal(t, want, rids(t, f.Entries(ctx, 0)))

		time.Sleep(time.Minute)
		require.ErrorIs(t, f.Low(), ErrFull, "there is still none")
		require.ErrorContains(t, f.Low(), "journal: disk full: no room to spare in book, free 1 MiB: ")
		mem.SetCapacity(-1)
		require.ErrorIs(t, f.Low(), ErrFull, "it was looked for a moment ago")
		time.Sleep(retryBallast)
		require.NoError(t, f.Low())
		require.Greater(t, sizeOf(t, mem, ballastName), f.synced)
		put(t, f, pos, reserve("c", 1))
		require.NoError(t, f.Close())

		f = openSmall(t, mem)
		require.False(t, f.Recovery().Unclean)
		require.Equal(t, append(want, "c"), rids(t, f.Entries(ctx, 0)))
		require.NoError(t, f.Close())
	})
}

// A journal is closed, and one that was killed is mended and opened, with no
// byte free.
func TestOpenOnAFullDisk(t *testing.T) { // Rule 9, 11
	for name, end := range map[string]func(*testing.T, *disk.Mem, *File) *disk.Mem{
		"closed before": func(t *testing.T, mem *disk.Mem, f *File) *disk.Mem {
			require.NoError(t, f.Close())
			return mem
		},
		"closed while full": func(t *testing.T, mem *disk.Mem, f *File) *disk.Mem {
			takeRoom(mem)
			require.NoError(t, f.Close())
			require.ErrorIs(t, f.Low(), ErrFull)
			return mem
		},
		"killed": func(t *testing.T, mem *disk.Mem, f *File) *disk.Mem { return mem.Kill() },
		"killed in a write": func(t *testing.T, mem *disk.Mem, f *File) *disk.Mem {
			_, err := f.active.Write([]byte(`{"ev":"reserve","rid":"torn`))
			require.NoError(t, err)
			return mem.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := disk.NewMem()
			f := openSmall(t, mem)
			pos := rotate(t, f, 0)
			for f.synced < small-1000 { // the longest copy there can be
				pos = put(t, f, pos, reserve("a", 1), settle("a", 0))
			}
			lines := f.chain.lines
			mem = end(t, mem, f)
			if name != "closed while full" {
				takeRoom(mem)
			}
			f = openSmall(t, mem)
			require.Equal(t, strings.HasPrefix(name, "killed"), f.Recovery().Unclean)
			pos = rotate(t, f, f.chain.lastEntry())
			require.Equal(t, name != "closed while full", f.Low() != nil, "it opened in the room of the ballast")
			put(t, f, pos, settle("a", 0))
			require.NoError(t, f.Close())
			audit, err := Dir{Path: "book", FS: mem}.Verify()
			require.NoError(t, err)
			require.Empty(t, audit.Findings)
			require.Greater(t, audit.Lines, lines)
		})
	}
}

// The ballast grows with the segment, in few steps, and outlives the openings.
func TestBallastGrows(t *testing.T) { // Rule 11
	mem, steps := disk.NewMem(), 0
	fsys := disk.Failing(mem, func(op disk.Op) disk.Fault {
		if op.Kind == disk.OpAllocate {
			steps++
		}
		return disk.Fault{}
	})
	f, err := OpenFile("book", FileOptions{FS: fsys, SegmentBytes: 16 * maxSpare})
	require.NoError(t, err)
	pos := rotate(t, f, 0)
	require.EqualValues(t, maxSpare, sizeOf(t, mem, ballastName)&^1023, "a small book keeps little")
	long := reserve("a", 1)
	long.Key = strings.Repeat("k", MaxLine/2)
	for f.synced < 40*maxSpare { // also beyond what a segment should be
		pos = put(t, f, pos, long)
		require.Greater(t, sizeOf(t, mem, ballastName), f.synced)
	}
	require.LessOrEqual(t, steps, 10)
	require.Less(t, sizeOf(t, mem, ballastName), 55*int64(maxSpare))
	require.NoError(t, f.Close())
	steps = 0
	f = openSmall(t, fsys)
	rotate(t, f, f.chain.lastEntry())
	require.Zero(t, steps, "it is there already")
	require.NoError(t, f.Close())
}

// A ballast that cannot be made is no error of what was asked for.
func TestNoBallast(t *testing.T) { // Rule 11
	for _, kind := range []disk.Kind{disk.OpAppend, disk.OpCreate, disk.OpSize, disk.OpAllocate, disk.OpSync, disk.OpClose, disk.OpSyncDir} {
		synctest.Test(t, func(t *testing.T) {
			mem, fails := disk.NewMem(), true
			f := openSmall(t, disk.Failing(mem, func(op disk.Op) disk.Fault {
				last := op.Kind == disk.OpSyncDir && sizeOf(t, mem, ballastName) >= 0
				if fails && op.Kind == kind && (last || strings.HasSuffix(op.Name, ballastName)) {
					return disk.Fault{Err: errDisk}
				}
				return disk.Fault{}
			}))
			pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
			require.ErrorIs(t, f.Low(), ErrFull, kind)
			require.ErrorIs(t, f.Low(), errDisk, kind)
			require.EqualValues(t, -1, sizeOf(t, mem, ballastName), kind)
			fails = false
			time.Sleep(retryBallast)
			require.NoError(t, f.Low(), kind)
			put(t, f, pos, settle("a", 0))
			require.NoError(t, f.Close())
		})
	}
}

// A rotation that need not be leaves the ballast alone.
func TestRotationOnAFullDisk(t *testing.T) { // Rule 11
	mem := disk.NewMem()
	f := openSmall(t, mem)
	pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
	takeRoom(mem)
	_, err := f.Rotate(ctx, pos, opening())
	require.ErrorIs(t, err, ErrFull)
	require.False(t, errors.Is(err, ErrPoisoned))
	require.NoError(t, f.Low())
	require.Positive(t, sizeOf(t, mem, ballastName))
	put(t, f, pos, settle("a", 0))
	require.ErrorIs(t, f.Low(), ErrFull)
	require.NoError(t, f.Close())
}
