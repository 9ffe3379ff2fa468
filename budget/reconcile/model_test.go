package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/budget"
)

// Against a provider whose true bill is known, attempt by attempt: whatever a
// book went through, its report is never outside the bracket (I6), and applying
// it leaves confirmed = bill = net, once, also after a kill in mid-way.

// truth is a provider and the calls that were made to it.
type truth struct {
	*desk
	t     *rapid.T
	width time.Duration // of a bucket
	bills map[place]*Amounts
	open  []*modelCall
	shut  []*modelCall
}

// modelCall is a call with what its attempts truly used; a bill is in the
// report once the attempt is over.
type modelCall struct {
	rid, model string
	each       int64
	began      time.Time      // its last attempt
	lost       []budget.Usage // attempts that may have been billed, and stand at their hold
	state      budget.State   // once closed; zero where nothing can be said of its last attempt
}

const (
	modelSkew = 5 * time.Minute
	modelLag  = 50 * time.Minute
)

// used draws what an attempt truly used, within its bound, and puts it on the
// bill at some time of the attempt, or after it if it was given up, by the
// provider's clock.
func (m *truth) used(c *modelCall, lag time.Duration) budget.Usage {
	total := rapid.SampledFrom([]int64{0, c.each, rapid.Int64Range(0, c.each).Draw(m.t, "tokens")}).Draw(m.t, "used")
	u := budget.Usage{Input: rapid.Int64Range(0, total).Draw(m.t, "input"), Why: "reported"}
	u.Output = total - u.Input
	u.Cached = rapid.Int64Range(0, u.Input).Draw(m.t, "cached")
	from, to := c.began.Add(-modelSkew), m.now.Add(lag+modelSkew)
	at := from.Add(time.Duration(rapid.Int64Range(0, int64(to.Sub(from))).Draw(m.t, "when")))
	where := place{reportedAs[c.model], int(at.Sub(modelStart) / m.width)}
	if m.bills[where] == nil {
		m.bills[where] = &Amounts{}
	}
	require.NoError(m.t, m.bills[where].add(&Amounts{Input: u.Input, Cached: u.Cached, Output: u.Output, Requests: 1}))
	if total == 0 {
		return budget.NothingUsed
	}
	return u
}

var modelStart = nov1.Add(-2 * day)

// reportedAs are names in the book, and in the report.
var reportedAs = map[string]string{"gpt-4o": "gpt-4o-2024-08-06", "gpt-4o-2024-08-06": "gpt-4o-2024-08-06", "own": "text-embedding-3-small", "o4-mini": "o4-mini"}

var modelOptions = Options{Skew: modelSkew, Lag: modelLag, FinalAfter: -1, Aliases: map[string]string{"text-embedding-3-small": "own"}}

// report is the provider's, of all time.
func (m *truth) report() (r Report) {
	for i := range int(20 * day / m.width) {
		b := Bucket{Source: "completions", Unit: budget.TokenUnit, Start: modelStart.Add(time.Duration(i) * m.width), End: modelStart.Add(time.Duration(i+1) * m.width)}
		for _, model := range []string{"gpt-4o-2024-08-06", "text-embedding-3-small", "o4-mini"} {
			line := Line{Model: model}
			if bill := m.bills[place{model, i}]; bill != nil {
				line.Amounts = *bill
			}
			b.Lines = append(b.Lines, line)
		}
		r.Buckets = append(r.Buckets, b)
	}
	return r
}

func (m *truth) total() (sum int64) {
	for _, b := range m.bills {
		sum += b.Tokens()
	}
	return sum
}

func (m *truth) pass() {
	m.at(m.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 20 * time.Minute, 3 * time.Hour}).Draw(m.t, "passes")))
}

func (m *truth) check(err error) { require.NoError(m.t, err) }

// step is one thing that happens to a book.
func (m *truth) step() {
	ctx := context.Background()
	m.pass()
	what := rapid.IntRange(0, 9).Draw(m.t, "step")
	if what < 4 || len(m.open) == 0 {
		model := rapid.SampledFrom([]string{"gpt-4o", "gpt-4o-2024-08-06", "own", "o4-mini"}).Draw(m.t, "model")
		each := rapid.Int64Range(0, 50).Draw(m.t, "each")
		m.open = append(m.open, &modelCall{rid: m.reserve(model, each).RID(), model: model, each: each, began: m.now})
		return
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(m.t, "which")
	c := m.open[i]
	r := m.book.Reservation(c.rid)
	if what == 4 { // its attempt is over, billed or not, and there is another
		if rapid.Bool().Draw(m.t, "free") {
			m.check(r.Extend(ctx, budget.NotBilled, "429"))
		} else {
			c.lost = append(c.lost, m.used(c, modelLag))
			m.check(r.Extend(ctx, budget.MaybeBilled, "timeout"))
		}
		c.began = m.now
		return
	}
	m.open = append(m.open[:i], m.open[i+1:]...)
	m.shut = append(m.shut, c)
	c.state = budget.StateSettled
	switch what {
	case 5:
		_, err := r.Refund(ctx, budget.NotBilled, "429")
		m.check(err)
		if c.state = budget.StateRefunded; len(c.lost) > 0 {
			c.state = 0 // a settle that says nothing of the last attempt
		}
	case 6, 7:
		c.lost = append(c.lost, m.used(c, modelLag))
		m.check(r.Close())
	default:
		m.settle(r, m.used(c, 0))
	}
}

// correct is a late word of a call that is closed.
func (m *truth) correct() {
	if len(m.shut) == 0 {
		return
	}
	ctx := context.Background()
	c := rapid.SampledFrom(m.shut).Draw(m.t, "corrected")
	r := m.book.Reservation(c.rid)
	switch {
	case c.state == budget.StateRefunded: // it came back
		_, err := r.Reclaim(ctx)
		m.check(err)
		c.lost = append(c.lost, m.used(c, modelLag))
		c.state = budget.StateSettled
	case len(c.lost) > 0:
		_, err := r.Adjust(ctx, budget.Evidence{Key: fmt.Sprint("seen ", len(c.lost)), Usage: c.lost[0]})
		m.check(err)
		c.lost = c.lost[1:]
	}
}

func TestApplyLeavesTheBill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &truth{desk: newDesk(t), t: t, bills: map[place]*Amounts{}, width: rapid.SampledFrom([]time.Duration{time.Hour, day}).Draw(t, "width")}
		m.segment = rapid.SampledFrom([]int64{1, 5000, 1 << 20}).Draw(t, "segment bytes")
		m.kill()
		compare := func() Result {
			o := modelOptions
			o.Now = m.now.Add(3 * day)
			r := m.compare(m.report(), o)
			var sum Amounts
			for _, row := range r.Rows {
				require.False(t, row.Outside(), "%s", says(row))
				require.NoError(t, sum.add(&row.Bill))
			}
			require.Equal(t, m.total(), sum.Tokens())
			require.Zero(t, r.Outside.Tokens)
			return r
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			m.step()
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				m.kill()
			case 1:
				m.correct()
			case 2: // applied to what is at rest, with calls under way
				m.check(applyOnly(m, compare()))
			}
		}
		for _, c := range m.open { // their processes died
			c.lost = append(c.lost, m.used(c, modelLag))
		}
		m.pass()
		m.kill()
		for _, c := range m.open {
			require.NoError(t, m.book.Reservation(c.rid).Close())
		}
		r := compare()
		for _, row := range r.Rows {
			require.Empty(t, row.Blocked, "%s", says(row))
			for _, a := range row.Adjustments { // some, and then a kill
				if rapid.Bool().Draw(t, "before the kill") {
					_, err := a.apply(context.Background(), m.book)
					require.NoError(t, err)
				}
			}
		}
		m.kill()
		m.apply(compare())
		require.Equal(t, budget.Figures{Net: m.total(), Confirmed: m.total()}, m.book.Report().Tokens)
		again := compare()
		for _, row := range again.Rows {
			require.Equal(t, OK, row.Verdict)
			require.Zero(t, row.Drift)
		}
		seq := m.book.Report().Seq
		require.Zero(t, m.apply(again))
		require.Equal(t, seq, m.book.Report().Seq)
		require.NoError(t, m.book.Close())
	})
}

// applyOnly applies a result; the calls that it corrected have nothing left to
// be said of.
func applyOnly(m *truth, r Result) error {
	_, err := Apply(context.Background(), m.book, r)
	corrected := map[string]bool{}
	for _, row := range r.Rows {
		for _, a := range row.Adjustments {
			corrected[a.RID] = true
		}
	}
	for _, c := range m.shut {
		if corrected[c.rid] {
			c.lost = nil
		}
	}
	return err
}
