package budget

import (
	"errors"
	"fmt"
)

// Sentinels, for errors.Is. The typed errors below say how much.
var (
	// ErrExhausted: the amount would not fit even if every open hold were
	// refunded. Raise the limit or stop.
	ErrExhausted = errors.New("budget: exhausted")
	// ErrBusy: the amount fits the limit, but open holds are in the way (for
	// as long as the request was willing to wait). Try again later.
	ErrBusy = errors.New("budget: busy")
	// ErrInvalid: a figure, a name or a combination that is never right.
	ErrInvalid = errors.New("budget: invalid")
	// ErrInFlight: the rid or key is open. It is never sent twice on one hold.
	ErrInFlight = errors.New("budget: already in flight")
	// ErrConflict: the same rid or evidence, with another figure.
	ErrConflict = errors.New("budget: conflicts with what is booked")
	// ErrClosed: the reservation is closed and the call does not fit its state.
	ErrClosed = errors.New("budget: reservation is closed")
	// ErrUnknown: the book knows no such rid, or it is past the horizon. A
	// reservation whose rid the book made, settled as reported, is known until
	// the book is closed or some 16,000 more are closed (a mebibyte of memory).
	ErrUnknown = errors.New("budget: unknown reservation")
	// ErrNoPrice: a money limit is set and the model's price is not known.
	ErrNoPrice = errors.New("budget: no price")
	// ErrBookClosed: the book was closed.
	ErrBookClosed = errors.New("budget: book is closed")
	// ErrBroken: an earlier entry could not be written. The book admits
	// nothing more until it is opened anew.
	ErrBroken = errors.New("budget: book is broken")
	// ErrDamaged: the book's entries contradict each other.
	ErrDamaged = errors.New("budget: book is damaged")
)

// ExhaustedError is a refused reserve or extend. It is [ErrBusy] if Busy is
// set, else [ErrExhausted].
type ExhaustedError struct {
	Scope string // the scope whose limit refused; empty is the root
	Kind  Unit
	Asked int64 // tokens, picodollars or requests, by Kind
	Limit int64
	Net   int64 // in use: confirmed, assumed and held
	Held  int64 // the part of Net that open reservations hold
	Busy  bool  // only open holds are in the way
}

// Free is what the limit has left; negative after an overrun.
func (e *ExhaustedError) Free() int64 { return e.Limit - e.Net }

func (e *ExhaustedError) Error() string {
	scope := "the whole book"
	if e.Scope != "" {
		scope = fmt.Sprintf("scope %q", e.Scope)
	}
	what, hint := "exhausted", "raise the limit to go on"
	switch {
	case e.Busy:
		what, hint = "busy", "try again when open calls have ended, or wait with MaxWait"
	case e.Asked > e.Limit:
		hint = "one call alone is larger than the limit: lower its output cap or raise the limit"
	}
	return fmt.Sprintf("budget: %s: %s asked, %s free of %s for %s (%s held by open calls); %s",
		what, e.Kind.Format(e.Asked), e.Kind.Format(e.Free()), e.Kind.Format(e.Limit), scope, e.Kind.Format(e.Held), hint)
}

// Is makes the error [ErrBusy] or [ErrExhausted].
func (e *ExhaustedError) Is(target error) bool {
	if e.Busy {
		return target == ErrBusy
	}
	return target == ErrExhausted
}

// Denied says that this is the budget's own refusal, which no retry loop is to
// try again.
func (e *ExhaustedError) Denied() bool { return true }

// ClosedError refuses a call that does not fit the state of the reservation.
type ClosedError struct {
	RID   string
	State State
	Call  string // what was asked: "settle", "refund", …
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("budget: %s of reservation %q refused: it is %s already; nothing was written", e.Call, e.RID, e.State)
}

// Is makes the error [ErrClosed].
func (e *ClosedError) Is(target error) bool { return target == ErrClosed }

// InvalidError is a figure or name that is never right.
type InvalidError struct{ What, Reason string }

func (e *InvalidError) Error() string { return fmt.Sprintf("budget: invalid %s: %s", e.What, e.Reason) }

// Is makes the error [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }
