package providertest

// The bill: the same for the same seed whatever the order, whole when a client
// leaves, and what the usage report says.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"
)

// TestDeterminism: the same requests in another order and concurrency get the
// same answers, faults and bill; another seed does not.
func TestDeterminism(t *testing.T) {
	faults := Faults{}
	for _, k := range Kinds() {
		faults[k] = 0.05
	}
	created := regexp.MustCompile(`"created":\d*`) // the one thing that is of the clock
	run := func(t *testing.T, seed uint64, workers int, backwards bool) (bill Bill, seen Seen, answers map[string]int) {
		synctest.Test(t, func(t *testing.T) { // a minute of stall takes no time
			p := New(Options{Seed: seed, Faults: faults, Latency: time.Millisecond})
			answers = map[string]int{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			work := make(chan int)
			for range workers {
				wg.Go(func() {
					for i := range work {
						body := fmt.Sprintf(`{"model":"gpt-5","messages":[{"content":"number %d"}],"stream":%v}`, i%200, i%2 == 0)
						status, answer, err := post(t, p, "/v1/chat/completions", body)
						mu.Lock()
						answers[fmt.Sprint(i%200, status, created.ReplaceAllString(answer, ""), err)]++
						mu.Unlock()
					}
				})
			}
			for i := range 600 {
				if backwards {
					i = 599 - i
				}
				work <- i
			}
			close(work)
			wg.Wait()
			bill, seen = p.Bill(), p.Seen()
		})
		return
	}
	bill, seen, answers := run(t, 1, 1, false)
	require.Len(t, seen.Faults, len(Kinds()))
	require.Equal(t, int64(600), seen.Requests)
	require.Equal(t, int64(200), seen.Bodies)
	for _, workers := range []int{16, 100} {
		b, s, a := run(t, 1, workers, true)
		require.Equal(t, bill, b)
		require.Equal(t, seen, s)
		require.Equal(t, answers, a)
	}
	other, _, _ := run(t, 2, 16, false)
	require.NotEqual(t, bill, other)
}

// TestHangUp: a client that leaves in mid-stream is billed for all, or with
// BillAsSent for what was generated until then.
func TestHangUp(t *testing.T) {
	for _, asSent := range []bool{false, true} {
		t.Run(fmt.Sprint("as sent ", asSent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Options{Seed: 3, Latency: time.Second, ChunkLatency: time.Second, BillAsSent: asSent, Pick: func(Request) Fault { return "" }})
				ask := func() (*http.Response, context.CancelFunc) {
					ctx, cancel := context.WithCancel(t.Context())
					req, err := http.NewRequestWithContext(ctx, "POST", "http://provider.test/v1/chat/completions",
						strings.NewReader(`{"model":"gpt-4o","messages":[{"content":"count"}],"stream":true,"n":2}`))
					require.NoError(t, err)
					resp, err := p.RoundTripper().RoundTrip(req)
					require.NoError(t, err)
					return resp, cancel
				}
				resp, cancel := ask()
				defer cancel()
				buf := make([]byte, 1<<20)
				for range 6 { // role and five words
					_, err := resp.Body.Read(buf)
					require.NoError(t, err)
				}
				require.NoError(t, resp.Body.Close())
				first := p.Bill()
				if asSent {
					require.Equal(t, int64(5), first.CompletionTokens)
				} else {
					require.Greater(t, first.CompletionTokens, int64(5))
				}
				time.Sleep(time.Hour)
				require.Equal(t, first, p.Bill())
				require.Zero(t, p.Seen().Full)

				// The context of the request ends a read, too.
				resp, cancel = ask()
				time.AfterFunc(5500*time.Millisecond, cancel)
				_, err := io.ReadAll(resp.Body)
				require.ErrorIs(t, err, context.Canceled)
				require.NoError(t, resp.Body.Close())

				// Heard out, it is all on the bill either way.
				before := p.Bill()
				resp, cancel = ask()
				defer cancel()
				all, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, int64(bytes.Count(all, []byte(`"delta":{"content":"`))), p.Bill().CompletionTokens-before.CompletionTokens)
				require.Equal(t, int64(1), p.Seen().Full)
			})
		})
	}
}

func TestLatencyHonoursContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Latency: time.Minute})
		c := &http.Client{Transport: p.RoundTripper(), Timeout: 30 * time.Second}
		start := time.Now()
		_, err := c.Post("http://provider.test/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 30*time.Second, time.Since(start))
		require.Equal(t, int64(1), p.Bill().Requests)

		_, _, err = post(t, p, "/v1/completions", `{"model":"m","prompt":"x"}`)
		require.NoError(t, err)
		require.Equal(t, 90*time.Second, time.Since(start))
		require.Equal(t, 200, get(t, p, "/sim/bill", new(Bill))) // a look at the books takes no time
		require.Equal(t, 90*time.Second, time.Since(start))
	})
}

func TestUsageReportIsTheBill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time starts at midnight UTC, 2000-01-01
		p := New(Options{Faults: Faults{Lost: 0.2, Cut: 0.2, ServerError: 0.2}})
		start := time.Now().Unix()
		for i := range 90 {
			post(t, p, "/v1/chat/completions", fmt.Sprintf(`{"model":"gpt-%d","messages":[{"content":"number %d"}]}`, i%3, i))
			time.Sleep(2 * time.Minute)
		}
		for i := range 10 {
			post(t, p, "/v1/embeddings", fmt.Sprintf(`{"model":"e","input":"text %d"}`, i))
		}

		var got Bill
		models := map[string]int64{}
		buckets, next := 0, fmt.Sprintf("/v1/organization/usage/completions?start_time=%d&bucket_width=1h&group_by=model&limit=2", start+10)
		for next != "" {
			var page pageJSON
			require.Equal(t, 200, get(t, p, next, &page))
			for _, b := range page.Data {
				buckets++
				require.Equal(t, int64(3600), b.EndTime-b.StartTime)
				require.Zero(t, b.StartTime%3600)
				for _, r := range b.Results {
					got.add(r.Requests, r.Input, r.Output)
					models[*r.Model] += r.Requests
				}
			}
			require.Equal(t, page.HasMore, page.NextPage != nil)
			if next = ""; page.HasMore {
				next = fmt.Sprintf("/v1/organization/usage/completions?start_time=%d&bucket_width=1h&group_by=model&limit=2&page=%s", start+10, *page.NextPage)
			}
		}
		require.Equal(t, 4, buckets) // 180 minutes, and the hour that has just begun
		require.Len(t, models, 3)

		var page pageJSON
		require.Equal(t, 200, get(t, p, fmt.Sprintf("/v1/organization/usage/embeddings?start_time=%d", start), &page))
		require.Len(t, page.Data, 1)
		require.Nil(t, page.Data[0].Results[0].Model)
		for _, r := range page.Data[0].Results {
			got.add(r.Requests, r.Input, r.Output)
		}
		require.Equal(t, p.Bill(), got)

		var bill Bill
		require.Equal(t, 200, get(t, p, "/sim/bill", &bill))
		require.Equal(t, p.Bill(), bill)
		var seen Seen
		require.Equal(t, 200, get(t, p, "/sim/seen", &seen))
		require.Equal(t, p.Seen(), seen)
		require.Equal(t, int64(100), seen.Requests)
		var full int64
		for r := range p.Records() {
			require.Equal(t, int64(1), r.Requests)
			full += r.Full
		}
		require.Equal(t, seen.Full, full)

		for _, q := range []string{"", "?start_time=x", "?start_time=0&bucket_width=2h", "?start_time=0&limit=32", "?start_time=0&page=page_x"} {
			var e openai.ErrorResponse
			require.Equal(t, 400, get(t, p, "/v1/organization/usage/completions"+q, &e), q)
		}
	})
}
