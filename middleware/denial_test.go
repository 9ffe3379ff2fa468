package middleware_test

// DESIGN 7.6, 7.7: a denial and a pause are known for what they are in every
// form in which they reach a caller, and no SDK retries them.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// sdkError is shaped like the errors of the Stainless SDKs.
type sdkError struct {
	StatusCode int
	Response   *http.Response
}

func (*sdkError) Error() string { return "402 Payment Required" }

func TestFormsOfAnError(t *testing.T) {
	at := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	header := func(pairs ...string) *sdkError {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return &sdkError{402, &http.Response{StatusCode: 402, Header: h}}
	}
	for name, c := range map[string]struct {
		err           error
		denied, pause bool
		at            time.Time
	}{
		"nil":               {},
		"any":               {err: io.EOF},
		"cancelled":         {err: context.Canceled},
		"exhausted":         {err: &budget.ExhaustedError{}, denied: true, pause: true},
		"busy":              {err: &budget.ExhaustedError{Busy: true}, denied: true, pause: true},
		"broken":            {err: budget.ErrBroken, pause: true},
		"denied, the book":  {err: &middleware.DeniedError{Reason: middleware.DeniedBook, Err: io.EOF}, denied: true, pause: true},
		"denied, its fault": {err: &middleware.DeniedError{Reason: middleware.DeniedRequest, Err: &meter.PathError{}}, denied: true},
		"stop":              {err: &retry.StopError{At: at}, pause: true, at: at},
		"abandoned":         {err: &retry.AbandonedError{Reason: &middleware.DeniedError{Reason: middleware.DeniedBudget, Err: io.EOF}, Last: io.EOF}, denied: true, pause: true},
		"SDK, denied":       {err: header("X-Tollbook-Denied", "request"), denied: true},
		"SDK, exhausted":    {err: header("X-Tollbook-Denied", "budget", "X-Tollbook-Paused", "budget_exceeded"), denied: true, pause: true},
		"SDK, paused":       {err: header("X-Tollbook-Paused", "provider_paused", "X-Tollbook-Retry-At", at.Format(time.RFC3339Nano)), pause: true, at: at},
		"SDK, provider 402": {err: header(), pause: true},
		"SDK, no response":  {err: &sdkError{}},
		"go-openai, quota":  {err: &openai.APIError{HTTPStatusCode: 429, Code: "insufficient_quota"}, pause: true},
		"go-openai, in a stream": {err: fmt.Errorf("error, %w", &openai.APIError{Code: "insufficient_quota"}),
			pause: true},
		"go-openai, 429":         {err: &openai.APIError{HTTPStatusCode: 429, Code: "slow_down"}},
		"go-openai, odd code":    {err: &openai.APIError{HTTPStatusCode: 429, Code: map[string]any{"a": make(chan int)}}},
		"go-openai, our refusal": {err: &openai.APIError{HTTPStatusCode: 402, Type: "tollbook_denied", Code: "request_refused"}, denied: true},
		"go-openai, our budget":  {err: &openai.APIError{HTTPStatusCode: 402, Type: "tollbook_denied", Code: "budget_exceeded"}, denied: true, pause: true},
		"go-openai, a gateway's": {err: &openai.APIError{HTTPStatusCode: 402, Type: "budget_exceeded", Code: "budget_exceeded"}, pause: true},
		"go-openai, 402":         {err: &openai.RequestError{HTTPStatusCode: 402}, pause: true},
		"go-openai, raw quota":   {err: &openai.RequestError{HTTPStatusCode: 429, Body: []byte(`{"error":{"code":"insufficient_quota"}}`), Err: &openai.APIError{}}, pause: true},
		"go-openai, credit balance": {err: &openai.RequestError{HTTPStatusCode: 400,
			Body: []byte(`{"error":{"type":"invalid_request_error","message":"credit balance is too low"}}`)}, pause: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{c.err, &url.Error{Op: "Post", URL: "http://x", Err: c.err}, errors.Join(io.EOF, fmt.Errorf("outer: %w", c.err))} {
				require.Equal(t, [2]bool{c.denied, c.pause}, [2]bool{middleware.IsDenied(err), middleware.IsPause(err)}, "%v", err)
				require.True(t, c.at.Equal(middleware.RetryAt(err)))
			}
		})
	}
}

// A Stainless SDK gets a response that it does not retry, in the shape that it
// can read.
func TestSyntheticAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(200))
		limited := refusal(429, "slow_down")
		limited.Header = http.Header{"Retry-After": {"3600"}}
		l.provider.Expect(t, limited)
		for _, c := range []struct{ path, body, denied, paused, code string }{
			{"/v1/chat/completions", prompt, "", "provider_paused", "provider_paused"},
			{"/v1/chat/completions", `{"model":"gpt-4o","max_tokens":1000,"messages":[]}`, "budget", "budget_exceeded", "budget_exceeded"},
			{"/v1/responses", `{}`, "request", "", "request_refused"},
		} {
			r := request(context.Background(), c.body)
			r.URL.Path = c.path
			r.Header.Set("X-Stainless-Lang", "go")
			resp, err := l.guard.RoundTrip(r)
			require.NoError(t, err)
			require.Equal(t, 402, resp.StatusCode)
			require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
			require.Equal(t, [2]string{c.denied, c.paused}, [2]string{resp.Header.Get("X-Tollbook-Denied"), resp.Header.Get("X-Tollbook-Paused")})
			var body struct {
				Error struct{ Code, Type, Message string }
			}
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&body))
			require.Equal(t, c.code, body.Error.Code)
			require.NotEmpty(t, body.Error.Message)
			err = &sdkError{402, resp}
			require.Equal(t, [2]bool{c.denied != "", c.paused != ""}, [2]bool{middleware.IsDenied(err), middleware.IsPause(err)})
			if c.denied == "" {
				require.True(t, time.Now().Add(time.Hour).Equal(middleware.RetryAt(err)))
			}
		}
	})
}

var hello = openai.ChatCompletionRequest{Model: "gpt-4o", MaxCompletionTokens: 100,
	Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hello"}}}

// The same through go-openai, as an error and as an answer.
func TestDenialThroughGoOpenAI(t *testing.T) {
	for name, opts := range map[string][]middleware.Option{"error": nil, "answer": {middleware.DenyByResponse()}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(10))
			config := openai.DefaultConfig("sk-secret")
			config.HTTPClient = &http.Client{Transport: l.provider.RoundTripper()}
			client, err := middleware.OpenAI(config, l.book, opts...)
			require.NoError(t, err)
			_, err = client.CreateChatCompletion(context.Background(), hello)
			require.True(t, middleware.IsDenied(err) && middleware.IsPause(err), "%v", err)
			require.Equal(t, opts == nil, errors.Is(err, budget.ErrExhausted))
			_, err = client.CreateResponse(context.Background(), openai.CreateResponseRequest{Model: "gpt-4o"})
			require.True(t, middleware.IsDenied(err) && !middleware.IsPause(err), "%v", err)
		})
	}
}

// OpenAI takes over what the client is made of.
func TestOpenAIKeepsTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty))
		visited := 0
		own := &http.Client{Transport: l.provider.RoundTripper(), Timeout: time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { visited++; return nil }}
		config := openai.DefaultConfig("sk-secret")
		config.HTTPClient = own
		client, err := middleware.OpenAI(config, l.book)
		require.NoError(t, err)
		slow := limitedFor(30 * time.Second)
		moved := providertest.Answer{Status: 307, Header: http.Header{"Location": {"/v1/chat/completions"}}, Parts: []providertest.Part{providertest.Text("")}}
		l.provider.Expect(t, moved, slow, stall(), providertest.JSON(200, answered(5, 5)))
		_, err = client.CreateChatCompletion(context.Background(), hello)
		require.NoError(t, err) // the wait of 30 s is longer than the timeout, which ended the stall only
		require.Equal(t, 1, visited)
		require.Equal(t, time.Second, own.Timeout)
		require.EqualValues(t, 3, l.book.Report().Requests-1)
		require.Equal(t, map[string]int64{"timeout": 1}, l.book.Report().Unknown)
	})
	config := openai.DefaultConfig("sk-secret")
	config.HTTPClient = doer{}
	_, err := middleware.OpenAI(config, budget.Memory())
	require.ErrorContains(t, err, "middleware_test.doer")
	_, err = middleware.OpenAI(openai.DefaultConfig("sk-secret"), budget.Memory(), middleware.OnAbort(middleware.DrainOnAbort))
	require.ErrorContains(t, err, "Wait") // which nobody could call
}

type doer struct{}

func (doer) Do(*http.Request) (*http.Response, error) { return nil, io.EOF }

func limitedFor(d time.Duration) providertest.Answer {
	a := refusal(429, "slow_down")
	a.Header = http.Header{"Retry-After": {fmt.Sprint(d.Seconds())}}
	return a
}
