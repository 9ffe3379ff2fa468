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
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
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

// A connection kept alive that turns out to be dead is another's fault: tried
// again, and charged, since nobody knows what the provider saw.
func TestDeadConnectionIsTriedAgain(t *testing.T) {
	for _, reused := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
				calls++
				resp := reply(r, 200, nil, answered(60, 40))
				if calls > 1 {
					return resp, nil
				}
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{Reused: reused})
				return nil, errors.New("server closed idle connection") // net/http has no type for it
			})))
			resp, err := l.do(context.Background(), prompt)
			if !reused {
				require.Error(t, err)
				l.tokens(0, hold(t, prompt))
				return
			}
			require.NoError(t, err)
			require.NoError(t, drain(resp))
			l.tokens(100, hold(t, prompt))
		})
	}
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

// unmetered bounds a request that has no body.
type unmetered struct{ meter.Meter }

func (unmetered) Bound(meter.Request, meter.Options) (meter.Bound, error) {
	return meter.Bound{Input: 100, Choices: 1}, nil
}

// Real sockets: net/http sends no request again by itself, one without a body
// neither.
func TestNothingIsReplayed(t *testing.T) {
	var seen atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.TransferEncoding)
		if seen.Add(1) == 2 {
			panic(http.ErrAbortHandler) // on a connection kept alive
		}
		_, _ = io.WriteString(w, answered(5, 5))
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base),
		middleware.Routes(meter.Route{Method: http.MethodGet, Path: "answers/*", Meter: unmetered{meter.OpenAIChat}}))
	get := func() error {
		r, err := http.NewRequest(http.MethodGet, server.URL+"/v1/answers/7", nil)
		require.NoError(t, err)
		resp, err := l.guard.RoundTrip(r)
		if err == nil {
			err = errors.Join(drain(resp), resp.Body.Close())
		}
		return err
	}
	require.NoError(t, get())
	require.Error(t, get())
	require.EqualValues(t, 2, seen.Load())
	require.EqualValues(t, 2, l.book.Report().Requests)
}

// Answers that are not handed on are let go: a short rest is read, so that the
// connection serves again, a long one is not.
func TestFailedAnswersAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left []*tracked
		l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			resp := reply(r, 500, nil, "")
			size := 100 << 10
			switch len(left) {
			case 1:
				size = 1 << 20
			case 2:
				resp = reply(r, 402, nil, "")
			}
			body := &tracked{rest: size}
			left = append(left, body)
			resp.Body = body
			return resp, nil
		})))
		_, err := l.do(context.Background(), prompt)
		require.True(t, middleware.IsPause(err))
		require.Len(t, left, 3)
		for _, body := range left {
			require.True(t, body.closed)
		}
		require.Equal(t, [3]bool{true, false, true}, [3]bool{left[0].rest == 0, left[1].rest == 0, left[2].rest == 0})
	})
}

type tracked struct {
	rest   int
	closed bool
}

func (b *tracked) Read(p []byte) (int, error) {
	if b.rest == 0 {
		return 0, io.EOF
	}
	n := min(len(p), b.rest)
	b.rest -= n
	return n, nil
}

func (b *tracked) Close() error { b.closed = true; return nil }

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

// A base may wrap what it failed of: its own words stay to be found, only the
// text is without the key in the URL.
func TestErrorOfTheBase(t *testing.T) {
	own := errors.New("own")
	for _, wrap := range []func(error) error{
		func(err error) error { return err },
		func(err error) error { return fmt.Errorf("%w: %w", own, err) },
	} {
		l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			return nil, wrap(&url.Error{Op: "Post", URL: r.URL.String(), Err: io.ErrUnexpectedEOF})
		})))
		_, err := l.do(context.Background(), prompt)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, errors.Is(wrap(nil), own), errors.Is(err, own))
		require.NotContains(t, err.Error(), "sesame")
		found, ok := errors.AsType[*url.Error](err)
		require.True(t, ok)
		require.Equal(t, "http://provider.test/v1/chat/completions", found.URL)
	}
}
