package disk

import (
	"io/fs"
	"syscall"
)

// Sync is fdatasync: the bytes and the size of the file, which is all that is
// needed to read them back, without its times.
func (f osFile) Sync() error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ended := conn.Control(func(fd uintptr) {
		for err = syscall.EINTR; err == syscall.EINTR; {
			err = syscall.Fdatasync(int(fd))
		}
	})
	if ended != nil {
		return ended
	}
	if err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
