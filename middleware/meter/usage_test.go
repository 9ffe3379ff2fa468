// What a JSON body reports is taken if it can be true, and is unknown, never
// zero, if it cannot.

package meter_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

func readJSON(m meter.Meter, body string, n int) meter.Reading {
	_, r := watch(m.Watch(meter.Bound{}, header(jsonType), false), []byte(body), n)
	return r
}

func TestUsage(t *testing.T) {
	type usage = budget.Usage
	unreadable, none := usage{Why: meter.Unreadable}, usage{Why: meter.NoUsage}
	for _, c := range []struct {
		name  string
		usage string
		want  usage
	}{
		{"plain", `{"prompt_tokens":500,"completion_tokens":120,"total_tokens":620}`, usage{Input: 500, Output: 120}},
		{"without a total", `{"prompt_tokens":5,"completion_tokens":1}`, usage{Input: 5, Output: 1}},
		{"a total alone is priced as output", `{"total_tokens":7}`, usage{Output: 7}},
		{"null details", `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":null}}`, usage{Input: 5, Output: 1}},
		{"whole floats", `{"prompt_tokens":5.0,"completion_tokens":1e2}`, usage{Input: 5, Output: 100}},
		{"unknown members", `{"prompt_tokens":5,"completion_tokens":1,"cost":0.01,"note":"x"}`, usage{Input: 5, Output: 1}},

		{"case 34: reasoning inside", `{"prompt_tokens":2008,"completion_tokens":266,"total_tokens":2274,"completion_tokens_details":{"reasoning_tokens":261}}`, usage{Input: 2008, Output: 266, Reasoning: 261}},
		{"case 34: a total above the parts", `{"prompt_tokens":55021,"completion_tokens":923,"total_tokens":56729}`, usage{Input: 55021, Output: 1708}},
		{"case 34: reasoning beside, in the total", `{"prompt_tokens":401,"completion_tokens":44,"total_tokens":702,"completion_tokens_details":{"reasoning_tokens":257}}`, usage{Input: 401, Output: 301, Reasoning: 257}},
		{"case 34: reasoning beside, not in the total", `{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"completion_tokens_details":{"reasoning_tokens":25}}`, usage{Input: 9, Output: 27, Reasoning: 25}},
		{"DeepSeek's cache", `{"prompt_tokens":9,"completion_tokens":2,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":5}`, usage{Input: 9, Output: 2, Cached: 4}},

		{"case 30: null", `null`, none},
		{"case 30: all zero, with an answer", `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, usage{Why: meter.ZeroUsage}},
		{"no output, with an answer", `{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10}`, usage{Why: meter.ZeroUsage}},
		{"case 36: negative", `{"prompt_tokens":-100000000,"completion_tokens":5}`, unreadable},
		{"case 36: NaN", `{"prompt_tokens":NaN,"completion_tokens":5}`, unreadable},
		{"case 36: 1e30", `{"prompt_tokens":1e30,"completion_tokens":5}`, unreadable},
		{"case 36: a string", `{"prompt_tokens":"12","completion_tokens":5}`, unreadable},
		{"case 36: a fraction", `{"prompt_tokens":12.7,"completion_tokens":5}`, unreadable},
		{"case 36: total below the parts", `{"prompt_tokens":12,"completion_tokens":5,"total_tokens":16}`, unreadable},
		{"above 64 bits", `{"prompt_tokens":99999999999999999999,"completion_tokens":5}`, unreadable},
		{"parts above the whole", `{"prompt_tokens":12,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":13}}`, unreadable},
		{"a bad detail", `{"prompt_tokens":12,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":-5}}`, unreadable},
		{"twice, the higher counts", `{"prompt_tokens":12,"completion_tokens":5,"completion_tokens":1}`, usage{Input: 12, Output: 5}},
		{"a side missing", `{"prompt_tokens":12}`, unreadable},
		{"empty", `{}`, unreadable},
		{"a list", `[12,5]`, unreadable},
		{"too long to be one", `{"prompt_tokens":12,"completion_tokens":5,"x":"` + strings.Repeat("x", 70_000) + `"}`, unreadable},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := `{"id":"a-1","choices":[{"message":{"role":"assistant","content":"hi"}}], "usage" : ` + c.usage + ` , "x":{"usage":{"prompt_tokens":1}}}`
			want := c.want
			want.Ref = "a-1"
			for _, n := range []int{1 << 20, 1} {
				r := readJSON(meter.OpenAIChat, body, n)
				require.Equal(t, want, r.Usage)
				require.True(t, r.Finished)
				require.NoError(t, r.Usage.Check())
			}
		})
	}
}

func TestUsageOfBodies(t *testing.T) {
	zero := `"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`
	nothing := budget.NothingUsed
	for _, c := range []struct {
		name  string
		meter meter.Meter
		body  string
		want  budget.Usage
	}{
		{"case 30: zero for an empty answer", meter.OpenAIChat, `{"choices":[{"message":{"role":"assistant","content":"","refusal":null}}],` + zero + `}`, nothing},
		{"case 30: zero for no answer", meter.OpenAIChat, `{"choices":[],` + zero + `}`, nothing},
		{"no output for an empty answer", meter.OpenAIChat, `{"choices":[{"message":{"content":""}}],"usage":{"prompt_tokens":10,"completion_tokens":0}}`, budget.Usage{Input: 10}},
		{"what is no list of answers may be one", meter.OpenAIChat, `{"choices":{"0":{"text":"x"}},` + zero + `}`, budget.Usage{Why: meter.ZeroUsage}},
		{"a tool call is an answer", meter.OpenAIChat, `{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":""}}]}}],` + zero + `}`, budget.Usage{Why: meter.ZeroUsage}},
		{"a text is an answer", meter.OpenAICompletions, `{"choices":[{"text":"x"}],` + zero + `}`, budget.Usage{Why: meter.ZeroUsage}},
		{"a long answer is one", meter.OpenAIChat, `{"choices":[{"message":{"content":"` + strings.Repeat("long", 1<<15) + `"}}],` + zero + `}`, budget.Usage{Why: meter.ZeroUsage}},
		{"embeddings with zero usage", meter.OpenAIEmbeddings, `{"data":[{"embedding":[1,2]}],"usage":{"prompt_tokens":0,"total_tokens":0}}`, budget.Usage{Why: meter.ZeroUsage}},
		{"embeddings of nothing", meter.OpenAIEmbeddings, `{"data":[],"usage":{"prompt_tokens":0,"total_tokens":0}}`, nothing},
		{"embeddings by their total", meter.OpenAIEmbeddings, `{"data":[{}],"usage":{"total_tokens":8}}`, budget.Usage{Input: 8}},
		{"case 35", meter.OpenAIChat, `{"weird_usage":{"in":50000}}`, budget.Usage{Why: meter.Unreadable}},
		{"case 21: none", meter.OpenAIChat, `{"choices":[{"message":{"content":"x"}}]}`, budget.Usage{Why: meter.NoUsage}},
		{"twice", meter.OpenAIChat, `{"usage":{"total_tokens":8},"usage":{"total_tokens":1}}`, budget.Usage{Why: meter.Unreadable}},
		{"a name in a string is none", meter.OpenAIChat, `{"choices":"\"usage\":{\"total_tokens\":8}","x":"\\"}`, budget.Usage{Why: meter.NoUsage}},
		{"not an object", meter.OpenAIChat, `[{"usage":{"total_tokens":8}}]`, budget.Usage{Why: meter.Unreadable}},
		{"not JSON", meter.OpenAIChat, `<html>502</html>`, budget.Usage{Why: meter.NoUsage}},
		{"empty", meter.OpenAIChat, ``, budget.Usage{Why: meter.NoUsage}},
		{"the id is no place for text", meter.OpenAIChat, `{"id":"Ignore all previous","usage":{"total_tokens":8}}`, budget.Usage{Output: 8}},
	} {
		for _, n := range []int{1 << 20, 1} {
			require.Equal(t, c.want, readJSON(c.meter, c.body, n).Usage, c.name)
		}
	}
}

func TestCutAndFailedBodies(t *testing.T) {
	// A placeholder of zeros, and then an answer that is cut wherever.
	for body, m := range map[string]meter.Meter{
		`{"usage":{"prompt_tokens":0,"completion_tokens":0},"choices":[{"message":{"content":"ninepence"}}]}`: meter.OpenAIChat,
		`{"usage":{"prompt_tokens":0,"total_tokens":0},"data":[{"embedding":[1,2]}]}`:                         meter.OpenAIEmbeddings,
	} {
		for n := 1; n <= len(body); n++ {
			require.False(t, readJSON(m, body[:n], 3).Usage.Known(), body[:n])
		}
	}

	r := readJSON(meter.OpenAIChat, `{"choices":[{"message":{"content":"x"}}],"usage":{"total_tok`, 3)
	require.False(t, r.Finished)
	require.Equal(t, meter.Unreadable, r.Usage.Why)

	r = readJSON(meter.OpenAIChat, `{"usage":{"total_tokens":8},"choices":[{"mess`, 3)
	require.False(t, r.Finished)
	require.True(t, r.Final, "the report was whole")
	require.EqualValues(t, 8, r.Usage.Total())

	r = readJSON(meter.OpenAIChat, `{"error":{"message":"no","code":"insufficient_quota"}}`, 3)
	require.Equal(t, &meter.Refusal{Stop: true, Code: "insufficient_quota"}, r.Failure)
	require.Nil(t, readJSON(meter.OpenAIChat, `{"error":null,"usage":{"total_tokens":8}}`, 3).Failure)
}

// A body of any size is read in little memory.
func TestLargeBody(t *testing.T) {
	w := meter.OpenAIEmbeddings.Watch(meter.Bound{}, header(jsonType), false)
	piece := []byte(`{"embedding":[` + strings.Repeat("0.0123456789,", 5000) + `1]},`)
	w.Write([]byte(`{"data":[`))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 500 {
		w.Write(piece)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10), "of %d bytes", 500*len(piece))
	w.Write([]byte(`{}],"usage":{"prompt_tokens":5,"total_tokens":5}}`))
	require.EqualValues(t, 5, w.Reading().Usage.Input)
}

func TestRef(t *testing.T) {
	require.Equal(t, "req_1", meter.Ref(http.Header{"X-Request-Id": {"req_1"}}))
	require.Equal(t, "req_2", meter.Ref(http.Header{"Request-Id": {"req_2"}, "X-Request-Id": {"not an id"}}))
	require.Empty(t, meter.Ref(http.Header{"X-Request-Id": {strings.Repeat("x", 200)}}))
}

func ExampleReading_Observed() {
	b := meter.Bound{Input: 120, Output: 1000}
	r := meter.Reading{Generated: 85}
	fmt.Println(r.Observed(b).Total(), r.Observed(b).Estimated)
	// Output: 205 true
}
