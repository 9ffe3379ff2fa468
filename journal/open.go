package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// lockName is the file that a writer locks. It is never deleted.
const lockName = "LOCK"

// OpenFile opens the journal in dir for writing, making the directory if it is
// missing, and mends what a crash left behind; [File.Recovery] says what. The
// first call must be Rotate (Entries may come before it): nothing is ever
// appended behind lines that somebody else wrote.
//
// It fails with a [*LockedError] if the journal is open already, here or in
// another process, and with a [*CorruptError] if bytes that were durable are
// damaged.
func OpenFile(dir string, opts FileOptions) (*File, error) {
	f, err := newFile(dir, opts)
	if err != nil {
		return nil, err
	}
	if err := disk.MkdirAll(f.fs, f.dir); err != nil {
		return nil, fmt.Errorf("journal: make directory: %w", err)
	}
	if err := f.takeLock(); err != nil {
		return nil, err
	}
	visit := opts.Visit
	if visit == nil {
		visit = ignore
	}
	if err := f.recover(visit); err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	return f, nil
}

// newFile returns a File that is not open yet.
func newFile(dir string, opts FileOptions) (f *File, err error) {
	f = &File{dir: filepath.Clean(dir), fs: opts.FS, due: opts.SegmentBytes}
	if f.fs == nil {
		f.fs = disk.OS()
	}
	if f.fs == disk.OS() {
		if f.dir, err = filepath.Abs(f.dir); err != nil { // the process may change its directory
			return nil, fmt.Errorf("journal: %w", err)
		}
	}
	if f.due <= 0 {
		f.due = DefaultSegmentBytes
	}
	return f, nil
}

// takeLock keeps every other writer out.
func (f *File) takeLock() (err error) {
	err = f.inRoom(func() error {
		f.lock, err = f.fs.Lock(f.path(lockName), holder())
		return err
	})
	if held, ok := errors.AsType[*disk.HeldError](err); ok {
		return &LockedError{Dir: f.dir, Holder: held.Holder}
	}
	if err != nil {
		return full(fmt.Errorf("journal: lock: %w", err))
	}
	return nil
}

// holder names this process in the lock file. Arguments may hold secrets and
// stay out.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return fmt.Sprintf("process %d (%s) on %s since %s", os.Getpid(), filepath.Base(program), host, time.Now().UTC().Format(time.RFC3339))
}

func (f *File) path(name string) string { return filepath.Join(f.dir, name) }
