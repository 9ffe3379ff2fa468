package budget_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// softFold finds in the lines of a history which soft limits were told, and what
// about these lines cannot be: a threshold told that is not reached, told twice
// of one cap, or passed over.
type softFold struct {
	thresholds []int64
	opens      int
	caps       map[capKey]softCap
	sums       map[string]journal.Change // by scope
	scopes     map[string]string         // by rid
}

type capKey struct {
	scope string
	unit  budget.Unit
}

type softCap struct{ max, told int64 }

func newSoftFold(thresholds ...int64) *softFold {
	return &softFold{thresholds: thresholds, caps: map[capKey]softCap{}, sums: map[string]journal.Change{}, scopes: map[string]string{}}
}

func (f *softFold) add(e *journal.Entry) (told []budget.SoftLimit, err error) {
	if e.Kind == journal.Open {
		f.opens++
	}
	switch later := f.opens > 1; {
	case e.Kind == journal.Limit:
		return f.limit(e, later)
	case later && (e.Kind == journal.Open || e.Carried):
	case e.Kind == journal.Open:
		f.sums[""] = e.Change
		for _, b := range e.Opening.Balances {
			f.sums[b.Scope] = b.Change
		}
	case e.RID != "":
		if e.Kind == journal.Reserve || e.Kind == journal.Carry {
			f.scopes[e.RID] = strings.Clone(e.Scope)
		}
		for at := f.scopes[e.RID]; ; at = at[:max(0, strings.LastIndexByte(at, '/'))] {
			f.sums[at], _ = f.sums[at].Plus(e.Change)
			if at == "" {
				break
			}
		}
	}
	return nil, nil
}

func (f *softFold) limit(e *journal.Entry, later bool) (told []budget.SoftLimit, err error) {
	key := capKey{strings.Clone(e.Scope), map[string]budget.Unit{"tokens": budget.TokenUnit, "cost": budget.CostUnit, "requests": budget.RequestUnit}[e.Cap.Kind]}
	was, known := f.caps[key]
	now := softCap{e.Cap.Max, e.Cap.Told}
	if f.caps[key] = now; e.Cap.Unlimited {
		delete(f.caps, key)
		return nil, nil
	}
	reached, spent := f.reached(key)
	switch {
	case e.Carried && later && was != now:
		return nil, fmt.Errorf("the limit of %+v is carried as %+v, and was %+v", key, now, was)
	case e.Carried:
	case !known || was.max != now.max:
		if want := f.highest(func(p int64) bool { return p <= was.told && p <= reached }); now.told != want {
			return nil, fmt.Errorf("the limit of %+v changes from %+v to %+v, with %d spent: told must be %d", key, was, now, spent, want)
		}
	case now.told <= was.told || now.told != reached:
		return nil, fmt.Errorf("the soft limits of %+v are told as %+v, and were %+v, with %d spent", key, now, was, spent)
	default:
		for _, p := range f.thresholds {
			if was.told < p && p <= now.told {
				told = append(told, budget.SoftLimit{Scope: key.scope, Unit: key.unit, Percent: int(p), Spent: spent, Max: now.max})
			}
		}
	}
	return told, nil
}

func (f *softFold) highest(is func(p int64) bool) (highest int64) {
	for _, p := range f.thresholds {
		if is(p) {
			highest = p
		}
	}
	return highest
}

// reached is the highest threshold that what is spent reaches.
func (f *softFold) reached(key capKey) (percent, spent int64) {
	sum := f.sums[key.scope]
	switch key.unit {
	case budget.TokenUnit:
		spent = sum.Confirmed + sum.Assumed
	case budget.CostUnit:
		spent = sum.ConfirmedCost + sum.AssumedCost
	default:
		spent = sum.Requests
	}
	limit := f.caps[key].max
	return f.highest(func(p int64) bool {
		return limit > 0 && new(big.Int).Mul(big.NewInt(spent), big.NewInt(100)).Cmp(new(big.Int).Mul(big.NewInt(p), big.NewInt(limit))) >= 0
	}), spent
}

// overdue says which threshold is reached and not told.
func (f *softFold) overdue() error {
	for key, c := range f.caps {
		if reached, spent := f.reached(key); reached > c.told {
			return fmt.Errorf("%d spent of %+v, %+v: %d %% is reached and not told", spent, key, c, reached)
		}
	}
	return nil
}

// tidings are the soft limits that callers were told of, and not compared yet.
type tidings struct {
	life  int // counts the processes
	told  []tiding
	fresh bool   // nothing was compared in this life
	seen  uint64 // Seq up to which the journal was compared
}

type tiding struct {
	budget.SoftLimit
	life int
}

func (t *tidings) clone() tidings {
	c := *t
	c.told = slices.Clone(t.told)
	return c
}

// hear is what a process is told by.
func (t *tidings) hear() budget.Option {
	t.life++
	t.fresh = true
	life := t.life
	return budget.SoftLimits(func(s budget.SoftLimit) { t.told = append(t.told, tiding{s, life}) })
}

// compare: what was told in this life is what its entries say, once each, in
// order. What an earlier life was told its entries say too; what it wrote last,
// it may not have told.
func (t *tidings) compare(history []journal.Entry) error {
	f, opened := newSoftFold(50, 80, 95), uint64(0)
	type line struct {
		seq uint64
		budget.SoftLimit
	}
	var lines []line
	for i := range history {
		e := &history[i]
		if e.Kind == journal.Open {
			opened = e.Seq
		}
		told, err := f.add(e)
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.Seq, err)
		}
		for _, s := range told {
			if e.Seq > t.seen {
				lines = append(lines, line{e.Seq, s})
			}
		}
	}
	for _, l := range lines {
		old := t.fresh && l.seq < opened
		mine := len(t.told) > 0 && t.told[0].SoftLimit == l.SoftLimit && old == (t.told[0].life < t.life)
		switch {
		case mine:
			t.told = t.told[1:]
		case !old:
			return fmt.Errorf("%+v stands in the journal and was not told", l)
		}
	}
	if len(t.told) > 0 {
		return fmt.Errorf("told, and not in the journal: %+v", t.told)
	}
	t.fresh, t.seen = false, history[len(history)-1].Seq
	return f.overdue()
}
