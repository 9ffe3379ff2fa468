package retry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// What the zero [Policy] means.
const (
	DefaultAttempts    = 4
	DefaultFirstWait   = time.Second
	DefaultLongestWait = 60 * time.Second
)

// Policy says how often and how patiently to try. The zero value is the
// default. It is copied by [Do] and may be shared; so must be its functions.
type Policy struct {
	// Attempts is the most there may be, the first included. Zero means
	// [DefaultAttempts]; one, or less than zero, means no second attempt.
	Attempts int
	// FirstWait bounds our own wait before the second attempt; each later
	// bound is twice the one before. Zero means [DefaultFirstWait]: half a
	// second on average. Less than zero means no wait of our own.
	FirstWait time.Duration
	// LongestWait bounds every single wait. A server that asks for more ends
	// the loop with a [StopError]. Zero means [DefaultLongestWait]; less than
	// zero means that there is no waiting at all.
	LongestWait time.Duration
	// Backoff replaces our own wait after the given number of failed attempts
	// (1, 2, …): for seeded runs, or another curve. It is held between zero
	// and LongestWait. Nil means exponential with full jitter.
	Backoff func(failed int) time.Duration
	// Before is asked once before each further attempt, ahead of its wait. An
	// error is a refusal and ends the loop with an [AbandonedError]. The
	// attempt it agreed to does not start if the context ends in the wait.
	// Nil means that nobody needs to be asked.
	Before func(ctx context.Context, next Attempt) error
}

// Attempt is a further attempt that is due.
type Attempt struct {
	N     int           // its number: 2 is the first retry
	Wait  time.Duration // how long until it starts
	Class Class         // of the failure before it: Transient or RateLimited
	Last  error         // that failure
}

// Do calls attempt with n = 1, 2, … until it succeeds or there is no further
// attempt. Beside the error stands what the last attempt returned, so that an
// HTTP response, say, can be handed on, or closed. The results of earlier
// attempts are dropped: release what they hold in [Policy.Before].
//
// The error is one of: the last attempt's own, never wrapped, on the last try as
// on earlier ones; a [StopError], when the wait would be too long; an
// [AbandonedError], when another attempt was due but refused or the context
// ended; the context's cause, if it had ended before the first attempt. A
// timeout of a single attempt is attempt's to set.
func Do[T any](ctx context.Context, p Policy, attempt func(ctx context.Context, n int) (T, error)) (T, error) {
	p = p.withDefaults()
	if ctx.Err() != nil {
		var none T
		return none, context.Cause(ctx)
	}
	for n := 1; ; n++ {
		res, err := attempt(ctx, n)
		class := Classify(err)
		if !class.Again() {
			return res, err
		}
		floor := retryAfter(err)
		if floor > p.LongestWait {
			// However many attempts are left: it is a pause, not a failure.
			return res, tooLong(floor, fmt.Sprintf("the server asks to wait %v, longer than %v", floor, p.LongestWait), err)
		}
		if n >= p.Attempts {
			return res, err
		}
		next := Attempt{N: n + 1, Wait: p.wait(n, floor), Class: class, Last: err}
		if err := next.prepare(ctx, p.Before); err != nil {
			return res, err
		}
	}
}

// prepare returns nil when the next attempt may start.
func (next Attempt) prepare(ctx context.Context, before func(context.Context, Attempt) error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(next.Last, cause) {
			return next.Last // it says so itself
		}
		return next.abandon(cause)
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= next.Wait {
		return tooLong(next.Wait, fmt.Sprintf("the next wait of %v would outlast the context's deadline", next.Wait), next.Last)
	}
	if before != nil {
		if err := before(ctx, next); err != nil {
			return next.abandon(err)
		}
	}
	timer := time.NewTimer(next.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // also where both were ready and select took the timer
		return next.abandon(context.Cause(ctx))
	}
	return nil
}

func (next Attempt) abandon(reason error) error {
	return &AbandonedError{N: next.N, Reason: reason, Last: next.Last}
}

func tooLong(wait time.Duration, reason string, last error) error {
	return &StopError{Reason: reason, At: time.Now().Add(wait), Err: last}
}

func (p Policy) withDefaults() Policy {
	p.Attempts = cmp.Or(p.Attempts, DefaultAttempts)
	p.FirstWait = cmp.Or(p.FirstWait, DefaultFirstWait)
	p.LongestWait = max(0, cmp.Or(p.LongestWait, DefaultLongestWait))
	if p.Backoff == nil {
		p.Backoff = fullJitter(p.FirstWait, p.LongestWait)
	}
	return p
}

// wait is the server's floor plus our own wait, at most the longest wait.
// floor is at most that.
func (p Policy) wait(failed int, floor time.Duration) time.Duration {
	own := max(0, p.Backoff(failed))
	return floor + min(own, p.LongestWait-floor)
}

// fullJitter draws from [0, first], [0, 2·first], … up to [0, longest]. The
// library spreads an interval by ±100 % at most, hence the halves.
func fullJitter(first, longest time.Duration) func(int) time.Duration {
	b := &backoff.ExponentialBackOff{
		InitialInterval:     max(0, min(first, longest)) / 2,
		RandomizationFactor: 1,
		Multiplier:          2,
		MaxInterval:         longest / 2,
	}
	return func(int) time.Duration { return b.NextBackOff() }
}
