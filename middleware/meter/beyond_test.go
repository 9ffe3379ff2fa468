package meter_test

// I6: a request that its own bytes do not bound is bounded by the context window
// for each step that the caller permits, or refused with an error that says so.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

func TestBeyondTheRequest(t *testing.T) {
	openAI := func(more string) string { return `{"model":"gpt-4o","max_tokens":10,"n":2,` + hello + `,` + more + `}` }
	anthropic := func(content, more string) string {
		return `{"model":"claude-sonnet-4-5","max_tokens":10,"messages":[{"role":"user","content":` + content + `}]` + more + `}`
	}
	gemini := func(part, more string) string {
		return `{"contents":[{"parts":[` + part + `]}],"generationConfig":{"maxOutputTokens":10}` + more + `}`
	}
	const text, geminiText = `"hi"`, `{"text":"hi"}`
	for _, c := range []struct {
		name   string
		meter  meter.Meter
		body   string
		steps  bool  // it may take several
		output int64 // of one step
	}{
		{"OpenAI, a stored conversation", meter.OpenAIChat, openAI(`"previous_response_id":"r"`), false, 20},
		{"OpenAI, cached content", meter.OpenAIChat, openAI(`"extra_body":{"google":{"cached_content":"c"}}`), false, 20},
		{"OpenAI, a file by its id", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":10,"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]}`, false, 10},
		{"OpenAI, an earlier answer's audio", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":10,"messages":[{"role":"assistant","audio":{"id":"a"}}]}`, false, 10},
		{"OpenAI, a search", meter.OpenAIChat, openAI(`"web_search_options":{}`), true, 20},
		{"OpenAI, a tool of the provider's", meter.OpenAIChat, openAI(`"tools":[{"type":"web_search"}]`), true, 20},
		{"OpenAI, data of Azure's", meter.OpenAIChat, openAI(`"data_sources":[{"type":"azure_search"}]`), true, 20},
		{"OpenAI, a model that searches", meter.OpenAIChat, openAI(`"models":["perplexity/sonar-pro"]`), true, 20},
		{"Anthropic, a file by its id", meter.AnthropicMessages, anthropic(`[{"type":"document","source":{"type":"file","file_id":"f"}}]`, ""), false, 10},
		{"Anthropic, a search", meter.AnthropicMessages, anthropic(text, `,"tools":[{"type":"web_search_20250305","name":"web_search"}]`), true, 10},
		{"Anthropic, servers", meter.AnthropicMessages, anthropic(text, `,"mcp_servers":[{"url":"https://x.test"}]`), true, 10},
		{"Anthropic, a compaction", meter.AnthropicMessages, anthropic(text, `,"context_management":{"edits":[{"type":"compact_20260112"}]}`), true, 10},
		{"Gemini, cached content", meter.GeminiGenerate, gemini(geminiText, `,"cachedContent":"c"`), false, 10},
		{"Gemini, a file", meter.GeminiGenerate, gemini(`{"fileData":{"fileUri":"u"}}`, ""), false, 10},
		{"Gemini, a search", meter.GeminiGenerate, gemini(geminiText, `,"tools":[{"googleSearch":{}}]`), true, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := func(o meter.Options) *meter.UnboundedError {
				_, err := bound(c.meter, c.body, o)
				var e *meter.UnboundedError
				require.ErrorAs(t, err, &e)
				require.ErrorIs(t, err, meter.ErrRefused)
				require.Equal(t, c.steps, e.Steps)
				require.ErrorContains(t, err, "Options.ContextWindow")
				return e
			}
			if e := refused(meter.Options{}); c.steps {
				require.ErrorContains(t, e, "Options.Steps")
				refused(meter.Options{ContextWindow: 1000})
			}
			refused(meter.Options{Steps: 3})

			b, err := bound(c.meter, c.body, meter.Options{ContextWindow: 1000, Steps: 3})
			require.NoError(t, err)
			want := meter.Bound{Input: 1000, Output: c.output}
			if c.steps {
				want = meter.Bound{Input: 3000, Output: 3 * c.output}
			}
			require.Equal(t, want, meter.Bound{Input: b.Input, Output: b.Output})

			_, err = bound(c.meter, c.body, meter.Options{ContextWindow: budget.MaxTokens, Steps: budget.MaxTokens})
			require.ErrorAs(t, err, new(*meter.BodyError), "more than any bound")
		})
	}
	// One that does both takes steps.
	b, err := bound(meter.OpenAIChat, openAI(`"tools":[{"type":"web_search"}],"previous_response_id":"r"`), meter.Options{ContextWindow: 1000, Steps: 3})
	require.NoError(t, err)
	require.EqualValues(t, [2]int64{3000, 60}, [2]int64{b.Input, b.Output})
	// What its bytes bound is bounded by them.
	b, err = bound(meter.OpenAIChat, openAI(`"seed":7`), meter.Options{ContextWindow: 1000, Steps: 3})
	require.NoError(t, err)
	require.Less(t, b.Total(), int64(100))
}
