package retry

import (
	"fmt"
	"time"
)

// StopError is a pause, not a failure: nothing is gained by trying now, and the
// same call may go on later. [Do] returns it where a wait would be too long; an
// attempt returns it for an exhausted quota or a spend limit.
type StopError struct {
	Reason string    // for people, or the provider's code
	At     time.Time // when to come back; zero: not known
	Err    error     // the failure behind it; may be nil
}

func (e *StopError) Error() string {
	text := "retry: stopped: " + e.Reason
	if !e.At.IsZero() {
		text += "; come back at " + e.At.Format(time.RFC3339)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *StopError) Unwrap() error { return e.Err }

// Pause is true: finished work is kept, the rest goes on later.
func (e *StopError) Pause() bool { return true }

// RetryAt is when to come back; zero if that is not known.
func (e *StopError) RetryAt() time.Time { return e.At }

// AbandonedError: another attempt was due and did not start, because
// [Policy.Before] refused it or the context ended. Both errors can be found with
// errors.Is and errors.As, the reason first.
type AbandonedError struct {
	N      int   // the number of the attempt that did not start
	Reason error // the refusal, or the context's cause
	Last   error // why another attempt was due
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("retry: attempt %d not made: %v; the last one failed: %v", e.N, e.Reason, e.Last)
}

func (e *AbandonedError) Unwrap() []error { return []error{e.Reason, e.Last} }

// Retryable is false: a loop around this one must not take up what Last says.
func (e *AbandonedError) Retryable() bool { return false }
