package middleware_test

// I6, DESIGN 7.1: what becomes of an attempt, by what happened on the wire, and
// what the book says of it. This is the one place to look it up. Each row runs
// over real sockets twice: with one attempt, which shows the closing entry, and
// with two, which shows whether there is another and what its extend takes.

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

// verdict is what a row expects.
type verdict struct {
	bill      string // sure, maybe, free (it got there), unsent, or nothing: no reservation
	confirmed int64  // of sure
	assumed   int64  // of maybe, above the hold; 0 is the hold
	why       string // of the closing entry, and so of the extend
	again     bool   // there is another attempt, if the policy allows
	seen      int    // how often the first event reached the server
}

func sure(tokens int64) verdict    { return verdict{bill: "sure", confirmed: tokens, seen: 1} }
func maybe(why string) verdict     { return verdict{bill: "maybe", why: why, seen: 1} }
func free(why string) verdict      { return verdict{bill: "free", why: why, seen: 1} }
func unsent(why string) verdict    { return verdict{bill: "unsent", why: why} }
func (v verdict) retried() verdict { v.again = true; return v }

// event is what happens to the first attempt; every other one is answered well.
type event struct {
	answer func(w http.ResponseWriter, r *http.Request, at *site)   // at the server
	wire   func(t *testing.T, at *site) (http.RoundTripper, string) // a base of its own, and the address it is for
	body   string
	call   func(at *site, g *middleware.Guard, r *http.Request) // how the caller behaves; nil: it reads to the end
	timed  bool                                                 // there are time-outs
}

func TestOutcomes(t *testing.T) {
	says := func(status int, body string, header ...string) event {
		return event{body: prompt, answer: func(w http.ResponseWriter, _ *http.Request, _ *site) { write(w, status, body, header...) }}
	}
	code := func(status int, code string) event {
		return says(status, fmt.Sprintf(`{"error":{"message":"no","type":%q,"param":null,"code":%q}}`, code, code))
	}
	events := func(data ...string) event {
		e := says(200, "data: "+strings.Join(data, "\n\ndata: ")+"\n\n", "Content-Type", "text/event-stream")
		e.body = streamed
		return e
	}
	raw := func(answer string) event {
		return event{body: prompt, answer: func(w http.ResponseWriter, _ *http.Request, _ *site) { hijacked(w, answer) }}
	}
	stalls := func(contentType, begin string) event {
		return event{body: prompt, answer: func(w http.ResponseWriter, r *http.Request, at *site) { stallAfter(w, r, at, contentType, begin) }}
	}
	on := func(wire func(*testing.T, *site) (http.RoundTripper, string)) event {
		return event{body: prompt, wire: wire}
	}
	as := func(e event, call func(*site, *middleware.Guard, *http.Request)) event { e.call = call; return e }
	timed := func(e event) event { e.timed = true; return e }
	streaming := func(e event) event { e.body = streamed; return e }
	const sse, app = "text/event-stream", "application/json"
	chunk := "data: " + word("a") + "\n\n"

	for _, c := range []struct {
		name  string
		event event
		want  verdict
	}{
		// Before the whole request left.
		{"dial refused", on(refusedDial), unsent("no answer").retried()},
		{"no such name", on(noSuchName), unsent("no answer")},
		{"the resolver is down", on(noResolver), unsent("no answer").retried()},
		{"a dial that takes too long", timed(on(slowDial)), unsent("timeout").retried()},
		{"a certificate that is not trusted", on(untrusted), unsent("no answer")},
		{"a server that speaks no TLS", on(noTLS), unsent("no answer")},
		{"a proxy that lets nothing through", on(closedProxy), unsent("no answer")},
		{"closed while the body is on its way", event{wire: closesEarly, body: strings.Replace(prompt, "purse", strings.Repeat("purse", 4<<20), 1)}, free("no answer").retried()},
		{"cancelled before", as(says(200, ""), cancelledBefore), verdict{bill: "nothing"}},
		{"cancelled while it dials", as(on(slowDial), cancelled), unsent("cancelled")},

		// The request left, and no answer came.
		{"closed without an answer", raw(""), maybe("no answer").retried()},
		{"closed in the header", raw("HTTP/1.1 200 OK\r\n"), maybe("no answer").retried()},
		{"what is no HTTP", raw("ninepence\r\n\r\n"), maybe("no answer")},
		{"1xx only", raw("HTTP/1.1 103 Early Hints\r\n\r\n"), maybe("no answer").retried()},
		{"a connection kept alive that is dead", on(stale), maybe("no answer").retried()},
		{"no header in time", timed(stalls("", "")), maybe("timeout").retried()},
		{"the caller's deadline", as(stalls("", ""), deadline), maybe("timeout")},
		{"cancelled before the first byte", as(stalls("", ""), cancelled), maybe("cancelled")},
		{"HTTP/2: stream reset", on(h2(rstStream(2))), maybe("no answer").retried()},
		{"HTTP/2: refused stream", on(h2(rstStream(7))), maybe("no answer")}, // net/http says so in text only
		{"HTTP/2: going away", on(h2(goAway)), maybe("no answer")},

		// Refusals, by status and structured error.
		{"301", says(301, "", "Location", "/elsewhere"), free("HTTP 301")},
		{"307", says(307, "", "Location", "/elsewhere"), free("HTTP 307")},
		{"400, a code that is listed", code(400, "context_length_exceeded"), free("HTTP 400 context_length_exceeded")},
		{"400, the field at fault and no code of its own", says(400, `{"error":{"message":"no","type":"invalid_request_error","param":"n","code":null}}`), free("HTTP 400 invalid_request_error")},
		{"400, an empty account", says(400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}`), free("HTTP 400 invalid_request_error")},
		{"400, a code that is not", code(400, "never_heard_of"), maybe("HTTP 400 never_heard_of")},
		{"400, its type alone", code(400, "invalid_request_error"), maybe("HTTP 400 invalid_request_error")},
		{"400, a filter that is billed", code(400, "content_filter"), maybe("HTTP 400 content_filter")},
		{"400, with what was generated", says(400, `{"error":{"code":"invalid_value","failed_generation":"{"}}`), maybe("HTTP 400 invalid_value")},
		{"400, no form", says(400, "Bad Request"), maybe("HTTP 400")},
		{"400, an empty body", says(400, ""), maybe("HTTP 400")},
		{"401", code(401, "invalid_api_key"), free("HTTP 401 invalid_api_key")},
		{"401 of a proxy", says(401, "<html>"), maybe("HTTP 401")},
		{"402", says(402, "pay"), free("HTTP 402")},
		{"403", code(403, "forbidden"), free("HTTP 403 forbidden")},
		{"404", says(404, `{"detail":"Not Found"}`), free("HTTP 404")},
		{"405", code(405, "method_not_allowed"), free("HTTP 405 method_not_allowed")},
		{"407", says(407, ""), maybe("HTTP 407")},
		{"408", code(408, "timeout"), maybe("HTTP 408 timeout").retried()},
		{"409", code(409, "lock"), maybe("HTTP 409 lock").retried()},
		{"413", code(413, "request_too_large"), free("HTTP 413 request_too_large")},
		{"418", code(418, "teapot"), maybe("HTTP 418 teapot")},
		{"422, the fields at fault", says(422, `{"detail":[{"loc":["body","model"],"msg":"Field required"}]}`), free("HTTP 422")},
		{"422, a code that is not listed", code(422, "never_heard_of"), maybe("HTTP 422 never_heard_of")},
		{"429", code(429, "rate_limit_exceeded"), free("HTTP 429 rate_limit_exceeded").retried()},
		{"429 of a proxy", says(429, "<html>"), free("HTTP 429").retried()},
		{"429, quota", code(429, "insufficient_quota"), free("HTTP 429 insufficient_quota")},
		{"429, with usage", says(429, `{"error":{"code":"x"},"usage":{"total_tokens":7}}`), maybe("HTTP 429 x").retried()},
		{"500", code(500, "server_error"), maybe("HTTP 500 server_error").retried()},
		{"500, a cut body", raw("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\n{\"error\":{\"code\":"), maybe("HTTP 500").retried()},
		{"500, not to be tried again", says(500, "", "X-Should-Retry", "false"), maybe("HTTP 500")},
		{"501", says(501, ""), maybe("HTTP 501")},
		{"502 of a proxy", says(502, "<html>"), maybe("HTTP 502").retried()},
		{"503", code(503, "server_error"), maybe("HTTP 503 server_error").retried()},
		{"503, overloaded", code(503, "engine_overloaded"), free("HTTP 503 engine_overloaded").retried()},
		{"504", says(504, ""), maybe("HTTP 504").retried()},
		{"529, overloaded", code(529, "overloaded_error"), free("HTTP 529 overloaded_error").retried()},
		{"529, no form", says(529, ""), maybe("HTTP 529").retried()},

		// Whole answers.
		{"usage", says(200, answered(20, 30)), sure(50)},
		{"usage above the hold", says(200, answered(20, 3000)), sure(3020)},
		{"usage, compressed", says(200, gzipped(answered(20, 30)), "Content-Encoding", "gzip"), sure(50)},
		{"1xx, then an answer", event{body: prompt, answer: func(w http.ResponseWriter, _ *http.Request, _ *site) {
			w.WriteHeader(http.StatusEarlyHints)
			write(w, 200, answered(20, 30))
		}}, sure(50)},
		{"no usage", says(200, `{"choices":[{"message":{"content":"x"}}]}`), maybe(meter.NoUsage)},
		{"usage null", says(200, `{"choices":[],"usage":null}`), maybe(meter.NoUsage)},
		{"usage negative", says(200, `{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":1,"total_tokens":-4}}`), maybe(meter.Unreadable)},
		{"usage of another shape", says(200, `{"weird_usage":{"in":50000}}`), maybe(meter.Unreadable)},
		{"zero usage with output", says(200, answered(0, 0)), maybe(meter.ZeroUsage)},
		{"zero usage without output", says(200, `{"choices":[],"usage":`+usageOf(0, 0)+`}`), sure(0)},
		{"an error behind 200", says(200, `{"error":{"code":"server_error"}}`), maybe(meter.NoUsage)},
		{"a quota behind 200", says(200, `{"error":{"code":"insufficient_quota"}}`), maybe(meter.NoUsage)},
		{"a page", says(200, "<html>"), maybe(meter.NoUsage)},
		{"an empty body", says(200, ""), maybe(meter.NoUsage)},
		{"garbage that is to be gzip", says(200, "ninepence and some more", "Content-Encoding", "gzip"), maybe("cut answer")},
		{"cut", raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n" + answered(20, 30)[:40]), maybe("cut answer").retried()},
		{"cut in a chunk", raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{\"choices\":"), maybe("cut answer").retried()},
		{"cut where only the connection's end tells", raw("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + answered(20, 30)[:40]), maybe(meter.NoUsage)},
		{"silent in mid-answer", timed(stalls(app, answered(20, 30)[:40])), maybe("timeout").retried()},
		{"cancelled in mid-answer", as(stalls(app, answered(20, 30)[:40]), cancelled), maybe("cancelled")},

		// Streams, which are handed on and so not tried again.
		{"stream, usage and [DONE]", events(word("a"), finish, lastUsage, "[DONE]"), sure(258)},
		{"stream, usage on the finish chunk", events(word("a"), fullUsage, "[DONE]"), sure(258)},
		{"stream, no [DONE]", events(word("a"), finish, lastUsage), sure(258)},
		{"stream, running totals", events(someUsage, fullUsage, "[DONE]"), sure(258)},
		{"stream, [DONE] and no usage", events(word("a"), finish, "[DONE]"), maybe(meter.NoUsage)},
		{"stream, usage and then more", events(someUsage, word("a"), finish, "[DONE]"), maybe("output behind the usage")},
		{"stream, bad usage", events(word("a"), finish, `{"choices":[],"usage":{"prompt_tokens":-1}}`, "[DONE]"), maybe(meter.Unreadable)},
		{"stream, an error in it", events(word("a"), errorEvent), maybe("cut stream")},
		{"stream, ends in mid-answer", events(word("a"), word("b")), maybe("cut stream")},
		{"stream, cut", streaming(raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n" + chunk)), maybe("cut stream")},
		{"stream, cut above its hold", streaming(raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\ndata: " +
			strings.ReplaceAll(someUsage, ":25}", ":9999}") + "\n\n")), verdict{bill: "maybe", assumed: 9999, why: "cut stream", seen: 1}},
		{"stream, empty", streaming(says(200, "", "Content-Type", "text/event-stream")), maybe("cut stream")},
		{"stream, garbage that is to be gzip", streaming(says(200, "ninepence", "Content-Type", "text/event-stream", "Content-Encoding", "gzip")), maybe("cut stream")},
		{"stream, silent", timed(streaming(stalls(sse, chunk))), maybe("cut stream")},
		{"stream, cancelled", as(streaming(stalls(sse, chunk)), cancelledInStream), maybe("aborted stream")},
		{"stream, closed early", as(streaming(stalls(sse, chunk)), closedEarly), maybe("aborted stream")},
		{"stream asked, whole answer", streaming(says(200, answered(20, 30))), sure(50)},
		{"stream asked, whole answer cut", streaming(raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")), maybe("cut answer").retried()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.event.run(t, 1, c.want)
			c.event.run(t, 2, c.want)
		})
	}
}

// run makes a call whose first attempt is the event.
func (e event) run(t *testing.T, attempts int, want verdict) {
	at := newSite(t, e)
	var entries []journal.Entry
	opts := []middleware.Option{middleware.Base(at), middleware.Retry(retry.Policy{Attempts: attempts, FirstWait: -1})}
	if e.timed {
		opts = append(opts, middleware.Timeouts(time.Second, time.Second))
	}
	l := newLab(t, budget.Observe(func(e journal.Entry) { entries = append(entries, e) }), opts...)
	r := request(context.Background(), e.body)
	r.URL.Scheme, r.URL.Host, _ = strings.Cut(at.url, "://")
	if e.call != nil {
		e.call(at, l.guard, r)
	} else if resp, err := l.guard.RoundTrip(r); err == nil {
		_ = drain(resp)
		resp.Body.Close()
	}
	l.guard.Wait()

	held := hold(t, e.body)
	again := want.again && attempts > 1
	require.EqualValues(t, want.seen, at.first.Load(), "requests that reached the server")
	require.Equal(t, again, at.others.Load() == 1, "another attempt")
	assumed := int64(0)
	if want.bill == "maybe" {
		assumed = max(held, want.assumed)
	}
	var said []string
	for _, e := range entries {
		if e.Kind == journal.Open || e.Kind == journal.Limit || e.Kind == journal.Seal {
			continue
		}
		said = append(said, fmt.Sprintf("%s %+d tokens %+d requests: %s", e.Kind, e.Amount, e.Requests, e.Why))
	}
	line := func(kind journal.Kind, amount, requests int64, why string) string {
		return fmt.Sprintf("%s %+d tokens %+d requests: %s", kind, amount, requests, why)
	}
	reserve := line(journal.Reserve, held, 1, "")
	switch {
	case want.bill == "nothing":
		require.Empty(t, said)
		l.tokens(0, 0)
	case again && want.bill == "maybe":
		require.Equal(t, []string{reserve, line(journal.Extend, held, 1, want.why), line(journal.Settle, 10-held, 0, "")}, said)
		l.tokens(10, held)
	case again && want.bill == "free":
		require.Equal(t, []string{reserve, line(journal.Extend, 0, 1, want.why), line(journal.Settle, 10-held, 0, "")}, said)
		l.tokens(10, 0)
	case again:
		require.Equal(t, []string{reserve, line(journal.Extend, 0, 0, want.why), line(journal.Settle, 10-held, 0, "")}, said)
		l.tokens(10, 0)
	case want.bill == "maybe", want.bill == "sure":
		require.Equal(t, []string{reserve, line(journal.Settle, want.confirmed+assumed-held, 0, want.why)}, said)
		l.tokens(want.confirmed, assumed)
	case want.bill == "free":
		require.Equal(t, []string{reserve, line(journal.Refund, -held, 0, want.why)}, said)
		l.tokens(0, 0)
	case want.bill == "unsent":
		require.Equal(t, []string{reserve, line(journal.Refund, -held, -1, want.why)}, said)
		l.tokens(0, 0)
	}
}

// The resend without include_usage is another attempt like any other: it is
// held for before it leaves, or does not leave.
func TestResendIsHeldFor(t *testing.T) {
	unasked := strings.Replace(prompt, "{", `{"stream":true,`, 1)
	const no = `{"error":{"message":"Unrecognized request argument: stream_options","code":"invalid"}}`
	held := hold(t, unasked)
	for name, c := range map[string]struct {
		refusal string
		limit   int64
		extend  string // the entry; empty: it is refused
	}{
		"free":                {no, plenty, "extend +0: HTTP 400 invalid"},
		"perhaps billed":      {strings.Replace(no, "{", `{"choices":[{}],`, 1), plenty, fmt.Sprintf("extend %+d: HTTP 400 invalid", held)},
		"no room for it":      {strings.Replace(no, "{", `{"choices":[{}],`, 1), 2*held - 1, ""},
		"room, as it is free": {no, held, "extend +0: HTTP 400 invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			var extends []string
			l := newLab(t, budget.Observe(func(e journal.Entry) {
				if e.Kind == journal.Extend {
					extends = append(extends, fmt.Sprintf("%s %+d: %s", e.Kind, e.Amount, e.Why))
				}
			}), once)
			require.NoError(t, l.book.SetLimit(context.Background(), budget.Tokens(c.limit)))
			l.provider.Expect(t, providertest.JSON(400, c.refusal))
			if c.extend == "" {
				_, err := l.do(context.Background(), unasked)
				require.ErrorIs(t, err, budget.ErrExhausted)
				require.True(t, middleware.IsDenied(err))
				require.Empty(t, extends)
				l.tokens(0, held)
				return
			}
			l.provider.Expect(t, providertest.SSE(word("a"), finish))
			l.must(unasked)
			require.Equal(t, []string{c.extend}, extends)
		})
	}
}
