// Package tokens counts tokens with the models' own vocabularies. It links some
// 7 MB of them, which is why it stands apart from package meter: without it,
// meter counts a token for every byte.
package tokens

import (
	"iter"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

// Counter implements meter.Counter. Its zero value is ready to use, by many
// goroutines at once; the first use of a vocabulary takes some 20 ms.
//
// For OpenAI's models the count is theirs (in markdown, the tokenizer behind it
// finds one token more on a line of nothing but spaces; nothing else was seen
// to differ). For all others it is [OtherPercent] of o200k_base's, as far as
// that is not above a token a byte, which no byte-level BPE exceeds.
//
// Any bytes have a count, at least 1 unless there are none: words such as
// <|endoftext|> are plain text, and each byte that is no UTF-8 counts as a
// U+FFFD that arrives in its place. Of a longer text only the first [Exact] bytes are
// tokenized, the rest counts a token a byte, so that no text holds a call up
// for long.
type Counter struct{}

// Exact is how much of one text is tokenized, at 1 (a single letter over and
// over) to 10 MB a second.
const Exact = 4 << 20

// OtherPercent is what o200k_base's count is multiplied by for models whose
// vocabulary is not known here: the largest ratio measured is 1.51 (Claude's
// last public vocabulary on multilingual text), and Anthropic says that its
// newer one makes 30 % more tokens, which gives 1.97.
const OtherPercent = 200

// Count returns at least the number of tokens that model makes of text.
func (Counter) Count(model, text string) int64 {
	return count(encodingOf(model), text, Exact, 256)
}

// encoding is a vocabulary and what its count is worth for a model.
type encoding struct {
	codec   func() *codec.Codec
	percent int64
}

var (
	o200k  = encoding{sync.OnceValue(codec.NewO200kBase), 100}
	cl100k = encoding{sync.OnceValue(codec.NewCl100kBase), 100}
	other  = encoding{o200k.codec, OtherPercent}
)

// prefixes says which vocabulary a model has, as tiktoken 0.14.0 (2026-08-16)
// lists them. gpt-6 is in no published table.
var prefixes = []struct {
	model string
	encoding
}{
	{"gpt-5", o200k}, {"gpt-4.5", o200k}, {"gpt-4.1", o200k}, {"gpt-4o", o200k}, {"chatgpt-4o", o200k}, {"gpt-oss", o200k},
	{"o1", o200k}, {"o3", o200k}, {"o4-mini", o200k},
	{"gpt-4", cl100k}, {"gpt-3.5", cl100k}, {"gpt-35", cl100k}, {"text-embedding-", cl100k}, {"davinci-002", cl100k}, {"babbage-002", cl100k},
}

// encodingOf picks by the longest prefix, behind what gateways and fine-tuning
// put before a name: openai/gpt-4o, ft:gpt-4o-2024-08-06:org::id.
func encodingOf(model string) encoding {
	model = strings.TrimPrefix(strings.TrimPrefix(model, "openai/"), "ft:")
	best, length := other, 0
	for _, p := range prefixes {
		if len(p.model) > length && strings.HasPrefix(model, p.model) {
			best, length = p.encoding, len(p.model)
		}
	}
	return best
}

// seam is left to the bytes before the end of what is tokenized, because a cut
// changes how the text before it falls into tokens, by less than that.
const seam = 1024

// count is Count with the first exact bytes tokenized, and in pieces that hold
// no more than run spaces in a row.
func count(e encoding, text string, exact, run int) int64 {
	if text == "" {
		return 0
	}
	if !utf8.ValidString(text) {
		text = string([]rune(text)) // strings.ToValidUTF8 makes one U+FFFD of a run
	}
	end := len(text)
	if end > exact {
		end = max(exact-seam, 0)
		for !utf8.RuneStart(text[end]) {
			end--
		}
	}
	tokens := int64(0)
	for piece := range pieces(text[:end], run) {
		n, err := e.codec().Count(piece)
		if err != nil { // not known to happen
			n = len(piece)
		}
		tokens += int64(n)
		if len(piece) < end {
			tokens += 4 // a cut was seen to save up to 2 in runs of mixed spaces
		}
	}
	tokens = min((tokens*e.percent+99)/100, int64(end))
	return max(tokens+int64(len(text)-end), 1)
}

// pieces cuts text inside runs of white space longer than run. The tokenizer
// takes time quadratic in a run that holds line breaks: 32 KB of them take 0.7
// seconds, 1 MB many minutes.
func pieces(text string, run int) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, spaces := 0, 0
		for i, r := range text {
			if !unicode.IsSpace(r) {
				spaces = 0
				continue
			}
			if spaces++; spaces > run {
				if !yield(text[start:i]) {
					return
				}
				start, spaces = i, 1
			}
		}
		if start < len(text) {
			yield(text[start:])
		}
	}
}
