package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// TempSuffix ends the name of a file that is not finished. Nothing reads such
// a file, and whoever finds one left over by a crash removes it.
const TempSuffix = ".tmp"

// Replace puts data under a name, atomically and durably: after nil the new
// content survives a power cut, and at every moment before, a reader finds the
// whole old content or the whole new one. It writes name + [TempSuffix], syncs
// it, renames it and syncs the directory; a left-over temporary file is
// replaced.
//
// After an error the name may hold either content. Calls for one name must not
// run concurrently.
func Replace(fsys FS, name string, data []byte) error {
	temp := name + TempSuffix
	if err := WriteTemp(fsys, temp, func(w File) error {
		_, err := w.Write(data)
		return err
	}); err != nil {
		return err
	}
	if err := fsys.Rename(temp, name); err != nil {
		return errors.Join(err, fsys.Remove(temp))
	}
	return fsys.SyncDir(filepath.Dir(name))
}

// WriteTemp makes a new file with what fill writes, where a short write is an
// error, syncs it and closes it. A
// left-over file of that name is removed before; after an error, so is the new
// one. The name itself is not durable yet.
func WriteTemp(fsys FS, name string, fill func(File) error) error {
	f, err := fsys.Create(name)
	if errors.Is(err, fs.ErrExist) {
		if err = fsys.Remove(name); err == nil {
			f, err = fsys.Create(name)
		}
	}
	if err != nil {
		return err
	}
	err = fill(fullWriter{f})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, fsys.Remove(name))
	}
	return nil
}

// fullWriter makes an error of a short write that came without one.
type fullWriter struct{ File }

func (w fullWriter) Write(p []byte) (int, error) {
	n, err := w.File.Write(p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// MkdirAll makes a directory and its missing parents, durably. It syncs the
// parent of an existing directory too, since whoever made it may have died
// before doing so; where that parent belongs to somebody else, the directory
// is taken as it is.
func MkdirAll(fsys FS, dir string) error {
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	err := fsys.Mkdir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MkdirAll(fsys, parent); err != nil {
			return err
		}
		err = fsys.Mkdir(dir)
	}
	existed := errors.Is(err, fs.ErrExist)
	if err != nil && !existed {
		return err
	}
	err = fsys.SyncDir(parent)
	if existed && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("disk: sync parent of %s: %w", dir, err)
	}
	return nil
}

// ReadFile returns the content of a file of at most limit bytes; a longer one
// is an error, so that no damaged file is read into memory whole.
func ReadFile(fsys FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("disk: %s has %d bytes, more than the %d allowed", name, size, limit)
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}
