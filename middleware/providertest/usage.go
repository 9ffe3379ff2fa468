package providertest

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// models that GET /v1/models lists. Any other id is answered as well.
var modelIDs = []string{"gpt-3.5-turbo", "gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4.1-mini", "gpt-5", "gpt-5-mini", "gpt-5-nano",
	"o4-mini", "gpt-3.5-turbo-instruct", "text-embedding-3-small", "text-embedding-3-large"}

type modelJSON struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func models(path string) reply {
	id, one := strings.CutPrefix(path, "/v1/models/")
	list := []modelJSON{}
	for _, m := range modelIDs {
		v := modelJSON{m, "model", 1730419200, "providertest"}
		if one && m == id {
			return text(200, "application/json", string(marshal(v)))
		}
		list = append(list, v)
	}
	if path != "/v1/models" {
		return failure(&problem{status: 404, kind: "invalid_request_error", param: "model", code: "model_not_found",
			message: fmt.Sprintf("The model '%s' does not exist or you do not have access to it.", id)})
	}
	return text(200, "application/json", string(marshal(map[string]any{"object": "list", "data": list})))
}

// widths of a bucket, with the default and the largest number of them a page.
var widths = map[string]struct {
	seconds, normal, most int64
}{"1m": {60, 60, 1440}, "1h": {3600, 24, 168}, "1d": {86400, 7, 31}}

type pageJSON struct {
	Object   string       `json:"object"`
	Data     []bucketJSON `json:"data"`
	HasMore  bool         `json:"has_more"`
	NextPage *string      `json:"next_page"`
}

type bucketJSON struct {
	Object    string       `json:"object"`
	StartTime int64        `json:"start_time"`
	EndTime   int64        `json:"end_time"`
	Results   []resultJSON `json:"results"`
}

type resultJSON struct {
	Object   string  `json:"object"`
	Input    int64   `json:"input_tokens"`
	Output   int64   `json:"output_tokens"`
	Cached   int64   `json:"input_cached_tokens"`
	Uncached int64   `json:"input_uncached_tokens"`
	Requests int64   `json:"num_model_requests"`
	Model    *string `json:"model"` // null unless grouped by
	Project  *string `json:"project_id"`
	User     *string `json:"user_id"`
	Key      *string `json:"api_key_id"`
	Batch    *bool   `json:"batch"`
	Tier     *string `json:"service_tier"`
}

// report is the provider's own usage report of its own bill, as the
// organization's usage API gives it. Buckets are aligned to UTC, and empty ones
// stand there with no results.
func (p *Provider) report(name string, q url.Values) reply {
	if name != "completions" && name != "embeddings" {
		return failure(&problem{status: 404, kind: "invalid_request_error", code: "unknown_url", message: "Unknown usage report: " + name + "."})
	}
	width, ok := widths[cmp.Or(q.Get("bucket_width"), "1d")]
	if !ok {
		return failure(invalid("bucket_width", "Invalid 'bucket_width': expected one of 1m, 1h, 1d."))
	}
	number := func(name string, or int64) (int64, *problem) {
		if !q.Has(name) {
			return or, nil
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < 0 || n > 1<<40 {
			return 0, invalid(name, "Invalid '%s': expected a positive integer.", name)
		}
		return n, nil
	}
	start, bad1 := number("start_time", -1)
	until, bad2 := number("end_time", time.Now().Unix()+1)
	limit, bad3 := number("limit", width.normal)
	for _, bad := range []*problem{bad1, bad2, bad3} {
		if bad != nil {
			return failure(bad)
		}
	}
	switch {
	case start < 0:
		return failure(invalid("start_time", "Missing required parameter: 'start_time'."))
	case limit < 1 || limit > width.most:
		return failure(invalid("limit", "Invalid 'limit': expected a value from 1 to %d.", width.most))
	}
	if page := q.Get("page"); page != "" {
		n, err := strconv.ParseInt(strings.TrimPrefix(page, "page_"), 10, 64)
		if err != nil || n < start-width.seconds || n > 1<<40 {
			return failure(invalid("page", "Invalid 'page'."))
		}
		start = n
	}
	grouped := slices.Contains(slices.Concat(split(q["group_by"]), split(q["group_by[]"])), "model")

	out := pageJSON{Object: "page", Data: []bucketJSON{}}
	from := start - start%width.seconds
	for range limit {
		if from >= until {
			break
		}
		out.Data = append(out.Data, bucketJSON{"bucket", from, from + width.seconds, p.bucket(name, from, from+width.seconds, grouped)})
		from += width.seconds
	}
	if from < until {
		next := fmt.Sprintf("page_%d", from)
		out.HasMore, out.NextPage = true, &next
	}
	return text(200, "application/json", string(marshal(out)))
}

// bucket sums the bill of a report over [from, until), whole minutes.
func (p *Provider) bucket(report string, from, until int64, grouped bool) []resultJSON {
	sums := map[string]Bill{}
	p.books.mu.Lock()
	for s, u := range p.books.usage {
		if s.report == report && from <= s.minute*60 && s.minute*60 < until {
			if !grouped {
				s.model = ""
			}
			b := sums[s.model]
			b.add(u.Requests, u.PromptTokens, u.CompletionTokens)
			sums[s.model] = b
		}
	}
	p.books.mu.Unlock()
	out := []resultJSON{}
	for model, b := range sums {
		r := resultJSON{Object: "organization.usage." + report + ".result", Input: b.PromptTokens, Uncached: b.PromptTokens,
			Output: b.CompletionTokens, Requests: b.Requests}
		if grouped {
			r.Model = &model
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b resultJSON) int {
		if !grouped {
			return 0
		}
		return strings.Compare(*a.Model, *b.Model)
	})
	return out
}

func split(values []string) []string { return strings.Split(strings.Join(values, ","), ",") }
