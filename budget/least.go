package budget

import (
	"math"

	"github.com/tollbook/tollbook/journal"
)

// A request that names a Least may be granted fewer tokens than it asks for:
// what its limits have left, and only where the whole would not fit even if
// every open hold were given back. What others hold is worth waiting for; what
// is spent does not come back. The leader works it out each time it tries the
// request, and the reserve entry holds what was granted.

func (r *Request) checkLeast() error {
	least := int64(0)
	if r.Least > 0 && r.Output > 0 {
		least = r.Tokens - r.Output + 1
	}
	if r.Least < least || r.Least > r.Tokens {
		return outside("request", "least", r.Least, least, r.Tokens)
	}
	return nil
}

// ask is what a reserve changes that is granted so many of its tokens.
func (b *Book) ask(o *op, tokens int64) journal.Change {
	cost := o.request.Cost
	if less := o.request.Tokens - tokens; less > 0 && o.tabled {
		reduced := op{request: o.request}
		reduced.request.Tokens, reduced.request.Output = tokens, max(o.request.Output-less, 0)
		if reduced.price(b.pricer); reduced.priced { // else it is not known to be cheaper
			cost = reduced.request.Cost
		}
	}
	return journal.Change{Amount: tokens, Cost: cost, Requests: 1}
}

// least is the ask of a reserve that is reduced as far as it may be.
func (b *Book) least(o *op) journal.Change {
	if o.request.Least > 0 {
		return b.ask(o, o.request.Least)
	}
	return b.ask(o, o.request.Tokens)
}

// reduced is the largest ask of a reserve for which the path of a has enough
// left; where there is not enough for the least, that.
func (b *Book) reduced(o *op, a *account) journal.Change {
	least := o.request.Least
	tokens := max(least, min(o.request.Tokens, a.left(TokenUnit)))
	if left := a.left(CostUnit); o.tabled && o.request.Cost > left {
		for least < tokens { // fewer tokens of output never cost more
			if middle := tokens - (tokens-least)/2; b.ask(o, middle).Cost <= left {
				least = middle
			} else {
				tokens = middle - 1
			}
		}
	}
	return b.ask(o, tokens)
}

// left is how much of unit u the limits on the path of a would have left if every
// hold were given back.
func (a *account) left(u Unit) int64 {
	left := int64(math.MaxInt64)
	for _, at := range a.path {
		if at.caps[u].set {
			left = min(left, at.caps[u].max-u.spent(at.sum))
		}
	}
	return left
}
