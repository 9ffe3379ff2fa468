// Package budgettest asserts a book's invariants in your own tests.
//
//	book := budgettest.New(t, budget.Tokens(10_000))
//
// is a book in memory. When the test ends, it fails if the entries contradict
// each other, if they do not add up to the counters, if a reservation was
// closed twice, if a limit was exceeded by an admission, or if a reservation
// was left open.
package budgettest

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// New returns a book in memory that is checked and closed when the test ends.
// Every entry is kept until then, so it is for tests that book thousands of
// calls, not billions. If opts are not valid the test ends at once.
func New(t testing.TB, opts ...budget.Option) *budget.Book {
	t.Helper()
	j := &recorder{Memory: journal.NewMemory()}
	book, err := budget.New(context.Background(), j, opts...)
	if err != nil {
		t.Fatalf("budgettest: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		check(t, book.Report(), j.recorded())
		if err := book.Close(); err != nil {
			t.Errorf("budgettest: close: %v", err)
		}
	})
	return book
}

// Check folds entries, from the first of a book on, and fails the test where
// they break an invariant or do not add up to want.
func Check(t testing.TB, want budget.Report, entries iter.Seq2[journal.Entry, error]) {
	t.Helper()
	check(t, want, entries)
}

// RequireClosed fails the test at once if reservations of the book are open,
// and names them.
func RequireClosed(t testing.TB, book *budget.Book) {
	t.Helper()
	if open := book.Report().Open; len(open) > 0 {
		leftOpen(t, open)
		t.FailNow()
	}
}

// reporter is what the checks need of a test, so that they can be tested.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

func check(t reporter, want budget.Report, entries iter.Seq2[journal.Entry, error]) {
	t.Helper()
	audit := budget.NewAudit()
	for e, err := range entries {
		if err != nil {
			t.Errorf("budgettest: reading the entries: %v", err)
			return
		}
		audit.Add(&e)
	}
	for _, v := range audit.Violations {
		t.Errorf("budgettest: %v", v)
	}
	for rid, n := range audit.MultiClosed {
		t.Errorf("budgettest: reservation %q was closed %d times", rid, n)
	}
	got := audit.Report()
	if got.Balance != want.Balance {
		t.Errorf("budgettest: the entries add up to %+v, the counters say %+v", got.Balance, want.Balance)
	}
	if !slices.Equal(got.Scopes, want.Scopes) {
		t.Errorf("budgettest: by scope the entries add up to %+v, the counters say %+v", got.Scopes, want.Scopes)
	}
	leftOpen(t, want.Open)
	if want.Broken != nil {
		t.Errorf("budgettest: %v", want.Broken)
	}
}

func leftOpen(t reporter, open []budget.OpenReservation) {
	t.Helper()
	for _, o := range open {
		t.Errorf("budgettest: reservation %q (scope %q, key %q, %d tokens) was left open; defer its Close", o.RID, o.Scope, o.Key, o.Tokens)
	}
}

// recorder is a memory journal that keeps all it ever took.
type recorder struct {
	*journal.Memory
	mu      sync.Mutex
	entries []journal.Entry
}

func (r *recorder) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	pos, err := r.Memory.Append(ctx, after, b)
	if err == nil {
		r.keep(b.Entries)
	}
	return pos, err
}

func (r *recorder) Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error) {
	pos, err := r.Memory.Rotate(ctx, after, carried)
	if err == nil {
		r.keep(carried)
	}
	return pos, err
}

func (r *recorder) keep(entries []journal.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, entries...)
}

func (r *recorder) recorded() iter.Seq2[journal.Entry, error] {
	r.mu.Lock()
	entries := slices.Clone(r.entries)
	r.mu.Unlock()
	return func(yield func(journal.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}
