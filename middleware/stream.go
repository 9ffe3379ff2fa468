package middleware

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tollbook/tollbook/middleware/meter"
)

// How far a stream is read on when its reader is gone: to its end, if every
// choice gave its finish reason and only the usage is still to come; and under
// DrainOnAbort.
const (
	tailBytes, tailTime   = 64 << 10, time.Second
	drainBytes, drainTime = 16 << 20, 2 * time.Minute
)

// lock is a mutex that is waited for on a channel, since it is held while a close
// is written: in a synctest bubble, only who waits so lets the others go on.
type lock chan struct{}

func (l lock) lock()   { l <- struct{}{} }
func (l lock) unlock() { <-l }

// stream is the body of a streamed answer. It hands the bytes on as the watch
// lets them go, and closes the reservation at the first of: the format's end
// marker, the end of the body, an error, Close, the end of the caller's
// context. Nothing of the piece that holds the end is handed on before that.
type stream struct {
	call    *call
	x       *exchange
	probe   bool        // of the circuit
	ref     string      // of the response's header, which is the caller's by now
	unwatch func() bool // of the caller's context; nil: none is watched

	mu      lock // not held while the base is read
	watch   meter.Watch
	shown   []byte // under StopOverrun
	pending []byte // of the watch's, or ours; to be handed on first
	err     error  // what a reader gets then, for ever
	reading bool
	closed  bool   // the reservation
	tell    func() // of the close, without the lock; nil: nothing is owed
}

// handOn returns the body for the caller.
func (s *stream) handOn() io.ReadCloser {
	caller := s.call.req.Context()
	// From here on the end of the caller's context is booked, and then ends
	// the attempt.
	s.x.unwatch()
	if s.call.guard.onAbort == DrainOnAbort {
		return s.drained(caller)
	}
	s.unwatch = context.AfterFunc(caller, func() { s.abort(context.Cause(caller)) })
	return s
}

// Read hands on the next bytes.
func (s *stream) Read(p []byte) (int, error) {
	for len(p) > 0 {
		s.mu.lock()
		if len(s.pending) > 0 || s.err != nil {
			n := copy(p, s.pending)
			s.pending = s.pending[n:]
			err := s.err
			s.mu.unlock()
			if n > 0 {
				err = nil
			}
			return n, err
		}
		s.reading = true
		s.mu.unlock()

		n, err := s.x.Read(p)
		if n = s.take(p, n, err); n > 0 {
			return n, nil
		}
	}
	return 0, nil
}

// take shows what was read into p to the watch, and returns how much of p is to
// be handed on at once.
func (s *stream) take(p []byte, n int, err error) (now int) {
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	s.locked(func() {
		s.reading = false
		if s.err != nil { // it was aborted meanwhile
			return
		}
		out, overrun := s.show(p[:n])
		if overrun != nil {
			s.err, err = overrun, overrun
		} else if err != nil {
			if err != io.EOF {
				s.cut()
			}
			s.pending = append([]byte(nil), out...) // End may take out back
			s.pending = append(s.pending, s.watch.End()...)
			s.err = err
			s.finish(false)
			return
		}
		if !s.closed && s.watch.Reading().Finished {
			s.finish(false)
		}
		now = copy(p, out)
		s.pending = out[now:]
	})
	return now
}

// cut tells a watch that wants to know that the body does not end by itself.
func (s *stream) cut() {
	if w, ok := s.watch.(interface{ Cut() }); ok {
		w.Cut()
	}
}

// finish closes the reservation, once, with what the watch has seen.
func (s *stream) finish(aborted bool) {
	if s.closed {
		return
	}
	r := s.watch.Reading()
	res := s.call.streamEnd(r, s.ref, aborted)
	s.settle(res)
	if r.Finished && !r.Final {
		s.call.warnUnknown(res.usage.Why)
	}
}

func (s *stream) settle(res result) {
	s.closed = true
	s.call.circuit.saw(res.health, s.probe)
	s.tell = s.call.close(res)
}

// locked runs f under the lock, and tells of a close without it. If a meter of
// the caller's panics in f, that ends the stream.
func (s *stream) locked(f func()) {
	over := false
	s.mu.lock()
	defer func() {
		if !over {
			s.pending, s.err = nil, errPanicked
			if !s.closed {
				s.closed = true
				s.tell = s.call.close(result{why: "broken off"})
			}
		}
		tell := s.tell
		s.tell = nil
		s.mu.unlock()
		if tell != nil {
			tell()
		}
	}()
	f()
	over = true
}

var errPanicked = errors.New("middleware: a panic broke the stream off")

// abort ends the stream for its reader, who gave it up.
func (s *stream) abort(cause error) {
	defer s.x.Close()
	s.locked(func() {
		if s.err == nil {
			s.cut()
			s.watch.End()
			s.finish(true)
			s.pending, s.err = nil, cause
		}
	})
}

// end lets go of what the stream held. Not every SDK closes a body that it has
// read to its end.
func (s *stream) end() {
	if s.unwatch != nil {
		s.unwatch()
	}
	s.x.Close()
}

// Close gives the rest of the stream up.
func (s *stream) Close() error {
	defer s.end()
	atEnd := false
	s.locked(func() { atEnd = !s.closed && !s.reading && s.err == nil && s.watch.Reading().Stopped })
	if atEnd {
		defer time.AfterFunc(tailTime, s.abandon).Stop()
		s.readOn(tailBytes)
	}
	s.abandon()
	return nil
}

func (s *stream) abandon() { s.abort(http.ErrBodyReadAfterClose) }

// readOn reads until the reservation is closed, up to limit bytes.
func (s *stream) readOn(limit int) {
	buf := make([]byte, 8<<10)
	for read := 0; read < limit && !s.isClosed(); {
		n, err := s.Read(buf)
		if err != nil {
			return
		}
		read += n
	}
}

func (s *stream) isClosed() bool {
	s.mu.lock()
	defer s.mu.unlock()
	return s.closed
}

// drained is the body under DrainOnAbort: a pipe, with a goroutine of the guard
// reading at its other end, so that the caller can go at once and the reading
// goes on.
func (s *stream) drained(caller context.Context) io.ReadCloser {
	r, w := io.Pipe()
	late := time.AfterFunc(drainTime, s.abandon)
	late.Stop() // it begins when the caller goes
	reader, leave := context.WithCancelCause(caller)
	unwatch := context.AfterFunc(reader, func() {
		late.Reset(drainTime)
		w.CloseWithError(context.Cause(reader))
	})
	s.call.guard.open.Go(func() {
		defer late.Stop()
		defer leave(nil)
		defer unwatch()
		defer s.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := s.Read(buf)
			if err != nil {
				w.CloseWithError(err)
				return
			}
			if _, gone := w.Write(buf[:n]); gone != nil {
				s.readOn(drainBytes)
				return
			}
		}
	})
	return piped{r, leave}
}

// piped is the caller's end of a drain.
type piped struct {
	*io.PipeReader
	leave context.CancelCauseFunc
}

func (p piped) Close() error {
	p.leave(http.ErrBodyReadAfterClose)
	return p.PipeReader.Close()
}
