package journaltest

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/tollbook/tollbook/journal"
)

func closeJournal(j Journal) error {
	if c, ok := j.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func closed(t testing.TB, s Store) {
	b := begin(t, s)
	b.append(reserve("a"))
	c, ok := b.journal.(io.Closer)
	if !ok {
		t.Skip("this journal is not closed")
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Fatalf("Close, twice: %v", err)
	}
	_, appended := b.journal.Append(ctx, b.pos, newBatch(reserve("late")))
	_, nothing := b.journal.Append(ctx, b.pos, journal.Batch{})
	_, rotated := b.journal.Rotate(ctx, b.pos, opening())
	_, read := collect(b.journal.Entries(ctx, 0))
	for what, err := range map[string]error{"Append": appended, "Append of nothing": nothing, "Rotate": rotated, "Entries": read} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s of a closed journal: %v, want %v", what, err, journal.ErrClosed)
		}
	}
}

func reopen(t testing.TB, s Store) {
	if !s.Keeps {
		t.Skip("this store keeps nothing")
	}
	again(t, s, func(b *book) {
		if err := closeJournal(b.journal); err != nil {
			t.Fatalf("Close: %v", err)
		}
	})
}

func kill(t testing.TB, s Store) {
	if !s.Keeps || s.Kill == nil {
		t.Skip("this store keeps nothing, or cannot be killed")
	}
	again(t, s, func(*book) { s.Kill(t) })
}

// again opens a journal several times, in every state that its end may find.
func again(t testing.TB, s Store, end func(b *book)) {
	b := &book{TB: t, journal: s.Open(t)}
	reopened := func() {
		t.Helper()
		end(b)
		b.journal = s.Open(t)
		b.check()
	}
	reopened()
	for range 3 {
		b.rotate(samples()...)
		reopened()
		b.rotate()
		b.append(samples()...)
		b.append(reserve("a"))
		reopened()
		reopened() // nothing was done
	}
}

func secondHandle(t testing.TB, s Store) {
	if !s.Shared {
		t.Skip("this store has one handle at a time")
	}
	b := begin(t, s)
	one, two := b.journal, s.Open(t)
	batch, at := newBatch(reserve("a"), reserve("b")), b.pos
	b.appendBatch(batch)
	end := b.pos

	b.journal = two
	b.check()
	_, err := two.Append(ctx, at, newBatch(reserve("lost")))
	b.refused("an append that missed the other handle's", err, journal.ErrConflict)

	// The outcome of the first batch was unknown, say: its owner asks again,
	// by the same handle or by a new one, though others have written since.
	for _, j := range []Journal{one, two} {
		if got, err := j.Append(ctx, at, batch); err != nil || got != end {
			t.Fatalf("repeated after another handle's append: %d, %v; want %d", got, err, end)
		}
	}
	b.check()

	b.journal = one
	b.rotate(reserve("carried"))
	_, err = two.Append(ctx, end, newBatch(reserve("lost")))
	b.refused("an append that missed the other handle's rotation", err, journal.ErrConflict)
	news, err := collect(two.Entries(ctx, end))
	if err != nil {
		t.Fatal(err)
	}
	b.same("what the other handle reads then", news, slices.Clone(b.want))
	b.journal = two
	b.append(reserve("c"))
	b.journal = one
	b.check()
}
