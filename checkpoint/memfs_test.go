package checkpoint_test

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/tollbook/tollbook/journal/disk"
)

// memFS is a strict disk in memory: a byte survives a power cut only after its
// file was synced, a name only after its directory was. op, if set, is asked
// before each operation that changes something and may refuse it; a refused
// write leaves half of its bytes behind.
type memFS struct {
	op   func(op, name string) error
	opMu sync.Mutex // for op

	mu     sync.Mutex
	live   map[string]*memFile // by path; nil is a directory
	synced map[string]*memFile
	locked map[string]bool
}

type memFile struct {
	data   []byte
	synced []byte
}

func newMemFS() *memFS {
	return &memFS{live: map[string]*memFile{".": nil}, synced: map[string]*memFile{".": nil}, locked: map[string]bool{}}
}

// kill leaves the disk as the next process finds it: all that was written is
// there, but what was not synced still is not.
func (m *memFS) kill() *memFS {
	m.op, m.locked = nil, map[string]bool{}
	return m
}

// powerCut is the disk as the machine finds it that comes up again.
func (m *memFS) powerCut() *memFS {
	return m.clone(m.synced, func(f *memFile) []byte { return f.synced })
}

// copy is the disk as it is, all synced.
func (m *memFS) copy() *memFS { return m.clone(m.live, func(f *memFile) []byte { return f.data }) }

func (m *memFS) clone(names map[string]*memFile, content func(*memFile) []byte) *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := newMemFS()
	for name, f := range names {
		if f != nil {
			f = &memFile{slices.Clone(content(f)), slices.Clone(content(f))}
		}
		c.live[name], c.synced[name] = f, f
	}
	return c
}

func (m *memFS) do(op, name string) error {
	if m.op == nil {
		return nil
	}
	return m.op(op, name)
}

func (m *memFS) read(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.live[name]; f != nil {
		return string(f.data)
	}
	return ""
}

func (m *memFS) write(name, content string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &memFile{[]byte(content), []byte(content)}
	m.live[name], m.synced[name] = f, f
}

func (m *memFS) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.live))
}

func (m *memFS) Mkdir(dir string) error {
	if err := m.do("mkdir", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.live[dir]; ok {
		return fs.ErrExist
	}
	if _, ok := m.live[filepath.Dir(dir)]; !ok {
		return fs.ErrNotExist
	}
	m.live[dir] = nil
	return nil
}

func (m *memFS) List(dir string) (names []string, err error) {
	for _, name := range m.names() {
		if filepath.Dir(name) == dir && name != dir {
			names = append(names, filepath.Base(name))
		}
	}
	return names, nil
}

func (m *memFS) Create(name string) (disk.File, error) {
	if err := m.do("create", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.live[name]; ok {
		return nil, fs.ErrExist
	}
	if _, ok := m.live[filepath.Dir(name)]; !ok {
		return nil, fs.ErrNotExist
	}
	m.live[name] = &memFile{}
	return memHandle{m, name, m.live[name]}, nil
}

func (m *memFS) Open(name string) (disk.File, error) { return m.Append(name) }

func (m *memFS) Append(name string) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.live[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return memHandle{m, name, f}, nil
}

func (m *memFS) Rename(from, to string) error {
	if err := m.do("rename", to); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[to] = m.live[from]
	delete(m.live, from)
	return nil
}

func (m *memFS) Remove(name string) error {
	if err := m.do("remove", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, name)
	return nil
}

func (m *memFS) SyncDir(dir string) error {
	if err := m.do("syncdir", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	inDir := func(name string, _ *memFile) bool { return filepath.Dir(name) == dir && name != dir }
	maps.DeleteFunc(m.synced, inDir)
	for name, f := range m.live {
		if inDir(name, f) {
			m.synced[name] = f
		}
	}
	return nil
}

func (m *memFS) Lock(name, holder string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked[name] {
		return nil, &disk.HeldError{Name: name, Holder: holder}
	}
	m.locked[name] = true
	m.live[name] = &memFile{data: []byte(holder)}
	return memLock{m, name}, nil
}

type memLock struct {
	m    *memFS
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locked, l.name)
	return nil
}

type memHandle struct {
	m    *memFS
	name string
	f    *memFile
}

func (h memHandle) ReadAt(p []byte, off int64) (int, error) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h memHandle) Write(p []byte) (int, error) {
	err := h.m.do("write", h.name)
	if err != nil {
		p = p[:len(p)/2]
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.f.data = append(h.f.data, p...)
	return len(p), err
}

func (h memHandle) Truncate(size int64) error {
	if err := h.m.do("truncate", h.name); err != nil {
		return err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if size > int64(len(h.f.data)) {
		return errors.New("memfs: truncate beyond the end")
	}
	h.f.data = h.f.data[:size:size]
	return nil
}

func (h memHandle) Allocate(size int64) error { return errors.ErrUnsupported }
func (h memHandle) Linked() (bool, error)     { return true, nil }
func (h memHandle) Size() (int64, error) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return int64(len(h.f.data)), nil
}

func (h memHandle) Sync() error {
	if err := h.m.do("sync", h.name); err != nil {
		return err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.f.synced = slices.Clone(h.f.data)
	return nil
}

func (h memHandle) Close() error { return nil }
