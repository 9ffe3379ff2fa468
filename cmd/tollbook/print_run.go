package main

// What run prints when it is over: a summary for people on stderr, and with
// --json the same on stdout.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
)

// runJSON is what run --json prints.
type runJSON struct {
	bookJSON
	Items    int        `json:"items"`
	Done     int        `json:"done"`
	Failed   int        `json:"failed"`
	Dead     int        `json:"dead"`
	Pending  int        `json:"pending"`
	Sent     int64      `json:"sent"`     // items of which an attempt left, in this run
	Requests int64      `json:"requests"` // attempts that left, in this run
	State    string     `json:"state"`    // done, paused, interrupted; failed with exit code 1
	Reason   string     `json:"reason"`   // of a pause: budget, quota, provider
	RetryAt  *time.Time `json:"retry_at"`
	Overruns int64      `json:"overruns"`
	Error    string     `json:"error,omitempty"`
}

// conclusion prints how a run ended and returns the error to exit with.
func (u *ui) conclusion(c *conclusion, o *runOptions) error {
	u.summary(c, o)
	if o.asJSON {
		v := runJSON{bookJSON: toBookJSON(c.Report), Items: c.Counts.Items, Done: c.Counts.Done, Failed: c.Counts.Failed, Dead: c.Counts.Dead,
			Pending: c.Counts.Pending, Sent: c.Sent, Requests: c.Requests, State: c.State, Reason: c.Reason, Overruns: c.Report.Overruns}
		if !c.RetryAt.IsZero() {
			v.RetryAt = &c.RetryAt
		}
		if c.State == "failed" {
			v.Error = c.Err.Error()
		}
		u.data(v)
	}
	if c.code == exitDone {
		return nil
	}
	return &exitError{Code: c.code} // all is said
}

// summary tells people how a run ended.
func (u *ui) summary(c *conclusion, o *runOptions) {
	n, r := c.Counts, c.Report
	for _, repair := range c.Repairs {
		u.say("repaired %s: %s", repair.Path, repair.What)
	}
	u.mended(r)
	if n := len(r.Orphans); n > 0 {
		what := map[budget.OrphanPolicy]string{
			budget.OrphanAssume: "charged the hold because nobody knows the bill",
			budget.OrphanKeep:   "left open at the hold, as --orphans keep says",
			budget.OrphanRefund: "given back, as --orphans refund says, though they may be on the bill",
		}[r.Orphans[0].Policy]
		u.say("in flight when an earlier run ended, and %s: %s", what, count(int64(n), "call"))
	}
	if n.Items == 0 { // it failed before it looked at any
		u.say("%s", c.headline())
		return
	}
	u.say("%s: %s", c.headline(), countsText(c))
	u.say("sent %s in %s; the book stands at %s", count(c.Sent, "item"), count(c.Requests, "request"), balanceText(r.Balance))
	for _, l := range r.Limits {
		u.say("limit %s", limitText(l))
	}
	if r.Overruns > 0 {
		u.say("overrun: %s used %s more than was held", count(r.Overruns, "call"), count(r.OverrunTokens, "token"))
	}
	if len(r.Unknown) > 0 {
		u.say("charged what they held, because the bill is not known: %s", reasonsText(r.Unknown))
	}
	u.say("answers are in %s, books in %s", o.out, o.state)
	if hint := c.hint(o); hint != "" {
		u.hint("%s", hint)
	}
}

// headline is how the run ended, in a few words.
func (c *conclusion) headline() string {
	switch {
	case c.State == "failed":
		return "failed: " + c.Err.Error()
	case c.State == "interrupted":
		return "interrupted"
	case c.Reason == "budget":
		return "paused: the budget is used up"
	case errors.Is(c.Err, errLimited):
		return "paused: " + errLimited.Error()
	case c.Reason == "quota":
		return "paused: the provider's quota is used up"
	case errors.Is(c.Err, errRefused):
		return "paused: " + c.Err.Error()
	case c.Reason == "provider":
		return "paused: the provider is in trouble"
	}
	return "done"
}

// countsText says what became of the items.
func countsText(c *conclusion) string {
	n := c.Counts
	parts := []string{fmt.Sprintf("%d of %s answered", n.Done, count(int64(n.Items), "item"))}
	if n.Pending > 0 {
		parts = append(parts, fmt.Sprintf("%d to go", n.Pending))
	}
	return strings.Join(append(parts, lossesText(n)...), ", ")
}

// lossesText says how many items have ended without an answer.
func lossesText(n checkpoint.Counts) (parts []string) {
	if n.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n.Failed))
	}
	if n.Dead > 0 {
		parts = append(parts, fmt.Sprintf("%d dead", n.Dead))
	}
	return parts
}

// reasonsText lists reasons with their counts, the most frequent first.
func reasonsText(reasons map[string]int64) string {
	words := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b)) })
	for i, w := range words {
		words[i] = fmt.Sprintf("%d %s", reasons[w], w)
	}
	return strings.Join(words, ", ")
}

// hint says what to do next; empty if there is nothing to do.
func (c *conclusion) hint(o *runOptions) string {
	again := "run the same command again to go on"
	switch {
	case c.State == "failed" && c.Report.Broken != nil:
		return fmt.Sprintf("left open in the book, at the hold: %s; items that have their line are not sent again: %s", count(c.Report.Balance.Open, "call"), again)
	case c.State == "failed" && errors.Is(c.Err, journal.ErrFull):
		return "nothing is lost: free space and " + again
	case c.State == "failed":
		return ""
	case c.State == "interrupted":
		return again
	case c.Reason == "budget":
		again = "raise --budget and " + again
		switch e, ok := errors.AsType[*budget.ExhaustedError](c.Err); {
		case !ok || e.Limit == 0:
			return again
		case e.Asked > e.Limit:
			return fmt.Sprintf("one call alone may cost %s: give it a lower output cap, or %s", amountText(e.Kind, e.Asked), again)
		default:
			return fmt.Sprintf("a call that is left may cost %s: %s", amountText(e.Kind, e.Asked), again)
		}
	case errors.Is(c.Err, errRefused):
		return fmt.Sprintf("check --base-url and the API key, in %s unless --api-key-env names another variable, and %s", o.keyEnv, again)
	case c.Reason != "" && !c.RetryAt.IsZero():
		return fmt.Sprintf("after %s %s", c.RetryAt.Format(time.RFC1123), again)
	case c.Reason != "":
		return again + ", once the provider answers: " + wording(c.Err)
	case c.Counts.Retry > 0 && errors.Is(c.Err, budget.ErrInFlight):
		return fmt.Sprintf("an item waits for a call of an earlier run that is still open: the same command with --orphans assume charges that one, and sends %s of the failed again", count(int64(c.Counts.Retry), "item"))
	case c.Counts.Retry > 0:
		return fmt.Sprintf("the same command sends %s of the failed again; the first failed with: %v", count(int64(c.Counts.Retry), "item"), c.Err)
	case c.Counts.Dead > 0:
		return fmt.Sprintf("%s gave up after all attempts; why stands in %s, and --retry-dead sends what is dead again", count(int64(c.Counts.Dead), "item"), filepath.Join(o.state, "shards", "marks.jsonl"))
	case c.Counts.Failed > 0:
		return fmt.Sprintf("why they failed stands in %s; they are not sent again", cmp.Or(o.errors, o.out))
	}
	return ""
}

// softLimit says how much of a limit is used, as the book tells it once.
func (u *ui) softLimit(s budget.SoftLimit) {
	of, spent := "the budget", group(s.Spent)
	if s.Scope != "" {
		of += " of " + s.Scope
	}
	if s.Unit == budget.CostUnit {
		spent = budget.FormatUSD(s.Spent)
	}
	u.say("%d %% of %s is used: %s of %s", s.Percent, of, spent, amountText(s.Unit, s.Max))
}

// capsText says which limits a run has.
func capsText(limits []budget.Limit) string {
	var caps []string
	for _, l := range limits {
		if !l.Unlimited {
			caps = append(caps, amountText(l.Unit, l.Max))
		}
	}
	if caps == nil {
		return "no limit"
	}
	return "limit " + strings.Join(caps, " and ")
}

// estimate prints what a batch would cost at most.
func (u *ui) estimate(e *estimate, limits []budget.Limit, asJSON bool) {
	if asJSON {
		u.data(e)
		return
	}
	w := tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "items\t%s\n", group(int64(e.Items)))
	fmt.Fprintf(w, "tokens at most\t%s: %s input, %s output\n", group(e.Tokens), group(e.Input), group(e.Output))
	if _, unknown := e.unpriced(); !unknown {
		fmt.Fprintf(w, "money at most\t%s, by the prices of %s\n", budget.FormatUSD(e.Cost), e.prices.Table())
	}
	fmt.Fprintf(w, "largest call\t%s, %s\n", group(e.Largest.Tokens), e.Largest.CustomID)
	w.Flush()
	w = tabwriter.NewWriter(u.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\nmodel\titems\ttokens\tmoney\t\n")
	for _, m := range e.Models {
		money := "not known"
		if m.Priced {
			money = budget.FormatUSD(m.Cost)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\n", m.Model, group(int64(m.Items)), group(m.Tokens), money)
	}
	w.Flush()
	for _, l := range limits {
		all, one := e.Tokens, e.alone
		if l.Unit == budget.CostUnit {
			all, one = e.Cost, e.dearest
		}
		switch {
		case l.Unlimited:
		case all <= l.Max:
			u.say("the batch fits into %s, each request sent once", amountText(l.Unit, l.Max))
		case one > l.Max:
			u.say("the largest call alone does not fit into %s", amountText(l.Unit, l.Max))
		default:
			u.say("the batch may need up to %s more than %s; calls hold their most and use less", amountText(l.Unit, all-l.Max), amountText(l.Unit, l.Max))
		}
	}
}
