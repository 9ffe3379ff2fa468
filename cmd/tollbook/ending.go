package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/retry"
)

// stopped is an error that stops the run and leaves the item pending.
type stopped struct{ error }

func (stopped) Pause() bool     { return true }
func (e stopped) Unwrap() error { return e.error }

var (
	errDraining    = errors.New("the run is stopping")
	errUnreachable = errors.New("the provider cannot be reached")
	errRefused     = errors.New("the provider refuses the calls")
	errLimited     = errors.New("the provider's rate limit lets nothing through")
	errOutage      = errors.New("the provider is in trouble")
)

func isPause(err error) bool {
	_, ours := errors.AsType[stopped](err)
	return ours || middleware.IsPause(err)
}

// judge says what an item's error means for the run: a pause stops it, a fault
// of our own too. Any other failure after an attempt is the item's.
func (j *job) judge(ctx context.Context, err error, attempts int, booked budget.Receipt) error {
	switch {
	case errors.Is(context.Cause(ctx), errDraining):
		return stopped{errDraining}
	case ctx.Err() != nil:
		return err
	case ourFault(err):
		return stopped{err}
	case isPause(err), middleware.IsDenied(err):
		return err
	case errors.Is(err, errBroken):
	case booked.State == budget.StateRefunded:
		// Nothing ever left, after all attempts: it would be the same for the
		// other items, and they have done nothing wrong.
		return stopped{fmt.Errorf("%w: %w", errUnreachable, err)}
	}
	return j.giveUp(attempts, err)
}

// ourFault reports whether the book could not be written.
func ourFault(err error) bool {
	denied, ok := errors.AsType[*middleware.DeniedError](err)
	return ok && denied.Reason == middleware.DeniedBook
}

// bookFault is what the book said, without who asked it.
func bookFault(err error) error {
	if denied, ok := errors.AsType[*middleware.DeniedError](err); ok {
		return denied.Err
	}
	return err
}

// wording is an error in words that may be kept and shown: what a text quotes
// may be the provider's, and so part of an answer.
func wording(err error) string { return quoted.ReplaceAllString(err.Error(), `"…"`) }

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// reasonOf is the contract's word for a pause; empty if it is none, but a
// fault of our own.
func reasonOf(cause error) string {
	status, _ := errors.AsType[*retry.StatusError](cause)
	outage, _ := errors.AsType[*middleware.OutageError](cause)
	switch {
	case ourFault(cause):
		return ""
	case errors.Is(cause, budget.ErrExhausted), errors.Is(cause, budget.ErrBusy):
		return "budget"
	case outage != nil, errors.Is(cause, errUnreachable), errors.Is(cause, errOutage), errors.Is(cause, errRefused):
		return "provider"
	case !middleware.IsPause(cause):
		return ""
	case status != nil && status.Status >= http.StatusInternalServerError:
		return "provider"
	}
	return "quota"
}

// conclusion is how a run ended.
type conclusion struct {
	State    string // done, paused, interrupted or failed
	Reason   string // of a pause: budget, quota or provider
	RetryAt  time.Time
	Err      error // what stopped it or went wrong; nil if every item is done
	Counts   checkpoint.Counts
	Repairs  []checkpoint.Repair
	Report   *budget.Report
	Sent     int64 // items of which an attempt left
	Requests int64 // attempts that left
	code     int
}

// fail makes it a failed run. Only the first fault is told: what else fails
// comes of it, mostly.
func (c *conclusion) fail(err error) {
	c.code = worst(exitFailed, exitCode(err), c.code)
	if c.State != "failed" {
		c.State, c.Err, c.Reason, c.RetryAt = "failed", err, "", time.Time{}
	}
}

// conclude reads from checkpoint's error how the run ended. cause is that of a
// pause that took other items back, if there was one.
func conclude(sum checkpoint.Summary, err, cause error, report *budget.Report) *conclusion {
	c := &conclusion{State: "done", Err: err, Counts: sum.Counts, Repairs: sum.Repairs, Report: report}
	paused, _ := errors.AsType[*checkpoint.PausedError](err)
	if paused != nil && cause == nil {
		cause = paused.Cause
	}
	switch {
	case err == nil:
	case errors.Is(err, checkpoint.ErrInterrupted):
		c.State, c.code = "interrupted", exitInterrupted
	case paused != nil && reasonOf(cause) == "":
		c.fail(cmp.Or(report.Broken, bookFault(cause)))
	case paused != nil:
		c.State, c.code, c.Err = "paused", exitPaused, cause
		c.Reason, c.RetryAt = reasonOf(cause), paused.RetryAt
	case errors.Is(err, checkpoint.ErrFailed):
		c.code = exitPartly
	case errors.Is(err, checkpoint.ErrInput):
		c.State, c.code = "failed", exitUsage
	default:
		c.fail(err)
	}
	if report.Broken != nil { // a close that could not be written, even if every item is done
		c.fail(report.Broken)
	}
	return c
}
