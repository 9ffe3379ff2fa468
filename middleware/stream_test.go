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
	"time"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
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
}

// case 85: usage is asked for, and what comes of it hidden from a caller who
// did not ask.
func TestUsageIsAskedFor(t *testing.T) {
	unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
	asked := func(_ *http.Request, body []byte) bool { return strings.Contains(string(body), `"include_usage":true`) }
	l := newLab(t, budget.Tokens(plenty))
	a := providertest.SSE(word("a"), finish, lastUsage)
	a.When = asked
	l.provider.Expect(t, a)
	require.Equal(t, text(providertest.SSE(word("a"), finish)), l.must(unasked))
	l.tokens(258, 0)
}

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

// abort reads some chunks of a stream of 200 and gives it up.
func abort(t *testing.T, l *lab, chunks int) {
	t.Helper()
	var all []string
	for range 200 {
		all = append(all, word("four"))
	}
	l.provider.Expect(t, providertest.SSE(append(all, finish, lastUsage)...))
	resp, err := l.do(context.Background(), streamed)
	require.NoError(t, err)
	_, err = io.ReadFull(resp.Body, make([]byte, chunks*len("data: "+word("four")+"\n\n")))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, resp.Body.Close())
	_, err = resp.Body.Read(make([]byte, 1))
	require.Error(t, err)
}

// cases 24, 25
func TestAbortedStream(t *testing.T) {
	held := hold(t, streamed)
	for name, c := range map[string]struct {
		policy             middleware.AbortPolicy
		confirmed, assumed int64
	}{
		"charge the hold": {middleware.ChargeHold, 0, held},
		"observed":        {middleware.ObservedOnAbort, 0, held - 100 + min(37*4, 100)},
		"drain":           {middleware.DrainOnAbort, 258, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(c.policy))
				abort(t, l, 37)
				l.guard.Wait()
				l.tokens(c.confirmed, c.assumed)
			})
		})
	}
	t.Run("observed, little", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.ObservedOnAbort))
			release := make(chan struct{})
			a := providertest.SSE(word("four"), word("four"))
			a.Parts[1] = providertest.Wait(release)
			l.provider.Expect(t, a)
			resp, err := l.do(context.Background(), streamed)
			require.NoError(t, err)
			_, err = resp.Body.Read(make([]byte, 4096))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			l.tokens(0, held-100+4)
		})
	})
}

// A caller who leaves at the finish reason still learns the provider's figure,
// if it comes within a second.
func TestCloseAfterTheFinishReadsOn(t *testing.T) {
	for name, c := range map[string]struct {
		after              time.Duration
		confirmed, assumed int64
	}{
		"soon": {900 * time.Millisecond, 258, 0},
		"late": {1100 * time.Millisecond, 0, hold(t, streamed)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty))
				a := providertest.SSE(word("a"), finish, "wait", lastUsage)
				release := make(chan struct{})
				a.Parts[2] = providertest.Wait(release)
				l.provider.Expect(t, a)
				resp, err := l.do(context.Background(), streamed)
				require.NoError(t, err)
				_, err = io.ReadFull(resp.Body, make([]byte, len("data: "+word("a")+"\n\ndata: "+finish+"\n\n")))
				require.NoError(t, err)
				timer := time.AfterFunc(c.after, func() { close(release) })
				defer timer.Stop()
				begin := time.Now()
				require.NoError(t, resp.Body.Close())
				require.LessOrEqual(t, time.Since(begin), time.Second)
				l.tokens(c.confirmed, c.assumed)
			})
		})
	}
}

// A client that neither reads nor closes, but whose context ends, leaves
// nothing open; and a stalled stream ends by the idle timeout, however slowly
// the caller reads.
func TestStreamThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []middleware.AbortPolicy{middleware.ChargeHold, middleware.DrainOnAbort} {
			l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(policy), middleware.Timeouts(0, time.Minute))
			a := providertest.SSE(word("a"))
			a.Parts[1] = stall().Parts[0]
			l.provider.Expect(t, a, a)
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(context.Background())
			resp, err := l.do(ctx, streamed)
			require.NoError(t, err)
			cancel(why)
			l.guard.Wait()
			budgettest.RequireClosed(t, l.book)
			l.tokens(0, hold(t, streamed))
			require.ErrorIs(t, drain(resp), why)

			resp, err = l.do(context.Background(), streamed)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			begin := time.Now()
			var timeout *middleware.TimeoutError
			require.ErrorAs(t, drain(resp), &timeout)
			require.LessOrEqual(t, time.Since(begin), time.Minute)
			l.tokens(0, 2*hold(t, streamed))
		}
	})
}

// Drained or not, a cancelled caller is not kept waiting.
func TestDrainDoesNotHoldTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty), middleware.OnAbort(middleware.DrainOnAbort))
		release := make(chan struct{})
		a := providertest.SSE(word("a"), "wait", finish, lastUsage)
		a.Parts[1] = providertest.Wait(release)
		l.provider.Expect(t, a)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		resp, err := l.do(ctx, streamed)
		require.NoError(t, err)
		begin := time.Now()
		require.ErrorIs(t, drain(resp), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begin))
		close(release)
		l.guard.Wait()
		l.tokens(258, 0)
	})
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
