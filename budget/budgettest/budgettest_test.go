package budgettest

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// fake collects what a check says, in place of a test that fails.
type fake struct{ said []string }

func (f *fake) Helper() {}
func (f *fake) Errorf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func entries(es ...journal.Entry) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for _, e := range es {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func TestNewAcceptsABalancedBook(t *testing.T) {
	book := New(t, budget.Tokens(100))
	for range 10 {
		r, err := book.Reserve(t.Context(), budget.Request{Tokens: 10})
		require.NoError(t, err)
		_, err = r.Settle(t.Context(), budget.Usage{Input: 5})
		require.NoError(t, err)
	}
	RequireClosed(t, book)
}

// Each broken promise is told apart.
func TestCheckFinds(t *testing.T) {
	reserve := journal.Entry{Kind: journal.Reserve, RID: "r", Change: journal.Change{Amount: 10, Requests: 1}, Seq: 1}
	refund := journal.Entry{Kind: journal.Refund, RID: "r", Change: journal.Change{Amount: -10}, Seq: 2}
	short := refund
	short.Amount = -5
	limit := journal.Entry{Kind: journal.Limit, Seq: 1, Cap: &journal.Cap{Kind: "tokens", Max: 9}}
	open := budget.Report{Balance: budget.Balance{Tokens: budget.Figures{Net: 10, Held: 10}, Requests: 1, Open: 1},
		Open: []budget.OpenReservation{{RID: "r", Tokens: 10}}}
	refunded := budget.Report{Balance: budget.Balance{Requests: 1}}
	for _, c := range []struct {
		name    string
		entries []journal.Entry
		report  budget.Report
		say     []string // what is said, in order; nothing else
	}{
		{"nothing wrong", []journal.Entry{reserve, refund}, refunded, nil},
		{"left open", []journal.Entry{reserve}, open, []string{"left open"}},
		{"closed twice", []journal.Entry{reserve, refund, refund}, refunded, []string{"which is refunded", "closed 2 times"}},
		{"never reserved", []journal.Entry{refund}, budget.Report{}, []string{"never reserved"}},
		{"above the limit", []journal.Entry{limit, reserve, refund}, refunded, []string{"above the limit"}},
		{"refund of another amount", []journal.Entry{reserve, short}, refunded, []string{"leaves 5 tokens", "add up to"}},
		{"counter elsewhere", []journal.Entry{reserve, refund}, budget.Report{}, []string{"add up to"}},
	} {
		var f fake
		check(&f, c.report, entries(c.entries...))
		require.Len(t, f.said, len(c.say), "%s: %s", c.name, strings.Join(f.said, "\n"))
		for i, say := range c.say {
			require.Contains(t, f.said[i], say, c.name)
		}
	}
}
