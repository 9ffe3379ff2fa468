package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/reconcile"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// A guarded batch meets every fault but answers above their cap; then the
// provider's own report, fetched page by page, is applied, and no token is
// left that is not on the bill.
func TestReportOfAFaultyProvider(t *testing.T) {
	ctx := context.Background()
	faults := providertest.Faults{}
	for _, kind := range providertest.Kinds() {
		if kind != providertest.Overrun {
			faults[kind] = 0.04
		}
	}
	p := providertest.New(providertest.Options{Seed: 11, Faults: faults, Longest: 40})
	server := httptest.NewServer(p)
	defer server.Close()
	defer p.Close() // first, or a stall would hold up the server
	dir := t.TempDir()
	book, err := budget.Open(ctx, dir)
	require.NoError(t, err)
	guard := middleware.Transport(book, middleware.Base(server.Client().Transport), middleware.Timeouts(100*time.Millisecond, 100*time.Millisecond),
		middleware.Retry(retry.Policy{FirstWait: -1, LongestWait: 50 * time.Millisecond}))
	call := func(path, body string) {
		r, err := http.NewRequest("POST", server.URL+path, strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if resp, err := guard.RoundTrip(r); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			for i := range 10 {
				model := []string{"gpt-4o", "gpt-4o-mini"}[i%2]
				call("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":60,"messages":[{"role":"user","content":"item %d"}]}`, model, i%3 == 0, n*10+i))
				call("/v1/embeddings", fmt.Sprintf(`{"model":"text-embedding-3-small","input":"item %d"}`, n*10+i))
			}
		})
	}
	wg.Wait()
	guard.Wait()
	before := book.Report().Tokens
	require.Positive(t, before.Assumed)
	require.NotEqual(t, p.Bill().TotalTokens, before.Confirmed, "nothing to find out")

	var pages []io.Reader
	for _, kind := range []string{"completions", "embeddings"} {
		pages = append(pages, fetch(t, server.URL, kind)...)
	}
	require.Len(t, pages, 10)
	report, err := reconcile.Read(pages...)
	require.NoError(t, err)
	compare := func() reconcile.Result {
		r, err := reconcile.Compare(report, journal.Dir{Path: dir}.History(), reconcile.Options{Now: time.Now().Add(5 * time.Hour)})
		require.NoError(t, err)
		for _, row := range r.Rows {
			require.False(t, row.Outside(), "%+v", row)
			require.Empty(t, row.Blocked)
		}
		return r
	}
	applied, err := reconcile.Apply(ctx, book, compare())
	require.NoError(t, err)
	bill := p.Bill().TotalTokens
	require.Equal(t, budget.Figures{Net: bill, Confirmed: bill}, book.Report().Tokens)
	require.Equal(t, before.Net-bill, applied.Released)
	for _, row := range compare().Rows {
		require.Equal(t, reconcile.OK, row.Verdict)
		require.Zero(t, row.Drift)
	}
	applied, err = reconcile.Apply(ctx, book, compare())
	require.NoError(t, err)
	require.Zero(t, applied)
	require.NoError(t, book.Close())
}

// fetch fetches the hours around now, a page each.
func fetch(t *testing.T, server, kind string) (pages []io.Reader) {
	now := time.Now().Unix()
	q := url.Values{"start_time": {fmt.Sprint(now - now%3600 - 7200)}, "end_time": {fmt.Sprint(now - now%3600 + 10800)},
		"bucket_width": {"1h"}, "limit": {"1"}, "group_by": {"model"}}
	for {
		resp, err := http.Get(server + "/v1/organization/usage/" + kind + "?" + q.Encode())
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode, "%s", text)
		pages = append(pages, strings.NewReader(string(text)))
		var page struct {
			More bool   `json:"has_more"`
			Next string `json:"next_page"`
		}
		require.NoError(t, json.Unmarshal(text, &page))
		if !page.More {
			return pages
		}
		q.Set("page", page.Next)
	}
}
