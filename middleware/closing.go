package middleware

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

// result is what became of an attempt, and so what its reservation is closed
// with if it was the last one:
//
//	provably never left, or not as a whole        refund
//	3xx; a refusal the meter knows to be free     refund
//	answer with usage, streams to their end       settle with the usage
//	answer without readable usage                 settle, unknown: the hold
//	status not known to be free                   settle, unknown: the hold
//	no answer to a request that may have left     settle, unknown: the hold
//	stream whose usage is not its last word       settle: the larger of hold and usage so far
//	stream given up under ObservedOnAbort         settle with the estimate
type result struct {
	outcome budget.Outcome // the zero one may have been billed
	usage   budget.Usage   // of one that may have been
	why     string         // a word or two for the book
	health  health         // what it tells of the host
}

// finished is the result of an answer that said its last word about usage, or
// none. ref is the provider's id of the request, if it gave one.
func finished(r meter.Reading, ref string) result {
	u := r.Usage
	if ref != "" {
		u.Ref = ref
	}
	res := result{usage: u, health: ailing}
	if r.Final || (r.Failure == nil && (r.Finished || r.Stopped)) {
		res.health = healthy
	}
	return res
}

// streamEnd is the result of a stream: aborted, cut, or with output behind the
// last usage, its usage is only what it used at least.
func (c *call) streamEnd(r meter.Reading, ref string, aborted bool) result {
	res := finished(r, ref)
	switch {
	case res.health == healthy:
	case aborted && c.req.Context().Err() == nil: // by Close
		res.health = unclear
	default:
		res.health = c.blame()
	}
	if r.Final || (r.Finished && !r.Usage.Known()) {
		return res
	}
	u, why := &res.usage, "cut stream"
	switch {
	case aborted:
		why = "aborted stream"
	case r.Finished:
		why = "output behind the usage"
	}
	switch {
	case aborted && c.guard.onAbort == ObservedOnAbort:
		o := r.Observed(c.bound)
		o.Ref = u.Ref
		*u = o
	case u.Known() && u.Total() > c.bound.Total():
		u.Estimated, u.Why = true, why
	default:
		*u = budget.Usage{Ref: u.Ref, Why: why}
	}
	return res
}

// close closes the reservation, once for each call, on a context that nobody
// cancels. Telling of it is still owed then, which must hold no lock: what the
// caller is told by may call back.
func (c *call) close(res result) (tell func()) {
	ctx := context.WithoutCancel(c.req.Context())
	booked := false
	defer func() {
		if !booked { // an observer or a log handler of the caller's panicked
			c.guard.open.Done()
		}
	}()
	receipt, err := c.book(ctx, res)
	if err != nil {
		why := "its hold stays open and the book admits nothing more"
		if errors.Is(err, budget.ErrClosed) {
			why = "its reservation was closed elsewhere"
		}
		c.guard.logger.LogAttrs(ctx, slog.LevelError, "what a call used is not booked; "+why,
			slog.String("rid", c.hold.RID()), slog.Any("error", err))
	}
	booked = true
	return func() {
		defer c.guard.open.Done()
		if err == nil {
			tellReceipt(ctx, receipt)
		}
	}
}

func (c *call) book(ctx context.Context, res result) (budget.Receipt, error) {
	if res.outcome != budget.MaybeBilled {
		return c.hold.Refund(ctx, res.outcome, res.why)
	}
	u := res.usage
	if !u.Known() && u.Why == "" {
		u.Why = res.why
	}
	receipt, err := c.hold.Settle(ctx, u)
	if errors.Is(err, budget.ErrInvalid) { // figures that no attempt can have
		receipt, err = c.hold.Settle(ctx, budget.Usage{Ref: u.Ref, Why: meter.Unreadable})
	}
	return receipt, err
}

// warnUnknown tells of an answer that had to be charged at its hold.
func (c *call) warnUnknown(why string) {
	c.guard.logger.LogAttrs(c.req.Context(), slog.LevelWarn, "an answer without readable usage is charged at its hold",
		slog.String("rid", c.hold.RID()), slog.String("model", c.bound.Model), slog.String("why", why), slog.Int64("hold", c.bound.Total()))
}
