package main

// How a run ends in words and exit codes: the worst that happened, told once.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
)

func TestConclude(t *testing.T) {
	full := fmt.Errorf("write 000001.jsonl: %w", journal.ErrFull)
	broken := fmt.Errorf("%w; open it anew: %w", budget.ErrBroken, full)
	refused := stopped{&middleware.DeniedError{Reason: middleware.DeniedBook, Err: full}}
	refusedBroken := stopped{&middleware.DeniedError{Reason: middleware.DeniedBook, Err: broken}}
	exhausted := stopped{&budget.ExhaustedError{Kind: budget.TokenUnit, Asked: 5, Limit: 9, Net: 9}}
	unwritten := &checkpoint.WriteError{Path: "out.jsonl", Err: errors.New("I/O error")}
	paused := func(cause error) error { return &checkpoint.PausedError{Cause: cause, Items: 9, Pending: 3} }
	interrupted := fmt.Errorf("%w: %w", checkpoint.ErrInterrupted, context.Canceled)
	for name, c := range map[string]struct {
		err, cause, broken error
		state, reason      string
		code               int
		told               error
	}{
		"done":                            {nil, nil, nil, "done", "", exitDone, nil},
		"interrupted":                     {interrupted, nil, nil, "interrupted", "", exitInterrupted, interrupted},
		"budget":                          {paused(exhausted), nil, nil, "paused", "budget", exitPaused, exhausted},
		"rate limited":                    {paused(stopped{errLimited}), stopped{errLimited}, nil, "paused", "quota", exitPaused, stopped{errLimited}},
		"calls refused":                   {paused(stopped{errRefused}), stopped{errRefused}, nil, "paused", "provider", exitPaused, stopped{errRefused}},
		"book cannot write":               {paused(refused), refused, nil, "failed", "", exitFailed, full},
		"done, a close unwritten":         {nil, nil, broken, "failed", "", exitFailed, broken}, // I5
		"interrupted, a close unwritten":  {interrupted, nil, broken, "failed", "", exitFailed, broken},
		"budget, a close unwritten":       {paused(exhausted), nil, broken, "failed", "", exitFailed, broken},
		"refused since a close unwritten": {paused(refusedBroken), refusedBroken, broken, "failed", "", exitFailed, broken},
		"some failed, a close unwritten":  {&checkpoint.FailedError{Items: 9, Dead: 1}, nil, broken, "failed", "", exitFailed, broken},
		"output and a close unwritten":    {unwritten, nil, broken, "failed", "", exitFailed, unwritten},
	} {
		t.Run(name, func(t *testing.T) {
			report := &budget.Report{Broken: c.broken}
			got := conclude(checkpoint.Summary{}, c.err, c.cause, report)
			assert.Equal(t, c.state, got.State)
			assert.Equal(t, c.reason, got.Reason)
			assert.Equal(t, c.code, got.code)
			assert.Equal(t, c.told, got.Err, "the cause, once")
			if s, ok := c.told.(stopped); ok && c.reason != "budget" {
				assert.Contains(t, got.headline(), s.Error())
			}
			assert.Equal(t, c.state == "done", got.hint(&runOptions{}) == "", "what to do next")
		})
	}
}

// Whatever is said, each of its lines says who says it.
func TestSay(t *testing.T) {
	var err bytes.Buffer
	newUI(nil, &err).say("failed: %v", errors.Join(errors.New("a"), errors.New("b")))
	assert.Equal(t, "tollbook: failed: a\ntollbook: b\n", err.String())
}
