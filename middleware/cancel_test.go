package middleware_test

// I2: wherever a call is cancelled, its reservation is closed exactly once and
// nothing stays held.

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// case 11
func TestCancelledCallsAreClosedOnce(t *testing.T) {
	held := hold(t, streamed)
	events := []providertest.Part{providertest.Event(word("a")), providertest.Event(word("a")), providertest.Event(word("a"))}
	wait := func(seconds string, a providertest.Answer) providertest.Answer {
		a.Header = http.Header{"Retry-After": {seconds}}
		return a
	}
	for name, c := range map[string]struct {
		base    base                       // nil: the provider
		answer  func() providertest.Answer // made in the bubble, as its channels must be
		closes  journal.Kind
		assumed int64
		calls   int64
	}{
		"before dispatch": {base: func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done() // as a dial does
			return nil, errors.New("dial: given up")
		}, closes: journal.Refund},
		"before the first byte": {answer: stall, closes: journal.Settle, assumed: held, calls: 1},
		"after 3 chunks": {answer: func() providertest.Answer {
			return providertest.Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}, Parts: append(events, stall().Parts...)}
		}, closes: journal.Settle, assumed: held, calls: 1},
		"during back-off": {answer: func() providertest.Answer { return wait("20", refusal(429, "slow_down")) },
			closes: journal.Refund, calls: 1},
		"during back-off, billed": {answer: func() providertest.Answer { return wait("20", refusal(500, "server_error")) },
			closes: journal.Settle, assumed: held, calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var closes []journal.Kind
				opts := []middleware.Option{}
				if c.base != nil {
					opts = append(opts, middleware.Base(c.base))
				}
				l := newLab(t, budget.Observe(func(e journal.Entry) {
					if e.Kind == journal.Settle || e.Kind == journal.Refund {
						closes = append(closes, e.Kind)
					}
				}), opts...)
				if c.answer != nil {
					l.provider.Expect(t, c.answer())
				}
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				wg.Go(func() {
					resp, err := l.do(ctx, streamed)
					if err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					require.ErrorIs(t, err, context.Canceled)
					require.False(t, middleware.IsPause(err))
				})
				synctest.Wait()
				time.Sleep(10 * time.Second)
				cancel()
				wg.Wait()
				require.Equal(t, []journal.Kind{c.closes}, closes)
				l.tokens(0, c.assumed)
				require.Equal(t, c.calls, l.book.Report().Requests)
			})
		})
	}
}

// A call that waits for room, or that was cancelled before, leaves no trace.
func TestCancelledBeforeItsReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(hold(t, prompt)))
		release := make(chan struct{})
		l.provider.Expect(t, providertest.Answer{Parts: []providertest.Part{providertest.Wait(release), providertest.Text(answered(5, 5))}})
		var wg sync.WaitGroup
		wg.Go(func() {
			resp, err := l.do(context.Background(), prompt)
			require.NoError(t, err)
			require.NoError(t, drain(resp))
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for range 2 { // the second time the context has ended already
			_, err := l.do(ctx, prompt)
			require.Equal(t, context.DeadlineExceeded, err) // bare: it is not our refusal
		}
		close(release)
		wg.Wait()
		l.tokens(10, 0)
	})
}

// case 26: 25 of 100 calls are cancelled after their prompt was sent; none of
// them counts zero.
func TestCancelledCallsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closings []journal.Entry
		l := newLab(t, budget.Observe(func(e journal.Entry) {
			if e.Kind == journal.Settle || e.Kind == journal.Refund {
				closings = append(closings, e)
			}
		}))
		for i := range 100 {
			if i%4 > 0 {
				l.provider.Expect(t, providertest.JSON(200, answered(60, 40)))
				l.must(prompt)
				continue
			}
			l.provider.Expect(t, stall())
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := l.do(ctx, prompt)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		require.Len(t, closings, 100)
		for _, e := range closings {
			require.Positive(t, e.Confirmed+e.Assumed)
		}
		l.tokens(75*100, 25*hold(t, prompt))
	})
}
