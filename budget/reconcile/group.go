package reconcile

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// group is what is judged as one: a class of models in buckets that are tied
// together.
type group struct {
	*calendar
	class
	first, last int // buckets

	figures
	partly        figures
	assumed, open []*call
}

// tied reports whether the last bucket is tied to the next.
func (g *group) tied() bool {
	return slices.ContainsFunc(g.class.book, func(m string) bool { return g.calendar.tied[place{m, g.last}] })
}

// collect adds up what the book and the report have.
func (g *group) collect() (billed Amounts, err error) {
	for bucket := g.first; bucket <= g.last; bucket++ {
		for _, m := range g.class.book {
			cell := g.cells[place{m, bucket}]
			if cell == nil {
				continue
			}
			if err := g.plus(&cell.figures); err != nil {
				return billed, err
			}
			if err := g.partly.plus(&cell.partly); err != nil {
				return billed, err
			}
			g.assumed, g.open = append(g.assumed, cell.assumed...), append(g.open, cell.open...)
		}
		for _, l := range g.buckets[bucket].Lines {
			if !slices.Contains(g.class.reported, l.Model) {
				continue
			}
			if err := billed.add(&l.Amounts); err != nil {
				return billed, err
			}
		}
	}
	slices.SortFunc(g.assumed, earlier)
	slices.SortFunc(g.open, earlier)
	return billed, nil
}

// aCent is what a bill of money may differ by, in picodollars a bucket: it is
// a sum of floats, or rounded.
const aCent = 1e10

func (g *group) row(h *history, o *Options) (Row, error) {
	billed, err := g.collect()
	if err != nil {
		return Row{}, err
	}
	r := Row{Unit: g.unit, Start: g.buckets[g.first].Start, End: g.buckets[g.last].End, Buckets: g.last - g.first + 1,
		Models: g.class.book, Reported: g.class.reported, Bill: billed, Book: g.of(g.unit), Calls: g.calls}
	r.Drift = billed.of(g.unit) - r.Book.Confirmed
	r.Final = !o.Now.Before(r.End.Add(o.FinalAfter))
	slack := int64(0)
	if g.unit == budget.CostUnit {
		r.Models, r.Reported = nil, nil
		slack = aCent * int64(r.Buckets)
	}
	pruned := g.starts[g.first]-g.skew < h.since
	switch least := r.Book.Confirmed - g.partly.of(g.unit).Confirmed; {
	case pruned, g.unit == budget.CostUnit && g.unpriced > 0:
		r.Verdict = Unknown
	case billed.of(g.unit) > r.Book.Net+slack:
		r.Verdict = Above
	case billed.of(g.unit) < least-slack:
		r.Verdict = Below
	case g.Maybe == 0 && len(g.open) == 0 && r.Book.Net == r.Book.Confirmed && max(r.Drift, -r.Drift) <= slack:
		r.Verdict = OK
		return r, nil
	default:
		r.Verdict = Inside
	}
	g.plan(&r, h, o, pruned)
	return r, nil
}

// plan finds out what applying the row books, or why it cannot be applied.
func (g *group) plan(r *Row, h *history, o *Options, pruned bool) {
	block := func(why Reason, format string, args ...any) {
		r.Blocked = append(r.Blocked, Block{why, fmt.Sprintf(format, args...)})
	}
	if g.unit == budget.CostUnit {
		block(Money, "a report of money does not say which tokens were used; one of usage does")
		return
	}
	if !r.Final {
		block(NotFinal, "the provider may add to it until %s", clock(r.End.Add(o.FinalAfter)))
	}
	if n := len(g.open); n > 0 {
		block(Open, "%d of its reservations are open, the oldest since %s: %s", n, clock(time.UnixMicro(g.open[0].opened)), g.open[0].rid)
	}
	if pruned {
		block(Pruned, "the book's entries before %s are pruned", clock(time.UnixMicro(h.since)))
	}
	if n := g.partly.calls; n > 0 {
		block(Partly, "%d of its calls may have been billed at a time that the report does not cover", n)
	}
	gone := slices.DeleteFunc(slices.Clone(g.assumed), func(c *call) bool { return c.segment == h.segment })
	if len(gone) > 0 {
		block(Horizon, "%d of its assumed calls are past the book's horizon, and nothing is booked on them any more: %s is the oldest", len(gone), gone[0].rid)
	}
	if len(g.class.reported) == 0 && !o.Whole {
		block(Unnamed, "the report names no such model, under this name, so it may be of other calls")
	}
	if mixed := g.models[""] || slices.Contains(g.class.book, ""); mixed && len(g.class.book) > 1 && !o.Whole {
		block(Ungrouped, "the bill of %d models cannot be told apart", len(g.class.book))
	}
	switch beyond := r.Bill.Tokens() - r.Book.Net; {
	case r.Verdict == Below:
		block(Outside, "the bill is %d tokens below what is confirmed", -r.Drift)
	case r.Verdict == Above && len(g.assumed) == 0:
		block(Outside, "the bill is %d tokens above the net, and nothing there is assumed that they could be booked on", beyond)
	case r.Verdict == Above && !o.Overrun:
		block(Outside, "the bill is %d tokens above the net", beyond)
	}
	if len(r.Blocked) > 0 {
		return
	}
	left := Amounts{Input: r.Bill.Input - g.used.In, Output: r.Bill.Output - g.used.Out}
	left.Cached = min(max(0, r.Bill.Cached-g.used.Cached), max(0, left.Input))
	left.CacheWrite = min(max(0, r.Bill.CacheWrite-g.used.Write), max(0, left.Input-left.Cached))
	adjustments, ok := g.spread(left, o.Overrun)
	if !ok {
		block(Split, "input of %d and output of %d are billed, %d and %d are confirmed: %d and %d cannot be shared out among %d assumed calls",
			r.Bill.Input, r.Bill.Output, g.used.In, g.used.Out, left.Input, left.Output, len(g.assumed))
		return
	}
	r.Adjustments = adjustments
}

// spread shares tokens out among the assumed calls, the oldest first, each at
// most at what is assumed of it; what is above that goes to the last. Where a
// part of the calls has got its share already, the others get the same as if
// none had.
func (g *group) spread(left Amounts, overrun bool) (shares []Adjustment, ok bool) {
	if left.Input < 0 || left.Output < 0 {
		return nil, false
	}
	key := g.key()
	for i, c := range g.assumed {
		room := min(c.sum.Assumed, budget.MaxTokens)
		if overrun && i == len(g.assumed)-1 {
			room = max(room, left.Tokens())
		}
		u := budget.Usage{Input: min(left.Input, room)}
		u.Output = min(left.Output, room-u.Input)
		u.Cached = min(left.Cached, u.Input)
		u.CacheWrite = min(left.CacheWrite, u.Input-u.Cached)
		left.Input, left.Output, left.Cached, left.CacheWrite = left.Input-u.Input, left.Output-u.Output, left.Cached-u.Cached, left.CacheWrite-u.CacheWrite
		if u.Total() == 0 {
			u = budget.NothingUsed
		}
		u.Why = "reconciled"
		if u.Check() != nil {
			return nil, false
		}
		shares = append(shares, Adjustment{c.rid, budget.Evidence{Key: key, Usage: u, Attempts: c.sum.Maybe}})
	}
	return shares, left.Tokens() == 0
}

// key names the evidence: the same report about the same calls is the same
// evidence.
func (g *group) key() string {
	models := strings.Join(g.class.book, " ")
	if len(models) > 64 {
		models = fmt.Sprintf("%x", sha256.Sum256([]byte(models)))[:32]
	}
	return fmt.Sprintf("usage %d-%d %s", g.buckets[g.first].Start.Unix(), g.buckets[g.last].End.Unix(), models)
}
