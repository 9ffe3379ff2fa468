package budget_test

import (
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// case 14: a directory that is read-only, from the beginning or from some moment
// on, keeps a book from being opened, or from admitting anything (I5).
func TestReadOnlyDirectory(t *testing.T) {
	mem := disk.NewMem()
	var readOnly atomic.Bool
	fsys := disk.Failing(mem, func(o disk.Op) disk.Fault {
		if readOnly.Load() && !o.Kind.Reads() {
			return disk.Fault{Err: &fs.PathError{Op: o.Kind.String(), Path: o.Name, Err: syscall.EROFS}}
		}
		return disk.Fault{}
	})
	openBook := func() (*budget.Book, error) {
		j, err := journal.OpenFile("book", journal.FileOptions{FS: fsys})
		if err != nil {
			return nil, err
		}
		b, err := budget.New(t.Context(), j, budget.Tokens(1000), budget.OnOrphan(budget.OrphanKeep))
		if err != nil {
			require.NoError(t, j.Close())
		}
		return b, err
	}

	readOnly.Store(true)
	_, err := openBook()
	require.ErrorIs(t, err, syscall.EROFS)

	readOnly.Store(false)
	b, err := openBook()
	require.NoError(t, err)
	before := reserve(t, b, 10, 0)
	said := state(b.Report())
	readOnly.Store(true)
	for range 2 {
		_, err = b.Reserve(t.Context(), budget.Request{Tokens: 20})
		require.ErrorIs(t, err, syscall.EROFS)
		require.Equal(t, said, state(b.Report()), "nothing is held")
	}
	require.Error(t, b.Close())

	_, err = openBook()
	require.ErrorIs(t, err, syscall.EROFS)
	readOnly.Store(false)
	b, err = openBook()
	require.NoError(t, err)
	require.Equal(t, said, state(b.Report()))
	settle(t, b.Reservation(before.RID()), 7)
	require.NoError(t, b.Close())
}
