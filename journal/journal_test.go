// What package journaltest cannot see of the two journals: how an append
// reaches the disk, and how the memory journal uses its room.
package journal

import (
	"context"
	"fmt"
	"iter"
	"strings"
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
}

var ctx = context.Background()

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

// B5: 64 goroutines append by way of a queue, as a guard has it; each batch is
// one write of whole lines.
func TestConcurrentAppends(t *testing.T) {
	const callers, each = 64, 4
	fsys, dir := newTestFS(), t.TempDir()
	f := openOn(t, fsys, dir)
	pos := rotate(t, f, 0)
	fsys.take()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				mu.Lock()
				next, err := f.Append(ctx, pos, batch(reserve(fmt.Sprintf("%d-%d", c, i), 1), settle("s", 1)))
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
	writes := 0
	for _, op := range fsys.take() {
		if strings.HasPrefix(op, "write") {
			writes++
		}
	}
	require.Equal(t, callers*each, writes)
	require.Len(t, rids(t, f.Entries(ctx, 0)), 1+2*callers*each)
	require.NoError(t, f.Close())
	clean(t, dir)
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

// What one journal refuses for its length, the other does.
func TestTooLong(t *testing.T) { // Rule 29
	for name, j := range map[string]anyJournal{"file": open(t, t.TempDir()), "memory": NewMemory()} {
		pos := rotate(t, j, 0)
		for what, change := range map[string]func(e *Entry){
			"a key":             func(e *Entry) { e.Key = strings.Repeat("k", MaxLine) },
			"a key of escapes":  func(e *Entry) { e.Key = strings.Repeat("\x01", MaxLine/6) },
			"a long evidence":   func(e *Entry) { e.Past = &Past{Evidence: []Proof{{Key: strings.Repeat("k", MaxLine)}}} },
			"too much evidence": func(e *Entry) { e.Past = &Past{Evidence: make([]Proof, MaxLine/8)} },
		} {
			e := reserve("r", 1)
			change(&e)
			_, err := j.Append(ctx, pos, batch(e))
			require.ErrorIs(t, err, ErrTooLong, "%s in a %s", what, name)
			_, err = j.Rotate(ctx, pos, opening(e))
			require.ErrorIs(t, err, ErrTooLong, "%s in a %s", what, name)
		}
		long := reserve("r", 1)
		long.Key = strings.Repeat("k", MaxLine-1000)
		put(t, j, pos, long)
	}
}
