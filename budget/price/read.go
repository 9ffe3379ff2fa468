package price

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strings"
	"time"
)

// maxTable bounds a table that is read: the largest public one has 2 MB.
const maxTable = 64 << 20

// ReadFile is [Read] of a file.
func ReadFile(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("price: %w", err)
	}
	defer f.Close()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return t, nil
}

// Read reads a price table of one's own, in JSON, in one of three forms:
//
//   - that of the embedded table, {"date": "2026-11-01", "providers": […]}, whose
//     providers have the form of pydantic/genai-prices; prices are in US dollars
//     per million tokens
//   - the list of providers alone, as genai-prices publishes it (data.json)
//   - LiteLLM's: {"gpt-4o": {"input_cost_per_token": 2.5e-06, …}, …}, in US dollars
//     per token
//
// Prices are read as decimals, never as binary fractions.
func Read(r io.Reader) (*Table, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxTable+1))
	if err != nil {
		return nil, fmt.Errorf("price: reading a table: %w", err)
	}
	if len(data) > maxTable {
		return nil, fmt.Errorf("price: a table of more than %d bytes", maxTable)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("price: reading a table: %w", err)
	}
	return t, nil
}

// document is the embedded form.
type document struct {
	Date      string         `json:"date"`
	Source    string         `json:"source"`
	Providers []listProvider `json:"providers"`
}

type listProvider struct {
	ID     string      `json:"id"`
	Also   []string    `json:"fallback_model_providers"`
	Models []listModel `json:"models"`
}

type listModel struct {
	ID     string     `json:"id"`
	Match  match      `json:"match"`
	Window int64      `json:"context_window"`
	Prices listPrices `json:"prices"`
}

// listPrices is one set of prices, or a list of them with constraints.
type listPrices []dated

type constrained struct {
	Constraint *struct {
		StartDate string `json:"start_date"`
		StartTime string `json:"start_time"`
		EndTime   string `json:"end_time"`
	} `json:"constraint"`
	Prices listRates `json:"prices"`
}

// listRates are prices for a million tokens; other things that are sold (hours,
// searches, pictures) are no tokens, and stay out.
type listRates struct {
	In        usd `json:"input_mtok"`
	Cached    usd `json:"cache_read_mtok"`
	Write     usd `json:"cache_write_mtok"`
	WriteLong usd `json:"cache_write_1h_mtok"`
	Out       usd `json:"output_mtok"`
	Reasoning usd `json:"output_reasoning_mtok"`
}

// usd is a price in dollars for a million tokens: a number, or one that grows
// with the size of the input.
type usd struct {
	given bool
	base  int64
	tiers []usdTier
}

type usdTier struct {
	Start int64       `json:"start"`
	Price json.Number `json:"price"`
	rate  int64
}

func parse(data []byte) (*Table, error) {
	if !json.Valid(data) {
		return nil, errors.New("it is not JSON")
	}
	data = bytes.TrimSpace(data)
	if data[0] == '[' {
		var d document
		if err := json.Unmarshal(data, &d.Providers); err != nil {
			return nil, err
		}
		return d.table()
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, errors.New("it is neither an object nor a list")
	}
	if _, ours := fields["providers"]; !ours {
		return parseLiteLLM(fields)
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, err
	}
	return d.table()
}

func (d *document) table() (*Table, error) {
	t := &Table{date: d.Date, source: d.Source}
	if d.Date != "" {
		if _, err := time.Parse(time.DateOnly, d.Date); err != nil {
			return nil, fmt.Errorf("its date %q is none like 2026-11-01", d.Date)
		}
	}
	priced := 0
	for _, lp := range d.Providers {
		if lp.ID == "" || t.provider(lp.ID) != nil {
			return nil, fmt.Errorf("a provider without an id of its own: %q", lp.ID)
		}
		p := provider{id: lp.ID, also: lp.Also}
		for _, lm := range lp.Models {
			m := model{id: lm.ID, window: lm.Window, match: lm.Match, prices: lm.Prices}
			if lm.ID == "" || lm.Window < 0 || len(lm.Prices) == 0 {
				return nil, fmt.Errorf("provider %q: model %q needs an id, prices, and no window below zero", lp.ID, lm.ID)
			}
			if m.match.op == 0 && m.match.any == nil && m.match.all == nil && m.match.re == nil {
				m.match = match{op: '=', text: lm.ID}
			}
			p.models = append(p.models, m)
			priced++
		}
		t.providers = append(t.providers, p)
	}
	if priced == 0 {
		return nil, errors.New("it prices no model")
	}
	return t, nil
}

func (l *listPrices) UnmarshalJSON(data []byte) error {
	if data[0] != '[' {
		var r listRates
		if err := json.Unmarshal(data, &r); err != nil {
			return err
		}
		rates, err := r.rates()
		*l = listPrices{{rates: rates}}
		return err
	}
	var list []constrained
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for _, c := range list {
		rates, err := c.Prices.rates()
		if err != nil {
			return err
		}
		d := dated{rates: rates}
		if c.Constraint != nil {
			d.from, d.hours = c.Constraint.StartDate, c.Constraint.StartTime != "" || c.Constraint.EndTime != ""
			if _, err := time.Parse(time.DateOnly, d.from); err != nil && !d.hours {
				return fmt.Errorf("a price from %q on; a day like 2026-11-01 is needed", d.from)
			}
		}
		*l = append(*l, d)
	}
	return nil
}

// rates puts together what is listed by kind: above each size one set.
func (l *listRates) rates() (rates, error) {
	kinds := [...]*usd{&l.In, &l.Cached, &l.Write, &l.WriteLong, &l.Out, &l.Reasoning}
	var sizes []int64
	for _, k := range kinds {
		for _, t := range k.tiers {
			sizes = append(sizes, t.Start)
		}
	}
	slices.Sort(sizes)
	at := func(size int64) rates {
		var figures [len(kinds)]int64
		for i, k := range kinds {
			figures[i] = k.above(size)
		}
		return rates{in: figures[0], cached: figures[1], write: figures[2], writeLong: figures[3], out: figures[4], reasoning: figures[5]}
	}
	r := at(-1)
	for _, size := range slices.Compact(sizes) {
		if size < 0 {
			return r, fmt.Errorf("a price above %d tokens", size)
		}
		r.tiers = append(r.tiers, tier{above: size, rates: at(size)})
	}
	return r, nil
}

// above is the rate of an input that is longer than size.
func (u *usd) above(size int64) int64 {
	if !u.given {
		return none
	}
	rate, start := u.base, int64(-1)
	for _, t := range u.tiers {
		if t.Start <= size && t.Start > start {
			rate, start = t.rate, t.Start
		}
	}
	return rate
}

func (u *usd) UnmarshalJSON(data []byte) (err error) {
	if string(data) == "null" {
		return nil
	}
	u.given = true
	if data[0] != '{' {
		u.base, err = picodollars(string(data), 12)
		return err
	}
	var tiered struct {
		Base  json.Number `json:"base"`
		Tiers []usdTier   `json:"tiers"`
	}
	if err := json.Unmarshal(data, &tiered); err != nil {
		return err
	}
	if u.base, err = picodollars(tiered.Base.String(), 12); err != nil {
		return err
	}
	for i := range tiered.Tiers {
		t := &tiered.Tiers[i]
		if t.rate, err = picodollars(t.Price.String(), 12); err != nil {
			return err
		}
	}
	u.tiers = tiered.Tiers
	return nil
}

// picodollars reads a decimal number of dollars and returns it times 10^zeros,
// rounded up.
func picodollars(dollars string, zeros int64) (int64, error) {
	if len(dollars) > 40 || strings.ContainsAny(dollars, "/xXpP_") {
		return 0, fmt.Errorf("price %.40q is not a decimal number", dollars)
	}
	if i := strings.IndexAny(dollars, "eE"); i >= 0 && len(dollars)-i > 4 { // a large exponent would fill the memory
		return 0, fmt.Errorf("price %q is no price", dollars)
	}
	r, ok := new(big.Rat).SetString(dollars)
	if !ok || r.Sign() < 0 {
		return 0, fmt.Errorf("price %q is not a decimal number of dollars, zero or more", dollars)
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(zeros), nil)))
	q, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() || q.Int64() > maxRate {
		return 0, fmt.Errorf("price %q is above %d picodollars per million tokens", dollars, int64(maxRate))
	}
	return q.Int64(), nil
}
