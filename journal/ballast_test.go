// On a full disk what is open can still be closed: room was kept for that
// (rules 10, 11).
package journal

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
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
		require.ErrorContains(t, f.Low(), "journal: disk full: no room to spare in book, free up 1 MiB: ")
		mem.SetCapacity(-1)
		require.ErrorIs(t, f.Low(), ErrFull, "it was looked for a moment ago")
		time.Sleep(lookAgain)
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

// A ballast that cannot be made is no error of what was asked for. Only a full
// disk makes the journal low; after any other failure it goes on, and whoever
// finds the disk full later is told of it too. What failed is not believed: it
// is made anew, a second later.
func TestNoBallast(t *testing.T) { // Rule 8, 11
	for _, cause := range []error{syscall.ENOSPC, syscall.EMFILE, errDisk} {
		for _, kind := range []disk.Kind{disk.OpCreate, disk.OpAllocate, disk.OpSync, disk.OpClose, disk.OpRename, disk.OpSyncDir} {
			synctest.Test(t, func(t *testing.T) {
				mem, fails, tried, synced := disk.NewMem(), true, 0, 0
				f := openSmall(t, disk.Failing(mem, func(op disk.Op) disk.Fault {
					ballast := strings.Contains(op.Name, ballastName)
					if ballast && op.Kind == disk.OpSync {
						synced++
					}
					last := op.Kind == disk.OpSyncDir && sizeOf(t, mem, ballastName) >= 0 && sizeOf(t, mem, segmentName(1)) < 0
					if fails && op.Kind == kind && (last || ballast) {
						tried++
						return disk.Fault{Err: cause}
					}
					return disk.Fault{}
				}))
				pos := put(t, f, rotate(t, f, 0), reserve("a", 1), reserve("b", 1))
				pos = put(t, f, pos, settle("a", 0))
				require.Equal(t, 1, tried, "%s: not at every batch", kind)
				if cause == syscall.ENOSPC {
					require.ErrorIs(t, f.Low(), ErrFull, kind)
					require.ErrorIs(t, f.Low(), cause, kind)
				} else {
					require.NoError(t, f.Low(), kind)
				}
				fails, synced = false, 0
				time.Sleep(lookAgain)
				require.NoError(t, f.Low(), kind)
				require.Equal(t, 1, synced, kind)
				require.Greater(t, sizeOf(t, mem, ballastName), f.synced, kind)
				takeRoom(mem)
				put(t, f, pos, settle("b", 0))
				require.NoError(t, f.Close())
			})
		}
	}
}

func TestFullDiskWithoutABallast(t *testing.T) { // Rule 11
	synctest.Test(t, func(t *testing.T) {
		mem, broken := disk.NewMem(), errors.Join(syscall.EACCES)
		f := openSmall(t, disk.Failing(mem, func(op disk.Op) disk.Fault {
			if op.Kind == disk.OpCreate && strings.Contains(op.Name, ballastName) {
				return disk.Fault{Err: broken}
			}
			return disk.Fault{}
		}))
		pos := rotate(t, f, 0)
		takeRoom(mem)
		_, err := f.Append(ctx, pos, batch(reserve("a", 1)))
		require.ErrorIs(t, err, ErrFull)
		require.ErrorIs(t, f.Low(), ErrFull)
		require.ErrorContains(t, f.Low(), "; a ballast could not be made: permission denied")
		time.Sleep(lookAgain)
		require.ErrorIs(t, f.Low(), ErrFull, "what says nothing of the room does not end it")
	})
}

// A live journal notices that somebody took its ballast away.
func TestBallastIsMadeAnew(t *testing.T) { // Rule 11
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		f := openSmall(t, mem)
		pos := put(t, f, rotate(t, f, 0), reserve("a", 1))
		require.NoError(t, mem.Remove("book/BALLAST"))
		time.Sleep(lookAgain)
		require.NoError(t, f.Low())
		require.Greater(t, sizeOf(t, mem, ballastName), f.synced)
		takeRoom(mem)
		pos = put(t, f, pos, settle("a", 0))
		require.ErrorIs(t, f.Low(), ErrFull)
		mem.SetCapacity(-1)
		time.Sleep(lookAgain)
		require.NoError(t, f.Low())

		takeRoom(mem)
		require.NoError(t, mem.Remove("book/BALLAST"))
		takeRoom(mem)
		time.Sleep(lookAgain)
		require.ErrorIs(t, f.Low(), ErrFull, "it cannot be made again")
		_, err := f.Append(ctx, pos, batch(reserve("b", 1)))
		require.ErrorIs(t, err, ErrFull)
	})
}

// A journal that was never low never says so to those who look from outside.
func TestBallastComesFirst(t *testing.T) { // Rule 11
	mem := disk.NewMem()
	f := openSmall(t, disk.Failing(mem, func(op disk.Op) disk.Fault {
		low, err := Dir{Path: "book", FS: mem}.Low()
		require.False(t, low && err == nil, op)
		return disk.Fault{}
	}))
	pos := rotate(t, f, 0)
	for f.synced < small {
		pos = put(t, f, pos, reserve("a", 1), settle("a", 0))
	}
	rotate(t, f, pos)
	require.NoError(t, f.Close())
}

// The process is killed in a batch as long as the segment before it, and the
// disk is full then.
func TestBallastHasRoomForTheBatch(t *testing.T) { // Rule 9, 11
	mem := disk.NewMem()
	var killed *disk.Mem
	var pos Pos
	f := openSmall(t, disk.Failing(mem, func(op disk.Op) disk.Fault {
		if pos > 0 && op.Kind == disk.OpSync && strings.HasSuffix(op.Name, ".jsonl") {
			takeRoom(mem)
			killed = mem.Kill()
		}
		return disk.Fault{}
	}))
	pos = rotate(t, f, 0)
	long := reserve("a", 1)
	long.Key = strings.Repeat("k", MaxLine/2)
	_, err := f.Append(ctx, pos, batch(long, long, long, long))
	require.ErrorIs(t, err, disk.ErrGone)
	f = openSmall(t, killed)
	rotate(t, f, f.chain.lastEntry())
	require.Equal(t, []string{"open", "a", "a", "a", "a", "open"}, rids(t, Dir{Path: "book", FS: killed}.History()))
	require.NoError(t, f.Close())
}
