package disk

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"
	"syscall"
)

// Mem is a file system in memory for testing durability. It promises as little
// as [FS] and [File] do: until the file was synced a power cut may take any of
// its bytes, and until the directory was synced any of its names. [Mem.Crash]
// and [Mem.Kill] say what the next process finds.
//
// Otherwise it is as strict as a Unix system: an open file outlives its name, a
// handle for reading does not write, one for writing does not read, and a full
// disk ([Mem.SetCapacity]) takes the part of a write that fits. Names are made
// unique by filepath.Clean and nothing else; "." and the root are there.
// Directories cannot be renamed.
//
// Use [NewMem] to make one. All methods may be called concurrently.
type Mem struct {
	mu       sync.Mutex
	gone     bool
	names    map[string]*entry
	locks    map[string]bool
	capacity int64 // negative: no end
	used     int64 // by files that have a name or a handle
}

// ErrGone is returned by everything of a [Mem] that was crashed or killed, the
// handles and locks that were open included.
var ErrGone = errors.New("disk: the process that used it is gone")

// NewMem returns an empty file system without an end to its room.
func NewMem() *Mem {
	return &Mem{names: map[string]*entry{}, locks: map[string]bool{}, capacity: -1}
}

// SetCapacity makes the disk hold so many bytes in its files together, names
// and locks apart; negative is no end. What is stored already stays, if it is
// more. Room is set free by Truncate, and by Remove and Rename once nobody has
// the file open. What does not fit fails with ENOSPC ([IsFull]).
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// Used returns how many bytes its files hold together.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// begin locks for an operation on a name, unless the process is gone.
func (m *Mem) begin(op, name string) (unlock func(), err error) {
	m.mu.Lock()
	if m.gone {
		m.mu.Unlock()
		return func() {}, &fs.PathError{Op: op, Path: name, Err: ErrGone}
	}
	return m.mu.Unlock, nil
}

// Mkdir makes a directory.
func (m *Mem) Mkdir(dir string) error {
	unlock, err := m.begin("mkdir", dir)
	defer unlock()
	if err == nil {
		err = named("mkdir", dir, m.add(filepath.Clean(dir), &node{dir: true}))
	}
	return err
}

// List returns the names in a directory.
func (m *Mem) List(dir string) ([]string, error) {
	unlock, err := m.begin("list", dir)
	defer unlock()
	if err != nil {
		return nil, err
	}
	clean := filepath.Clean(dir)
	if err := m.dir(clean); err != nil {
		return nil, named("list", dir, err)
	}
	return m.in(clean), nil
}

// Create makes a file.
func (m *Mem) Create(name string) (File, error) {
	unlock, err := m.begin("create", name)
	defer unlock()
	if err != nil {
		return nil, err
	}
	n := &node{}
	if err := m.add(filepath.Clean(name), n); err != nil {
		return nil, named("create", name, err)
	}
	return m.handle(name, n, true), nil
}

// Append opens a file for writing at its end.
func (m *Mem) Append(name string) (File, error) { return m.open("append", name, true) }

// Open opens a file for reading.
func (m *Mem) Open(name string) (File, error) { return m.open("open", name, false) }

func (m *Mem) open(op, name string, writes bool) (File, error) {
	unlock, err := m.begin(op, name)
	defer unlock()
	if err != nil {
		return nil, err
	}
	n, err := m.file(filepath.Clean(name))
	if err != nil {
		return nil, named(op, name, err)
	}
	return m.handle(name, n, writes), nil
}

func (m *Mem) handle(name string, n *node, writes bool) *memFile {
	n.handles++
	return &memFile{m: m, name: name, node: n, writes: writes}
}

// Rename moves a file over another.
func (m *Mem) Rename(from, to string) error {
	unlock, err := m.begin("rename", from)
	defer unlock()
	if err == nil {
		err = named("rename", from, m.rename(filepath.Clean(from), filepath.Clean(to)))
	}
	return err
}

// Remove deletes a file, or a directory that is empty.
func (m *Mem) Remove(name string) error {
	unlock, err := m.begin("remove", name)
	defer unlock()
	if err != nil {
		return err
	}
	clean := filepath.Clean(name)
	n := m.at(clean)
	switch {
	case n == nil:
		err = fs.ErrNotExist
	case n.dir && len(m.in(clean)) > 0:
		err = syscall.ENOTEMPTY
	case n == root:
		err = fs.ErrInvalid
	default:
		m.link(clean, nil)
	}
	return named("remove", name, err)
}

// SyncDir makes the names in a directory durable.
func (m *Mem) SyncDir(dir string) error {
	unlock, err := m.begin("syncdir", dir)
	defer unlock()
	if err != nil {
		return err
	}
	clean := filepath.Clean(dir)
	if err := m.dir(clean); err != nil {
		return named("syncdir", dir, err)
	}
	maps.DeleteFunc(m.names, func(name string, e *entry) bool {
		if filepath.Dir(name) == clean {
			e.synced, e.pending = e.live, nil
			return e.live == nil
		}
		return false
	})
	return nil
}

// Lock takes the lock of that name.
func (m *Mem) Lock(name, holder string) (io.Closer, error) {
	unlock, err := m.begin("lock", name)
	defer unlock()
	if err != nil {
		return nil, err
	}
	clean := filepath.Clean(name)
	n, err := m.file(clean)
	if errors.Is(err, fs.ErrNotExist) {
		n = &node{}
		err = m.add(clean, n)
	}
	if err != nil {
		return nil, named("lock", name, err)
	}
	if m.locks[clean] {
		return nil, &HeldError{Name: name, Holder: string(n.data)}
	}
	m.locks[clean] = true
	if holder != "" {
		m.used += n.truncate(0) + n.append([]byte(holder))
	}
	return &memLock{m: m, name: clean}, nil
}

type memLock struct {
	m        *Mem
	name     string
	released bool
}

func (l *memLock) Close() error {
	unlock, err := l.m.begin("unlock", l.name)
	defer unlock()
	if err == nil && !l.released {
		l.released = true
		delete(l.m.locks, l.name)
	}
	return err
}

// named says what an error was about.
func named(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
