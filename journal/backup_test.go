package journal

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// backup copies a journal's directory as cp does: it lists the names, and then
// copies one file after another.
type backup struct {
	from, to *disk.Mem
	names    []string
	listed   bool
}

func (b *backup) step(t testing.TB) {
	if !b.listed {
		names, err := b.from.List("book")
		require.NoError(t, err)
		b.names, b.listed = names, true
		require.NoError(t, b.to.Mkdir("book"))
		return
	}
	if len(b.names) == 0 {
		return
	}
	name := path.Join("book", b.names[0])
	b.names = b.names[1:]
	content, err := disk.ReadFile(b.from, name, 1<<24)
	if errors.Is(err, fs.ErrNotExist) {
		return // a temporary name, and gone
	}
	require.NoError(t, err)
	f, err := b.to.Create(name)
	require.NoError(t, err)
	_, err = f.Write(content)
	require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
}

// Rule 24: a copy of a live book, begun at any moment and never at rest while
// it is made, opens as after a crash, and holds all that was acknowledged before
// it was begun.
func TestBackupOfALiveBook(t *testing.T) {
	for begin := 1; ; begin++ {
		w, mem := &witness{acked: map[string]bool{}}, disk.NewMem()
		copied := &backup{from: mem, to: disk.NewMem()}
		before := map[string]bool{}
		ops := 0
		live := disk.Failing(mem, func(op disk.Op) disk.Fault {
			ops = op.N
			if op.N == begin {
				maps.Copy(before, w.acked)
			}
			if op.N >= begin && op.N%2 == begin%2 && w.opened {
				copied.step(t)
			}
			return disk.Fault{}
		})
		require.NoError(t, w.life(live))
		require.NoError(t, w.life(live))
		if ops < begin {
			return
		}
		for copied.step(t); len(copied.names) > 0; {
			copied.step(t)
		}
		w.acked = before
		w.check(t, Dir{Path: "book", FS: copied.to})
		require.NoError(t, w.life(copied.to), "begun at operation %d", begin)
		w.check(t, Dir{Path: "book", FS: copied.to})
	}
}
