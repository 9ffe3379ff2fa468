package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/retry"
)

// exchange is one attempt on the wire. It is also the body of the response, as
// the base gave it: reads are timed, and Close ends the attempt.
type exchange struct {
	to      *url.URL
	ctx     context.Context // of this attempt alone
	cancel  context.CancelCauseFunc
	unwatch func() bool // stops cancelling with the caller's context
	idle    time.Duration
	timer   *time.Timer // of one read

	sent                    outgoing
	asked, reused, answered atomic.Bool // for a connection; it was an old one; by a first byte
	connected               atomic.Bool

	resp *http.Response
	body io.ReadCloser
	err  error
}

// send makes one attempt at the caller's request and returns when its
// response's header is there. The caller's request is not changed.
func (g *Guard) send(req *http.Request, body []byte) *exchange {
	caller := req.Context()
	x := &exchange{to: req.URL, idle: g.idle}
	x.sent.rest.Reset(body)
	x.sent.size = len(body)
	// Not a child of the caller's context: that one's end is to be booked
	// first, then to end the attempt.
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(caller))
	x.unwatch = context.AfterFunc(caller, func() { x.cancel(context.Cause(caller)) })

	out := req.WithContext(httptrace.WithClientTrace(x.ctx, x.trace()))
	// net/http would replay the request unseen if it had a GetBody, or no body.
	out.Body, out.GetBody, out.ContentLength, out.TransferEncoding = &x.sent, nil, int64(len(body)), nil
	if len(req.Header["Accept-Encoding"]) > 0 {
		out.Header = req.Header.Clone()
		out.Header.Del("Accept-Encoding") // or net/http would leave the body compressed
	}
	defer func() {
		if x.body == nil { // it failed, or the base panicked
			x.unwatch()
			x.cancel(context.Canceled)
		}
	}()
	if g.headers > 0 {
		timer := time.AfterFunc(g.headers, func() { x.cancel(&TimeoutError{For: "the response's header", After: g.headers}) })
		defer timer.Stop()
	}
	x.resp, x.err = g.base.RoundTrip(out)
	switch {
	case x.err != nil:
		x.err = x.cause(x.err)
		return x
	case x.resp == nil:
		x.err = errors.New("middleware: the base transport returned neither response nor error")
		return x
	}
	// Not every base keeps to the contract that neither is nil.
	if x.body = x.resp.Body; x.body == nil {
		x.body = http.NoBody
	}
	if x.resp.Header == nil {
		x.resp.Header = http.Header{}
	}
	x.resp.Body, x.resp.Request = x, req
	return x
}

func (x *exchange) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { x.asked.Store(true) },
		GotConn: func(i httptrace.GotConnInfo) {
			x.connected.Store(true)
			x.reused.Store(i.Reused)
		},
		GotFirstResponseByte: func() { x.answered.Store(true) },
	}
}

// outcome is what became of an attempt that ended without a response. It
// settles the matter: what has not left by now never will.
func (x *exchange) outcome() budget.Outcome {
	left := x.sent.seal()
	switch {
	case x.sent.size == 0:
	case left == 0:
		return budget.NeverSent
	case left < x.sent.size:
		return budget.NotBilled // the provider cannot have the whole request
	}
	if x.asked.Load() && !x.connected.Load() {
		return budget.NeverSent // read by some base, which got no connection for it
	}
	return budget.MaybeBilled
}

// cause is what an error of the attempt comes from.
func (x *exchange) cause(err error) error {
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	err = worded(x.to, err)
	if x.reused.Load() && !x.answered.Load() && !retry.Classify(err).Again() {
		// The server gave up a connection that was kept alive, most likely
		// before it saw the request; net/http has no type for that.
		return staleError{err}
	}
	return err
}

// Read reads the response's body.
func (x *exchange) Read(p []byte) (int, error) {
	if x.idle > 0 {
		if x.timer == nil {
			x.timer = time.AfterFunc(x.idle, func() { x.cancel(&TimeoutError{For: "more of the body", After: x.idle}) })
		} else {
			x.timer.Reset(x.idle)
		}
		defer x.timer.Stop()
	}
	n, err := x.body.Read(p)
	if err != nil && err != io.EOF {
		err = x.cause(err)
	}
	return n, err
}

// Close ends the attempt. It may be called more than once, and beside a Read.
func (x *exchange) Close() error {
	x.unwatch()
	err := x.body.Close()
	x.cancel(context.Canceled)
	return err
}

// What is read of an answer to know what it says, and of one that nobody wants
// to have its connection back.
const (
	maxAnswer     = 64 << 20
	maxLeftover   = 64 << 10
	leftoverTime  = time.Second
	maxAllocAhead = 1 << 20
)

// errMore says that a body is longer than what was read of it.
var errMore = errors.New("middleware: body goes on")

// keep reads the body up to limit bytes, and restores it: the response reads
// as before. The error is nil for the whole body, errMore for its beginning,
// or what ended it.
func (x *exchange) keep(limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if n := x.resp.ContentLength; n > 0 {
		buf.Grow(int(min(n, limit, maxAllocAhead)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(x, limit+1))
	data := buf.Bytes()
	if err == nil && n > limit {
		x.resp.Body = restored{io.MultiReader(bytes.NewReader(data), x), x}
		return data[:limit], errMore
	}
	x.Close()
	var rest io.Reader = bytes.NewReader(data)
	if err != nil {
		rest = io.MultiReader(rest, failing{err})
	}
	x.resp.Body = restored{rest, io.NopCloser(nil)}
	return data, err
}

// discard ends an attempt whose answer nobody wants. A short rest is read, so
// that the connection can serve again.
func (x *exchange) discard() {
	timer := time.AfterFunc(leftoverTime, func() { x.Close() })
	_, _ = io.CopyN(io.Discard, x, maxLeftover)
	timer.Stop()
	x.Close()
}

type restored struct {
	io.Reader
	io.Closer
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// outgoing is the body of one attempt. The base cannot send what it did not
// read, and a sealed body gives nothing more: so the amount read proves what an
// attempt without an answer cannot have cost. Hooks of httptrace would leave a
// race with the writer that net/http leaves running behind a cancelled attempt.
type outgoing struct {
	mu     sync.Mutex
	rest   bytes.Reader
	size   int
	sealed bool
}

var errSealed = errors.New("middleware: the attempt is over")

func (o *outgoing) Read(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sealed {
		return 0, errSealed
	}
	return o.rest.Read(p)
}

func (o *outgoing) Close() error { return nil }

// seal ends the body and returns how many bytes left.
func (o *outgoing) seal() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealed = true
	return o.size - o.rest.Len()
}

// TimeoutError ends an attempt that kept us waiting, see [Timeouts].
type TimeoutError struct {
	For   string
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("middleware: waited %v for %s", e.After, e.For)
}

// Timeout is true.
func (e *TimeoutError) Timeout() bool { return true }

// staleError is a failure on a connection that was used before.
type staleError struct{ error }

func (e staleError) Unwrap() error   { return e.error }
func (e staleError) Retryable() bool { return true }
