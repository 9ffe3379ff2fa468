package journaltest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tollbook/tollbook/journal"
)

func contention(t testing.TB, s Store) {
	b := begin(t, s)
	handles := []Journal{b.journal}
	if s.Shared {
		handles = append(handles, s.Open(t), s.Open(t))
	}
	const writers, batches = 8, 12
	ends := make([]map[string]journal.Pos, writers) // where each was told that its batches end
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		ends[w] = map[string]journal.Pos{}
		wg.Go(func() { errs[w] = contend(handles[w%len(handles)], b.pos, w, batches, ends[w]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	got := b.read(b.pos)
	if len(got) != 2*writers*batches {
		t.Fatalf("%d entries of %d batches of two", len(got), writers*batches)
	}
	for i := 0; i < len(got); i += 2 {
		first, second, end := got[i], got[i+1], b.pos+journal.Pos(i)+2
		var w int
		fmt.Sscanf(first.RID, "%d-", &w)
		switch {
		case first.RID != second.RID:
			t.Fatalf("a batch was torn apart: %s is followed by %s", first.RID, second.RID)
		case journal.Pos(second.Seq) != end:
			t.Fatalf("entry %s has position %d, want %d", second.RID, second.Seq, end)
		case ends[w][first.RID] != end:
			t.Fatalf("batch %s ends at %d, its writer was told %d", first.RID, end, ends[w][first.RID])
		}
		delete(ends[w], first.RID) // a second one has another end
	}
}

// contend appends batches as a guard does: after a conflict it reads on, and
// tries again behind what it has read.
func contend(j Journal, pos journal.Pos, w, batches int, ends map[string]journal.Pos) error {
	for n, tries := 0, 0; n < batches; tries++ {
		if tries == most {
			return errors.New("conflicts without end")
		}
		rid := fmt.Sprintf("%d-%d", w, n)
		end, err := j.Append(ctx, pos, newBatch(reserve(rid), reserve(rid)))
		switch {
		case err == nil && end != pos+2:
			return fmt.Errorf("appended at %d, behind entries that were not read: it ends at %d", pos, end)
		case err == nil:
			pos, ends[rid] = end, end
			n++
		case errors.Is(err, journal.ErrConflict):
			news, err := collect(j.Entries(ctx, pos))
			if err != nil {
				return err
			}
			if len(news) == 0 {
				return fmt.Errorf("a conflict at %d, and nothing behind it", pos)
			}
			if first := journal.Pos(news[0].Seq); first != pos+1 {
				return fmt.Errorf("the entries after %d begin at %d", pos, first)
			}
			pos = journal.Pos(news[len(news)-1].Seq)
		default:
			return err
		}
	}
	return nil
}
