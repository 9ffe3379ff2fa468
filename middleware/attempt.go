package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/retry"
)

// attempt makes one attempt and judges it. The error says whether to go on;
// beside it stands the response, where there is one, to be handed on.
func (c *call) attempt(ctx context.Context, _ int) (*http.Response, error) {
	host := c.req.URL.Host
	if _, usageless := c.guard.usageless.Load(host); c.bound.WithUsage == nil || usageless {
		return c.exchange(c.body, false)
	}
	resp, err := c.exchange(c.bound.WithUsage, true)
	if !errors.Is(err, errNoUsageOption) {
		return resp, err
	}
	if err := c.extend(ctx); err != nil {
		return nil, err
	}
	if resp, err = c.exchange(c.body, false); err == nil { // else the request itself may be at fault
		c.guard.usageless.Store(host, true)
		c.guard.logger.LogAttrs(ctx, slog.LevelInfo, "host does not know stream_options.include_usage; streams from it are charged at their hold", slog.String("host", host))
	}
	return resp, err
}

// errNoUsageOption is a refusal that only our own addition brought about.
var errNoUsageOption = errors.New("middleware: the provider does not know include_usage")

// exchange sends body, unless the host is in trouble by now, and finds out what
// became of it; withUsage tells that it asks for usage on our own account.
func (c *call) exchange(body []byte, withUsage bool) (*http.Response, error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	resp, err := c.judged(c.guard.send(c.req, body), withUsage)
	if c.streamed {
		return resp, err // its end will tell
	}
	c.circuit.saw(c.last.health, c.probe)
	c.probe = false
	return resp, err
}

// judged finds out what became of an attempt.
func (c *call) judged(x *exchange, withUsage bool) (*http.Response, error) {
	if x.err != nil {
		c.last = result{outcome: x.outcome(), why: c.reason(x.err, "no answer")}
		if c.last.outcome == budget.MaybeBilled {
			c.last.health = c.blame()
		}
		return nil, x.err
	}
	c.x = x
	switch status := x.resp.StatusCode; {
	case status >= 400:
		return x.resp, c.refused(x, withUsage)
	case status >= 300:
		// Whoever follows the redirect makes a call of its own.
		c.last = result{outcome: budget.NotBilled, why: statusWord(status, ""), health: healthy}
	case status < 200:
		c.last = result{why: statusWord(status, "")}
	case c.meter.Streams(c.bound, x.resp.Header):
		c.stream(x, withUsage)
	default:
		return x.resp, c.whole(x, withUsage)
	}
	return x.resp, nil
}

// refused judges an answer with a status of 400 and above.
func (c *call) refused(x *exchange, withUsage bool) error {
	resp := x.resp
	// The error of the read does not matter: the status says that it failed,
	// and a meter takes a cut body for one it does not understand.
	body, _ := x.keep(meter.MaxRefusalBytes)
	f := c.meter.Refused(resp.StatusCode, resp.Header, body)
	c.last = result{why: statusWord(resp.StatusCode, f.Code), usage: budget.Usage{Ref: meter.Ref(resp.Header)}, health: healthy}
	switch {
	case f.Unbilled:
		c.last.outcome = budget.NotBilled
	case resp.StatusCode >= 500, resp.StatusCode == http.StatusRequestTimeout:
		c.last.health = ailing
	}
	failure, _ := retry.CheckStatus(resp.StatusCode, resp.Header).(*retry.StatusError)
	if at := time.Now().Add(f.RetryAfter); f.RetryAfter > 0 && at.After(failure.At) {
		failure.At = at
	}
	switch {
	case f.NoUsageOption && withUsage:
		return errNoUsageOption
	case f.Stop:
		return &retry.StopError{Reason: c.last.why, At: failure.At, Err: failure}
	}
	return failure
}

// whole reads an answer that is not a stream to its end. One that breaks off
// is a failed attempt.
func (c *call) whole(x *exchange, withUsage bool) error {
	ref := meter.Ref(x.resp.Header)
	body, err := x.keep(maxAnswer)
	if errors.Is(err, errMore) {
		c.last = result{usage: budget.Usage{Ref: ref, Why: meter.Unreadable}, health: healthy}
		c.warnUnknown(meter.Unreadable)
		return nil
	}
	watch := c.meter.Watch(c.bound, x.resp.Header, withUsage)
	watch.Write(body)
	watch.End()
	r := watch.Reading()
	c.last = finished(r, ref)
	switch {
	case err != nil:
		c.last.why = c.reason(err, "cut answer")
		if c.last.health == ailing {
			c.last.health = c.blame()
		}
		if !c.last.usage.Known() {
			c.last.usage.Why = c.last.why
		}
		return err
	case r.Failure != nil && r.Failure.Stop:
		return &retry.StopError{Reason: statusWord(x.resp.StatusCode, r.Failure.Code)}
	case !r.Usage.Known():
		c.warnUnknown(r.Usage.Why)
	}
	return nil
}

// stream puts a body that follows the stream, and closes the reservation at
// its end, in place of the response's.
func (c *call) stream(x *exchange, withUsage bool) {
	c.streamed = true
	h := x.resp.Header
	s := &stream{call: c, x: x, mu: make(lock, 1), probe: c.probe, ref: meter.Ref(h), watch: c.meter.Watch(c.bound, h, withUsage)}
	if withUsage { // and so some bytes may be taken out
		x.resp.ContentLength = -1
		h.Del("Content-Length")
	}
	x.resp.Body = s.handOn()
}

// statusWord is what the book says of an answer: "HTTP 429 slow_down". Meters
// are asked, not trusted, to give no text for a code.
func statusWord(status int, code string) string {
	if code = meter.Code(code); code == "" {
		return fmt.Sprintf("HTTP %d", status)
	}
	return fmt.Sprintf("HTTP %d %s", status, code)
}

// reason is what the book says of an attempt that failed on the way: word, or
// more where more is known. It never quotes the error.
func (c *call) reason(err error, word string) string {
	switch c.req.Context().Err() {
	case context.Canceled:
		return "cancelled"
	case context.DeadlineExceeded:
		return "timeout" // whatever cause the caller gave
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "timeout"
	}
	return word
}

// blame is ailing, unless the caller broke the attempt off. Its deadline is a
// time-out like any other.
func (c *call) blame() health {
	if errors.Is(c.req.Context().Err(), context.Canceled) {
		return unclear
	}
	return ailing
}
