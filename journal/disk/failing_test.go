package disk_test

import (
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// every calls each operation once and returns what each came to.
func every(fsys disk.FS) (errs []error) {
	try := func(err error) { errs = append(errs, err) }
	try(fsys.Mkdir("d"))
	_, err := fsys.List("d")
	try(err)
	f, err := fsys.Create("d/f")
	try(err)
	if f != nil {
		_, err = f.Write([]byte("hello"))
		try(err)
		try(f.Truncate(3))
		try(f.Allocate(8))
		_, err = f.Size()
		try(err)
		_, err = f.Linked()
		try(err)
		try(f.Sync())
		try(f.Close())
	}
	try(fsys.Rename("d/f", "d/g"))
	f, err = fsys.Open("d/g")
	try(err)
	if f != nil {
		_, err = f.ReadAt(make([]byte, 8), 0)
		try(err)
		f.Close()
	}
	f, err = fsys.Append("d/g")
	try(err)
	if f != nil {
		f.Close()
	}
	l, err := fsys.Lock("d/LOCK", "us")
	try(err)
	if l != nil {
		l.Close()
	}
	try(fsys.SyncDir("d"))
	try(fsys.Remove("d/g"))
	return errs
}

// Every operation is asked about, by its name, and can fail before it works or
// after.
func TestFailingEverywhere(t *testing.T) {
	var ops []string
	log := func(op disk.Op) disk.Fault {
		ops = append(ops, op.String())
		if op.N != len(ops) {
			t.Errorf("%s is number %d", op, op.N)
		}
		return disk.Fault{}
	}
	for _, err := range every(disk.Failing(disk.NewMem(), log)) {
		require.NoError(t, err)
	}
	require.Equal(t, []string{"mkdir d", "list d", "create d/f", "write d/f", "truncate d/f", "allocate d/f", "size d/f", "linked d/f",
		"sync d/f", "close d/f", "rename d/g", "open d/g", "read d/g", "close d/g", "append d/g", "close d/g", "lock d/LOCK",
		"syncdir d", "remove d/g"}, ops)
	for k := range ops {
		for _, done := range []bool{false, true} {
			m := disk.NewMem()
			errs := every(disk.Failing(m, func(op disk.Op) disk.Fault {
				if op.N == k+1 {
					return disk.Fault{Err: syscall.EIO, Done: done}
				}
				return disk.Fault{}
			}))
			failed := slices.IndexFunc(errs, func(err error) bool { return err != nil })
			if k != 13 && k != 15 { // closes whose error is not looked at
				require.ErrorIs(t, errs[failed], syscall.EIO, ops[k])
			}
			_, err := m.Lock("d/LOCK", "next")
			if k > 0 || done {
				require.NoError(t, err, "a lock is not held by nobody")
			}
			if !done {
				continue
			}
			if failed++; failed < len(errs) && k != 2 { // without the file its operations are not called
				require.NoError(t, errors.Join(errs[failed:]...), "%s was done", ops[k])
			}
		}
	}
}

func TestShortWrites(t *testing.T) {
	for name, test := range map[string]struct {
		fault disk.Fault
		n     int
		err   error
		then  string
	}{
		"no fault":       {disk.Fault{}, 5, nil, "hello"},
		"fails":          {disk.Fault{Err: syscall.EIO}, 0, syscall.EIO, ""},
		"fails within":   {disk.Fault{Err: syscall.ENOSPC, Bytes: 2}, 2, syscall.ENOSPC, "he"},
		"fails behind":   {disk.Fault{Err: syscall.EIO, Done: true}, 5, syscall.EIO, "hello"},
		"short":          {disk.Fault{Short: true, Bytes: 4}, 4, nil, "hell"},
		"short, nothing": {disk.Fault{Short: true}, 0, nil, ""},
		"more than all":  {disk.Fault{Err: io.ErrUnexpectedEOF, Bytes: 9}, 5, io.ErrUnexpectedEOF, "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			m := disk.NewMem()
			fsys := disk.Failing(m, func(op disk.Op) disk.Fault {
				if op.Kind == disk.OpWrite {
					require.EqualValues(t, 5, op.Bytes)
					return test.fault
				}
				return disk.Fault{}
			})
			f, err := fsys.Create("f")
			require.NoError(t, err)
			n, err := f.Write([]byte("hello"))
			require.Equal(t, test.n, n)
			require.Equal(t, test.err, err)
			require.Equal(t, test.then, content(t, m, "f"))
		})
	}
}
