// Both journals of this package pass the suite that every journal must pass,
// the one on disk also when it is killed, full, or failed by its disk.
package journal_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
	"github.com/tollbook/tollbook/journal/journaltest"
)

func TestMemoryConforms(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journaltest.Store {
		return journaltest.Store{Open: func(testing.TB) journaltest.Journal { return journal.NewMemory() }}
	})
}

func open(t testing.TB, dir string, fsys disk.FS) journaltest.Journal {
	t.Helper()
	f, err := journal.OpenFile(dir, journal.FileOptions{FS: fsys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFileConforms(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		journaltest.Run(t, func(t *testing.T) journaltest.Store {
			dir := filepath.Join(t.TempDir(), "book")
			return journaltest.Store{Keeps: true, Open: func(t testing.TB) journaltest.Journal { return open(t, dir, disk.OS()) }}
		})
	})
	for name, fails := range map[string]struct {
		kind disk.Kind
		disk.Fault
	}{
		"write is full": {disk.OpWrite, disk.Fault{Err: syscall.ENOSPC, Bytes: 100}},
		"sync fails":    {disk.OpSync, disk.Fault{Err: errors.New("no medium")}},
	} {
		t.Run(name, func(t *testing.T) {
			journaltest.Run(t, func(*testing.T) journaltest.Store {
				mem, next := disk.NewMem(), false
				fault := func(op disk.Op) disk.Fault {
					switch {
					case op.Kind == disk.OpAllocate: // nothing is set aside for a full disk
						return disk.Fault{Err: syscall.ENOSPC}
					case !next || op.Kind != fails.kind:
						return disk.Fault{}
					}
					next = false
					return fails.Fault
				}
				return journaltest.Store{
					Keeps:      true,
					Open:       func(t testing.TB) journaltest.Journal { return open(t, "book", disk.Failing(mem, fault)) },
					Kill:       func(testing.TB) { mem = mem.Kill() },
					FailAppend: func(testing.TB) { next = true },
				}
			})
		})
	}
}
