package journal

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// ballastName is a file that only takes up room. On a full disk it is removed,
// and with what that sets free calls can still be closed, and a journal that
// was not closed can still be mended and opened. It holds nothing: whoever
// copies a journal leaves it out, as a copy can be a hole that takes no room.
const ballastName = "BALLAST"

// maxSpare is the room beyond the newest segment that the ballast is for.
const maxSpare = 1 << 20

// lookAgain is how often it is looked whether the ballast is still there, and
// tried to make one that could not be made.
const lookAgain = time.Second

// room is what a file journal knows of the space on its disk.
type room struct {
	ballast int64     // length of the ballast when it was last looked at
	lack    error     // why it is shorter than it should be; ErrFull: nothing more is to be admitted
	looked  time.Time // by Low, or when something was lacking
}

// Low returns nil while there is room in reserve, and else an error that is
// [ErrFull] and says what to do. A guard then admits nothing more, so that what
// room is left is for closing calls; appending goes on working as long as it
// can. The journal finds out by itself when there is room again, at most a
// second later, and makes a ballast anew that somebody else removed.
//
// A ballast that cannot be made for another reason, such as too many open
// files, does not make the journal low: it goes on with the one there is, or
// without, and tries again.
func (f *File) Low() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active != nil && f.poison == nil && time.Since(f.looked) >= lookAgain {
		f.looked = time.Now()
		if f.lack != nil {
			f.makeBallast(f.synced)
		} else {
			f.ballast = 0 // whatever it was
			f.keepBallast(f.synced)
		}
	}
	return f.low()
}

func (f *File) low() error {
	if errors.Is(f.lack, ErrFull) {
		return f.lack
	}
	return nil
}

// Low reports whether a journal has no ballast: its disk was full when it was
// written last, or failed, or it is a copy that left the ballast out. It may be
// asked of a journal in use. See [File.Low].
func (d Dir) Low() (bool, error) {
	names, numbers, err := listSegments(d.fs(), d.Path)
	return err == nil && len(numbers) > 0 && !slices.Contains(names, ballastName), err
}

// keepBallast makes the ballast grow, in few steps, before the newest segment
// becomes length bytes long: after a crash, a copy of that has to fit into its
// room.
func (f *File) keepBallast(length int64) {
	if f.lack != nil || f.ballast >= f.needed(length) {
		return
	}
	if f.ballast = f.lengthOf(ballastName); f.ballast < f.needed(length) {
		f.makeBallast(length)
	}
}

// needed is the least length of the ballast.
func (f *File) needed(length int64) int64 { return length + f.spare()/2 }

func (f *File) spare() int64 { return min(f.due, maxSpare) }

// lengthOf is 0 for a file that cannot be looked at.
func (f *File) lengthOf(name string) int64 {
	file, err := f.fs.Open(f.path(name))
	if err != nil {
		return 0
	}
	defer file.Close()
	size, _ := file.Size()
	return size
}

// makeBallast makes the ballast twice as long as it has to be, or a little
// longer than a segment becomes. That it cannot is no error of what was asked
// for.
func (f *File) makeBallast(length int64) {
	needed := f.needed(length)
	size := min(2*needed, f.due+f.spare())
	if size < needed { // nothing bounds the segment, since it carries so much
		size = needed + needed/4
	}
	if err := f.allocate(size); err != nil {
		f.lacks(size, err)
		return
	}
	f.ballast, f.lack = size, nil
}

// allocate makes a ballast and lets it take the place of the one there is. What
// has the name was synced before, so its room is really taken.
func (f *File) allocate(size int64) error {
	temp := f.path(ballastName + disk.TempSuffix)
	err := disk.WriteTemp(f.fs, temp, func(w disk.File) error { return w.Allocate(size) })
	if err != nil {
		return err
	}
	if err = f.rename(ballastName); err != nil {
		f.fs.Remove(temp)
	}
	return err
}

// lacks says why there is no ballast of that size. Only a full disk ends a full
// disk's claim on what room is left, or begins it.
func (f *File) lacks(size int64, cause error) {
	f.looked = time.Now()
	switch {
	case disk.IsFull(cause):
		f.lack = fmt.Errorf("%w: no room to spare in %s, free up %d MiB: %w", ErrFull, f.dir, size>>20+1, cause)
	case f.low() == nil:
		f.lack = cause
	}
}

// release gives the room of the ballast to others, after the disk said that it
// is full, and reports whether that was any.
func (f *File) release(cause error) bool {
	if f.lack != nil && f.low() == nil {
		cause = fmt.Errorf("%w; a ballast could not be made: %w", cause, f.lack)
	}
	f.lacks(f.spare(), cause)
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
