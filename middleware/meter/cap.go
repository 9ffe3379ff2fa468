package meter

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/budget"
)

// The output cap of a request, written into its body: lowered where the request
// names one, put where one belongs if it names none. All else stays byte for byte.

// capping is what a bound knows of the cap of one answer. Its zero value is that
// of a request that takes none.
type capping struct {
	cap   int64  // tokens, as the request names it or as it was assumed
	least int64  // below it the request would be refused, or cost more again
	most  int64  // what the model is known to take as a cap; 0: not known
	write bool   // the request names no cap, and may have this one
	spots []edit // where it stands or is to stand; their text is a format
}

// edit replaces a part of a body.
type edit struct {
	at, size int
	text     string
	named    int64 // the cap that stands there; 0: none
}

// Least is the total of b when the output of each choice is capped at so many
// tokens, or at the fewest that the request can do with, a budget for thinking
// among it. It is b.Total where a cap is not to be written, or is that low already.
func (b Bound) Least(output int64) int64 {
	if len(b.capping.spots) == 0 {
		return b.Total()
	}
	return b.Total() - b.Choices*max(0, b.capping.cap-max(output, b.capping.least, 1))
}

// Within returns the bound of the same request with its output capped so that
// the total is at most that many tokens, which must not be below Least(1), and
// with the bodies to send: body is the one that b bounds. A cap that was assumed,
// because the request names none, is written there even if it is not lowered; so
// a bound that was a guess holds. Where neither is to be done, b comes back.
func (b Bound) Within(body []byte, tokens int64) Bound {
	c := b.capping
	if len(c.spots) == 0 || tokens >= b.Total() && !c.write {
		return b
	}
	choices := max(b.Choices, 1)
	n := c.cap - (max(0, b.Total()-tokens)+choices-1)/choices
	if c.write && c.most > 0 {
		n = min(n, c.most)
	}
	n = max(n, 1)
	var edits []edit
	for _, e := range c.spots {
		if e.named == 0 || e.named > n {
			e.text = fmt.Sprintf(e.text, n)
			edits = append(edits, e)
		}
	}
	b.Output -= b.Choices * (c.cap - n)
	b.Body, b.capping = splice(body, edits...), capping{}
	if b.usage != nil {
		b.WithUsage = splice(body, append(edits, *b.usage)...)
	}
	return b
}

// splice returns a copy of body with edits made.
func splice(body []byte, edits ...edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.at - b.at })
	size := len(body)
	for _, e := range edits {
		size += len(e.text) - e.size
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		out = append(append(out, body[from:e.at]...), e.text...)
		from = e.at + e.size
	}
	return append(out, body[from:]...)
}

// instead is the edit that puts text in place of part, a subslice of body.
func instead(body, part []byte, text string) edit {
	// A subslice ends where its array ends, so the capacities tell where it begins.
	return edit{at: cap(body) - cap(part), size: len(part), text: text}
}

// member is the edit that adds a member to an object, which is a part of body or
// all of it, behind the others.
func member(body, object []byte, text string) edit {
	end := bytes.LastIndexByte(object, '}')
	if before := bytes.TrimRight(object[:end], " \t\r\n"); before[len(before)-1] != '{' {
		text = "," + text
	}
	return instead(body, object[end:end], text)
}

// place is the edit that puts a cap where v stands in an object, a null or a zero,
// or where a member of that name belongs.
func place(body, object []byte, v value, name string) edit {
	if len(v) > 0 {
		return instead(body, v, "%d")
	}
	return member(body, object, `"`+name+`":%d`)
}

// assumed is the cap that is reserved for a request that names none; it is not known
// where nobody says.
func assumed(model string, o Options) (c capping, known bool) {
	most, known := maxOutput(model)
	c = capping{cap: most, most: most, write: true}
	if o.DefaultOutput > 0 {
		c.cap, known = min(o.DefaultOutput, budget.MaxTokens), true
	}
	return c, known
}

// name puts a named cap, of which there may be several, among those to be lowered.
func (c *capping) name(body []byte, v value, n int64) {
	e := instead(body, v, "%d")
	e.named = n
	c.spots = append(c.spots, e)
	c.cap = max(c.cap, n)
}

// think keeps a cap where a budget for thinking stays within it: below, thinking
// would count in full, or the request be refused. It returns what both may cost.
func (c *capping) think(thoughts, above int64) int64 {
	if thoughts > c.cap {
		return plus(c.cap, thoughts)
	}
	c.least = min(thoughts+above, c.cap)
	return c.cap
}

// reasons reports whether one of these models is a reasoning one of OpenAI's,
// which refuse max_tokens; older servers know nothing else.
func reasons(models ...string) bool {
	for _, model := range models {
		name := baseModel(model[strings.LastIndexByte(model, '/')+1:])
		for _, family := range [...]string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
			if strings.HasPrefix(name, family) {
				return true
			}
		}
	}
	return false
}
