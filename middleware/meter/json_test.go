// Our reading of JSON is that of encoding/json.

package meter

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// texts that are nearly JSON, or JSON at its edges.
var texts = []string{
	``, ` `, `{}`, `[]`, `[1,]`, `{,}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, ` { "a" : [ 1 , -2.5e+3 , "x" ] } `, `{"a":1}x`, `{a:1}`,
	`0`, `01`, `-`, `-0`, `1.`, `.5`, `1e`, `1E-5`, `+1`, `1e30`, `NaN`, `Infinity`, `true`, `tru`, `truex`, `null`, `nul`,
	`""`, `"`, `"\`, `"\"`, `"\\"`, `"\u12"`, `"\u12G4"`, `"\uD83D\uDE00"`, `"\uD83D"`, `"\uDE00x"`, `"\uD83D\u0041"`, `"\x"`, "\"\n\"", "\"\x7f\xff\"",
	`"é\\\"\n\t\/"`, `["\"]","{"]`, `[[[]]`, `[]]`, `[}`, "[\v]", "\ufeff{}", `"a" "b"`,
}

func FuzzJSON(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		require.Equal(t, json.Valid(text) && !tooDeep(text), valid(text), "%q", text)
		v, whole := parse(text)
		if !valid(text) {
			return
		}
		require.Equal(t, string(trimmed(text)), string(v))
		require.Equal(t, true, whole)
		switch v.kind() {
		case '"':
			var want string
			require.NoError(t, json.Unmarshal(text, &want))
			require.Equal(t, want, v.str())
			require.EqualValues(t, len(want), v.size())
		case '{':
			var want map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(text, &want))
			got := map[string]json.RawMessage{}
			require.True(t, walk(v, func(name []byte, m value) bool { got[string(name)] = json.RawMessage(m); return true }))
			require.Equal(t, len(want), len(got))
			for name := range want {
				require.JSONEq(t, string(want[name]), string(got[name]))
			}
		case '[':
			var want []json.RawMessage
			require.NoError(t, json.Unmarshal(text, &want))
			n := 0
			for e := range v.elements() {
				require.JSONEq(t, string(want[n]), string(e))
				n++
			}
			require.Equal(t, len(want), n)
		}
	})
}

func trimmed(text []byte) []byte { return []byte(strings.Trim(string(text), " \t\r\n")) }

// tooDeep reports nesting that we refuse and encoding/json takes.
func tooDeep(text []byte) bool {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '['):
			depth++
			deepest = max(deepest, depth)
		case !quoted && (c == '}' || c == ']'):
			depth--
		}
	}
	return deepest > maxDepth
}

func TestDepth(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	require.True(t, valid(nested(maxDepth)))
	require.False(t, valid(nested(maxDepth+1)))
	require.False(t, valid(nested(1_000_000)))
	require.EqualValues(t, 2*(100_000-8), generated(nested(100_000)), "deeper than any format, it counts as it stands")
}

func TestTokens(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "12": 12, "12.0": 12, "1e3": 1000, "9007199254740992": 1 << 53,
		"-0": 0, "-1": -1, "12.5": -1, "9007199254740993": -1, "1e30": -1, "1e999": -1, "99999999999999999999": -1, `"12"`: -1, "null": -1, "true": -1, "NaN": -1, "": -1, "0x10": -1, "1_0": -1} {
		n, ok := value(text).tokens()
		require.Equal(t, want >= 0, ok, text)
		if ok {
			require.Equal(t, want, n, text)
		}
	}
}
