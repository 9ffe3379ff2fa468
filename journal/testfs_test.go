package journal

import (
	"cmp"
	"errors"
	"path/filepath"
	"sync"

	"github.com/tollbook/tollbook/journal/disk"
)

// testFS is a disk that logs what changes it, and does what fail says instead.
// Reads are neither logged nor failed.
type testFS struct {
	disk.FS
	under disk.FS

	mu  sync.Mutex
	ops []string
	// fail may return an error for the operation, numbered from 0. Of a write,
	// n bytes are written before it fails.
	fail func(i int, op string) (n int, err error)
}

// newTestFS is over the system's disk, or over another one.
func newTestFS(under ...disk.FS) *testFS {
	t := &testFS{under: cmp.Or(append(under, disk.OS())...)}
	t.FS = disk.Failing(t.under, t.fault)
	return t
}

// errShort makes a write short without an error.
var errShort = errors.New("short")

func (t *testFS) fault(op disk.Op) disk.Fault {
	name := " " + filepath.Base(op.Name)
	switch op.Kind {
	case disk.OpList, disk.OpLock, disk.OpSize, disk.OpLinked:
		return disk.Fault{}
	case disk.OpMkdir, disk.OpSyncDir:
		name = ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ops = append(t.ops, op.Kind.String()+name)
	if t.fail == nil {
		return disk.Fault{}
	}
	n, err := t.fail(len(t.ops)-1, t.ops[len(t.ops)-1])
	if err == errShort {
		return disk.Fault{Short: true, Bytes: n}
	}
	return disk.Fault{Err: err, Bytes: n}
}

// Open is for reading.
func (t *testFS) Open(name string) (disk.File, error) { return t.under.Open(name) }

// take returns the log and begins a new one.
func (t *testFS) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ops := t.ops
	t.ops = nil
	return ops
}
