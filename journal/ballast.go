package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// ballastName is a file that only takes up room. On a full disk it is removed,
// and with what that sets free calls can still be closed, and a journal that
// was not closed can still be mended and opened. It holds nothing: whoever
// copies a journal can leave it out.
const ballastName = "BALLAST"

// maxSpare is the room beyond the newest segment that the ballast is for.
const maxSpare = 1 << 20

// retryBallast is how often a journal that is low on space looks for more.
const retryBallast = time.Second

// room is what a file journal knows of the space on its disk.
type room struct {
	ballast int64     // length of the ballast; 0 if it is not there
	low     error     // why nothing more is to be admitted
	tried   time.Time // when it was last tried to make the ballast
}

// Low returns nil while there is room in reserve, and else an error that is
// [ErrFull] and says what to do. A guard then admits nothing more, so that what
// room is left is for closing calls; appending goes on working as long as it
// can. The journal finds out by itself when there is room again, at most a
// second later.
func (f *File) Low() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.low != nil && f.active != nil && f.poison == nil && time.Since(f.tried) >= retryBallast {
		f.makeBallast()
	}
	return f.low
}

// Low reports whether a journal has nothing in reserve: its disk was full when
// it was written last, or it is a copy that left the ballast out. It may be
// asked of a journal in use. See [File.Low].
func (d Dir) Low() (bool, error) {
	names, numbers, err := listSegments(d.fs(), d.Path)
	return err == nil && len(numbers) > 0 && !slices.Contains(names, ballastName), err
}

// keepBallast makes the ballast grow with the newest segment, in few steps:
// after a crash, a copy of that segment has to fit into the room of it.
func (f *File) keepBallast() {
	if f.low == nil && f.ballast < f.needed() {
		f.makeBallast()
	}
}

// needed is the least length of the ballast.
func (f *File) needed() int64 { return f.synced + f.spare()/2 }

func (f *File) spare() int64 { return min(f.due, maxSpare) }

// makeBallast makes the ballast twice as long as it has to be, or a little
// longer than a segment becomes. That it cannot is no error: the journal is low
// on space.
func (f *File) makeBallast() {
	size := min(2*f.needed(), f.due+f.spare())
	if size < f.needed() { // nothing bounds the segment, since it carries so much
		size = f.needed() + f.needed()/4
	}
	if err := f.allocate(size); err != nil {
		f.lowOn(size, err)
		return
	}
	f.ballast, f.low = size, nil
}

func (f *File) lowOn(size int64, cause error) {
	f.tried = time.Now()
	f.low = fmt.Errorf("%w: no room to spare in %s, free %d MiB: %w", ErrFull, f.dir, size>>20+1, cause)
}

// allocate makes the ballast at least size bytes long, or leaves it as it is.
func (f *File) allocate(size int64) error {
	name := f.path(ballastName)
	file, err := f.fs.Append(name)
	made := errors.Is(err, fs.ErrNotExist)
	if made {
		file, err = f.fs.Create(name)
	}
	if err != nil {
		return err
	}
	before, err := file.Size()
	if err == nil && before < size {
		if err = file.Allocate(size); err != nil {
			file.Truncate(before)
		} else {
			err = file.Sync()
		}
	}
	err = errors.Join(err, file.Close())
	if made && err == nil {
		err = f.fs.SyncDir(f.dir)
	}
	if made && err != nil {
		f.fs.Remove(name)
	}
	return err
}

// release gives the room of the ballast to others, after the disk said that it
// is full, and reports whether that was any.
func (f *File) release(cause error) bool {
	f.lowOn(f.spare(), cause)
	f.ballast = 0
	if f.fs.Remove(f.path(ballastName)) != nil {
		return false
	}
	// Some file systems set nothing free before. That the ballast may come back
	// after a power cut is no harm, so an error is none here.
	f.fs.SyncDir(f.dir)
	return true
}

// inRoom does something once more without the ballast if the disk is full.
func (f *File) inRoom(do func() error) error {
	err := do()
	if disk.IsFull(err) && f.poison == nil && f.release(err) {
		err = do()
	}
	return err
}
