package main

import (
	"context"
	"math"
	"sync"
	"time"
)

// pacer spaces calls evenly, so that no minute holds more requests or tokens
// than allowed. It keeps no burst in hand: providers enforce their limits for
// parts of a minute too. The zero pacer does not pace. It is safe for
// concurrent use; callers leave in the order they came.
type pacer struct {
	RPM int64 // requests a minute; 0 is unlimited
	TPM int64 // tokens a minute, as reserved; 0 is unlimited

	mu       sync.Mutex
	requests time.Time // when the next request may leave
	tokens   time.Time // the same, for the sake of tokens
}

// wait returns when a request of so many tokens may leave, or when ctx is done.
func (p *pacer) wait(ctx context.Context, tokens int64) error {
	timer := time.NewTimer(time.Until(p.slot(time.Now(), tokens)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// slot gives a request its time: now, or when the ones before leave room.
func (p *pacer) slot(now time.Time, tokens int64) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := now
	for _, t := range [...]time.Time{p.requests, p.tokens} {
		if t.After(at) {
			at = t
		}
	}
	p.requests = at.Add(spacing(1, p.RPM))
	p.tokens = at.Add(spacing(tokens, p.TPM))
	return at
}

// spacing is what n takes at so many a minute, rounded up.
func spacing(n, perMinute int64) time.Duration {
	if perMinute <= 0 {
		return 0
	}
	ns := math.Ceil(float64(n) / float64(perMinute) * float64(time.Minute))
	return time.Duration(min(ns, float64(24*time.Hour)))
}
