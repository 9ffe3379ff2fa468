package main

// A streamed answer stands in the output as the whole one would, and half an
// answer never passes for one.

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAssemble(t *testing.T) {
	for name, c := range map[string]struct{ stream, want string }{
		"chat": {`data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null,"obfuscation":"xx"}

data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"Hé"},"finish_reason":null}]}

: a comment

data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"llo"},"finish_reason":null}]}

data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"total_tokens":12}}

data: [DONE]

`, `{"id":"c1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Héllo"},"finish_reason":"stop"}],"usage":{"total_tokens":12}}`},

		"tool calls, two choices, CRLF, no end marker": {strings.ReplaceAll(`data: {"choices":[{"index":1,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{}"}},{"index":0,"function":{"arguments":"{\"x\""}}]}}]}

data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}

data: {"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]},"finish_reason":"tool_calls"}]}

`, "\n", "\r\n"), `{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"},
			{"index":1,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`},

		"text completion with logprobs": {`data: {"object":"text_completion","choices":[{"text":"a","index":0,"logprobs":{"tokens":["a"]},"finish_reason":null}]}

data: {"object":"text_completion","choices":[{"text":"b","index":0,"logprobs":{"tokens":["b"]},"finish_reason":"length"}]}

data: [DONE]

`, `{"object":"text_completion","choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"]},"finish_reason":"length"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := assemble(iotest.OneByteReader(strings.NewReader(c.stream)))
			require.NoError(t, err)
			assert.JSONEq(t, c.want, string(got))
		})
	}
}

func TestAssembleByteOrderMark(t *testing.T) {
	got, err := assemble(strings.NewReader("\ufeffdata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
	require.NoError(t, err)
	assert.Contains(t, string(got), `"content":"Hi"`)
}

func TestAssembleRefusesHalfAnswers(t *testing.T) {
	chunk := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n"
	for name, c := range map[string]struct {
		stream io.Reader
		want   string
	}{
		"empty":           {strings.NewReader(""), "the stream was cut"},
		"only the marker": {strings.NewReader("data: [DONE]\n\n"), "no choice"},
		"cut":             {strings.NewReader(chunk), "the stream was cut"},
		"cut in an event": {strings.NewReader(chunk + "data: [DONE]"), "the stream was cut"},
		"read error":      {io.MultiReader(strings.NewReader(chunk), iotest.ErrReader(errors.New("reset"))), "reset"},
		"error event":     {strings.NewReader(chunk + "event: error\ndata: {\"error\":{\"message\":\"Hi\"}}\n\n"), "the provider ended the stream with an error"},
		"not JSON":        {strings.NewReader(chunk + "data: <html>\n\n"), "no JSON object"},
		"odd shapes":      {strings.NewReader("data: {\"choices\":[7,{\"index\":\"x\",\"delta\":{\"tool_calls\":[7,{\"index\":0},[]]}}]}\n\n"), "the stream was cut"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := assemble(c.stream)
			assert.ErrorIs(t, err, errBroken)
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "Hi", "no answer in an error")
		})
	}
}

func TestAssembleRecorded(t *testing.T) {
	f, err := os.Open("testdata/openai-chat-stream-usage.sse")
	require.NoError(t, err)
	defer f.Close()
	got, err := assemble(f)
	require.NoError(t, err)
	assert.Contains(t, string(got), `"object":"chat.completion"`)
	assert.Contains(t, string(got), `"total_tokens":112`)
}
