package reconcile

import (
	"strings"

	"github.com/tollbook/tollbook/budget"
)

// OpenAI, GET /v1/organization/usage/completions, …/embeddings and
// /v1/organization/costs:
//
//	{"object":"page","data":[{"object":"bucket","start_time":1730419200,"end_time":1730505600,
//	  "results":[{"object":"organization.usage.completions.result","input_tokens":1000,"input_cached_tokens":400,
//	    "input_cache_write_tokens":100,"output_tokens":500,"num_model_requests":5,"model":"gpt-4o-2024-08-06", …}]}],
//	  "has_more":false,"next_page":null}
//	                    … "results":[{"object":"organization.costs.result","amount":{"value":0.06,"currency":"usd"}, …}]
//
// A bucket has a result for each group (model, project, key, …). Cached and
// cache-written tokens are part of input_tokens.

const dollar = 12 // powers of ten of a picodollar

func (p *page) openAI(item object) {
	b := Bucket{Start: item.time("start_time"), End: item.time("end_time")}
	for _, result := range item.list("results") {
		line := Line{Model: result.model()}
		switch kind := result.text("object"); kind {
		case "organization.usage.completions.result", "organization.usage.embeddings.result":
			source := strings.Split(kind, ".")[2]
			p.is(result, source, budget.TokenUnit)
			line.Input, line.Cached, line.CacheWrite = result.must("input_tokens"), result.count("input_cached_tokens"), result.count("input_cache_write_tokens")
			if line.Output = result.count("output_tokens"); source == "completions" {
				line.Output = result.must("output_tokens")
			}
			line.Requests = result.count("num_model_requests")
		case "organization.costs.result":
			p.is(result, "OpenAI costs", budget.CostUnit)
			amount := result.child("amount")
			line = Line{Amounts: Amounts{Cost: amount.money("value", dollar)}}
			dollars(amount)
		case "organization.usage.moderations.result":
			result.fail("object", "moderations are not billed and stand in no book; leave this report out")
		default:
			result.fail("object", "%s counts no tokens that a book holds; usage reports of completions and embeddings do, and costs are compared in money", short(kind))
		}
		b.Lines = append(b.Lines, line)
	}
	p.buckets = append(p.buckets, b)
}

// dollars refuses other currencies.
func dollars(o object) {
	if currency := o.text("currency"); !strings.EqualFold(currency, "usd") {
		o.fail("currency", "it is %s; dollars can be compared", short(currency))
	}
}
