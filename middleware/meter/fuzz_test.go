// No bytes and no split of them break a meter or change what it reads.

package meter_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
)

func FuzzStream(f *testing.F) {
	f.Add([]byte(delta("a")+stop+bare(5, 1)+done), uint8(7), true)
	f.Add([]byte(": c\r\n\r\nevent: error\r\ndata: {\"error\":{}}\r\n\r\ndata: [DONE]"), uint8(1), false)
	f.Add([]byte("data: {\"choices\":[],\ndata: \"usage\":{\"total_tokens\":5}}\n\ndata: x"), uint8(3), true)
	f.Fuzz(func(t *testing.T, body []byte, n uint8, hide bool) {
		whole, want := watch(stream(1, hide), body, max(len(body), 1))
		split, got := watch(stream(1, hide), body, int(n)+1)
		require.Equal(t, whole, split)
		require.Equal(t, want, got)
		require.NoError(t, got.Usage.Check())
		require.GreaterOrEqual(t, got.Generated, int64(0))
		if !hide {
			require.Equal(t, string(body), split)
		}
	})
}

func FuzzAnthropicStream(f *testing.F) {
	f.Add([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n"), uint8(3))
	f.Add([]byte("data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"x\"},\"usage\":{\"iterations\":[{\"input_tokens\":1,\"output_tokens\":2}]}}\r\n\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, body []byte, n uint8) {
		m := meter.AnthropicMessages
		out, want := watch(m.Watch(meter.Bound{}, header(sseType), false), body, max(len(body), 1))
		require.Equal(t, string(body), out)
		_, got := watch(m.Watch(meter.Bound{}, header(sseType), false), body, int(n)+1)
		require.Equal(t, want, got)
		require.NoError(t, got.Usage.Check())
	})
}

func FuzzGeminiStream(f *testing.F) {
	f.Add([]byte("[{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a}\\\"\"}]},\"finishReason\":\"STOP\"}],\n\"usageMetadata\":{\"promptTokenCount\":1,\"totalTokenCount\":3}}\n]"), uint8(3), false)
	f.Add([]byte("data: {\"usageMetadata\":{\"promptTokenCount\":1},\"promptFeedback\":{\"blockReason\":\"X\"}}\r\n\r\n"), uint8(1), true)
	f.Fuzz(func(t *testing.T, body []byte, n uint8, events bool) {
		h := header(jsonType)
		if events {
			h = header(sseType)
		}
		out, want := watch(meter.GeminiStream.Watch(meter.Bound{Choices: 1}, h, false), body, max(len(body), 1))
		require.Equal(t, string(body), out)
		_, got := watch(meter.GeminiStream.Watch(meter.Bound{Choices: 1}, h, false), body, int(n)+1)
		require.Equal(t, want, got)
		require.NoError(t, got.Usage.Check())
	})
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"id":"a","choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`), uint8(7))
	f.Add([]byte(`{"error":{"code":"x"},"usage":null,"weird_usage":{}}`), uint8(1))
	f.Add([]byte(`{"usage\"":1,"a":"\\\"","data":[1]}]`), uint8(2))
	f.Fuzz(func(t *testing.T, body []byte, n uint8) {
		for _, m := range []meter.Meter{meter.OpenAIChat, meter.OpenAIEmbeddings, meter.AnthropicMessages, meter.GeminiGenerate} {
			_, want := watch(m.Watch(meter.Bound{}, header(jsonType), false), body, max(len(body), 1))
			_, got := watch(m.Watch(meter.Bound{}, header(jsonType), false), body, int(n)+1)
			require.Equal(t, want, got)
			require.NoError(t, got.Usage.Check())
		}
	})
}

func FuzzBound(f *testing.F) {
	f.Add([]byte(`{"model":"gpt-4o","max_tokens":1,"stream":true,"stream_options":{"a":1},`+hello+`}`), int64(1))
	f.Add([]byte(`{"model":"x","prompt":["a",[1]],"n":2,"best_of":3,"max_tokens":4,"echo":true}`), int64(7))
	f.Add([]byte(`{"input":[[1,2],"a"],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["b"]}}}}}]}`), int64(0))
	f.Add([]byte(`{"model":"gpt-5","max_completion_tokens":null,"extra_body":{"google":{"max_tokens":0}},"n":3,`+hello+`}`), int64(3))
	f.Add([]byte(`{"model":"claude","messages":[],"max_tokens":9,"thinking":{"budget_tokens":4}}`), int64(2))
	f.Add([]byte(`{"contents":[],"generation_config":{"candidateCount":2,"thinkingConfig":{"thinkingBudget":3}}}`), int64(1))
	f.Add([]byte(`{}`), int64(1))
	f.Fuzz(func(t *testing.T, body []byte, less int64) {
		for _, m := range []meter.Meter{meter.OpenAIChat, meter.OpenAICompletions, meter.OpenAIEmbeddings, meter.AnthropicMessages, meter.GeminiGenerate} {
			o := meter.Options{DefaultOutput: 5}
			b, err := m.Bound(meter.Request{Body: body}, o)
			if err != nil {
				require.ErrorIs(t, err, meter.ErrRefused)
				continue
			}
			require.GreaterOrEqual(t, b.Input, int64(1))
			require.GreaterOrEqual(t, b.Output, int64(0))
			rewritten := func(b meter.Bound, sent []byte) {
				again, err := m.Bound(meter.Request{Body: sent}, o)
				require.NoError(t, err)
				require.Equal(t, figures(b), figures(again))
			}
			if b.WithUsage != nil {
				rewritten(b, b.WithUsage)
			}
			least := b.Least(1)
			require.True(t, 0 < least && least <= b.Total())
			tokens := b.Total() - max(0, less)%(b.Total()-least+1)
			w := b.Within(body, tokens)
			require.True(t, w.Total() <= tokens && w.Total() > tokens-b.Choices || w.Total() == b.Total() && tokens == least, "%d of %d within %d", w.Total(), b.Total(), tokens)
			require.Equal(t, b.WithUsage == nil, w.WithUsage == nil)
			if w.Body != nil {
				rewritten(w, w.Body)
				require.Equal(t, uncapped(t, body), uncapped(t, w.Body))
			}
			if w.WithUsage != nil {
				rewritten(w, w.WithUsage)
			}
		}
	})
}

func figures(b meter.Bound) [5]any { return [...]any{b.Model, b.Input, b.Output, b.Choices, b.Stream} }

// uncapped is a body without its output caps.
func uncapped(t *testing.T, body []byte) any {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var top any
	require.NoError(t, d.Decode(&top))
	var strip func(v any)
	strip = func(v any) {
		object, _ := v.(map[string]any)
		for k, m := range object {
			switch strip(m); strings.ToLower(strings.ReplaceAll(k, "_", "")) {
			case "maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens", "npredict":
				delete(object, k)
			case "generationconfig":
				if config, ok := m.(map[string]any); m == nil || ok && len(config) == 0 {
					delete(object, k)
				}
			}
		}
	}
	strip(top)
	return top
}

func FuzzRefused(f *testing.F) {
	f.Add([]byte(`[{"error":{"code":429,"details":[{"violations":[{"quotaId":"PerDay"}]},{"retryDelay":"36s"}]}}]`), 429)
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		r := meter.OpenAIChat.Refused(status, nil, body)
		require.GreaterOrEqual(t, r.RetryAfter, time.Duration(0))
		require.LessOrEqual(t, len(r.Code), 128)
	})
}
