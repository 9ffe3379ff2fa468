package middleware_test

// I6 for streams: a stream is closed once, with the last usage it told, or
// with a figure that is not below the bill; and its bytes reach the caller as
// they came.

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

const (
	finish    = `{"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":null}`
	lastUsage = `{"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":23,"completion_tokens":235,"total_tokens":258}}`
	fullUsage = `{"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":23,"completion_tokens":235,"total_tokens":258}}`
	someUsage = `{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":23,"completion_tokens":2,"total_tokens":25}}`
)

func text(a providertest.Answer) string {
	body := ""
	a.When = nil
	p := providertest.New(providertest.Options{})
	p.Expect(nobody{}, a)
	resp, err := p.RoundTripper().RoundTrip(request(context.Background(), prompt))
	if err == nil {
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		body = string(b)
	}
	return body
}

type nobody struct{}

func (nobody) Helper()               {}
func (nobody) Errorf(string, ...any) {}
func (nobody) Cleanup(func())        {}

func TestStreamEnds(t *testing.T) {
	held := hold(t, streamed)
	unfinished := func(data ...string) providertest.Answer {
		a := providertest.SSE(data...)
		a.Parts = a.Parts[:len(a.Parts)-1]
		return a
	}
	for _, c := range []struct {
		name               string
		answer             providertest.Answer
		confirmed, assumed int64
	}{
		{"usage after the finish, case 27", providertest.SSE(word("a"), finish, lastUsage), 258, 0},
		{"usage twice, case 27", providertest.SSE(word("a"), fullUsage, lastUsage), 258, 0},
		{"no [DONE], case 27", unfinished(word("a"), finish, lastUsage), 258, 0},
		{"usage on the finish and no [DONE]", unfinished(word("a"), fullUsage), 258, 0},
		{"no usage", providertest.SSE(word("a"), finish), 0, held},
		{"running total and a clean end in mid-answer", unfinished(word("a"), someUsage), 0, held},
		{"running total without choices and a clean end", unfinished(word("a"), `{"id":"chatcmpl-1","choices":[],"usage":`+usageOf(23, 2)+`}`), 0, held},
		{"usage ahead of the answer", providertest.SSE(someUsage, word("a"), finish), 0, held},
		{"error in mid-answer", unfinished(word("a"), `{"error":{"message":"no","code":"server_error"}}`), 0, held},
		{"empty", unfinished(), 0, held},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty))
			if len(c.answer.Parts) == 0 {
				c.answer.Parts = []providertest.Part{providertest.Text("")}
			}
			l.provider.Expect(t, c.answer)
			require.Equal(t, text(c.answer), l.must(streamed))
			l.tokens(c.confirmed, c.assumed)
		})
	}
}

// A running total above the hold is what a cut stream used at least.
func TestCutStreamAboveItsHold(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	a := providertest.SSE(word("a"), strings.ReplaceAll(someUsage, ":25}", ":9999}"))
	l.provider.Expect(t, a.CutAt(len(text(a))-len("[DONE]\n\n")))
	resp, err := l.do(context.Background(), streamed)
	require.NoError(t, err)
	require.ErrorIs(t, drain(resp), io.ErrUnexpectedEOF)
	l.tokens(0, 9999)

	a = providertest.SSE(strings.ReplaceAll(someUsage, ":25}", ":9999}"), word("a"), finish)
	l.provider.Expect(t, a)
	l.must(streamed)
	l.tokens(0, 2*9999) // nor is a whole one's whose last word it was not
}

// A provider that cuts a stream is not a caller who gave it up.
func TestCutIsNoAbort(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.ObservedOnAbort))
	l.provider.Expect(t, providertest.SSE(word("a"), word("b")).CutAt(200))
	resp, err := l.do(context.Background(), streamed)
	require.NoError(t, err)
	require.ErrorIs(t, drain(resp), io.ErrUnexpectedEOF)
	l.tokens(0, hold(t, streamed))
}

// case 85: usage is asked for, and what comes of it hidden from a caller who
// did not ask; all other bytes pass, in reads of any size.
func TestUsageIsAskedFor(t *testing.T) {
	unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
	asks := func(r *http.Request, sent []byte) bool {
		return strings.Contains(string(sent), `"include_usage":true`)
	}
	hidden := "data: " + lastUsage + "\n\n"
	for name, c := range map[string]struct {
		body      string
		confirmed int64
	}{
		"to its end":       {text(providertest.SSE(word("a"), finish, lastUsage)), 258},
		"ends in an event": {text(providertest.SSE(word("a"), finish, lastUsage))[:150], 0},
		"usage with text":  {text(providertest.SSE(someUsage, fullUsage)), 258},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty))
			l.provider.Expect(t, providertest.Answer{When: asks, Parts: []providertest.Part{providertest.Text(c.body)},
				Header: http.Header{"Content-Type": {"text/event-stream"}}})
			resp, err := l.do(context.Background(), unasked)
			require.NoError(t, err)
			require.EqualValues(t, -1, resp.ContentLength)
			require.Empty(t, resp.Header.Get("Content-Length"))
			got, err := io.ReadAll(struct{ io.Reader }{small{resp.Body}})
			require.NoError(t, err)
			require.Equal(t, strings.ReplaceAll(c.body, hidden, ""), string(got))
			require.Equal(t, c.confirmed, l.book.Report().Tokens.Confirmed)
		})
	}
}

// small reads 7 bytes at a time.
type small struct{ io.Reader }

func (s small) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), 7)]) }

// A host that does not know the option is told once, and the resend is no
// attempt that anybody pays for.
func TestHostWithoutUsage(t *testing.T) {
	for _, status := range []int{400, 422} {
		l := newLab(t, budget.Tokens(plenty), once)
		unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
		no := providertest.JSON(status, `{"error":{"message":"Unrecognized request argument: stream_options","code":"invalid"}}`)
		plain := providertest.SSE(word("a"), finish)
		plain.When = func(_ *http.Request, body []byte) bool { return string(body) == unasked }
		l.provider.Expect(t, no, plain)
		require.Equal(t, text(plain), l.must(unasked))
		l.tokens(0, hold(t, unasked))
		l.provider.Expect(t, plain)
		l.must(unasked) // remembered
		l.tokens(0, 2*hold(t, unasked))
	}
}

// What is remembered of a host is what it said about the option alone.
func TestHostIsNotMisjudged(t *testing.T) {
	unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
	asks := func(_ *http.Request, body []byte) bool { return strings.Contains(string(body), `"include_usage":true`) }
	for name, no := range map[string]string{
		"another field":  `{"error":{"message":"Invalid value: 'include_usage'.","type":"invalid_request_error","param":"messages[0].role","code":"invalid_value"}}`,
		"refused anyway": `{"error":{"message":"no stream_options, no include_usage","type":"invalid_request_error","param":null,"code":null}}`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), once)
			for range 2 {
				first := providertest.JSON(400, no)
				first.When = asks
				l.provider.Expect(t, first)
				if name == "refused anyway" {
					l.provider.Expect(t, providertest.JSON(400, no))
				}
				l.must(unasked)
			}
			l.tokens(0, 0)
		})
	}
}

// Not every SDK closes a body that it has read to its end.
func TestEndLetsGo(t *testing.T) {
	var attempt context.Context
	l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		attempt = r.Context()
		return reply(r, 200, http.Header{"Content-Type": {"text/event-stream"}}, "data: "+finish+"\n\ndata: "+lastUsage+"\n\n"), nil
	})))
	resp, err := l.do(context.Background(), streamed)
	require.NoError(t, err)
	require.NoError(t, attempt.Err())
	require.NoError(t, drain(resp))
	require.Error(t, attempt.Err())
	l.tokens(258, 0)
}

// go-openai's own stream, to [DONE] and without closing.
func TestStreamOfGoOpenAI(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	config := openai.DefaultConfig("sk-secret")
	config.HTTPClient = &http.Client{Transport: l.provider.RoundTripper()}
	client, err := middleware.OpenAI(config, l.book)
	require.NoError(t, err)
	l.provider.Expect(t, providertest.SSE(word("a"), word("b"), finish, lastUsage))
	s, err := client.CreateChatCompletionStream(context.Background(), hello)
	require.NoError(t, err)
	said := ""
	for {
		chunk, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		said += chunk.Choices[0].Delta.Content // case 28: no chunk without choices gets here
	}
	require.Equal(t, "ab", said)
	l.tokens(258, 0)
	s.Close()
}

// The function that is told of the receipt may end the stream.
func TestReceiptMayClose(t *testing.T) {
	for _, policy := range []middleware.AbortPolicy{middleware.ChargeHold, middleware.DrainOnAbort} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(policy))
			l.provider.Expect(t, providertest.SSE(word("a"), finish, lastUsage))
			var resp *http.Response
			told, here := 0, make(chan struct{}) // a drain may be through before
			ctx := middleware.WithReceipt(context.Background(), func(r budget.Receipt) {
				require.EqualValues(t, 258, r.Confirmed)
				told++
				<-here
				resp.Body.Close()
			})
			var err error
			resp, err = l.do(ctx, streamed)
			require.NoError(t, err)
			close(here)
			_ = drain(resp)
			l.guard.Wait()
			require.Equal(t, 1, told)
		})
	}
}
