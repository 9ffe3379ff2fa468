package middleware_test

// DESIGN 7.6, 7.7: what is tried again and how long, what is a pause, and what
// is handed on at the end.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

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
		require.Equal(t, 400, call(refusal(400, "invalid_value")).StatusCode)
		require.Equal(t, 1, strings.Count(log.String(), "retries by itself")) // case 44: warned, once
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

// A base that leaves out what the contract asks for is no reason to fail.
func TestBareResponse(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		_ = reply(r, 0, nil, "") // reads the request
		return &http.Response{StatusCode: 501}, nil
	})))
	r := request(context.Background(), prompt)
	r.Header.Set("X-Stainless-Lang", "go")
	resp, err := l.guard.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, drain(resp))
	l.tokens(0, hold(t, prompt))
}
