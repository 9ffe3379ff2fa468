// Package price knows what the models of the common providers cost: a dated
// table, embedded, that implements [budget.Pricer].
//
//	book, err := budget.Open(ctx, "run1.book", budget.USD("5.00"), budget.Prices(price.Default()))
//
// All arithmetic is in integer picodollars (1 USD = 10^12), rounded up once per
// usage. A model that the table does not know is [budget.ErrNoPrice], never
// free. A name is looked up at every provider, and one like "provider/model" at
// that provider too. Where several list it, or a price depends on the hour of
// the day, the dearest counts: who answers is not known, and a discount is not
// assumed.
package price

import (
	_ "embed"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tollbook/tollbook/budget"
)

//go:generate go run generate.go

//go:embed prices.json
var embedded []byte

// Default returns the embedded table; its Date and Source tell its age and
// where its figures are from.
var Default = sync.OnceValue(func() *Table {
	t, err := parse(embedded)
	if err != nil {
		panic("price: the embedded table: " + err.Error())
	}
	return t
})

// Table is a price table. It does not change and is safe for concurrent use.
// The zero Table knows no model.
type Table struct {
	date, source string
	providers    []provider
	base         *Table // asked where this one does not know a model
	fallback     *Rates // and where no table does
	now          func() time.Time
}

// Rates are prices in picodollars per million tokens: 1 USD per million tokens
// is 10^12.
type Rates struct{ Input, Output int64 }

// Date is the day of the table's figures ("2026-09-23"), empty if it names none.
func (t *Table) Date() string { return t.date }

// Source tells where the figures are from, and under which licence.
func (t *Table) Source() string { return t.source }

// Table names the table for the entries that are priced by it: its date, or
// both dates of a table over another.
func (t *Table) Table() string {
	name := t.date
	if name == "" {
		name = "undated"
	}
	if t.base != nil {
		name += " over " + t.base.Table()
	}
	if len(name) > 64 {
		name = name[:64]
	}
	return name
}

// Over returns t with base behind it: a model that t does not know is looked up
// there.
func (t *Table) Over(base *Table) *Table {
	over := *t
	over.base = base
	if t.base != nil {
		over.base = t.base.Over(base)
	}
	return &over
}

// WithFallback returns t with a price for every model that it does not know.
func (t *Table) WithFallback(r Rates) (*Table, error) {
	if r.Input < 0 || r.Output < 0 || r.Input > maxRate || r.Output > maxRate {
		return nil, fmt.Errorf("price: a fallback of %d and %d picodollars per million tokens is outside 0 to %d", r.Input, r.Output, int64(maxRate))
	}
	with := *t
	with.fallback = &r
	return &with, nil
}

// Clock returns t with another clock than [time.Now]: prices change at dates.
func (t *Table) Clock(now func() time.Time) *Table {
	with := *t
	with.now = now
	return &with
}

// Cost is what usage of a model costs, in picodollars, rounded up, at the rates
// for text of the provider's standard tier: tokens of sound and pictures, which
// some models sell dearer, and priority tiers are not told apart. Tokens of a
// kind that has no price of its own cost what their kind costs: cached and
// written ones as input, reasoning as output. Usage does not tell how long
// written ones are kept: they count as written for the shortest time.
func (t *Table) Cost(model string, u budget.Usage) (int64, error) {
	if err := u.Check(); err != nil {
		return 0, err
	}
	return t.dearest(model, func(r *rates) (sum, bool) { return r.cost(u) })
}

// Most is the most that so many tokens of input and output can cost, however
// the provider counts them: as cached, written to the cache for the longest
// time, or reasoning.
func (t *Table) Most(model string, u budget.Usage) (int64, error) {
	if err := u.Check(); err != nil {
		return 0, err
	}
	return t.dearest(model, func(r *rates) (sum, bool) { return r.most(u) })
}

// ContextWindow is how many tokens a model can read and write at most, 0 if that
// is not known.
func (t *Table) ContextWindow(model string) (tokens int64) {
	for _, m := range t.models(model) {
		tokens = max(tokens, m.window)
	}
	return tokens
}

// dearest returns the largest cost among the prices that may apply.
func (t *Table) dearest(model string, cost func(*rates) (sum, bool)) (int64, error) {
	now := time.Now
	if t.now != nil {
		now = t.now
	}
	day := now().UTC().Format(time.DateOnly)
	var most sum
	priced := false
	for _, m := range t.models(model) {
		for r := range m.at(day) {
			if s, ok := cost(r); ok {
				priced = true
				most = most.larger(s)
			}
		}
	}
	if f := t.fallback; f != nil && !priced {
		most, priced = cost(&rates{in: f.Input, out: f.Output, cached: none, write: none, writeLong: none, reasoning: none})
	}
	if !priced {
		return 0, fmt.Errorf("%w: model %q is not in the price table of %s, or not for such tokens; give a table that has it, or a fallback", budget.ErrNoPrice, model, t.Table())
	}
	picodollars, ok := most.perMillion()
	if !ok {
		return 0, fmt.Errorf("price: model %q: the cost is above %d picodollars", model, int64(budget.MaxCost))
	}
	return picodollars, nil
}

// models returns what a name may stand for.
func (t *Table) models(name string) []*model {
	for at := t; at != nil; at = at.base {
		if found := at.own(name); len(found) > 0 {
			return found
		}
	}
	return nil
}

// own returns what a name stands for at each provider that lists it, and if it
// begins with a provider's id, the rest at that one.
func (t *Table) own(name string) (found []*model) {
	if id, rest, ok := strings.Cut(name, "/"); ok {
		if p := t.provider(id); p != nil {
			found = t.in(p, rest)
		}
	}
	for i := range t.providers {
		if m := t.providers[i].find(name); m != nil {
			found = append(found, m)
		}
	}
	return found
}

// in looks a name up at one provider, and at those whose models it also serves.
func (t *Table) in(p *provider, name string) []*model {
	if m := p.find(name); m != nil {
		return []*model{m}
	}
	for _, id := range p.also {
		if other := t.provider(id); other != nil {
			if m := other.find(name); m != nil {
				return []*model{m}
			}
		}
	}
	return nil
}

func (t *Table) provider(id string) *provider {
	i := slices.IndexFunc(t.providers, func(p provider) bool { return p.id == id })
	if i < 0 {
		return nil
	}
	return &t.providers[i]
}

// maxRate bounds a price, at about 4.6 million dollars per million tokens.
const maxRate = 1 << 62

// none is the rate of what has no price of its own.
const none = -1

// rates are prices in picodollars per million tokens, none where not given.
type rates struct {
	in, cached, write, writeLong, out, reasoning int64
	tiers                                        []tier // by rising size
}

// tier is what all tokens of a call cost whose input is longer than above.
type tier struct {
	above int64
	rates
}

// of returns the rates for an input of that size.
func (r *rates) of(input int64) *rates {
	at := r
	for i := range r.tiers {
		if input > r.tiers[i].above {
			at = &r.tiers[i].rates
		}
	}
	return at
}

func (r *rates) cost(u budget.Usage) (s sum, ok bool) {
	r = r.of(u.Input)
	ok = u.Units == budget.Units{} && s.add(u.Input-u.Cached-u.CacheWrite, r.in) &&
		s.add(u.Cached, or(r.cached, r.in)) && s.add(u.CacheWrite, or(r.write, r.in)) &&
		s.add(u.Output-u.Reasoning, r.out) && s.add(u.Reasoning, or(r.reasoning, r.out))
	return s, ok
}

func (r *rates) most(u budget.Usage) (most sum, ok bool) {
	if u.Units != (budget.Units{}) {
		return most, false // nothing here is sold by the piece
	}
	try := func(r *rates) {
		var s sum
		if s.add(u.Input, max(r.in, r.cached, r.write, r.writeLong)) && s.add(u.Output, max(r.out, r.reasoning)) {
			most, ok = most.larger(s), true
		}
	}
	try(r)
	for i := range r.tiers {
		if u.Input > r.tiers[i].above { // a longer input is mostly, not surely, the dearer one
			try(&r.tiers[i].rates)
		}
	}
	return most, ok
}

func or(rate, other int64) int64 {
	if rate == none {
		return other
	}
	return rate
}

// sum is tokens times rates, 128 bits wide: 2^53 tokens at 2^62 picodollars.
type sum struct{ high, low uint64 }

// add reports whether n tokens have a price; none at all cost nothing.
func (s *sum) add(n, rate int64) bool {
	if n == 0 {
		return true
	}
	if rate < 0 {
		return false
	}
	high, low := bits.Mul64(uint64(n), uint64(rate))
	var carry uint64
	s.low, carry = bits.Add64(s.low, low, 0)
	s.high, _ = bits.Add64(s.high, high, carry) // five products of 115 bits at most
	return true
}

func (s sum) larger(o sum) sum {
	if o.high > s.high || o.high == s.high && o.low > s.low {
		return o
	}
	return s
}

// perMillion divides by a million, rounding up. It is false above what a cost
// may be.
func (s sum) perMillion() (int64, bool) {
	if s.high >= 1_000_000 {
		return 0, false // the quotient has more than 64 bits
	}
	q, rest := bits.Div64(s.high, s.low, 1_000_000)
	if rest > 0 && q < budget.MaxCost {
		q++
	}
	return int64(q), q <= budget.MaxCost
}
