// Proves how the loop ends: how many attempts there are, how long it waits
// between them, what error the caller gets, and that whoever keeps the books is
// asked before each further attempt and can refuse it (I7).
package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// denial is how a budget's refusal looks to the loop.
type denial struct{}

func (denial) Error() string { return "test: budget exhausted" }
func (denial) Denied() bool  { return true }

var (
	errDenied   = error(denial{})
	errPlain    = errors.New("test: plain")
	transient   = error(&retry.StatusError{Status: 503, Class: retry.Transient})
	badRequest  = error(&retry.StatusError{Status: 400, Class: retry.Permanent})
	quota       = error(&retry.StopError{Reason: "insufficient_quota"})
	errAttempts = errors.New("test: more attempts than the script has")
)

// asks is a foreign error that wants to be tried again, after a while.
type asks time.Duration

func (asks) Error() string                       { return "test: asks" }
func (asks) Retryable() bool                     { return true }
func (a asks) RetryAfter() (time.Duration, bool) { return time.Duration(a), true }

// limited is a 429 that asks to wait.
func limited(value string) error {
	return retry.CheckStatus(429, http.Header{"Retry-After": {value}})
}

// steady makes our own waits 1 s, 2 s, 3 s, … so that a table can name them.
func steady(failed int) time.Duration { return time.Duration(failed) * time.Second }

func TestAttemptsAndWaits(t *testing.T) {
	const s = time.Second
	tests := map[string]struct {
		policy retry.Policy
		script []func() error // one per attempt
		starts []time.Duration
		want   error // the very error, unwrapped; nil is success
		stop   time.Duration
	}{
		"success":                       {script: errs(nil), starts: []time.Duration{0}},
		"third time lucky":              {script: errs(transient, transient, nil), starts: []time.Duration{0, 1 * s, 3 * s}},
		"permanent":                     {script: errs(badRequest), starts: []time.Duration{0}, want: badRequest}, // case 45
		"unknown is permanent":          {script: errs(errPlain), starts: []time.Duration{0}, want: errPlain},
		"permanent on the last attempt": {script: errs(transient, transient, transient, badRequest), starts: []time.Duration{0, 1 * s, 3 * s, 6 * s}, want: badRequest},
		"attempts used up":              {script: errs(transient, transient, transient, transient), starts: []time.Duration{0, 1 * s, 3 * s, 6 * s}, want: transient},
		"one attempt":                   {policy: retry.Policy{Attempts: 1}, script: errs(transient), starts: []time.Duration{0}, want: transient},
		"less than none is one":         {policy: retry.Policy{Attempts: -1}, script: errs(transient), starts: []time.Duration{0}, want: transient},
		"quota stops":                   {script: errs(transient, quota), starts: []time.Duration{0, 1 * s}, want: quota},                  // case 38
		"own refusal":                   {script: errs(fmt.Errorf("wrapped: %w", errDenied)), starts: []time.Duration{0}, want: errDenied}, // case 46
		"attempt timed out":             {script: errs(context.DeadlineExceeded, nil), starts: []time.Duration{0, 1 * s}},
		"attempt cancelled":             {script: errs(context.Canceled), starts: []time.Duration{0}, want: context.Canceled},

		"the server's wait is the floor":    {script: []func() error{late("30"), late("0"), errs(nil)[0]}, starts: []time.Duration{0, 31 * s, 33 * s}}, // case 43
		"up to the longest wait":            {script: []func() error{late("60"), errs(nil)[0]}, starts: []time.Duration{0, 60 * s}},
		"own wait held to the longest":      {policy: retry.Policy{LongestWait: s}, script: errs(transient, transient, nil), starts: []time.Duration{0, s, 2 * s}},
		"no waiting":                        {policy: retry.Policy{LongestWait: -1}, script: errs(transient, transient, nil), starts: []time.Duration{0, 0, 0}},
		"longer than the longest wait":      {script: []func() error{late("1800")}, starts: []time.Duration{0}, stop: 1800 * s}, // case 41
		"… and so on the last attempt":      {policy: retry.Policy{Attempts: 2}, script: []func() error{errs(transient)[0], late("61")}, starts: []time.Duration{0, s}, stop: 62 * s},
		"a foreign error's wait":            {script: errs(fmt.Errorf("wrapped: %w", asks(9*s)), nil), starts: []time.Duration{0, 10 * s}},
		"a negative wait is none":           {script: errs(asks(-9*s), nil), starts: []time.Duration{0, s}},
		"a negative own wait is none":       {policy: retry.Policy{Backoff: func(int) time.Duration { return -s }}, script: errs(asks(2*s), nil), starts: []time.Duration{0, 2 * s}},
		"a broken header gives our own":     {script: []func() error{late("1e100"), errs(nil)[0]}, starts: []time.Duration{0, s}},
		"a permanent failure does not wait": {script: errs(retry.CheckStatus(400, http.Header{"Retry-After": {"1800"}})), starts: []time.Duration{0}, want: badRequest},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var starts []time.Duration
				if tt.policy.Backoff == nil {
					tt.policy.Backoff = steady
				}
				res, err := retry.Do(t.Context(), tt.policy, func(_ context.Context, n int) (int, error) {
					starts = append(starts, time.Since(begin))
					require.Len(t, starts, n, "attempts are numbered from one")
					if n > len(tt.script) {
						return n, errAttempts
					}
					return n, tt.script[n-1]()
				})
				require.Equal(t, tt.starts, starts)
				require.Equal(t, len(starts), res, "the last attempt's result comes beside the error")
				require.Equal(t, starts[len(starts)-1], time.Since(begin), "no wait after the last attempt")
				switch {
				case tt.stop != 0:
					stop, ok := errors.AsType[*retry.StopError](err)
					require.True(t, ok, "%v", err)
					require.True(t, stop.Pause())
					require.Equal(t, begin.Add(tt.stop), stop.RetryAt())
					require.ErrorAs(t, err, new(*retry.StatusError), "the failure stays visible")
				case tt.want == badRequest:
					require.IsType(t, tt.want, err)
				case tt.want == errDenied:
					require.ErrorIs(t, err, tt.want)
				default:
					require.True(t, err == tt.want, "want the bare %v, got %#v", tt.want, err)
				}
			})
		})
	}
}

func errs(list ...error) (script []func() error) {
	for _, err := range list {
		script = append(script, func() error { return err })
	}
	return script
}

// late makes the error when the attempt happens: its wait counts from then.
func late(retryAfter string) func() error { return func() error { return limited(retryAfter) } }

// case 44: a server that always says 429 sees exactly as many requests as there
// are attempts, and its last answer is there to be handed on.
func TestServerSeesEveryAttemptOnce(t *testing.T) {
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, "answer ", seen.Add(1))
	}))
	client := server.Client()
	defer server.Close()
	var resp *http.Response
	policy := retry.Policy{
		Attempts: 4,
		Backoff:  func(int) time.Duration { return 0 },
		Before:   func(context.Context, retry.Attempt) error { return resp.Body.Close() },
	}
	last, err := retry.Do(t.Context(), policy, func(ctx context.Context, _ int) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
		require.NoError(t, err)
		if resp, err = client.Do(req); err != nil {
			return nil, err
		}
		return resp, retry.CheckStatus(resp.StatusCode, resp.Header)
	})
	require.ErrorAs(t, err, new(*retry.StatusError))
	body, err := io.ReadAll(last.Body)
	require.NoError(t, err)
	require.NoError(t, last.Body.Close())
	require.Equal(t, "answer 4", string(body))
	require.EqualValues(t, 4, seen.Load())
}

// Before is asked after the decision and ahead of the wait; a refusal ends it.
func TestBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var asked []retry.Attempt
		attempts := 0
		_, err := retry.Do(t.Context(), retry.Policy{
			Backoff: steady,
			Before: func(_ context.Context, next retry.Attempt) error {
				asked = append(asked, next)
				if next.N == 3 {
					return fmt.Errorf("extension: %w", errDenied)
				}
				return nil
			},
		}, func(context.Context, int) (int, error) {
			attempts++
			return 0, transient
		})
		require.Equal(t, 2, attempts)
		require.Equal(t, []retry.Attempt{
			{N: 2, Wait: 1 * time.Second, Class: retry.Transient, Last: transient},
			{N: 3, Wait: 2 * time.Second, Class: retry.Transient, Last: transient},
		}, asked)
		require.Equal(t, time.Second, time.Since(begin), "a refused attempt is not waited for")

		require.ErrorIs(t, err, errDenied)
		require.ErrorIs(t, err, transient)
		abandoned, ok := errors.AsType[*retry.AbandonedError](err)
		require.True(t, ok)
		require.Equal(t, 3, abandoned.N)
		require.Equal(t, retry.Denied, retry.Classify(err), "a loop around this one must not try again") // case 46
		require.Equal(t, retry.Permanent, retry.Classify(&retry.AbandonedError{Reason: errPlain, Last: transient}))
	})
}

// Nobody is asked for an attempt that will not happen.
func TestBeforeIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := retry.Policy{Attempts: 1, Before: func(context.Context, retry.Attempt) error { panic("asked") }}
		for _, err := range []error{nil, badRequest, quota, errDenied, transient, limited("1800")} {
			_, got := retry.Do(t.Context(), policy, func(context.Context, int) (int, error) { return 0, err })
			require.Equal(t, err == nil, got == nil)
		}
	})
}

// Under any policy and any failures: as many attempts as allowed and no more,
// Before asked once per further attempt, each wait between the server's floor and the
// longest wait, our own within its doubling bound.
func TestAnyPolicy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policy := retry.Policy{
			Attempts:    rapid.IntRange(1, 8).Draw(rt, "attempts"),
			FirstWait:   time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "first")),
			LongestWait: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(rt, "longest")),
		}
		floors := rapid.SliceOfN(rapid.Int64Range(0, int64(policy.LongestWait)*9/8), 8, 8).Draw(rt, "floors")
		var faults []string // reported outside the bubble, whose goroutine rapid does not own
		fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
		synctest.Test(t, func(*testing.T) {
			begin, total, asked, bound := time.Now(), time.Duration(0), 0, policy.FirstWait
			policy.Before = func(_ context.Context, next retry.Attempt) error {
				asked++
				floor := time.Duration(floors[next.N-2])
				if own := next.Wait - floor; own < 0 || own > bound || next.Wait > policy.LongestWait {
					fault("attempt %d: wait %v, floor %v, own at most %v", next.N, next.Wait, floor, bound)
				}
				total += next.Wait
				bound *= 2
				return nil
			}
			n, err := retry.Do(context.Background(), policy, func(_ context.Context, n int) (int, error) {
				return n, &retry.StatusError{Class: retry.RateLimited, At: time.Now().Add(time.Duration(floors[n-1]))}
			})
			if asked != n-1 || n > policy.Attempts || time.Since(begin) != total {
				fault("%d attempts of %d, asked %d times, waited %v of %v", n, policy.Attempts, asked, time.Since(begin), total)
			}
			stopped := retry.Classify(err) == retry.Stop
			if tooLong := time.Duration(floors[n-1]) > policy.LongestWait; tooLong != stopped || (!stopped && n != policy.Attempts) {
				fault("after %d attempts of %d and a floor of %v: %v", n, policy.Attempts, time.Duration(floors[n-1]), err)
			}
		})
		if len(faults) > 0 {
			rt.Fatal(faults)
		}
	})
}

// Jitter spreads over the whole range and not around its middle, also where the
// longest wait bounds it.
func TestFullJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds = 2000
		var low, high [4]int
		policy := retry.Policy{Attempts: 3, FirstWait: time.Second, LongestWait: time.Second}
		policy.Before = func(_ context.Context, next retry.Attempt) error {
			switch {
			case next.Wait < time.Second/10:
				low[next.N]++
			case next.Wait > time.Second*9/10:
				high[next.N]++
			}
			return nil
		}
		for range rounds {
			_, err := retry.Do(t.Context(), policy, func(context.Context, int) (int, error) { return 0, transient })
			require.True(t, err == transient)
		}
		for n := 2; n <= 3; n++ { // a tenth each, within seven standard deviations
			require.InDelta(t, rounds/10, low[n], rounds/20)
			require.InDelta(t, rounds/10, high[n], rounds/20)
		}
	})
}
