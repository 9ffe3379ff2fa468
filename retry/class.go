package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// Class is what a failure means for the loop.
type Class int

const (
	None        Class = iota // no failure
	Permanent                // the same again would fail again, or nobody knows
	Transient                // may go away by itself
	RateLimited              // too fast; the request itself is fine
	Stop                     // quota or spend limit: nothing failed, go on later
	Denied                   // refused by ourselves, before anything was sent
)

// Again reports whether the class allows a further attempt.
func (c Class) Again() bool { return c == Transient || c == RateLimited }

func (c Class) String() string {
	switch c {
	case None:
		return "no failure"
	case Permanent:
		return "permanent"
	case Transient:
		return "transient"
	case RateLimited:
		return "rate limited"
	case Stop:
		return "stop"
	case Denied:
		return "denied"
	}
	return fmt.Sprintf("Class(%d)", int(c))
}

// Classify asks err the questions of the package comment, in that order.
// Nil is [None].
func Classify(err error) Class {
	if err == nil {
		return None
	}
	// Denied and Pause win wherever they stand in the tree: an error joined
	// with our refusal must not be tried again, whatever else it says.
	if says(err, func(q interface{ Denied() bool }) bool { return q.Denied() }) {
		return Denied
	}
	if says(err, func(q interface{ Pause() bool }) bool { return q.Pause() }) {
		return Stop
	}
	retryable, answered := errors.AsType[interface {
		error
		Retryable() bool
	}](err)
	switch {
	case answered && !retryable.Retryable():
		return Permanent
	case says(err, func(q interface{ RateLimited() bool }) bool { return q.RateLimited() }):
		return RateLimited
	case answered:
		return Transient
	case errors.Is(err, context.Canceled):
		return Permanent
	case says(err, func(q interface{ Timeout() bool }) bool { return q.Timeout() }):
		// Also context.DeadlineExceeded: the end of the caller's own context
		// is seen by the loop, so this one was the attempt's.
		return Transient
	case brokenConnection(err):
		return Transient
	}
	return Permanent
}

// brokenConnection reports failures of the network below the attempt. Whether
// the request had left, and may be billed, is for the caller to tell apart.
func brokenConnection(err error) bool {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.IsTemporary // a name that does not exist stays so
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		// The errno proves that the system was asked: an address that does
		// not parse has none. Only inside an OpError: a full disk has one too.
		if _, ok := errors.AsType[syscall.Errno](err); ok {
			return true
		}
	}
	var reset streamReset
	return errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF) || // closed before the answer's first byte
		errors.Is(err, net.ErrClosed) || // net/http gave the connection up under its own writer
		errors.As(err, &reset)
}

// streamReset is filled by net/http from its own unexported HTTP/2 stream
// error, whose As method takes any struct with these very fields.
type streamReset struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (streamReset) Error() string { return "HTTP/2 stream reset" }

// retryAfter is the least wait that err asks for; zero if none.
func retryAfter(err error) (wait time.Duration) {
	says(err, func(q interface{ RetryAfter() (time.Duration, bool) }) (ok bool) {
		wait, ok = q.RetryAfter()
		return ok
	})
	return max(0, wait)
}

// says reports whether any error in the tree of err answers yes. errors.As
// would stop at the first that can be asked, and *url.Error answers Timeout
// for the error directly below it only.
func says[Q any](err error, yes func(Q) bool) bool {
	if q, ok := err.(Q); ok && yes(q) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return says(e.Unwrap(), yes)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if says(err, yes) {
				return true
			}
		}
	}
	return false
}
