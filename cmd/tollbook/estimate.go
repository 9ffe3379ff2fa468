package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/tollbook/tollbook/budget/price"
	"github.com/tollbook/tollbook/middleware/meter"
)

// estimate is what a batch would cost at most, each request sent once.
type estimate struct {
	Items   int             `json:"items"`
	Tokens  int64           `json:"tokens"`
	Input   int64           `json:"input"`
	Output  int64           `json:"output"`
	Largest largestJSON     `json:"largest"` // the largest hold
	Cost    int64           `json:"cost"`    // picodollars, of the models that have a price
	Models  []modelEstimate `json:"models"`

	prices         *price.Table
	at             map[string]int // of a model in Models
	leastOutput    int64          // that an answer's cap may be lowered to; 0: it may not
	alone, dearest int64          // the most that one call needs, its cap lowered: tokens and picodollars
}

type largestJSON struct {
	CustomID string `json:"custom_id"`
	Tokens   int64  `json:"tokens"`
	Cost     int64  `json:"cost"`
}

type modelEstimate struct {
	Model  string `json:"model"`
	Items  int    `json:"items"`
	Tokens int64  `json:"tokens"`
	Cost   int64  `json:"cost"`
	Priced bool   `json:"priced"` // else no price is known
}

// estimateInput bounds every item as the guard will. A request that the guard
// would refuse is an error that names it, before any call is made. Counting
// tokens is what takes the time, so items are bounded side by side; they are
// added up in their order.
func estimateInput(in *input, o meter.Options, leastOutput int64, prices *price.Table) (*estimate, error) {
	e := &estimate{Items: in.Len(), leastOutput: leastOutput, prices: prices, at: map[string]int{}}
	faults, hint := &inputError{}, ""
	for from := 0; from < in.Len(); from += together {
		bounds := make([]itemBound, min(together, in.Len()-from))
		var group errgroup.Group
		group.SetLimit(runtime.GOMAXPROCS(0))
		for i := range bounds {
			group.Go(func() (err error) {
				bounds[i], err = boundAt(in, from+i, o)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		for i, b := range bounds {
			if b.refused != nil {
				if e, ok := errors.AsType[*meter.UncappedError](b.refused); ok {
					b.refused = fmt.Errorf("it names no output cap, and how much model %s gives at most is not known", quote(e.Model))
					hint = "name a cap in the requests, or reserve one for all with --max-output"
				}
				faults.add(in.where(from+i), b.refused)
			} else if err := e.add(b); err != nil {
				return nil, err
			}
		}
	}
	if faults.count > 0 {
		return nil, &exitError{Code: exitUsage, Err: faults, Hint: hint}
	}
	slices.SortFunc(e.Models, func(a, b modelEstimate) int { return strings.Compare(a.Model, b.Model) })
	return e, nil
}

// together is how many items are bounded before they are added up.
const together = 1024

// itemBound is what is known of an item before it is sent.
type itemBound struct {
	id, model string
	bound     meter.Bound
	refused   error
}

func boundAt(in *input, i int, o meter.Options) (itemBound, error) {
	it, err := in.At(i)
	if err != nil {
		return itemBound{}, err
	}
	bound, refused := boundOf(it, o)
	return itemBound{it.ID, it.Model, bound, refused}, nil
}

func (e *estimate) add(b itemBound) error {
	total := b.bound.Total()
	if e.Tokens > math.MaxInt64-total {
		return fmt.Errorf("the batch may cost more tokens than can be counted")
	}
	e.Input, e.Output, e.Tokens = e.Input+b.bound.Input, e.Output+b.bound.Output, e.Tokens+total
	cost, err := e.prices.Most(b.bound.Model, b.bound.Usage())
	if e.Cost > math.MaxInt64-cost {
		return fmt.Errorf("the batch may cost more money than can be counted")
	}
	e.Cost += cost
	at, ok := e.at[b.model]
	if !ok {
		at = len(e.Models)
		e.at[b.model] = at
		e.Models = append(e.Models, modelEstimate{Model: b.model, Priced: true})
	}
	m := &e.Models[at]
	m.Items, m.Tokens, m.Cost, m.Priced = m.Items+1, m.Tokens+total, m.Cost+cost, m.Priced && err == nil
	if total > e.Largest.Tokens {
		e.Largest = largestJSON{b.id, total, cost}
	}
	if e.leastOutput > 0 {
		least := b.bound.Least(e.leastOutput)
		u := b.bound.Usage()
		u.Output -= total - least
		cost, _ = e.prices.Most(b.bound.Model, u)
		total = least
	}
	e.alone, e.dearest = max(e.alone, total), max(e.dearest, cost)
	return nil
}

// unpriced returns a model without a price, if there is one.
func (e *estimate) unpriced() (model string, found bool) {
	for _, m := range e.Models {
		if !m.Priced {
			return m.Model, true
		}
	}
	return "", false
}

// boundOf is what one attempt of an item may cost at most.
func boundOf(it item, o meter.Options) (meter.Bound, error) {
	m, err := meter.For(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: it.URL}})
	if err != nil {
		return meter.Bound{}, err
	}
	return m.Bound(meter.Request{Path: it.URL, Body: it.Body}, o)
}
