package meter_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

const claude = `"model":"claude-sonnet-4-5","max_tokens":100`

func TestAnthropicBound(t *testing.T) {
	const frame, message, tools, tool = 256, 8, 1000, 16
	for _, c := range []struct {
		name, body    string
		input, output int64
	}{
		{"text", `{` + claude + `,"messages":[{"role":"user","content":"one two three"}]}`, frame + message + 3, 100},
		{"blocks", `{` + claude + `,"system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":[{"type":"text","text":"one"}]}]}`, frame + 1 + message + 1, 100},
		{"an image by its address", `{` + claude + `,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x/y.png"}}]}]}`, frame + message + meter.DefaultImageTokens, 100},
		{"an image within a tool's result", `{` + claude + `,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","data":"AAAA"}}]}]}]}`,
			frame + 2*message + 1 + meter.DefaultImageTokens, 100},
		{"a document as text", `{` + claude + `,"messages":[{"role":"user","content":[{"type":"document","title":"a b","source":{"type":"text","data":"one two"}}]}]}`, frame + message + 4, 100},
		{"a tool", `{` + claude + `,"tools":[{"name":"f"}],"messages":[]}`, frame + tools + tool + 2, 100},
		{"a tool of theirs that runs here", `{` + claude + `,"tools":[{"type":"bash_20250124","name":"bash"}],"messages":[]}`, frame + tools + 1000 + tool + 2, 100},
		{"a cap of zero is meant", `{"model":"x","max_tokens":0,"messages":[]}`, frame, 0},
		{"settings cost nothing", `{` + claude + `,"temperature":1,"metadata":{"user_id":"a b c"},"messages":[]}`, frame, 100},
		{"what is not known counts", `{` + claude + `,"novelty":"a b c","messages":[]}`, frame + 3, 100},
		{"clearing takes away", `{` + claude + `,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"messages":[]}`, frame + 1, 100},
		{"thinking within the cap", `{` + claude + `,"thinking":{"type":"enabled","budget_tokens":50},"messages":[]}`, frame, 100},
		{"thinking above the cap", `{` + claude + `,"thinking":{"type":"enabled","budget_tokens":500},"messages":[]}`, frame, 600},
	} {
		b, err := bound(meter.AnthropicMessages, c.body, meter.Options{Counter: words{}})
		require.NoError(t, err, c.name)
		require.Equal(t, c.input, b.Input, c.name)
		require.Equal(t, c.output, b.Output, c.name)
		require.Nil(t, b.WithUsage, c.name)
	}
	b, err := bound(meter.AnthropicMessages, `{"model":"claude-sonnet-4-5","stream":true,"messages":[]}`, meter.Options{})
	require.NoError(t, err)
	require.EqualValues(t, 64_000, b.Output, "the model's maximum")
	require.True(t, b.Stream)
}

func TestAnthropicRefuses(t *testing.T) {
	content := func(block string) string {
		return `{` + claude + `,"messages":[{"role":"user","content":[` + block + `]}]}`
	}
	for name, body := range map[string]string{
		"a file by id":                 content(`{"type":"image","source":{"type":"file","file_id":"f"}}`),
		"a document that is fetched":   content(`{"type":"document","source":{"type":"url","url":"u"}}`),
		"a document in pages":          content(`{"type":"document","source":{"type":"base64","data":"AA"}}`),
		"a file for the container":     content(`{"type":"container_upload","file_id":"f"}`),
		"a search that they ran":       content(`{"type":"web_search_tool_result","content":[]}`),
		"a search that they will run":  `{` + claude + `,"tools":[{"type":"web_search_20250305","name":"web_search"}],"messages":[]}`,
		"servers of tools":             `{` + claude + `,"mcp_servers":[{"url":"u"}],"messages":[]}`,
		"a container":                  `{` + claude + `,"container":"c","messages":[]}`,
		"a model that searches":        `{"model":"anthropic/claude-sonnet-4-5:online","max_tokens":1,"messages":[]}`,
		"a gateway's plugins":          `{` + claude + `,"plugins":[{"id":"web"}],"messages":[]}`,
		"one of several models":        `{` + claude + `,"models":["a","b"],"messages":[]}`,
		"compaction":                   `{` + claude + `,"context_management":{"edits":[{"type":"compact_20260112"}]},"messages":[]}`,
		"no cap, and no known maximum": `{"model":"x","messages":[]}`,
		"a cap that is none":           `{"model":"x","max_tokens":1.5,"messages":[]}`,
		"a cap twice":                  `{` + claude + `,"max_tokens":1,"messages":[]}`,
		"a cap in another case":        `{` + claude + `,"Max_Tokens":1,"messages":[]}`,
		"no messages":                  `{` + claude + `}`,
		"no object":                    `[]`,
	} {
		_, err := bound(meter.AnthropicMessages, body, meter.Options{})
		require.ErrorIs(t, err, meter.ErrRefused, name)
	}
}

func anthropicStream(events ...string) (body string) {
	for _, e := range events {
		body += "event: x\ndata: " + e + "\n\n"
	}
	return body
}

func TestAnthropicStreams(t *testing.T) {
	const (
		begin = `{"type":"message_start","message":{"id":"msg_1","content":[],"usage":{"input_tokens":1000,"output_tokens":1}}}`
		text  = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}`
		stop  = `{"type":"message_stop"}`
	)
	end := func(usage string) string {
		return `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":` + usage + `}`
	}
	for _, c := range []struct {
		name   string
		events []string
		usage  budget.Usage
		final  bool
	}{
		// case 32: the cache's figures come last, and are part of the thousand.
		{"told anew at the end", []string{begin, text, end(`{"input_tokens":100,"cache_read_input_tokens":900,"output_tokens":50}`), stop},
			budget.Usage{Input: 1000, Cached: 900, Output: 50, Ref: "msg_1"}, true},
		{"what is left out stays", []string{begin, text, end(`{"output_tokens":50}`), stop}, budget.Usage{Input: 1000, Output: 50, Ref: "msg_1"}, true},
		{"running totals replace", []string{begin, text, `{"type":"message_delta","delta":{},"usage":{"output_tokens":20}}`, end(`{"output_tokens":30}`), stop},
			budget.Usage{Input: 1000, Output: 30, Ref: "msg_1"}, true},
		{"cut before the end", []string{begin, text}, budget.Usage{Input: 1000, Output: 1, Ref: "msg_1"}, false},
		{"text behind the usage", []string{begin, text, end(`{"output_tokens":50}`), text, stop}, budget.Usage{Input: 1000, Output: 50, Ref: "msg_1"}, false},
		{"no marker, but the reason", []string{begin, text, end(`{"output_tokens":50}`)}, budget.Usage{Input: 1000, Output: 50, Ref: "msg_1"}, true},
		{"a marker, and no usage at the end", []string{begin, text, stop}, budget.Usage{Input: 1000, Output: 1, Ref: "msg_1"}, false},
		{"several steps", []string{begin, text, end(`{"input_tokens":10,"output_tokens":5,"iterations":[{"input_tokens":1000,"output_tokens":50},{"input_tokens":10,"output_tokens":5}]}`), stop},
			budget.Usage{Input: 1010, Output: 55, Ref: "msg_1"}, true},
		{"steps that are less than the last", []string{begin, text, end(`{"input_tokens":1000,"output_tokens":50,"iterations":[{"input_tokens":10,"output_tokens":5}]}`), stop},
			budget.Usage{Ref: "msg_1", Why: meter.Unreadable}, false},
		{"steps that leave the cache out", []string{begin, text, end(`{"input_tokens":10,"cache_read_input_tokens":90000,"output_tokens":5,"iterations":[{"input_tokens":10,"output_tokens":5}]}`), stop},
			budget.Usage{Ref: "msg_1", Why: meter.Unreadable}, false},
		{"a figure that is none", []string{begin, text, end(`{"output_tokens":-50}`), stop}, budget.Usage{Ref: "msg_1", Why: meter.Unreadable}, false},
		{"an error", []string{begin, text, `{"type":"error","error":{"type":"overloaded_error","message":"x"}}`}, budget.Usage{Input: 1000, Output: 1, Ref: "msg_1"}, false},
		{"zero, of a pre-filled cache", []string{`{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":3,"cache_creation_input_tokens":7,"output_tokens":0}}}`,
			end(`{"output_tokens":0}`), stop}, budget.Usage{Input: 10, CacheWrite: 7, Ref: "msg_1"}, true},
	} {
		for _, n := range []int{1, 1000} {
			body := anthropicStream(c.events...)
			out, r := watch(meter.AnthropicMessages.Watch(meter.Bound{}, header(sseType), false), []byte(body), n)
			require.Equal(t, body, out, c.name)
			require.Equal(t, c.usage, r.Usage, c.name)
			require.Equal(t, c.final, r.Final, c.name)
			require.Equal(t, strings.Contains(body, stop), r.Finished, c.name)
			require.Equal(t, strings.Contains(body, `"error"`), r.Failure != nil, c.name)
		}
	}
}
