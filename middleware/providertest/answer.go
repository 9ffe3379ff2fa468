package providertest

import (
	"math/rand/v2"
	"strings"
)

// answer is what the model said, before it takes a wire form.
type answer struct {
	choices    []choice
	completion int64 // billed for output: words, reasoning, and choices not given back
	reasoning  int64
}

type choice struct {
	words     []string // each one token of the bill
	reasoning int64    // tokens billed and not shown
	finish    string
	call      bool // the words are the arguments of a function call
}

// think draws the answer to c: up to longest tokens a choice, within the cap
// unless overrun.
func think(c *call, rng *rand.Rand, longest int, overrun bool) answer {
	var a answer
	for i := range c.generated {
		ch := speak(c, rng, longest)
		if overrun {
			ch.overrun(c.limit, 1+rng.Int64N(int64(longest)))
		}
		a.completion += int64(len(ch.words)) + ch.reasoning
		a.reasoning += ch.reasoning
		if i < c.choices {
			a.choices = append(a.choices, ch)
		}
	}
	return a
}

func speak(c *call, rng *rand.Rand, longest int) choice {
	n := 1 + rng.Int64N(int64(longest))
	calls := c.function != "" && rng.IntN(2) == 0
	ch := choice{finish: "stop"}
	if reasons(c.model) {
		ch.reasoning = n / 3
	}
	if c.limit > 0 && n > c.limit {
		n = c.limit
		ch.reasoning = min(ch.reasoning, n) // all of it, as it happens with a small cap
		ch.finish = "length"
	} else if calls {
		ch.call, ch.finish = true, "tool_calls"
	}
	for range n - ch.reasoning {
		ch.words = append(ch.words, vocabulary[rng.IntN(len(vocabulary))])
	}
	return ch
}

// overrun lifts the choice over its cap by more tokens. They count as
// reasoning: a bill can be long without a text to match.
func (ch *choice) overrun(limit, more int64) {
	ch.reasoning += max(limit-int64(len(ch.words))-ch.reasoning, 0) + more
	if ch.finish == "length" {
		ch.finish = "stop"
	}
}

// reasons tells the families whose output is partly hidden.
func reasons(model string) bool {
	for _, family := range []string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
		if strings.HasPrefix(model, family) {
			return true
		}
	}
	return false
}

var vocabulary = strings.Fields(`
	a about after again all also and answer any are as ask at be because before book but by call can
	cap change clear close count day does each early end even every few find first for free from give
	good hand have here hold how if in is it just keep know large last late learn less line little
	long look make many may mean more most much must name need never new next no not note now number of
	often on once one only open or other our out over own page part plain point read reason right same
	say second see set short side small so some start state still such take than that the then there
	they thing this time to token total true turn two under until up use very wait was way we well what
	when where which while who why will with word work would write year yes you`)
