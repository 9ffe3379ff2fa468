// Every line fits the ones before it (rule 3): a line that is good in itself
// but out of its place is damage that no crash leaves.
package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// forge returns a segment of an open line, three entries and the seals, after
// change had its way with each and before its checksum was made.
func forge(t testing.TB, number int64, change func(line int, e *Entry)) []byte {
	t.Helper()
	c := startOf(number)
	entries := append(opening(reserve("a", 1), settle("a", 1), reserve("b", 1)), Entry{Kind: Seal}, Entry{Kind: Seal})
	entries[0].Opening.place(&c, entries[:1])
	var content []byte
	for i := range entries {
		e := &entries[i]
		e.Seq, e.Prev, e.Synced = c.seq+1, c.crc, int64(len(content))
		if i == len(entries)-1 {
			e.Synced = c.synced
		}
		change(i+1, e)
		var err error
		content, err = AppendLine(content, e)
		require.NoError(t, err)
		c.took(e)
	}
	return content
}

// Rules 3, 4, 6 and 17: every line against the one before it, by every reader.
func TestEveryLineFits(t *testing.T) {
	at := func(n int, change func(e *Entry)) func(int, *Entry) {
		return func(line int, e *Entry) {
			if line == n {
				change(e)
			}
		}
	}
	for name, test := range map[string]struct {
		line   int64
		reason string
		change func(line int, e *Entry)
	}{
		"nothing forged": {0, "", func(int, *Entry) {}},
		"prev":           {3, "prev is not the checksum", at(3, func(e *Entry) { e.Prev ^= 1 })},
		"seq twice":      {3, "seq does not rise", at(3, func(e *Entry) { e.Seq-- })},
		"seq left out":   {3, "seq does not rise", at(3, func(e *Entry) { e.Seq++ })},
		"first seq":      {1, "seq does not rise", at(1, func(e *Entry) { e.Seq++ })},
		"first prev":     {1, "prev is not the checksum", at(1, func(e *Entry) { e.Prev, e.Opening.LastCRC = 1, 1 })},
		"last_crc":       {1, "last_crc and prev differ", at(1, func(e *Entry) { e.Opening.LastCRC = 1 })},
		"synced ahead":   {3, "synced is not where", at(3, func(e *Entry) { e.Synced++ })},
		"synced behind":  {4, "synced is not where", at(4, func(e *Entry) { e.Synced = 0 })},
		"format":         {1, "format version", at(1, func(e *Entry) { e.Opening.Version++ })},
		"segment":        {1, "it says that it is 000002.jsonl", at(1, func(e *Entry) { e.Opening.Segment++ })},
		"no open line":   {1, "an open line must be first", at(1, func(e *Entry) { e.Kind, e.Opening = Settle, nil })},
		"two open lines": {2, "an open line must be first", at(2, func(e *Entry) { e.Kind, e.Opening = Open, &Opening{Version: 1, Segment: 1} })},
		"early seal":     {3, "between the seals", at(2, func(e *Entry) { e.Kind = Seal })},
		"third seal":     {6, "behind the seals", at(4, func(e *Entry) { e.Kind = Seal })},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f, err := reopened(t, dir, forge(t, 1, test.change))
			if test.line == 0 {
				require.NoError(t, err)
				require.False(t, f.Recovery().Unclean)
				require.NoError(t, f.Close())
				return
			}
			for _, err := range []error{err, last(Dir{Path: dir}.History()), last(Dir{Path: dir}.Newest())} {
				var damage *CorruptError
				require.ErrorAs(t, err, &damage)
				require.Equal(t, test.line, damage.Line)
				require.ErrorContains(t, err, test.reason)
			}
			audit, err := Dir{Path: dir}.Verify()
			require.NoError(t, err)
			require.True(t, audit.Damaged())
			require.Equal(t, test.line, audit.Findings[0].Line)
		})
	}
}

// After a crash some file systems show blocks of deleted files in what was not
// synced. A line in them proves nothing about this file.
func TestBlockOfADeletedFile(t *testing.T) {
	content := segmentOf(t, false)
	stale := forge(t, 1, func(_ int, e *Entry) { e.Synced = 1 << 40 })
	content = append(append(content, "\x00\n"...), stale...)
	dir := t.TempDir()
	f, err := reopened(t, dir, content)
	require.NoError(t, err)
	goOn(t, dir, f, all)

	write(t, filepath.Join(dir, "000001.jsonl"), content)
	require.NoError(t, os.Remove(filepath.Join(dir, "000002.jsonl")))
	audit, err := Dir{Path: dir}.Verify()
	require.NoError(t, err)
	require.False(t, audit.Damaged(), "%v", audit.Findings)
}

// Rule 14: a new segment is read back before the old one is sealed. If the
// disk stored something else, the old one stays in charge.
func TestRotationReadsBack(t *testing.T) {
	fsys, dir := newTestFS(), t.TempDir()
	f := openOn(t, fsys, dir)
	pos := rotate(t, f, 0)
	temp := filepath.Join(dir, "000002.jsonl.tmp")
	for _, harm := range []func([]byte) []byte{
		func(b []byte) []byte { b[20] ^= 1; return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { return b[:len(b)/2+30] },
		func(b []byte) []byte { return append(b, 'x') },
	} {
		fsys.fail = func(_ int, op string) (int, error) {
			if op == "close 000002.jsonl.tmp" {
				write(t, temp, harm(read(t, temp)))
			}
			return 0, nil
		}
		_, err := f.Rotate(ctx, pos, opening(reserve("a", 1), reserve("b", 1)))
		require.Error(t, err)
		require.False(t, errors.Is(err, ErrPoisoned))
		require.NoFileExists(t, temp)
	}
	fsys.fail = nil
	pos = put(t, f, pos, reserve("c", 1))
	rotate(t, f, pos)
	require.NoError(t, f.Close())
	clean(t, dir)
}
