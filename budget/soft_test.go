package budget_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// ear is told of soft limits.
type ear struct{ heard []budget.SoftLimit }

func (e *ear) hear(s budget.SoftLimit) { e.heard = append(e.heard, s) }

// take returns what was heard since the last time: percent spent/max.
func (e *ear) take() (words []string) {
	for _, s := range e.heard {
		on := ""
		if s.Scope != "" {
			on = " on " + s.Scope
		}
		words = append(words, fmt.Sprintf("%d %% of %d %s%s: %d", s.Percent, s.Max, s.Unit, on, s.Spent))
	}
	e.heard = nil
	return words
}

func setLimit(t *testing.T, b *budget.Book, l budget.Limit) {
	t.Helper()
	require.NoError(t, b.SetLimit(t.Context(), l))
}

// What is spent counts, not what is held, and each threshold is told once, be
// several reached by one close.
func TestSoftLimits(t *testing.T) {
	var e ear
	b := budget.Memory(budget.SoftLimits(e.hear), budget.Tokens(100), budget.Requests(8), budget.Tokens(60).On("a"))
	held, err := b.Reserve(t.Context(), budget.Request{Tokens: 40})
	require.NoError(t, err)
	spend(t, b, "", 49)
	assert.Empty(t, e.take(), "89 in use, 49 spent")
	spend(t, b, "a", 1)
	assert.Equal(t, []string{"50 % of 100 tokens: 50"}, e.take())
	receipt, err := held.Settle(t.Context(), budget.Usage{}) // unknown: assumed
	require.NoError(t, err)
	require.EqualValues(t, 40, receipt.Assumed)
	assert.Equal(t, []string{"80 % of 100 tokens: 90"}, e.take())
	_, err = held.Adjust(t.Context(), budget.Evidence{Key: "bill", Usage: budget.Usage{Input: 9}})
	require.NoError(t, err)
	spend(t, b, "", 35)
	assert.Equal(t, []string{"50 % of 8 requests: 4"}, e.take(), "it fell to 59 and rose to 94: that re-arms nothing")
	spend(t, b, "a", 3)
	assert.Equal(t, []string{"95 % of 100 tokens: 97"}, e.take())
	assert.Equal(t, []int{95, 50, 0}, toldOf(b))

	over, err := b.Reserve(t.Context(), budget.Request{Scope: "a", Tokens: 1})
	require.NoError(t, err)
	assert.Empty(t, e.take())
	_, err = over.Settle(t.Context(), budget.Usage{Input: 56})
	require.NoError(t, err)
	assert.Equal(t, []string{"50 % of 60 tokens on a: 60", "80 % of 60 tokens on a: 60", "95 % of 60 tokens on a: 60"}, e.take())
}

func toldOf(b *budget.Book) (told []int) {
	for _, l := range b.Report().Limits {
		told = append(told, l.Told)
	}
	return told
}

// A changed limit is told of anew where what is spent no longer reached it.
func TestSoftLimitsOfAChangedLimit(t *testing.T) {
	lifted := budget.Limit{Unit: budget.TokenUnit, Unlimited: true}
	for _, c := range []struct {
		name   string
		change []budget.Limit
		then   []string // at the change
		spend  int64
		more   []string // at the end
	}{
		{"raised far: all are armed", []budget.Limit{budget.Tokens(200)}, nil, 64,
			[]string{"50 % of 200 tokens: 160", "80 % of 200 tokens: 160"}},
		{"raised a little: what was told and is still reached stays told", []budget.Limit{budget.Tokens(120)}, nil, 18,
			[]string{"95 % of 120 tokens: 114"}},
		{"lowered: nothing more is reached", []budget.Limit{budget.Tokens(97)}, nil, 0, nil},
		{"raised and lowered", []budget.Limit{budget.Tokens(1000), budget.Tokens(110)}, []string{"50 % of 110 tokens: 96", "80 % of 110 tokens: 96"}, 0, nil},
		{"lifted and set again", []budget.Limit{lifted, budget.Tokens(100)}, []string{"50 % of 100 tokens: 96", "80 % of 100 tokens: 96", "95 % of 100 tokens: 96"}, 0, nil},
		{"set as it is, twice", []budget.Limit{budget.Tokens(100), budget.Tokens(100)}, nil, 0, nil}, // case 66
		{"lifted", []budget.Limit{lifted}, nil, 1000, nil},
		{"zero", []budget.Limit{budget.Tokens(0)}, nil, 0, nil}, // case 10
		{"zero and back", []budget.Limit{budget.Tokens(0), budget.Tokens(192)}, []string{"50 % of 192 tokens: 96"}, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e ear
			j := newFlaky()
			b, err := budget.New(t.Context(), j, budget.SoftLimits(e.hear), budget.Tokens(100))
			require.NoError(t, err)
			spend(t, b, "", 96)
			require.Len(t, e.take(), 3)
			for _, l := range c.change {
				setLimit(t, b, l)
			}
			assert.Equal(t, c.then, e.take())
			if c.spend > 0 {
				spend(t, b, "", c.spend)
			}
			assert.Equal(t, c.more, e.take())
			require.NoError(t, b.Close())
			_, err = budget.New(t.Context(), j, budget.SoftLimits(e.hear))
			require.NoError(t, err)
			assert.Empty(t, e.take(), "a restart tells nothing again")
		})
	}
}

// A limit of zero and the largest ones: exact, and nothing overflows (case 10).
func TestSoftLimitsOfAnySize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.Int64Range(0, 300), rapid.Int64Range(budget.MaxTokens-300, budget.MaxTokens)).Draw(t, "limit")
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		var e ear
		b := budget.Memory(budget.SoftLimits(e.hear, percent), budget.Tokens(limit))
		defer b.Close()
		share := new(big.Int).Mul(big.NewInt(limit), big.NewInt(int64(percent)))
		edge := share.Add(share, big.NewInt(99)).Div(share, big.NewInt(100)).Int64()
		if edge == 0 {
			_, err := b.Reserve(context.Background(), budget.Request{Tokens: 1})
			require.ErrorIs(t, err, budget.ErrExhausted)
			require.Empty(t, e.take())
			return
		}
		r, err := b.Reserve(context.Background(), budget.Request{RID: "r", Tokens: edge})
		require.NoError(t, err)
		if edge > 1 {
			_, err = r.Settle(context.Background(), budget.Usage{Input: edge - 1})
			require.NoError(t, err)
			require.Empty(t, e.take())
			r, err = b.Reserve(context.Background(), budget.Request{Tokens: 1})
			require.NoError(t, err)
		}
		_, err = r.Settle(context.Background(), budget.Usage{Input: 1})
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprintf("%d %% of %d tokens: %d", percent, limit, edge)}, e.take())
	})
	var e ear
	b := budget.Memory(budget.SoftLimits(e.hear, 50, 100), budget.Picodollars(budget.MaxCost))
	defer b.Close()
	for range 2 {
		r, err := b.Reserve(t.Context(), budget.Request{Tokens: 1, Cost: budget.MaxCost / 2})
		require.NoError(t, err)
		_, err = r.Settle(t.Context(), budget.Usage{Input: 1, Cost: budget.MaxCost / 2})
		require.NoError(t, err)
	}
	max := int64(budget.MaxCost)
	require.Equal(t, []string{fmt.Sprintf("50 %% of %d cost: %d", max, max/2), fmt.Sprintf("100 %% of %d cost: %d", max, max/2*2)}, e.take())
}

func TestSoftLimitPercents(t *testing.T) {
	for name, percents := range map[string][]int{"zero": {0}, "negative": {50, -1}, "above 100": {101}, "twice": {50, 80, 50}, "huge": {math.MaxInt}} {
		_, err := budget.New(t.Context(), journal.NewMemory(), budget.SoftLimits(nil, percents...))
		invalid, ok := errors.AsType[*budget.InvalidError](err)
		require.True(t, ok, name)
		assert.Equal(t, "soft limit", invalid.What)
	}
	var e ear
	b := budget.Memory(budget.SoftLimits(e.hear, 100, 1, 30), budget.Tokens(10))
	spend(t, b, "", 10)
	assert.Equal(t, []string{"1 % of 10 tokens: 10", "30 % of 10 tokens: 10", "100 % of 10 tokens: 10"}, e.take())
}

// Without the option the log tells; where nobody is told, nothing says that
// somebody was.
func TestSoftLimitsInTheLog(t *testing.T) {
	var log bytes.Buffer
	logger := budget.Logger(slog.New(slog.NewTextHandler(&log, nil)))
	j := newFlaky()
	b, err := budget.New(t.Context(), j, budget.Tokens(10))
	require.NoError(t, err)
	spend(t, b, "", 8)
	require.NoError(t, b.Close())
	b, err = budget.New(t.Context(), j, logger, budget.NoSoftLimits())
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Empty(t, log.String())

	b, err = budget.New(t.Context(), j, logger)
	require.NoError(t, err)
	assert.Equal(t, []int{80}, toldOf(b))
	for _, percent := range []string{"50", "80"} {
		line, err := log.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, line, `level=INFO msg="a soft limit is reached" percent=`+percent+` scope="" unit=tokens spent=8 limit=10`)
	}
	spend(t, b, "", 1)
	require.NoError(t, b.Close())
	require.Empty(t, log.String())
}

// A limit that is given at an opening is judged as it is then, and what was told
// of one is told, whatever percentages the next opening asks for.
func TestSoftLimitsAtAnOpening(t *testing.T) {
	var e ear
	j := newFlaky()
	open := func(opts ...budget.Option) *budget.Book {
		b, err := budget.New(t.Context(), j, opts...)
		require.NoError(t, err)
		return b
	}
	b := open(budget.Tokens(100))
	spend(t, b, "", 85)
	spend(t, b, "a/b", 5)
	require.NoError(t, b.Close())

	require.NoError(t, open(budget.SoftLimits(e.hear), budget.Tokens(170), budget.Tokens(10).On("a")).Close())
	assert.Equal(t, []string{"50 % of 170 tokens: 90", "50 % of 10 tokens on a: 5"}, e.take())
	require.NoError(t, open(budget.SoftLimits(e.hear, 40, 52)).Close())
	assert.Equal(t, []string{"52 % of 170 tokens: 90"}, e.take())

	b = open(budget.SoftLimits(e.hear), budget.OnOrphan(budget.OrphanKeep))
	_, err := b.Reserve(t.Context(), budget.Request{Tokens: 60})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.Empty(t, e.take())
	open(budget.SoftLimits(e.hear))
	assert.Equal(t, []string{"80 % of 170 tokens: 150"}, e.take(), "an orphan is spent")
}

// The entry is durable before anybody is told; where it is not, nobody is, until
// it is.
func TestSoftLimitIsDurableFirst(t *testing.T) {
	var e ear
	j := newFlaky()
	durable := 0
	tell := budget.SoftLimits(func(s budget.SoftLimit) {
		last := j.all[len(j.all)-1]
		assert.EqualValues(t, s.Percent, last.Cap.Told)
		durable++
		e.hear(s)
	})
	b, err := budget.New(t.Context(), j, tell, budget.Tokens(100))
	require.NoError(t, err)
	r, err := b.Reserve(t.Context(), budget.Request{Tokens: 60})
	require.NoError(t, err)
	_, err = r.Refund(t.Context(), budget.NotBilled, "429")
	require.NoError(t, err)
	j.fail = errors.New("disk on fire")
	_, err = r.Reclaim(t.Context()) // leaves the book as it was
	require.ErrorIs(t, err, j.fail)
	assert.Empty(t, e.take())
	j.fail = nil
	_, err = r.Reclaim(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"50 % of 100 tokens: 60"}, e.take())

	r, err = b.Reserve(t.Context(), budget.Request{Tokens: 30})
	require.NoError(t, err)
	j.fail = errors.New("disk on fire")
	_, err = r.Settle(t.Context(), budget.Usage{Input: 30})
	require.ErrorIs(t, err, j.fail)
	require.ErrorIs(t, b.Report().Broken, budget.ErrBroken)
	j.fail = nil
	assert.Empty(t, e.take())
	_, err = budget.New(t.Context(), j, tell) // the hold is charged
	require.NoError(t, err)
	assert.Equal(t, []string{"80 % of 100 tokens: 90"}, e.take())
	assert.Equal(t, 2, durable)
}

// Of books that share a journal one tells, for all.
func TestSoftLimitsOfASharedJournal(t *testing.T) {
	var ears [2]ear
	var books [3]*budget.Book
	j := newFlaky()
	for i := range books {
		soft := budget.NoSoftLimits()
		if i < len(ears) {
			soft = budget.SoftLimits(ears[i].hear)
		}
		b, err := budget.New(t.Context(), j, soft, budget.Tokens(100))
		require.NoError(t, err)
		books[i] = b
	}
	for i := range 48 {
		spend(t, books[i%2], "", 2)
	}
	assert.ElementsMatch(t, []string{"50 % of 100 tokens: 50", "80 % of 100 tokens: 80", "95 % of 100 tokens: 96"}, append(ears[0].take(), ears[1].take()...))

	// What one booked that tells nobody, the next tells.
	setLimit(t, books[2], budget.Tokens(1000))
	spend(t, books[2], "a", 404)
	setLimit(t, books[2], budget.Tokens(500).On("a"))
	spend(t, books[1], "", 1)
	assert.Equal(t, []string{"50 % of 1000 tokens: 500", "50 % of 500 tokens on a: 404", "80 % of 500 tokens on a: 404"}, ears[1].take())
	assert.Empty(t, ears[0].take())
	spend(t, books[0], "", 1)
	assert.Empty(t, ears[0].take())
}

// tell may call the book: also what reaches the next threshold, which is told
// afterwards.
func TestSoftLimitMayCallTheBook(t *testing.T) {
	var e ear
	var b *budget.Book
	b = budget.Memory(budget.Tokens(100), budget.SoftLimits(func(s budget.SoftLimit) {
		assert.Equal(t, s.Spent, b.Report().Tokens.Net)
		if s.Percent == 50 {
			spend(t, b, "", 30)
			assert.Empty(t, e.heard, "one at a time")
		} else {
			setLimit(t, b, budget.Tokens(1000))
		}
		e.hear(s)
	}))
	spend(t, b, "", 50)
	assert.Equal(t, []string{"50 % of 100 tokens: 50", "80 % of 100 tokens: 80"}, e.take())
	require.NoError(t, b.Close())
}

// A panic is that of the call, which is booked; the book goes on, and so does
// what there is to tell.
func TestSoftLimitPanics(t *testing.T) {
	var e ear
	b := budget.Memory(budget.Tokens(100), budget.SoftLimits(func(s budget.SoftLimit) {
		if e.hear(s); s.Percent == 50 {
			panic("told")
		}
	}))
	assert.PanicsWithValue(t, "told", func() { spend(t, b, "", 96) })
	assert.Len(t, e.take(), 1)
	assert.NoError(t, b.Report().Broken)
	assert.Equal(t, []string{"80 % of 100 tokens: 96", "95 % of 100 tokens: 96"}, e.take())
	spend(t, b, "", 4)
	require.NoError(t, b.Close())
}

// Many callers at once: each threshold once, in order, one at a time.
func TestSoftLimitsOfManyCallers(t *testing.T) {
	var e ear // no lock
	const callers, calls = 32, 50
	b := budget.Memory(budget.Tokens(callers*calls*10), budget.SoftLimits(e.hear, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100))
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				r, err := b.Reserve(t.Context(), budget.Request{Tokens: 10})
				if assert.NoError(t, err) {
					_, err = r.Settle(t.Context(), budget.Usage{Input: 10})
					assert.NoError(t, err)
				}
			}
		})
	}
	all.Wait()
	require.Len(t, e.heard, 10)
	for i, s := range e.heard {
		require.Equal(t, 10*(i+1), s.Percent)
		require.GreaterOrEqual(t, s.Spent*100, int64(s.Percent)*s.Max)
	}
	require.NoError(t, b.Close())
}
