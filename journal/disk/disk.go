// Package disk is the dozen file operations that a durable file needs, as
// interfaces, so that the same code runs over the real disk and over one that
// crashes, lies or fills up. [OS] is the real one. [Mem] is one in memory that
// loses, at a power cut, whatever nobody made durable, and [Failing] makes any of
// them fail at an operation of your choice: with these two, code that claims to
// survive crashes can be put to the test at each of its operations (see the
// example).
//
// Three facts are behind most of what is said here. A written byte survives a
// power cut only after [File.Sync] returned nil. A file's name survives only
// after [FS.SyncDir] of its directory returned nil, however often the file
// itself was synced. And a failed Sync is final: what the file holds is not
// known afterwards, even if a second Sync, or one by another process, succeeds.
//
// Network file systems are not supported: their locks and syncs promise less.
package disk

import (
	"fmt"
	"io"
)

// FS is a file system. Names are ordinary paths, relative ones included.
// Errors answer errors.Is with fs.ErrNotExist, fs.ErrExist and
// fs.ErrPermission where that is what happened, and [IsFull] for a full disk.
//
// All methods may be called concurrently. None but SyncDir makes anything
// durable: after a power cut each of the others may have happened or not, in
// any order, until its directory is synced.
type FS interface {
	// Mkdir makes one directory, for its owner only (0700). It fails with
	// fs.ErrExist if the name is taken and with fs.ErrNotExist if the parent
	// is missing. Durable after SyncDir of the parent.
	Mkdir(dir string) error

	// List returns the names of what is in the directory, without their path,
	// sorted.
	List(dir string) ([]string, error)

	// Create makes a new file for appending, readable by its owner only
	// (0600). It fails with fs.ErrExist if the name is taken, and never
	// truncates. Durable after SyncDir; the content after Sync of the file.
	Create(name string) (File, error)

	// Append opens an existing file so that every write goes to its end.
	Append(name string) (File, error)

	// Open opens an existing file for reading, also while another handle or
	// process appends to it. Write, Truncate and Allocate on it fail, and Sync may.
	Open(name string) (File, error)

	// Rename moves a file over what may stand under the new name, atomically:
	// at every moment, also after a power cut, the new name is the old file or
	// the whole new one. Which of them is settled by SyncDir. The file must
	// have been synced before, and must be closed (Windows refuses otherwise).
	Rename(from, to string) error

	// Remove deletes a file. Until SyncDir it may come back.
	Remove(name string) error

	// SyncDir makes durable which names the directory holds and which files
	// they stand for. On Windows it does nothing, since directories cannot be
	// synced there: no promise about power cuts is made on that system.
	SyncDir(dir string) error

	// Lock takes the exclusive lock that goes with a file, which is made if
	// missing and never deleted, and writes the holder into it, for people to
	// read and so only where there is room; without a holder what is in the file
	// stays. It never waits: if anybody holds the lock, in this process or
	// another, it fails with a [*HeldError]. Closing the result releases the
	// lock; so does the end of the process, however it ends.
	Lock(name, holder string) (io.Closer, error)
}

// File is an open file. One goroutine at a time may use it for writing;
// ReadAt may be called concurrently with anything but Close.
type File interface {
	// ReadAt reads what was written last, durable or not. Handles of Create
	// and Append refuse it.
	io.ReaderAt

	// Write appends p in one operation of the system. Bytes that were written
	// before an error stay in the file. Durable only after Sync.
	io.Writer

	// Truncate cuts the file to size bytes; the next Write goes there.
	// Durable only after Sync.
	Truncate(size int64) error

	// Allocate makes the file, which must not be longer, size bytes long by
	// bytes of any value whose room on the disk is really taken, so that
	// removing the file sets that much free. A full disk answers here. After an
	// error the file may have any length in between. Durable only after Sync.
	// ZFS says it did so and keeps no room (zpl_fallocate_common in OpenZFS).
	Allocate(size int64) error

	// Size returns the file's length in bytes as of now.
	Size() (int64, error)

	// Sync returns nil once everything written and truncated so far, and the
	// file's length, will survive a power cut. After an error nothing written
	// since the last successful Sync may be relied upon, and Sync must not be
	// called again: it could return nil without having written anything.
	Sync() error

	// Linked reports whether the file still stands under the name it was
	// opened by. If it was removed or replaced meanwhile, what is written to
	// it is lost when it is closed, however often it is synced.
	Linked() (bool, error)

	// Close releases the handle. It makes nothing durable.
	io.Closer
}

// HeldError is returned by [FS.Lock] when the lock is taken.
type HeldError struct {
	Name   string // of the lock file
	Holder string // what the holder wrote into it; may be empty
}

func (e *HeldError) Error() string {
	holder := e.Holder
	if holder == "" {
		holder = "an unnamed process"
	}
	return fmt.Sprintf("disk: lock %s is held by %s", e.Name, holder)
}
