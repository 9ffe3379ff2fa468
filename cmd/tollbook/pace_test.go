package main

// Within any minute no more leaves than --rpm and --tpm allow.

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPacer(t *testing.T) {
	for name, c := range map[string]struct {
		pacer  *pacer
		tokens []int64
		want   []time.Duration
	}{
		"none":                         {&pacer{}, []int64{5, 5}, []time.Duration{0, 0}},
		"requests":                     {&pacer{RPM: 60}, []int64{1, 1, 1}, []time.Duration{0, time.Second, 2 * time.Second}},
		"tokens":                       {&pacer{TPM: 600}, []int64{20, 5, 1}, []time.Duration{0, 2 * time.Second, 2500 * time.Millisecond}},
		"both":                         {&pacer{RPM: 60, TPM: 600}, []int64{20, 5, 1}, []time.Duration{0, 2 * time.Second, 3 * time.Second}},
		"larger than a minute's worth": {&pacer{TPM: 60}, []int64{120, 1}, []time.Duration{0, 2 * time.Minute}},
		"huge":                         {&pacer{TPM: 1}, []int64{1 << 53, 1}, []time.Duration{0, 24 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				for i, tokens := range c.tokens {
					assert.NoError(t, c.pacer.wait(t.Context(), tokens))
					assert.Equal(t, c.want[i], time.Since(start), "request %d", i)
				}
			})
		})
	}
}

func TestPacerTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, start := pacer{RPM: 120}, time.Now()
		var group sync.WaitGroup
		for range 121 {
			group.Go(func() { assert.NoError(t, p.wait(t.Context(), 1)) })
		}
		group.Wait()
		assert.Equal(t, time.Minute, time.Since(start), "the 121st leaves after a minute, not before")

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("stopped"))
		assert.EqualError(t, p.wait(ctx, 1), "stopped")
	})
}
