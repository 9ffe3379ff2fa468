// A stream is read the same however its bytes are split, is handed on
// unchanged but for what the guard itself asked for, and tells a finished
// answer from a cut one.

package meter_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

func delta(content string) string {
	return `data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"` + content + `"},"finish_reason":null}],"usage":null}` + "\n\n"
}

func last(reason string, prompt, completion int) string {
	return fmt.Sprintf(`data: {"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason":"%s"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", reason, prompt, completion, prompt+completion)
}

func bare(prompt, completion int) string {
	return fmt.Sprintf(`data: {"id":"c-1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", prompt, completion, prompt+completion)
}

const (
	done = "data: [DONE]\n\n"
	stop = `data: {"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
)

func stream(choices int64, hide bool) meter.Watch {
	return meter.OpenAIChat.Watch(meter.Bound{Choices: choices, Stream: true, WithUsage: []byte("{}")}, header(sseType), hide)
}

func TestStream(t *testing.T) {
	type usage = budget.Usage
	none := usage{Why: meter.NoUsage}
	for _, c := range []struct {
		name   string
		stream string
		want   usage
		state  string // of final, finished, stopped, failed, by first letters
	}{
		{"case 27: usage behind the finish reason", delta("a") + stop + bare(23, 235) + done, usage{Input: 23, Output: 235}, "FfS"},
		{"case 27: on the finish chunk too", delta("a") + last("length", 23, 235) + bare(23, 235) + done, usage{Input: 23, Output: 235}, "FfS"},
		{"case 27: no end marker", delta("a") + stop + bare(23, 235), usage{Input: 23, Output: 235}, "FS"},
		{"case 28: choices missing", `data: {"choices":[]}` + "\n\n" + delta("a") + `data: {"usage":{"prompt_tokens":611,"completion_tokens":13,"total_tokens":624}}` + "\n\n", usage{Input: 611, Output: 13}, ""},
		{"case 28: the same, to its end", `data: {"choices":[]}` + "\n\n" + delta("a") + bare(611, 13) + done, usage{Input: 611, Output: 13}, "fF"},
		{"usage of the prompt, ahead of the answer", bare(611, 0), usage{Input: 611}, ""},
		{"usage without choices, and yet more output", delta("a") + bare(611, 13) + delta("b"), usage{Input: 611, Output: 13}, ""},
		{"usage ahead of the answer, and never again", last("", 8, 1) + delta("b") + stop + done, usage{Input: 8, Output: 1}, "fS"},
		{"a running total, then zeros", last("", 5, 10) + delta("b") + stop + bare(0, 0) + done, usage{Input: 5, Output: 10}, "fS"},
		{"half an event behind the usage", delta("a") + stop + bare(5, 1) + delta("b")[:50], usage{Input: 5, Output: 1}, "S"},
		{"half an end marker behind the usage", delta("a") + stop + bare(5, 1) + done[:9], usage{Input: 5, Output: 1}, "FS"},
		{"case 29: running totals", last("", 5, 10) + last("", 5, 20) + last("stop", 5, 30) + done, usage{Input: 5, Output: 30}, "FfS"},
		{"case 29: cut", last("", 5, 10) + last("", 5, 20), usage{Input: 5, Output: 20}, ""},
		{"never a lower figure", delta("a") + last("stop", 5, 30) + bare(0, 0) + done, usage{Input: 5, Output: 30}, "FfS"},
		{"case 30: zeros with output", delta("a") + bare(0, 0) + delta("b") + stop + bare(0, 0) + done, usage{Why: meter.ZeroUsage}, "fS"},
		{"no output with output", delta("a") + stop + bare(10, 0) + done, usage{Why: meter.ZeroUsage}, "fS"},
		{"no output, and none seen", stop + bare(10, 0) + done, usage{Input: 10}, "FfS"},
		{"case 30: zeros for nothing", stop + bare(0, 0) + done, budget.NothingUsed, "fFS"},
		{"case 36: unreadable at the end", last("", 5, 10) + stop + `data: {"choices":[],"usage":{"prompt_tokens":-1}}` + "\n\n" + done, usage{Why: meter.Unreadable}, "fS"},
		{"unreadable on the way", `data: {"choices":[],"usage":{}}` + "\n\n" + delta("a") + stop + bare(5, 1) + done, usage{Input: 5, Output: 1}, "FfS"},
		{"case 85: never asked for", delta("a") + stop + done, none, "fS"},
		{"cut", delta("a") + delta("b"), none, ""},
		{"cut in a line", delta("a") + delta("b")[:50], none, ""},
		{"cut in the usage", delta("a") + bare(5, 1)[:50], usage{Why: meter.Unreadable}, ""},
		{"case 36: NaN", stop + `data: {"choices":[],"usage":{"prompt_tokens":NaN}}` + "\n\n" + done, usage{Why: meter.Unreadable}, "fS"},
		{"nothing", "", none, ""},

		{"a byte order mark", "\ufeff" + bare(5, 1) + stop + done, usage{Input: 5, Output: 1}, "FfS"},
		{"none but at the beginning", "\n\ufeff" + bare(5, 1) + stop + done, none, "fS"},
		{"carriage returns", strings.ReplaceAll(delta("a")+stop+bare(5, 1)+done, "\n", "\r\n"), usage{Input: 5, Output: 1}, "FfS"},
		{"no blank lines", strings.ReplaceAll(delta("a")+stop+bare(5, 1)+done, "\n\n", "\n"), usage{Input: 5, Output: 1}, "FfS"},
		{"comments, leading blanks, other fields", ": PROCESSING\n\n  " + delta("a") + "id: 7\nretry: 10\nevent: message\n" + stop + "\n\n" + bare(5, 1) + done, usage{Input: 5, Output: 1}, "FfS"},
		{"no space behind the colon", strings.ReplaceAll(delta("a")+stop+bare(5, 1)+done, "data: ", "data:"), usage{Input: 5, Output: 1}, "FfS"},
		{"data over several lines", delta("a") + stop + "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":5,\ndata:\"completion_tokens\":1}}\n\n" + done, usage{Input: 5, Output: 1}, "FfS"},
		{"a last line without end", delta("a") + stop + bare(5, 1) + "data: [DONE]", usage{Input: 5, Output: 1}, "FfS"},
		{"a last usage without end", delta("a") + stop + strings.TrimSpace(bare(5, 1)), usage{Input: 5, Output: 1}, "FS"},
		{"Groq's place", stop + `data: {"choices":[{"delta":{}}],"x_groq":{"usage":{"prompt_tokens":5,"completion_tokens":1}}}` + "\n\n" + done, usage{Input: 5, Output: 1}, "FfS"},

		{"event: error", delta("a") + "event: error\ndata: {\"message\":\"no\",\"code\":\"x\"}\n\n", none, "E"},
		{"an error among the data", delta("a") + `data: {"error":{"message":"no","code":"x"}}` + "\n\n", none, "E"},
		{"no error", delta("a") + `data: {"error":null,"choices":[]}` + "\n\n" + done, none, "f"},
		{"garbage", "data: {\"choices\":[{]}\n\ndata: }{\n\nda ta\n\x00\xff\n" + stop + bare(5, 1) + done, usage{Input: 5, Output: 1}, "FfS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(c.stream, "c-1") {
				c.stream = `data: {"id":"c-1"}` + "\n\n" + c.stream
			}
			want := c.want
			want.Ref = "c-1"
			for n := 1; n <= len(c.stream); n += 1 + n/8 {
				forwarded, r := watch(stream(1, false), []byte(c.stream), n)
				require.Equal(t, c.stream, forwarded)
				require.Equal(t, want, r.Usage)
				require.Equal(t, strings.Contains(c.state, "F"), r.Final, "final")
				require.Equal(t, strings.Contains(c.state, "f"), r.Finished, "finished")
				require.Equal(t, strings.Contains(c.state, "S"), r.Stopped, "stopped")
				require.Equal(t, strings.Contains(c.state, "E"), r.Failure != nil, "failed")
			}
		})
	}
}

// Only the chunk that the guard asked for is taken out, with its blank line.
func TestStreamHides(t *testing.T) {
	for _, c := range []struct{ name, stream, want string }{
		{"the usage chunk", delta("a") + stop + bare(5, 1) + done, delta("a") + stop + done},
		{"with its byte order mark", "\ufeff" + bare(5, 1) + done, done},
		{"without choices", delta("a") + `data: {"usage":{"prompt_tokens":1,"completion_tokens":1}}` + "\n\n" + done, delta("a") + done},
		{"not a second blank line", bare(5, 1) + "\n" + done, "\n" + done},
		{"with its other fields", delta("a") + "event: message\nid: 3\n" + bare(5, 1) + done, delta("a") + done},
		{"carriage returns", "data: {\"choices\":[],\"usage\":{\"total_tokens\":2}}\r\n\r\ndata: [DONE]\r\n\r\n", "data: [DONE]\r\n\r\n"},
		{"no blank lines", strings.ReplaceAll(delta("a")+bare(5, 1)+done, "\n\n", "\n"), strings.ReplaceAll(delta("a")+done, "\n\n", "\n")},
		{"over several lines", "data: {\"choices\":[],\ndata: \"usage\":{\"total_tokens\":5}}\n\n" + done, done},
		{"at the very end", delta("a") + strings.TrimSpace(bare(5, 1)), delta("a")},
		{"not usage on a choice", last("stop", 5, 1) + done, last("stop", 5, 1) + done},
		{"not a null", `data: {"choices":[],"usage":null}` + "\n\n" + done, `data: {"choices":[],"usage":null}` + "\n\n" + done},
		{"not empty choices alone", `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + done, `data: {"choices":[],"prompt_filter_results":[]}` + "\n\n" + done},
		{"not an error", `data: {"error":{},"usage":{"total_tokens":1},"error":{"code":"x"}}` + "\n\n", `data: {"error":{},"usage":{"total_tokens":1},"error":{"code":"x"}}` + "\n\n"},
		{"not comments, not garbage", ": ping\n\n\n\ndata: {\"us\n\ndata\n" + delta("a"), ": ping\n\n\n\ndata: {\"us\n\ndata\n" + delta("a")},
		{"not a cut line", delta("a") + bare(5, 1)[:40], delta("a") + bare(5, 1)[:40]},
	} {
		for n := 1; n <= len(c.stream); n++ {
			forwarded, _ := watch(stream(1, true), []byte(c.stream), n)
			require.Equal(t, c.want, forwarded, "%s, split by %d", c.name, n)
		}
	}
	// Nothing is hidden where the caller's own body was sent.
	w := meter.OpenAIChat.Watch(meter.Bound{Stream: true}, header(sseType), true)
	forwarded, _ := watch(w, []byte(bare(5, 1)), 9)
	require.Equal(t, bare(5, 1), forwarded)
}

// A chunk reaches the caller when its line is whole, not an event later.
func TestStreamDoesNotDelay(t *testing.T) {
	w := stream(1, true)
	line, _, _ := strings.Cut(delta("a"), "\n")
	require.Equal(t, line+"\n", string(w.Write([]byte(line+"\n"))))
	require.Equal(t, "\n", string(w.Write([]byte("\n"))))
	require.Equal(t, ": ping\n", string(w.Write([]byte(": ping\n"))))
}

func TestStreamOfSeveralChoices(t *testing.T) {
	chunk := func(index int, reason string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":"x"},"finish_reason":"%s"}],"usage":{"prompt_tokens":5,"completion_tokens":9}}`+"\n\n", index, reason)
	}
	_, r := watch(stream(2, false), []byte(chunk(0, "stop")+chunk(0, "stop")), 99)
	require.False(t, r.Stopped || r.Final, "one of two is still being written")
	_, r = watch(stream(2, false), []byte(chunk(0, "stop")+chunk(7, "stop")), 99)
	require.False(t, r.Stopped || r.Final, "7 is none of two")
	_, r = watch(stream(2, false), []byte(chunk(1, "stop")+chunk(0, "stop")), 99)
	require.True(t, r.Stopped && r.Final)
}

// case 24: what was written is counted, so that an abort can be charged by it.
func TestObserved(t *testing.T) {
	all := strings.Repeat(delta(" word"), 200)
	w := stream(1, true)
	for range 37 {
		w.Write([]byte(delta(" word")))
	}
	b := meter.Bound{Input: 50, Output: 1000}
	require.Equal(t, budget.Usage{Input: 50, Output: 37 * 5, Estimated: true, Ref: "c-1", Why: "observed until the abort"}, w.Reading().Observed(b))
	_, r := watch(stream(1, true), []byte(all), 100)
	require.EqualValues(t, 1050, watchTotal(r, meter.Bound{Input: 50, Output: 1000}), "1,000 bytes, within the bound")
	require.EqualValues(t, 150, watchTotal(r, meter.Bound{Input: 50, Output: 100}), "never above the hold")

	for delta, want := range map[string]int64{
		`{"role":"assistant","content":""}`:  0,
		`{"content":"\u4f60\n\ud83d\ude00"}`: 3 + 1 + 4,
		`{"reasoning":"abc"}`:                3,
		`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"fn","arguments":"{\"a\":1}"}}]}`: 2 + 7,
	} {
		_, r := watch(stream(1, false), []byte(`data: {"choices":[{"delta":`+delta+`,"logprobs":{"content":[{"token":"abc"}]}}]}`+"\n\n"), 11)
		require.Equal(t, want, r.Generated, delta)
	}
}

func watchTotal(r meter.Reading, b meter.Bound) int64 { return r.Observed(b).Total() }

// A line of 100 MB passes, in little memory; its usage is unknown, the rest of
// the stream is read on.
func TestLongLine(t *testing.T) {
	w := stream(1, true)
	piece := []byte(strings.Repeat("x", 1<<20))
	out := len(w.Write([]byte(`data: {"choices":[],"usage":{"prompt_tokens":5,"x":"`)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		out += len(w.Write(piece))
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
	out += len(w.Write([]byte("\"}}\n\n" + delta("a") + stop)))
	require.Equal(t, 100<<20+len(`data: {"choices":[],"usage":{"prompt_tokens":5,"x":"`)+5+len(delta("a")+stop), out)
	r := w.Reading()
	require.Equal(t, meter.Unreadable, r.Usage.Why)
	require.True(t, r.Stopped)
	w.Write([]byte(bare(5, 1)))
	require.EqualValues(t, 6, w.Reading().Usage.Total())
}

// What is too long to be read may be output: usage before it is not the last
// word.
func TestUsageAheadOfALongLine(t *testing.T) {
	for _, long := range []string{delta(strings.Repeat("x", 1<<20)), "data: {\ndata: " + strings.Repeat("x", 1<<20-9) + "\n\n"} {
		_, r := watch(stream(1, false), []byte(last("stop", 5, 1)+long+done), 1<<16)
		require.True(t, r.Finished && r.Usage.Known())
		require.False(t, r.Final)
		_, r = watch(stream(1, false), []byte(long+last("stop", 5, 1)+done), 1<<16)
		require.True(t, r.Final)
	}
}

// Where a line becomes too long does not depend on how it comes.
func TestLongestLine(t *testing.T) {
	for _, length := range []int{1<<20 - 1, 1 << 20, 1<<20 + 1} {
		line := `data: {"choices":[],"usage":{"total_tokens":7},"x":"`
		line += strings.Repeat("x", length-len(line)-3) + "\"}\n"
		for _, before := range []string{"", "event: message\n"} {
			body := before + line + "\n" + done
			whole, want := watch(stream(1, true), []byte(body), len(body))
			require.Equal(t, length <= 1<<20, want.Usage.Known())
			require.Equal(t, length > 1<<20 || before != "", whole == body, "taken out whole or not at all")
			for _, n := range []int{1000, 1 << 16, length - 1} {
				split, got := watch(stream(1, true), []byte(body), n)
				require.True(t, whole == split, "line of %d, split by %d", length, n)
				require.Equal(t, want, got)
			}
		}
	}
}

// A type that says nothing does not keep a stream from being read as one.
func TestWatchPicksTheForm(t *testing.T) {
	b := meter.Bound{Choices: 1, Stream: true}
	for contentType, streams := range map[string]bool{sseType: true, "": true, "text/plain": true, jsonType: false} {
		_, r := watch(meter.OpenAIChat.Watch(b, header(contentType), false), []byte(stop+bare(5, 1)), 50)
		require.Equal(t, streams, r.Usage.Known(), contentType)
	}
	_, r := watch(meter.OpenAIChat.Watch(meter.Bound{}, header(sseType), false), []byte(stop+bare(5, 1)), 50)
	require.True(t, r.Usage.Known())
}

// case 51: of each format the chunks that held text are counted, those of several
// choices for each: what a model wrote at least.
func TestPieces(t *testing.T) {
	gemini := func(texts ...string) string {
		all := ""
		for i, text := range texts {
			all += fmt.Sprintf(`{"index":%d,"content":{"parts":[{"text":%q}]}},`, i, text)
		}
		return `data: {"candidates":[` + strings.TrimSuffix(all, ",") + "]}\n\n"
	}
	for name, c := range map[string]struct {
		meter  meter.Meter
		stream string
		want   int64
	}{
		"OpenAI": {meter.OpenAIChat, delta("a") + delta("") + delta("b") + stop + bare(5, 2) + done, 2},
		"OpenAI, two choices in a chunk": {meter.OpenAIChat,
			`data: {"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"reasoning":"b"}}]}` + "\n\n", 2},
		"OpenAI, a completion": {meter.OpenAICompletions, `data: {"choices":[{"index":0,"text":"a"}]}` + "\n\n", 1},
		"Anthropic": {meter.AnthropicMessages, `data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}` + "\n\n" +
			`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n" +
			strings.Repeat(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}`+"\n\n", 3) +
			`data: {"type":"ping"}` + "\n\n" + `data: {"type":"content_block_stop","index":0}` + "\n\n", 3},
		"Gemini": {meter.GeminiStream, gemini("a") + gemini("b", "c") + gemini(""), 3},
	} {
		_, r := watch(c.meter.Watch(meter.Bound{Choices: 2, Stream: true}, header(sseType), false), []byte(c.stream), 17)
		require.Equal(t, c.want, r.Pieces, name)
	}
}
