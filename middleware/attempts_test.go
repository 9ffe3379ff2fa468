package middleware_test

// I6, I7 over several attempts: each has its hold before it leaves, what may
// have been billed stays charged, what surely was not is given back.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// case 19, real sockets: what fails before the body left is given back.
func TestFailsBeforeTheBodyLeft(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	defer server.Close()
	stranger := &http.Transport{} // does not know the server's authority
	defer stranger.CloseIdleConnections()
	l := newLab(t, budget.Tokens(plenty), middleware.Base(stranger))
	r := request(context.Background(), prompt)
	r.URL.Scheme, r.URL.Host = "https", server.Listener.Addr().String()
	_, err := l.guard.RoundTrip(r)
	require.ErrorContains(t, err, "certificate")
	l.tokens(0, 0)
	require.Zero(t, l.book.Report().Requests)
}

// case 19: the provider has the request and stalls; it may bill it.
func TestStallIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty), once, middleware.Timeouts(30*time.Second, 0))
		l.provider.Expect(t, stall())
		begin := time.Now()
		_, err := l.do(context.Background(), prompt)
		var timeout *middleware.TimeoutError
		require.ErrorAs(t, err, &timeout)
		require.Equal(t, 30*time.Second, time.Since(begin))
		l.tokens(0, hold(t, prompt))
	})
}

// A provider that goes away while the body is on its way has not got all of it.
func TestHalfARequestIsNotBilled(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		_, _ = io.ReadFull(r.Body, make([]byte, 10))
		return nil, errors.New("reset")
	})))
	_, err := l.do(context.Background(), prompt)
	require.Error(t, err)
	l.tokens(0, 0)
	require.EqualValues(t, 1, l.book.Report().Requests)
}

// A body that is sealed stays so: no writer left behind can send it.
func TestNothingLeavesAfterTheVerdict(t *testing.T) {
	var body io.Reader
	l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		body = r.Body
		return nil, errors.New("dial failed")
	})))
	_, err := l.do(context.Background(), prompt)
	require.Error(t, err)
	l.tokens(0, 0)
	n, err := body.Read(make([]byte, 10))
	require.Zero(t, n)
	require.Error(t, err)
}

// cases 38, 39, 40: stops, found by the structured error, end the call at its
// first attempt and give its hold back.
func TestQuotaIsAPause(t *testing.T) {
	gemini := func(quota string) providertest.Answer {
		return providertest.JSON(429, `{"error":{"code":429,"message":"no","status":"RESOURCE_EXHAUSTED","details":[`+
			`{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"GenerateRequests`+quota+`"}]},`+
			`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}`)
	}
	for name, a := range map[string]providertest.Answer{
		"quota":          refusal(429, "insufficient_quota"),
		"project":        refusal(429, "project_spend_limit_exceeded"),
		"organization":   refusal(429, "organization_spend_limit_exceeded"),
		"payment":        refusal(402, "billing"),
		"gateway":        refusal(429, "budget_exceeded"),
		"credit balance": providertest.JSON(400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}`),
		"per day":        gemini("PerDay"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty))
			l.provider.Expect(t, a)
			_, err := l.do(context.Background(), prompt)
			require.True(t, middleware.IsPause(err), "%v", err)
			require.False(t, middleware.IsDenied(err))
			require.True(t, middleware.RetryAt(err).IsZero())
			l.tokens(0, 0)
		})
	}
	t.Run("per minute", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty))
			l.provider.Expect(t, gemini("PerMinute"), providertest.JSON(200, answered(5, 5)))
			begin := time.Now()
			l.must(prompt)
			require.GreaterOrEqual(t, time.Since(begin), 36*time.Second)
			l.tokens(10, 0)
		})
	})
}

// cases 41, 43: a wait that is too long is not begun; what no header can mean
// is none.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		value    string
		min, max time.Duration
	}{
		{"2", 2 * time.Second, 4 * time.Second},
		{"date+30s", 29 * time.Second, 32 * time.Second},
		{"date-30s", 0, time.Second}, {"-1", 0, time.Second}, {"NaN", 0, time.Second}, {"1e100", 0, time.Second},
		{"", 0, time.Second}, {"Fri, 31 Dec 99999 23:59:59 GMT", 0, time.Second},
		{"1800", -1, 0},
	} {
		t.Run(c.value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty))
				value := c.value
				if by, ok := strings.CutPrefix(value, "date"); ok {
					d, err := time.ParseDuration(by)
					require.NoError(t, err)
					value = time.Now().Add(d).UTC().Format(http.TimeFormat)
				}
				limited := refusal(429, "rate_limit_exceeded")
				limited.Header = http.Header{"Retry-After": {value}}
				l.provider.Expect(t, limited)
				begin := time.Now()
				if c.min < 0 {
					_, err := l.do(context.Background(), prompt)
					require.True(t, middleware.IsPause(err))
					require.Equal(t, begin.Add(30*time.Minute), middleware.RetryAt(err))
					require.Zero(t, time.Since(begin))
					l.tokens(0, 0)
					return
				}
				l.provider.Expect(t, providertest.JSON(200, answered(5, 5)))
				l.must(prompt)
				require.GreaterOrEqual(t, time.Since(begin), c.min)
				require.LessOrEqual(t, time.Since(begin), c.max)
			})
		})
	}
}

// case 44: as many attempts as the policy says, and then the provider's own
// answer, whole. case 45: a final error is tried once.
func TestLastRefusalIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := newLab(t, budget.Tokens(plenty), middleware.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		call := func(answers ...providertest.Answer) *http.Response {
			l.provider.Expect(t, answers...)
			r := request(context.Background(), prompt)
			r.Header.Set("X-Stainless-Lang", "go")
			r.Header.Set("X-Stainless-Retry-Count", "1")
			resp, err := l.guard.RoundTrip(r)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), `"message":"no"`)
			require.Same(t, r, resp.Request)
			require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
			l.tokens(0, 0)
			return resp
		}
		limited := refusal(429, "slow_down")
		require.Equal(t, 429, call(limited, limited, limited, limited).StatusCode)
		require.EqualValues(t, 4, l.book.Report().Requests)
		require.Equal(t, 400, call(refusal(400, "invalid_request_error")).StatusCode)
		require.Equal(t, 1, strings.Count(log.String(), "retries by itself")) // case 44: warned, once
	})
}

// case 45: a stalled attempt stays charged beside the one that answered.
func TestStalledAttemptStaysCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty), middleware.Timeouts(time.Second, 0))
		l.provider.Expect(t, stall(), providertest.JSON(200, answered(60, 40)))
		var receipt budget.Receipt
		ctx := middleware.WithReceipt(context.Background(), func(r budget.Receipt) { receipt = r })
		resp, err := l.do(ctx, prompt)
		require.NoError(t, err)
		require.NoError(t, drain(resp))
		l.tokens(100, hold(t, prompt))
		require.Equal(t, budget.Receipt{RID: receipt.RID, State: budget.StateSettled, Confirmed: 100, Assumed: hold(t, prompt), Attempts: 2, Booked: true}, receipt)
	})
}

// case 46: a further attempt that the book refuses is not made, and the
// refusal is found in what the caller gets.
func TestRefusedExtensionEndsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(hold(t, prompt)))
		l.provider.Expect(t, refusal(500, "server_error"))
		_, err := l.do(context.Background(), prompt)
		var refused *budget.ExhaustedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, [2]int64{hold(t, prompt), 0}, [2]int64{refused.Asked, refused.Free()})
		require.True(t, middleware.IsDenied(err) && middleware.IsPause(err))
		var last *retry.StatusError
		require.ErrorAs(t, err, &last)
		require.Equal(t, 500, last.Status)
		l.tokens(0, hold(t, prompt))
		require.Equal(t, retry.Denied, retry.Classify(fmt.Errorf("outer: %w", err))) // no loop takes it up
	})
}

// A redirect is another call with another rid, and costs nothing itself.
func TestRedirectsAreCallsOfTheirOwn(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	l.provider.Expect(t,
		providertest.Answer{Status: 307, Header: http.Header{"Location": {"/v2/chat/completions"}}, Parts: []providertest.Part{providertest.Text("")}},
		providertest.JSON(200, answered(5, 5)))
	var receipts []budget.Receipt
	ctx := middleware.WithReceipt(context.Background(), func(r budget.Receipt) { receipts = append(receipts, r) })
	resp, err := (&http.Client{Transport: l.guard}).Do(request(ctx, prompt))
	require.NoError(t, err)
	resp.Body.Close()
	require.Len(t, receipts, 2)
	require.NotEqual(t, receipts[0].RID, receipts[1].RID)
	require.Equal(t, [2]budget.State{budget.StateRefunded, budget.StateSettled}, [2]budget.State{receipts[0].State, receipts[1].State})
	l.tokens(10, 0)
}

// case 47: every call counts, whatever the caller thinks of its answer.
func TestRejectedAnswersCount(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	for range 3 {
		l.provider.Expect(t, providertest.JSON(200, answered(60, 40)))
		l.must(prompt)
	}
	l.tokens(300, 0)
}

// What an attempt is sent as: no replay behind our back, nothing added, the
// caller's request untouched.
func TestWhatIsSent(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		require.Nil(t, r.GetBody)
		require.EqualValues(t, len(prompt), r.ContentLength)
		require.Equal(t, http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer sk-secret"}}, r.Header)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, prompt, string(body))
		require.Equal(t, "value", r.Context().Value(ctxKey{}))
		return reply(r, 200, nil, answered(5, 5)), nil
	})))
	r := request(context.WithValue(context.Background(), ctxKey{}, "value"), prompt)
	r.Header.Set("Accept-Encoding", "br")
	r.ContentLength = -1
	resp, err := l.guard.RoundTrip(r)
	require.NoError(t, err)
	require.Same(t, r, resp.Request)
	require.Equal(t, "br", r.Header.Get("Accept-Encoding"))
	require.NotNil(t, r.GetBody)
}

type ctxKey struct{}

// One key is never under way twice.
func TestKeyIsServedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty).On("team"), middleware.Scope("elsewhere"))
		release := make(chan struct{})
		l.provider.Expect(t, providertest.Answer{Parts: []providertest.Part{providertest.Wait(release), providertest.Text(answered(5, 5))}})
		ctx := middleware.WithKey(middleware.WithScope(context.Background(), "team/a"), "doc-17")
		var wg sync.WaitGroup
		wg.Go(func() {
			resp, err := l.do(ctx, prompt)
			require.NoError(t, err)
			require.NoError(t, drain(resp))
		})
		synctest.Wait()
		open := l.book.Report().Open
		require.Len(t, open, 1)
		require.Equal(t, [2]string{"team/a", "doc-17"}, [2]string{open[0].Scope, open[0].Key})
		_, err := l.do(ctx, prompt)
		require.ErrorIs(t, err, budget.ErrInFlight)
		require.False(t, middleware.IsPause(err))
		close(release)
		wg.Wait()
	})
}
