package middleware_test

// I5: no attempt leaves before its hold is durable, no result reaches the
// caller before its close is; and if the close cannot be written, the paid
// answer is delivered nevertheless and the book admits nothing more.

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// gated is a journal that holds appends of one kind until told.
type gated struct {
	*journal.Memory
	kind atomic.Uint32
	gate chan struct{}
}

func (g *gated) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	for _, e := range b.Entries {
		if uint32(e.Kind) == g.kind.Load() {
			<-g.gate
			break
		}
	}
	return g.Memory.Append(ctx, after, b)
}

func TestOrder(t *testing.T) {
	sse := providertest.SSE(word("a"), finish, lastUsage)
	whole := "data: " + word("a") + "\n\ndata: " + finish + "\n\ndata: " + lastUsage + "\n\n"
	cut := sse
	cut.Parts = append(append([]providertest.Part{}, sse.Parts[:3]...), providertest.Hangup())
	for _, c := range []struct {
		name   string
		kind   journal.Kind
		body   string
		answer providertest.Answer
		early  string // the most that may be had before the entry is durable
		sent   int64
	}{
		{"reserve", journal.Reserve, prompt, providertest.JSON(200, answered(5, 5)), "", 0},
		{"extend", journal.Extend, prompt, refusal(500, "server_error"), "", 1},
		{"answer", journal.Settle, prompt, providertest.JSON(200, answered(5, 5)), "", 1},
		{"refusal", journal.Refund, prompt, refusal(400, "invalid_value"), "", 1},
		{"end marker", journal.Settle, streamed, sse, whole, 1},
		{"cut stream", journal.Settle, streamed, cut, whole, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &gated{Memory: journal.NewMemory(), gate: make(chan struct{})}
				book, err := budget.New(context.Background(), j)
				require.NoError(t, err)
				defer book.Close()
				p := providertest.New(providertest.Options{})
				p.Expect(t, c.answer)
				if c.kind == journal.Extend {
					p.Expect(t, providertest.JSON(200, answered(5, 5)))
				}
				g := middleware.Transport(book, middleware.Base(p.RoundTripper()))
				j.kind.Store(uint32(c.kind))

				var mu sync.Mutex
				var got strings.Builder
				done := false
				var wg sync.WaitGroup
				wg.Go(func() {
					resp, err := g.RoundTrip(request(context.Background(), c.body))
					require.NoError(t, err)
					defer resp.Body.Close()
					buf := make([]byte, 64) // smaller than a piece: what is held back counts too
					for err == nil {
						var n int
						n, err = resp.Body.Read(buf)
						mu.Lock()
						got.Write(buf[:n])
						mu.Unlock()
					}
					mu.Lock()
					done = true
					mu.Unlock()
				})
				synctest.Wait()
				mu.Lock()
				require.False(t, done)
				require.True(t, strings.HasPrefix(c.early, got.String()), got.String())
				require.Equal(t, c.early == "", got.Len() == 0)
				mu.Unlock()
				require.Equal(t, c.sent, p.Seen().Requests)
				close(j.gate)
				wg.Wait()
				require.True(t, done)
				require.Zero(t, book.Report().Balance.Open)
			})
		})
	}
}

func TestPaidAnswerIsDelivered(t *testing.T) {
	for name, body := range map[string]string{"answer": prompt, "stream": streamed} {
		t.Run(name, func(t *testing.T) {
			j := &full{Memory: journal.NewMemory()}
			book, err := budget.New(context.Background(), j)
			require.NoError(t, err)
			defer book.Close()
			p := providertest.New(providertest.Options{})
			answer := providertest.JSON(200, answered(5, 5))
			if body == streamed {
				answer = providertest.SSE(word("a"), finish, lastUsage)
			}
			p.Expect(t, answer)
			var log strings.Builder
			g := middleware.Transport(book, middleware.Logger(slog.New(slog.NewTextHandler(&log, nil))),
				middleware.Base(base(func(r *http.Request) (*http.Response, error) {
					j.full.Store(true)
					return p.RoundTripper().RoundTrip(r)
				})))
			receipts := 0
			ctx := middleware.WithReceipt(context.Background(), func(budget.Receipt) { receipts++ })
			resp, err := g.RoundTrip(request(ctx, body))
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, text(answer), string(got))
			require.Zero(t, receipts)
			require.Contains(t, log.String(), "its hold stays open")
			require.EqualValues(t, hold(t, body), book.Report().Tokens.Held)

			j.full.Store(false)
			_, err = g.RoundTrip(request(context.Background(), body))
			require.ErrorIs(t, err, budget.ErrBroken)
			require.True(t, middleware.IsPause(err))
			g.Wait()
		})
	}
}
