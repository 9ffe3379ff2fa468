package middleware_test

// DESIGN 7.2: what a stream is charged that the caller gave up, and that giving
// up is quick and leaves nothing open.

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// abort reads some chunks of a stream of 200 and gives it up.
func abort(t *testing.T, l *lab, chunks int) {
	t.Helper()
	var all []string
	for range 200 {
		all = append(all, word("four"))
	}
	l.provider.Expect(t, providertest.SSE(append(all, finish, lastUsage)...))
	resp, err := l.do(context.Background(), streamed)
	require.NoError(t, err)
	_, err = io.ReadFull(resp.Body, make([]byte, chunks*len("data: "+word("four")+"\n\n")))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, resp.Body.Close())
	_, err = resp.Body.Read(make([]byte, 1))
	require.Error(t, err)
}

// cases 24, 25
func TestAbortedStream(t *testing.T) {
	held := hold(t, streamed)
	for name, c := range map[string]struct {
		policy             middleware.AbortPolicy
		confirmed, assumed int64
	}{
		"charge the hold": {middleware.ChargeHold, 0, held},
		"observed":        {middleware.ObservedOnAbort, 0, held - 100 + min(37*4, 100)},
		"drain":           {middleware.DrainOnAbort, 258, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(c.policy))
				abort(t, l, 37)
				l.guard.Wait()
				l.tokens(c.confirmed, c.assumed)
			})
		})
	}
	t.Run("observed, little", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.ObservedOnAbort))
			release := make(chan struct{})
			a := providertest.SSE(word("four"), word("four"))
			a.Parts[1] = providertest.Wait(release)
			l.provider.Expect(t, a)
			resp, err := l.do(context.Background(), streamed)
			require.NoError(t, err)
			_, err = resp.Body.Read(make([]byte, 4096))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			l.tokens(0, held-100+4)
		})
	})
}

// What the provider reported by then is the least that is charged.
func TestObservedIsNotBelowTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.ObservedOnAbort))
		running := strings.ReplaceAll(someUsage, `"completion_tokens":2,"total_tokens":25`, `"completion_tokens":90,"total_tokens":113`)
		a := providertest.SSE(running, "silence")
		a.Parts[1] = stall().Parts[0]
		l.provider.Expect(t, a)
		resp, err := l.do(context.Background(), streamed)
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, len("data: "+running+"\n\n")))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		l.tokens(0, 113)
	})
}

// A caller who leaves at the finish reason still learns the provider's figure,
// if it comes within a second; but Close does not wait where a Read does.
func TestCloseAfterTheFinishReadsOn(t *testing.T) {
	whole := "data: " + lastUsage + "\n\n"
	for name, c := range map[string]struct {
		after              time.Duration
		rest               string
		reading            bool
		confirmed, assumed int64
		took               time.Duration
	}{
		"soon":          {900 * time.Millisecond, whole + "data: [DONE]\n\n", false, 258, 0, 900 * time.Millisecond},
		"unterminated":  {900 * time.Millisecond, strings.TrimSpace(whole), false, 258, 0, time.Second},
		"late":          {1100 * time.Millisecond, whole, false, 0, hold(t, streamed), time.Second},
		"too far":       {0, strings.Repeat(": still here\n\n", 6000) + whole, false, 0, hold(t, streamed), 0},
		"beside a Read": {900 * time.Millisecond, whole, true, 0, hold(t, streamed), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty))
				release := make(chan struct{})
				l.provider.Expect(t, providertest.Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}, Parts: []providertest.Part{
					providertest.Event(word("a")), providertest.Event(finish), providertest.Wait(release), providertest.Text(c.rest),
					providertest.Wait(make(chan struct{}))}})
				resp, err := l.do(context.Background(), streamed)
				require.NoError(t, err)
				_, err = io.ReadFull(resp.Body, make([]byte, len("data: "+word("a")+"\n\ndata: "+finish+"\n\n")))
				require.NoError(t, err)
				timer := time.AfterFunc(c.after, func() { close(release) })
				defer timer.Stop()
				var wg sync.WaitGroup
				if c.reading {
					wg.Go(func() { require.Error(t, drain(resp)) })
					synctest.Wait()
				}
				begin := time.Now()
				require.NoError(t, resp.Body.Close())
				require.Equal(t, c.took, time.Since(begin))
				wg.Wait()
				l.tokens(c.confirmed, c.assumed)
			})
		})
	}
}

// A client that neither reads nor closes, but whose context ends, leaves
// nothing open; and a stalled stream ends by the idle timeout, however slowly
// the caller reads.
func TestStreamThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []middleware.AbortPolicy{middleware.ChargeHold, middleware.DrainOnAbort} {
			l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(policy), middleware.Timeouts(0, time.Minute))
			a := providertest.SSE(word("a"))
			a.Parts[1] = stall().Parts[0]
			l.provider.Expect(t, a, a)
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(context.Background())
			resp, err := l.do(ctx, streamed)
			require.NoError(t, err)
			cancel(why)
			l.guard.Wait()
			budgettest.RequireClosed(t, l.book)
			l.tokens(0, hold(t, streamed))
			require.ErrorIs(t, drain(resp), why)

			resp, err = l.do(context.Background(), streamed)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			begin := time.Now()
			var timeout *middleware.TimeoutError
			require.ErrorAs(t, drain(resp), &timeout)
			require.LessOrEqual(t, time.Since(begin), time.Minute)
			l.tokens(0, 2*hold(t, streamed))
		}
	})
}

// Drained or not, a cancelled caller is not kept waiting.
func TestDrainDoesNotHoldTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.DrainOnAbort), middleware.Timeouts(time.Second, 0))
		release := make(chan struct{})
		a := providertest.SSE(word("a"), "wait", finish, lastUsage)
		a.Parts[1] = providertest.Wait(release)
		l.provider.Expect(t, a)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		resp, err := l.do(ctx, streamed)
		require.NoError(t, err)
		begin := time.Now()
		require.ErrorIs(t, drain(resp), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begin))
		synctest.Wait()
		close(release)
		l.guard.Wait()
		l.tokens(258, 0)
	})
}

// A drain is bounded also where the provider says nothing more.
func TestDrainOfASilentProviderEnds(t *testing.T) {
	for name, leave := range map[string]func(cancel func(), body io.Closer){
		"cancelled": func(cancel func(), _ io.Closer) { cancel() },
		"closed":    func(_ func(), body io.Closer) { _ = body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.DrainOnAbort))
				a := providertest.SSE(word("a"), "silence")
				a.Parts[1] = stall().Parts[0]
				l.provider.Expect(t, a)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				resp, err := l.do(ctx, streamed)
				require.NoError(t, err)
				_, err = io.ReadFull(resp.Body, make([]byte, len("data: "+word("a")+"\n\n")))
				require.NoError(t, err)
				synctest.Wait()
				begin := time.Now()
				leave(cancel, resp.Body)
				require.Zero(t, time.Since(begin))
				l.guard.Wait()
				require.Equal(t, 2*time.Minute, time.Since(begin))
				l.tokens(0, hold(t, streamed))
			})
		})
	}
}
