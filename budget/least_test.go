package budget_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/budgettest"
)

// A reserve with a Least takes what is left, and never less than that because
// others hold the rest.

// spend books tokens as used, on a scope.
func spend(t *testing.T, b *budget.Book, scope string, tokens int64) {
	t.Helper()
	r, err := b.Reserve(t.Context(), budget.Request{Scope: scope, Tokens: tokens, Model: "m"})
	require.NoError(t, err)
	_, err = r.Settle(t.Context(), budget.Usage{Input: tokens})
	require.NoError(t, err)
}

func TestLeast(t *testing.T) {
	for _, c := range []struct {
		name        string
		limits      []budget.Option
		spent, held int64
		ask         budget.Request
		want        int64 // tokens granted
		err         error
	}{
		{"all of it where it fits", nil, 0, 0, budget.Request{Tokens: 100, Least: 10}, 100, nil},
		{"what is left", nil, 30, 0, budget.Request{Tokens: 100, Least: 10}, 70, nil},
		{"the least exactly", nil, 90, 0, budget.Request{Tokens: 100, Least: 10}, 10, nil},
		{"less than the least", nil, 91, 0, budget.Request{Tokens: 100, Least: 10}, 0, budget.ErrExhausted},
		{"none unless asked", nil, 30, 0, budget.Request{Tokens: 100}, 0, budget.ErrExhausted},
		{"never for what others hold", nil, 0, 30, budget.Request{Tokens: 100, Least: 10}, 0, budget.ErrBusy},
		{"what is left, and others hold a part", nil, 30, 20, budget.Request{Tokens: 100, Least: 10}, 0, budget.ErrBusy},
		{"larger than the limit", nil, 0, 0, budget.Request{Tokens: 1000, Least: 10}, 100, nil},
		{"input stays", nil, 30, 0, budget.Request{Tokens: 100, Output: 40, Least: 61}, 70, nil},
		{"and some output", nil, 39, 0, budget.Request{Tokens: 100, Output: 40, Least: 61}, 61, nil},
		{"no more than that", nil, 40, 0, budget.Request{Tokens: 100, Output: 40, Least: 61}, 0, budget.ErrExhausted},
		{"the smallest of the path", []budget.Option{budget.Tokens(50).On("a")}, 20, 0, budget.Request{Scope: "a/b", Tokens: 100, Least: 10}, 30, nil},
		{"above the path", []budget.Option{budget.Tokens(50).On("a")}, 70, 0, budget.Request{Scope: "b", Tokens: 100, Least: 10}, 30, nil},
		{"a limit of zero", []budget.Option{budget.Tokens(0).On("a")}, 0, 0, budget.Request{Scope: "a", Tokens: 100, Least: 1}, 0, budget.ErrExhausted},
		{"requests cannot be reduced", []budget.Option{budget.Requests(1)}, 30, 0, budget.Request{Tokens: 100, Least: 10}, 0, budget.ErrExhausted},

		{"money alone, all output at 7", []budget.Option{budget.Picodollars(350)}, 0, 0, budget.Request{Model: "m", Tokens: 100, Least: 10}, 50, nil},
		{"money of 40 in at 3 and the rest out at 7", []budget.Option{budget.Picodollars(350)}, 0, 0, budget.Request{Model: "m", Tokens: 100, Output: 60, Least: 41}, 40 + (350-120)/7, nil},
		{"money for the least exactly", []budget.Option{budget.Picodollars(127)}, 0, 0, budget.Request{Model: "m", Tokens: 100, Output: 60, Least: 41}, 41, nil},
		{"and a picodollar less", []budget.Option{budget.Picodollars(126)}, 0, 0, budget.Request{Model: "m", Tokens: 100, Output: 60, Least: 41}, 0, budget.ErrExhausted},
		{"tokens are shorter than money", []budget.Option{budget.Picodollars(650)}, 20, 0, budget.Request{Model: "m", Tokens: 100, Output: 60, Least: 41}, 80, nil},
		{"money is shorter than tokens", []budget.Option{budget.Picodollars(60 + 390)}, 20, 0, budget.Request{Model: "m", Tokens: 100, Output: 60, Least: 41}, 40 + (390-120)/7, nil},
		{"money below the root", []budget.Option{budget.Picodollars(350).On("a")}, 10, 0, budget.Request{Scope: "a/b", Model: "m", Tokens: 80, Output: 40, Least: 41}, 40 + (350-30-120)/7, nil},
		{"a price of the caller's own stays", []budget.Option{budget.Picodollars(350)}, 0, 0, budget.Request{Tokens: 100, Least: 10, Cost: 351}, 0, budget.ErrExhausted},
		{"and is no matter where it fits", []budget.Option{budget.Picodollars(350)}, 30, 0, budget.Request{Tokens: 100, Least: 10, Cost: 20}, 70, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := budgettest.New(t, append([]budget.Option{budget.Tokens(100), budget.Prices(table{})}, c.limits...)...)
			if c.spent > 0 {
				spend(t, b, c.ask.Scope, c.spent)
			}
			if c.held > 0 {
				r, err := b.Reserve(t.Context(), budget.Request{Tokens: c.held, Model: "m"})
				require.NoError(t, err)
				defer r.Close()
			}
			before := b.Report()
			r, err := b.Reserve(t.Context(), c.ask)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.Equal(t, before.Tokens, b.Report().Tokens)
				return
			}
			require.NoError(t, err)
			defer r.Close()
			require.Equal(t, c.want, r.Tokens())
			require.Equal(t, before.Tokens.Net+c.want, b.Report().Tokens.Net)
			for _, l := range b.Report().Limits {
				require.GreaterOrEqual(t, l.Free, int64(0))
			}
		})
	}
}

// The refusal names the least that was asked: with more left than that it would
// not have come.
func TestLeastIsWhatWasRefused(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	spend(t, b, "", 95)
	_, err := b.Reserve(t.Context(), budget.Request{Tokens: 100, Least: 10})
	var refused *budget.ExhaustedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, [2]int64{10, 5}, [2]int64{refused.Asked, refused.Free()})
}

func TestLeastIsChecked(t *testing.T) {
	b := budget.Memory(budget.Tokens(100))
	for _, r := range []budget.Request{
		{Tokens: 10, Least: -1}, {Tokens: 10, Least: 11}, {Tokens: 10, Output: 4, Least: 6}, {Tokens: 10, Output: 4, Least: 1},
	} {
		_, err := b.Reserve(t.Context(), r)
		require.ErrorIs(t, err, budget.ErrInvalid, r)
	}
}

// A price that cannot be told for fewer tokens is that of all.
type moody struct{ table }

func (m moody) Most(model string, u budget.Usage) (int64, error) {
	if u.Total() < 100 {
		return 0, budget.ErrNoPrice
	}
	return m.table.Most(model, u)
}

func TestLeastWithAPricerThatFails(t *testing.T) {
	b := budget.Memory(budget.Tokens(1000), budget.Picodollars(350), budget.Prices(moody{}))
	_, err := b.Reserve(t.Context(), budget.Request{Model: "m", Tokens: 100, Least: 1})
	require.ErrorIs(t, err, budget.ErrExhausted)
}

// The same rid again is one hold, whatever was granted of what was asked; and
// every further attempt holds as much as the first.
func TestLeastAndTheSameRID(t *testing.T) {
	b := budget.Memory(budget.Tokens(100), budget.Picodollars(1000), budget.Prices(table{}))
	spend(t, b, "", 30)
	ask := budget.Request{RID: "x", Model: "m", Tokens: 100, Output: 50, Least: 60}
	r, err := b.Reserve(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, int64(70), r.Tokens())
	again := func(change func(*budget.Request)) error {
		r := ask
		change(&r)
		_, err := b.Reserve(t.Context(), r)
		return err
	}
	require.ErrorIs(t, again(func(*budget.Request) {}), budget.ErrInFlight)
	require.ErrorIs(t, again(func(r *budget.Request) { r.Tokens, r.Output, r.Least = 70, 20, 0 }), budget.ErrInFlight, "what it is now")
	require.ErrorIs(t, again(func(r *budget.Request) { r.Least = 0 }), budget.ErrConflict, "this one could not have been granted so")
	require.ErrorIs(t, again(func(r *budget.Request) { r.Least = 71 }), budget.ErrConflict)
	require.ErrorIs(t, again(func(r *budget.Request) { r.Tokens, r.Least = 69, 60 }), budget.ErrConflict)
	require.ErrorIs(t, again(func(r *budget.Request) { r.Output = 45 }), budget.ErrConflict, "at another price")
	require.ErrorIs(t, r.Extend(t.Context(), budget.MaybeBilled, "timeout"), budget.ErrExhausted)
	_, err = r.Settle(t.Context(), budget.Usage{Input: 40})
	require.NoError(t, err)
	require.ErrorIs(t, again(func(*budget.Request) {}), budget.ErrClosed)
	require.ErrorIs(t, again(func(r *budget.Request) { r.Least = 0 }), budget.ErrConflict)
	require.Zero(t, b.Reservation("x").Tokens())
}

// ask is a reserve on a goroutine of its own.
func ask(t *testing.T, b *budget.Book, r budget.Request) <-chan reserved {
	done := make(chan reserved, 1)
	go func() {
		held, err := b.Reserve(t.Context(), r)
		done <- reserved{held, err}
	}()
	synctest.Wait()
	return done
}

type reserved struct {
	*budget.Reservation
	err error
}

// granted is the reservation that an ask came to.
func granted(t *testing.T, done <-chan reserved, tokens int64) *budget.Reservation {
	t.Helper()
	o := <-done
	require.NoError(t, o.err)
	require.Equal(t, tokens, o.Tokens())
	return o.Reservation
}

// Whoever waits is granted what is left when its turn comes, not what was left
// when it came: all of its tokens if there is room for them by then.
func TestLeastWaitsForHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(100))
		wait := func(tokens, least int64) <-chan reserved {
			return ask(t, b, budget.Request{Tokens: tokens, Least: least, MaxWait: time.Minute})
		}
		spend(t, b, "", 10)
		first, second := reserve(t, b, 30, 0), reserve(t, b, 50, 0)
		reduced := wait(95, 20) // 90 are left
		plain := wait(15, 0)
		settle(t, first, 20)
		synctest.Wait()
		require.Empty(t, reduced, "others hold a part of the 70 that are left now")
		require.Empty(t, plain, "and nobody passes it, though there is room")
		settle(t, second, 5)
		settle(t, granted(t, reduced, 65), 5)
		settle(t, granted(t, plain, 15), 10)

		// 50 of 100 are left. The limit is raised while one waits.
		hold := reserve(t, b, 50, 0)
		whole := wait(60, 20)
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(110)))
		synctest.Wait()
		require.Empty(t, whole)
		settle(t, hold, 1)
		settle(t, granted(t, whole, 59), 1)

		// And lowered below what the least needs.
		hold = reserve(t, b, 50, 0)
		refused := wait(60, 20)
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(60)))
		require.ErrorIs(t, (<-refused).err, budget.ErrExhausted)
		settle(t, hold, 1)
	})
}

// Who stands behind another is told as soon as not even its least can come, and
// not before.
func TestLeastInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(100))
		first, second := reserve(t, b, 50, 0), reserve(t, b, 50, 0)
		var line []<-chan reserved
		for _, least := range []int64{10, 30, 70} {
			line = append(line, ask(t, b, budget.Request{Tokens: 95, Least: least, MaxWait: time.Minute}))
		}
		settle(t, first, 40)
		require.ErrorIs(t, (<-line[2]).err, budget.ErrExhausted)
		synctest.Wait()
		require.Empty(t, line[1])
		settle(t, second, 10)
		settle(t, granted(t, line[0], 50), 20)
		settle(t, granted(t, line[1], 30), 30)
	})
}

// Nor does one that is reduced pass another, though what is left for it would fit.
func TestLeastIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budgettest.New(t, budget.Tokens(100), budget.Tokens(30).On("a"))
		first, second := reserve(t, b, 30, 0), reserve(t, b, 30, 0)
		large := ask(t, b, budget.Request{Tokens: 80, MaxWait: time.Minute})
		reduced := ask(t, b, budget.Request{Scope: "a", Tokens: 60, Least: 10, MaxWait: time.Minute})
		settle(t, first, 1)
		synctest.Wait()
		require.Empty(t, reduced)
		settle(t, second, 1)
		settle(t, granted(t, large, 80), 1)
		settle(t, granted(t, reduced, 30), 1)
	})
}

// At the edge: whoever comes is granted what is left, no one more than that, and
// all of it is used in the end.
func TestLeastAtTheEdge(t *testing.T) {
	const limit, workers = 1000, 64
	b := budgettest.New(t, budget.Tokens(limit))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				r, err := b.Reserve(t.Context(), budget.Request{Tokens: 100, Output: 99, Least: 2, MaxWait: time.Minute})
				if errors.Is(err, budget.ErrExhausted) {
					return
				}
				if err == nil {
					_, err = r.Settle(t.Context(), budget.Usage{Input: 1, Output: min(9, r.Tokens()-1)})
				}
				if err != nil {
					t.Error(err)
					return
				}
				if net := b.Report().Tokens.Net; net > limit {
					t.Errorf("net is %d", net)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, budget.Figures{Net: limit, Confirmed: limit}, b.Report().Tokens)
}
