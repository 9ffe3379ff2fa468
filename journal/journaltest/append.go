package journaltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal"
)

func everyField(t testing.TB, s Store) {
	b := begin(t, s)
	all := samples()
	b.append(all...)
	for _, e := range all {
		b.append(e)
	}
	longest := reserve(strings.Repeat("é", 32))
	longest.Scope, longest.Key, longest.Model = strings.Repeat("s", 256), strings.Repeat("é", 128), strings.Repeat("m", 256)
	longest.Why, longest.Ref, longest.Evidence, longest.Prices = longest.Scope, longest.Scope, longest.Scope, longest.Scope
	b.append(longest, journal.Entry{Kind: journal.Refund}) // and all there is left out
	b.check()
}

func positions(t testing.TB, s Store) {
	b := begin(t, s)
	for n := 1; n <= 20; n++ {
		entries := make([]journal.Entry, n)
		for i := range entries {
			entries[i] = reserve(fmt.Sprintf("%d-%d", n, i))
		}
		b.append(entries...) // checks the position
		if n%7 == 0 {
			b.check()
			b.rotate(entries...)
		}
	}
	b.check()
}

func conflict(t testing.TB, s Store) {
	b := begin(t, s)
	b.append(reserve("a"), reserve("b"))
	for _, after := range []journal.Pos{0, b.pos - 2, b.pos - 1, b.pos + 1, 1 << 40} {
		_, err := b.journal.Append(ctx, after, newBatch(reserve("lost")))
		b.refused(fmt.Sprintf("append at %d, not at %d", after, b.pos), err, journal.ErrConflict)
	}
	_, err := b.journal.Append(ctx, b.pos-1, journal.Batch{})
	b.refused("nothing, at a wrong position", err, journal.ErrConflict)
	b.check()
}

func repeat(t testing.TB, s Store) {
	b := begin(t, s)
	batch, at := newBatch(reserve("a"), reserve("b")), b.pos
	b.appendBatch(batch)
	for range 3 {
		if end, err := b.journal.Append(ctx, at, batch); err != nil || end != b.pos {
			t.Fatalf("repeated: %d, %v; want %d", end, err, b.pos)
		}
	}
	b.check()
	_, err := b.journal.Append(ctx, at, newBatch(batch.Entries...))
	b.refused("another batch of the same entries", err, journal.ErrConflict)

	// A batch without an id is never a repeat.
	nameless := journal.Batch{Entries: []journal.Entry{reserve("c")}}
	at = b.pos
	b.appendBatch(nameless)
	_, err = b.journal.Append(ctx, at, nameless)
	b.refused("a batch without an id, repeated", err, journal.ErrConflict)

	// One that others have followed may be known still or not; it is not
	// written again.
	at, batch = b.pos, newBatch(batch.Entries...)
	b.appendBatch(batch)
	end := b.pos
	b.append(reserve("d"))
	for range 2 {
		got, err := b.journal.Append(ctx, at, batch)
		if !(err == nil && got == end || errors.Is(err, journal.ErrConflict)) {
			t.Fatalf("an older batch repeated: %d, %v; want %d or a conflict", got, err, end)
		}
		b.check()
		b.rotate()
	}

	// At another position an id is no repeat: appended or refused, and never
	// taken for done.
	batch = newBatch(reserve("e"))
	b.appendBatch(batch)
	if got, err := b.journal.Append(ctx, b.pos, batch); err == nil {
		b.pos, b.want = got, append(b.want, numbered(batch.Entries, b.pos+1)...)
	}
	b.check()
	b.append(reserve("f"))
	b.check()
}

func emptyBatch(t testing.TB, s Store) {
	b := begin(t, s)
	for _, id := range []uuid.UUID{uuid.New(), uuid.Nil} {
		b.appendBatch(journal.Batch{ID: id})
		b.check()
		b.append(reserve("a"))
	}
	b.check()
}

// badEntries cannot be stored: only a rotation and the journal itself write
// their kind, or there is none, or what they say does not belong to it.
func badEntries() map[string]journal.Entry {
	return map[string]journal.Entry{
		"an open entry":        opening()[0],
		"a seal":               {Kind: journal.Seal},
		"no kind":              {RID: "r"},
		"an unknown kind":      {Kind: journal.Seal + 1, RID: "r"},
		"a limit without cap":  {Kind: journal.Limit},
		"a cap on a reserve":   {Kind: journal.Reserve, RID: "r", Cap: &journal.Cap{Kind: "tokens"}},
		"an opening elsewhere": {Kind: journal.Settle, RID: "r", Opening: &journal.Opening{}},
	}
}

func allOrNothing(t testing.TB, s Store) {
	b := begin(t, s)
	for what, bad := range badEntries() {
		for at := range 3 {
			entries := []journal.Entry{reserve("a"), reserve("b"), reserve("c")}
			entries[at] = bad
			_, err := b.journal.Append(ctx, b.pos, newBatch(entries...))
			b.refused(fmt.Sprintf("%s as entry %d of 3", what, at+1), err, nil)
		}
	}
	b.check()
}

func readBackOrRefused(t testing.TB, s Store) {
	b := begin(t, s)
	for size := 1 << 10; size <= 4<<20; size *= 4 {
		long := reserve("long")
		long.Why = strings.Repeat("w", size)
		batch := newBatch(reserve("before"), long)
		want := numbered(batch.Entries, b.pos+2)
		if end, err := b.journal.Append(ctx, b.pos, batch); err != nil {
			b.refused(fmt.Sprintf("%d bytes", size), err, nil)
		} else {
			b.pos, b.want = end, append(b.want, want...)
			b.check()
		}
	}
}

func firstARotation(t testing.TB, s Store) {
	b := &book{TB: t, journal: s.Open(t)}
	b.check()
	if _, err := b.journal.Append(ctx, 0, newBatch(reserve("early"))); err == nil {
		t.Fatal("appended before the first Rotate")
	}
	b.rotate()
	b.append(reserve("a"))
	b.check()
}

func contextDone(t testing.TB, s Store) {
	b := begin(t, s)
	b.append(reserve("a"))
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := b.journal.Append(done, b.pos, newBatch(reserve("lost")))
	b.refused("append", err, context.Canceled)
	_, err = b.journal.Rotate(done, b.pos, opening())
	b.refused("rotate", err, context.Canceled)
	_, err = collect(b.journal.Entries(done, 0))
	b.refused("read", err, context.Canceled)
}

func ownMemory(t testing.TB, s Store) {
	b := begin(t, s)
	entries := samples()
	b.append(entries...)
	spoil(entries)
	b.check()
	spoil(b.read(0))
	b.check()

	carried := append(opening(), samples()...)
	carried[0].Opening.Balances = []journal.Balance{{Scope: "s"}}
	b.rotateTo(carried)
	spoil(carried)
	b.check()
	spoil(b.read(0))
	b.check()
}

// spoil changes all that entries hold and point to.
func spoil(entries []journal.Entry) {
	for i := range entries {
		e := &entries[i]
		if e.Cap != nil {
			e.Cap.Max++
		}
		if e.Opening != nil {
			e.Opening.Book = "spoilt"
			for i := range e.Opening.Balances {
				e.Opening.Balances[i].Scope = "spoilt"
			}
		}
		if e.Past != nil {
			e.Past.State = "spoilt"
			for i := range e.Past.Evidence {
				e.Past.Evidence[i].Key = "spoilt"
			}
		}
		*e = journal.Entry{Kind: journal.Refund, RID: "spoilt"}
	}
}

func failedAppend(t testing.TB, s Store) {
	if s.FailAppend == nil {
		t.Skip("this store cannot make an append fail")
	}
	b := begin(t, s)
	b.append(reserve("a"))
	batch, acked := newBatch(reserve("b"), reserve("c")), b.want
	want := numbered(batch.Entries, b.pos+2)
	s.FailAppend(t)
	_, first := b.journal.Append(ctx, b.pos, batch)
	if first == nil {
		t.Fatal("the append did not fail")
	}
	if !errors.Is(first, journal.ErrPoisoned) {
		end, err := b.journal.Append(ctx, b.pos, batch)
		if err != nil || end != b.pos+2 {
			t.Fatalf("repeated after %q: %d, %v; want %d", first, end, err, b.pos+2)
		}
		b.pos, b.want = end, append(b.want, want...)
		b.check()
		b.append(reserve("d"))
		b.check()
		return
	}
	_, err := b.journal.Append(ctx, b.pos, newBatch(reserve("d")))
	if !errors.Is(err, journal.ErrPoisoned) {
		t.Fatalf("an append to a poisoned journal: %v", err)
	}
	_, err = b.journal.Rotate(ctx, b.pos, opening())
	if !errors.Is(err, journal.ErrPoisoned) {
		t.Fatalf("a rotation of a poisoned journal: %v", err)
	}
	if s.Keeps {
		closeJournal(b.journal) // says again that it is poisoned
		b.journal = s.Open(t)
		got := b.read(0)
		b.same("what was acknowledged", got[:min(len(got), len(acked))], acked)
	}
}
