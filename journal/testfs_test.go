package journal

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/tollbook/tollbook/journal/disk"
)

// testFS is a real disk that logs what changes it, and does what fail says
// instead. Reads are neither logged nor failed.
type testFS struct {
	disk.FS
	mu  sync.Mutex
	ops []string
	// fail may return an error for the operation, numbered from 0. Of a write,
	// n bytes are written before it fails.
	fail func(i int, op string) (n int, err error)
}

func newTestFS() *testFS { return &testFS{FS: disk.OS()} }

func (t *testFS) op(format string, args ...any) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	op := fmt.Sprintf(format, args...)
	t.ops = append(t.ops, op)
	if t.fail == nil {
		return 0, nil
	}
	return t.fail(len(t.ops)-1, op)
}

// take returns the log and begins a new one.
func (t *testFS) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ops := t.ops
	t.ops = nil
	return ops
}

func (t *testFS) open(verb, name string, open func(string) (disk.File, error)) (disk.File, error) {
	base := filepath.Base(name)
	if _, err := t.op("%s %s", verb, base); err != nil {
		return nil, err
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return &testFile{File: f, fs: t, name: base}, nil
}

func (t *testFS) Create(name string) (disk.File, error) { return t.open("create", name, t.FS.Create) }
func (t *testFS) Append(name string) (disk.File, error) { return t.open("append", name, t.FS.Append) }

func (t *testFS) Mkdir(dir string) error {
	if _, err := t.op("mkdir"); err != nil {
		return err
	}
	return t.FS.Mkdir(dir)
}

func (t *testFS) Rename(from, to string) error {
	if _, err := t.op("rename %s", filepath.Base(to)); err != nil {
		return err
	}
	return t.FS.Rename(from, to)
}

func (t *testFS) Remove(name string) error {
	if _, err := t.op("remove %s", filepath.Base(name)); err != nil {
		return err
	}
	return t.FS.Remove(name)
}

func (t *testFS) SyncDir(dir string) error {
	if _, err := t.op("syncdir"); err != nil {
		return err
	}
	return t.FS.SyncDir(dir)
}

type testFile struct {
	disk.File
	fs   *testFS
	name string
}

func (f *testFile) Write(p []byte) (int, error) {
	if n, err := f.fs.op("write %s", f.name); err != nil {
		n, _ = f.File.Write(p[:min(n, len(p))])
		if err == errShort {
			err = nil
		}
		return n, err
	}
	return f.File.Write(p)
}

// errShort makes a write short without an error.
var errShort = fmt.Errorf("short")

func (f *testFile) Sync() error {
	if _, err := f.fs.op("sync %s", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *testFile) Truncate(size int64) error {
	if _, err := f.fs.op("truncate %s", f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *testFile) Allocate(size int64) error {
	if _, err := f.fs.op("allocate %s", f.name); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

func (f *testFile) Close() error {
	_, err := f.fs.op("close %s", f.name)
	if closed := f.File.Close(); err == nil {
		err = closed
	}
	return err
}
