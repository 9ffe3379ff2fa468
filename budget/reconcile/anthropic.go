package reconcile

import "github.com/tollbook/tollbook/budget"

// Anthropic, GET /v1/organizations/usage_report/messages and …/cost_report:
//
//	{"data":[{"starting_at":"2025-08-01T00:00:00Z","ending_at":"2025-08-02T00:00:00Z",
//	  "results":[{"uncached_input_tokens":1500,"cache_creation":{"ephemeral_5m_input_tokens":500,"ephemeral_1h_input_tokens":1000},
//	    "cache_read_input_tokens":200,"output_tokens":500,"model":"claude-sonnet-4-20250514", …}]}],"has_more":false,"next_page":null}
//	  "results":[{"amount":"123.45","currency":"USD", …}]                  cents
//
// and their successors …/analytics/usage and …/analytics/cost, with one item for
// each span and group:
//
//	{"data":[{"starting_at":…,"ending_at":…,"group":{"model":"claude-sonnet-4-20250514"},
//	  "usage":{"uncached_input_tokens":1500,"cache_read_input_tokens":200,"cache_creation":{…},"output_tokens":500,"requests":3, …}}], …}
//	                              …  "cost":{"amount":"123.45","list_amount":"130","currency":"USD","requests":3}}
//
// Input is the sum of what was not cached, read from the cache and written to it.

const cent = 10

func (p *page) anthropic(item object) {
	b := Bucket{Start: item.time("starting_at"), End: item.time("ending_at")}
	switch {
	case item.has("usage"):
		p.flat = true
		b.Lines = []Line{p.messages(item.child("usage"), grouping(item).model())}
	case item.has("cost"):
		p.flat = true
		b.Lines = []Line{p.cost(item.child("cost"))}
	default:
		for _, result := range item.list("results") {
			if result.has("amount") {
				b.Lines = append(b.Lines, p.cost(result))
			} else {
				b.Lines = append(b.Lines, p.messages(result, result.model()))
			}
		}
	}
	p.buckets = append(p.buckets, b)
}

// grouping is what an item is grouped by, if by anything.
func grouping(item object) object {
	if !item.has("group") {
		return object{wrong: item.wrong}
	}
	return item.child("group")
}

func (p *page) messages(o object, model string) Line {
	p.is(o, "messages", budget.TokenUnit)
	line := Line{Model: model}
	uncached := o.must("uncached_input_tokens")
	line.Cached = o.count("cache_read_input_tokens")
	switch o.members["cache_creation"].(type) {
	case map[string]any:
		written := o.child("cache_creation")
		for name := range written.members {
			if line.CacheWrite += written.count(name); line.CacheWrite > budget.MaxTokens {
				written.fail("", "its sum is above %d", int64(budget.MaxTokens))
				break
			}
		}
	default:
		line.CacheWrite = o.count("cache_creation")
	}
	line.Input = uncached + line.Cached + line.CacheWrite
	line.Output, line.Requests = o.must("output_tokens"), o.count("requests")
	return line
}

func (p *page) cost(o object) Line {
	p.is(o, "Anthropic costs", budget.CostUnit)
	dollars(o)
	return Line{Amounts: Amounts{Cost: o.money("amount", cent), Requests: o.count("requests")}}
}
