package journaltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal"
)

// book is a journal in a test, and what must be in its newest segment.
type book struct {
	testing.TB
	journal Journal
	pos     journal.Pos
	want    []journal.Entry
	id      string // of the book, from its first open entry
	segment int64
}

// begin opens a journal and rotates it for the first time.
func begin(t testing.TB, s Store) *book {
	t.Helper()
	b := &book{TB: t, journal: s.Open(t)}
	b.rotate()
	return b
}

var ctx = context.Background()

// rotate begins a new segment.
func (b *book) rotate(carried ...journal.Entry) {
	b.Helper()
	b.rotateTo(opening(carried...))
}

// rotateTo begins a segment with carried, the first of which is its open entry.
func (b *book) rotateTo(carried []journal.Entry) {
	b.Helper()
	want := numbered(carried, 0)
	end, err := b.journal.Rotate(ctx, b.pos, carried)
	if err != nil {
		b.Fatalf("Rotate(%d): %v", b.pos, err)
	}
	if end < b.pos+journal.Pos(len(carried)) {
		b.Fatalf("Rotate(%d) of %d entries ends at %d", b.pos, len(carried), end)
	}
	got := b.read(0)
	if len(got) == 0 || got[0].Opening == nil {
		b.Fatalf("the newest segment does not begin with an open entry")
	}
	if b.id == "" {
		b.id = got[0].Opening.Book
	}
	if b.id == "" {
		b.Fatalf("the open entry names no book")
	}
	b.segment++
	want[0].Opening.Book, want[0].Opening.Segment = b.id, b.segment
	b.pos, b.want = end, numbered(want, end)
	b.check()
}

// append appends one batch.
func (b *book) append(entries ...journal.Entry) {
	b.Helper()
	b.appendBatch(newBatch(entries...))
}

func (b *book) appendBatch(batch journal.Batch) {
	b.Helper()
	want := numbered(batch.Entries, b.pos+journal.Pos(len(batch.Entries)))
	end, err := b.journal.Append(ctx, b.pos, batch)
	if err != nil {
		b.Fatalf("Append(%d): %v", b.pos, err)
	}
	if end != b.pos+journal.Pos(len(batch.Entries)) {
		b.Fatalf("Append(%d) of %d entries ends at %d", b.pos, len(batch.Entries), end)
	}
	b.pos, b.want = end, append(b.want, want...)
}

// refused expects err to be an error, of this kind if one is given, and the
// journal to be as it was: readable, and ready for the next append.
func (b *book) refused(what string, err, kind error) {
	b.Helper()
	switch {
	case err == nil:
		b.Fatalf("%s: accepted", what)
	case kind != nil && !errors.Is(err, kind):
		b.Fatalf("%s: got the error %q, want %q", what, err, kind)
	}
	b.check()
	b.append(reserve("after " + what))
}

// check reads the newest segment and compares.
func (b *book) check() {
	b.Helper()
	b.same("the newest segment", b.read(0), b.want)
}

// read returns the entries after a position.
func (b *book) read(after journal.Pos) []journal.Entry {
	b.Helper()
	entries, err := collect(b.journal.Entries(ctx, after))
	if err != nil {
		b.Fatalf("Entries(%d): %v", after, err)
	}
	return entries
}

// most is more than any case writes.
const most = 100_000

func collect(seq iter.Seq2[journal.Entry, error]) (entries []journal.Entry, err error) {
	for e, err := range seq {
		if err != nil {
			return entries, err
		}
		if len(entries) == most {
			return entries, errors.New("a reading that does not end")
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (b *book) same(what string, got, want []journal.Entry) {
	b.Helper()
	for i := range min(len(got), len(want)) {
		if g, w := text(got[i]), text(want[i]); g != w {
			b.Fatalf("%s: entry %d of %d is\n%s, want\n%s", what, i+1, len(want), g, w)
		}
	}
	if len(got) != len(want) {
		b.Fatalf("%s has %d entries, want %d", what, len(got), len(want))
	}
}

// text is an entry in one line, without what is the journal's own.
func text(e journal.Entry) string {
	e.Synced, e.Prev, e.CRC = 0, 0, 0
	if e.Opening != nil {
		e.Opening = &journal.Opening{Book: e.Opening.Book, Segment: e.Opening.Segment, Balances: e.Opening.Balances}
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(line), "[]", "null") // no element is no element
}

// numbered returns deep copies of entries, the last of which stands at end.
func numbered(entries []journal.Entry, end journal.Pos) []journal.Entry {
	copies := make([]journal.Entry, len(entries))
	for i := range entries {
		copies[i] = detached(entries[i])
		copies[i].Seq = uint64(end) - uint64(len(entries)-1-i)
	}
	return copies
}

// detached returns a copy that shares no memory.
func detached(e journal.Entry) (c journal.Entry) {
	line, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(line, &c)
	}
	if err != nil {
		panic("journaltest: copy an entry: " + err.Error()) // only if its fields change
	}
	return c
}

func opening(carried ...journal.Entry) []journal.Entry {
	return append([]journal.Entry{{Kind: journal.Open, T: 1, Opening: &journal.Opening{}}}, carried...)
}

func reserve(rid string) journal.Entry {
	return journal.Entry{Kind: journal.Reserve, RID: rid, T: 2, Change: journal.Change{Amount: 5, Requests: 1}}
}

func newBatch(entries ...journal.Entry) journal.Batch {
	return journal.Batch{ID: uuid.New(), Entries: entries}
}

// samples are entries of every kind that can be appended, with every field set
// to something that no other has.
func samples() (entries []journal.Entry) {
	for _, numbers := range []func(n int64) int64{
		func(n int64) int64 { return n },
		func(n int64) int64 { return -n },
		func(n int64) int64 { return math.MaxInt64 - n%2 },
		func(n int64) int64 { return math.MinInt64 + n%2 },
	} {
		for kind := journal.Reserve; kind < journal.Seal; kind++ {
			f := filler{number: numbers}
			var e journal.Entry
			f.fill(reflect.ValueOf(&e).Elem())
			e.Kind, e.Opening = kind, nil
			if kind != journal.Limit {
				e.Cap = nil
			} else if e.Cap.Unlimited = len(entries)%2 == 0; e.Cap.Unlimited {
				e.Cap.Max, e.Cap.Told = 0, 0 // say nothing
			}
			entries = append(entries, e)
		}
	}
	return entries
}

// filler sets everything below a value.
type filler struct {
	n      int64
	number func(n int64) int64
}

// strange is text of the kinds that are most often lost on the way.
const strange = ` "quoted" \back\ /\t` + "\n\t\r \u2028 é 😀 '; -- %s $1 "

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case reflect.String:
		v.SetString(fmt.Sprint("s", f.n, strange))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	default:
		v.SetInt(f.number(f.n))
	}
}
