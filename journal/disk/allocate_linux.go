package disk

import (
	"errors"
	"io/fs"
	"syscall"
)

// fallocate reports false if the file system does not have it.
func (f osFile) fallocate(off, n int64) (done bool, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return true, err
	}
	ended := conn.Control(func(fd uintptr) {
		for err = syscall.EINTR; err == syscall.EINTR; {
			err = syscall.Fallocate(int(fd), 0, off, n)
		}
	})
	switch {
	case ended != nil:
		return true, ended
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
		return false, nil
	case err != nil:
		return true, &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return true, nil
}
