package disk

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

const (
	failImmediately = 1 // LOCKFILE_FAIL_IMMEDIATELY
	exclusive       = 2 // LOCKFILE_EXCLUSIVE_LOCK

	errLockViolation = syscall.Errno(33) // ERROR_LOCK_VIOLATION
)

// flockFile locks one byte far behind the text, because a locked range cannot
// be read by others on Windows and the text names the holder.
func flockFile(f *os.File) error {
	where := syscall.Overlapped{OffsetHigh: 1 << 30}
	ok, _, err := lockFileEx.Call(f.Fd(), exclusive|failImmediately, 0, 1, 0, uintptr(unsafe.Pointer(&where)))
	switch {
	case ok != 0:
		return nil
	case errors.Is(err, errLockViolation), errors.Is(err, syscall.ERROR_IO_PENDING):
		return errHeld
	default:
		return err
	}
}
