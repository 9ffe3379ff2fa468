package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func TestApply(t *testing.T) {
	d := newDesk(t)
	d.settled("m", 10, 5)
	d.assumed("m", 100)
	twice := d.reserve("m", 50) // its first attempt was lost, and so was its second
	require.NoError(t, twice.Extend(context.Background(), budget.MaybeBilled, "timeout"))
	require.NoError(t, twice.Close())
	partly := d.reserve("m", 40) // its first attempt was lost, its second reported
	require.NoError(t, partly.Extend(context.Background(), budget.MaybeBilled, "timeout"))
	d.settle(partly, budget.Usage{Input: 3, Output: 4})
	d.assumed("n", 7)
	back := d.reserve("m", 30) // it was refunded and came back
	_, err := back.Refund(context.Background(), budget.NotBilled, "429")
	require.NoError(t, err)
	_, err = back.Reclaim(context.Background())
	require.NoError(t, err)

	report := usageOf(day, []Line{{"m", Amounts{Input: 140, Cached: 60, CacheWrite: 50, Output: 60, Requests: 5}}, used("n", 0, 0)})
	got := d.compare(report, late)
	require.Equal(t, []string{"01T00 02T00 [m] bill 200 confirmed 22 assumed 270 held 0 drift 178 inside", "01T00 02T00 [n] bill 0 confirmed 0 assumed 7 held 0 drift 0 inside"}, sayAll(got))
	usage := func(a Adjustment) budget.Usage { return a.Evidence.Usage }
	require.Equal(t, []budget.Usage{{Input: 100, Cached: 60, CacheWrite: 40, Why: "reconciled"}, {Input: 27, CacheWrite: 10, Output: 51, Why: "reconciled"}},
		[]budget.Usage{usage(got.Rows[0].Adjustments[0]), usage(got.Rows[0].Adjustments[1])})
	require.Equal(t, "usage 1730419200-1730505600 m", got.Rows[0].Adjustments[0].Evidence.Key)
	require.Equal(t, Applied{Calls: 5, Released: 270 + 7 - 178}, d.apply(got))
	require.Equal(t, budget.Figures{Net: 200, Confirmed: 200}, d.book.Report().Tokens)

	again := d.compare(report, late)
	require.Equal(t, []string{"01T00 02T00 [m] bill 200 confirmed 200 assumed 0 held 0 drift 0 ok", "01T00 02T00 [n] bill 0 confirmed 0 assumed 0 held 0 drift 0 ok"}, sayAll(again))
	seq := d.book.Report().Seq
	require.Zero(t, d.apply(again))
	require.Zero(t, d.apply(got), "the old result again")
	require.Equal(t, seq, d.book.Report().Seq, "nothing was written")

	// A bill that grew afterwards has nothing left to be booked on.
	report.Buckets[0].Lines[0].Input++
	require.Equal(t, []string{"01T00 02T00 [m] bill 201 confirmed 200 assumed 0 held 0 drift 1 above outside"}, sayAll(d.compare(report, late))[:1])
}

func TestApplyOverrun(t *testing.T) {
	d := newDesk(t, budget.Tokens(1000))
	d.assumed("m", 10)
	d.assumed("m", 20)
	report := usageOf(day, []Line{used("m", 30, 15)})
	require.Zero(t, d.apply(d.compare(report, late)))
	require.Equal(t, Applied{Calls: 2, Released: -15}, d.apply(d.compare(report, Options{Now: late.Now, Overrun: true})))
	r := d.book.Report()
	require.Equal(t, budget.Figures{Net: 45, Confirmed: 45}, r.Tokens)
	require.EqualValues(t, 15, r.OverrunTokens)
	require.EqualValues(t, 1, r.Overruns)
}

// A kill between two adjustments, whichever of them were booked, and the same
// command again: the figures are those of a run that was not killed.
func TestApplyAfterKill(t *testing.T) {
	fill := func() *desk {
		d := newDesk(t)
		d.settled("m", 5, 5)
		for _, n := range []int64{30, 10, 20, 40} {
			d.assumed("m", n)
		}
		return d
	}
	report := usageOf(day, []Line{{"m", Amounts{Input: 30, Cached: 12, Output: 60}}})
	shares := func(d *desk) (all []string) {
		for i := range 4 {
			for e := range d.entries() {
				if e.Kind == journal.Adjust && e.RID == fmt.Sprintf("r%d", i+2) {
					all = append(all, fmt.Sprint(e.Usage, e.Evidence))
				}
			}
		}
		return all
	}
	whole := fill()
	whole.apply(whole.compare(report, late))
	require.Len(t, shares(whole), 4)
	for booked := range 16 { // every subset
		d := fill()
		got := d.compare(report, late)
		for i, a := range got.Rows[0].Adjustments {
			if booked&(1<<i) != 0 {
				_, err := a.apply(context.Background(), d.book)
				require.NoError(t, err)
			}
		}
		d.kill()
		d.apply(d.compare(report, late))
		require.Equal(t, budget.Figures{Net: 90, Confirmed: 90}, d.book.Report().Tokens)
		require.Equal(t, shares(whole), shares(d), "booked before the kill: %04b", booked)
	}
}

// A call past the horizon cannot be corrected, and nothing of its row is.
func TestApplyPastTheHorizon(t *testing.T) {
	d := newDesk(t)
	d.assumed("m", 100)
	d.assumed("m", 100)
	d.at(nov1.AddDate(0, 0, 20)).kill()
	report := usageOf(day, []Line{used("m", 30, 0)})
	got := d.compare(report, late)
	require.Equal(t, []string{"01T00 02T00 [m] bill 30 confirmed 0 assumed 200 held 0 drift 30 inside horizon"}, sayAll(got))
	require.Contains(t, got.Rows[0].Blocked[0].Text, "2 of its assumed calls are past the book's horizon")
	require.Zero(t, d.apply(got))

	// It passes between the comparison and the booking.
	d = newDesk(t)
	d.assumed("m", 100)
	got = d.compare(report, late)
	d.at(nov1.AddDate(0, 0, 20)).kill()
	_, err := Apply(context.Background(), d.book, got)
	require.ErrorIs(t, err, budget.ErrUnknown)
}

// What became known in between is not booked twice.
func TestApplyOfAnOldResult(t *testing.T) {
	d := newDesk(t)
	r := d.assumed("m", 100)
	got := d.compare(usageOf(day, []Line{used("m", 30, 0)}), late)
	d.settle(r, budget.Usage{Input: 30})
	_, err := Apply(context.Background(), d.book, got)
	require.ErrorIs(t, err, budget.ErrClosed)
	require.Equal(t, budget.Figures{Net: 30, Confirmed: 30}, d.book.Report().Tokens)

	_, err = Apply(context.Background(), newDesk(t).book, got)
	require.ErrorIs(t, err, budget.ErrConflict, "the book of another")

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("no more time"))
	_, err = Apply(ctx, d.book, got)
	require.EqualError(t, err, "no more time")
}

// Where the book holds money its price table says what the tokens cost; without
// one, the money stays assumed.
func TestApplyPrices(t *testing.T) {
	for _, priced := range []bool{false, true} {
		var opts []budget.Option
		if priced {
			opts = append(opts, budget.Prices(perToken(3)))
		}
		d := newDesk(t, opts...)
		r, err := d.book.Reserve(context.Background(), budget.Request{Tokens: 100, Cost: 1000})
		require.NoError(t, err)
		require.NoError(t, r.Close())
		applied := d.apply(d.compare(usageOf(day, []Line{used("", 30, 0)}), late))
		cost := d.book.Report().Cost
		if priced {
			require.Equal(t, Applied{Calls: 1, Released: 70}, applied)
			require.Equal(t, budget.Figures{Net: 90, Confirmed: 90}, cost)
		} else {
			require.Equal(t, Applied{Calls: 1, Released: 70, Unpriced: 1}, applied)
			require.Equal(t, budget.Figures{Net: 1000, Assumed: 1000}, cost)
		}
	}
}

// perToken is a price table with one price.
type perToken int64

func (p perToken) Cost(_ string, u budget.Usage) (int64, error) { return int64(p) * u.Total(), nil }
func (p perToken) Table() string                                { return "2024-11-01" }
func (p perToken) Most(model string, u budget.Usage) (int64, error) {
	return p.Cost(model, u)
}

// The memory of a comparison does not grow with what is confirmed.
func TestConfirmedCallsAreForgotten(t *testing.T) {
	d := newDesk(t)
	h := newHistory(func(*call) error { return nil })
	most := 0
	for i := range 300 {
		d.at(d.now.Add(time.Second)).settled("m", 1, int64(i))
	}
	for e, err := range d.entries() {
		require.NoError(t, err)
		require.NoError(t, h.add(&e))
		most = max(most, len(h.calls))
	}
	require.LessOrEqual(t, most, 1)
}

// A refund that a segment did not carry on can never be reclaimed.
func TestOldRefundsAreForgotten(t *testing.T) {
	d := newDesk(t)
	for range 10 {
		_, err := d.reserve("m", 1).Refund(context.Background(), budget.NotBilled, "429")
		require.NoError(t, err)
	}
	read := func() int {
		h := newHistory(func(*call) error { return nil })
		for e, err := range d.entries() {
			require.NoError(t, err)
			require.NoError(t, h.add(&e))
		}
		return len(h.calls)
	}
	d.kill()
	require.Equal(t, 10, read())
	d.at(nov1.AddDate(0, 0, 20)).kill()
	d.kill()
	require.Zero(t, read())
}
