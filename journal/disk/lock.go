package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// held is the table of locks that this process has. The system's lock alone
// would do on a local disk; where it belongs to the process and not to the
// open file, a second lock by the same process would be granted.
var held = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

// errHeld is what flockFile returns if another process has the lock.
var errHeld = errors.New("held")

// maxHolder bounds how much of a lock file is read for an error text.
const maxHolder = 512

type osLock struct {
	file *os.File
	key  string
	once sync.Once
	err  error
}

func lock(name, holder string) (_ io.Closer, err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	key, err := realPath(name)
	if err != nil {
		return nil, err
	}
	held.Lock()
	defer held.Unlock()
	if held.names[key] {
		return nil, &HeldError{Name: name, Holder: readHolder(f)}
	}
	switch err := flockFile(f); {
	case errors.Is(err, errHeld):
		return nil, &HeldError{Name: name, Holder: readHolder(f)}
	case err != nil:
		return nil, fmt.Errorf("disk: lock %s: %w", name, err)
	}
	// Write first, then cut: a reader sees the old holder or the new one, with
	// a rest of the old behind it at worst, and never an empty file. On a full
	// disk it may end up short or empty: the lock is held, the text is only for
	// people, and the old one would mislead them.
	if holder != "" {
		n, _ := f.WriteAt([]byte(holder), 0)
		f.Truncate(int64(n))
	}
	held.names[key] = true
	return &osLock{file: f, key: key}, nil
}

// Close gives the lock back by closing the file; the file stays.
func (l *osLock) Close() error {
	l.once.Do(func() {
		held.Lock()
		defer held.Unlock()
		l.err = l.file.Close()
		delete(held.names, l.key)
	})
	return l.err
}

// realPath makes one name of all ways to write a path.
func realPath(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func readHolder(f *os.File) string {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
	return strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
}
