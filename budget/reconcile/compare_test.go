package reconcile

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		fill   func(*desk)
		report Report
		o      Options
		want   []string
	}{
		"as billed": {func(d *desk) { d.settled("m", 10, 5) }, usageOf(day, []Line{used("m", 10, 5)}), late,
			[]string{"01T00 02T00 [m] bill 15 confirmed 15 assumed 0 held 0 drift 0 ok"}},
		"within what is assumed": {func(d *desk) { d.settled("m", 10, 5); d.assumed("m", 100) }, usageOf(day, []Line{used("m", 30, 5)}), late,
			[]string{"01T00 02T00 [m] bill 35 confirmed 15 assumed 100 held 0 drift 20 inside"}},
		"an assumed call that was not billed": {func(d *desk) { d.settled("m", 10, 5); d.assumed("m", 100) }, usageOf(day, []Line{used("m", 10, 5)}), late,
			[]string{"01T00 02T00 [m] bill 15 confirmed 15 assumed 100 held 0 drift 0 inside"}},
		"more than the net": {func(d *desk) { d.settled("m", 10, 5); d.assumed("m", 100) }, usageOf(day, []Line{used("m", 100, 16)}), late,
			[]string{"01T00 02T00 [m] bill 116 confirmed 15 assumed 100 held 0 drift 101 above outside"}},
		"less than is confirmed": {func(d *desk) { d.settled("m", 10, 5) }, usageOf(day, []Line{used("m", 10, 4)}), late,
			[]string{"01T00 02T00 [m] bill 14 confirmed 15 assumed 0 held 0 drift -1 below outside"}},
		"a model that the book never used": {func(d *desk) { d.settled("m", 10, 5) }, usageOf(day, []Line{used("m", 10, 5), used("x", 1, 1)}), late,
			[]string{"01T00 02T00 [] bill 2 confirmed 0 assumed 0 held 0 drift 2 above outside", "01T00 02T00 [m] bill 15 confirmed 15 assumed 0 held 0 drift 0 ok"}},
		"a model that the report lacks": {func(d *desk) { d.settled("m", 10, 5); d.assumed("n", 100) }, usageOf(day, []Line{used("x", 1, 1)}), late,
			[]string{"01T00 02T00 [] bill 2 confirmed 0 assumed 0 held 0 drift 2 above outside", "01T00 02T00 [m] bill 0 confirmed 15 assumed 0 held 0 drift -15 below unnamed outside",
				"01T00 02T00 [n] bill 0 confirmed 0 assumed 100 held 0 drift 0 inside unnamed"}},
		"the same, and the report is whole": {func(d *desk) { d.assumed("n", 100) }, usageOf(day, nil), Options{Now: late.Now, Whole: true},
			[]string{"01T00 02T00 [n] bill 0 confirmed 0 assumed 100 held 0 drift 0 inside"}},
		"named with nothing used": {func(d *desk) { d.assumed("n", 100) }, usageOf(day, []Line{used("n", 0, 0)}), late,
			[]string{"01T00 02T00 [n] bill 0 confirmed 0 assumed 100 held 0 drift 0 inside"}},
		"open": {func(d *desk) { d.reserve("m", 100); d.settled("m", 1, 1) }, usageOf(day, []Line{used("m", 10, 5)}), late,
			[]string{"01T00 02T00 [m] bill 15 confirmed 2 assumed 0 held 100 drift 13 inside open"}},
		"not final": {func(d *desk) { d.assumed("m", 100) }, usageOf(day, []Line{used("m", 10, 5)}), Options{Now: nov2.Add(59 * time.Minute)},
			[]string{"01T00 02T00 [m] bill 15 confirmed 0 assumed 100 held 0 drift 15 inside not_final"}},
		"just final": {func(d *desk) { d.assumed("m", 100) }, usageOf(day, []Line{used("m", 10, 5)}), Options{Now: nov2.Add(time.Hour)},
			[]string{"01T00 02T00 [m] bill 15 confirmed 0 assumed 100 held 0 drift 15 inside"}},
		"final sooner": {func(d *desk) { d.assumed("m", 100) }, usageOf(day, []Line{used("m", 10, 5)}), Options{Now: nov2, FinalAfter: -1},
			[]string{"01T00 02T00 [m] bill 15 confirmed 0 assumed 100 held 0 drift 15 inside"}},
		"input below what is confirmed": {func(d *desk) { d.settled("m", 10, 5); d.assumed("m", 100) }, usageOf(day, []Line{used("m", 9, 20)}), late,
			[]string{"01T00 02T00 [m] bill 29 confirmed 15 assumed 100 held 0 drift 14 inside split"}},
		"above, and to be booked": {func(d *desk) { d.assumed("m", 10); d.assumed("m", 100) }, usageOf(day, []Line{used("m", 100, 20)}), Options{Now: late.Now, Overrun: true},
			[]string{"01T00 02T00 [m] bill 120 confirmed 0 assumed 110 held 0 drift 120 above"}},
		"above, and nothing to book it on": {func(d *desk) { d.settled("m", 10, 5) }, usageOf(day, []Line{used("m", 100, 20)}), Options{Now: late.Now, Overrun: true},
			[]string{"01T00 02T00 [m] bill 120 confirmed 15 assumed 0 held 0 drift 105 above outside"}},
		"calls that no bucket covers": {func(d *desk) { d.settled("m", 10, 5); d.at(nov3); d.settled("m", 1, 1) }, usageOf(day, []Line{used("m", 10, 5)}), late,
			[]string{"01T00 02T00 [m] bill 15 confirmed 15 assumed 0 held 0 drift 0 ok"}},
		"a call that begins before the report": {func(d *desk) {
			d.at(nov1.Add(-time.Second))
			r := d.reserve("m", 100)
			d.at(nov1.Add(time.Hour)).settle(r, budget.Usage{Input: 10})
		}, usageOf(day, []Line{used("m", 0, 0)}), late,
			[]string{"01T00 02T00 [m] bill 0 confirmed 10 assumed 0 held 0 drift -10 inside partly"}},
		"refunds are nothing": {func(d *desk) {
			_, err := d.reserve("m", 100).Refund(context.Background(), budget.NotBilled, "429")
			require.NoError(d.t, err)
		}, usageOf(day, nil), late, nil},
		"not by model": {func(d *desk) { d.settled("m", 10, 5); d.assumed("n", 100) }, usageOf(day, []Line{used("", 30, 5)}), late,
			[]string{"01T00 02T00 [m n] bill 35 confirmed 15 assumed 100 held 0 drift 20 inside ungrouped"}},
		"not by model, and the report is whole": {func(d *desk) { d.settled("m", 10, 5); d.assumed("n", 100) }, usageOf(day, []Line{used("", 30, 5)}), Options{Now: late.Now, Whole: true},
			[]string{"01T00 02T00 [m n] bill 35 confirmed 15 assumed 100 held 0 drift 20 inside"}},
		"the book names no model": {func(d *desk) { d.assumed("", 100) }, usageOf(day, []Line{used("m", 10, 5), used("n", 1, 1)}), late,
			[]string{"01T00 02T00 [] bill 17 confirmed 0 assumed 100 held 0 drift 17 inside"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			c.fill(d)
			require.Equal(t, c.want, sayAll(d.compare(c.report, c.o)))
		})
	}
}

func TestNames(t *testing.T) {
	for name, c := range map[string]struct {
		book, report []string
		aliases      map[string]string
		want         []class
	}{
		"exact":                     {[]string{"gpt-4o"}, []string{"gpt-4o"}, nil, []class{{[]string{"gpt-4o"}, []string{"gpt-4o"}}}},
		"a snapshot":                {[]string{"gpt-4o"}, []string{"gpt-4o-2024-08-06"}, nil, []class{{[]string{"gpt-4o"}, []string{"gpt-4o-2024-08-06"}}}},
		"a snapshot of Anthropic's": {[]string{"claude-sonnet-4"}, []string{"claude-sonnet-4-20250514"}, nil, []class{{[]string{"claude-sonnet-4"}, []string{"claude-sonnet-4-20250514"}}}},
		"of Vertex":                 {[]string{"claude-sonnet-4"}, []string{"claude-sonnet-4@20250514"}, nil, []class{{[]string{"claude-sonnet-4"}, []string{"claude-sonnet-4@20250514"}}}},
		"of a month and day":        {[]string{"gpt-3.5-turbo"}, []string{"gpt-3.5-turbo-0125"}, nil, []class{{[]string{"gpt-3.5-turbo"}, []string{"gpt-3.5-turbo-0125"}}}},
		"the latest":                {[]string{"claude-3-5-haiku-latest"}, []string{"claude-3-5-haiku-20241022"}, nil, []class{{[]string{"claude-3-5-haiku-latest"}, []string{"claude-3-5-haiku-20241022"}}}},
		"no date":                   {[]string{"gpt-4o"}, []string{"gpt-4o-2024-13-06"}, nil, []class{{[]string{"gpt-4o"}, nil}, {nil, []string{"gpt-4o-2024-13-06"}}}},
		"a part of a name":          {[]string{"gpt-4o"}, []string{"gpt-4o-mini"}, nil, []class{{[]string{"gpt-4o"}, nil}, {nil, []string{"gpt-4o-mini"}}}},
		"another snapshot":          {[]string{"gpt-4o-2024-05-13"}, []string{"gpt-4o-2024-08-06"}, nil, []class{{[]string{"gpt-4o-2024-05-13"}, nil}, {nil, []string{"gpt-4o-2024-08-06"}}}},
		"both names in the book cannot be told apart": {[]string{"gpt-4o", "gpt-4o-2024-05-13", "gpt-4o-2024-08-06"}, []string{"gpt-4o-2024-08-06"}, nil,
			[]class{{[]string{"gpt-4o", "gpt-4o-2024-08-06"}, []string{"gpt-4o-2024-08-06"}}, {[]string{"gpt-4o-2024-05-13"}, nil}}},
		"two snapshots of one":               {[]string{"gpt-4o"}, []string{"gpt-4o-2024-05-13", "gpt-4o-2024-08-06"}, nil, []class{{[]string{"gpt-4o"}, []string{"gpt-4o-2024-05-13", "gpt-4o-2024-08-06"}}}},
		"an alias":                           {[]string{"small", "big"}, []string{"gpt-4o-mini-2024-07-18"}, map[string]string{"gpt-4o-mini-2024-07-18": "small"}, []class{{[]string{"big"}, nil}, {[]string{"small"}, []string{"gpt-4o-mini-2024-07-18"}}}},
		"an alias in place of the same name": {[]string{"a", "b"}, []string{"a"}, map[string]string{"a": "b"}, []class{{[]string{"a"}, nil}, {[]string{"b"}, []string{"a"}}}},
		"not grouped":                        {[]string{"a", "b"}, []string{""}, nil, []class{{[]string{"a", "b"}, []string{""}}}},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(names []string) map[string]bool {
				s := map[string]bool{}
				for _, n := range names {
					s[n] = true
				}
				return s
			}
			require.ElementsMatch(t, c.want, classes(set(c.book), set(c.report), c.aliases))
		})
	}
}

func TestAliasThatNamesNothing(t *testing.T) {
	_, err := Compare(usageOf(day, []Line{used("m", 1, 1)}), none, Options{Aliases: map[string]string{"n": "m"}})
	require.ErrorIs(t, err, budget.ErrInvalid)
	require.ErrorContains(t, err, `the report names no model "n"`)
}

// A call that lies on both sides of a boundary ties two buckets together.
func TestTiedBuckets(t *testing.T) {
	d := newDesk(t)
	d.at(nov1.Add(30*time.Minute)).settled("m", 1, 1)
	d.at(nov1.Add(59 * time.Minute))
	r := d.reserve("m", 100)
	d.at(nov1.Add(61*time.Minute)).settle(r, budget.Usage{Input: 10, Output: 5})
	d.at(nov1.Add(150*time.Minute)).settled("m", 2, 2)
	d.at(nov1.Add(179*time.Minute+55*time.Second)).settled("m", 3, 3) // within the skew of the next hour
	d.settled("n", 4, 4)
	hours := func(a, b, c, e int64) Report {
		return usageOf(time.Hour, []Line{used("m", a, 0)}, []Line{used("m", b, 0)}, []Line{used("m", c, 0), used("n", 8, 0)}, []Line{used("m", e, 0)})
	}
	want := []string{"01T00 01T02 [m] bill 17 confirmed 17 assumed 0 held 0 drift 0 ok", "01T02 01T04 [m] bill 10 confirmed 10 assumed 0 held 0 drift 0 ok",
		"01T02 01T04 [n] bill 8 confirmed 8 assumed 0 held 0 drift 0 ok"}
	require.Equal(t, want, sayAll(d.compare(hours(17, 0, 4, 6), late)))
	require.Equal(t, want, sayAll(d.compare(hours(2, 15, 0, 10), late)))
	require.Equal(t, []string{"01T00 01T02 [m] bill 17 confirmed 17 assumed 0 held 0 drift 0 ok", "01T02 01T03 [m] bill 4 confirmed 10 assumed 0 held 0 drift -6 below outside",
		"01T02 01T03 [n] bill 8 confirmed 8 assumed 0 held 0 drift 0 ok", "01T03 01T04 [m] bill 6 confirmed 0 assumed 0 held 0 drift 6 above outside"},
		sayAll(d.compare(hours(2, 15, 4, 6), Options{Now: late.Now, Skew: -1})))
	require.Equal(t, 2, d.compare(hours(17, 0, 4, 6), late).Rows[0].Buckets)
}

// A call may have been billed in a gap of the report.
func TestGap(t *testing.T) {
	d := newDesk(t)
	r := d.reserve("m", 10)
	d.at(nov3.Add(-time.Hour))
	require.NoError(t, r.Extend(context.Background(), budget.NotBilled, "429"))
	d.at(nov3.Add(time.Hour)).settle(r, budget.Usage{Input: 3})
	report := usageOf(day, nil, nil, []Line{used("m", 0, 0)})
	report.Buckets = append(report.Buckets[:1], report.Buckets[2])
	require.Equal(t, []string{"01T00 04T00 [m] bill 0 confirmed 3 assumed 0 held 0 drift -3 inside partly"}, sayAll(d.compare(report, late)))
}

// An attempt that was given up may be billed later.
func TestLag(t *testing.T) {
	d := newDesk(t)
	d.at(nov1.Add(55*time.Minute)).assumed("m", 10)
	d.settled("n", 1, 1)
	report := usageOf(time.Hour, []Line{used("n", 1, 1)}, []Line{used("m", 7, 0)})
	require.Equal(t, []string{"01T00 01T01 [n] bill 2 confirmed 2 assumed 0 held 0 drift 0 ok", "01T00 01T02 [m] bill 7 confirmed 0 assumed 10 held 0 drift 7 inside"}, sayAll(d.compare(report, late)))
	d.apply(d.compare(report, late))
	require.Equal(t, []string{"01T00 01T01 [n] bill 2 confirmed 2 assumed 0 held 0 drift 0 ok", "01T00 01T02 [m] bill 7 confirmed 7 assumed 0 held 0 drift 0 ok"}, sayAll(d.compare(report, late)))
}

// A process that died left a call that is closed weeks later, by the next
// opening: it was billed within a day.
func TestOrphanOfWeeksAgo(t *testing.T) {
	d := newDesk(t)
	d.reserve("m", 100)
	r := d.at(nov1.AddDate(0, 0, 12)).book.Reservation("r1")
	require.NoError(t, r.Close())
	got := d.compare(usageOf(day, []Line{used("m", 7, 0)}, nil, nil), late)
	require.Equal(t, []string{"01T00 03T00 [m] bill 7 confirmed 0 assumed 100 held 0 drift 7 inside"}, sayAll(got))
}

// What was pruned is not judged, and what came after it is.
func TestPrunedHistory(t *testing.T) {
	d := newDesk(t)
	plain, err := d.book.Reserve(context.Background(), budget.Request{Model: "m", Tokens: 20}) // whose rid nobody needs to remember
	require.NoError(t, err)
	d.settle(plain, budget.Usage{Input: 10, Output: 5})
	d.assumed("m", 100)
	open := d.reserve("m", 50)
	d.at(nov2.Add(time.Hour)).kill()
	d.at(nov2.Add(2 * time.Hour)).kill()
	d.settle(d.book.Reservation(open.RID()), budget.Usage{Input: 1})
	d.at(nov3.Add(time.Hour)).settled("m", 2, 2)
	report := usageOf(day, []Line{used("m", 10, 5)}, []Line{used("m", 1, 0)}, []Line{used("m", 4, 0)})
	require.Equal(t, []string{"01T00 03T00 [m] bill 16 confirmed 16 assumed 100 held 0 drift 0 inside", "03T00 04T00 [m] bill 4 confirmed 4 assumed 0 held 0 drift 0 ok"},
		sayAll(d.compare(report, late)))
	pruned, err := journal.Dir{Path: "book", FS: d.mem}.Prune(time.UnixMicro(math.MaxInt64))
	require.NoError(t, err)
	require.Len(t, pruned.Segments, 1)
	got := d.compare(report, late)
	require.Equal(t, []string{"01T00 03T00 [m] bill 16 confirmed 1 assumed 100 held 0 drift 15 unknown pruned", "03T00 04T00 [m] bill 4 confirmed 4 assumed 0 held 0 drift 0 ok"}, sayAll(got))
	require.Equal(t, budget.Figures{Net: 15, Confirmed: 15}, got.Outside.Tokens)
}

// Reports of one's own need not name their source, but their unit.
func TestReportOfOnesOwn(t *testing.T) {
	d := newDesk(t)
	d.settled("m", 1, 1)
	day1 := Bucket{Unit: budget.TokenUnit, Start: nov1, End: nov2, Lines: []Line{used("m", 1, 1)}}
	require.Equal(t, []string{"01T00 02T00 [m] bill 2 confirmed 2 assumed 0 held 0 drift 0 ok"}, sayAll(d.compare(Report{[]Bucket{{Start: nov2, End: nov3}, day1}}, late)))
	day1.Unit = budget.RequestUnit
	_, err := Compare(Report{[]Bucket{day1}}, none, late)
	require.ErrorContains(t, err, "a bucket counts requests; tokens and cost can be compared")
	_, err = Compare(Report{}, none, late)
	require.ErrorIs(t, err, ErrFormat)
}

// When the last attempt of a call began is pruned, too: it was before the
// segment that is left.
func TestPrunedExtends(t *testing.T) {
	d := newDesk(t)
	r := d.reserve("m", 10)
	d.at(nov1.AddDate(0, 0, 3))
	require.NoError(t, r.Extend(context.Background(), budget.NotBilled, "429"))
	d.at(nov1.AddDate(0, 0, 4)).kill()
	d.kill()
	_, err := journal.Dir{Path: "book", FS: d.mem}.Prune(time.UnixMicro(math.MaxInt64))
	require.NoError(t, err)
	d.at(nov1.AddDate(0, 0, 4).Add(time.Hour)).settle(d.book.Reservation(r.RID()), budget.Usage{Input: 3})
	got := d.compare(usageOf(day, nil, nil, nil, []Line{used("m", 3, 0)}, nil), late)
	require.Equal(t, []string{"01T00 06T00 [m] bill 3 confirmed 3 assumed 0 held 0 drift 0 ok"}, sayAll(got))
}

// Every token of the book is in a row or outside of all.
func TestNothingIsLost(t *testing.T) {
	d := newDesk(t)
	for i := range 40 {
		d.at(d.now.Add(47*time.Minute)).settled([]string{"m", "n"}[i%2], int64(i), 1)
		d.assumed("m", 10)
	}
	d.reserve("n", 1000)
	got := d.compare(usageOf(time.Hour, make([][]Line, 20)...), late)
	sum := got.Outside.Tokens
	for _, r := range got.Rows {
		sum.Net, sum.Confirmed, sum.Assumed, sum.Held = sum.Net+r.Book.Net, sum.Confirmed+r.Book.Confirmed, sum.Assumed+r.Book.Assumed, sum.Held+r.Book.Held
	}
	require.Equal(t, d.book.Report().Tokens, sum)
	require.NotZero(t, got.Outside.Tokens.Net)
}

// Money is compared as a whole and never applied.
func TestMoney(t *testing.T) {
	costs := func(picodollars int64) Report {
		return Report{[]Bucket{{Source: "OpenAI costs", Unit: budget.CostUnit, Start: nov1, End: nov2, Lines: []Line{{"gpt-4o, input", Amounts{Cost: picodollars}}}}}}
	}
	priced := func(d *desk, cost int64) *budget.Reservation {
		d.calls++
		r, err := d.book.Reserve(context.Background(), budget.Request{Tokens: 10, Cost: cost})
		require.NoError(d.t, err)
		return r
	}
	usd := int64(1_000_000_000_000)
	d := newDesk(t)
	d.settle(priced(d, usd), budget.Usage{Input: 1, Cost: usd / 2})
	require.Equal(t, []string{"01T00 02T00 [] bill 500000000001 confirmed 500000000000 assumed 0 held 0 drift 1 ok"}, sayAll(d.compare(costs(usd/2+1), late)))
	require.Equal(t, []string{"01T00 02T00 [] bill 400000000000 confirmed 500000000000 assumed 0 held 0 drift -100000000000 below money"}, sayAll(d.compare(costs(usd*4/10), late)))
	require.NoError(t, priced(d, usd).Close())
	require.Equal(t, []string{"01T00 02T00 [] bill 1500000000000 confirmed 500000000000 assumed 1000000000000 held 0 drift 1000000000000 inside money"}, sayAll(d.compare(costs(usd*3/2), late)))
	require.Equal(t, []string{"01T00 02T00 [] bill 2000000000000 confirmed 500000000000 assumed 1000000000000 held 0 drift 1500000000000 above money"}, sayAll(d.compare(costs(usd*2), late)))
	d.settled("m", 1, 1)
	require.Equal(t, []string{"01T00 02T00 [] bill 2000000000000 confirmed 500000000000 assumed 1000000000000 held 0 drift 1500000000000 unknown money"}, sayAll(d.compare(costs(usd*2), late)))
	require.Zero(t, d.apply(d.compare(costs(usd*2), late)))
}
