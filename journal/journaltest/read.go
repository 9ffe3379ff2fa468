package journaltest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tollbook/tollbook/journal"
)

// filled begins a journal and fills its second segment with many entries.
func filled(t testing.TB, s Store) *book {
	t.Helper()
	b := begin(t, s)
	b.append(reserve("old"))
	b.rotate(reserve("carried"))
	for i := range 30 {
		b.append(reserve(fmt.Sprint(i)), reserve(fmt.Sprint(i)), reserve(fmt.Sprint(i)))
	}
	return b
}

func entriesAfter(t testing.TB, s Store) {
	b := filled(t, s)
	first := journal.Pos(b.want[0].Seq)
	for after := journal.Pos(0); after <= b.pos+2; after++ {
		want := b.want
		if after >= first {
			want = b.want[min(int(after-first)+1, len(b.want)):]
		}
		b.same(fmt.Sprintf("what stands after %d", after), b.read(after), want)
	}
}

func entriesStop(t testing.TB, s Store) {
	b := filled(t, s)
	seq := b.journal.Entries(ctx, 0)
	for stop := range len(b.want) {
		seen := 0
		for e, err := range seq {
			if err != nil {
				t.Fatal(err)
			}
			b.same("what was read", []journal.Entry{e}, b.want[seen:seen+1])
			if seen++; seen > stop {
				break
			}
		}
	}
	got, err := collect(seq)
	if err != nil {
		t.Fatal(err)
	}
	b.same("the same sequence, to its end", got, b.want)
	b.append(reserve("a"))
	b.check()
}

// readWhileAppending appends in the body of the loop that reads, and beside
// it.
func readWhileAppending(t testing.TB, s Store) {
	b := filled(t, s)
	there := len(b.want)
	var got []journal.Entry
	for e, err := range b.journal.Entries(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e); len(got) <= 2*there {
			b.append(reserve("new"))
		}
		if len(got) > 10*there {
			t.Fatal("a reader that never ends")
		}
	}
	if len(got) < there {
		t.Fatalf("of %d entries %d were read", there, len(got))
	}
	b.same("what was read", got, b.want[:min(len(got), len(b.want))])

	const readers, more = 4, 50
	at := b.pos
	errs := make([]error, readers)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() { errs[r] = follow(b.journal, at, done) })
	}
	func() {
		defer wg.Wait()
		defer close(done)
		for i := range more {
			b.append(reserve(fmt.Sprint(i)), reserve(fmt.Sprint(i)))
		}
	}()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	b.check()
}

// follow reads what stands after a position, again and again until done: pairs
// of entries with numbers that rise, and never less than before.
func follow(j Journal, after journal.Pos, done chan struct{}) error {
	seen := 0
	for last := false; !last; {
		select {
		case <-done:
			last = true // and once more, for all of it
		default:
		}
		entries, err := collect(j.Entries(ctx, after))
		switch {
		case err != nil:
			return err
		case len(entries) < seen || len(entries)%2 != 0:
			return fmt.Errorf("%d entries after %d, where %d had been", len(entries), after, seen)
		}
		seen = len(entries)
		for i, e := range entries {
			if want := fmt.Sprint(i / 2); e.RID != want || journal.Pos(e.Seq) != after+journal.Pos(i)+1 {
				return fmt.Errorf("entry %d after %d is %d, of rid %q, want %q", i+1, after, e.Seq, e.RID, want)
			}
		}
	}
	return nil
}

func readWhileRotating(t testing.TB, s Store) {
	b := filled(t, s)
	want, seen := b.want, 0
	for e, err := range b.journal.Entries(ctx, 0) {
		if errors.Is(err, journal.ErrConflict) {
			break // told
		}
		if err != nil {
			t.Fatal(err)
		}
		if seen == len(want) {
			t.Fatalf("after all that was there, a reader got %s", text(e))
		}
		b.same("what was read", []journal.Entry{e}, want[seen:seen+1])
		if seen++; seen == 2 {
			b.rotate(reserve("new"))
			b.append(reserve("a"))
		}
	}
	b.check()
}
