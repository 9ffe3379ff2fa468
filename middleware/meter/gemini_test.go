package meter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

func geminiBound(body string, o meter.Options) (meter.Bound, error) {
	return meter.GeminiGenerate.Bound(meter.Request{Path: "/v1beta/models/gemini-2.5-flash:generateContent", Body: []byte(body)}, o)
}

func TestGeminiBound(t *testing.T) {
	const frame, message, tools, tool = 256, 8, 1000, 16
	const hello = `"contents":[{"role":"user","parts":[{"text":"one two"}]}]`
	for _, c := range []struct {
		name, body    string
		input, output int64
	}{
		{"the model's maximum", `{` + hello + `}`, frame + message + 2, 65_536},
		{"a cap", `{` + hello + `,"generationConfig":{"maxOutputTokens":7}}`, frame + message + 2, 7},
		{"in the other way of writing", `{` + hello + `,"generation_config":{"max_output_tokens":7,"candidate_count":3}}`, frame + message + 2, 21},
		{"zero caps nothing", `{` + hello + `,"generationConfig":{"maxOutputTokens":0}}`, frame + message + 2, 65_536},
		{"thoughts above the cap", `{` + hello + `,"generationConfig":{"maxOutputTokens":7,"thinkingConfig":{"thinkingBudget":100}}}`, frame + message + 2, 107},
		{"thoughts as many as it likes", `{` + hello + `,"generationConfig":{"maxOutputTokens":7,"thinkingConfig":{"thinkingBudget":-1}}}`, frame + message + 2, 7},
		{"a system message", `{` + hello + `,"system_instruction":{"parts":[{"text":"x"}]}}`, frame + 2*message + 3, 65_536},
		{"a picture", `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}]}`, frame + message + meter.DefaultImageTokens, 65_536},
		{"a function", `{` + hello + `,"tools":[{"functionDeclarations":[]}]}`, frame + message + 2 + tools + tool + 2, 65_536},
		{"a schema is read", `{` + hello + `,"generationConfig":{"maxOutputTokens":7,"responseSchema":{"a b":1}}}`, frame + message + 2 + 2, 7},
	} {
		b, err := geminiBound(c.body, meter.Options{Counter: words{}})
		require.NoError(t, err, c.name)
		require.Equal(t, c.input, b.Input, c.name)
		require.Equal(t, c.output, b.Output, c.name)
		require.Equal(t, "gemini-2.5-flash", b.Model)
	}
}

func TestGeminiRefuses(t *testing.T) {
	const hello = `"contents":[]`
	for name, body := range map[string]string{
		"a search":              `{` + hello + `,"tools":[{"googleSearch":{}}]}`,
		"a search, as snake":    `{` + hello + `,"tools":{"google_search":{}}}`,
		"cached content":        `{` + hello + `,"cachedContent":"cachedContents/x"}`,
		"a file":                `{"contents":[{"parts":[{"fileData":{"fileUri":"u"}}]}]}`,
		"sound":                 `{"contents":[{"parts":[{"inline_data":{"mime_type":"audio/wav","data":"AA"}}]}]}`,
		"a file in an answer":   `{"contents":[{"parts":[{"functionResponse":{"name":"f","response":{},"parts":[{"fileData":{"fileUri":"u"}}]}}]}]}`,
		"sound in an answer":    `{"contents":[{"parts":[{"function_response":{"name":"f","parts":{"inlineData":{"mimeType":"audio/wav","data":"AA"}}}}]}]}`,
		"data of no type":       `{"contents":[{"parts":[{"inlineData":{"data":"AA"}}]}]}`,
		"twice, in both ways":   `{` + hello + `,"generationConfig":{"maxOutputTokens":7,"max_output_tokens":9}}`,
		"in another case":       `{` + hello + `,"GenerationConfig":{"maxOutputTokens":7}}`,
		"a cap that is none":    `{` + hello + `,"generationConfig":{"maxOutputTokens":-7}}`,
		"no contents":           `{}`,
		"candidates, no number": `{` + hello + `,"generationConfig":{"candidateCount":"2"}}`,
	} {
		_, err := geminiBound(body, meter.Options{})
		require.ErrorIs(t, err, meter.ErrRefused, name)
	}
	_, err := meter.GeminiGenerate.Bound(meter.Request{Path: "/v1/models/unheard:generateContent", Body: []byte(`{` + hello + `}`)}, meter.Options{})
	require.ErrorAs(t, err, new(*meter.UncappedError))
}

func TestGeminiStreams(t *testing.T) {
	const (
		part = `{"candidates":[{"content":{"parts":[{"text":"a ]} b"}]},"index":0}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":2,"totalTokenCount":7},"responseId":"r1"}`
		last = `{"candidates":[{"content":{"parts":[{"text":"!"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":5,"toolUsePromptTokenCount":1,"candidatesTokenCount":4,"thoughtsTokenCount":3,"totalTokenCount":13},"responseId":"r1"}`
	)
	used := budget.Usage{Input: 6, Output: 7, Reasoning: 3, Ref: "r1"}
	sofar := budget.Usage{Input: 5, Output: 2, Ref: "r1"}
	for _, c := range []struct {
		name, body string
		events     bool
		usage      budget.Usage
		finished   bool
	}{
		{"events", "data: " + part + "\r\n\r\ndata: " + last + "\r\n\r\n", true, used, true},
		{"events, cut", "data: " + part + "\r\n\r\ndata: " + last[:40], true, sofar, false},
		{"a list", "[" + part + "\n,\n" + last + "\n]", false, used, true},
		{"a list, cut", "[" + part + "\n,\n" + last[:90], false, sofar, false},
		{"a prompt that was blocked", `[{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":5,"totalTokenCount":5},"responseId":"r1"}]`, false, budget.Usage{Input: 5, Ref: "r1"}, true},
		{"an error", `[{"error":{"code":503,"status":"UNAVAILABLE"}}]`, false, budget.Usage{Why: meter.NoUsage}, false},
	} {
		for _, n := range []int{1, 10_000} {
			h := header(jsonType)
			if c.events {
				h = header(sseType)
			}
			out, r := watch(meter.GeminiStream.Watch(meter.Bound{Choices: 1}, h, false), []byte(c.body), n)
			require.Equal(t, c.body, out, c.name)
			require.Equal(t, c.usage, r.Usage, c.name)
			require.Equal(t, c.finished, r.Finished, c.name)
			require.Equal(t, c.finished, r.Final, c.name)
			require.Equal(t, c.name == "an error", r.Failure != nil, c.name)
		}
	}
}

// case 34, its second half: thoughts are no part of the candidates.
func TestGeminiThoughts(t *testing.T) {
	for body, want := range map[string]budget.Usage{
		`{"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":55021,"candidatesTokenCount":923,"thoughtsTokenCount":785,"totalTokenCount":56729}}`: {Input: 55021, Output: 1708, Reasoning: 785},
		`{"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":1,"totalTokenCount":10}}`:                                   {Input: 5, Output: 5},
		`{"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":9,"totalTokenCount":10}}`:                                   {Why: meter.Unreadable},
		`{"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":5.5,"totalTokenCount":10}}`:                                                          {Why: meter.Unreadable},
		`{"candidates":[{"content":{}}],"usageMetadata":{"promptTokenCount":null,"totalTokenCount":null}}`:                                                       {Why: meter.Unreadable},
		`{"candidates":[{"content":{}}]}`: {Why: meter.NoUsage},
	} {
		_, r := watch(meter.GeminiGenerate.Watch(meter.Bound{}, header(jsonType), false), []byte(body), 9)
		require.Equal(t, want, r.Usage, body)
	}
}

// case 40: a quota for the day ends the day, whatever delay stands beside it.
func TestGeminiQuota(t *testing.T) {
	quota := func(id string) []byte {
		return []byte(`{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"` + id + `"}]},{"retryDelay":"36s"}]}}`)
	}
	r := meter.GeminiGenerate.Refused(429, nil, quota("GenerateRequestsPerDayPerProjectPerModel"))
	require.Equal(t, meter.Refusal{Unbilled: true, Stop: true, Code: "RESOURCE_EXHAUSTED"}, r)
	r = meter.GeminiGenerate.Refused(429, nil, quota("GenerateRequestsPerMinutePerProjectPerModel"))
	require.Equal(t, meter.Refusal{Unbilled: true, RetryAfter: 36 * time.Second, Code: "RESOURCE_EXHAUSTED"}, r)
}

// A server that gives the reason for the end with every chunk: an answer that is
// cut is none, whatever it said.
func TestGeminiCut(t *testing.T) {
	const chunk = `{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":3,"totalTokenCount":8}}`
	for _, body := range []string{"data: " + chunk + "\n\n", "[" + chunk + "]"} {
		for _, cut := range []bool{false, true} {
			h := header(jsonType)
			if body[0] == 'd' {
				h = header(sseType)
			}
			w := meter.GeminiStream.Watch(meter.Bound{Choices: 1}, h, false)
			w.Write([]byte(body))
			if cut {
				w.(interface{ Cut() }).Cut()
			}
			w.End()
			r := w.Reading()
			require.Equal(t, !cut, r.Final, body)
			require.Equal(t, !cut, r.Finished, body)
		}
	}
}
