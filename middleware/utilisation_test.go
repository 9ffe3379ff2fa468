package middleware_test

// How much of a cap is used when the first call pauses and when all have, and
// what that costs: 64 workers, holds ten times what answers use.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

const (
	crowd = 64
	worst = 700 // tokens of output that are held; answers have some 60
)

// load is a crowd that calls until each of it is told to pause.
type load struct {
	limit int64
	bill  func() int64

	calls  atomic.Int64
	start  time.Time
	mu     sync.Mutex
	first  int64                 // of the bill, at the first pause
	took   map[int]time.Duration // until so many hundredths of the limit were used
	faults []error
}

func (l *load) run(rt http.RoundTripper) {
	l.start, l.took = time.Now(), map[int]time.Duration{}
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			for l.call(rt) {
			}
		})
	}
	wg.Wait()
}

func (l *load) call(rt http.RoundTripper) bool {
	body := fmt.Sprintf(`{"model":"gpt-4o","messages":[{"role":"user","content":"question %d"}]}`, l.calls.Add(1))
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://provider.test/v1/chat/completions", strings.NewReader(body))
	if err == nil {
		var resp *http.Response
		if resp, err = rt.RoundTrip(r); err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			err = errors.Join(err, resp.Body.Close())
		}
	}
	used := l.bill()
	l.mu.Lock()
	defer l.mu.Unlock()
	for share := 10; share <= 100; share++ {
		if _, done := l.took[share]; !done && used*100 >= l.limit*int64(share) {
			l.took[share] = time.Since(l.start)
		}
	}
	switch {
	case err == nil:
		return used < l.limit
	case l.first == 0:
		l.first = used
	}
	if !middleware.IsPause(err) {
		l.faults = append(l.faults, err)
	}
	return false
}

func (l *load) share(used int64) float64 { return float64(used) / float64(l.limit) }

// bare runs the crowd against a provider without a guard, until the limit is used up.
func bare(p *providertest.Provider, base http.RoundTripper, limit int64) *load {
	l := &load{limit: limit, bill: func() int64 { return p.Bill().TotalTokens }}
	l.run(base)
	return l
}

// guarded runs it under a guard, and checks that the limit is never passed and
// the book says what the bill does.
func guarded(t testing.TB, p *providertest.Provider, base http.RoundTripper, limit int64, opts ...middleware.Option) *load {
	t.Helper()
	net, highest := int64(0), int64(0)
	book := budget.Memory(budget.Tokens(limit), budget.Observe(func(e journal.Entry) {
		net += e.Amount
		highest = max(highest, net)
	}))
	l := &load{limit: limit, bill: func() int64 { return p.Bill().TotalTokens }}
	g := middleware.Transport(book, append([]middleware.Option{middleware.Base(base), defaults(worst)}, opts...)...)
	l.run(g)
	g.Wait()
	require.Empty(t, l.faults)
	require.LessOrEqual(t, highest, limit)
	require.Equal(t, budget.Figures{Net: l.bill(), Confirmed: l.bill()}, book.Report().Tokens)
	require.NoError(t, book.Close())
	return l
}

// capFor is a limit with room for so many holds.
func capFor(t testing.TB, holds int64) int64 {
	return holds * (inputOf(t, `{"model":"gpt-4o","messages":[{"role":"user","content":"question 1234"}]}`) + worst)
}

// TestUtilisation: a limit of ten times what the crowd holds at once is used to
// 99 % and more before the first call pauses, however slow the provider, and
// until nine tenths of it are used nobody waits. With a cap that is lowered to
// what is left it is used up.
func TestUtilisation(t *testing.T) {
	for _, latency := range []time.Duration{time.Second, 30 * time.Second} {
		for name, opts := range map[string][]middleware.Option{"holds": nil, "caps": {middleware.CapOutput(16)}} {
			t.Run(fmt.Sprint(name, " ", latency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					limit := capFor(t, 10*crowd)
					provider := func() (*providertest.Provider, http.RoundTripper) {
						p := providertest.New(providertest.Options{Latency: latency})
						return p, p.RoundTripper()
					}
					p, base := provider()
					with := guarded(t, p, base, limit, opts...)
					p, base = provider()
					without := bare(p, base, limit)

					t.Logf("%d calls; used %.4f at the first pause, %.4f at the last; time beside no guard: %s", with.calls.Load(),
						with.share(with.first), with.share(with.bill()), with.beside(without))
					require.LessOrEqual(t, 9*with.bill(), with.calls.Load()*(worst+40), "holds are ten times what is used, about")
					require.GreaterOrEqual(t, with.share(with.first), 0.99)
					require.LessOrEqual(t, with.took[90], without.took[90]*110/100)
					if opts != nil {
						require.GreaterOrEqual(t, with.share(with.bill()), 0.9999)
					}
				})
			})
		}
	}
}

// beside tells how much longer l took than other to use shares of the limit.
func (l *load) beside(other *load) (s string) {
	for _, share := range []int{50, 80, 90, 92, 95, 98, 99} {
		s += fmt.Sprintf("%d %%: %.2f  ", share, float64(l.took[share])/float64(other.took[share]))
	}
	return s
}

// The same in real time, over the loopback.
func BenchmarkUtilisation(b *testing.B) {
	limit := capFor(b, 10*crowd)
	transport := &http.Transport{MaxIdleConnsPerHost: crowd}
	defer transport.CloseIdleConnections()
	for name, opts := range map[string][]middleware.Option{"holds": nil, "caps": {middleware.CapOutput(16)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				provider := func() (*providertest.Provider, http.RoundTripper) {
					p := providertest.New(providertest.Options{Latency: 20 * time.Millisecond})
					server := providertest.NewServer(b, p)
					return p, base(func(r *http.Request) (*http.Response, error) {
						r.URL.Host = strings.TrimPrefix(server.URL, "http://")
						return transport.RoundTrip(r)
					})
				}
				p, base := provider()
				with := guarded(b, p, base, limit, opts...)
				p, base = provider()
				without := bare(p, base, limit)
				b.ReportMetric(100*with.share(with.first), "%-at-first-pause")
				b.ReportMetric(100*with.share(with.bill()), "%-at-last")
				b.ReportMetric(float64(with.took[90])/float64(without.took[90]), "time-to-90%/bare")
				b.Log(with.beside(without))
			}
		})
	}
}
