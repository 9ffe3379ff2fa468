package middleware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

// Why a call was denied, as [DeniedError] and the header X-Tollbook-Denied say.
const (
	DeniedBudget  = "budget"  // a limit has no room for it
	DeniedBusy    = "busy"    // there would be room but for calls that are open
	DeniedBook    = "book"    // the book cannot write, or is closed
	DeniedOutage  = "outage"  // the host fails again and again
	DeniedRequest = "request" // it is at fault itself: no meter, no bound, no price, a key in flight
)

// DeniedError is a call, or a further attempt at one, that was not sent by our
// own refusal. Err says why, and is found by errors.Is and errors.As:
// [budget.ErrExhausted], [meter.ErrRefused] and so on.
type DeniedError struct {
	Reason string // one of the constants above
	Err    error
}

func denied(err error) error { return &DeniedError{Reason: denialReason(err), Err: err} }

func denialReason(err error) string {
	switch {
	case errors.Is(err, budget.ErrExhausted):
		return DeniedBudget
	case errors.Is(err, budget.ErrBusy):
		return DeniedBusy
	}
	if _, ok := errors.AsType[*OutageError](err); ok {
		return DeniedOutage
	}
	for _, fault := range [...]error{meter.ErrRefused, budget.ErrInvalid, budget.ErrNoPrice,
		budget.ErrInFlight, budget.ErrConflict, budget.ErrClosed} {
		if errors.Is(err, fault) {
			return DeniedRequest
		}
	}
	return DeniedBook
}

func (e *DeniedError) Error() string {
	text := "middleware: not sent: " + e.Err.Error()
	if _, ok := errors.AsType[*meter.PathError](e.Err); ok {
		return text + "; the option for it is middleware.Routes"
	}
	_, uncapped := errors.AsType[*meter.UncappedError](e.Err)
	if _, unbounded := errors.AsType[*meter.UnboundedError](e.Err); unbounded || uncapped {
		return text + " by middleware.Bounds"
	}
	return text
}

func (e *DeniedError) Unwrap() error { return e.Err }

// Denied is true.
func (e *DeniedError) Denied() bool { return true }

// Pause reports whether the same call may well go later: everything but a fault
// of its own.
func (e *DeniedError) Pause() bool { return e.Reason != DeniedRequest }

// OutageError refuses a call, or a further attempt, to a host whose last
// attempts all failed and may be on the bill, see [OutageAfter]. It comes in a
// [*DeniedError].
type OutageError struct {
	Host   string
	Failed int       // attempts in a row
	Pauses int       // since the host last answered, this one included
	At     time.Time // when an attempt is let through, to see
}

func (e *OutageError) Error() string {
	return fmt.Sprintf("%d attempts in a row at %s failed and may be billed; calls to it pause until %s", e.Failed, e.Host, e.At.Format(time.RFC3339))
}

// RetryAt is when to come back.
func (e *OutageError) RetryAt() time.Time { return e.At }

// The synthetic answer. Stainless SDKs do not retry it for its first header; 402
// is a status that no known SDK retries.
const (
	headerRetry   = "X-Should-Retry"
	headerDenied  = "X-Tollbook-Denied"   // why, if it is our own refusal
	headerPaused  = "X-Tollbook-Paused"   // why, if the call may go later
	headerRetryAt = "X-Tollbook-Retry-At" // RFC 3339, if that is known

	codeBudget  = "budget_exceeded" // as other gateways name it
	codeRequest = "request_refused"
	codePaused  = "provider_paused"

	typeDenied = "tollbook_denied" // of our own refusals, where an SDK drops the header
)

// stainless tells the official OpenAI and Anthropic SDKs, which retry every
// error of their transport.
func stainless(req *http.Request) bool { return req.Header.Get("X-Stainless-Lang") != "" }

// fail gives an error the form in which its receiver lets it be.
func (g *Guard) fail(req *http.Request, err error) (*http.Response, error) {
	if (g.denyByResponse || stainless(req)) && (IsDenied(err) || IsPause(err)) {
		return synthetic(req, err), nil
	}
	return nil, err
}

func synthetic(req *http.Request, err error) *http.Response {
	h := http.Header{"Content-Type": {"application/json"}, headerRetry: {"false"}}
	code, kind := codePaused, codePaused
	if d, ok := errors.AsType[*DeniedError](err); ok {
		h.Set(headerDenied, d.Reason)
		kind = typeDenied
		switch d.Reason {
		case DeniedRequest:
			code = codeRequest
		case DeniedOutage:
		default:
			code = codeBudget
		}
	}
	if IsPause(err) {
		h.Set(headerPaused, code)
	}
	if at := RetryAt(err); !at.IsZero() {
		h.Set(headerRetryAt, at.UTC().Format(time.RFC3339Nano))
	}
	body, _ := json.Marshal(map[string]any{ // strings only: it cannot fail
		"type":  "error", // as Anthropic's SDK reads it
		"error": map[string]any{"message": err.Error(), "type": kind, "code": code, "param": nil},
	})
	h.Set("Content-Length", strconv.Itoa(len(body)))
	return &http.Response{Status: "402 Payment Required", StatusCode: http.StatusPaymentRequired,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)), Request: req}
}

// ended reports whether err is the end of the context.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
}
