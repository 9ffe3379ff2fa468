// What was acknowledged outlives the process and the machine, whenever they
// end, and what a disk lied about is found out before anything is built on it
// (I5, I8).
package journal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// witness remembers what it appended over all the lives of a journal.
type witness struct {
	tried  []string // rids of all entries in the order of their appends, each its own
	acked  map[string]bool
	opened bool
}

// life opens the journal, and appends to it, rotates and closes it, until it
// is done or something fails. Batches are longer than a block of the disk.
func (w *witness) life(fsys disk.FS) error {
	f, err := OpenFile("book", FileOptions{FS: fsys, SegmentBytes: 8 << 10}) // with little ballast
	if err != nil {
		return err
	}
	w.opened = true
	pos, err := f.Rotate(ctx, f.chain.lastEntry(), opening())
	for i := 0; err == nil && i < 4; i++ {
		b := batch(reserve(fmt.Sprint(len(w.tried)), 1), reserve(fmt.Sprint(len(w.tried)+1), 1))
		b.Entries[i%2].Key = strings.Repeat("k", 5000)
		w.tried = append(w.tried, b.Entries[0].RID, b.Entries[1].RID)
		if pos, err = f.Append(ctx, pos, b); err == nil {
			w.acked[b.Entries[0].RID], w.acked[b.Entries[1].RID] = true, true
		}
		if err == nil && i == 1 {
			pos, err = f.Rotate(ctx, pos, opening())
		}
	}
	return errors.Join(err, f.Close())
}

// check expects all that was acknowledged, nothing that was never appended,
// nothing twice, and no damage. It returns what it found.
func (w *witness) check(t testing.TB, d Dir) []string {
	t.Helper()
	found := slices.DeleteFunc(rids(t, d.History()), func(rid string) bool { return rid == "open" })
	i := 0
	for _, rid := range w.tried {
		if i < len(found) && found[i] == rid {
			i++
		} else {
			require.False(t, w.acked[rid], "entry %s was acknowledged, and is gone; found %v", rid, found)
		}
	}
	require.Equal(t, len(found), i, "found %v, appended were %v", found, w.tried)
	audit, err := d.Verify()
	require.NoError(t, err)
	require.False(t, audit.Damaged(), "%v", audit.Findings)
	return found
}

// Rules 1, 12, 13 and B6, B7, B8, B18, B19: the process is killed, or the power
// fails, before every operation of a journal's life, and again before every
// operation of the next one, which mends it.
func TestEndsAtEveryOperation(t *testing.T) {
	for end, next := range map[string]func(*disk.Mem, *rand.Rand) *disk.Mem{
		"kill":      func(m *disk.Mem, _ *rand.Rand) *disk.Mem { return m.Kill() },
		"power cut": (*disk.Mem).Crash,
	} {
		t.Run(end, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 14))
			ended := func(w *witness, mem *disk.Mem, at int) *disk.Mem {
				var after *disk.Mem
				err := w.life(disk.Failing(mem, func(op disk.Op) disk.Fault {
					if op.N == at {
						after = next(mem, rng)
					}
					return disk.Fault{}
				}))
				if after == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, disk.ErrGone, "only the end is an error")
				}
				return after
			}
			for first := 1; ; first++ {
				for second := 1; ; second++ {
					require.Less(t, first+second, 1000, "it never lives to its end")
					w := &witness{acked: map[string]bool{}}
					mem := ended(w, disk.NewMem(), first)
					if mem == nil {
						require.Len(t, w.acked, 8)
						return
					}
					after := ended(w, mem, second)
					if after == nil || first%5 > 0 && second > 3 { // the whole of a mending for some
						break
					}
					require.NoError(t, w.life(after), "%d, %d", first, second)
					w.check(t, Dir{Path: "book", FS: after})
					w.check(t, Dir{Path: "book", FS: after.Crash(rng)})
				}
			}
		})
	}
}

// Rule 9: a sync fails, and the process with it. The next one can read the
// lines, and every sync of its own succeeds, though they will never be on the
// disk. What it has opened is there after a power cut.
func TestOpenedIsDurable(t *testing.T) {
	for n := 1; ; n++ {
		rng := rand.New(rand.NewPCG(2, uint64(n)))
		w, mem, syncs := &witness{acked: map[string]bool{}}, disk.NewMem(), 0
		err := w.life(disk.Failing(mem, func(op disk.Op) disk.Fault {
			if op.Kind == disk.OpSync {
				syncs++
			}
			if syncs >= n && !op.Kind.Reads() {
				return disk.Fault{Err: errDisk}
			}
			return disk.Fault{}
		}))
		if syncs < n {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, errDisk)
		mem = mem.Kill()
		f, err := OpenFile("book", FileOptions{FS: mem})
		require.NoError(t, err)
		found := w.check(t, Dir{Path: "book", FS: mem})
		_ = f // and the power fails
		mem = mem.Crash(rng)
		require.Equal(t, found, w.check(t, Dir{Path: "book", FS: mem}), "sync %d", n)
		require.NoError(t, w.life(mem))
		w.check(t, Dir{Path: "book", FS: mem})
	}
}
