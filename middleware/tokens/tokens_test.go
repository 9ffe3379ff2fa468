// A count is never below the tokenizer's own, whatever the bytes, the length
// or the model; any bytes have one; no text takes quadratic time.

package tokens

import (
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestEncodingOf(t *testing.T) {
	for model, want := range map[string]string{
		"gpt-4o-mini": "o200k", "gpt-4.1-nano": "o200k", "gpt-5.6-sol": "o200k", "o3-mini": "o200k", "gpt-oss-120b": "o200k",
		"ft:gpt-4o-2024-08-06:org::id": "o200k", "openai/gpt-5-mini": "o200k",
		"gpt-4": "cl100k", "gpt-4-0613": "cl100k", "gpt-35-turbo": "cl100k", "text-embedding-3-large": "cl100k", "ft:gpt-3.5-turbo:x": "cl100k",
		"": "other", "gpt-6-sol": "other", "claude-opus-5": "other", "llama-3.3-70b": "other", "someone/gpt-4-clone": "other",
	} {
		e, name := encodingOf(model), "other"
		switch {
		case e.percent != 100:
		case e.codec().GetName() == "o200k_base":
			name = "o200k"
		default:
			name = "cl100k"
		}
		require.Equal(t, want, name, model)
	}
}

// case 84
func TestAnyBytes(t *testing.T) {
	for _, text := range []string{"<|endoftext|>", "<|im_start|>", "\x00", "\xff", "\xff\xfe\xfd", "a\xc3", "\u202e", strings.Repeat("\n", 4096)} {
		for _, model := range []string{"gpt-4o", "gpt-4", "unknown", ""} {
			n := Counter{}.Count(model, text)
			require.GreaterOrEqual(t, n, int64(1), "%q", text)
			require.LessOrEqual(t, n, int64(len(string([]rune(text)))), "%q", text)
		}
	}
	require.Zero(t, Counter{}.Count("gpt-4o", ""))
	require.EqualValues(t, 7, Counter{}.Count("gpt-4o", "<|endoftext|>"), "plain text, not one special token")
}

// text is made of what tokenizers trip over: white space, CJK, emoji, joined
// and broken characters, long runs.
func text(t *rapid.T) string {
	bit := rapid.SampledFrom([]string{" ", "  ", "\n", "\r\n", " \n", "\t", "\u00a0", "\u3000", "a", "A", "the ", "Tokens", "'s", "你好", "世", "é", "e\u0301",
		"😀", "👍🏽", "1234", "!", "/", "{\"a\":", "\xff", "\xe4\xbd", "ﬁ", "नमस्ते", "مرحبا"})
	var b strings.Builder
	for range rapid.IntRange(1, 40).Draw(t, "bits") {
		b.WriteString(strings.Repeat(bit.Draw(t, "bit"), rapid.IntRange(1, 12).Draw(t, "times")))
	}
	return b.String()
}

func TestNeverBelowTheTokenizer(t *testing.T) {
	for _, e := range []encoding{o200k, cl100k, other} {
		rapid.Check(t, func(t *rapid.T) {
			s := text(t)
			n, err := e.codec().Count(string([]rune(s)))
			require.NoError(t, err)
			exact := rapid.IntRange(seam, seam+200).Draw(t, "exact")
			run := rapid.IntRange(1, 8).Draw(t, "run")
			require.GreaterOrEqual(t, count(e, s, exact, run), int64(n))
			require.Equal(t, min((int64(n)*e.percent+99)/100, int64(len(string([]rune(s))))), count(e, s, 1<<20, 1<<20), "uncut, it is the tokenizer's")
		})
	}
}

// A cut inside white space may make the sum of the pieces lower than the whole.
func TestCutsSaveNothing(t *testing.T) {
	for _, e := range []encoding{o200k, cl100k} {
		for _, space := range []string{"\t", "\n"} {
			for n := range 60 {
				s := strings.Repeat(space, n) + "x"
				whole, err := e.codec().Count(s)
				require.NoError(t, err)
				for run := 1; run < n; run++ {
					require.GreaterOrEqual(t, count(e, s, Exact, run), int64(whole), "%d × %q, cut after %d", n, space, run)
				}
			}
		}
	}
}

// The tokenizer's time is quadratic in a run of white space; a piece must not
// hold a long one, and the pieces must be the text.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := strings.ToValidUTF8(text(t), "")
		all := ""
		for piece := range pieces(s, 3) {
			run := 0
			for _, r := range piece {
				if run++; !unicode.IsSpace(r) {
					run = 0
				}
				require.LessOrEqual(t, run, 3)
			}
			all += piece
		}
		require.Equal(t, s, all)
	})
	require.Less(t, Counter{}.Count("gpt-4o", strings.Repeat(" \n", 1<<18)), int64(1<<19), "ends in a moment")
}

func TestConcurrentUse(t *testing.T) {
	const s = "The quick brown fox, 你好, jumps 😀 over\n\n   it."
	want := [2]int64{Counter{}.Count("gpt-4o", s), Counter{}.Count("gpt-4", s)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if got := [2]int64{(Counter{}).Count("gpt-4o", s), (Counter{}).Count("gpt-4", s)}; got != want {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCount(b *testing.B) {
	s := strings.Repeat("A budget is a promise that is kept under load. ", 200)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		Counter{}.Count("gpt-4o", s)
	}
}
