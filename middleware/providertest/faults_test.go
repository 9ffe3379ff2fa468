package providertest

// Each kind of fault: its form on the wire, and what it bills.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseFaults(t *testing.T) {
	f, err := ParseFaults(" 429=0.5, cut = 0.25,quota=0 ")
	require.NoError(t, err)
	require.Equal(t, Faults{RateLimited: 0.5, Cut: 0.25, OutOfQuota: 0}, f)
	require.Equal(t, "429=0.5,cut=0.25", f.String())
	f, err = ParseFaults("")
	require.NoError(t, err)
	require.Empty(t, f)
	tenth := ""
	for _, k := range Kinds()[:10] {
		tenth += "," + string(k) + "=0.1"
	}
	_, err = ParseFaults(tenth[1:])
	require.NoError(t, err)

	for spec, want := range map[string]string{
		"banana=0.1":         `unknown fault "banana"; there are 429 quota 500`,
		"cut":                `"cut" has no probability`,
		"cut=0.1,":           `"" has no probability`,
		"cut=often":          `"often" is not a number`,
		"cut=1.5":            `1.5 is outside 0 to 1`,
		"cut=-0.1":           `-0.1 is outside`,
		"cut=NaN":            `NaN is outside`,
		"cut=0.1,cut=0.2":    `"cut" is named twice`,
		"cut=0.6,stall=0.41": `sum to 1.01, above 1`,
	} {
		_, err := ParseFaults(spec)
		require.ErrorContains(t, err, want, spec)
	}
	require.Panics(t, func() { New(Options{Faults: Faults{"banana": 1}}) })
}

func TestFaultShares(t *testing.T) {
	p := New(Options{Faults: Faults{ServerError: 0.1, BadUsage: 0.3}})
	for i := range 2000 {
		post(t, p, "/v1/embeddings", fmt.Sprintf(`{"model":"m","input":"%d"}`, i))
	}
	seen := p.Seen().Faults
	require.Len(t, seen, 2)
	require.InDelta(t, 200, seen[ServerError], 60)
	require.InDelta(t, 600, seen[BadUsage], 90)
}

// outcome is what a client learns of one request.
type outcome struct {
	status int // 0: none came
	header http.Header
	body   string
	err    error
}

// usage reads the figure of a whole answer or of a stream's last chunk.
func (o outcome) usage(t *testing.T) (map[string]any, bool) {
	t.Helper()
	var last struct {
		Usage map[string]any `json:"usage"`
	}
	for line := range strings.SplitSeq(o.body, "\n\n") {
		if line = strings.TrimPrefix(line, "data: "); line != "" && line != "[DONE]" {
			require.NoError(t, json.Unmarshal([]byte(line), &last))
		}
	}
	return last.Usage, last.Usage != nil
}

func TestFaults(t *testing.T) {
	const limit = 20
	answered := func(t *testing.T, o outcome) {
		require.NoError(t, o.err)
		require.Equal(t, 200, o.status)
	}
	kinds := map[Fault]struct {
		billed, full bool
		check        func(t *testing.T, o outcome, b Bill, stream bool)
	}{
		RateLimited: {false, false, func(t *testing.T, o outcome, _ Bill, _ bool) {
			require.Equal(t, 429, o.status)
			require.Contains(t, o.body, `"code":"rate_limit_exceeded"`)
		}},
		OutOfQuota: {false, false, func(t *testing.T, o outcome, _ Bill, _ bool) {
			require.Equal(t, 429, o.status)
			require.Contains(t, o.body, `"code":"insufficient_quota"`)
			require.Empty(t, o.header.Get("Retry-After"))
		}},
		ServerError: {false, false, func(t *testing.T, o outcome, _ Bill, _ bool) {
			require.Equal(t, 500, o.status)
			require.Contains(t, o.body, `"type":"server_error"`)
		}},
		ServerErrorBilled: {true, false, func(t *testing.T, o outcome, _ Bill, _ bool) {
			require.Equal(t, 500, o.status)
			require.Contains(t, o.body, `"type":"server_error"`)
		}},
		Stall: {true, false, func(t *testing.T, o outcome, _ Bill, _ bool) { require.ErrorIs(t, o.err, io.EOF) }},
		Lost:  {true, false, func(t *testing.T, o outcome, _ Bill, _ bool) { require.ErrorIs(t, o.err, io.EOF) }},
		Cut: {true, false, func(t *testing.T, o outcome, _ Bill, stream bool) {
			require.Equal(t, 200, o.status)
			require.NotContains(t, o.body, "[DONE]")
			if o.err == nil {
				require.True(t, stream) // ends as if that were all
			} else {
				require.ErrorIs(t, o.err, io.ErrUnexpectedEOF)
				require.NotEmpty(t, o.body)
			}
		}},
		NoUsage: {true, true, func(t *testing.T, o outcome, _ Bill, stream bool) {
			answered(t, o)
			_, there := o.usage(t)
			require.False(t, there)
			require.Equal(t, stream, strings.HasSuffix(o.body, "[DONE]\n\n"))
		}},
		BadUsage: {true, true, func(t *testing.T, o outcome, b Bill, _ bool) {
			answered(t, o)
			u, there := o.usage(t)
			require.True(t, there)
			prompt, isNumber := u["prompt_tokens"].(float64)
			total, _ := u["total_tokens"].(float64)
			impossible := !isNumber || prompt < 0 || prompt > 1e18 || prompt != float64(int64(prompt)) || total < prompt || total == 0
			require.True(t, impossible, "%v could be true", u)
		}},
		Overrun: {true, true, func(t *testing.T, o outcome, b Bill, _ bool) {
			answered(t, o)
			u, _ := o.usage(t)
			require.EqualValues(t, b.TotalTokens, u["total_tokens"])
		}},
	}
	requests := map[string]string{
		"/v1/chat/completions": `{"model":"gpt-4o","messages":[{"content":"number %d"}],"max_completion_tokens":20%s}`,
		"/v1/completions":      `{"model":"gpt-3.5-turbo-instruct","prompt":"number %d","max_tokens":20%s}`,
		"/v1/embeddings":       `{"model":"text-embedding-3-small","input":"number %d"%s}`,
	}
	for kind, c := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			p := New(Options{StallFor: time.Millisecond, Pick: func(r Request) Fault {
				if r.Attempt == 1 {
					return kind
				}
				return ""
			}})
			server := NewServer(t, p)
			server.Client().Transport.(*http.Transport).DisableKeepAlives = true
			transports := map[string]http.RoundTripper{server.URL: server.Client().Transport, "http://provider.test": p.RoundTripper()}
			for i := range 40 {
				for path, format := range requests {
					stream := i%2 == 1 && path != "/v1/embeddings"
					more := ""
					if stream {
						more = `,"stream":true,"stream_options":{"include_usage":true}`
					}
					for host, rt := range transports {
						body := fmt.Sprintf(format, i, more+strings.Repeat(" ", len(host))) // another body for each
						before := p.Bill()
						o := exchange(t, rt, host+path, body)
						after := p.Bill()
						got := Bill{after.Requests - before.Requests, after.PromptTokens - before.PromptTokens,
							after.CompletionTokens - before.CompletionTokens, after.TotalTokens - before.TotalTokens}
						c.check(t, o, got, stream)
						require.Equal(t, c.billed, got.Requests == 1)
						require.Equal(t, c.billed, got.PromptTokens > 0)
						if path != "/v1/embeddings" {
							require.Equal(t, c.billed, got.CompletionTokens > 0)
							require.Equal(t, kind == Overrun, got.CompletionTokens > limit)
						} else {
							require.Equal(t, kind == Overrun, got.PromptTokens > int64(len("number 10")))
						}
						record := p.Record(path, []byte(body))
						require.Equal(t, []Fault{kind}, record.Faults)
						require.Equal(t, c.full, record.Full == 1)

						o = exchange(t, rt, host+path, body) // the next attempt gets through
						require.NoError(t, o.err)
						require.Equal(t, 200, o.status)
					}
				}
			}
		})
	}
}

func exchange(t *testing.T, rt http.RoundTripper, url, body string) (o outcome) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	o = outcome{status: resp.StatusCode, header: resp.Header}
	b, err := io.ReadAll(resp.Body)
	o.body, o.err = string(b), err
	return o
}

func TestErrorBodies(t *testing.T) {
	p := New(Options{Faults: Faults{ErrorBody: 1}})
	seen := map[int]bool{}
	for i := range 60 {
		before := p.Bill()
		status, body, err := post(t, p, "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, i))
		require.NoError(t, err)
		require.False(t, json.Valid([]byte(body)))
		seen[status] = true
		require.Equal(t, status == 504, p.Bill() != before)
	}
	require.Equal(t, map[int]bool{500: true, 502: true, 504: true}, seen)
}

func TestRetryAfterForms(t *testing.T) {
	p := New(Options{Faults: Faults{RateLimited: 1}, RetryAfter: 1500 * time.Millisecond})
	seen := map[string]bool{}
	for i := range 60 {
		o := exchange(t, p.RoundTripper(), "http://provider.test/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, i))
		after, ms := o.header.Get("Retry-After"), o.header.Get("Retry-After-Ms")
		_, err := http.ParseTime(after)
		switch {
		case after == "" && ms == "":
			seen["none"] = true
		case ms == "1500" && after == "":
			seen["ms"] = true
		case after == "2":
			seen["seconds"] = true
		case err == nil:
			seen["date"] = true
		default:
			require.Fail(t, "unknown form", after)
		}
	}
	require.Len(t, seen, 4)
	require.Zero(t, p.Bill())
}

// TestAnswerDoesNotDependOnOtherFaults: turning a fault on changes nothing for
// the requests that do not meet it.
func TestAnswerDoesNotDependOnOtherFaults(t *testing.T) {
	plain, faulty := New(Options{}), New(Options{Faults: Faults{Lost: 0.5}})
	met := 0
	for i := range 50 {
		body := fmt.Sprintf(`{"model":"m","prompt":"%d","max_tokens":100}`, i)
		_, want, err := post(t, plain, "/v1/completions", body)
		require.NoError(t, err)
		_, got, err := post(t, faulty, "/v1/completions", body)
		if errors.Is(err, io.EOF) {
			met++
			continue
		}
		require.Equal(t, want[:strings.Index(want, `"created"`)], got[:strings.Index(got, `"created"`)])
		require.Equal(t, want[strings.Index(want, `"model"`):], got[strings.Index(got, `"model"`):])
	}
	require.NotZero(t, met)
	require.NotEqual(t, 50, met)
	require.Equal(t, plain.Bill(), faulty.Bill())
}
