package disk

import (
	"fmt"
	"io"
	"sync"
)

// Kind is what an [Op] does. The zero Kind is not valid.
type Kind uint8

// The operations of [FS], then those of [File].
const (
	OpMkdir Kind = iota + 1
	OpList
	OpCreate
	OpAppend
	OpOpen
	OpRename
	OpRemove
	OpSyncDir
	OpLock
	OpReadAt
	OpWrite
	OpTruncate
	OpAllocate
	OpSize
	OpSync
	OpLinked
	OpClose
)

var kindNames = [...]string{OpMkdir: "mkdir", OpList: "list", OpCreate: "create", OpAppend: "append", OpOpen: "open", OpRename: "rename",
	OpRemove: "remove", OpSyncDir: "syncdir", OpLock: "lock", OpReadAt: "read", OpWrite: "write", OpTruncate: "truncate", OpAllocate: "allocate",
	OpSize: "size", OpSync: "sync", OpLinked: "linked", OpClose: "close"}

// String returns the operation in one lower-case word.
func (k Kind) String() string {
	if k >= OpMkdir && k <= OpClose {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Reads reports whether the operation only looks: it changes neither a file nor
// a directory, nor what is durable of them. Opening and closing a file is that.
func (k Kind) Reads() bool {
	switch k {
	case OpList, OpAppend, OpOpen, OpReadAt, OpSize, OpLinked, OpClose:
		return true
	}
	return false
}

// Op is an operation that is about to happen.
type Op struct {
	N     int // its number, from 1
	Kind  Kind
	Name  string // as it was given; of a Rename the new one, of a File the one it was opened by
	Bytes int64  // Write, ReadAt: how many; Truncate, Allocate: the size asked for
}

// String is what a log of operations is made of: "write book/000001.jsonl".
func (o Op) String() string { return o.Kind.String() + " " + o.Name }

// Fault is what an operation does instead of its work. The zero Fault lets it
// work.
type Fault struct {
	Err   error // what it returns
	Done  bool  // it does its work first, and then returns Err
	Short bool  // Write: only Bytes are written, and Err is returned, nil included
	Bytes int   // Write: so many are written before it fails or stops short
}

// Failing returns a file system that does what the other one does, or what fault
// says. It is asked before each operation, one at a time; giving a lock back is
// none. It may end a [Mem] by Crash or Kill, so that the operation and all that
// follow fail with [ErrGone].
//
// A Close that fails leaves nothing open. A Sync of a [Mem]'s file that fails
// (and is not Done) does what disks and systems do: the bytes stay readable, a
// later Sync returns nil without writing them, and a power cut takes them.
func Failing(fs FS, fault func(Op) Fault) FS { return &failing{fs: fs, fault: fault} }

type failing struct {
	fs    FS
	fault func(Op) Fault
	mu    sync.Mutex
	n     int
}

func (f *failing) ask(kind Kind, name string, bytes int64) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return f.fault(Op{N: f.n, Kind: kind, Name: name, Bytes: bytes})
}

// do works, or fails, as asked.
func (f *failing) do(kind Kind, name string, bytes int64, work func() error) error {
	fault := f.ask(kind, name, bytes)
	if fault.Err == nil {
		return work()
	}
	if fault.Done {
		if err := work(); err != nil {
			return err
		}
	}
	return fault.Err
}

func (f *failing) Mkdir(dir string) error {
	return f.do(OpMkdir, dir, 0, func() error { return f.fs.Mkdir(dir) })
}

func (f *failing) List(dir string) (names []string, err error) {
	err = f.do(OpList, dir, 0, func() error { names, err = f.fs.List(dir); return err })
	return names, err
}

func (f *failing) Create(name string) (File, error) { return f.open(OpCreate, name, f.fs.Create) }
func (f *failing) Append(name string) (File, error) { return f.open(OpAppend, name, f.fs.Append) }
func (f *failing) Open(name string) (File, error)   { return f.open(OpOpen, name, f.fs.Open) }

func (f *failing) open(kind Kind, name string, open func(string) (File, error)) (file File, err error) {
	err = f.do(kind, name, 0, func() error { file, err = open(name); return err })
	if err != nil {
		if file != nil { // it was opened, and then failed
			file.Close()
		}
		return nil, err
	}
	return &failingFile{file: file, fs: f, name: name}, nil
}

func (f *failing) Rename(from, to string) error {
	return f.do(OpRename, to, 0, func() error { return f.fs.Rename(from, to) })
}

func (f *failing) Remove(name string) error {
	return f.do(OpRemove, name, 0, func() error { return f.fs.Remove(name) })
}

func (f *failing) SyncDir(dir string) error {
	return f.do(OpSyncDir, dir, 0, func() error { return f.fs.SyncDir(dir) })
}

func (f *failing) Lock(name, holder string) (lock io.Closer, err error) {
	err = f.do(OpLock, name, 0, func() error { lock, err = f.fs.Lock(name, holder); return err })
	if err != nil && lock != nil {
		lock.Close()
		lock = nil
	}
	return lock, err
}

type failingFile struct {
	file File
	fs   *failing
	name string
}

func (f *failingFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.fs.do(OpReadAt, f.name, int64(len(p)), func() error { n, err = f.file.ReadAt(p, off); return err })
	return n, err
}

func (f *failingFile) Write(p []byte) (int, error) {
	fault := f.fs.ask(OpWrite, f.name, int64(len(p)))
	if fault.Err == nil && !fault.Short {
		return f.file.Write(p)
	}
	if !fault.Done {
		p = p[:min(max(fault.Bytes, 0), len(p))]
	}
	n, err := 0, error(nil)
	if len(p) > 0 {
		n, err = f.file.Write(p)
	}
	if err == nil {
		err = fault.Err
	}
	return n, err
}

func (f *failingFile) Truncate(size int64) error {
	return f.fs.do(OpTruncate, f.name, size, func() error { return f.file.Truncate(size) })
}

func (f *failingFile) Allocate(size int64) error {
	return f.fs.do(OpAllocate, f.name, size, func() error { return f.file.Allocate(size) })
}

func (f *failingFile) Size() (size int64, err error) {
	err = f.fs.do(OpSize, f.name, 0, func() error { size, err = f.file.Size(); return err })
	return size, err
}

func (f *failingFile) Linked() (ok bool, err error) {
	err = f.fs.do(OpLinked, f.name, 0, func() error { ok, err = f.file.Linked(); return err })
	return ok, err
}

func (f *failingFile) Sync() error {
	worked := false
	err := f.fs.do(OpSync, f.name, 0, func() error { worked = true; return f.file.Sync() })
	if !worked {
		f.failSync()
	}
	return err
}

// failSync is where a failed Sync does harm, if the file system knows how.
func (f *failingFile) failSync() {
	if lies, ok := f.file.(interface{ failSync() }); ok {
		lies.failSync()
	}
}

func (f *failingFile) Close() error {
	err := f.fs.do(OpClose, f.name, 0, func() error { return nil })
	if closed := f.file.Close(); err == nil {
		err = closed
	}
	return err
}
