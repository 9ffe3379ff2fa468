package budget

import (
	"context"
	"iter"

	"github.com/tollbook/tollbook/journal"
)

// Memory returns a book that ends with the process: it keeps counters and
// reservations, and no entries. It panics on an option that is never right,
// such as a negative limit.
func Memory(opts ...Option) *Book {
	b, err := New(context.Background(), nowhere{}, opts...)
	if err != nil {
		panic("budget: Memory: " + err.Error())
	}
	return b
}

// nowhere is the journal of a book that nobody will open again.
type nowhere struct{}

func (nowhere) Append(_ context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	return after + journal.Pos(len(b.Entries)), nil
}

func (nowhere) Entries(context.Context, journal.Pos) iter.Seq2[journal.Entry, error] {
	return func(func(journal.Entry, error) bool) {}
}

func (nowhere) Rotate(_ context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error) {
	return after + journal.Pos(len(carried)), nil
}
