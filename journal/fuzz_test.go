// Random lines, random damage, random ends of a book (I8; rules 3 to 6, 29):
// what is a line is told alike by everybody, the reader that goes in blocks
// says the same as the one that goes line by line, and opening a book whose
// newest segment holds anything refuses it or mends it once and for all.
package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollbook/tollbook/journal/disk"
)

// What is taken for a line is written again to the same bytes, and a reader of
// foreign ledgers that does not see checksum and chain finds the same in it. So
// does quick, unless it leaves the line to others.
func FuzzLine(f *testing.F) {
	for _, g := range golden {
		f.Add(g.line)
	}
	f.Fuzz(func(t *testing.T, body string) {
		_, _ = parseForeign([]byte(body), body)
		line := resign(body)
		e, err := ParseLine(line)
		quickly(t, line)
		if err != nil {
			require.Zero(t, e)
			return
		}
		again, err := AppendLine(nil, &e)
		require.NoError(t, err)
		require.Equal(t, string(line)+"\n", string(again))

		loose := body[:len(body)-len(prevField)] + "}"
		foreign, err := parseForeign([]byte(loose), loose)
		require.NoError(t, err)
		e.Prev, e.CRC = 0, 0
		if e.Opening != nil && len(e.Opening.Balances) == 0 {
			e.Opening.Balances = nil
		}
		require.Equal(t, e, foreign)
	})
}

// smallBook is a book of three segments, with lines of all lengths, whose last
// was sealed or not.
var smallBook = sync.OnceValue(func() (segments [3][]byte) {
	fsys := disk.NewMem()
	f, err := OpenFile("book", FileOptions{FS: fsys})
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	check(err)
	pos := Pos(0)
	for n := range segments {
		held := reserve(fmt.Sprint("held", n), 3)
		held.Carried = true
		carried := opening(held, Entry{Kind: Limit, T: 1, Carried: true, Cap: &Cap{Kind: "tokens", Max: 9}})
		carried[0].Opening.Book = "book" // the same in all processes that fuzz
		pos, err = f.Rotate(ctx, pos, carried)
		check(err)
		for i := range 12 {
			a, b := reserve(fmt.Sprint("r", n, i), 5), settle(fmt.Sprint("r", n, i), -1)
			a.Scope, a.Key, b.Usage = "a/b", strings.Repeat("k", 700*(i/10)), Usage{In: 3, Out: 1}
			pos, err = f.Append(ctx, pos, batch(slices.Repeat([]Entry{a, b}, 1+i%3)...))
			check(err)
		}
	}
	check(f.Close())
	for n := range segments {
		segments[n] = content(fsys, "book", segmentName(int64(n+1)))
	}
	return segments
})

// content is what a file holds; nil if there is none.
func content(fsys disk.FS, dir, name string) []byte {
	f, err := fsys.Open(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		panic(err)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), b); err != nil {
		panic(err)
	}
	return b
}

// bookOn puts segments on a disk; nil is a missing one.
func bookOn(t testing.TB, segments ...[]byte) *disk.Mem {
	fsys := disk.NewMem()
	require.NoError(t, fsys.Mkdir("book"))
	for n, b := range segments {
		if b == nil {
			continue
		}
		f, err := fsys.Create(filepath.Join("book", segmentName(int64(n+1))))
		require.NoError(t, err)
		_, err = f.Write(b)
		require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
	}
	require.NoError(t, fsys.SyncDir("book"))
	return fsys
}

// harm is one piece of damage: its kind, the segment, where and how much.
func harm(segments [][]byte, kind, segment byte, at, much uint16) {
	s := &segments[int(segment)%len(segments)]
	if len(*s) == 0 || len(*s) > 1<<20 { // a line without an end doubles it each time
		return
	}
	b := bytes.Clone(*s)
	i := int(at) % len(b)
	_, start := lineAt(b, i)
	end := len(b)
	if n := bytes.IndexByte(b[i:], '\n'); n >= 0 {
		end = i + n + 1
	}
	switch kind % 9 {
	case 0:
		b[i] ^= 1 << (much % 8)
	case 1: // a piece is gone
		b = slices.Delete(b, i, min(i+int(much%2000), len(b)))
	case 2: // NULs, B2
		b = slices.Insert(b, i, make([]byte, much%2000)...)
	case 3:
		b = b[:i]
	case 4:
		b = slices.Insert(b, start, bytes.Repeat([]byte("\n"), 1+int(much%3))...)
	case 5: // a line is there twice, or elsewhere
		line := bytes.Clone(b[start:end])
		_, to := lineAt(b, int(much)%len(b))
		b = slices.Insert(b, to, line...)
	case 6: // a line is gone
		b = slices.Delete(b, start, end)
	case 7: // a line says something else, and its checksum fits
		if body, _, ok := strings.Cut(string(b[start:end]), `,"crc"`); ok && body != "" {
			swap := [][2]string{{`"seq":`, `"seq":1`}, {`"synced":`, `"synced":1`}, {`"amount":5`, `"amount":6`}, {`"ev":"settle"`, `"ev":"seal"`}, {`"segment":`, `"segment":1`}, {`"book":"`, `"book":"x`}}[int(much)%6]
			line := append(resign(strings.Replace(body, swap[0], swap[1], 1)), '\n')
			b = slices.Replace(b, start, end, line...)
		}
	case 8: // the segment is gone, or empty
		if b = nil; much%2 == 0 {
			b = []byte{}
		}
	}
	*s = b
}

// outcome is all that a reading says.
type outcome struct {
	entries []Entry
	err     string
}

// appendKept appends entries with strings of their own.
func appendKept(to, entries []Entry) []Entry {
	for _, e := range entries {
		for _, s := range []*string{&e.RID, &e.Scope, &e.Key, &e.Model, &e.Why, &e.Ref, &e.Evidence, &e.Prices} {
			*s = strings.Clone(*s)
		}
		if e.Cap != nil {
			e.Cap.Kind = strings.Clone(e.Cap.Kind)
		}
		if o := e.Opening; o != nil {
			o.Book = strings.Clone(o.Book)
			for i := range o.Balances {
				o.Balances[i].Scope = strings.Clone(o.Balances[i].Scope)
			}
		}
		if p := e.Past; p != nil {
			p.State = strings.Clone(p.State)
			for i := range p.Evidence {
				p.Evidence[i].Key = strings.Clone(p.Evidence[i].Key)
			}
		}
		to = append(to, e)
	}
	return to
}

func gather(batches func(func([]Entry, error) bool)) (o outcome) {
	for entries, err := range batches {
		o.entries = appendKept(o.entries, entries)
		if err != nil {
			o.err += err.Error() + "\n"
		}
	}
	return o
}

// byLine reads a book as [Dir.HistoryBatches] does, line by line.
func byLine(d Dir) (o outcome) {
	end := func(err error) outcome {
		if err != nil {
			o.err = err.Error() + "\n"
		}
		return o
	}
	s, numbers, err := d.first(d.fs(), false)
	if err != nil || s == nil {
		return end(err)
	}
	keep := func(e *Entry) error {
		if e.Kind != Seal {
			o.entries = append(o.entries, *e)
		}
		return nil
	}
	for _, number := range numbers[1:] {
		if err := s.each(keep); err != nil {
			return end(err)
		}
		if !s.clean() {
			return end(s.noSeal())
		}
		next := s.chain.following()
		if number != next.segment {
			return end(missingSegment(d.Path, next.segment))
		}
		if s, err = openSegment(d.fs(), d.Path, segmentName(number), next); err != nil {
			return end(err)
		}
	}
	damage := s.each(keep)
	if damage != nil {
		if torn, err := s.torn(); err != nil || torn {
			return end(err)
		}
	}
	return end(damage)
}

// FuzzRead damages a book, by five bytes a piece, and reads it in blocks of a
// size and line by line. The bytes are taken for a ledger, too.
func FuzzRead(f *testing.F) {
	f.Add(uint16(600), []byte{})
	for kind := range byte(9) {
		for segment := range byte(3) {
			f.Add(uint16(500+100*int(kind)), []byte{kind, segment, 20 * kind, kind, kind, 0, 2, 9, 200, 7})
		}
	}
	f.Add(uint16(512), []byte("{\"ev\":\"reserve\",\"rid\":\"a\",\"amount\":1}\n\n{}\n{\"ev\": \"settle\", \"rid\": \"a\", \"amount\": 0, \"t\": 1.5}\n{\"ev\""))
	f.Fuzz(func(t *testing.T, size uint16, harms []byte) {
		defer func(was int) { readSize = was }(readSize)
		readSize = 512 + int(size)%8192
		whole := smallBook()
		segments := slices.Clone(whole[:])
		for b := harms; len(b) >= 6; b = b[6:] {
			harm(segments, b[0], b[1], binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint16(b[4:]))
		}
		d := Dir{Path: "book", FS: bookOn(t, segments...)}

		slow := byLine(d)
		require.Equal(t, slow, gather(d.HistoryBatches()))
		var one outcome
		for e, err := range d.History() {
			if err != nil {
				one.err += err.Error() + "\n"
			} else {
				one.entries = append(one.entries, e)
			}
		}
		require.Equal(t, slow, one)

		var got, all []Entry
		want, err := d.audit((*pass).byLine, func(entries []Entry) { all = append(all, entries...) })
		require.NoError(t, err)
		audit, err := d.VerifyEntries(func() func([]Entry) {
			return func(entries []Entry) { got = appendKept(got, entries) }
		})
		require.NoError(t, err)
		require.Equal(t, want, audit)
		require.Equal(t, all, got)
		require.Equal(t, slow.entries, got)
		require.Equal(t, slow.err != "", audit.Damaged(), "%s %v", slow.err, audit.Findings)

		for _, ledger := range append(segments, harms) {
			var slow outcome
			var at []int64
			lines := newLineReader(bytes.NewReader(ledger), int64(len(ledger)))
			for number := int64(1); ; number++ {
				line, err := lines.next()
				if err != nil {
					require.ErrorIs(t, err, io.EOF)
					break
				}
				e, err := ledgerLine(line, string(line.text))
				if err != nil {
					slow.err += (&CorruptError{Segment: "ledger", Offset: line.off, Line: number, Reason: err.Error(), Unfinished: !line.done}).Error() + "\n"
				} else if e.Kind != 0 && e.Kind != Seal {
					slow.entries, at = append(slow.entries, e), append(at, number)
				}
			}
			require.Equal(t, slow, gather(onlyEntries(ReadLedgerBatches("ledger", bytes.NewReader(ledger)))))
			for batch := range ReadLedgerBatches("ledger", bytes.NewReader(ledger)) {
				for i := range batch.Entries {
					require.Equal(t, at[0], batch.First+int64(i))
					at = at[1:]
				}
			}
		}
	})
}

// Whoever stops early leaves nothing running behind.
func TestBatchesEndWithTheLoop(t *testing.T) {
	defer goleak.VerifyNone(t)
	defer func(was int) { readSize = was }(readSize)
	readSize = 512
	whole := smallBook()
	d := Dir{Path: "book", FS: bookOn(t, whole[:]...)}
	for _, batches := range []func(func([]Entry, error) bool){d.NewestBatches(), d.HistoryBatches(), onlyEntries(ReadLedgerBatches("one", bytes.NewReader(whole[0])))} {
		for range batches {
			break
		}
		require.Panics(t, func() {
			for range batches {
				panic("out of the loop")
			}
		})
	}
}

// FuzzRecover opens a book whose newest segment is anything, with or without
// another before it.
func FuzzRecover(f *testing.F) {
	whole := smallBook()
	last := whole[2]
	unsealed := last[:bytes.Index(last, []byte(`{"ev":"seal"`))]
	_, second := lineAt(unsealed, bytes.IndexByte(unsealed, '\n')+1)
	for _, b := range [][]byte{nil, last, unsealed, unsealed[:len(unsealed)-1], unsealed[:len(unsealed)-60], unsealed[:second], unsealed[:second+40], last[:len(last)-1], last[:len(last)-30],
		append(bytes.Clone(unsealed), make([]byte, 5000)...), append(bytes.Clone(unsealed), whole[1]...), append(bytes.Clone(last), 'x'), []byte("\n"), bytes.Replace(unsealed, []byte(`"r21"`), []byte(`"r12"`), 1)} {
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, newest []byte, before bool) {
		fsys := bookOn(t, nil, nil, append([]byte{}, newest...))
		if before {
			fsys = bookOn(t, whole[0], whole[1], append([]byte{}, newest...))
		}
		name := segmentName(3)
		j, err := openSeeing(t, "book", fsys)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			require.Equal(t, string(newest), string(content(fsys, "book", name)), "what is refused is not changed")
			return
		}
		found := j.Recovery()
		require.NoError(t, j.Close())
		mended := content(fsys, "book", name)
		if !found.Unclean {
			require.Equal(t, string(newest), string(mended))
			require.Zero(t, found.Torn)
		}
		// What is torn is kept to the byte, and so is what comes before, but for
		// seals and the last newline.
		kept := newest[:len(newest)-int(found.Torn)]
		if found.Torn > 0 {
			require.Equal(t, string(newest[len(kept):]), string(content(fsys, "book", found.Kept)))
		}
		facts := func(b []byte) string {
			b, _, _ = bytes.Cut(b, []byte(`{"ev":"seal"`))
			return strings.TrimSuffix(string(b), "\n")
		}
		require.Equal(t, facts(kept), facts(mended))

		audit, err := Dir{Path: "book", FS: fsys}.Verify()
		require.NoError(t, err)
		audit.Findings = slices.DeleteFunc(audit.Findings, func(f Finding) bool { return f.Segment != name }) // the others are not looked at
		require.Empty(t, audit.Findings)
		again, err := OpenFile("book", FileOptions{FS: fsys})
		require.NoError(t, err)
		require.False(t, again.Recovery().Unclean)
		require.Zero(t, again.Recovery().Torn)
		require.NoError(t, again.Close())
		require.Equal(t, string(mended), string(content(fsys, "book", name)))
	})
}
