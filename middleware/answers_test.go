package middleware_test

// I6, what an answer is worth: unknown is never zero, and zero only where it
// can be.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// cases 21, 30, 35, 36
func TestUsageOfAnAnswer(t *testing.T) {
	with := func(usage string) string { return strings.Replace(answered(5, 5), usageOf(5, 5), usage, 1) }
	held := hold(t, prompt)
	for _, c := range []struct {
		name, body         string
		confirmed, assumed int64
		why                string
	}{
		{"reported", answered(20, 30), 50, 0, ""},
		{"above the hold", answered(20, 10*int(held)), 20 + 10*held, 0, ""},
		{"none, case 21", `{"choices":[{"message":{"content":"x"}}]}`, 0, held, meter.NoUsage},
		{"null", with("null"), 0, held, meter.NoUsage},
		{"zero and empty, case 30", `{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`, 0, 0, ""},
		{"zero with output, case 30", answered(0, 0), 0, held, meter.ZeroUsage},
		{"of another shape, case 35", `{"weird_usage":{"in":50000}}`, 0, held, meter.Unreadable},
		{"negative, case 36", with(`{"prompt_tokens":-100000000,"completion_tokens":1,"total_tokens":-99999999}`), 0, held, meter.Unreadable},
		{"NaN, case 36", with(`{"prompt_tokens":NaN,"completion_tokens":1,"total_tokens":1}`), 0, held, meter.Unreadable},
		{"1e30, case 36", with(`{"prompt_tokens":1e30,"completion_tokens":1,"total_tokens":1e30}`), 0, held, meter.Unreadable},
		{"a string, case 36", with(`{"prompt_tokens":"12","completion_tokens":1,"total_tokens":13}`), 0, held, meter.Unreadable},
		{"a fraction, case 36", with(`{"prompt_tokens":12.7,"completion_tokens":1,"total_tokens":13.7}`), 0, held, meter.Unreadable},
		{"total below its parts, case 36", with(`{"prompt_tokens":12,"completion_tokens":10,"total_tokens":13}`), 0, held, meter.Unreadable},
		{"no JSON", `<html>`, 0, held, meter.NoUsage},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log strings.Builder
			l := newLab(t, budget.Tokens(plenty), middleware.Logger(slog.New(slog.NewTextHandler(&log, nil))))
			l.provider.Expect(t, providertest.JSON(200, c.body))
			require.Equal(t, c.body, l.must(prompt))
			l.tokens(c.confirmed, c.assumed)
			if c.why == "" {
				require.Empty(t, l.book.Report().Unknown)
			} else {
				require.Equal(t, map[string]int64{c.why: 1}, l.book.Report().Unknown)
				require.Contains(t, log.String(), "without readable usage")
			}
		})
	}
}

// case 21: five answers without usage use up what five holds do.
func TestUnknownUsesUpTheCap(t *testing.T) {
	l := newLab(t, budget.Tokens(100), sizedChat)
	for range 5 {
		l.provider.Expect(t, providertest.JSON(200, `{"choices":[]}`))
		require.NoError(t, l.say(20))
	}
	require.ErrorIs(t, l.say(20), budget.ErrExhausted)
}

// An answer cut short is a failed attempt that may have been billed, also one
// to a request for a stream.
func TestCutAnswerIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, body := range []string{prompt, streamed} {
			l := newLab(t, budget.Tokens(plenty))
			l.provider.Expect(t, providertest.JSON(200, answered(60, 40)).CutAt(40), providertest.JSON(200, answered(60, 40)))
			require.Equal(t, answered(60, 40), l.must(body))
			l.tokens(100, hold(t, body))
			require.Equal(t, map[string]int64{"cut answer": 1}, l.book.Report().Unknown)
		}
	})
}

// The longest answer that is read is read; a longer one is delivered all the
// same, and charged at its hold.
func TestHugeAnswerIsDelivered(t *testing.T) {
	head, tail, _ := strings.Cut(answered(60, 40), "ninepence")
	const long = 64 << 20
	l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
		resp := reply(r, 200, nil, "")
		resp.ContentLength = -1
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(head), io.LimitReader(letters{}, long), strings.NewReader(tail)))
		return resp, nil
	})))
	resp, err := l.do(context.Background(), prompt)
	require.NoError(t, err)
	l.tokens(0, hold(t, prompt))
	n, err := io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.EqualValues(t, len(head)+long+len(tail), n)
}

type letters struct{}

func (letters) Read(p []byte) (int, error) { return len(p), nil }

// An error inside a good status is no answer; a quota there is a pause.
func TestErrorWithAGoodStatus(t *testing.T) {
	l := newLab(t, budget.Tokens(plenty))
	l.provider.Expect(t, providertest.JSON(200, `{"error":{"code":"insufficient_quota","message":"no"}}`))
	_, err := l.do(context.Background(), prompt)
	require.True(t, middleware.IsPause(err))
	l.tokens(0, hold(t, prompt)) // no meter says that it was free
}

// bent is a meter that reads answers in a way of its own.
type bent struct {
	meter.Meter
	bend func(*meter.Reading)
}

func (m bent) Watch(b meter.Bound, h http.Header, sent bool) meter.Watch {
	return bentWatch{m.Meter.Watch(b, h, sent), m.bend}
}

type bentWatch struct {
	meter.Watch
	bend func(*meter.Reading)
}

func (w bentWatch) Reading() meter.Reading {
	r := w.Watch.Reading()
	w.bend(&r)
	return r
}

// The guard takes a meter at its word, but for figures that cannot be.
func TestMeterOfTheCaller(t *testing.T) {
	bend := func(r *meter.Reading) { r.Usage, r.Final = budget.Usage{Input: -1, Output: 5}, true }
	l := newLab(t, budget.Tokens(plenty), middleware.Routes(meter.Route{Path: "chat/completions", Meter: bent{meter.OpenAIChat, bend}}))
	const failure = `{"error":{"code":"server_error","message":"no"}}`
	l.provider.Expect(t, providertest.JSON(200, failure), providertest.SSE(failure))
	require.Equal(t, failure, l.must(prompt))
	l.must(streamed)
	l.tokens(0, hold(t, prompt)+hold(t, streamed))
	require.Equal(t, map[string]int64{meter.Unreadable: 2}, l.book.Report().Unknown)
}

// talkative is a meter whose codes are text.
type talkative struct{ meter.Meter }

func (m talkative) Refused(int, http.Header, []byte) meter.Refusal {
	return meter.Refusal{Code: "ninepence and a purse", Stop: true}
}

func (m talkative) Watch(b meter.Bound, h http.Header, sent bool) meter.Watch {
	return bentWatch{m.Meter.Watch(b, h, sent), func(r *meter.Reading) {
		f := m.Refused(0, nil, nil)
		r.Failure = &f
	}}
}

// I10, also where the meter is not ours.
func TestCodesAreWords(t *testing.T) {
	for _, status := range []int{200, 429} {
		l := newLab(t, budget.Tokens(plenty), middleware.Routes(meter.Route{Path: "chat/completions", Meter: talkative{meter.OpenAIChat}}))
		l.provider.Expect(t, providertest.JSON(status, `{}`))
		_, err := l.do(context.Background(), prompt)
		require.ErrorContains(t, err, fmt.Sprintf("stopped: HTTP %d", status))
		require.NotContains(t, err.Error(), "ninepence")
		require.NotContains(t, fmt.Sprint(l.book.Report()), "ninepence")
	}
}

// DESIGN 7.1: which refusals are free.
func TestWhichRefusalsAreFree(t *testing.T) {
	held := hold(t, prompt)
	for _, c := range []struct {
		status  int
		code    string
		assumed int64
	}{
		{400, "context_length_exceeded", 0}, {400, "never_heard_of", held}, {422, "never_heard_of", held}, {401, "invalid_api_key", 0}, {404, "model_not_found", 0}, {429, "rate_limit_exceeded", 0},
		{400, "content_filter", held}, {408, "timeout", held}, {409, "conflict", held}, {500, "server_error", held},
		{503, "server_error", held}, {503, "overloaded_error", 0}, {529, "overloaded_error", 0},
	} {
		t.Run(fmt.Sprint(c.status, " ", c.code), func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), once)
			l.provider.Expect(t, refusal(c.status, c.code))
			resp, err := l.do(context.Background(), prompt)
			require.NoError(t, err)
			require.Equal(t, c.status, resp.StatusCode)
			require.Empty(t, resp.Header.Get("X-Should-Retry")) // for Stainless SDKs only
			resp.Body.Close()
			l.tokens(0, c.assumed)
		})
	}
}

// I10: neither prompt, answer nor key is in errors, log or book.
func TestNothingSecretLeaks(t *testing.T) {
	var told strings.Builder
	log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var client http.Client // a base that is itself a client wraps errors with the URL
	for name, b := range map[string]base{
		"no answer": func(r *http.Request) (*http.Response, error) { return client.Do(r) },
		"refusal": func(r *http.Request) (*http.Response, error) {
			return reply(r, 500, nil, `{"error":{"code":"boom","message":"your purse sk-secret"}}`), nil
		},
		"pause": func(r *http.Request) (*http.Response, error) {
			return reply(r, 402, nil, `{"error":{"code":"insufficient_quota","message":"your purse sk-secret"}}`), nil
		},
		"answer": func(r *http.Request) (*http.Response, error) { return reply(r, 200, nil, answered(0, 0)), nil },
	} {
		t.Run(name, func(t *testing.T) {
			client.Transport = base(func(*http.Request) (*http.Response, error) { return nil, http.ErrHandlerTimeout })
			l := newLab(t, budget.Tokens(plenty), once, middleware.Base(b), middleware.Logger(log))
			resp, err := l.do(context.Background(), prompt)
			if err == nil {
				resp.Body.Close()
			}
			fmt.Fprintln(&told, err, l.book.Report())
		})
	}
	for _, secret := range []string{"purse", "ninepence", "sk-secret", "sesame"} {
		require.NotContains(t, told.String(), secret)
	}
}
