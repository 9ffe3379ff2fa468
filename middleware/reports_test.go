package middleware_test

// Public reports whose right value only shows in a whole call, or in a run of
// them. The others stand where their behaviour lives.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// cases 28, 29, 32 and 34: what a call is booked with.
func TestUsageOfReports(t *testing.T) {
	event := func(data string) string { return "data: " + data + "\n\n" }
	running := func(output int) string {
		return event(fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":%s}`, usageOf(5, output)))
	}
	for _, c := range []struct {
		name, path, body, answer string
		confirmed                int64
	}{
		{"case 28: a usage-only chunk", "/v1/chat/completions", streamed, event(word("a")) + event(finish) + event(`{"choices":[],"usage":`+usageOf(611, 13)+`}`) + event("[DONE]"), 624},
		{"case 28: choices missing", "/v1/chat/completions", streamed, event(word("a")) + event(finish) + event(`{"usage":`+usageOf(611, 13)+`}`) + event("[DONE]"), 624},
		{"case 28: the first chunk empty", "/v1/chat/completions", streamed, event(`{"choices":[]}`) + event(word("a")) + event(finish) + event(`{"choices":[],"usage":`+usageOf(611, 13)+`}`) + event("[DONE]"), 624},
		{"case 29: running totals", "/v1/chat/completions", streamed, running(10) + running(20) + running(30) + event("[DONE]"), 35},
		{"case 32: the cache comes last", "/v1/messages", `{"model":"claude-sonnet-4-5","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"hi"}]}`,
			event(`{"type":"message_start","message":{"usage":{"input_tokens":1000,"output_tokens":1}}}`) +
				event(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`) +
				event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":100,"cache_read_input_tokens":900,"output_tokens":50}}`) + event(`{"type":"message_stop"}`), 1050},
		{"case 34: reasoning inside", "/v1/chat/completions", prompt, strings.Replace(answered(0, 0), usageOf(0, 0),
			`{"prompt_tokens":2008,"completion_tokens":266,"total_tokens":2274,"completion_tokens_details":{"reasoning_tokens":261}}`, 1), 2274},
		{"case 34: thoughts beside", "/v1beta/models/gemini-2.5-flash:generateContent", `{"contents":[{"parts":[{"text":"hi"}]}]}`,
			`{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":55021,"candidatesTokenCount":923,"thoughtsTokenCount":785,"totalTokenCount":56729}}`, 56729},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(r *http.Request) (*http.Response, error) {
				contentType := "application/json"
				if strings.HasPrefix(c.answer, "data:") {
					contentType = "text/event-stream"
				}
				return reply(r, 200, http.Header{"Content-Type": {contentType}}, c.answer), nil
			})))
			r := request(context.Background(), c.body)
			r.URL.Path = c.path
			resp, err := l.guard.RoundTrip(r)
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, c.answer, string(got))
			resp.Body.Close()
			l.tokens(c.confirmed, 0)
		})
	}
}

// case 50: a prompt above the cap is found out before it is sent.
func TestPromptAboveTheCap(t *testing.T) {
	l := newLab(t, budget.Tokens(1000)) // nothing is scripted: a call that leaves fails the test
	_, err := l.do(context.Background(), strings.Replace(prompt, "purse", strings.Repeat("purse", 1000), 1))
	require.ErrorIs(t, err, budget.ErrExhausted)
	require.ErrorContains(t, err, "larger than the limit")
	l.tokens(0, 0)
}

// cases 38, 39 and 40: where a batch meets the end of an account, of a quota or
// of a day at its fortieth row, the rows from there on are pending, none failed,
// and going on sends those and no others.
func TestBatchThatMeetsItsEnd(t *testing.T) {
	for name, end := range map[string]providertest.Answer{
		"case 38": refusal(429, "insufficient_quota"),
		"case 39": providertest.JSON(400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}`),
		"case 40": providertest.JSON(429, `[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDay"}]},{"retryDelay":"36s"}]}}]`),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(plenty))
			rows := make([]int, 100)
			for i := range rows {
				rows[i] = i + 1
			}
			dir, met := t.TempDir(), false
			run := func() (checkpoint.Summary, []int, error) {
				var sent []int
				sum, err := checkpoint.Run(context.Background(), rows, checkpoint.Options[int]{Dir: dir, Workers: 1, IsPause: middleware.IsPause,
					Key: func(row int) string { return fmt.Sprint(row) }}, func(ctx context.Context, row int) error {
					sent = append(sent, row)
					if row == 40 && !met {
						met = true
						l.provider.Expect(t, end)
					} else {
						l.provider.Expect(t, providertest.JSON(200, answered(5, 5)))
					}
					resp, err := l.do(ctx, prompt)
					if err == nil {
						resp.Body.Close()
					}
					return err
				})
				return sum, sent, err
			}
			sum, sent, err := run()
			require.ErrorIs(t, err, checkpoint.ErrPaused)
			require.Equal(t, rows[:40], sent)
			require.Equal(t, [4]int{39, 0, 0, 61}, [4]int{sum.Done, sum.Failed, sum.Dead, sum.Pending})
			l.tokens(390, 0)
			_, sent, err = run()
			require.NoError(t, err)
			require.Equal(t, rows[39:], sent)
			l.tokens(1000, 0)
		})
	}
}

// Faults seen in other tools' code, which have no numbers.
func TestFaultsOfOtherTools(t *testing.T) {
	t.Run("a charge that crosses the cap vanishes", func(t *testing.T) {
		l := newLab(t, budget.Tokens(100), sizedChat, middleware.MaxWait(0))
		l.provider.Expect(t, providertest.JSON(200, answered(60, 30)), providertest.JSON(200, answered(10, 20)))
		require.NoError(t, l.say(90))
		require.NoError(t, l.say(10))
		l.tokens(120, 0)
		report := l.book.Report()
		require.Equal(t, [2]int64{1, 20}, [2]int64{report.Overruns, report.OverrunTokens})
		require.ErrorIs(t, l.say(1), budget.ErrExhausted)
	})
	t.Run("a request larger than the limit hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			l := newLab(t, budget.Tokens(100), sizedChat, middleware.MaxWait(1<<62))
			require.ErrorContains(t, l.say(101), "larger than the limit")
			require.Zero(t, time.Since(begin))
		})
	})
	for name, c := range map[string]struct {
		failure providertest.Answer
		assumed int64
	}{
		"a failed attempt's hold is not given back": {refusal(429, "slow_down"), 0},
		"and one that may be billed is charged":     {refusal(500, "server_error"), 300},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, budget.Tokens(plenty), sizedChat)
				l.provider.Expect(t, c.failure, c.failure, c.failure, providertest.JSON(200, answered(40, 20)))
				require.NoError(t, l.say(100))
				l.tokens(60, c.assumed)
				require.EqualValues(t, 4, l.book.Report().Requests)
			})
		})
	}
	t.Run("a quota is not known by its text", func(t *testing.T) {
		l := newLab(t, budget.Tokens(plenty))
		l.provider.Expect(t, providertest.JSON(429, // as OpenAI words it: no "rate limit" in it
			`{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`))
		_, err := l.do(context.Background(), prompt)
		require.True(t, middleware.IsPause(err))
		l.tokens(0, 0)
	})
}
