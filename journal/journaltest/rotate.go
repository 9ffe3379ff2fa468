package journaltest

import (
	"fmt"
	"testing"

	"github.com/tollbook/tollbook/journal"
)

func snapshot(t testing.TB, s Store) {
	b := &book{TB: t, journal: s.Open(t)}
	for n := range 4 {
		head := opening()[0]
		head.Change = journal.Change{Amount: 9, Cost: 8, Requests: 7, Confirmed: 6, ConfirmedCost: 5, Assumed: 4, AssumedCost: 3, Maybe: 2}
		head.Opening.Balances = []journal.Balance{{Scope: "a/b", Change: head.Change.Negated()}, {Scope: "c"}}
		if n == 2 { // a guard that names the book is held to it, and may be silent again
			head.Opening.Book = b.id
		}
		b.rotateTo(append([]journal.Entry{head}, samples()[:5*n]...))
		b.append(reserve("a"))
		b.append(reserve("b"), reserve("c"))
		b.check()
	}
}

func rotateConflict(t testing.TB, s Store) {
	b := begin(t, s)
	b.append(reserve("a"), reserve("b"))
	for _, after := range []journal.Pos{0, b.pos - 1, b.pos + 1} {
		_, err := b.journal.Rotate(ctx, after, opening(reserve("lost")))
		b.refused(fmt.Sprintf("rotate at %d, not at %d", after, b.pos), err, journal.ErrConflict)
	}
	b.rotate(reserve("a"))
	b.check()
}

func rotateRefuses(t testing.TB, s Store) {
	b := begin(t, s)
	bad := map[string][]journal.Entry{
		"nothing":      nil,
		"no open line": {reserve("a")},
		"no opening":   {{Kind: journal.Open}},
		"another book": {{Kind: journal.Open, Opening: &journal.Opening{Book: "another"}}},
	}
	for what, e := range badEntries() {
		bad[what] = opening(reserve("a"), e)
	}
	for what, carried := range bad {
		_, err := b.journal.Rotate(ctx, b.pos, carried)
		b.refused("a segment that begins with "+what, err, nil)
	}
	b.rotate()
	b.check()
}

func dueByHalf(t testing.TB, s Store) {
	b := begin(t, s)
	j, ok := b.journal.(interface{ Due(carried int) bool })
	if !ok {
		t.Skip("this journal never asks for a rotation")
	}
	carried := samples()
	b.rotate(carried...)
	lines := 1 + len(carried)
	for range 2 * lines {
		if due := j.Due(lines/2 + 1); due {
			t.Fatalf("of %d lines a rotation that carries %d is due", lines, lines/2+1)
		}
		b.append(reserve("a"))
		lines++
	}
}
