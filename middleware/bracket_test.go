package middleware_test

// I6, the bracket: confirmed <= the provider's true bill <= net, at any moment,
// whatever goes wrong; and I4: the cap holds.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

func TestBracketUnderFaults(t *testing.T) {
	faults := providertest.Faults{}
	for _, kind := range providertest.Kinds() {
		if kind != providertest.Overrun {
			faults[kind] = 0.03
		}
	}
	for _, c := range []struct {
		name   string
		policy middleware.AbortPolicy
		cap    int64
		http2  bool
	}{
		{"room for all", middleware.ChargeHold, plenty, false},
		{"drained", middleware.DrainOnAbort, plenty, false},
		{"a cap for a part", middleware.ChargeHold, 30_000, false},
		{"HTTP/2", middleware.ChargeHold, plenty, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := providertest.New(providertest.Options{Seed: 7, Faults: faults, Longest: 40})
			server := httptest.NewUnstartedServer(p)
			defer server.Close()
			defer p.Close() // first, or a stall would hold up the server
			if server.EnableHTTP2 = c.http2; c.http2 {
				server.StartTLS()
			} else {
				server.Start()
			}
			net := server.Client().Transport.(*http.Transport)
			net.MaxIdleConnsPerHost = 64
			book := budgettest.New(t, budget.Tokens(c.cap))
			guard := middleware.Transport(book, middleware.Base(net), middleware.OnAbort(c.policy),
				middleware.Timeouts(100*time.Millisecond, 100*time.Millisecond),
				middleware.OutageAfter(0), // a slow machine is no outage here
				middleware.Retry(retry.Policy{FirstWait: -1, LongestWait: 200 * time.Millisecond}))
			bracket := func() {
				confirmed := book.Report().Tokens.Confirmed
				bill := p.Bill().TotalTokens
				after := book.Report().Tokens.Net
				require.LessOrEqual(t, confirmed, bill)
				require.LessOrEqual(t, bill, after)
				require.LessOrEqual(t, after, c.cap)
			}
			var next atomic.Int64
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for n := next.Add(1); n <= 300; n = next.Add(1) {
						work(server.URL, guard, n)
						if n%8 == 0 {
							bracket()
						}
					}
				})
			}
			wg.Wait()
			guard.Wait()
			bracket()
			budgettest.RequireClosed(t, book)
			require.Positive(t, p.Bill().TotalTokens)
		})
	}
}

// work makes one call, of several kinds, and leaves some of them half-way.
func work(url string, guard http.RoundTripper, n int64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if n%11 == 0 {
		time.AfterFunc(time.Millisecond, cancel)
	}
	body := fmt.Sprintf(`{"model":"gpt-4o","stream":%t,"max_tokens":60,"messages":[{"role":"user","content":"item %d"}]}`, n%2 == 0, n)
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", nil)
	if err != nil {
		panic(err)
	}
	r.Body, r.Header = io.NopCloser(strings.NewReader(body)), http.Header{"Content-Type": {"application/json"}}
	resp, err := guard.RoundTrip(r)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if n%6 == 0 {
		_, _ = io.ReadFull(resp.Body, make([]byte, 300))
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
}
