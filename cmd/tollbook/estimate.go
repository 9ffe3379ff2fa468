package main

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/middleware/meter"
)

// estimate is what a batch would cost at most, each request sent once.
type estimate struct {
	Items   int             `json:"items"`
	Tokens  int64           `json:"tokens"`
	Input   int64           `json:"input"`
	Output  int64           `json:"output"`
	Largest largestJSON     `json:"largest"` // the largest hold
	Models  []modelEstimate `json:"models"`
}

type largestJSON struct {
	CustomID string `json:"custom_id"`
	Tokens   int64  `json:"tokens"`
}

type modelEstimate struct {
	Model  string `json:"model"`
	Items  int    `json:"items"`
	Tokens int64  `json:"tokens"`
}

// estimateInput bounds every item as the guard will. A request that the guard
// would refuse is an error that names it, before any call is made.
func estimateInput(in *input, o meter.Options) (*estimate, error) {
	e := &estimate{Items: in.Len()}
	faults, hint, models := &inputError{}, "", map[string]int{}
	for i := range in.Len() {
		it, err := in.At(i)
		if err != nil {
			return nil, err
		}
		bound, err := boundOf(it, o)
		if err != nil {
			faults.add("item "+quote(it.ID), err)
			if _, ok := errors.AsType[*meter.UncappedError](err); ok {
				hint = "name a cap in the requests, or reserve one for all with --max-output"
			}
			continue
		}
		if e.Tokens > math.MaxInt64-bound.Total() {
			return nil, fmt.Errorf("the batch may cost more tokens than can be counted")
		}
		e.Input, e.Output, e.Tokens = e.Input+bound.Input, e.Output+bound.Output, e.Tokens+bound.Total()
		if bound.Total() > e.Largest.Tokens {
			e.Largest = largestJSON{it.ID, bound.Total()}
		}
		at, ok := models[it.Model]
		if !ok {
			at = len(e.Models)
			models[it.Model] = at
			e.Models = append(e.Models, modelEstimate{Model: it.Model})
		}
		e.Models[at].Items++
		e.Models[at].Tokens += bound.Total()
	}
	if faults.count > 0 {
		return nil, &exitError{Code: exitUsage, Err: faults, Hint: hint}
	}
	slices.SortFunc(e.Models, func(a, b modelEstimate) int { return strings.Compare(a.Model, b.Model) })
	return e, nil
}

// boundOf is what one attempt of an item may cost at most.
func boundOf(it item, o meter.Options) (meter.Bound, error) {
	m, err := meter.For(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: it.URL}})
	if err != nil {
		return meter.Bound{}, err
	}
	return m.Bound(meter.Request{Path: it.URL, Body: it.Body}, o)
}
