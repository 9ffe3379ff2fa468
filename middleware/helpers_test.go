package middleware_test

// What the tests of this package share: a guard over a provider in memory, so
// that time is the bubble's (testing/synctest) and every byte the script's.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// base is a transport made of a function.
type base func(*http.Request) (*http.Response, error)

func (b base) RoundTrip(r *http.Request) (*http.Response, error) { return b(r) }

// reply is a whole answer of a base. Like every transport, it reads the body.
func reply(r *http.Request, status int, header http.Header, body string) *http.Response {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	if header == nil {
		header = http.Header{}
	}
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/json")
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: header, Request: r,
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body))}
}

// sized is a meter whose bound is what the request's header X-Size says, all
// of it input.
type sized struct{ meter.Meter }

func (s sized) Bound(r meter.Request, _ meter.Options) (b meter.Bound, err error) {
	_, err = fmt.Sscan(r.Header.Get("X-Size"), &b.Input)
	b.Choices = 1
	return b, err
}

var sizedChat = middleware.Routes(meter.Route{Path: "chat/completions", Meter: sized{meter.OpenAIChat}})

// lab is a guard over a provider, and its book, which is checked at the end.
type lab struct {
	t        *testing.T
	book     *budget.Book
	provider *providertest.Provider
	guard    *middleware.Guard
}

// once lets a call have one attempt.
var once = middleware.Retry(retry.Policy{Attempts: 1})

func newLab(t *testing.T, limit budget.Option, opts ...middleware.Option) *lab {
	l := &lab{t: t, book: budgettest.New(t, limit), provider: providertest.New(providertest.Options{})}
	opts = append([]middleware.Option{middleware.Base(l.provider.RoundTripper())}, opts...)
	l.guard = middleware.Transport(l.book, opts...)
	t.Cleanup(l.guard.Wait)
	return l
}

const plenty = 1 << 40

const prompt = `{"model":"gpt-4o","max_tokens":100,"messages":[{"role":"user","content":"what is in my purse?"}]}`

var streamed = strings.Replace(prompt, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1)

// answered is a chat answer that reports this usage.
func answered(in, out int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant","content":"ninepence"},"finish_reason":"stop"}],"usage":%s}`, usageOf(in, out))
}

func usageOf(in, out int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, out, in+out)
}

func word(w string) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}],"usage":null}`, w)
}

func refusal(status int, code string) providertest.Answer {
	return providertest.JSON(status, fmt.Sprintf(`{"error":{"message":"no","type":%q,"param":null,"code":%q}}`, code, code))
}

// stall takes the request and never answers.
func stall() providertest.Answer {
	return providertest.Answer{Parts: []providertest.Part{providertest.Wait(make(chan struct{}))}}
}

func request(ctx context.Context, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://provider.test/v1/chat/completions?key=sesame", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer sk-secret")
	return r
}

// do makes a call. What is left of it ends with the test.
func (l *lab) do(ctx context.Context, body string) (*http.Response, error) {
	ctx, cancel := context.WithCancel(ctx)
	l.t.Cleanup(cancel)
	return l.guard.RoundTrip(request(ctx, body))
}

// say makes a call of this size, and returns the whole answer.
func (l *lab) say(size int64) error {
	r := request(context.Background(), prompt)
	r.Header.Set("X-Size", fmt.Sprint(size))
	resp, err := l.guard.RoundTrip(r)
	if err == nil {
		err = errors.Join(drain(resp), resp.Body.Close())
	}
	return err
}

// must makes a call that has to succeed and returns its body.
func (l *lab) must(body string) string {
	l.t.Helper()
	resp, err := l.do(context.Background(), body)
	require.NoError(l.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(l.t, err)
	require.NoError(l.t, resp.Body.Close())
	return string(text)
}

func drain(resp *http.Response) error {
	_, err := io.Copy(io.Discard, resp.Body)
	return err
}

// tokens asserts what the book holds.
func (l *lab) tokens(confirmed, assumed int64) {
	l.t.Helper()
	f := l.book.Report().Tokens
	require.Equal(l.t, budget.Figures{Net: confirmed + assumed, Confirmed: confirmed, Assumed: assumed}, f)
}

// hold is what one attempt at this body holds.
func hold(t *testing.T, body string) int64 {
	t.Helper()
	b, err := meter.OpenAIChat.Bound(meter.Request{Path: "/v1/chat/completions", Body: []byte(body)}, meter.Options{})
	require.NoError(t, err)
	return b.Total()
}
