package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// OS returns the file system of the operating system. Sync asks the drive
// itself to write its cache (fdatasync on Linux, F_FULLFSYNC on macOS, else fsync).
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Mkdir(dir string) error           { return os.Mkdir(dir, 0o700) }
func (osFS) Rename(from, to string) error     { return os.Rename(from, to) }
func (osFS) Remove(name string) error         { return os.Remove(name) }
func (osFS) SyncDir(dir string) error         { return syncDir(dir) }
func (osFS) Open(name string) (File, error)   { return open(name, os.O_RDONLY) }
func (osFS) Append(name string) (File, error) { return open(name, os.O_WRONLY|os.O_APPEND) }
func (osFS) Create(name string) (File, error) {
	return open(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL)
}

func (osFS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (osFS) Lock(name, holder string) (io.Closer, error) { return lock(name, holder) }

// open returns a nil interface, not a nil *osFile, with an error.
func open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Linked() (bool, error) {
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, named), err
}

// IsFull reports whether err says that there is no room: the disk is full, the
// user's quota is used up, or the file may not grow further.
func IsFull(err error) bool {
	if errors.Is(err, syscall.ENOSPC) {
		return true
	}
	for _, errno := range fullErrnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
