package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/retry"
)

// Guard is an [http.RoundTripper] that lets a call to a provider leave only
// when its worst case fits the book, tries it again where that is right and
// paid for, and closes it once, whatever comes. Make one with [Transport]; it
// is safe for concurrent use.
//
// # A call
//
// A request is known by its path. One that surely costs nothing (a listing, a
// moderation, a token count) is passed on as it is. One that may spend and has
// no meter is refused: see [Routes]. Of any other the meter says what one
// attempt can cost at most, and that much is reserved, on the scope and under
// the key of its context ([WithScope], [WithKey]). A call that does not fit its
// limits waits for room ([MaxWait]), unless there would be none even without
// the calls now open; under [CapOutput] it may be given less, and asks for less.
// Every RoundTrip is a reservation of its own, also one
// made by an http.Client that follows a redirect, or by an SDK that retries.
//
// Then it is sent, and sent again under the rules of package retry ([Retry]).
// Each further attempt is asked for first: after one that may have been billed
// a further hold is taken, and if there is no room for it the call ends. An
// answer that is not a stream is read whole, up to 64 MiB, before the caller
// sees it, so that one cut short is tried again too.
//
// # What comes back
//
//   - An answer. The close is durable by then; of a stream, before its end is
//     handed on. WithReceipt tells what was booked. If the close could not be
//     written the answer is delivered nevertheless, its hold stays open, the
//     book admits nothing more, and the Logger hears of it.
//   - The provider's refusal, with its body, after the last attempt.
//   - A [*DeniedError]: the call, or a further attempt, was not sent, by our own
//     refusal. [IsDenied] knows it, also behind what SDKs make of it.
//   - A pause: nothing is wrong with the call, but going on now is of no use.
//     [IsPause] knows every form of it, [RetryAt] when to come back. A used up
//     budget is one; so are a provider's quota, a spend limit, an empty
//     account, a wait longer than the longest or past the deadline of the
//     context, and a host that fails again and again ([OutageAfter]).
//   - Any other error, of the network or of the context. What a base says of
//     one may quote an answer, so it is worded anew; errors.Is and errors.As
//     find the base's own.
//
// An SDK that retries by itself would take an error for one of the network. The
// official ones (recognized by the header X-Stainless-Lang) get denials and
// pauses as a synthetic 402 that they do not try again, and the provider's last
// refusal with the same mark. Their own retries are best turned off
// (WithMaxRetries(0)): each is a call of its own here, with attempts of its own.
//
// # What is booked
//
//   - What the provider reports, as confirmed; more than the hold too.
//   - Nothing, for an attempt that provably never left, a redirect, and a
//     refusal that the meter knows to be free.
//   - The hold, as assumed, for everything else: an attempt that ended in a
//     timeout, a broken connection, a cut stream, an answer without readable
//     usage, a 5xx; or what a stream reported on the way, if that is more: it
//     is no last word where the stream was cut or output came behind it. A
//     stream that the caller gives up is charged by [OnAbort]; if it was at its
//     end already, Close reads the rest for up to a second. One that passes what
//     was reserved goes on, unless [StopOverrun] is given.
//
// A chat or completion stream is asked for its usage (stream_options), also if
// the caller did not ask, and the extra chunk is taken out again. A host that
// does not know the option, and answers without it, is asked once.
//
// # What the caller owes
//
// A response's body is to be read to its end or closed, as ever, or its context
// cancelled; until then its reservation stays open. [Guard.Wait] returns when
// all are closed: call it before the book's Close.
//
// An http.Client with a Timeout would span the waits for room and between
// attempts: leave it zero and use [Timeouts]. Keys in the query of an URL
// appear in the errors of http.Client itself, which no transport can prevent.
type Guard struct {
	book *budget.Book
	config
	usageless sync.Map // hosts that do not know include_usage
	circuits  sync.Map // by host
	nested    sync.Once
	open      sync.WaitGroup
}

// Transport returns a guard that books in book. A nil book panics.
func Transport(book *budget.Book, opts ...Option) *Guard {
	if book == nil {
		panic("middleware: Transport: no book")
	}
	return &Guard{book: book, config: newConfig(opts)}
}

// Wait returns when every reservation is closed and no answer is being drained.
// Begin no call meanwhile. It waits for ever for a response that nobody closes.
func (g *Guard) Wait() { g.open.Wait() }

// CloseIdleConnections passes the call on to the base.
func (g *Guard) CloseIdleConnections() {
	if c, ok := g.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip makes one call; see [Guard].
func (g *Guard) RoundTrip(req *http.Request) (*http.Response, error) {
	m, err := meter.For(req, g.routes...)
	if m == nil && err == nil {
		resp, err := g.base.RoundTrip(req)
		return resp, worded(req.URL, err)
	}
	if req.Body != nil {
		defer req.Body.Close() // as the contract has it, refused or not
	}
	if err != nil {
		return g.fail(req, denied(err))
	}
	g.warnOfRetries(req)
	c := &call{guard: g, req: req, meter: m, circuit: g.circuit(req.URL.Host)}
	defer func() {
		if c.probe { // it told nothing, or nothing yet: a stream
			c.circuit.saw(unclear, true)
		}
	}()
	if c.body, err = readBody(req); err == nil {
		err = c.reserve()
	}
	if err != nil {
		return g.fail(req, err)
	}
	resp, err := c.run()
	if err != nil {
		return g.fail(req, err)
	}
	return resp, nil
}

// maxRequest is the longest body of a request that is read.
const maxRequest = 64 << 20

func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	var buf bytes.Buffer
	if n := req.ContentLength; n > 0 {
		buf.Grow(int(min(n, maxAllocAhead)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(req.Body, maxRequest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("middleware: reading the request's body: %w", err)
	case n > maxRequest:
		return nil, denied(&meter.BodyError{Reason: fmt.Sprintf("it is longer than %d bytes", int64(maxRequest))})
	}
	return buf.Bytes(), nil
}

// call is one RoundTrip of a request that is metered.
type call struct {
	guard *Guard
	req   *http.Request
	body  []byte
	meter meter.Meter
	bound meter.Bound
	hold  *budget.Reservation

	circuit *circuit // of the host; nil: its outages do not matter
	probe   bool     // the circuit let the present attempt through to see

	last     result    // what became of the last attempt
	x        *exchange // the last attempt that got a response
	streamed bool      // the response closes the reservation
}

// unlimitedOutput is held for each answer of a request without a cap, by a
// model that nobody knows, where no limit makes the figure matter: as much as
// the common models write at most.
const unlimitedOutput = 1 << 17

// reserve bounds the call and takes its hold. After it, c.close is owed.
func (c *call) reserve() (err error) {
	ctx, g := c.req.Context(), c.guard
	scope := g.scopeOf(ctx)
	r := meter.Request{Path: c.req.URL.Path, Header: c.req.Header, Body: c.body}
	c.bound, err = c.meter.Bound(r, g.bounds)
	capped := g.leastOutput > 0
	if _, uncapped := errors.AsType[*meter.UncappedError](err); uncapped &&
		!g.book.Limited(scope, budget.TokenUnit) && !g.book.Limited(scope, budget.CostUnit) {
		o := g.bounds
		o.DefaultOutput = unlimitedOutput
		c.bound, err = c.meter.Bound(r, o)
		capped = false // of a figure that means nothing
	}
	if err != nil {
		return denied(err)
	}
	if err = c.admit(); err != nil {
		return err
	}
	ask := budget.Request{Scope: scope, Key: keyOf(ctx), Model: c.bound.Model,
		Tokens: c.bound.Total(), Output: c.bound.Output, Units: c.bound.Units, MaxWait: g.maxWait}
	if capped {
		ask.Least = c.bound.Least(g.leastOutput)
	}
	c.hold, err = g.book.Reserve(ctx, ask)
	switch {
	case err == nil:
		if capped {
			c.cap()
		}
		g.open.Add(1)
		c.last = result{outcome: budget.NeverSent, why: "not sent"}
		return nil
	case ended(ctx, err):
		return err
	}
	return denied(err)
}

// cap has the request ask for no more than what is held for it.
func (c *call) cap() {
	if c.bound = c.bound.Within(c.body, c.hold.Tokens()); c.bound.Body != nil {
		c.body = c.bound.Body
	}
}

// run makes the attempts and closes the reservation; a stream closes it later.
func (c *call) run() (*http.Response, error) {
	over := false
	defer func() {
		if !over { // a base, a meter or a policy of the caller's panicked
			if c.x != nil {
				c.x.Close()
			}
			c.close(result{why: "broken off"})()
		}
	}()
	policy := c.guard.retry
	before := policy.Before
	policy.Before = func(ctx context.Context, next retry.Attempt) error {
		if before != nil {
			if err := before(ctx, next); err != nil {
				return err
			}
		}
		return c.extend(ctx)
	}
	resp, err := retry.Do(c.req.Context(), policy, c.attempt)
	if refusal, own := err.(*retry.StatusError); own && !refusal.Pause() {
		err = nil // the provider's last word is handed on
		if stainless(c.req) {
			resp.Header.Set(headerRetry, "false")
		}
	}
	over = true
	if err != nil {
		c.release()
		resp = nil
	}
	if !c.streamed {
		c.close(c.last)()
	}
	return resp, err
}

// extend lets go of the last attempt's answer and takes the hold of the next.
func (c *call) extend(ctx context.Context) error {
	c.release()
	if err := c.admit(); err != nil {
		return err
	}
	if err := c.hold.Extend(ctx, c.last.outcome, c.last.why); err != nil {
		return denied(err)
	}
	c.guard.logger.LogAttrs(ctx, slog.LevelDebug, "another attempt", slog.String("rid", c.hold.RID()), slog.String("after", c.last.why))
	c.last = result{outcome: budget.NeverSent, why: "not sent"}
	return nil
}

// release ends the last attempt that got a response, if its answer is not
// handed on.
func (c *call) release() {
	if c.x != nil {
		c.x.discard()
		c.x = nil
	}
}

// warnOfRetries tells once that attempts multiply.
func (g *Guard) warnOfRetries(req *http.Request) {
	if n := req.Header.Get("X-Stainless-Retry-Count"); n != "" && n != "0" {
		g.nested.Do(func() {
			g.logger.LogAttrs(req.Context(), slog.LevelWarn, "the client retries by itself on top of the guard; turn its retries off (WithMaxRetries(0))")
		})
	}
}
