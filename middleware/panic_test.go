package middleware_test

// I2 and I6 where a function of the caller's panics: nothing stays open, and
// what may have been billed is charged.

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
)

// blind is a meter that panics at an answer.
type blind struct{ meter.Meter }

func (blind) Watch(meter.Bound, http.Header, bool) meter.Watch { panic("bug") }

// A base or a meter that panics leaves nothing open, and charges.
func TestPanicIsClosed(t *testing.T) {
	var attempt context.Context
	var body tracked
	for name, opt := range map[string]middleware.Option{
		"base": middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			attempt = r.Context()
			panic("bug")
		})),
		"meter": middleware.Routes(meter.Route{Path: "chat/completions", Meter: blind{meter.OpenAIChat}}),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
				attempt = r.Context()
				resp := reply(r, 200, http.Header{"Content-Type": {"text/event-stream"}}, "")
				resp.Body = &body
				return resp, nil
			})), opt)
			require.PanicsWithValue(t, "bug", func() { _, _ = l.do(context.Background(), prompt) })
			l.guard.Wait()
			l.tokens(0, hold(t, prompt))
			require.Error(t, attempt.Err())
		})
	}
	require.True(t, body.closed)
}

// lame is a meter that panics at the first bytes of an answer.
type lame struct{ meter.Meter }

func (lame) Watch(meter.Bound, http.Header, bool) meter.Watch { return lameWatch{} }

type lameWatch struct{}

func (lameWatch) Write([]byte) []byte    { panic("bug") }
func (lameWatch) End() []byte            { panic("bug") }
func (lameWatch) Reading() meter.Reading { return meter.Reading{} }

// loud is a log handler that panics.
type loud struct{ slog.Handler }

func (loud) Enabled(context.Context, slog.Level) bool  { return true }
func (loud) Handle(context.Context, slog.Record) error { panic("bug") }

// So does whatever else of the caller's panics, in whatever the caller does last.
func TestPanicInACallbackIsClosed(t *testing.T) {
	told := middleware.WithReceipt(context.Background(), func(budget.Receipt) { panic("bug") })
	observed := func(e journal.Entry) {
		if e.Kind == journal.Settle {
			panic("bug")
		}
	}
	limp := middleware.Routes(meter.Route{Path: "chat/completions", Meter: lame{meter.OpenAIChat}})
	log := middleware.Logger(slog.New(loud{}))
	read := func(resp *http.Response) { _ = drain(resp) }
	give := func(resp *http.Response) { resp.Body.Close() }
	for name, c := range map[string]struct {
		ctx    context.Context
		opt    middleware.Option
		book   budget.Option
		answer string // of a stream; empty: of another
		do     func(*http.Response)
	}{
		"receipt of an answer":        {ctx: told},
		"receipt at the marker":       {ctx: told, answer: "data: [DONE]\n\n", do: read},
		"receipt at the end":          {ctx: told, answer: ": ping\n\n", do: read},
		"receipt at Close":            {ctx: told, answer: ": ping\n\n", do: give},
		"observer of an answer":       {book: budget.Observe(observed)},
		"observer of a stream":        {book: budget.Observe(observed), answer: "data: [DONE]\n\n", do: read},
		"log of the client's retries": {opt: log},
		"log of a stream":             {opt: log, answer: "data: [DONE]\n\n", do: read},
		"meter while it is read":      {opt: limp, answer: ": ping\n\n", do: read},
		"meter when it is given up":   {opt: limp, answer: ": ping\n\n", do: give},
	} {
		t.Run(name, func(t *testing.T) {
			opts := []budget.Option{budget.Tokens(plenty)}
			if c.book != nil {
				opts = append(opts, c.book)
			}
			book := budget.Memory(opts...)
			body := &remembered{}
			guardOpts := []middleware.Option{middleware.Base(base(func(r *http.Request) (*http.Response, error) {
				body.ctx = r.Context()
				if c.answer == "" {
					return reply(r, 200, nil, answered(5, 5)), nil
				}
				resp := reply(r, 200, http.Header{"Content-Type": {"text/event-stream"}}, "")
				body.Reader = strings.NewReader(c.answer)
				resp.Body = body
				return resp, nil
			}))}
			if c.opt != nil {
				guardOpts = append(guardOpts, c.opt)
			}
			ctx := c.ctx
			if ctx == nil {
				ctx = context.Background()
			}
			guard := middleware.Transport(book, guardOpts...)
			var resp *http.Response
			require.PanicsWithValue(t, "bug", func() {
				r := request(ctx, streamed)
				if c.do == nil {
					r.Header.Set("X-Stainless-Retry-Count", "1") // which is logged
				}
				resp, _ = guard.RoundTrip(r)
				c.do(resp)
			})
			if resp != nil {
				resp.Body.Close()
			}
			guard.Wait()
			require.Empty(t, book.Report().Open)
			if body.ctx != nil {
				require.Error(t, body.ctx.Err())
			}
			require.True(t, body.closed || c.answer == "")
		})
	}
}

type remembered struct {
	io.Reader
	ctx    context.Context
	closed bool
}

func (b *remembered) Close() error { b.closed = true; return nil }
