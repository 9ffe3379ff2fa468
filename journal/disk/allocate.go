package disk

import "fmt"

// Allocate asks the file system for the room, and writes zeros where it does
// not know how to give any.
func (f osFile) Allocate(size int64) error {
	from, err := f.Size()
	if err != nil {
		return err
	}
	if size < from {
		return fmt.Errorf("disk: allocate %d bytes for %s, which has %d", size, f.Name(), from)
	}
	if size == from {
		return nil
	}
	if done, err := f.fallocate(from, size-from); done {
		return err
	}
	return writeZeros(f, size-from)
}

// writeZeros appends n zeros.
func writeZeros(f File, n int64) error {
	zeros := make([]byte, min(n, 64<<10))
	for n > 0 {
		written, err := fullWriter{f}.Write(zeros[:min(n, int64(len(zeros)))])
		if err != nil {
			return err
		}
		n -= int64(written)
	}
	return nil
}
