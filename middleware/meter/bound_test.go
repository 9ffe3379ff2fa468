// A bound is never below what the provider may bill, and a request that its
// bytes do not bound is refused with an error that says what to do.

package meter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

// words counts a token for each word, so that tests can count along.
type words struct{}

func (words) Count(_, text string) int64 { return int64(len(strings.Fields(text))) }

const hello = `"messages":[{"role":"user","content":"hello there"}]` // 3 + 3 + 1 + 2 words = 9

func bound(m meter.Meter, body string, o meter.Options) (meter.Bound, error) {
	return m.Bound(meter.Request{Path: "/v1/x", Body: []byte(body)}, o)
}

func TestOutputBound(t *testing.T) {
	chat, plain := meter.OpenAIChat, meter.OpenAICompletions
	for _, c := range []struct {
		name  string
		meter meter.Meter
		body  string
		def   int64
		want  int64
	}{
		{"case 8: the larger cap", chat, `{"model":"gpt-4o","max_tokens":1,"max_completion_tokens":1000,` + hello + `}`, 0, 1000},
		{"case 8: in any order", chat, `{"max_completion_tokens":5,"max_tokens":70,"model":"gpt-4o",` + hello + `}`, 0, 70},
		{"case 8: max_completion_tokens alone", chat, `{"model":"x","max_completion_tokens":7,` + hello + `}`, 0, 7},
		{"case 8: max_output_tokens alone", chat, `{"model":"x","max_output_tokens":7,` + hello + `}`, 0, 7},
		{"case 8: neither, the model's maximum", chat, `{"model":"gpt-4o-mini-2024-07-18",` + hello + `}`, 0, 16384},
		{"neither, a default", chat, `{"model":"gpt-4o",` + hello + `}`, 50, 50},
		{"case 8's kin: n_predict", chat, `{"model":"x","n_predict":70,"max_tokens":7,` + hello + `}`, 0, 70},
		{"case 8's kin: max_new_tokens", chat, `{"model":"x","max_new_tokens":70,"max_tokens":7,` + hello + `}`, 0, 70},
		{"what a gateway unpacks", chat, `{"model":"x","extra_body":{"google":{"max_tokens":7}},` + hello + `}`, 0, 7},
		{"null is absent", chat, `{"model":"x","max_tokens":null,"n":null,` + hello + `}`, 50, 50},
		{"zero caps nothing in a chat", chat, `{"model":"gpt-4","max_tokens":0,` + hello + `}`, 0, 8192},
		{"an escaped name is the same name", chat, `{"model":"x","max_t\u006fkens":9,` + hello + `}`, 0, 9},
		{"whole in other clothes", chat, `{"model":"x","max_tokens":1e3,"n":2.0,` + hello + `}`, 0, 2000},
		{"n answers", chat, `{"model":"x","max_tokens":10,"n":3,` + hello + `}`, 0, 30},
		{"a prediction may be rejected", chat, `{"model":"gpt-4o","max_tokens":10,"prediction":{"type":"content"},` + hello + `}`, 0, 11},
		{"a vendor before the name", chat, `{"model":"openai/gpt-4.1:free",` + hello + `}`, 0, 32768},
		{"a snapshot", chat, `{"model":"gpt-4-0613",` + hello + `}`, 0, 8192},
		{"a snapshot by its full date", chat, `{"model":"gpt-5-2025-08-07",` + hello + `}`, 0, 128000},
		{"a snapshot of another vendor", chat, `{"model":"claude-opus-4-5-20251101",` + hello + `}`, 0, 64000},
		{"a fine-tuned model", chat, `{"model":"ft:gpt-3.5-turbo-0125:org::id",` + hello + `}`, 0, 4096},

		{"best_of are all billed", plain, `{"model":"x","prompt":"a","max_tokens":10,"n":2,"best_of":5}`, 0, 50},
		{"each prompt of a list", plain, `{"model":"x","prompt":["a","b","c"],"max_tokens":10,"n":2}`, 0, 60},
		{"one prompt as ids", plain, `{"model":"x","prompt":[5,6,7],"max_tokens":10}`, 0, 10},
		{"lists of ids", plain, `{"model":"x","prompt":[[5],[6,7]],"max_tokens":10}`, 0, 20},
		{"echo only", plain, `{"model":"davinci-002","prompt":"one two","max_tokens":0,"echo":true}`, 0, 2},
		{"embeddings have none", meter.OpenAIEmbeddings, `{"model":"text-embedding-3-small","input":"a"}`, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := bound(c.meter, c.body, meter.Options{Counter: words{}, DefaultOutput: c.def})
			require.NoError(t, err)
			require.Equal(t, c.want, b.Output)
			require.Equal(t, b.Input+b.Output, b.Total())
		})
	}
}

// case 7: one token of prompt and a default for the output are what is asked.
func TestDefaultOutput(t *testing.T) {
	for def, want := range map[int64]int64{1024: 1025, 50: 51} {
		b, err := bound(meter.OpenAICompletions, `{"model":"davinci-002","prompt":[5]}`, meter.Options{DefaultOutput: def})
		require.NoError(t, err)
		require.Equal(t, want, b.Total())
	}
}

func TestInputBound(t *testing.T) {
	message := func(content string) string {
		return `{"model":"gpt-4o","max_tokens":1,"messages":[{"role":"user","content":` + content + `}]}`
	}
	for _, c := range []struct {
		name  string
		meter meter.Meter
		body  string
		want  int64
	}{
		{"a message", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `}`, 9},
		{"settings cost nothing", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"temperature":0.5,"metadata":{"a":"b c d"},"user":"x",` + hello + `}`, 9},
		{"what is not known may reach the model", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"chat_template_kwargs":{"system":"one two"},` + hello + `}`, 11},
		{"unpacked by a gateway, or not", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"extra_body":{"google":"one two","x":"three"},` + hello + `}`, 12},
		{"members of other endpoints", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"prompt":"a b",` + hello + `}`, 11},
		{"a setting in another case is not known", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"Stop":"one two",` + hello + `}`, 11},
		{"a property may have any name", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `,"functions":[{"name":"f","parameters":{"properties":{"Name":{},"name":{}}}}]}`, 9 + 4 + 12 + 7 + 1 + 3 + 2*(3+1)},
		{"a name", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"messages":[{"role":"user","name":"x y","content":null}]}`, 10},
		{"parts", meter.OpenAIChat, message(`[{"type":"text","text":"a b"},{"type":"text","text":"c"}]`), 10},
		{"a part alone", meter.OpenAIChat, message(`{"type":"text","text":"a b"}`), 9},
		{"strings for parts", meter.OpenAIChat, message(`["a b","c"]`), 10},
		{"an escaped text", meter.OpenAIChat, message(`"a\nb \u0063"`), 10},
		{"images by flat figure, data never as text", meter.OpenAIChat,
			message(`[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A A ", 1000) + `"}},{"type":"text","text":"what?"}]`), 8 + 50_000},
		{"tool calls of earlier turns", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,"messages":[{"role":"assistant","tool_calls":[{"id":"x", "function":{"name":"f"}}]}]}`, 7 + 2},
		{"a nested schema as its JSON", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `,"tools":[{"type":"function","function":{"name":"f","parameters":
			{"type":"object","properties":{"a":{"type":"object","properties":{"b": "c d e"}}}}}}]}`, 9 + 4 + 12 + 7 + 1 + 3 + 3 + 1 + 1 + 4},
		{"what the formula does not cover, as its JSON", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `,"functions":[{"name":"f","description":"a b.","strict":true,"parameters":
			{"type":"object","required":["a"],"additionalProperties":false,"properties":{"a":{"type":["string", "null"],"description":"c d","enum":["e f","g"],"minLength":1},"b":true}}}]}`,
			9 + 4 + 12 + 7 + 2 + 2 + 3 + (3 + 2 + 3 + (3 + 2 + 3 + 1 - 3) + 2) + (3 + 1 + 1)},
		{"a schema that is none", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `,"functions":[{"name":"f","parameters":"a b"}]}`, 9 + 4 + 12 + 7 + 1 + 2},
		{"a tool in another form", meter.OpenAIChat, `{"model":"gpt-4o","max_tokens":1,` + hello + `,"tools":[{"type":"function", "name":"f"}]}`, 9 + 4 + 12 + 7 + 2},
		{"later models: tools as their JSON", meter.OpenAIChat, `{"model":"gpt-5","max_tokens":1,` + hello + `,"tools":[{"type":"function", "function":{"name":"f"}}]}`, 9 + 4 + 64 + 16 + 2},
		{"other models: allowances for their templates", meter.OpenAIChat, `{"model":"llama","max_tokens":1,` + hello + `,"tools":[{"type":"function", "function":{"name":"f"}}]}`, 256 + 8 + 3 + 4 + 1000 + 16 + 2*2},
		{"any of several models", meter.OpenAIChat, `{"model":"gpt-4o","models":["llama"],"max_tokens":1,` + hello + `}`, 256 + 8 + 3},

		{"ids", meter.OpenAICompletions, `{"model":"davinci-002","prompt":[1,2,3],"max_tokens":1}`, 3},
		{"lists of ids", meter.OpenAICompletions, `{"model":"davinci-002","prompt":[[1,2],[3]],"max_tokens":1}`, 3},
		{"a suffix", meter.OpenAICompletions, `{"model":"davinci-002","prompt":"a","suffix":"b c","max_tokens":1}`, 3},
		{"an empty prompt still has a token", meter.OpenAICompletions, `{"model":"davinci-002","prompt":["",""],"max_tokens":1}`, 2},
		{"no prompt", meter.OpenAICompletions, `{"model":"davinci-002","max_tokens":1}`, 1},
		{"embeddings", meter.OpenAIEmbeddings, `{"model":"text-embedding-3-small","input":["a b","c"]}`, 3},
		{"embeddings of other models", meter.OpenAIEmbeddings, `{"model":"bge","input":["a b","c"]}`, 3 + 2*64},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := bound(c.meter, c.body, meter.Options{Counter: words{}})
			require.NoError(t, err)
			require.Equal(t, c.want, b.Input)
		})
	}
	// Without a counter: a token a byte of the text as the provider reads it.
	b, err := bound(meter.OpenAIEmbeddings, `{"model":"text-embedding-3-small","input":"a\n\u4f60\ud83d\ude00é`+"\xff"+`"}`, meter.Options{})
	require.NoError(t, err)
	require.EqualValues(t, len("a\n你😀é\uFFFD"), b.Input)
}

// case 84: list content, images and tools do not count as nothing, with any bytes.
func TestInputIsNeverNothing(t *testing.T) {
	for _, body := range []string{
		`{"messages":[],"max_tokens":1}`,
		`{"messages":[{"role":"user","content":[]}],"max_tokens":1}`,
		`{"messages":[{"role":"user","content":"<|endoftext|>"}],"max_tokens":1}`,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\\ud800\"}],\"max_tokens\":1}",
	} {
		b, err := bound(meter.OpenAIChat, body, meter.Options{})
		require.NoError(t, err, body)
		require.GreaterOrEqual(t, b.Input, int64(1), body)
	}
}

func TestRefusedRequests(t *testing.T) {
	with := func(more string) string { return `{"model":"gpt-4o","max_tokens":1,` + more + `,` + hello + `}` }
	part := func(part string) string {
		return `{"model":"gpt-4o","max_tokens":1,"messages":[{"role":"user","content":[` + part + `]}]}`
	}
	for _, c := range []struct {
		body string
		want any
		text string
	}{
		{`{"model":"x",` + hello + `}`, new(*meter.UncappedError), "Options.DefaultOutput"},
		{`{"model":"gpt-4o-next",` + hello + `}`, new(*meter.UncappedError), "max_completion_tokens"},
		{`{"model":"gpt-4-32k",` + hello + `}`, new(*meter.UncappedError), "gpt-4-32k"},
		{`{"model":"gpt-4o","models":["x"],` + hello + `}`, new(*meter.UncappedError), ""},

		{``, new(*meter.BodyError), "not JSON"},
		{`{"messages":`, new(*meter.BodyError), "not JSON"},
		{`[]`, new(*meter.BodyError), "not a JSON object"},
		{with(`"n":1`) + `{}`, new(*meter.BodyError), "not JSON"},
		{strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), new(*meter.BodyError), "not JSON"},
		{`{"model":"x","max_tokens":1,"messages":"hi"}`, new(*meter.BodyError), "not a list"},
		{`{"model":"x","max_tokens":1,"messages":["hi"]}`, new(*meter.BodyError), "not an object"},
		{with(`"max_tokens":100000`), new(*meter.BodyError), "twice"},
		{with(`"max_t\u006fkens":100000`), new(*meter.BodyError), "twice"},
		{with(`"Max_Tokens":4000`), new(*meter.BodyError), "another case"}, // servers written in Go read it
		{with(`"N":3`), new(*meter.BodyError), `"n"`},
		{with(`"Max_To\u212aen\u017f":4000`), new(*meter.BodyError), "max_tokens"}, // so do they
		{`{"model":"gpt-4o","Max_Tokens":4000,` + hello + `}`, new(*meter.BodyError), "max_tokens"},
		{with(`"Extra_Body":{"max_tokens":4000}`), new(*meter.BodyError), "twice"},
		{with(`"Web_Search_Options":{}`), new(*meter.UnboundedError), "Web_Search_Options"},
		{with(`"datasources":[{}]`), new(*meter.UnboundedError), "datasources"},
		{with(`"stream_options":{"Include_Usage":false}`), new(*meter.BodyError), "include_usage"},
		{with(`"tools":[{"type":"function","Type":"web_search"}]`), new(*meter.BodyError), "type"},
		{with(`"tools":[{"type":"function","function":{"name":"f","Parameters":{}}}]`), new(*meter.BodyError), "parameters"},
		{with(`"functions":[{"Name":"f"}]`), new(*meter.BodyError), "name"},
		{`{"model":"x","max_tokens":1,"messages":[{"role":"user","Content":[{"type":"file"}]}]}`, new(*meter.BodyError), "content"},
		{`{"model":"x","max_tokens":1,"messages":[{"role":"user","content":"","content":"hi"}]}`, new(*meter.BodyError), "twice"},
		{part(`{"type":"text","Type":"file","text":""}`), new(*meter.BodyError), "type"},
		{part(`{"type":"file","type":"text"}`), new(*meter.BodyError), "twice"},
		{with(`"max_completion_tokens":-1`), new(*meter.BodyError), "max_completion_tokens"},
		{with(`"max_completion_tokens":1e30`), new(*meter.BodyError), "whole number"},
		{with(`"max_completion_tokens":"12"`), new(*meter.BodyError), "whole number"},
		{with(`"max_completion_tokens":12.7`), new(*meter.BodyError), "whole number"},
		{with(`"n":0`), new(*meter.BodyError), `"n"`},
		{with(`"n":9007199254740992,"max_completion_tokens":9007199254740992`), new(*meter.BodyError), "more than"},
		{with(`"tools":{"type":"function"}`), new(*meter.BodyError), "tools"},

		{with(`"tools":[{"type":"web_search"}]`), new(*meter.UnboundedError), "web_search"},
		{with(`"tools":[{"type":"the prompt itself"}]`), new(*meter.UnboundedError), "tool unknown"},
		{with(`"web_search_options":{}`), new(*meter.UnboundedError), "web_search_options"},
		{with(`"data_sources":[{"type":"azure_search"}]`), new(*meter.UnboundedError), "data_sources"},
		{with(`"dataSources":[{"type":"azure_search"}]`), new(*meter.UnboundedError), "dataSources"},
		{with(`"extra_body":{"google":{"cached_content":"cachedContents/abc"}}`), new(*meter.UnboundedError), "cached_content"},
		{with(`"cached_content":"cachedContents/abc"`), new(*meter.UnboundedError), "cached_content"},
		{with(`"extra_body":{"max_tokens":100}`), new(*meter.BodyError), "twice"},
		{with(`"preset":"p"`), new(*meter.UnboundedError), "preset"},
		{with(`"vector_store_ids":["v"]`), new(*meter.UnboundedError), "vector_store_ids"},
		{with(`"prompt_id":"p"`), new(*meter.UnboundedError), "prompt_id"},
		{with(`"models":["perplexity/sonar-pro"]`), new(*meter.UnboundedError), "sonar-pro"},
		{with(`"models":["x","openai/gpt-4o:online"]`), new(*meter.UnboundedError), "online"},
		{with(`"fallbacks":["sonar"]`), new(*meter.UnboundedError), "sonar"},
		{with(`"models":[{"model":"sonar"}]`), new(*meter.BodyError), "models"},
		{with(`"models":{"a":"sonar"}`), new(*meter.BodyError), "models"},
		{with(`"n_predict":-1`), new(*meter.BodyError), "n_predict"},
		{`{"model":"@preset/x","max_tokens":1,` + hello + `}`, new(*meter.UnboundedError), "model"},
		{`{"model":"openai/gpt-4o@preset/x","max_tokens":1,` + hello + `}`, new(*meter.UnboundedError), "model"},
		{with(`"previous_response_id":"r"`), new(*meter.UnboundedError), "previous_response_id"},
		{`{"model":"gpt-4o-search-preview","max_tokens":1,` + hello + `}`, new(*meter.UnboundedError), "search"},
		{`{"model":"openai/gpt-4o:online","max_tokens":1,` + hello + `}`, new(*meter.UnboundedError), "online"},
		{part(`{"type":"file","file":{"file_id":"f"}}`), new(*meter.UnboundedError), "file"},
		{part(`{"type":"input_audio","input_audio":{"data":"AAAA"}}`), new(*meter.UnboundedError), "input_audio"},
		{`{"model":"x","max_tokens":1,"messages":[{"role":"assistant","audio":{"id":"a"}}]}`, new(*meter.UnboundedError), "audio"},
	} {
		_, err := bound(meter.OpenAIChat, c.body, meter.Options{Counter: words{}})
		require.ErrorIs(t, err, meter.ErrRefused, c.body)
		require.ErrorAs(t, err, c.want, c.body)
		require.ErrorContains(t, err, c.text)
		require.NotContains(t, err.Error(), "prompt itself")
	}
	for body, m := range map[string]meter.Meter{
		`{"max_tokens":1,"prompt":{"id":"stored"}}`: meter.OpenAICompletions,
		`{"max_tokens":1,"prompt":[["a"]]}`:         meter.OpenAICompletions,
		`{"max_tokens":1,` + hello + `}`:            meter.OpenAICompletions,
		`{"input":[{"image":"x"}]}`:                 meter.OpenAIEmbeddings,
		`{` + hello + `}`:                           meter.OpenAIEmbeddings,
	} {
		_, err := bound(m, body, meter.Options{})
		require.ErrorIs(t, err, meter.ErrRefused, body)
	}
}

// An Azure deployment names its model in the path only.
func TestDeployment(t *testing.T) {
	b, err := meter.OpenAIChat.Bound(meter.Request{Path: "/openai/deployments/gpt-4o/chat/completions", Body: []byte(`{` + hello + `}`)}, meter.Options{})
	require.NoError(t, err)
	require.Equal(t, "gpt-4o", b.Model)
	require.EqualValues(t, 16384, b.Output)
}

// It is the deployment that answers, whatever the body says.
func TestDeploymentDecides(t *testing.T) {
	at := func(deployment, body string) (meter.Bound, error) {
		return meter.OpenAIChat.Bound(meter.Request{Path: "/openai/deployments/" + deployment + "/chat/completions", Body: []byte(`{` + body + hello + `}`)}, meter.Options{})
	}
	alone, err := at("gpt-5", "")
	require.NoError(t, err)
	b, err := at("gpt-5", `"model":"gpt-3.5-turbo",`)
	require.NoError(t, err)
	require.Equal(t, "gpt-3.5-turbo", b.Model, "which its price goes by")
	require.Equal(t, [2]int64{alone.Input, alone.Output}, [2]int64{b.Input, b.Output})
	_, err = at("house", `"model":"gpt-3.5-turbo",`)
	require.ErrorAs(t, err, new(*meter.UncappedError))
	unknown, err := at("house", `"max_tokens":7,`)
	require.NoError(t, err)
	b, err = at("house", `"model":"gpt-3.5-turbo","max_tokens":7,`)
	require.NoError(t, err)
	require.Equal(t, unknown.Input, b.Input, "with a frame and a tokenizer of any model")
	_, err = at("sonar", `"model":"gpt-3.5-turbo","max_tokens":7,`)
	require.ErrorAs(t, err, new(*meter.UnboundedError))
}

// case 85: the guard asks for the usage where the caller did not, and leaves
// every other byte alone.
func TestWithUsage(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{``, "{ \"model\" : \"x\",\n\t\"stream\":true ,\"max_tokens\":1, " + hello + `,"zz":1.50  ,"stream_options":{"include_usage":true}}`},
		{`"stream_options": null,`, `"stream_options": {"include_usage":true},`},
		{`"stream_options":{ },`, `"stream_options":{"include_usage":true},`},
		{`"stream_options": {"x":1},`, `"stream_options": {"include_usage":true,"x":1},`},
		{`"stream_options":{"x":1, "include_usage" : false},`, `"stream_options":{"x":1, "include_usage" : true},`},
		{`"stream_options":{"include_usage":null},`, `"stream_options":{"include_usage":true},`},
		{`"stream_options":{"include_usage":true},`, ""},
		{`"stream_options":{"include_usage":"yes"},`, ""},
		{`"stream_options":7,`, ""},
	} {
		body := "{ \"model\" : \"x\",\n\t\"stream\":true ," + c.options + `"max_tokens":1, ` + hello + `,"zz":1.50  }`
		padded := append([]byte(" \n"+body+" \n"), "and more in the same array"...)[:len(body)+4]
		before := string(padded)
		b, err := meter.OpenAIChat.Bound(meter.Request{Body: padded}, meter.Options{})
		require.NoError(t, err, c.options)
		require.True(t, b.Stream)
		require.Equal(t, before, string(padded))
		if c.want == "" {
			require.Nil(t, b.WithUsage)
			continue
		}
		want := c.want
		if c.options != "" {
			want = strings.Replace(body, c.options, c.want, 1)
		}
		require.Equal(t, " \n"+want+" \n", string(b.WithUsage))
		require.True(t, json.Valid(b.WithUsage))
	}
	b, err := bound(meter.OpenAIChat, `{"model":"x","max_tokens":1,"stream":false,`+hello+`}`, meter.Options{})
	require.NoError(t, err)
	require.Nil(t, b.WithUsage, "only streams")
}

// A request as the batch API takes it, with no cap at all.
func TestBoundOfFixture(t *testing.T) {
	for i, line := range fixtureLines(t, "openai-batch-input.jsonl") {
		var in struct{ Body json.RawMessage }
		require.NoError(t, json.Unmarshal(line, &in))
		b, err := meter.OpenAIChat.Bound(meter.Request{Body: in.Body}, meter.Options{})
		require.NoError(t, err)
		require.EqualValues(t, 4096, b.Output)
		require.GreaterOrEqual(t, b.Input, []int64{10, 9, 9}[i], "what the API billed for it")
	}
}

func TestErrorsAreErrRefusedOnly(t *testing.T) {
	err := fmt.Errorf("wrapped: %w", &meter.UncappedError{Model: "m"})
	require.ErrorIs(t, err, meter.ErrRefused)
	require.False(t, errors.Is(err, budget.ErrExhausted))
}
