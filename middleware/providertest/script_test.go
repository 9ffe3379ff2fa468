package providertest

// In scripted mode every byte is the test's, and an unscripted call fails it.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"
)

// fakeTB remembers how it failed.
type fakeTB struct {
	errors   []string
	cleanups []func()
}

func (f *fakeTB) Helper() {}
func (f *fakeTB) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) end() {
	for _, fn := range f.cleanups {
		fn()
	}
}

func TestUnscriptedCallFailsTheTest(t *testing.T) {
	fake := &fakeTB{}
	p := New(Options{})
	p.Expect(fake, JSON(200, `{}`))
	_, body, err := post(t, p, "/v1/chat/completions", `{"prompt":"secret"}`)
	require.NoError(t, err)
	require.Equal(t, `{}`, body)
	require.Empty(t, fake.errors)
	var bill Bill
	require.Equal(t, 200, get(t, p, "/sim/bill", &bill)) // no call of the script

	status, _, err := post(t, p, "/v1/chat/completions", `{"prompt":"secret"}`)
	require.NoError(t, err)
	require.Equal(t, 400, status)
	require.Len(t, fake.errors, 1)
	require.Contains(t, fake.errors[0], "unexpected call POST /v1/chat/completions of 19 bytes")
	require.NotContains(t, fake.errors[0], "secret")
	fake.end()
	require.Len(t, fake.errors, 1)
}

func TestAnswerNeverAskedForFailsTheTest(t *testing.T) {
	fake := &fakeTB{}
	p := New(Options{})
	p.Expect(fake, JSON(200, `{}`))
	p.Expect(fake, JSON(200, `{}`))
	fake.end()
	require.Equal(t, []string{"providertest: 2 scripted answers were never asked for"}, fake.errors)
}

func TestScript(t *testing.T) {
	p := New(Options{})
	c := client(t, p)
	usage := `{"choices":[],"usage":{"prompt_tokens":23,"completion_tokens":235,"total_tokens":258}}`
	second := JSON(429, `{"error":{"message":"slow down","code":"slow_down"}}`).Billed(1, 2)
	second.Header = http.Header{"retry-after": {"7"}}
	second.When = func(r *http.Request, body []byte) bool { return strings.Contains(string(body), "second") }
	p.Expect(t, second, SSE(`{"choices":[{"delta":{"content":"Hi"}}]}`, usage).Billed(23, 235))

	s, err := c.CreateChatCompletionStream(t.Context(), openai.ChatCompletionRequest{Model: "gpt-4o", Messages: userSays("first")})
	require.NoError(t, err)
	defer s.Close()
	chunk, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "Hi", chunk.Choices[0].Delta.Content)
	chunk, err = s.Recv()
	require.NoError(t, err)
	require.Equal(t, 258, chunk.Usage.TotalTokens)
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)

	resp, err := c.CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "gpt-4o", Messages: userSays("second")})
	var api *openai.APIError
	require.ErrorAs(t, err, &api)
	require.Equal(t, 429, api.HTTPStatusCode)
	require.Equal(t, "7", resp.Header().Get("Retry-After"))
	require.Equal(t, Bill{2, 24, 237, 261}, p.Bill())
	require.Equal(t, int64(1), p.Seen().Full)
}

func TestScriptedCuts(t *testing.T) {
	p := New(Options{})
	server := NewServer(t, p)
	for host, rt := range map[string]http.RoundTripper{server.URL: server.Client().Transport, "http://provider.test": p.RoundTripper()} {
		for n := range 5 {
			p.Expect(t, JSON(200, `abcd`).CutAt(n))
			o := exchange(t, rt, host+"/any", "")
			require.Equal(t, "abcd"[:n], o.body)
			require.ErrorIs(t, o.err, io.ErrUnexpectedEOF)
		}
		p.Expect(t, Answer{Parts: []Part{Hangup()}})
		o := exchange(t, rt, host+"/any", "")
		require.ErrorIs(t, o.err, io.EOF)
		require.Zero(t, o.status)
		p.Expect(t, Answer{Status: 204})
		require.Equal(t, 204, exchange(t, rt, host+"/any", "").status)
	}
	require.Zero(t, p.Seen().Full)
}

func TestScriptedStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		released := make(chan struct{})
		p.Expect(t, Answer{Parts: []Part{Wait(released), Text("one"), Wait(released), Text("two")}})
		start := time.Now()
		time.AfterFunc(time.Second, func() { close(released) })
		_, body, err := post(t, p, "/any", "")
		require.NoError(t, err)
		require.Equal(t, "onetwo", body)
		require.Equal(t, time.Second, time.Since(start))

		// Given up by the client, before the header and in mid-body.
		never := make(chan struct{})
		for _, parts := range [][]Part{{Wait(never)}, {Text("one"), Wait(never)}} {
			p.Expect(t, Answer{Parts: parts})
			c := &http.Client{Transport: p.RoundTripper(), Timeout: time.Second}
			resp, err := c.Post("http://provider.test/any", "", nil)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}

		// Close ends a stall that nobody else would.
		p.Expect(t, Answer{Parts: []Part{Wait(never)}})
		time.AfterFunc(time.Second, p.Close)
		_, _, err = post(t, p, "/any", "")
		require.ErrorIs(t, err, io.EOF)
	})
}
