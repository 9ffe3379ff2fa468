package meter

import (
	"net/http"

	"github.com/tollbook/tollbook/budget"
)

// tokenUsage reads a usage object of the OpenAI shape. ok is false for one that
// is not understood or contradicts itself; its figures must not be trusted
// then. generates tells that the endpoint has an output side.
//
// By OpenAI's own meaning cached and cache-write tokens are inside
// prompt_tokens and reasoning inside completion_tokens. Others report reasoning
// beside the completion, within the total (xAI) or even outside of it (Vercel's
// gateway for Gemini, whose price shows that it is billed); a reasoning figure
// above the completion's cannot be inside. A total above the parts is what was
// billed, whatever the parts leave out.
func tokenUsage(v value, generates bool) (u budget.Usage, ok bool) {
	if v.kind() != '{' || !valid(v) {
		return u, false
	}
	prompt, completion, total := int64(-1), int64(-1), int64(-1)
	ok = true
	read := func(to *int64, v value) {
		if v.present() {
			n, whole := v.tokens()
			ok, *to = ok && whole, max(*to, n)
		}
	}
	for k, m := range v.members() {
		switch string(k) {
		case "prompt_tokens":
			read(&prompt, m)
		case "completion_tokens":
			read(&completion, m)
		case "total_tokens":
			read(&total, m)
		case "num_cached_tokens", "prompt_cache_hit_tokens": // Mistral, DeepSeek
			read(&u.Cached, m)
		case "prompt_tokens_details":
			for k, m := range m.members() {
				switch string(k) {
				case "cached_tokens":
					read(&u.Cached, m)
				case "cache_write_tokens":
					read(&u.CacheWrite, m)
				}
			}
		case "completion_tokens_details":
			read(&u.Reasoning, m.get("reasoning_tokens"))
		}
	}
	if total < 0 && (prompt < 0 || (completion < 0 && generates)) {
		return u, false // a side is missing, and no total makes up for it
	}
	u.Input, u.Output = max(prompt, 0), max(completion, 0)
	if total >= 0 && total < u.Input+u.Output {
		return u, false
	}
	if u.Reasoning > u.Output {
		u.Output += u.Reasoning
	}
	if rest := total - u.Input - u.Output; rest > 0 && generates {
		u.Output += rest
	} else if rest > 0 {
		u.Input += rest
	}
	return u, ok && u.Check() == nil
}

// reported is the usage that a response has reported so far.
type reported struct {
	usage budget.Usage // the highest readable one
	seen  bool         // there was a readable one
	bad   bool         // the last one was not readable
}

// see takes the next figure and reports whether it counts. It replaces the one
// before, because running totals are cumulative, but never by a lower one: some
// servers end with a placeholder of zeros.
func (r *reported) see(u budget.Usage, ok bool) (counts bool) {
	r.bad = !ok
	if counts = ok && (!r.seen || u.Total() >= r.usage.Total()); counts {
		r.usage, r.seen = u, true
	}
	return counts
}

// verdict turns what was reported into what is known. Zero tokens for an empty
// answer are a figure. For an answer with content, zero tokens of it are a
// placeholder, and unknown: whatever stands beside them is not the whole bill.
func (r *reported) verdict(answered, generates bool, ref string) (u budget.Usage) {
	billed := r.usage.Output
	if !generates {
		billed = r.usage.Input
	}
	switch {
	case r.bad:
		u.Why = Unreadable
	case !r.seen:
		u.Why = NoUsage
	case answered && billed == 0:
		u.Why = ZeroUsage
	case r.usage.Total() == 0:
		u = budget.NothingUsed
	default:
		u = r.usage
	}
	u.Ref = ref
	return u
}

// generated is the size of the text that a model wrote within v, a message, a
// delta or the text of a completion: all strings but those that name things.
// Nested deeper than any known format, the JSON itself counts.
func generated(v value) int64 { return generatedTo(v, 8) }

func generatedTo(v value, depth int) (n int64) {
	switch k := v.kind(); {
	case k == '"':
		return v.size()
	case (k == '{' || k == '[') && depth == 0:
		return int64(len(v))
	}
	for e := range v.elements() {
		n += generatedTo(e, depth-1)
	}
	for k, m := range v.members() {
		switch string(k) {
		case "role", "id", "type", "object", "channel", "provider_metadata":
		default:
			n += generatedTo(m, depth-1)
		}
	}
	return n
}

// Ref returns the provider's id of a request from the headers of its response,
// empty if there is none.
func Ref(h http.Header) string {
	for _, name := range [...]string{"X-Request-Id", "Request-Id", "Apim-Request-Id"} {
		if id := word(h.Get(name)); id != "" {
			return id
		}
	}
	return ""
}

// word returns s if it is an id or a code, and nothing if it could be text: the
// book, the log and errors must not quote what a provider says.
func word(s string) string {
	if len(s) > 128 {
		return ""
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '_', c == '-', c == '.', c == ':', c == '/':
		default:
			return ""
		}
	}
	return s
}
