package providertest

// The bill never exceeds a sound bound: not the words of a text its tokens, nor
// its bytes.

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"github.com/tiktoken-go/tokenizer"
	"github.com/tiktoken-go/tokenizer/codec"
	"pgregory.net/rapid"
)

func codecs() map[string]tokenizer.Codec {
	return map[string]tokenizer.Codec{"o200k_base": codec.NewO200kBase(), "cl100k_base": codec.NewCl100kBase()}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]int64{
		"":               0,
		" \n--- !? \t":   0,
		"Hello,   world": 2,
		"don't stop":     2,
		"it’s":           2, // the typographic apostrophe separates
		"get_weather":    2,
		"3.14":           2,
		"ありがとうございました。またね":                   2, // one token of o200k_base before the full stop
		"re\u0301sume\u0301":                1,
		"'' \u0301 '":                       0,
		strings.Repeat("a", 64):             1,
		strings.Repeat("a", 65):             2,
		"'" + strings.Repeat("a", 64) + "'": 1,
		"a\xffb":                            2,
	} {
		require.Equal(t, want, Words(text), "%q", text)
	}
}

// TestNoTokenHoldsMore: no token holds two words, nor more of one than counts
// as one. The first is why apostrophes join (" don't" is one token), the second
// is where wordBytes is from.
func TestNoTokenHoldsMore(t *testing.T) {
	for name, c := range codecs() {
		longest := ""
		for id := range uint(200_000) {
			s, err := c.Decode([]uint{id})
			if err != nil || s == "" {
				continue
			}
			require.LessOrEqual(t, Words(s), int64(1), "%s: %q", name, s)
			_, n := utf8.DecodeRuneInString(s)
			within := strings.IndexFunc(s[n:], func(r rune) bool {
				return !letterOrDigit(r) && !unicode.IsMark(r) && r != '\'' && r != utf8.RuneError
			}) < 0
			if within && len(s) > len(longest) {
				longest = s
			}
		}
		require.NotEmpty(t, longest)
		require.LessOrEqual(t, len(longest), wordBytes, "%s: %q", name, longest)
	}
}

func TestWordsNeverExceedTokens(t *testing.T) {
	all := codecs()
	piece := rapid.SampledFrom([]string{" ", "  ", "\n", "\r\n", "'", "'s", "'LL", "’", "_", "-", "//", "{\"", "\":", "a", "The", "camelCase", "ß", "ſ", "İ", "\u0301", "\u200d", "\u3000",
		"1", "12345", "½", "天天中彩票", "微信公众号", "don", "\u00a0", "don't", "it's", "。", "ありがとうございました", "สำนักเลขานุการองค์กร", "தெரிவித்துள்ளார்", "한국어", "👍🏽", "<|endoftext|>", "<|fim_prefix|>", strings.Repeat("a", 70), strings.Repeat("天", 30)})
	rapid.Check(t, func(t *rapid.T) {
		// Few pieces: in a long text one token too few does not show.
		text := strings.Join(rapid.SliceOfN(piece, 1, 4).Draw(t, "pieces"), "") + rapid.StringN(0, 3, -1).Draw(t, "more")
		words := Words(text)
		if words > int64(len(text)) {
			t.Fatalf("%d words in %d bytes", words, len(text))
		}
		for name, c := range all {
			if n, err := c.Count(text); err != nil || words > int64(n) {
				t.Fatalf("%d words, %d tokens of %s, %v: %q", words, n, name, err, text)
			}
		}
	})
}
