// Not one bit of what was durable can turn unseen (I8, B11).
package journal

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// bookOf returns a disk with a journal of these segments, the first of which
// has number 1.
func bookOf(t testing.TB, segments ...[]byte) *disk.Mem {
	t.Helper()
	mem := disk.NewMem()
	require.NoError(t, mem.Mkdir("book"))
	for i, content := range segments {
		f, err := mem.Create("book/" + segmentName(int64(i+1)))
		require.NoError(t, err)
		_, err = f.Write(content)
		require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
	}
	return mem
}

// eachFlip calls f with content in which one bit is turned, for every bit.
func eachFlip(content []byte, f func(i, bit int, bad []byte)) {
	bad := bytes.Clone(content)
	for i := range bad {
		for bit := range 8 {
			bad[i] ^= 1 << bit
			f(i, bit, bad)
			bad[i] ^= 1 << bit
		}
	}
}

// kinds lists what can be read of the newest segment before damage.
func kinds(d Dir) (kinds []string, err error) {
	for e, err := range d.Newest() {
		if err != nil {
			return kinds, err
		}
		kinds = append(kinds, e.Kind.String())
	}
	return kinds, nil
}

// B11, Rule 13: every bit of a sealed segment that is the newest. Whatever
// holds a fact is refused, with the place, and left as it is; what is before it
// can be read. Of the seals only the seals are lost.
func TestEveryFlippedBitOfTheNewest(t *testing.T) {
	content := segmentOf(t, true)
	facts := bytes.Index(content, []byte(`{"ev":"seal"`))
	eachFlip(content, func(i, bit int, bad []byte) {
		at := fmt.Sprintf("bit %d of byte %d", bit, i)
		mem := bookOf(t, bad)
		f, err := OpenFile("book", FileOptions{FS: mem})
		if i >= facts {
			require.NoError(t, err, at)
			require.True(t, f.Recovery().Unclean, at)
			require.NotZero(t, f.Recovery().Torn, at)
			require.Equal(t, all, rids(t, f.Entries(ctx, 0)), at)
			require.NoError(t, f.Close())
			return
		}
		number, start := lineAt(content, i)
		var damage *CorruptError
		require.ErrorAs(t, err, &damage, at)
		require.Equal(t, []any{"000001.jsonl", int64(start), int64(number + 1)}, []any{damage.Segment, damage.Offset, damage.Line}, at)
		left, err := disk.ReadFile(mem, "book/000001.jsonl", int64(len(bad)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(bad, left), "%s: the file was changed", at)
		got, err := kinds(Dir{Path: "book", FS: mem})
		require.ErrorIs(t, err, ErrCorrupt, at)
		require.Len(t, got, number, at)
	})
}

// Rule 5: without seals, only the last batch can have been torn. Lines that
// became durable together with the open line cannot, though nothing comes after
// them.
func TestEveryFlippedBitAfterACrash(t *testing.T) {
	content := segmentOf(t, false)
	for _, c := range []struct {
		content []byte
		facts   int // lines before those that may be torn
	}{
		{content, 5},
		{content[:bytes.Index(content, []byte(`{"ev":"reserve","rid":"a"`))], 3},
	} {
		eachFlip(c.content, func(i, bit int, bad []byte) {
			at := fmt.Sprintf("bit %d of byte %d", bit, i)
			f, err := OpenFile("book", FileOptions{FS: bookOf(t, bad)})
			number, start := lineAt(c.content, i)
			if number < c.facts {
				var damage *CorruptError
				require.ErrorAs(t, err, &damage, at)
				require.Equal(t, []any{"000001.jsonl", int64(start)}, []any{damage.Segment, damage.Offset}, at)
				return
			}
			require.NoError(t, err, at)
			require.True(t, f.Recovery().Unclean, at)
			require.Equal(t, all[:number], rids(t, f.Entries(ctx, 0)), at)
			require.NoError(t, f.Close())
		})
	}
}

// B11, B12: every bit of a segment that another follows, seals included.
// Opening reads the newest only; verify and every reading of the history name
// the place, and the history goes no further.
func TestEveryFlippedBitOfAnOlderSegment(t *testing.T) {
	mem := disk.NewMem()
	f := openOn(t, mem, "book")
	pos := put(t, f, rotate(t, f, 0), reserve("a", 5), reserve("b", 5))
	put(t, f, rotate(t, f, put(t, f, pos, settle("a", -1))), reserve("c", 1))
	require.NoError(t, f.Close())
	content, err := disk.ReadFile(mem, "book/000001.jsonl", 1<<20)
	require.NoError(t, err)
	newest, err := disk.ReadFile(mem, "book/000002.jsonl", 1<<20)
	require.NoError(t, err)
	clean := Dir{Path: "book", FS: bookOf(t, content, newest)}
	require.Equal(t, []string{"open", "a", "b", "a", "open", "c"}, rids(t, clean.History()))

	eachFlip(content, func(i, bit int, bad []byte) {
		at := fmt.Sprintf("bit %d of byte %d", bit, i)
		dir := Dir{Path: "book", FS: bookOf(t, bad, newest)}
		number, start := lineAt(content, i)
		audit, err := dir.Verify()
		require.NoError(t, err)
		require.True(t, audit.Damaged(), at)
		first := audit.Findings[0]
		require.Equal(t, []any{"000001.jsonl", int64(start), int64(number + 1)}, []any{first.Segment, first.Offset, first.Line}, at)
		for _, finding := range audit.Findings {
			require.Equal(t, "000001.jsonl", finding.Segment, at)
		}
		if i%4 > 0 {
			return
		}
		read := 0
		for e, err := range dir.History() {
			if err == nil {
				read++
				require.NotEqual(t, "c", e.RID, at)
				continue
			}
			var damage *CorruptError
			require.ErrorAs(t, err, &damage, at)
			require.Equal(t, "000001.jsonl", damage.Segment, at)
		}
		require.LessOrEqual(t, read, number, at)
		f, err := OpenFile("book", FileOptions{FS: dir.FS})
		require.NoError(t, err, at)
		require.NoError(t, f.Close())
	})
}
