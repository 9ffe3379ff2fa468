package price

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// liteLLM is what is read of a model in LiteLLM's table. Prices are in dollars
// per token; null is none. A few fields hold text in its sample entry.
type liteLLM struct {
	Provider  string      `json:"litellm_provider"`
	Window    any         `json:"max_input_tokens"`
	In        json.Number `json:"input_cost_per_token"`
	Cached    json.Number `json:"cache_read_input_token_cost"`
	Write     json.Number `json:"cache_creation_input_token_cost"`
	WriteLong json.Number `json:"cache_creation_input_token_cost_above_1hr"`
	Out       json.Number `json:"output_cost_per_token"`
	Reasoning json.Number `json:"output_cost_per_reasoning_token"`
}

// largeInput finds the prices of long inputs: input_cost_per_token_above_200k_tokens.
var largeInput = regexp.MustCompile(`^(.+)_above_(\d+)k_tokens$`)

// parseLiteLLM reads {"model": {…}, "provider/model": {…}}. Models whose tokens
// have no price are left out, so that they are unknown, not free.
func parseLiteLLM(fields map[string]json.RawMessage) (*Table, error) {
	byProvider := map[string]*provider{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name == "sample_spec" {
			continue
		}
		var l liteLLM
		if err := json.Unmarshal(fields[name], &l); err != nil {
			return nil, fmt.Errorf("model %q: %w", name, err)
		}
		if l.In == "" && l.Out == "" {
			continue
		}
		m := model{id: name, match: match{any: []match{{op: '=', text: name}}}}
		if l.Window != nil {
			if window, ok := l.Window.(float64); ok && window > 0 && window < 1<<53 {
				m.window = int64(window)
			}
		}
		if rest, ok := strings.CutPrefix(name, l.Provider+"/"); ok && rest != "" {
			m.match.any = append(m.match.any, match{op: '=', text: rest})
		}
		r, err := l.rates()
		if err == nil {
			r.tiers, err = largeInputs(fields[name], r)
		}
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", name, err)
		}
		m.prices = []dated{{rates: r}}
		p := byProvider[l.Provider]
		if p == nil {
			p = &provider{id: l.Provider}
			byProvider[l.Provider] = p
		}
		p.models = append(p.models, m)
	}
	if len(byProvider) == 0 {
		return nil, errors.New("it prices no model")
	}
	t := &Table{}
	for _, id := range slices.Sorted(maps.Keys(byProvider)) {
		t.providers = append(t.providers, *byProvider[id])
	}
	return t, nil
}

func (l *liteLLM) rates() (r rates, err error) {
	for _, f := range [...]struct {
		to   *int64
		from json.Number
	}{{&r.in, l.In}, {&r.cached, l.Cached}, {&r.write, l.Write}, {&r.writeLong, l.WriteLong}, {&r.out, l.Out}, {&r.reasoning, l.Reasoning}} {
		*f.to = none
		if f.from != "" {
			if *f.to, err = picodollars(f.from.String(), 18); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// largeInputs reads the prices that end in _above_Nk_tokens; what has none costs
// what it costs in small.
func largeInputs(data json.RawMessage, small rates) (tiers []tier, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found := largeInput.FindStringSubmatch(name)
		if found == nil || string(all[name]) == "null" {
			continue
		}
		thousands, err := strconv.ParseInt(found[2], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		i := slices.IndexFunc(tiers, func(t tier) bool { return t.above == thousands*1000 })
		if i < 0 {
			i = len(tiers)
			tiers = append(tiers, tier{above: thousands * 1000, rates: small})
			tiers[i].tiers = nil
		}
		r := &tiers[i].rates
		to, known := map[string]*int64{"input_cost_per_token": &r.in, "output_cost_per_token": &r.out, "cache_read_input_token_cost": &r.cached,
			"cache_creation_input_token_cost": &r.write, "cache_creation_input_token_cost_above_1hr": &r.writeLong, "output_cost_per_reasoning_token": &r.reasoning}[found[1]]
		if !known {
			continue
		}
		if *to, err = picodollars(string(all[name]), 18); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.SortFunc(tiers, func(a, b tier) int { return int(a.above - b.above) })
	return tiers, nil
}
