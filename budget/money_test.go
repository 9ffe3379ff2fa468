package budget_test

import (
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// Money: priced once, pinned, never lost and never a guess of zero.

// table prices every token of "m" at 3 picodollars in and 7 out.
type table struct{}

func (table) Table() string { return "2026-11-01" }

func (table) Cost(model string, u budget.Usage) (int64, error) {
	if model != "m" {
		return 0, budget.ErrNoPrice
	}
	return 3*u.Input + 7*u.Output + 11*u.Images + 13*u.Seconds + 17*u.Characters, nil
}

func (t table) Most(model string, u budget.Usage) (int64, error) {
	if model == "embedding" && u.Output > 0 {
		return 0, budget.ErrNoPrice
	}
	if model == "embedding" {
		return u.Input, nil
	}
	return t.Cost(model, u)
}

// Rule 20: a cost that is not known is no zero.
func TestPrices(t *testing.T) {
	b := budget.Memory(budget.Picodollars(10_000), budget.Prices(table{}))
	_, err := b.Reserve(t.Context(), budget.Request{Model: "other", Tokens: 10})
	require.ErrorIs(t, err, budget.ErrNoPrice)
	r, err := b.Reserve(t.Context(), budget.Request{Model: "m", Tokens: 100, Output: 40})
	require.NoError(t, err)
	require.Equal(t, int64(60*3+40*7), b.Report().Cost.Held)
	receipt, err := r.Settle(t.Context(), budget.Usage{Input: 50, Output: 10})
	require.NoError(t, err)
	require.Equal(t, int64(50*3+10*7), receipt.ConfirmedCost)

	r, err = b.Reserve(t.Context(), budget.Request{Model: "m", Tokens: 100})
	require.NoError(t, err)
	require.Equal(t, int64(700), b.Report().Cost.Held, "where the split is not known the dearer side counts")
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.NoError(t, err)
	require.Equal(t, budget.Figures{Net: 220, Confirmed: 220}, b.Report().Cost)

	r, err = b.Reserve(t.Context(), budget.Request{Model: "embedding", Tokens: 100})
	require.NoError(t, err, "an output that has no price cannot be used")
	require.Equal(t, int64(100), b.Report().Cost.Held)
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.NoError(t, err)

	_, err = budget.Memory(budget.Picodollars(1)).Reserve(t.Context(), budget.Request{Tokens: 1})
	require.ErrorIs(t, err, budget.ErrNoPrice, "no price is not a price of zero")
}

// Evidence of tokens without a price leaves the money of that attempt assumed,
// and takes nothing of the others'.
func TestAdjustKeepsMoneyThatIsStillAssumed(t *testing.T) {
	b := budget.Memory()
	r, err := b.Reserve(t.Context(), budget.Request{Tokens: 10, Cost: 100})
	require.NoError(t, err)
	require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"))
	require.NoError(t, r.Close())
	receipt, err := r.Adjust(t.Context(), budget.Evidence{Key: "a", Usage: budget.Usage{Input: 4}})
	require.NoError(t, err)
	require.Equal(t, []int64{4, 10, 0, 200}, []int64{receipt.Confirmed, receipt.Assumed, receipt.ConfirmedCost, receipt.AssumedCost})
	receipt, err = r.Adjust(t.Context(), budget.Evidence{Key: "b", Usage: budget.Usage{Input: 5, Cost: 40}})
	require.NoError(t, err)
	require.Equal(t, []int64{9, 0, 40, 100}, []int64{receipt.Confirmed, receipt.Assumed, receipt.ConfirmedCost, receipt.AssumedCost})
	_, err = r.Adjust(t.Context(), budget.Evidence{Key: "b", Usage: budget.Usage{Input: 5, Cost: 41}})
	require.ErrorIs(t, err, budget.ErrConflict)
}

func TestCostWithoutTokens(t *testing.T) {
	b := budget.Memory()
	r, err := b.Reserve(t.Context(), budget.Request{Cost: 100})
	require.NoError(t, err)
	_, err = r.Settle(t.Context(), budget.Usage{Cost: 5000})
	require.ErrorIs(t, err, budget.ErrInvalid, "it could mean that the tokens are not known")
	receipt, err := r.Settle(t.Context(), budget.CostOnly(5000))
	require.NoError(t, err)
	require.Equal(t, []int64{5000, 4900}, []int64{receipt.ConfirmedCost, receipt.OverrunCost})
	_, err = r.Settle(t.Context(), budget.CostOnly(4000))
	require.ErrorIs(t, err, budget.ErrClosed)
}

// An overrun is what was used above the hold, not above an estimate.
func TestOverrunIsMeasuredAgainstTheHold(t *testing.T) {
	b := budget.Memory()
	r := reserve(t, b, 400, 0)
	_, err := r.Settle(t.Context(), budget.Usage{Input: 300, Estimated: true})
	require.NoError(t, err)
	require.Zero(t, settle(t, r, 380).Overrun)
	require.Zero(t, b.Report().Overruns)

	r = reserve(t, b, 400, 0)
	require.NoError(t, r.Close())
	require.Equal(t, int64(50), settle(t, r, 450).Overrun)
	require.Equal(t, []int64{1, 50}, []int64{b.Report().Overruns, b.Report().OverrunTokens})
}

// A balance that would leave 64 bits is refused, and is no damage.
func TestBalanceOverflowIsRefused(t *testing.T) {
	b := budget.Memory()
	for {
		_, err := b.Reserve(t.Context(), budget.Request{Cost: budget.MaxCost})
		if err != nil {
			require.ErrorIs(t, err, budget.ErrInvalid)
			require.NotErrorIs(t, err, budget.ErrDamaged)
			break
		}
	}
	reserve(t, b, 1, 0)
}

// What was booked above the hold before a reopening and is corrected after it
// is no negative overrun.
func TestOverrunCorrectedAfterReopening(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j)
	require.NoError(t, err)
	r, err := b.Reserve(t.Context(), budget.Request{RID: "x", Tokens: 10})
	require.NoError(t, err)
	require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, ""))
	require.Equal(t, int64(5), settle(t, r, 15).Overrun)
	b, err = budget.New(t.Context(), j)
	require.NoError(t, err)
	receipt, err := b.Reservation("x").Adjust(t.Context(), budget.Evidence{Key: "a", Usage: budget.Usage{Input: 1}})
	require.NoError(t, err)
	require.Zero(t, receipt.Overrun)
	require.Zero(t, b.Report().Overruns)
}

func TestEstimateRepeated(t *testing.T) {
	b := budget.Memory()
	r, err := b.Reserve(t.Context(), budget.Request{Tokens: 10, Cost: 100})
	require.NoError(t, err)
	u := budget.Usage{Input: 4, Cost: 40, Estimated: true}
	for _, booked := range []bool{true, false} {
		receipt, err := r.Settle(t.Context(), u)
		require.NoError(t, err)
		require.Equal(t, booked, receipt.Booked)
	}
}

// A rid may be used again past the horizon. The audit agrees, a book with a
// longer horizon can read it, and an old handle does not reach the new life.
func TestRIDPastTheHorizon(t *testing.T) {
	const day = 24 * time.Hour
	j, now := newFlaky(), time.Unix(1_800_000_000, 0)
	open := func(horizon time.Duration) *budget.Book {
		b, err := budget.New(t.Context(), j, budget.Tokens(100), budget.Clock(func() time.Time { return now }), budget.Horizon(horizon), budget.OnOrphan(budget.OrphanKeep))
		require.NoError(t, err)
		return b
	}
	use := func(b *budget.Book) (*budget.Reservation, error) {
		r, err := b.Reserve(t.Context(), budget.Request{RID: "nightly", Tokens: 10})
		if err == nil {
			err = r.Close()
		}
		return r, err
	}
	b := open(time.Hour)
	old, err := use(b)
	require.NoError(t, err)
	now = now.Add(13 * day)
	_, err = use(b)
	require.ErrorIs(t, err, budget.ErrClosed, "the horizon is 14 days at least")
	now = now.Add(2 * day)
	full := reserve(t, b, 85, 0)
	_, err = use(b)
	require.ErrorIs(t, err, budget.ErrBusy, "nothing of it is known any more")
	settle(t, full, 1)
	j.fail = journal.ErrFull
	_, err = use(b)
	require.ErrorIs(t, err, journal.ErrFull)
	j.fail = nil
	require.NoError(t, budget.Inconsistent(b))
	receipt, err := old.Receipt(t.Context())
	require.NoError(t, err, "the new life never was")
	require.Equal(t, int64(10), receipt.Assumed)
	_, err = use(b)
	require.NoError(t, err)
	_, err = old.Settle(t.Context(), budget.Usage{Input: 1})
	require.ErrorIs(t, err, budget.ErrUnknown)
	require.NoError(t, budget.Inconsistent(b))

	now = now.Add(15 * day)
	_, err = use(b)
	require.NoError(t, err)
	now = now.Add(15 * day)
	b = open(30 * day)
	_, err = use(b)
	require.ErrorIs(t, err, budget.ErrClosed, "by its own horizon")
	audit := budget.NewAudit()
	for _, e := range j.all {
		audit.Add(&e)
	}
	require.Empty(t, audit.Violations)
	require.Empty(t, audit.MultiClosed)
}

// A rid we made may come back as the caller's own once nothing needs it.
func TestMadeRIDUsedAgain(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j)
	require.NoError(t, err)
	r := reserve(t, b, 10, 0)
	settle(t, r, 5)
	_, err = b.Reserve(t.Context(), budget.Request{RID: r.RID(), Tokens: 10})
	require.ErrorIs(t, err, budget.ErrClosed)
	b, err = budget.New(t.Context(), j)
	require.NoError(t, err)
	again, err := b.Reserve(t.Context(), budget.Request{RID: r.RID(), Tokens: 10})
	require.NoError(t, err)
	settle(t, again, 5)
	audit := budget.NewAudit()
	for _, e := range j.all {
		audit.Add(&e)
	}
	require.Empty(t, audit.Violations)
}

// case 83, as far as amounts go: an eleventh of the cap eleven times is the cap
// to the last unit, and FormatUSD reverses ParseUSD.
func TestMoneyIsExact(t *testing.T) {
	limit := int64(11 * 333_333_333_333)
	b := budget.Memory(budget.Picodollars(limit))
	for range 11 {
		_, err := b.Reserve(t.Context(), budget.Request{Cost: limit / 11})
		require.NoError(t, err)
	}
	_, err := b.Reserve(t.Context(), budget.Request{Cost: 1})
	require.True(t, errors.Is(err, budget.ErrBusy) || errors.Is(err, budget.ErrExhausted))
	require.Zero(t, b.Report().Limits[0].Free)

	for _, c := range []struct {
		in   string
		pico int64
		out  string
	}{{"5", 5e12, "5.00 USD"}, {"0.25", 25e10, "0.25 USD"}, {"0.000000000001", 1, "0.000000000001 USD"}, {"12.50", 125e11, "12.50 USD"}, {"1000000", 1e18, "1000000.00 USD"}, {"0", 0, "0.00 USD"}} {
		n, err := budget.ParseUSD(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.pico, n)
		require.Equal(t, c.out, budget.FormatUSD(n))
		exact, _ := new(big.Rat).SetString(c.in)
		require.Equal(t, exact.Mul(exact, big.NewRat(1e12, 1)).Num().Int64(), n)
	}
	require.Equal(t, "-0.50 USD", budget.FormatUSD(-5e11))
}

// What is sold by the piece is held, booked and told as money; its tokens are none.
func TestUnits(t *testing.T) {
	b := budget.Memory(budget.Picodollars(1000), budget.Prices(table{}))
	spoken := budget.Request{Model: "m", Units: budget.Units{Images: 2, Seconds: 3, Characters: 4}}
	r, err := b.Reserve(t.Context(), spoken)
	require.NoError(t, err)
	require.Equal(t, int64(2*11+3*13+4*17), b.Report().Cost.Held)
	used := budget.Usage{Units: budget.Units{Images: 1, Characters: 4}}
	receipt, err := r.Settle(t.Context(), used)
	require.NoError(t, err)
	require.Equal(t, int64(11+4*17), receipt.ConfirmedCost)
	require.Zero(t, receipt.Assumed+receipt.AssumedCost)
	receipt, err = r.Settle(t.Context(), used)
	require.NoError(t, err, "the same again")
	require.False(t, receipt.Booked)
	used.Images = 2
	_, err = r.Settle(t.Context(), used)
	require.ErrorIs(t, err, budget.ErrClosed)

	spoken.Model = "other"
	_, err = b.Reserve(t.Context(), spoken)
	require.ErrorIs(t, err, budget.ErrNoPrice)
	spoken.Seconds = -1
	_, err = b.Reserve(t.Context(), spoken)
	require.ErrorIs(t, err, budget.ErrInvalid)
}

// Money without tokens is evidence, too, that a refunded job came back.
func TestLateMoneyWithoutTokens(t *testing.T) {
	for _, used := range []budget.Usage{budget.CostOnly(40), {Units: budget.Units{Images: 1}}} {
		b := budget.Memory(budget.Picodollars(1000), budget.Prices(table{}))
		r, err := b.Reserve(t.Context(), budget.Request{Model: "m", Units: budget.Units{Images: 5}})
		require.NoError(t, err)
		_, err = r.Refund(t.Context(), budget.NotBilled, "429")
		require.NoError(t, err)
		receipt, err := r.Settle(t.Context(), used)
		require.NoError(t, err)
		require.True(t, receipt.Booked)
		require.Equal(t, max(used.Cost, 11*used.Images), b.Report().Cost.Confirmed)
		receipt, err = r.Settle(t.Context(), used)
		require.NoError(t, err)
		require.False(t, receipt.Booked)
	}
}
