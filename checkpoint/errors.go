package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tollbook/tollbook/journal/disk"
)

// Sentinels, for errors.Is. The typed errors below say how much.
var (
	// ErrPaused: an item's error asked to stop. Run again later; finished
	// items are skipped.
	ErrPaused = errors.New("checkpoint: paused")
	// ErrInterrupted: the context ended or Abort was closed before all items
	// were finished. It wraps the context's cause. Run again to go on.
	ErrInterrupted = errors.New("checkpoint: interrupted")
	// ErrFailed: nothing is left to do now, but some items failed or are dead.
	ErrFailed = errors.New("checkpoint: items failed")
	// ErrInput: the state directory belongs to another input. It was not
	// touched.
	ErrInput = errors.New("checkpoint: state of another input")
	// ErrLocked: another run works on this state directory.
	ErrLocked = errors.New("checkpoint: state directory is in use")
	// ErrDamaged: a file of the state, or an output, is not as the last run
	// left it, and what is missing cannot be had from elsewhere.
	ErrDamaged = errors.New("checkpoint: damaged")
)

// Failed marks err as final: the item has failed for good and is never sent
// again. Failed(nil) is nil.
func Failed(err error) error { return final(failed, 0, err) }

// Dead puts the item on the dead-letter list, with the number of attempts made
// and why, in the words of [Options.Why]: it is not sent again unless
// [Options.RetryDead] says so. Dead(n, nil) is nil.
func Dead(attempts int, err error) error { return final(dead, attempts, err) }

// Later tells that the item must not be started again before at. It frees its
// worker and comes back in the same run. Any error that answers
// RetryAt() time.Time with a time, and is not a pause, does the same. An item
// put off more than 100 times in one run counts as failed in this run.
func Later(at time.Time, err error) error { return &laterError{at, err} }

type finalError struct {
	end      end
	attempts int
	err      error
}

func final(e end, attempts int, err error) error {
	if err == nil {
		return nil
	}
	return &finalError{e, attempts, err}
}

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

type laterError struct {
	at  time.Time
	err error
}

func (e *laterError) Error() string {
	if e.err == nil {
		return "checkpoint: not before " + e.at.Format(time.RFC3339)
	}
	return e.err.Error()
}
func (e *laterError) Unwrap() error      { return e.err }
func (e *laterError) RetryAt() time.Time { return e.at }

// asksPause is the default of Options.IsPause.
func asksPause(err error) bool {
	return says(err, func(p interface{ Pause() bool }) bool { return p.Pause() })
}

// retryAt returns when err says it makes sense to come back, or the zero time.
func retryAt(err error) (at time.Time) {
	says(err, func(r interface{ RetryAt() time.Time }) bool {
		at = r.RetryAt()
		return !at.IsZero()
	})
	return at
}

// says reports whether any error in the tree of err answers yes. errors.As
// would stop at the first that can be asked, whatever it answers.
func says[Q any](err error, yes func(Q) bool) bool {
	if q, ok := err.(Q); ok && yes(q) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return says(e.Unwrap(), yes)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return says(err, yes) })
	}
	return false
}

func interrupted(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", ErrInterrupted, cause)
	}
	return ErrInterrupted
}

// PausedError is [ErrPaused]. It wraps the first cause.
type PausedError struct {
	Cause   error
	Why     string    // of Cause, by [Options.Why]
	RetryAt time.Time // the latest that any cause named; zero if none did
	Items   int
	Pending int
}

func (e *PausedError) Error() string {
	when := "run again to go on"
	if !e.RetryAt.IsZero() {
		when = "run again after " + e.RetryAt.Format(time.RFC3339)
	}
	return fmt.Sprintf("checkpoint: paused with %d of %d items pending%s; %s", e.Pending, e.Items, after(": ", e.Why), when)
}

// Is makes the error [ErrPaused].
func (e *PausedError) Is(target error) bool { return target == ErrPaused }
func (e *PausedError) Unwrap() error        { return e.Cause }

// FailedError is [ErrFailed]. It wraps the first error of this run, if there
// was one.
type FailedError struct {
	Items  int
	Failed int // including Retry
	Retry  int // failed in this run, but not for good: the next run sends them again
	Dead   int
	First  error  // nil if all failed in earlier runs
	Why    string // of First, by [Options.Why]
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("checkpoint: %d of %d items failed and %d are dead letters; the next run sends %d of them again%s",
		e.Failed, e.Items, e.Dead, e.Retry, after("; the first error: ", e.Why))
}

// after puts lead before text, if there is any.
func after(lead, text string) string {
	if text == "" {
		return ""
	}
	return lead + text
}

// Is makes the error [ErrFailed].
func (e *FailedError) Is(target error) bool { return target == ErrFailed }
func (e *FailedError) Unwrap() error        { return e.First }

// InputError is [ErrInput].
type InputError struct {
	Dir    string
	Items  int    // of the input given
	Pinned int    // of the input the state was made for
	Reason string // what differs
}

func (e *InputError) Error() string {
	return fmt.Sprintf("checkpoint: %s was made for another input: %s (it pins %d items, %d were given); "+
		"give it its own input, or take another state directory", e.Dir, e.Reason, e.Pinned, e.Items)
}

// Is makes the error [ErrInput].
func (e *InputError) Is(target error) bool { return target == ErrInput }

// DuplicateError: two items have one key, so that a finished one could not be
// told from the other. Nothing was sent.
type DuplicateError struct {
	Key           string
	First, Second int // indexes, from 0
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("checkpoint: items %d and %d (counted from 0) have the same key %q; keys must be unique", e.First, e.Second, e.Key)
}

// DamagedError is [ErrDamaged].
type DamagedError struct {
	Path   string
	Reason string // what is wrong, where, and what to try
}

func (e *DamagedError) Error() string { return "checkpoint: " + e.Path + " is damaged: " + e.Reason }

// Is makes the error [ErrDamaged].
func (e *DamagedError) Is(target error) bool { return target == ErrDamaged }

// WriteError: a file could not be written. The run stops admitting items; what
// was in flight and could not be recorded stays pending and is sent again.
// disk.IsFull tells whether the disk is full.
type WriteError struct {
	Path string
	Err  error
}

func (e *WriteError) Error() string {
	try := "see to it and run again"
	if disk.IsFull(e.Err) {
		try = "the disk is full: free space and run again"
	}
	return fmt.Sprintf("checkpoint: write %s: %v; %s, items whose end is not recorded will be sent again", e.Path, e.Err, try)
}
func (e *WriteError) Unwrap() error { return e.Err }
