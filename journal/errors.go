package journal

import (
	"fmt"
	"path/filepath"
)

// CorruptError is damage to bytes that were durable, or that never were a line
// of a ledger. It is [ErrCorrupt]. The journal refuses to be written; what is
// before the damage can still be read.
type CorruptError struct {
	Dir     string // directory of the journal; empty for a ledger
	Segment string // name of the file
	Offset  int64  // of the damaged line in it
	Line    int64  // its number, from 1
	Reason  string // in words; never repeats what the line holds
	// Unfinished: by [ReadLedger] only, a last line without its newline. Its
	// writer may be at work, or was killed.
	Unfinished bool
}

func (e *CorruptError) Error() string {
	text := fmt.Sprintf("journal: %s is damaged in %s", filepath.Join(e.Dir, e.Segment), e.where())
	if e.Dir == "" {
		return text
	}
	return text + "; restore it, or let Repair keep what is good"
}

func (e *CorruptError) where() string {
	return fmt.Sprintf("line %d (byte %d): %s", e.Line, e.Offset, e.Reason)
}

// Is makes the error [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// LockedError is returned by [OpenFile] while somebody else has the journal
// open. It is [ErrLocked].
type LockedError struct {
	Dir    string
	Holder string // process, host, start and program of the holder, for people
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("journal: %s is in use by %s; a file journal has one writer at a time: wait until it ends, or stop it", e.Dir, e.Holder)
}

// Is makes the error [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }
