package main

// What becomes of an item, by the answers it gets and by when the run stops.

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

const (
	chat      = `{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`
	chatChunk = `{"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}`
)

// newJob is a job over a book in memory and a provider in memory.
func newJob(t *testing.T, drain context.Context, base http.RoundTripper, limit int64) (*job, *budget.Book) {
	t.Helper()
	book := budget.Memory(budget.Tokens(limit))
	j := &job{provider: &provider{base: "http://host/v1"}, attempts: 3, pace: &pacer{}, progress: new(checkpoint.Progress), log: slog.New(slog.DiscardHandler)}
	j.halt, j.cancel = context.WithCancel(drain)
	t.Cleanup(j.cancel)
	guard := middleware.Transport(book, middleware.Base(departures{base}), middleware.Retry(retry.Policy{Attempts: 3, FirstWait: -1, Before: j.before}))
	t.Cleanup(func() {
		guard.Wait()
		assert.NoError(t, book.Close())
	})
	j.client = &http.Client{Transport: guard}
	return j, book
}

// task is the only item there is.
func task(t *testing.T, edit ...string) checkpoint.Task[item] {
	t.Helper()
	it, err := parseItem([]byte(request("a", append([]string{`"messages"`, `"max_tokens": 10, "messages"`}, edit...)...)))
	require.NoError(t, err)
	return checkpoint.Task[item]{Item: it, Key: "a"}
}

func TestItemEnds(t *testing.T) {
	streamed := []string{`"model"`, `"stream": true, "model"`}
	serverError := providertest.JSON(500, `{"error":{"message":"no","type":"server_error"}}`)
	page := providertest.JSON(200, "<h1>Welcome</h1>")
	limited := providertest.JSON(429, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`)
	for name, c := range map[string]struct {
		edit    []string
		answers []providertest.Answer
		line    string // part of the output line; empty: none
		check   func(t *testing.T, err error)
	}{
		"answer":                     {nil, []providertest.Answer{providertest.JSON(200, chat)}, `"status_code":200`, nil},
		"stream":                     {streamed, []providertest.Answer{providertest.SSE(chatChunk)}, `"content":"Hi"`, nil},
		"stream asked, whole answer": {streamed, []providertest.Answer{providertest.JSON(200, chat)}, `"content":"Hi"`, nil},
		"refused for good":           {nil, []providertest.Answer{providertest.JSON(400, `{"error":{"code":"bad"}}`)}, `"status_code":400`, nil},
		"broken stream, then whole":  {streamed, []providertest.Answer{providertest.SSE(chatChunk).CutAt(20), providertest.SSE(chatChunk)}, `"content":"Hi"`, nil},
		"page of a proxy, then JSON": {nil, []providertest.Answer{page, providertest.JSON(200, chat)}, `"status_code":200`, nil},
		"error behind 200":           {nil, []providertest.Answer{providertest.JSON(200, `{"error":{"code":"x"}}`), page, page}, "", isDead(3)},
		"broken stream each time":    {streamed, []providertest.Answer{providertest.SSE(chatChunk).CutAt(20), providertest.SSE(chatChunk).CutAt(20), providertest.SSE(chatChunk).CutAt(20)}, "", isDead(3)},
		"server error each time":     {nil, []providertest.Answer{serverError, serverError, serverError}, "", isDead(3)},
		"rate limited each time": {nil, []providertest.Answer{limited, limited, limited}, "", func(t *testing.T, err error) {
			assert.WithinDuration(t, time.Now().Add(patience), middleware.RetryAt(err), time.Second)
			assert.False(t, isPause(err))
		}},
		"quota":         {nil, []providertest.Answer{providertest.JSON(429, `{"error":{"code":"insufficient_quota"}}`)}, "", isQuota},                                               // case 38
		"empty account": {nil, []providertest.Answer{providertest.JSON(400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}`)}, "", isQuota}, // case 39
		"bad key": {nil, []providertest.Answer{providertest.JSON(401, `{"error":{"code":"invalid_api_key"}}`)}, "", func(t *testing.T, err error) {
			assert.True(t, isPause(err), "the items are not to blame")
			assert.Equal(t, "provider", reasonOf(err))
		}},
		"money is needed": {nil, []providertest.Answer{providertest.JSON(402, `{}`)}, "", isQuota},
		"come back later": {nil, []providertest.Answer{{Status: 429, Header: http.Header{"Retry-After": {"1800"}}, Parts: limited.Parts}}, "", func(t *testing.T, err error) { // case 41
			isQuota(t, err)
			assert.WithinDuration(t, time.Now().Add(30*time.Minute), middleware.RetryAt(err), time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				provider := providertest.New(providertest.Options{})
				provider.Expect(t, c.answers...)
				j, book := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
				j.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				line, err := j.do(t.Context(), task(t, c.edit...))
				if c.line != "" {
					require.NoError(t, err)
					assert.Contains(t, string(line.JSON), c.line)
				} else {
					require.Error(t, err)
					assert.Empty(t, line.JSON)
					c.check(t, err)
				}
				assert.Zero(t, book.Report().Open)
			})
		})
	}
}

func isQuota(t *testing.T, err error) {
	assert.True(t, isPause(err))
	assert.Equal(t, "quota", reasonOf(err))
}

// isDead wants a dead letter, which checkpoint records with its attempts.
func isDead(attempts int) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		dead := checkpoint.Dead(attempts, errors.Unwrap(err))
		assert.Equal(t, dead, err)
	}
}

// marks.jsonl says why an item gave up, in no words of the provider's.
func TestWording(t *testing.T) {
	said := errors.New(`net/http: malformed HTTP response "Dear \"Bob\", Hello"`)
	assert.Equal(t, `Post "…": net/http: malformed HTTP response "…"`, wording(&url.Error{Op: "Post", URL: "http://host/v1?key=Hello", Err: said}))
}

func TestUnreachableProviderIsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := roundTrip(func(r *http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
		j, book := newJob(t, t.Context(), refused, 1_000_000)
		_, err := j.do(t.Context(), task(t))
		assert.True(t, isPause(err))
		assert.Equal(t, "provider", reasonOf(err))
		assert.Zero(t, book.Report().Tokens.Net)
	})
}

// An outage stops the run before it uses up budget and items; if the provider
// answered before, when the attempts after the guard's first three pauses failed.
func TestOutageIsAPause(t *testing.T) {
	broken := providertest.JSON(500, `{"error":{"message":"no","type":"server_error"}}`)
	for name, answered := range map[string]bool{"never answered": false, "answered before": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				provider := providertest.New(providertest.Options{})
				j, book := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
				if answered {
					provider.Expect(t, providertest.JSON(200, chat))
					_, err := j.do(t.Context(), task(t))
					require.NoError(t, err)
				}
				provider.Expect(t, broken, broken, broken, broken, broken)
				_, err := j.do(t.Context(), task(t))
				isDead(3)(t, err)
				begin := time.Now()
				if answered {
					provider.Expect(t, broken, broken, broken)
					j.attempts = 6 // or the item would be given up first
				}
				_, err = j.do(t.Context(), task(t))
				assert.True(t, isPause(err), "%v", err)
				assert.Equal(t, "provider", reasonOf(err))
				pause := 15 * time.Second
				if answered {
					assert.Equal(t, 7*pause, time.Since(begin))
					pause *= 8
				}
				assert.Equal(t, time.Now().Add(pause), middleware.RetryAt(err))
				assert.Zero(t, book.Report().Open)
				assert.Error(t, j.halt.Err(), "the run stops")
			})
		})
	}
}

// A provider that fails often is no outage: the run goes on.
func TestFailuresInARowByChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := providertest.JSON(500, `{"error":{"message":"no","type":"server_error"}}`)
		provider := providertest.New(providertest.Options{})
		j, _ := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
		provider.Expect(t, providertest.JSON(200, chat), broken, broken, broken, broken, broken, providertest.JSON(200, chat))
		_, err := j.do(t.Context(), task(t))
		require.NoError(t, err)
		_, err = j.do(t.Context(), task(t))
		isDead(3)(t, err)
		line, err := j.do(t.Context(), task(t))
		require.NoError(t, err)
		assert.Contains(t, string(line.JSON), `"status_code":200`)

		provider.Expect(t, broken, broken, broken, broken, broken, broken)
		_, err = j.do(t.Context(), task(t))
		isDead(3)(t, err)
		_, err = j.do(t.Context(), task(t))
		isDead(3)(t, err) // two attempts before the pause and one after it
		assert.False(t, isPause(err))
		assert.NoError(t, j.halt.Err())
	})
}

// An attempt that an outage keeps from leaving is none of the item's: here the
// second one of the first item, held for and waiting when the others fail.
func TestOutageUsesUpNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider := providertest.New(providertest.Options{})
		begin := time.Now()
		base := departures{roundTrip(func(r *http.Request) (*http.Response, error) {
			if time.Since(begin) > 10*time.Second {
				return provider.RoundTripper().RoundTrip(r)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			return &http.Response{StatusCode: 500, Header: http.Header{}, Body: http.NoBody}, nil
		})}
		j, book := newJob(t, t.Context(), base, 1_000_000)
		j.attempts = 2
		j.answers.Add(1)
		guard := middleware.Transport(book, middleware.Base(base), middleware.Retry(retry.Policy{
			Attempts: 2, Backoff: func(int) time.Duration { return 2 * time.Second }, Before: j.before}))
		j.client = &http.Client{Transport: guard}
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(min(i, 1)) * time.Second)
				it := task(t)
				it.Key = string(rune('a' + i))
				line, err := j.do(t.Context(), it)
				if assert.NoError(t, err) {
					assert.Contains(t, string(line.JSON), `"status_code":200`)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, int64(10), j.requests.Load())
	})
}

// A run that stops does not wait for the end of a pause.
func TestStopInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := providertest.JSON(500, `{"error":{"message":"no","type":"server_error"}}`)
		provider := providertest.New(providertest.Options{})
		drain, stop := context.WithCancel(t.Context())
		j, _ := newJob(t, drain, provider.RoundTripper(), 1_000_000)
		provider.Expect(t, providertest.JSON(200, chat), broken, broken, broken, broken, broken)
		for range 2 {
			_, _ = j.do(t.Context(), task(t))
		}
		time.AfterFunc(5*time.Second, stop)
		begin := time.Now()
		_, err := j.do(t.Context(), task(t))
		assert.ErrorIs(t, err, errDraining)
		assert.True(t, isPause(err), "the item stays pending")
		assert.Equal(t, 5*time.Second, time.Since(begin))
	})
}

// Trouble that costs nothing pauses the run too, before it uses up the items.
func TestItemsGivenUpInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		overloaded := providertest.JSON(503, `{"error":{"message":"no","code":"overloaded_error"}}`)
		provider := providertest.New(providertest.Options{})
		j, book := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
		for i := 1; i <= maxGivenUp; i++ {
			provider.Expect(t, overloaded, overloaded, overloaded)
			_, err := j.do(t.Context(), task(t))
			assert.Equal(t, i == maxGivenUp, isPause(err), "item %d: %v", i, err)
			if i == maxGivenUp {
				assert.Equal(t, "provider", reasonOf(err))
			}
		}
		assert.Zero(t, book.Report().Tokens.Net)
	})
}

// Until the provider has answered an item, a refusal may be of all calls: a
// wrong address, a key without rights. Later it is the item's own.
func TestRefusalOfAllCallsIsAPause(t *testing.T) {
	for _, status := range []int{301, 307, 403, 404, 405, 407} {
		synctest.Test(t, func(t *testing.T) {
			provider := providertest.New(providertest.Options{})
			refusal := providertest.JSON(status, `{"detail":"Not Found"}`)
			provider.Expect(t, refusal, providertest.JSON(200, chat), refusal)
			j, _ := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
			_, err := j.do(t.Context(), task(t))
			assert.True(t, isPause(err), "%d: %v", status, err)
			assert.Equal(t, "provider", reasonOf(err))
			j.halt, j.cancel = context.WithCancel(t.Context()) // the next run
			_, err = j.do(t.Context(), task(t))
			require.NoError(t, err)
			line, err := j.do(t.Context(), task(t))
			require.NoError(t, err, "%d", status)
			assert.Contains(t, string(line.JSON), "Not Found")
			j.cancel()
		})
	}
}

// An item that comes back after a rate limit is one item, however often it is sent.
func TestSentCountsItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider := providertest.New(providertest.Options{Faults: providertest.Faults{providertest.RateLimited: 1}})
		j, _ := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
		for start := 1; start <= 2; start++ {
			it := task(t)
			it.Start = start
			_, err := j.do(t.Context(), it)
			assert.False(t, isPause(err), "%v", err)
		}
		assert.Equal(t, int64(1), j.sent.Load())
		assert.Equal(t, provider.Seen().Requests, j.requests.Load())
	})
}

// A rate limit that lets nothing through is a pause, and coming back to it
// takes longer each time, whatever Retry-After says.
func TestLastingRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := providertest.JSON(429, `{"error":{"code":"rate_limit_exceeded"}}`)
		now.Header = http.Header{"Retry-After": {"0"}}
		provider := providertest.New(providertest.Options{})
		j, _ := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
		come := func(index, start int, answers ...providertest.Answer) error {
			provider.Expect(t, answers...)
			it := task(t)
			it.Index, it.Start = index, start
			_, err := j.do(t.Context(), it)
			return err
		}
		for start := 1; start <= 3; start++ {
			err := come(0, start, now, now, now)
			assert.False(t, isPause(err), "start %d", start)
			assert.WithinDuration(t, time.Now().Add(time.Second<<(start-1)), middleware.RetryAt(err), 0)
		}
		require.NoError(t, come(1, 1, providertest.JSON(200, chat)))
		assert.False(t, isPause(come(0, 4, now, now, now)), "another item came through")
		for start := 5; start <= 6; start++ {
			assert.False(t, isPause(come(0, start, now, now, now)), "start %d", start)
		}
		err := come(0, 7, now, now, now)
		assert.True(t, isPause(err))
		assert.Equal(t, "quota", reasonOf(err))
	})
}

// case 14: where the book cannot write, nothing leaves and the run fails.
func TestClosedBookIsAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider := providertest.New(providertest.Options{})
		j, book := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
		require.NoError(t, book.Close())
		_, err := j.do(t.Context(), task(t))
		assert.True(t, isPause(err), "it stops the run")
		assert.Empty(t, reasonOf(err), "and is no pause of the contract")
		assert.Zero(t, provider.Seen().Requests)
	})
}

// A run that stops takes back what waits and lets finish what has left.
func TestDraining(t *testing.T) {
	t.Run("waits for its time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			provider := providertest.New(providertest.Options{})
			drain, stop := context.WithCancel(t.Context())
			j, book := newJob(t, drain, provider.RoundTripper(), 1_000_000)
			j.pace.RPM = 1
			require.NoError(t, j.pace.wait(t.Context(), 0))
			ended := make(chan error, 1)
			go func() {
				_, err := j.do(t.Context(), task(t))
				ended <- err
			}()
			synctest.Wait()
			stop()
			err := <-ended
			assert.ErrorIs(t, err, errDraining)
			assert.True(t, isPause(err), "the item stays pending")
			assert.Zero(t, provider.Seen().Requests)
			assert.Zero(t, book.Report().Requests)
		})
	})
	t.Run("waits for room", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			provider := providertest.New(providertest.Options{})
			drain, stop := context.WithCancel(t.Context())
			j, book := newJob(t, drain, provider.RoundTripper(), 100)
			held, err := book.Reserve(t.Context(), budget.Request{Tokens: 99})
			require.NoError(t, err)
			defer held.Close()
			ended := make(chan error, 1)
			go func() {
				_, err := j.do(t.Context(), task(t))
				ended <- err
			}()
			synctest.Wait()
			stop()
			assert.ErrorIs(t, <-ended, errDraining)
			assert.Zero(t, provider.Seen().Requests)
		})
	})
	t.Run("waits, while another finds no quota", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			provider := providertest.New(providertest.Options{Faults: providertest.Faults{providertest.OutOfQuota: 1}})
			j, _ := newJob(t, t.Context(), provider.RoundTripper(), 1_000_000)
			j.pace.RPM = 1
			ended := make(chan error, 2)
			for range 2 {
				go func() {
					_, err := j.do(t.Context(), task(t))
					ended <- err
				}()
			}
			<-ended
			<-ended
			assert.Equal(t, "quota", reasonOf(j.cause))
			assert.Equal(t, int64(1), provider.Seen().Requests)
		})
	})
	t.Run("has left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			provider := providertest.New(providertest.Options{Latency: time.Minute})
			drain, stop := context.WithCancel(t.Context())
			j, _ := newJob(t, drain, provider.RoundTripper(), 1_000_000)
			ended := make(chan checkpoint.Line, 1)
			go func() {
				line, err := j.do(t.Context(), task(t))
				assert.NoError(t, err)
				ended <- line
			}()
			synctest.Wait()
			stop()
			assert.Contains(t, string((<-ended).JSON), `"status_code":200`)
		})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
