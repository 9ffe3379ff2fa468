package middleware

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

// ErrOverrun is found in the error of a stream that [StopOverrun] ended.
var ErrOverrun = errors.New("middleware: more output than was reserved")

// OverrunError ends a stream whose output passed what was reserved for it.
type OverrunError struct {
	Output   int64 // tokens that came, at least
	Reserved int64 // for the output, all choices together
}

func (e *OverrunError) Error() string {
	return fmt.Sprintf("middleware: stream stopped: at least %d tokens of output came, %d were reserved; cap the output in the request, raise what middleware.Bounds reserves, or leave middleware.StopOverrun out", e.Output, e.Reserved)
}

// Is makes the error [ErrOverrun].
func (e *OverrunError) Is(target error) bool { return target == ErrOverrun }

// show shows bytes to the watch and returns those to hand on. Under StopOverrun
// the lines behind the one that passes the bound are not, and the reservation is
// closed with what came by then.
func (s *stream) show(p []byte) ([]byte, error) {
	if !s.call.guard.stopOverrun || s.closed {
		return s.watch.Write(p), nil
	}
	s.shown = s.shown[:0]
	for len(p) > 0 {
		n := bytes.IndexByte(p, '\n') + 1
		if n == 0 {
			n = len(p)
		}
		s.shown = append(s.shown, s.watch.Write(p[:n])...)
		p = p[n:]
		if u, over := overrun(s.watch.Reading(), s.call.bound); over {
			u.Ref = cmp.Or(s.ref, u.Ref)
			s.settle(result{usage: u})
			return s.shown, &OverrunError{Output: u.Output, Reserved: s.call.bound.Output}
		}
	}
	return s.shown, nil
}

// overrun is what a stream used at least whose output passed its bound while
// there is more to come. What it tells at its end is the bill, and too late to
// stop anything.
func overrun(r meter.Reading, b meter.Bound) (u budget.Usage, over bool) {
	output := max(r.Pieces, r.Usage.Output)
	if output <= b.Output || r.Stopped || r.Finished {
		return u, false
	}
	u = budget.Usage{Input: b.Input, Output: output, Ref: r.Usage.Ref}
	if r.Usage.Total() > u.Total() {
		u = r.Usage
	}
	u.Estimated, u.Why = true, "stopped overrun"
	return u, true
}
