package budget_test

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// A fold keeps no entry and none of its strings, which its reader uses again
// (rule 17: the fold is the guard's own).

// borrowed returns e with all its strings in one buffer that is used again.
func borrowed(e journal.Entry, buf *[]byte) *journal.Entry {
	for i := range *buf {
		(*buf)[i] = '#'
	}
	*buf = (*buf)[:0]
	lend := func(s *string) {
		from := len(*buf)
		if *buf = append(*buf, *s...); *s != "" {
			*s = unsafe.String(&(*buf)[from], len(*s))
		}
	}
	for _, s := range []*string{&e.RID, &e.Scope, &e.Key, &e.Model, &e.Why, &e.Ref, &e.Evidence, &e.Prices} {
		lend(s)
	}
	if e.Opening != nil {
		o := *e.Opening
		lend(&o.Book)
		o.Balances = append([]journal.Balance{}, o.Balances...)
		for i := range o.Balances {
			lend(&o.Balances[i].Scope)
		}
		e.Opening = &o
	}
	if e.Past != nil {
		p := *e.Past
		lend(&p.State)
		p.Evidence = append([]journal.Proof{}, p.Evidence...)
		for i := range p.Evidence {
			lend(&p.Evidence[i].Key)
		}
		e.Past = &p
	}
	if e.Cap != nil {
		c := *e.Cap
		lend(&c.Kind)
		e.Cap = &c
	}
	return &e
}

func TestFoldKeepsNoStrings(t *testing.T) {
	j := newFlaky()
	for round := range 2 { // the second begins with carried lines
		b, err := budget.New(t.Context(), j, budget.Tokens(1_000_000), budget.OnOrphan(budget.OrphanKeep))
		require.NoError(t, err)
		for i := range 20 {
			r, err := b.Reserve(t.Context(), budget.Request{RID: fmt.Sprintf("call-%d-%d", round, i), Tokens: 10, Scope: fmt.Sprintf("a/%d", i%3),
				Key: fmt.Sprintf("key-%d-%d", round, i), Model: fmt.Sprintf("model-%d", i%4)})
			require.NoError(t, err)
			require.NoError(t, r.Extend(t.Context(), budget.MaybeBilled, fmt.Sprintf("why-%d", i%2)))
			switch i % 4 {
			case 0:
				settle(t, r, 15)
			case 1:
				require.NoError(t, r.Close())
				_, err = r.Adjust(t.Context(), budget.Evidence{Key: fmt.Sprintf("bill-%d", i), Usage: budget.Usage{Input: 3}})
			case 2:
				_, err = r.Refund(t.Context(), budget.NotBilled, "429")
			}
			require.NoError(t, err)
		}
		require.NoError(t, b.Close())
	}
	// Another book's entries contradict: what is told of them is kept, too.
	entries := append(j.all[:len(j.all):len(j.all)], j.all[5], journal.Entry{Kind: journal.Settle, RID: "call-0-0"},
		journal.Entry{Kind: journal.Settle, RID: "stray"}, journal.Entry{Kind: journal.Settle, RID: "stray"})
	from, size := []int{0, 0}, 1<<16
	for i, e := range j.all {
		if e.Kind == journal.Open {
			from[1] = i // the newest segment alone
		}
	}
	for _, from := range from {
		whole, lent := budget.NewAudit(), budget.NewAudit()
		buf := make([]byte, 0, size)
		whole.AddAll(entries[from:])
		for _, e := range entries[from:] {
			lent.Add(borrowed(e, &buf))
		}
		borrowed(journal.Entry{}, &buf)
		require.NotEmpty(t, whole.MultiClosed)
		require.Equal(t, whole.MultiClosed, lent.MultiClosed)
		require.Equal(t, whole.Violations, lent.Violations)
		require.Equal(t, whole.Report(), lent.Report())
	}
}
