package main

import (
	"errors"
	"fmt"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// Exit codes: the outside contract, DESIGN section 6.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2 // refused before anything happened: a flag, the input, a state that does not fit
	exitPaused      = 3
	exitPartly      = 4
	exitBroken      = 5
	exitInterrupted = 130
)

// worst picks the code to exit with when several apply. A usage error happens
// before anything else can, so it has no place in the order.
func worst(codes ...int) int {
	for _, code := range []int{exitBroken, exitFailed, exitInterrupted, exitPaused, exitPartly} {
		for _, c := range codes {
			if c == code {
				return code
			}
		}
	}
	return exitDone
}

// exitError ends the program with a code. Err may be nil where everything has
// been said already; Hint says what to try.
type exitError struct {
	Code int
	Err  error
	Hint string
}

func (e *exitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *exitError) Unwrap() error { return e.Err }

// usageError is a refusal before anything happened: exit 2.
func usageError(hint, format string, args ...any) error {
	return &exitError{Code: exitUsage, Err: fmt.Errorf(format, args...), Hint: hint}
}

// exitCode is what an error from a command exits with.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, journal.ErrCorrupt), errors.Is(err, budget.ErrDamaged):
		return exitBroken
	default:
		return exitFailed
	}
}

// mendHint is what to try where a book is damaged.
func mendHint(state string) string {
	return fmt.Sprintf("tollbook repair %s mends it and says what is lost", state)
}

// hintOf is what an error says to try.
func hintOf(err error) string {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.Hint
	}
	return ""
}
