// A journal is opened, mended and rotated on a full disk: room was kept for that
// (rules 9, 11).
package journal

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

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

// LOCK, and the seals of a journal that was closed, are written in the room of
// the ballast, and if there is none no entry is lost: with room it opens again.
func TestOpeningFindsNoRoom(t *testing.T) { // Rule 11
	for _, kind := range []disk.Kind{disk.OpLock, disk.OpTruncate, disk.OpWrite, disk.OpSync} {
		for _, ballast := range []bool{true, false} {
			mem := disk.NewMem()
			f := openSmall(t, mem)
			put(t, f, rotate(t, f, 0), reserve("a", 1))
			require.NoError(t, f.Close())
			if !ballast {
				require.NoError(t, mem.Remove("book/BALLAST"))
			}
			f, err := OpenFile("book", FileOptions{FS: disk.Failing(mem, func(op disk.Op) disk.Fault {
				if op.Kind == kind && (!ballast || sizeOf(t, mem, ballastName) >= 0) {
					return disk.Fault{Err: syscall.ENOSPC, Bytes: 10}
				}
				return disk.Fault{}
			})})
			if !ballast {
				require.ErrorIs(t, err, ErrFull, kind)
				require.Equal(t, []string{"open", "a"}, rids(t, Dir{Path: "book", FS: mem}.Newest()), kind)
				f = openSmall(t, mem)
			} else {
				require.NoError(t, err, kind)
			}
			rotate(t, f, f.chain.lastEntry())
			require.NoError(t, f.Close())
			require.Equal(t, []string{"open", "a", "open"}, rids(t, Dir{Path: "book", FS: mem}.History()), kind)
		}
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
