// DESIGN section 8: a chunk of a stream costs at most 1 µs and no allocation.

package meter_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
)

// chunk has the size and shape of OpenAI's.
var chunk = []byte(`data: {"id":"chatcmpl-aa331686-f58a-449a-9105-aa37cd2def51","object":"chat.completion.chunk","created":1755137752,` +
	`"model":"gpt-4o-mini-2024-07-18","service_tier":"default","system_fingerprint":"fp_0123456789","choices":[{"index":0,"delta":{"content":" word"},` +
	`"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"C5DIEqZL35Ph7"}` + "\n\n")

func TestChunkDoesNotAllocate(t *testing.T) {
	for _, hide := range []bool{false, true} {
		w := stream(1, hide)
		w.Write(chunk)
		require.Zero(t, testing.AllocsPerRun(100, func() { w.Write(chunk) }))
		half := len(chunk) / 2
		w.Write(chunk[:half])
		w.Write(chunk[half:])
		require.Zero(t, testing.AllocsPerRun(100, func() { w.Write(chunk[:half]); w.Write(chunk[half:]) }))
	}
}

func BenchmarkChunk(b *testing.B) {
	for name, hide := range map[string]bool{"asked": false, "hiding": true} {
		b.Run(name, func(b *testing.B) {
			w := stream(1, hide)
			b.ReportAllocs()
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				w.Write(chunk)
			}
		})
	}
}

func BenchmarkBound(b *testing.B) {
	for name, n := range map[string]int{"2kB": 2_000, "200kB": 200_000} {
		body := []byte(`{"model":"gpt-4o","max_tokens":100,"messages":[{"role":"system","content":"You are helpful.\n"},{"role":"user","content":"` +
			strings.Repeat("A line of the prompt.\\n", n/24) + `"}]}`)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := meter.OpenAIChat.Bound(meter.Request{Body: body}, meter.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBody(b *testing.B) {
	body := []byte(`{"id":"chatcmpl-1","choices":[{"message":{"role":"assistant","content":"` + strings.Repeat("An answer. ", 100) +
		`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":120,"total_tokens":620}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		w := meter.OpenAIChat.Watch(meter.Bound{}, header(jsonType), false)
		w.Write(body)
		if w.End(); w.Reading().Usage.Total() != 620 {
			b.Fatal("misread")
		}
	}
}
