package middleware_test

// The guard's own time, without tokenizer, fsync and network: at most 20 µs a
// call; at most 1 µs and no allocation a chunk of a stream.

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
)

// turn is how many calls or chunks are timed at once, which a reading of the
// clock is nothing beside.
const turn = 64

// own reports what guarded takes longer than bare, and allocates more. They take
// turns, so that what else the machine does slows both, and of all turns of each
// the lower quartile counts, which that leaves alone.
func own(b *testing.B, per string, bare, guarded func()) {
	calls, took := [2]func(){bare, guarded}, [2][]time.Duration{}
	for b.Loop() {
		for i, call := range calls {
			start := time.Now()
			for range turn {
				call()
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	quartile := func(all []time.Duration) float64 { slices.Sort(all); return float64(all[len(all)/4]) / turn }
	b.ReportMetric(quartile(took[1])-quartile(took[0]), "own-ns/"+per)
	b.ReportMetric(testing.AllocsPerRun(turn, guarded)-testing.AllocsPerRun(turn, bare), "own-allocs/"+per)
	b.ReportMetric(0, "ns/op") // of a turn of each
}

func BenchmarkCall(b *testing.B) {
	book := budget.Memory(budget.Tokens(budget.MaxTokens))
	defer book.Close()
	body := answered(20, 30)
	instant := base(func(r *http.Request) (*http.Response, error) {
		return reply(r, 200, nil, body), nil
	})
	call := func(rt http.RoundTripper) func() {
		return func() {
			resp, err := rt.RoundTrip(request(context.Background(), prompt))
			if err != nil {
				b.Fatal(err)
			}
			if err := drain(resp); err != nil {
				b.Fatal(err)
			}
		}
	}
	own(b, "call", call(instant), call(middleware.Transport(book, middleware.Base(instant))))
}

// chunks is a body that gives one chunk a read, as a network does, without end.
type chunks []byte

func (c chunks) Read(p []byte) (int, error) { return copy(p, c), nil }
func (c chunks) Close() error               { return nil }

// streams are the formats, each with a request and a chunk of its kind.
var streams = []struct {
	name, path, body, chunk string
	stop                    bool // under StopOverrun
}{
	{"asked", "/v1/chat/completions", streamed, "data: " + word("four") + "\n\n", false},
	{"asked, to be stopped", "/v1/chat/completions", strings.Replace(streamed, `"max_tokens":100`, `"max_tokens":1000000000000`, 1), "data: " + word("four") + "\n\n", true},
	{"hidden", "/v1/chat/completions", strings.Replace(prompt, "{", `{"stream":true,`, 1), "data: " + word("four") + "\n\n", false},
	{"anthropic", "/v1/messages", `{"model":"claude-sonnet-4-5","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"Say something."}]}`,
		"event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" four"}}` + "\n\n", false},
	{"gemini", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", `{"contents":[{"parts":[{"text":"Say something."}]}],"generationConfig":{"maxOutputTokens":100}}`,
		`data: {"candidates":[{"content":{"parts":[{"text":" four"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":2,"totalTokenCount":6},"modelVersion":"gemini-2.5-flash"}` + "\r\n\r\n", false},
}

func BenchmarkChunk(b *testing.B) {
	for _, s := range streams {
		b.Run(s.name, func(b *testing.B) {
			book := budget.Memory(budget.Tokens(budget.MaxTokens))
			defer book.Close()
			stream := chunks(s.chunk)
			opts := []middleware.Option{middleware.Base(base(func(r *http.Request) (*http.Response, error) {
				resp := reply(r, 200, http.Header{"Content-Type": {"text/event-stream"}}, "")
				resp.Body = stream
				return resp, nil
			}))}
			if s.stop {
				opts = append(opts, middleware.StopOverrun())
			}
			rt := middleware.Transport(book, opts...)
			r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://provider.test"+s.path, strings.NewReader(s.body))
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			resp, err := rt.RoundTrip(r)
			if err != nil {
				b.Fatal(err)
			}
			defer resp.Body.Close()
			buf := make([]byte, 4096)
			read := func(r io.Reader) func() {
				return func() {
					if n, err := r.Read(buf); n != len(stream) || err != nil {
						b.Fatal(n, err)
					}
				}
			}
			own(b, "chunk", read(stream), read(resp.Body))
		})
	}
}
