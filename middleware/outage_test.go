package middleware_test

// DESIGN 7.6: an outage pauses the calls to a host and does not eat the cap.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// unfinished is a stream that ends without its end marker.
func unfinished(data ...string) providertest.Answer {
	a := providertest.SSE(data...)
	a.Parts = a.Parts[:len(a.Parts)-1]
	return a
}

const errorEvent = `{"error":{"message":"no","code":"server_error"}}`

// TestWhatCountsAsAnOutage puts each ending between four failures and a fifth:
// only what fails counts, and only an answer starts the count anew.
func TestWhatCountsAsAnOutage(t *testing.T) {
	read := func(l *lab, ctx context.Context, body string) {
		if resp, err := l.do(ctx, body); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	scripted := func(body string, a providertest.Answer) func(*lab) {
		return func(l *lab) {
			l.provider.Expect(l.t, a)
			read(l, context.Background(), body)
		}
	}
	const fails, tellsNothing, answers = 4, 5, 9 // how many failures beside it make the pause
	for name, c := range map[string]struct {
		end   func(*lab)
		until int
	}{
		"500":                        {scripted(prompt, refusal(500, "server_error")), fails},
		"502 of a proxy":             {scripted(prompt, providertest.JSON(502, "<html>")), fails},
		"503":                        {scripted(prompt, refusal(503, "server_error")), fails},
		"504":                        {scripted(prompt, providertest.JSON(504, "")), fails},
		"408":                        {scripted(prompt, refusal(408, "timeout")), fails},
		"closed before its answer":   {scripted(prompt, providertest.Answer{Parts: []providertest.Part{providertest.Hangup()}}), fails},
		"answer cut":                 {scripted(prompt, providertest.JSON(200, answered(60, 40)).CutAt(40)), fails},
		"empty answer":               {scripted(prompt, providertest.JSON(200, "")), fails},
		"page of a proxy":            {scripted(prompt, providertest.JSON(200, "<html>")), fails},
		"error behind 200":           {scripted(prompt, providertest.JSON(200, errorEvent)), fails},
		"stream cut":                 {scripted(streamed, providertest.SSE(word("a"), word("b")).CutAt(200)), fails},
		"stream without its end":     {scripted(streamed, unfinished(word("a"))), fails},
		"stream with an error":       {scripted(streamed, unfinished(word("a"), errorEvent)), fails},
		"stream with an error, done": {scripted(streamed, providertest.SSE(word("a"), errorEvent)), fails},
		"no header in time": {func(l *lab) {
			l.provider.Expect(l.t, stall())
			read(l, context.Background(), prompt)
		}, fails},
		"stream silent": {func(l *lab) {
			l.provider.Expect(l.t, providertest.Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}, Parts: append([]providertest.Part{providertest.Event(word("a"))}, stall().Parts...)})
			read(l, context.Background(), streamed)
		}, fails},
		"the caller's deadline": {func(l *lab) {
			l.provider.Expect(l.t, stall())
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			read(l, ctx, prompt)
		}, fails},
		"the caller's deadline in a stream": {func(l *lab) {
			l.provider.Expect(l.t, providertest.Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}, Parts: append([]providertest.Part{providertest.Event(word("a"))}, stall().Parts...)})
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			read(l, ctx, streamed)
		}, fails},

		"cancelled": {func(l *lab) {
			l.provider.Expect(l.t, stall())
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			read(l, ctx, prompt)
		}, tellsNothing},
		"a stream closed early": {func(l *lab) {
			l.provider.Expect(l.t, providertest.SSE(word("a"), word("b"), finish, lastUsage))
			resp, err := l.do(context.Background(), streamed)
			require.NoError(l.t, err)
			_, err = resp.Body.Read(make([]byte, 10))
			require.NoError(l.t, err)
			resp.Body.Close()
		}, tellsNothing},
		"never sent": {func(l *lab) {
			r := request(context.Background(), prompt)
			r.Header.Set("X-Dial", "refused")
			_, err := l.guard.RoundTrip(r)
			require.ErrorIs(l.t, err, syscall.ECONNREFUSED)
		}, tellsNothing},
		"too large for the book": {func(l *lab) {
			_, err := l.do(context.Background(), strings.Replace(prompt, "100", fmt.Sprint(int64(plenty)), 1))
			require.ErrorIs(l.t, err, budget.ErrExhausted)
		}, tellsNothing},

		"answer":               {scripted(prompt, providertest.JSON(200, answered(60, 40))), answers},
		"answer without usage": {scripted(prompt, providertest.JSON(200, `{"choices":[]}`)), answers},
		"stream":               {scripted(streamed, providertest.SSE(word("a"), finish, lastUsage)), answers},
		"stream, no usage":     {scripted(streamed, providertest.SSE(word("a"), finish)), answers},
		"stream, no [DONE]":    {scripted(streamed, unfinished(word("a"), finish)), answers},
		"refusal, free":        {scripted(prompt, refusal(429, "slow_down")), answers},
		"refusal, overloaded":  {scripted(prompt, refusal(503, "overloaded_error")), answers},
		"refusal, unknown":     {scripted(prompt, refusal(400, "never_heard_of")), answers},
		"redirect": {scripted(prompt, providertest.Answer{Status: 307, Header: http.Header{"Location": {"/v2"}},
			Parts: []providertest.Part{providertest.Text("")}}), answers},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l *lab
				l = newLab(t, budget.Tokens(plenty), once, middleware.MaxWait(0), middleware.Timeouts(time.Minute, time.Minute),
					middleware.Base(base(func(r *http.Request) (*http.Response, error) {
						if r.Header.Get("X-Dial") != "" {
							return nil, syscall.ECONNREFUSED
						}
						return l.provider.RoundTripper().RoundTrip(r)
					})))
				failures := 0
				fail := func() {
					failures++
					l.provider.Expect(t, refusal(500, "server_error"))
					resp, err := l.do(context.Background(), prompt)
					require.NoError(t, err, "failure %d", failures)
					resp.Body.Close()
				}
				for range 4 {
					fail()
				}
				c.end(l)
				for failures < c.until {
					fail()
				}
				_, err := l.do(context.Background(), prompt) // nothing is scripted: it must not leave
				var outage *middleware.OutageError
				require.ErrorAs(t, err, &outage)
				require.Equal(t, middleware.OutageError{Host: "provider.test", Failed: outage.Failed, Pauses: 1, At: outage.At}, *outage)
			})
		})
	}
}

// What a call gets that fails in an outage, and one that comes later.
func TestOutagePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := newLab(t, budget.Tokens(plenty), middleware.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 5 {
			l.provider.Expect(t, refusal(500, "server_error"))
		}
		resp, err := l.do(context.Background(), prompt) // 4 attempts
		require.NoError(t, err)
		require.Equal(t, 500, resp.StatusCode)
		_, err = l.do(context.Background(), prompt) // the fifth failure, though three attempts are left
		require.True(t, middleware.IsPause(err) && middleware.IsDenied(err), "%v", err)
		opened := time.Now()
		require.Equal(t, opened.Add(15*time.Second), middleware.RetryAt(err))
		require.ErrorContains(t, err, "5 attempts in a row at provider.test failed")
		require.ErrorContains(t, err, "HTTP 500")
		require.NotContains(t, err.Error(), "sesame")
		before := l.book.Report()
		require.EqualValues(t, 5, before.Requests)
		l.tokens(0, 5*hold(t, prompt))

		for _, lang := range []string{"", "go"} { // nothing is reserved for what comes now
			r := request(context.Background(), prompt)
			r.Header.Set("X-Stainless-Lang", lang)
			resp, err = l.guard.RoundTrip(r)
			if lang != "" {
				require.NoError(t, err)
				require.Equal(t, [4]string{"false", "outage", "provider_paused", "402 Payment Required"}, [4]string{
					resp.Header.Get("X-Should-Retry"), resp.Header.Get("X-Tollbook-Denied"), resp.Header.Get("X-Tollbook-Paused"), resp.Status})
				err = &sdkError{402, resp}
			}
			require.True(t, middleware.IsPause(err) && middleware.IsDenied(err), "%v", err)
			require.True(t, opened.Add(15*time.Second).Equal(middleware.RetryAt(err)))
		}
		require.Equal(t, before.Seq, l.book.Report().Seq)

		// Then one probe, whose failure pauses for twice as long, up to a bound.
		for _, pause := range []time.Duration{30, 60, 120, 240, 300, 300} {
			time.Sleep(time.Until(middleware.RetryAt(err)))
			l.provider.Expect(t, refusal(500, "server_error"))
			_, err = l.do(context.Background(), prompt)
			require.Equal(t, time.Now().Add(pause*time.Second), middleware.RetryAt(err))
			_, err = l.do(context.Background(), prompt)
			require.Equal(t, time.Now().Add(pause*time.Second), middleware.RetryAt(err))
		}
		time.Sleep(5 * time.Minute)
		l.provider.Expect(t, providertest.JSON(200, answered(5, 5)), providertest.JSON(200, answered(5, 5)))
		l.must(prompt)
		l.must(prompt)
		require.Equal(t, 7, strings.Count(log.String(), "calls to it pause"))
		require.Equal(t, 1, strings.Count(log.String(), "calls to it go on"))
		require.NotContains(t, log.String(), "sesame")
	})
}

// Of many callers who come when the pause is over, one is the probe.
func TestOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var seen atomic.Int64
		healthy := false
		l := newLab(t, budget.Tokens(plenty), once, middleware.OutageAfter(1), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			seen.Add(1)
			if !healthy {
				return reply(r, 500, nil, ""), nil
			}
			resp := reply(r, 200, nil, answered(5, 5))
			<-answer
			return resp, nil
		})))
		_, err := l.do(context.Background(), prompt)
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		healthy = true
		var wg sync.WaitGroup
		var paused atomic.Int64
		for range 20 {
			wg.Go(func() {
				if _, err := l.do(context.Background(), prompt); err != nil {
					require.True(t, middleware.IsPause(err))
					require.True(t, middleware.RetryAt(err).After(time.Now()))
					paused.Add(1)
				}
			})
		}
		synctest.Wait()
		require.EqualValues(t, [2]int64{2, 19}, [2]int64{seen.Load(), paused.Load()})
		close(answer)
		wg.Wait()
		l.must(prompt)
		require.EqualValues(t, 3, l.book.Report().Requests)
	})
}

// A probe that never tells does not keep others away for ever.
func TestProbeThatNeverTells(t *testing.T) {
	for name, probe := range map[string]func(*lab){
		"a stream that nobody closes": func(l *lab) {
			l.provider.Expect(l.t, providertest.Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}, Parts: append([]providertest.Part{providertest.Event(word("a"))}, stall().Parts...)})
			_, err := l.do(context.Background(), streamed)
			require.NoError(l.t, err)
		},
		"cancelled": func(l *lab) {
			l.provider.Expect(l.t, stall())
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			_, err := l.do(ctx, prompt)
			require.ErrorIs(l.t, err, context.Canceled)
		},
		"no room": func(l *lab) {
			_, err := l.do(context.Background(), strings.Replace(prompt, "100", fmt.Sprint(int64(plenty)), 1))
			require.ErrorIs(l.t, err, budget.ErrExhausted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty), once, middleware.MaxWait(0), middleware.OutageAfter(1))
				l.provider.Expect(t, refusal(500, "server_error"))
				_, err := l.do(context.Background(), prompt)
				require.NoError(t, err)
				time.Sleep(15 * time.Second)
				again := time.Now().Add(15 * time.Second)
				probe(l)
				_, err = l.do(context.Background(), prompt)
				require.Equal(t, again, middleware.RetryAt(err))
				time.Sleep(15 * time.Second)
				l.provider.Expect(t, providertest.JSON(200, answered(5, 5)))
				l.must(prompt)
			})
		})
	}
}

// A host is not another, and who wants none of it gets none.
func TestOutageIsOfAHost(t *testing.T) {
	fails := func(opts ...middleware.Option) (*lab, func(host string) error) {
		l := newLab(t, budget.Tokens(plenty), append(opts, once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			return reply(r, 500, nil, ""), nil
		})))...)
		return l, func(host string) error {
			r := request(context.Background(), prompt)
			r.URL.Host = host
			_, err := l.guard.RoundTrip(r)
			return err
		}
	}
	_, call := fails(middleware.OutageAfter(2))
	for range 2 {
		require.NoError(t, call("a.test"))
	}
	require.Error(t, call("a.test"))
	require.NoError(t, call("b.test"))
	l, call := fails(middleware.OutageAfter(0))
	for range 100 {
		require.NoError(t, call("a.test"))
	}
	require.EqualValues(t, 100, l.book.Report().Requests)
}

// What an outage costs with many workers: the holds under way, and five.
func TestOutageCost(t *testing.T) {
	const workers, each = 64, 100
	for name, fail := range map[string]func(r *http.Request, n int64) (*http.Response, error){
		"stalls": func(r *http.Request, _ int64) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"500 at once": func(r *http.Request, _ int64) (*http.Response, error) { return reply(r, 500, nil, ""), nil },
		"500 at the same time": func(r *http.Request, _ int64) (*http.Response, error) {
			time.Sleep(time.Second)
			return reply(r, 500, nil, ""), nil
		},
		"500 one by one": func(r *http.Request, n int64) (*http.Response, error) {
			time.Sleep(time.Duration(n) * time.Second)
			return reply(r, 500, nil, ""), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen atomic.Int64
				var net, most int64
				l := newLab(t, budget.Observe(func(e journal.Entry) {
					net += e.Amount
					most = max(most, net)
				}), middleware.Timeouts(2*time.Minute, 2*time.Minute),
					middleware.Base(base(func(r *http.Request) (*http.Response, error) {
						_ = reply(r, 0, nil, "")
						return fail(r, seen.Add(1))
					})))
				var wg sync.WaitGroup
				var paused atomic.Int64
				for range workers {
					wg.Go(func() {
						for range each {
							if _, err := l.do(context.Background(), prompt); middleware.IsPause(err) {
								paused.Add(1)
								return
							}
						}
					})
				}
				wg.Wait()
				require.EqualValues(t, workers, paused.Load(), "every worker is paused")
				require.LessOrEqual(t, seen.Load(), int64(workers+5))
				require.LessOrEqual(t, most, (workers+5)*hold(t, prompt))
				l.tokens(0, seen.Load()*hold(t, prompt)) // what was sent is booked
				t.Logf("%d attempts left; net was %d holds at most", seen.Load(), most/hold(t, prompt))
			})
		})
	}
}

// What waits while the host falls into trouble is not sent any more: neither an
// attempt that waits for its time nor a call that waits for room. What fails
// late does not prolong the pause.
func TestOutageWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := hold(t, prompt)
		var sent []string
		begin := time.Now()
		l := newLab(t, budget.Tokens(4*held), middleware.OutageAfter(1), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			who := r.Header.Get("X-Who")
			sent = append(sent, who)
			switch who {
			case "limited":
				return reply(r, 429, http.Header{"Retry-After": {"7"}}, `{"error":{"code":"slow_down"}}`), nil
			case "failing":
				time.Sleep(5 * time.Second)
				return reply(r, 500, nil, ""), nil
			case "failing late":
				time.Sleep(5500 * time.Millisecond)
				return reply(r, 500, nil, ""), nil
			}
			time.Sleep(6 * time.Second)
			return nil, syscall.ECONNREFUSED // and its hold is given back
		})))
		callers := []string{"limited", "failing", "failing late", "dialling", "waiting"}
		errs := make([]error, len(callers))
		var wg sync.WaitGroup
		for i, who := range callers {
			wg.Go(func() {
				r := request(context.Background(), prompt)
				r.Header.Set("X-Who", who)
				_, errs[i] = l.guard.RoundTrip(r)
			})
			synctest.Wait()
		}
		require.Equal(t, 1, l.book.Report().Waiting)
		wg.Wait()
		require.Equal(t, callers[:4], sent)
		for i, err := range errs {
			who := callers[i]
			outage, paused := errors.AsType[*middleware.OutageError](err)
			require.Equal(t, who != "dialling", paused, "%s: %v", who, err)
			if paused {
				require.Equal(t, begin.Add(20*time.Second), outage.At, who)
			}
		}
		l.tokens(0, 2*held)
		require.EqualValues(t, 3, l.book.Report().Requests)
	})
}
