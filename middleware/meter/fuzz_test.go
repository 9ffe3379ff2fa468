// No bytes and no split of them break a meter or change what it reads.

package meter_test

import (
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
	f.Add([]byte(`{"model":"gpt-4o","max_tokens":1,"stream":true,"stream_options":{"a":1},` + hello + `}`))
	f.Add([]byte(`{"model":"x","prompt":["a",[1]],"n":2,"best_of":3,"max_tokens":4,"echo":true}`))
	f.Add([]byte(`{"input":[[1,2],"a"],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["b"]}}}}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, m := range []meter.Meter{meter.OpenAIChat, meter.OpenAICompletions, meter.OpenAIEmbeddings, meter.AnthropicMessages, meter.GeminiGenerate} {
			b, err := m.Bound(meter.Request{Body: body}, meter.Options{DefaultOutput: 5})
			if err != nil {
				require.ErrorIs(t, err, meter.ErrRefused)
				continue
			}
			require.GreaterOrEqual(t, b.Input, int64(1))
			require.GreaterOrEqual(t, b.Output, int64(0))
			if b.WithUsage == nil {
				continue
			}
			again, err := m.Bound(meter.Request{Body: b.WithUsage}, meter.Options{DefaultOutput: 5})
			require.NoError(t, err)
			require.Nil(t, again.WithUsage, "it is asked for now")
			again.WithUsage, b.WithUsage = nil, nil
			require.Equal(t, b, again, "and nothing else changed")
		}
	})
}

func FuzzRefused(f *testing.F) {
	f.Add([]byte(`[{"error":{"code":429,"details":[{"violations":[{"quotaId":"PerDay"}]},{"retryDelay":"36s"}]}}]`), 429)
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		r := meter.OpenAIChat.Refused(status, nil, body)
		require.GreaterOrEqual(t, r.RetryAfter, time.Duration(0))
		require.LessOrEqual(t, len(r.Code), 128)
	})
}
