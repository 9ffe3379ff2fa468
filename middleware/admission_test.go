package middleware_test

// I4, I5: what does not fit the book, or cannot be booked, does not leave.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// together makes calls of these sizes at once. Every one that leaves waits for
// the others to be refused.
func together(t *testing.T, l *lab, sizes ...int64) (errs []error) {
	t.Helper()
	done := make(chan struct{})
	l.provider.Expect(t, providertest.Answer{Parts: []providertest.Part{providertest.Wait(done), providertest.Text(answered(1, 1))}})
	var wg sync.WaitGroup
	errs = make([]error, len(sizes))
	for i, size := range sizes {
		wg.Go(func() { errs[i] = l.say(size) })
	}
	synctest.Wait()
	close(done)
	wg.Wait()
	return errs
}

func TestOnlyWhatFitsLeaves(t *testing.T) {
	for _, c := range []struct {
		name  string
		spent int
		sizes []int64
	}{
		{"case 1", 90, []int64{10, 10, 10, 10, 10, 10, 10, 10}},
		{"case 2", 0, []int64{58, 80, 175, 175, 175}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(100), sizedChat, middleware.MaxWait(0))
				if c.spent > 0 {
					l.provider.Expect(t, providertest.JSON(200, answered(c.spent, 0)))
					require.NoError(t, l.say(int64(c.spent)))
				}
				errs := together(t, l, c.sizes...) // one answer is scripted: a second call fails the test
				passed := 0
				for i, err := range errs {
					if err == nil {
						passed++
						require.LessOrEqual(t, c.sizes[i], int64(100))
						continue
					}
					var e *budget.ExhaustedError
					require.ErrorAs(t, err, &e)
					require.Equal(t, c.sizes[i], e.Asked)
					require.True(t, middleware.IsDenied(err) && middleware.IsPause(err))
				}
				require.Equal(t, 1, passed)
			})
		})
	}
}

// case 4
func TestWorkersShareTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(1000), sizedChat)
		for range 10 {
			l.provider.Expect(t, providertest.JSON(200, answered(0, 100)))
		}
		var wg sync.WaitGroup
		var passed atomic.Int64
		for range 100 {
			wg.Go(func() {
				if err := l.say(100); err == nil {
					passed.Add(1)
				} else {
					require.ErrorIs(t, err, budget.ErrExhausted)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 10, passed.Load())
		require.EqualValues(t, 10, l.provider.Seen().Requests)
	})
}

// case 6
func TestLoopEndsAtTheCap(t *testing.T) {
	l := newLab(t, budget.Tokens(500_000), sizedChat)
	for range 10 {
		l.provider.Expect(t, providertest.JSON(200, answered(50_000, 0)))
		require.NoError(t, l.say(50_000))
	}
	require.ErrorIs(t, l.say(50_000), budget.ErrExhausted)
}

// case 50: a prompt that is too large is refused before it is sent, not by its answer.
func TestLargePromptDoesNotLeave(t *testing.T) {
	l := newLab(t, budget.Tokens(1000), sizedChat)
	var e *budget.ExhaustedError
	require.ErrorAs(t, l.say(5000), &e)
	require.Equal(t, [2]int64{5000, 1000}, [2]int64{e.Asked, e.Limit})

	l = newLab(t, budget.Tokens(1000))
	_, err := l.do(context.Background(), `{"model":"gpt-4o","max_tokens":1,"messages":[{"role":"user","content":"`+strings.Repeat("word ", 5000)+`"}]}`)
	require.ErrorAs(t, err, &e)
	require.GreaterOrEqual(t, e.Asked, int64(5000))
	require.Zero(t, l.provider.Seen().Requests)
}

// case 7
func TestGuessAboveTheCapSaysSo(t *testing.T) {
	const uncapped = `{"model":"house-model","messages":[{"role":"user","content":"?"}]}`
	with := func(n int64) middleware.Option { return middleware.Bounds(meter.Options{DefaultOutput: n}) }
	b, err := meter.OpenAIChat.Bound(meter.Request{Body: []byte(uncapped)}, meter.Options{DefaultOutput: 50})
	require.NoError(t, err)
	limit := budget.Tokens(b.Total())

	l := newLab(t, limit, with(1024))
	_, err = l.do(context.Background(), uncapped)
	var e *budget.ExhaustedError
	require.ErrorAs(t, err, &e)
	require.Equal(t, [2]int64{b.Total(), b.Input + 1024}, [2]int64{e.Limit, e.Asked})
	require.Contains(t, err.Error(), "one call alone is larger than the limit")

	l = newLab(t, limit, with(50))
	l.provider.Expect(t, providertest.JSON(200, answered(5, 5)))
	l.must(uncapped)
	l.tokens(10, 0)

	l = newLab(t, budget.Tokens(100))
	_, err = l.do(context.Background(), uncapped)
	require.ErrorIs(t, err, meter.ErrRefused)
	require.Contains(t, err.Error(), "middleware.Bounds")
	require.False(t, middleware.IsPause(err))

	l = newLab(t, budget.Requests(1)) // case 52: no token rule, no need of a cap
	l.provider.Expect(t, providertest.JSON(200, answered(5, 5)))
	l.must(uncapped)
}

// The transport waits for room that open calls take up.
func TestWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(100), sizedChat)
		release := make(chan struct{})
		l.provider.Expect(t,
			providertest.Answer{Parts: []providertest.Part{providertest.Wait(release), providertest.Text(answered(0, 20))}},
			providertest.JSON(200, answered(0, 80)))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.NoError(t, l.say(80)) })
		}
		synctest.Wait()
		require.EqualValues(t, 1, l.provider.Seen().Requests)
		require.ErrorIs(t, l.say(101), budget.ErrExhausted) // for ever too large: no wait
		close(release)
		wg.Wait()
		l.tokens(100, 0)
	})
}

// case 12: the holds of calls that never left are given back.
func TestRefusedDialsGiveBack(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	dead := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: gone.Addr().String()})}
	defer dead.CloseIdleConnections()
	calls := 0
	l := newLab(t, budget.Tokens(200), sizedChat, once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		switch calls++; calls {
		case 1, 2:
			return dead.RoundTrip(r)
		case 3: // a base that reads the body first, to sign it, say
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			r = r.Clone(r.Context())
			r.Body = io.NopCloser(bytes.NewReader(body))
			return dead.RoundTrip(r)
		}
		return reply(r, 200, nil, answered(0, 100)), nil
	})))
	for range 3 {
		require.Error(t, l.say(100))
		l.tokens(0, 0)
		require.Zero(t, l.book.Report().Requests)
	}
	require.NoError(t, l.say(100))
	l.tokens(100, 0)
}

// full is a journal that cannot take more.
type full struct {
	*journal.Memory
	full atomic.Bool
}

var errFull = errors.New("no space left on device")

func (f *full) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	if f.full.Load() {
		return 0, errFull
	}
	return f.Memory.Append(ctx, after, b)
}

// case 14
func TestNothingLeavesUnbooked(t *testing.T) {
	j := &full{Memory: journal.NewMemory()}
	book, err := budget.New(context.Background(), j, budget.Tokens(1000))
	require.NoError(t, err)
	defer book.Close()
	j.full.Store(true)
	g := middleware.Transport(book, middleware.Base(base(func(*http.Request) (*http.Response, error) {
		t.Error("the call left")
		return nil, io.EOF
	})))
	_, err = g.RoundTrip(request(context.Background(), prompt))
	require.ErrorIs(t, err, errFull)
	require.True(t, middleware.IsDenied(err) && middleware.IsPause(err))
}

// case 53: what is known to be free passes, what is not known is refused.
func TestPaths(t *testing.T) {
	var seen []string
	l := newLab(t, budget.Tokens(0), middleware.MaxWait(0), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		seen = append(seen, r.URL.Path)
		return reply(r, 200, nil, `{}`), nil
	})))
	for _, c := range []struct {
		method, path string
		err          error
	}{
		{"GET", "/v1/models", nil},
		{"POST", "/v1/moderations", nil},
		{"DELETE", "/v1/files/f-1", nil},
		{"POST", "/v1/embeddings", budget.ErrExhausted},
		{"POST", "/v1/chat/completions", budget.ErrExhausted},
		{"POST", "/v1/raw/anything", meter.ErrRefused},
	} {
		body := &closer{Reader: strings.NewReader(prompt)}
		if c.path == "/v1/embeddings" {
			body.Reader = strings.NewReader(`{"model":"text-embedding-3-small","input":"x"}`)
		}
		r, err := http.NewRequest(c.method, "http://provider.test"+c.path, body)
		require.NoError(t, err)
		resp, err := l.guard.RoundTrip(r)
		require.ErrorIs(t, err, c.err, c.path)
		if err == nil {
			resp.Body.Close()
			continue
		}
		require.True(t, body.closed, c.path) // the contract, also for the refused
		require.True(t, middleware.IsDenied(err))
		require.Equal(t, c.err == budget.ErrExhausted, middleware.IsPause(err))
	}
	require.Equal(t, []string{"/v1/models", "/v1/moderations", "/v1/files/f-1"}, seen)

	l.guard = middleware.Transport(l.book, middleware.Routes(meter.Route{Path: "raw/*"}),
		middleware.Base(base(func(r *http.Request) (*http.Response, error) { return reply(r, 200, nil, `{}`), nil })))
	r, err := http.NewRequest("POST", "http://provider.test/v1/raw/anything", nil)
	require.NoError(t, err)
	_, err = l.guard.RoundTrip(r)
	require.NoError(t, err) // allowed as free
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

// What cannot be bounded is not read at all, and what the book does not take
// is the call's own fault.
func TestFaultsOfTheCall(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	body := &tracked{rest: 10}
	r := request(context.Background(), "")
	r.URL.Path, r.Body = "/v1/images", body
	_, err := l.guard.RoundTrip(r)
	require.ErrorAs(t, err, new(*meter.PathError))
	require.Equal(t, tracked{rest: 10, closed: true}, *body)

	r = request(context.Background(), "")
	r.Body = io.NopCloser(io.LimitReader(letters{}, 64<<20+1))
	_, err = l.guard.RoundTrip(r)
	require.ErrorAs(t, err, new(*meter.BodyError))
	require.ErrorContains(t, err, "longer than")

	for _, model := range []string{strings.Repeat("m", 300), "a\\nb"} {
		_, err := l.do(context.Background(), strings.Replace(prompt, "gpt-4o", model, 1))
		var d *middleware.DeniedError
		require.ErrorAs(t, err, &d)
		require.Equal(t, middleware.DeniedRequest, d.Reason)
		require.ErrorContains(t, err, "model")
	}
}

// A reservation that somebody else closed is no fault of the book's.
func TestClosedElsewhere(t *testing.T) {
	var log strings.Builder
	var l *lab
	l = newLab(t, budget.Tokens(plenty), middleware.Logger(slog.New(slog.NewTextHandler(&log, nil))), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		_, err := l.book.Reservation(l.book.Report().Open[0].RID).Settle(r.Context(), budget.Usage{Input: 1, Output: 1})
		require.NoError(t, err)
		return reply(r, 200, nil, answered(5, 5)), nil
	})))
	l.must(prompt)
	l.tokens(2, 0)
	require.Contains(t, log.String(), "closed elsewhere")
	require.NotContains(t, log.String(), "admits nothing more")
	l.guard.Wait()
}

// What a request's bytes do not bound is refused, naming the options, or held
// for by them.
func TestUnboundedRequests(t *testing.T) {
	search := strings.Replace(prompt, "{", `{"web_search_options":{},`, 1)
	l := newLab(t, budget.Tokens(plenty))
	_, err := l.do(context.Background(), search)
	require.ErrorIs(t, err, meter.ErrRefused)
	require.ErrorContains(t, err, "Options.ContextWindow and Options.Steps by middleware.Bounds")
	require.False(t, middleware.IsPause(err))

	l = newLab(t, budget.Tokens(plenty), middleware.Bounds(meter.Options{ContextWindow: 128_000, Steps: 4}))
	l.provider.Expect(t, providertest.JSON(200, `{"choices":[{"message":{"content":"x"}}]}`), providertest.JSON(200, answered(90_000, 250)))
	l.must(search)
	l.tokens(0, 4*(128_000+100))
	l.must(search)
	l.tokens(90_250, 4*(128_000+100))
}
