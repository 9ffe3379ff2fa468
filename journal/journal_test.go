// What every journal owes its guard: append only if unchanged, repeats that
// are safe, everything read back in order, and a rotation that is the whole
// state (I1, I3). Both journals answer alike.
package journal

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// any journal, as package budget wants it.
type anyJournal interface {
	Append(ctx context.Context, after Pos, batch Batch) (Pos, error)
	Entries(ctx context.Context, after Pos) iter.Seq2[Entry, error]
	Rotate(ctx context.Context, after Pos, carried []Entry) (Pos, error)
	Due(carried int) bool
	Close() error
}

var ctx = context.Background()

func forEachJournal(t *testing.T, test func(t *testing.T, j anyJournal)) {
	t.Run("memory", func(t *testing.T) { test(t, NewMemory()) })
	t.Run("file", func(t *testing.T) {
		f := open(t, filepath.Join(t.TempDir(), "run1.book"))
		test(t, f)
		require.NoError(t, f.Close())
	})
}

func open(t testing.TB, dir string) *File {
	t.Helper()
	f, err := OpenFile(dir, FileOptions{})
	require.NoError(t, err)
	return f
}

// opening is what a guard begins every segment with.
func opening(carried ...Entry) []Entry {
	return append([]Entry{{Kind: Open, T: 1, Opening: &Opening{}}}, carried...)
}

func reserve(rid string, amount int64) Entry {
	return Entry{Kind: Reserve, RID: rid, Change: Change{Amount: amount, Requests: 1}, T: 2}
}

func settle(rid string, amount int64) Entry {
	return Entry{Kind: Settle, RID: rid, Change: Change{Amount: amount}, T: 3}
}

func batch(entries ...Entry) Batch { return Batch{ID: uuid.New(), Entries: entries} }

// rids lists the entries of a journal: their rid, or their kind where there is
// none.
func rids(t testing.TB, entries iter.Seq2[Entry, error]) []string {
	t.Helper()
	list := []string{}
	for e, err := range entries {
		require.NoError(t, err)
		if e.RID == "" {
			e.RID = e.Kind.String()
		}
		list = append(list, e.RID)
	}
	return list
}

func rotate(t testing.TB, j anyJournal, after Pos, carried ...Entry) Pos {
	t.Helper()
	pos, err := j.Rotate(ctx, after, opening(carried...))
	require.NoError(t, err)
	return pos
}

func put(t testing.TB, j anyJournal, after Pos, entries ...Entry) Pos {
	t.Helper()
	pos, err := j.Append(ctx, after, batch(entries...))
	require.NoError(t, err)
	require.EqualValues(t, entries[len(entries)-1].Seq, pos, "the entries get their positions")
	return pos
}

func TestAppendIfUnchanged(t *testing.T) {
	forEachJournal(t, func(t *testing.T, j anyJournal) {
		require.Empty(t, rids(t, j.Entries(ctx, 0)))
		_, err := j.Append(ctx, 0, batch(reserve("early", 1)))
		require.ErrorContains(t, err, "before the first Rotate")
		start := rotate(t, j, 0)
		require.EqualValues(t, 1, start)

		b := batch(reserve("a", 5), reserve("b", 6))
		end, err := j.Append(ctx, start, b)
		require.NoError(t, err)
		require.EqualValues(t, 3, end)
		again, err := j.Append(ctx, start, b)
		require.NoError(t, err, "an unknown outcome is settled by repeating")
		require.Equal(t, end, again)

		_, err = j.Append(ctx, start, batch(reserve("c", 1)))
		require.ErrorIs(t, err, ErrConflict)
		_, err = j.Append(ctx, end+1, batch(reserve("c", 1)))
		require.ErrorIs(t, err, ErrConflict)
		_, err = j.Append(ctx, start, Batch{Entries: b.Entries})
		require.ErrorIs(t, err, ErrConflict, "a batch without an id is never a repeat")
		_, err = j.Rotate(ctx, start, opening())
		require.ErrorIs(t, err, ErrConflict)

		same, err := j.Append(ctx, end, Batch{})
		require.NoError(t, err)
		require.Equal(t, end, same)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = j.Append(cancelled, end, batch(reserve("c", 1)))
		require.ErrorIs(t, err, context.Canceled)
		for _, kind := range []Kind{Open, Seal} {
			_, err = j.Append(ctx, end, batch(Entry{Kind: kind, Opening: &Opening{}}))
			require.Error(t, err)
		}

		require.Equal(t, []string{"open", "a", "b"}, rids(t, j.Entries(ctx, 0)))
		require.Equal(t, []string{"b"}, rids(t, j.Entries(ctx, 2)))
		require.Empty(t, rids(t, j.Entries(ctx, end)))
		require.Empty(t, rids(t, j.Entries(ctx, end+5)))
		for e := range j.Entries(ctx, 0) {
			require.Equal(t, Open, e.Kind)
			break
		}
	})
}

func TestRotationIsTheSnapshot(t *testing.T) {
	forEachJournal(t, func(t *testing.T, j anyJournal) {
		first := opening()
		pos, err := j.Rotate(ctx, 0, first)
		require.NoError(t, err)
		book := first[0].Opening.Book
		require.NoError(t, uuid.Validate(book), "a new book gets an id")
		require.EqualValues(t, 1, first[0].Opening.Segment)
		pos = put(t, j, pos, reserve("a", 5), reserve("b", 7))
		pos = put(t, j, pos, settle("a", -1))

		carried := reserve("b", 7)
		carried.Carried = true
		second := opening(carried)
		second[0].Amount = 4
		next, err := j.Rotate(ctx, pos, second)
		require.NoError(t, err)
		require.Greater(t, next, pos)
		o := second[0].Opening
		require.Equal(t, []any{book, int64(2), int64(1), Version}, []any{o.Book, o.Segment, o.Carries, o.Version})

		require.Equal(t, []string{"open", "b"}, rids(t, j.Entries(ctx, 0)))
		require.Equal(t, []string{"open", "b"}, rids(t, j.Entries(ctx, pos-1)), "who knew an older state gets a new one")
		put(t, j, next, settle("b", -7))
		sum := Change{}
		for e, err := range j.Entries(ctx, 0) {
			require.NoError(t, err)
			sum, err = sum.Plus(e.Change)
			require.NoError(t, err)
		}
		require.EqualValues(t, 4, sum.Amount)

		for name, bad := range map[string][]Entry{
			"nothing":      nil,
			"no open line": {reserve("x", 1)},
			"nothing said": {{Kind: Open}},
			"another book": {{Kind: Open, Opening: &Opening{Book: "other"}}},
			"two openings": opening(Entry{Kind: Open, Opening: &Opening{}}),
		} {
			_, err := j.Rotate(ctx, next+1, bad)
			require.Error(t, err, name)
		}
	})
}

func TestClosedJournal(t *testing.T) {
	forEachJournal(t, func(t *testing.T, j anyJournal) {
		pos := rotate(t, j, 0)
		require.NoError(t, j.Close())
		require.NoError(t, j.Close())
		_, err := j.Append(ctx, pos, batch(reserve("a", 1)))
		require.ErrorIs(t, err, ErrClosed)
		_, err = j.Rotate(ctx, pos, opening())
		require.ErrorIs(t, err, ErrClosed)
		for _, err := range j.Entries(ctx, 0) {
			require.ErrorIs(t, err, ErrClosed)
		}
	})
}

// B5: 64 goroutines append; each batch is one entry in the order of positions.
func TestConcurrentAppends(t *testing.T) {
	const callers, each = 64, 4
	forEachJournal(t, func(t *testing.T, j anyJournal) {
		var mu sync.Mutex // where the guard has its queue
		pos := rotate(t, j, 0)
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					mu.Lock()
					next, err := j.Append(ctx, pos, batch(reserve(fmt.Sprintf("%d-%d", c, i), 1)))
					if err == nil {
						pos = next
					}
					mu.Unlock()
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		want := uint64(1)
		for e, err := range j.Entries(ctx, 0) {
			require.NoError(t, err)
			require.Equal(t, want, e.Seq)
			want++
			seen[e.RID] = true
		}
		require.Len(t, seen, callers*each+1)
	})
}

// A segment of the memory journal is due by its number of entries, and the
// next one uses its room again.
func TestMemoryRotation(t *testing.T) {
	m := NewMemory()
	pos := rotate(t, m, 0)
	require.False(t, m.Due(0))
	some := make([]Entry, blockLen-1)
	for i := range some {
		some[i] = reserve("r", 1)
	}
	for m.count < memoryDue {
		require.False(t, m.Due(0))
		pos = put(t, m, pos, some[:min(len(some), memoryDue-m.count)]...)
	}
	require.True(t, m.Due(memoryDue/2))
	require.False(t, m.Due(memoryDue/2+1))
	put(t, m, pos, reserve("r", 1)) // one block more than is kept

	next, stop := iter.Pull2(m.Entries(ctx, 0))
	defer stop()
	next()
	rotate(t, m, pos+1)
	require.Len(t, m.blocks, memoryDue/blockLen)
	require.Equal(t, []string{"open"}, rids(t, m.Entries(ctx, 0)))
	for range 32 {
		if _, err, _ := next(); err != nil {
			require.ErrorIs(t, err, ErrConflict, "what it read has been dropped")
			return
		}
	}
	t.Fatal("a reader went on in dropped entries")
}
