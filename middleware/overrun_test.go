package middleware_test

// case 51: a stream that passes what was reserved for it is stopped, where that
// is wanted.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// bodies is a base whose answers stream what text says, in reads of any size.
func bodies(text string, closed *bool) middleware.Option {
	return middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		resp := reply(r, 200, http.Header{"Content-Type": {"text/event-stream"}}, "")
		resp.Body = &noted{Reader: strings.NewReader(text), closed: closed}
		return resp, nil
	}))
}

type noted struct {
	io.Reader
	closed *bool
}

func (n *noted) Close() error { *n.closed = true; return nil }

func TestStopOverrun(t *testing.T) {
	event := func(data string) string { return "data: " + data + "\n\n" }
	of := func(index int) string {
		return event(fmt.Sprintf(`{"id":"chatcmpl-1","choices":[{"index":%d,"delta":{"content":"x"},"finish_reason":null}]}`, index))
	}
	running := func(output int) string {
		return event(fmt.Sprintf(`{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"much in one chunk"}}],"usage":%s}`, usageOf(5, output)))
	}
	end := event(finish) + event(lastUsage) + event("[DONE]")
	one, two := streamed, strings.Replace(streamed, "{", `{"n":2,`, 1) // 100 tokens each
	unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
	for name, c := range map[string]struct {
		body, answer string
		passes       string // what the reader gets
		output       int64  // that is counted; 0: it is not stopped
		confirmed    int64
	}{
		"in many chunks":          {one, strings.Repeat(of(0), 300) + end, strings.Repeat(of(0), 101), 101, 0},
		"as much as is reserved":  {one, strings.Repeat(of(0), 100) + end, strings.Repeat(of(0), 100) + end, 0, 258},
		"by two choices":          {two, strings.Repeat(of(0)+of(1), 150) + end, strings.Repeat(of(0)+of(1), 100) + of(0), 201, 0},
		"chunks without text":     {one, strings.Repeat(event(`{"choices":[{"delta":{"content":""}}]}`)+": ping\n\n", 300) + end, strings.Repeat(event(`{"choices":[{"delta":{"content":""}}]}`)+": ping\n\n", 300) + end, 0, 258},
		"by the running total":    {one, running(60) + running(120) + running(180) + end, running(60) + running(120), 120, 0},
		"by its last word":        {one, of(0) + event(fullUsage) + event("[DONE]"), of(0) + event(fullUsage) + event("[DONE]"), 0, 258},
		"usage hidden on the way": {unasked, strings.Repeat(of(0)+event(`{"choices":[],"usage":`+usageOf(5, 1)+`}`), 300) + end, strings.Repeat(of(0), 101), 101, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1 << 20, 700, 7} {
				closed := false
				l := newLab(t, budget.Tokens(plenty), bodies(c.answer, &closed), middleware.StopOverrun())
				resp, err := l.do(context.Background(), c.body)
				require.NoError(t, err)
				got, err := io.ReadAll(struct{ io.Reader }{readsOf{resp.Body, size}})
				// It is cut at the end of a line, and so before the blank one.
				require.True(t, strings.TrimRight(c.passes, "\n") == strings.TrimRight(string(got), "\n"), "got %d bytes of %d", len(got), len(c.passes))
				if c.output == 0 {
					require.NoError(t, err)
					l.tokens(c.confirmed, 0)
					continue
				}
				overrun, ok := errors.AsType[*middleware.OverrunError](err)
				require.True(t, ok && errors.Is(err, middleware.ErrOverrun), "%v", err)
				require.False(t, middleware.IsPause(err) || middleware.IsDenied(err))
				require.Equal(t, retry.Permanent, retry.Classify(err))
				reserved := int64(100)
				if c.body == two {
					reserved = 200
				}
				require.Equal(t, middleware.OverrunError{Output: c.output, Reserved: reserved}, *overrun)
				require.True(t, closed, "the provider is told to stop")
				l.tokens(0, hold(t, c.body)-reserved+c.output)
				require.Equal(t, map[string]int64{"stopped overrun": 1}, l.book.Report().Unknown)
				require.NoError(t, resp.Body.Close())
			}
		})
	}
	t.Run("not wanted", func(t *testing.T) {
		closed := false
		l := newLab(t, budget.Tokens(plenty), bodies(strings.Repeat(of(0), 300)+end, &closed))
		l.must(one)
		l.tokens(258, 0)
	})
	t.Run("drained", func(t *testing.T) {
		closed := false
		l := newLab(t, budget.Tokens(plenty), bodies(strings.Repeat(of(0), 300)+end, &closed), middleware.StopOverrun(), middleware.OnAbort(middleware.DrainOnAbort))
		resp, err := l.do(context.Background(), one)
		require.NoError(t, err)
		require.ErrorIs(t, drain(resp), middleware.ErrOverrun)
		l.guard.Wait()
		l.tokens(0, hold(t, one)-100+101)
	})
}

// readsOf reads so many bytes at a time.
type readsOf struct {
	io.Reader
	size int
}

func (s readsOf) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), s.size)]) }

// A client that never closes: its context's end closes for it, which Guard.Wait
// waits for.
func TestClientThatNeverCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty))
		a := providertest.SSE(word("a"))
		a.Parts[1] = stall().Parts[0]
		l.provider.Expect(t, a)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		_, err := l.do(ctx, streamed)
		require.NoError(t, err)
		begin := time.Now()
		l.guard.Wait()
		require.Equal(t, time.Hour, time.Since(begin))
		l.tokens(0, hold(t, streamed))
	})
}
