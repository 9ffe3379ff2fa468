package disk

import (
	"fmt"
	"io"
	"math/rand/v2"
)

// Allocate asks the file system for the room, and writes to the file where it
// does not know how to give any.
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
	return writeNoise(f, size-from)
}

// writeNoise appends n bytes that no file system can store in less.
func writeNoise(f File, n int64) error {
	_, err := io.CopyN(fullWriter{f}, rand.NewChaCha8([32]byte{}), n)
	return err
}
