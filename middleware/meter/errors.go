package meter

import (
	"errors"
	"fmt"
)

// ErrRefused is every error of this package: the request cannot be bounded, so
// it must not leave. The typed errors below say why.
var ErrRefused = errors.New("meter: request refused")

// PathError refuses a request that may spend and has no meter.
type PathError struct{ Method, Path string }

func (e *PathError) Error() string {
	return fmt.Sprintf("meter: %s %.200q may spend and has no meter; allow it with a meter.Route for this path: with a Meter, or with none if it is free", e.Method, e.Path)
}

// Is makes the error [ErrRefused].
func (e *PathError) Is(target error) bool { return target == ErrRefused }

// BodyError refuses a request body that is not understood or names a figure
// that is never right. Reason never quotes the body's text.
type BodyError struct{ Reason string }

func (e *BodyError) Error() string { return "meter: request body refused: " + e.Reason }

// Is makes the error [ErrRefused].
func (e *BodyError) Is(target error) bool { return target == ErrRefused }

// UncappedError refuses a request that names no output cap, for a model whose
// maximum is not known.
type UncappedError struct{ Model string }

func (e *UncappedError) Error() string {
	return fmt.Sprintf("meter: the request names no output cap and the maximum of model %.100q is not known; set max_completion_tokens (or max_tokens) in the request, or Options.DefaultOutput", e.Model)
}

// Is makes the error [ErrRefused].
func (e *UncappedError) Is(target error) bool { return target == ErrRefused }

// UnboundedError refuses a request that draws in what its own bytes do not
// bound: a stored file, a web search, a conversation kept by the provider.
type UnboundedError struct {
	What  string // the member or kind in the request, such as "tool web_search"
	Steps bool   // the model may take several steps over it
}

func (e *UnboundedError) Error() string {
	options := "Options.ContextWindow"
	if e.Steps {
		options += " and Options.Steps"
	}
	return fmt.Sprintf("meter: %.100s draws in input that the request's bytes do not bound; leave it out, send the content itself as text, or bound it by %s", e.What, options)
}

// Is makes the error [ErrRefused].
func (e *UnboundedError) Is(target error) bool { return target == ErrRefused }
