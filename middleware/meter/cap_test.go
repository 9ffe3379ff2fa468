// A cap is written where the request has one or needs one, and nowhere else.

package meter_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
)

func TestWithin(t *testing.T) {
	chat, plain, claude, gemini := meter.OpenAIChat, meter.OpenAICompletions, meter.AnthropicMessages, meter.GeminiGenerate
	const said = `"contents":[{"parts":[{"text":"x"}]}]`
	for _, c := range []struct {
		name  string
		meter meter.Meter
		body  string
		less  int64 // tokens fewer than all
		want  string
	}{
		{"a named cap that fits stays", chat, `{"model":"x","max_tokens":9,` + hello + `}`, 0, ""},
		{"a named cap is lowered", chat, `{"model":"x", "max_tokens" : 9 ,` + hello + `}`, 2, `{"model":"x", "max_tokens" : 7 ,` + hello + `}`},
		{"and its own field kept", chat, `{"model":"gpt-4o","max_completion_tokens":9,` + hello + `}`, 2, `{"model":"gpt-4o","max_completion_tokens":7,` + hello + `}`},
		{"all that are above", chat, `{"model":"x","n_predict":9,"max_tokens":8,"max_new_tokens":5,` + hello + `}`, 2, `{"model":"x","n_predict":7,"max_tokens":7,"max_new_tokens":5,` + hello + `}`},
		{"a null beside a cap is none", chat, `{"model":"x","max_tokens":null,"max_completion_tokens":9,` + hello + `}`, 2, `{"model":"x","max_tokens":null,"max_completion_tokens":7,` + hello + `}`},
		{"a zero beside a cap is none", chat, `{"model":"x","max_tokens":0,"max_completion_tokens":9,` + hello + `}`, 2, `{"model":"x","max_tokens":0,"max_completion_tokens":7,` + hello + `}`},
		{"in other clothes", chat, `{"model":"x","max_t\u006fkens":0.9e1,` + hello + `}`, 2, `{"model":"x","max_t\u006fkens":7,` + hello + `}`},
		{"what a gateway unpacks", chat, `{"model":"x","extra_body":{"google":{"max_tokens":9}},` + hello + `}`, 2, `{"model":"x","extra_body":{"google":{"max_tokens":7}},` + hello + `}`},
		{"for each choice, rounded down", chat, `{"model":"x","max_tokens":9,"n":3,` + hello + `}`, 4, `{"model":"x","max_tokens":7,"n":3,` + hello + `}`},
		{"a prediction stays", chat, `{"model":"x","max_tokens":9,"prediction":{"content":"a b"},` + hello + `}`, 2, `{"model":"x","max_tokens":7,"prediction":{"content":"a b"},` + hello + `}`},

		{"none named: it is written", chat, `{"model":"x",` + hello + "} \n", 0, `{"model":"x",` + hello + `,"max_tokens":50` + "} \n"},
		{"and lowered", chat, `{"model":"x",` + hello + ` }`, 10, `{"model":"x",` + hello + ` ,"max_tokens":40}`},
		{"a null is replaced", chat, `{"model":"x","max_tokens":null,` + hello + `}`, 0, `{"model":"x","max_tokens":50,` + hello + `}`},
		{"a zero is replaced, whatever its field", chat, `{"model":"x","max_completion_tokens":0,` + hello + `}`, 0, `{"model":"x","max_completion_tokens":50,` + hello + `}`},
		{"a null of a field that the model refuses stays", chat, `{"model":"gpt-5","max_tokens":null,` + hello + `}`, 0, `{"model":"gpt-5","max_tokens":null,` + hello + `,"max_completion_tokens":50}`},
		{"a reasoning model", chat, `{"model":"o3-mini-2025-01-31",` + hello + `}`, 0, `{"model":"o3-mini-2025-01-31",` + hello + `,"max_completion_tokens":50}`},
		{"one of a vendor's", chat, `{"model":"openai/gpt-5.1",` + hello + `}`, 0, `{"model":"openai/gpt-5.1",` + hello + `,"max_completion_tokens":50}`},
		{"a fine-tuned one", chat, `{"model":"ft:gpt-6-sol:org::id",` + hello + `}`, 0, `{"model":"ft:gpt-6-sol:org::id",` + hello + `,"max_completion_tokens":50}`},
		{"an older one", chat, `{"model":"ft:gpt-4o:org::id",` + hello + `}`, 0, `{"model":"ft:gpt-4o:org::id",` + hello + `,"max_tokens":50}`},
		{"one of several", chat, `{"model":"o1","models":["y"],` + hello + `}`, 0, `{"model":"o1","models":["y"],` + hello + `,"max_completion_tokens":50}`},

		{"a plain completion, each prompt", plain, `{"model":"gpt-5","prompt":["a","b"],"best_of":2}`, 5, `{"model":"gpt-5","prompt":["a","b"],"best_of":2,"max_tokens":48}`},
		{"no member at all", plain, `{ }`, 0, `{ "max_tokens":50}`},
		{"echo only", plain, `{"model":"x","prompt":"a","max_tokens":0,"echo":true}`, 0, ""},
		{"embeddings take none", meter.OpenAIEmbeddings, `{"model":"x","input":"a b c"}`, 0, ""},

		{"Anthropic", claude, `{"model":"x","max_tokens":9,"messages":[]}`, 2, `{"model":"x","max_tokens":7,"messages":[]}`},
		{"Anthropic, none named", claude, `{"model":"x","messages":[]}`, 0, `{"model":"x","messages":[],"max_tokens":50}`},
		{"Anthropic, null", claude, `{"model":"x","max_tokens":null,"messages":[]}`, 1, `{"model":"x","max_tokens":49,"messages":[]}`},
		{"Anthropic, zero is meant", claude, `{"model":"x","max_tokens":0,"messages":[]}`, 0, ""},
		{"Anthropic, thoughts across answers", claude, `{"model":"x","max_tokens":9,"thinking":{"budget_tokens":20},"messages":[]}`, 2, `{"model":"x","max_tokens":7,"thinking":{"budget_tokens":20},"messages":[]}`},

		{"Gemini", gemini, `{` + said + `,"generation_config":{"max_output_tokens":9,"candidateCount":2}}`, 3, `{` + said + `,"generation_config":{"max_output_tokens":7,"candidateCount":2}}`},
		{"Gemini, no config", gemini, `{` + said + `}`, 0, `{` + said + `,"generationConfig":{"maxOutputTokens":50}}`},
		{"Gemini, a config of null", gemini, `{"generationConfig":null,` + said + `}`, 1, `{"generationConfig":{"maxOutputTokens":49},` + said + `}`},
		{"Gemini, none named", gemini, `{"generationConfig":{"topK":1},` + said + `}`, 0, `{"generationConfig":{"topK":1,"maxOutputTokens":50},` + said + `}`},
		{"Gemini, an empty config", gemini, `{"generationConfig":{},` + said + `}`, 0, `{"generationConfig":{"maxOutputTokens":50},` + said + `}`},
		{"Gemini, zero", gemini, `{"generationConfig":{"maxOutputTokens":0},` + said + `}`, 0, `{"generationConfig":{"maxOutputTokens":50},` + said + `}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := meter.Options{Counter: words{}, DefaultOutput: 50}
			b, err := bound(c.meter, c.body, o)
			require.NoError(t, err)
			require.Nil(t, b.Body)
			w := b.Within([]byte(c.body), b.Total()-c.less)
			require.Equal(t, c.want, string(w.Body))
			require.LessOrEqual(t, w.Total(), b.Total()-c.less)
			if c.want == "" {
				require.Equal(t, b, w)
				return
			}
			require.True(t, json.Valid(w.Body))
			again, err := bound(c.meter, c.want, o)
			require.NoError(t, err)
			require.Equal(t, figures(w), figures(again), "it costs what it says")
			require.Equal(t, again, again.Within(w.Body, again.Total()), "and is written once")
		})
	}
}

// A model's own maximum is a cap as good as one that is named, but no figure of
// ours must make the provider refuse a request that it would have taken.
func TestWithinTheModelsMaximum(t *testing.T) {
	long := `"messages":[{"role":"user","content":"` + strings.Repeat("word ", 112_000) + `"}]`
	for _, c := range []struct {
		name, body string
		def, less  int64
		want       string
	}{
		{"it is written", `{"model":"gpt-4o-mini",` + hello + `}`, 0, 0, `,"max_tokens":16384}`},
		{"a snapshot that takes less", `{"model":"gpt-4o-2024-05-13",` + hello + `}`, 0, 0, `,"max_tokens":4096}`},
		{"not where the window would not hold both", `{"model":"gpt-4",` + hello + `}`, 0, 0, ""},
		{"nor with so long a prompt", `{"model":"gpt-4o",` + long + `}`, 0, 0, ""},
		{"unless it is lowered", `{"model":"gpt-4",` + hello + `}`, 0, 192, `,"max_tokens":8000}`},
		{"a default above it", `{"model":"gpt-4o",` + hello + `}`, 50_000, 0, `,"max_tokens":16384}`},
		{"and lowered, but not so far", `{"model":"gpt-4o",` + hello + `}`, 50_000, 10_000, `,"max_tokens":16384}`},
	} {
		b, err := bound(meter.OpenAIChat, c.body, meter.Options{Counter: words{}, DefaultOutput: c.def})
		require.NoError(t, err, c.name)
		w := b.Within([]byte(c.body), b.Total()-c.less)
		if c.want == "" {
			require.Nil(t, w.Body, c.name)
		} else {
			require.Equal(t, c.body[:len(c.body)-1]+c.want, string(w.Body), c.name)
		}
		require.LessOrEqual(t, w.Total(), b.Total()-c.less, c.name)
	}
	b, err := bound(meter.OpenAICompletions, `{"model":"gpt-3.5-turbo-instruct","prompt":"a"}`, meter.Options{})
	require.NoError(t, err)
	require.EqualValues(t, 4096, b.Output)
	require.Equal(t, b.Total(), b.Least(1), "it ends after 16 tokens, and is not to be made longer")
	require.Nil(t, b.Within([]byte("{}"), b.Total()).Body)
}

// An Azure deployment whose name says nothing is known by the model in the body.
func TestWithinADeployment(t *testing.T) {
	body := []byte(`{"model":"gpt-5",` + hello + `}`)
	b, err := meter.OpenAIChat.Bound(meter.Request{Path: "/openai/deployments/house/chat/completions", Body: body}, meter.Options{DefaultOutput: 5})
	require.NoError(t, err)
	require.Contains(t, string(b.Within(body, b.Total()).Body), `"max_completion_tokens":5}`)
}

// Both rewrites stand in one body, and the cap alone in the other.
func TestWithinAndUsage(t *testing.T) {
	for options, with := range map[string]string{
		``:                                      `,"max_tokens":40,"stream_options":{"include_usage":true}}`,
		`,"stream_options":null`:                `,"stream_options":{"include_usage":true},"max_tokens":40}`,
		`,"stream_options":{"x":1}`:             `,"stream_options":{"include_usage":true,"x":1},"max_tokens":40}`,
		`,"stream_options":{"x":[]},"a":"{}"`:   `,"stream_options":{"include_usage":true,"x":[]},"a":"{}","max_tokens":40}`,
		`,"stream_options":{"include_usage":1}`: "",
	} {
		begin := `{"model":"x","stream":true,` + hello
		body := begin + options + "}"
		b, err := bound(meter.OpenAIChat, body, meter.Options{DefaultOutput: 50})
		require.NoError(t, err)
		before := string(b.WithUsage)
		w := b.Within([]byte(body), b.Total()-10)
		require.Equal(t, begin+options+`,"max_tokens":40}`, string(w.Body))
		if with != "" {
			with = begin + with
		}
		require.Equal(t, with, string(w.WithUsage))
		require.Equal(t, before, string(b.WithUsage), "the bound it was made of is as it was")
	}
}

func TestLeast(t *testing.T) {
	for _, c := range []struct {
		name, body string
		meter      meter.Meter
		least      int64
		want       int64 // tokens of output
	}{
		{"a cap", `{"model":"x","max_tokens":9,` + hello + `}`, meter.OpenAIChat, 4, 4},
		{"each choice", `{"model":"x","max_tokens":9,"n":2,` + hello + `}`, meter.OpenAIChat, 4, 8},
		{"that low already", `{"model":"x","max_tokens":3,` + hello + `}`, meter.OpenAIChat, 4, 3},
		{"one at least", `{"model":"x","max_tokens":3,` + hello + `}`, meter.OpenAIChat, 0, 1},
		{"a prediction on top", `{"model":"x","max_tokens":9,"prediction":{"a":"b c"},` + hello + `}`, meter.OpenAIChat, 4, 4 + 2},
		{"embeddings", `{"model":"x","input":"a"}`, meter.OpenAIEmbeddings, 4, 0},
		{"thinking must stay below the cap", `{"model":"x","max_tokens":9,"thinking":{"budget_tokens":6},"messages":[]}`, meter.AnthropicMessages, 4, 7},
		{"thinking on top of it", `{"model":"x","max_tokens":9,"thinking":{"budget_tokens":20},"messages":[]}`, meter.AnthropicMessages, 4, 4 + 20},
		{"thoughts within it", `{"contents":[],"generationConfig":{"maxOutputTokens":9,"thinkingConfig":{"thinkingBudget":6}}}`, meter.GeminiGenerate, 4, 6},
	} {
		b, err := bound(c.meter, c.body, meter.Options{Counter: words{}})
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, b.Least(c.least)-b.Input, c.name)
		w := b.Within([]byte(c.body), b.Least(c.least))
		require.Equal(t, b.Least(c.least), w.Total(), c.name)
	}
}
