package providertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Fault is a kind of trouble a provider makes. The empty Fault is none.
type Fault string

const (
	// RateLimited is 429 rate_limit_exceeded, not billed. Retry-After comes as
	// whole seconds, as an HTTP date, as retry-after-ms, or not at all.
	RateLimited Fault = "429"
	// OutOfQuota is 429 insufficient_quota, not billed. It strikes an attempt,
	// not the account, so that a run taken up again gets on.
	OutOfQuota Fault = "quota"
	// ServerError is 500 server_error before any work, not billed.
	ServerError Fault = "500"
	// ServerErrorBilled is the same 500 after the work: billed, and nothing in
	// the answer tells it from the other.
	ServerErrorBilled Fault = "500billed"
	// Stall takes the request, bills it and never answers; the connection
	// closes when the client gives up or Options.StallFor has passed.
	Stall Fault = "stall"
	// Cut bills the whole answer and cuts the connection in mid-body. Half of
	// the streams end cleanly instead, as behind some proxies: in mid-answer,
	// without [DONE].
	Cut Fault = "cut"
	// Lost bills the whole answer and closes the connection without a byte.
	Lost Fault = "lost"
	// NoUsage is an answer without a usage figure; it is billed all the same.
	NoUsage Fault = "nousage"
	// BadUsage is an answer whose usage cannot be true: negative, far too
	// large, a fraction, a string, a total below its parts, or all zero beside
	// output. The bill is the true one.
	BadUsage Fault = "badusage"
	// ErrorBody is an error of something in between, not in OpenAI form: 502
	// with an HTML page or 500 with an empty body, neither billed, or a plain
	// text 504, which is: the provider did the work that nobody waited for.
	ErrorBody Fault = "errbody"
	// Overrun is an answer longer than the cap asked for, truly billed and
	// truly reported. Embeddings, which have no output, bill more than their
	// input has bytes.
	Overrun Fault = "overrun"
)

// kinds in the order in which they share the interval 0 to 1.
var kinds = []Fault{RateLimited, OutOfQuota, ServerError, ServerErrorBilled, Stall, Cut, Lost, NoUsage, BadUsage, ErrorBody, Overrun}

// Kinds lists all faults.
func Kinds() []Fault { return slices.Clone(kinds) }

// Faults maps a fault to its probability per request, 0 to 1. A request meets
// at most one, so the sum is at most 1. Nil means none.
type Faults map[Fault]float64

// ParseFaults reads a comma-separated list of kind=probability, such as
// "429=0.02,cut=0.01". An empty spec is none.
func ParseFaults(spec string) (Faults, error) {
	f := Faults{}
	if strings.TrimSpace(spec) == "" {
		return f, nil
	}
	for part := range strings.SplitSeq(spec, ",") {
		name, value, ok := strings.Cut(part, "=")
		kind := Fault(strings.TrimSpace(name))
		if !ok {
			return nil, fmt.Errorf("providertest: fault %q has no probability; write it as kind=0.1", strings.TrimSpace(part))
		}
		p, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("providertest: fault %q: probability %q is not a number from 0 to 1", kind, strings.TrimSpace(value))
		}
		if _, twice := f[kind]; twice {
			return nil, fmt.Errorf("providertest: fault %q is named twice", kind)
		}
		f[kind] = p
	}
	return f, f.check()
}

// String is the spec that ParseFaults reads.
func (f Faults) String() string {
	var parts []string
	for _, k := range kinds {
		if p := f[k]; p > 0 {
			parts = append(parts, string(k)+"="+strconv.FormatFloat(p, 'g', -1, 64))
		}
	}
	return strings.Join(parts, ",")
}

func (f Faults) check() error {
	sum := 0.0
	for k, p := range f {
		if !slices.Contains(kinds, k) {
			return fmt.Errorf("providertest: unknown fault %q; there are %s", k, strings.Trim(fmt.Sprint(kinds), "[]"))
		}
		if !(p >= 0 && p <= 1) { // so that NaN is refused too
			return fmt.Errorf("providertest: fault %q: probability %v is outside 0 to 1", k, p)
		}
		sum += p
	}
	if sum > 1+1e-9 { // ten times 0.1 is no sum to refuse
		return fmt.Errorf("providertest: the probabilities sum to %.4g, above 1; a request meets at most one fault", sum)
	}
	return nil
}

// draw takes exactly one number from rng, so that the rest of an answer does
// not depend on which faults are on.
func (f Faults) draw(rng *rand.Rand) Fault {
	u := rng.Float64()
	for _, k := range kinds {
		if u -= f[k]; u < 0 {
			return k
		}
	}
	return ""
}
