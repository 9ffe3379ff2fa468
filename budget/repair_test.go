// A damaged book is made one that opens, and what is lost is said: nothing is
// invented, no byte of the original is gone, and what could be kept is kept (I1,
// I3, I8; rules 6, 15).
package budget_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

// files are what a book's directory holds.
type files map[string][]byte

const (
	oldest, middle, newest = "000001.jsonl", "000002.jsonl", "000003.jsonl"
)

// damaged returns the files with one changed; nil removes it.
func (f files) with(name string, change func([]byte) []byte) files {
	g := files{}
	for n, content := range f {
		g[n] = bytes.Clone(content)
	}
	if g[name] = change(g[name]); g[name] == nil {
		delete(g, name)
	}
	return g
}

func (f files) mem(t *testing.T) *disk.Mem {
	t.Helper()
	mem := disk.NewMem()
	require.NoError(t, disk.MkdirAll(mem, "book"))
	for name, content := range f {
		require.NoError(t, disk.Replace(mem, filepath.Join("book", name), content))
	}
	return mem
}

func filesOf(t *testing.T, mem *disk.Mem) files {
	t.Helper()
	names, err := mem.List("book")
	require.NoError(t, err)
	f := files{}
	for _, name := range names {
		file, err := mem.Open(filepath.Join("book", name))
		require.NoError(t, err)
		size, err := file.Size()
		require.NoError(t, err)
		f[name] = make([]byte, size)
		if size > 0 {
			_, err = file.ReadAt(f[name], 0)
			require.NoError(t, err)
		}
		require.NoError(t, file.Close())
	}
	delete(f, "LOCK")
	delete(f, "BALLAST")
	return f
}

var smallFile = journal.FileOptions{SegmentBytes: 4096}

func openFiles(t *testing.T, mem *disk.Mem, opts ...budget.Option) (*budget.Book, error) {
	t.Helper()
	o := smallFile
	o.FS = mem
	j, err := journal.OpenFile("book", o)
	if err != nil {
		return nil, err
	}
	b, err := budget.New(t.Context(), j, append(opts, budget.OnOrphan(budget.OrphanKeep))...)
	require.NoError(t, err)
	return b, nil
}

func repair(mem disk.FS) (budget.Repaired, error) {
	o := smallFile
	o.FS = mem
	return budget.Repair("book", o)
}

// sample is a book of three segments with a bit of everything in the newest.
func sample(t *testing.T) files {
	t.Helper()
	mem := disk.NewMem()
	now := time.Unix(1_796_000_000, 0)
	session := func(work func(b *budget.Book, hold func(rid string, n int64) *budget.Reservation)) {
		b, err := openFiles(t, mem, budget.Clock(func() time.Time { now = now.Add(time.Second); return now }))
		require.NoError(t, err)
		work(b, func(rid string, n int64) *budget.Reservation {
			r, err := b.Reserve(t.Context(), budget.Request{RID: rid, Tokens: n, Scope: "team/a", Model: "gpt-5-mini"})
			require.NoError(t, err)
			return r
		})
		require.NoError(t, b.Close())
	}
	used := func(b *budget.Book, rid string, n int64) {
		_, err := b.Reservation(rid).Settle(t.Context(), budget.Usage{Input: n})
		require.NoError(t, err)
	}
	session(func(b *budget.Book, hold func(string, int64) *budget.Reservation) {
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(1000)))
		hold("a", 100)
		hold("b", 200)
		used(b, "a", 90)
	})
	session(func(b *budget.Book, hold func(string, int64) *budget.Reservation) {
		require.NoError(t, hold("c", 50).Extend(t.Context(), budget.NotBilled, "429"))
		_, err := b.Reservation("c").Refund(t.Context(), budget.NotBilled, "429")
		require.NoError(t, err)
		require.NoError(t, hold("x", 5).Close())
	})
	session(func(b *budget.Book, hold func(string, int64) *budget.Reservation) {
		require.NoError(t, b.SetLimit(t.Context(), budget.Tokens(9000)))
		hold("d", 1500)
		used(b, "d", 1400)
		hold("e", 40)
		used(b, "b", 210)
		require.NoError(t, b.Reservation("e").Close())
		hold("f", 7)
		used(b, "e", 30)
	})
	f := filesOf(t, mem)
	require.Len(t, f, 3)
	return f
}

// facts are the entries of a segment as far as they are good and not about
// their place.
func facts(t *testing.T, content []byte) (list []journal.Entry) {
	t.Helper()
	for line := range bytes.Lines(content) {
		if e, err := journal.ParseLine(line); err == nil && e.Kind != journal.Open && e.Kind != journal.Seal && !e.Carried {
			e.Seq, e.Synced, e.Prev, e.CRC = 0, 0, 0, 0
			list = append(list, e)
		}
	}
	return list
}

// sound checks a book that was repaired: every byte, every rule, and that it
// goes on.
func sound(t *testing.T, mem *disk.Mem, what ...any) budget.Report {
	t.Helper()
	check := func() {
		dir, entries := journal.Dir{Path: "book", FS: mem}, budget.NewAudit()
		audit, err := dir.Verify()
		require.NoError(t, err, what...)
		require.False(t, audit.Damaged(), "%v: %v", what, audit.Findings)
		for e, err := range dir.History() {
			require.NoError(t, err, what...)
			entries.Add(&e)
		}
		require.Empty(t, entries.Violations, what...)
	}
	check()
	b, err := openFiles(t, mem)
	require.NoError(t, err, what...)
	report := b.Report()
	require.NoError(t, b.SetLimit(t.Context(), budget.Limit{Unit: budget.TokenUnit, Unlimited: true})) // what is left of it may be used up
	settle(t, reserve(t, b, 1, 0), 1)
	require.NoError(t, b.Close())
	check()
	return report
}

// requireSubset expects every fact of got to be one of had, in order. Limits
// that follow from what was admitted may stand between.
func requireSubset(t *testing.T, had, got []journal.Entry, what string) (kept int) {
	t.Helper()
	for _, e := range got {
		i := slices.IndexFunc(had, func(h journal.Entry) bool { return equal(t, h, e) })
		if i < 0 {
			require.Equal(t, journal.Limit, e.Kind, "%s: invented: %+v", what, e)
			continue
		}
		had = had[i+1:]
		kept++
	}
	return kept
}

func equal(t *testing.T, a, b journal.Entry) bool {
	x, err := journal.AppendLine(nil, &a)
	require.NoError(t, err)
	y, err := journal.AppendLine(nil, &b)
	require.NoError(t, err)
	return bytes.Equal(x, y)
}

// One bit of every third byte of the newest segment.
func TestRepairEveryFlippedByte(t *testing.T) { // Rule 6, 15
	was := sample(t)
	all := facts(t, was[newest])
	opens := 0
	for i := 0; i < len(was[newest]); i += 3 {
		bad := was.with(newest, func(b []byte) []byte { b[i] ^= 1 << (i % 8); return b })
		mem := bad.mem(t)
		before := filesOf(t, mem)
		r, err := repair(mem)
		require.NoError(t, err, "byte %d", i)
		if !r.Changed() { // one of the seals
			opens++
			require.Equal(t, before, filesOf(t, mem), "byte %d", i)
			sound(t, mem, "byte", i)
			continue
		}
		after := filesOf(t, mem)
		require.Equal(t, newest, r.Segment)
		require.Equal(t, newest+".damaged", r.Original)
		require.Equal(t, string(bad[newest]), string(after[r.Original]), "byte %d", i)
		require.Equal(t, string(was[middle]), string(after[middle]))
		kept := requireSubset(t, all, facts(t, after[newest]), "byte")
		lost := 0
		for _, l := range r.Lost {
			if lost += int(l.Last - l.First + 1); l.First == 0 {
				lost--
			}
		}
		require.Equal(t, len(all), kept+lost, "byte %d: %+v", i, r)
		if r.Begun != "" {
			require.Equal(t, middle, r.Begun)
			require.Zero(t, lost, "byte %d: its beginning holds nothing of its own", i)
		}
		if i%8 == 0 {
			sound(t, mem, "byte", i)
		}
		again, err := repair(mem)
		require.NoError(t, err)
		require.False(t, again.Changed())
	}
	require.Greater(t, opens, 50)
}

func lineOf(t *testing.T, content []byte, text string) (from, to int) {
	t.Helper()
	at := bytes.Index(content, []byte(text))
	require.GreaterOrEqual(t, at, 0, text)
	from = bytes.LastIndexByte(content[:at], '\n') + 1
	return from, from + bytes.IndexByte(content[from:], '\n') + 1
}

func TestRepair(t *testing.T) { // Rule 6, 15
	was := sample(t)
	healthy := sound(t, was.mem(t)).Tokens
	require.Equal(t, budget.Figures{Net: 90 + 210 + 5 + 1400 + 30 + 7, Confirmed: 90 + 210 + 1400 + 30, Assumed: 5, Held: 7}, healthy)
	flip := func(text string) func([]byte) []byte { // a digit of that line
		return func(b []byte) []byte {
			from, _ := lineOf(t, b, text)
			at := from + bytes.Index(b[from:], []byte(`"t":`)) + 5
			b[at] ^= 1
			return b
		}
	}
	destroy := func(text string) func([]byte) []byte {
		return func(b []byte) []byte {
			from, to := lineOf(t, b, text)
			copy(b[from:to-1], bytes.Repeat([]byte{0}, to))
			return b
		}
	}
	cut := func(text string) func([]byte) []byte {
		return func(b []byte) []byte {
			from, to := lineOf(t, b, text)
			return slices.Concat(b[:from], b[to:])
		}
	}
	unsealed := func(b []byte) []byte { return b[:bytes.Index(b, []byte(`{"ev":"seal"`))] }
	const next = "000004.jsonl"
	const reserveD, settleD, reserveE = `"rid":"d","amount":1500`, `"rid":"d","amount":-100`, `"rid":"e","amount":40`
	for _, c := range []struct {
		name           string
		files          files
		lost           []string // "first-last reason: kind rid amount, …"
		net, missing   int64
		silent         uint64
		endless        bool
		aside, damaged []string
		raised         []budget.Limit
	}{
		{name: "nothing wrong", files: was, net: healthy.Net},
		{name: "torn only", files: was.with(newest, func(b []byte) []byte { return append(unsealed(b), "torn"...) }), net: healthy.Net},
		{name: "a reserve", files: was.with(newest, flip(reserveD)), net: healthy.Net - 1400, missing: 1400,
			lost: []string{"reserve d 1500", "whole settle d -100"}, damaged: []string{newest}},
		{name: "a reserve, beyond reading", files: was.with(newest, destroy(reserveD)), net: healthy.Net - 1400, missing: 1400, silent: 1,
			lost: []string{"", "whole settle d -100"}, damaged: []string{newest}},
		{name: "a settle", files: was.with(newest, flip(settleD)), net: healthy.Net + 100,
			lost: []string{"settle d -100"}, damaged: []string{newest}},
		{name: "a line that is not there", files: was.with(newest, cut(reserveE)), net: healthy.Net - 30, missing: 30, silent: 1,
			lost: []string{"", "whole settle e 0", "whole adjust e -10"}, damaged: []string{newest}},
		{name: "a raised limit", files: was.with(newest, destroy(`"max":9000`)), net: healthy.Net, silent: 1,
			lost: []string{""}, damaged: []string{newest}, raised: []budget.Limit{budget.Tokens(1795)}},
		{name: "a block of NULs between two lines", files: was.with(newest, func(b []byte) []byte {
			from, _ := lineOf(t, b, reserveD)
			return slices.Concat(b[:from], make([]byte, 4096), b[from:])
		}), net: healthy.Net, lost: []string{"none"}, damaged: []string{newest}},
		{name: "a line twice", files: was.with(newest, func(b []byte) []byte {
			from, to := lineOf(t, b, settleD)
			return slices.Concat(b[:to], b[from:])
		}), net: healthy.Net, lost: []string{"whole none settle d -100"}, damaged: []string{newest}},
		{name: "the open line", files: was.with(newest, flip(`{"ev":"open"`)), net: healthy.Net, damaged: []string{newest}},
		{name: "a carried line", files: was.with(newest, destroy(`"rid":"b","amount":200`)), net: healthy.Net, damaged: []string{newest}},
		{name: "empty", files: was.with(newest, func([]byte) []byte { return []byte{} }), net: 90 + 200 + 5, damaged: []string{newest},
			lost: []string{""}, endless: true},
		{name: "cut behind its open line", files: was.with(newest, func(b []byte) []byte { return b[:bytes.IndexByte(b, '\n')+1] }), net: 90 + 200 + 5, damaged: []string{newest},
			lost: []string{""}, endless: true},
		{name: "a carried line, and cut at the end of a line", files: was.with(newest, destroy(`"rid":"b","amount":200`)).with(newest, func(b []byte) []byte {
			from, _ := lineOf(t, b, reserveD)
			return b[:from]
		}), net: 90 + 200 + 5, damaged: []string{newest}, lost: []string{"none"}, endless: true},
		{name: "another rid in a reserve", files: was.with(newest, func(b []byte) []byte { return bytes.Replace(b, []byte(reserveD), []byte(`"rid":"z","amount":1500`), 1) }), net: healthy.Net - 1400, missing: 1400,
			lost: []string{"reserve z 1500", "whole settle d -100"}, damaged: []string{newest}},
		{name: "written anew by an editor", files: was.with(newest, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(`,"`), []byte(`, "`)) }), net: 90 + 200 + 5, damaged: []string{newest},
			lost: []string{"limit  0 reserve d 1500 settle d -100 reserve e 40 settle b 10 settle e 0 reserve f 7 adjust e -10"}, endless: true},
		{name: "a settle before its reserve", files: was.with(newest, func(b []byte) []byte {
			from, to := lineOf(t, b, reserveD)
			_, end := lineOf(t, b, settleD)
			return slices.Concat(b[:from], b[to:end], b[from:to], b[end:])
		}), net: healthy.Net - 1400, missing: 1400, silent: 1, damaged: []string{newest},
			lost: []string{"", "whole settle d -100", "whole none reserve d 1500"}},
		{name: "an empty one behind it, which was not closed", files: was.with(newest, unsealed).with(next, func([]byte) []byte { return []byte{} }), net: healthy.Net, damaged: []string{next}},
		{name: "an empty one behind its torn end", files: was.with(newest, func(b []byte) []byte { return append(unsealed(b), "torn"...) }).with(next, func([]byte) []byte { return []byte{} }), net: healthy.Net, damaged: []string{next}},
		{name: "the middle", files: was.with(middle, flip(`"rid":"c"`)), net: healthy.Net, aside: []string{oldest}, damaged: []string{middle}},
		{name: "the middle cut", files: was.with(middle, func(b []byte) []byte { return b[:len(b)/2] }), net: healthy.Net, aside: []string{oldest}, damaged: []string{middle}},
		{name: "the middle is gone", files: was.with(middle, func([]byte) []byte { return nil }), net: healthy.Net, aside: []string{oldest}},
		{name: "the oldest", files: was.with(oldest, flip(`"rid":"a"`)), net: healthy.Net, damaged: []string{oldest}},
		{name: "the oldest of another book", files: was.with(oldest, func([]byte) []byte { return sample(t)[oldest] }), net: healthy.Net, aside: []string{oldest}},
		{name: "the middle of another book", files: was.with(middle, func([]byte) []byte { return sample(t)[middle] }), net: healthy.Net, aside: []string{oldest, middle}},
		{name: "a settle and the oldest", files: was.with(newest, flip(settleD)).with(oldest, flip(`"rid":"a"`)), net: healthy.Net + 100,
			lost: []string{"settle d -100"}, damaged: []string{newest, oldest}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := c.files.mem(t)
			r, err := repair(mem)
			require.NoError(t, err)
			require.Equal(t, len(c.aside)+len(c.damaged) > 0, r.Changed())
			var lost []string
			for _, l := range r.Lost {
				var words []string
				if l.Whole {
					words = append(words, "whole")
				}
				if l.First == 0 {
					words = append(words, "none")
				}
				for _, e := range l.Entries {
					words = append(words, e.Kind.String(), e.RID, budget.TokenUnit.Format(e.Amount))
				}
				lost = append(lost, strings.ReplaceAll(strings.Join(words, " "), " tokens", ""))
			}
			require.Equal(t, c.lost, lost)
			require.Equal(t, []any{c.missing, c.silent, c.endless}, []any{r.Missing, r.Silent, r.Endless})
			require.Equal(t, c.raised, r.Raised)
			after := filesOf(t, mem)
			for name, suffix := range map[string]string{oldest: "", middle: "", newest: "", next: ""} {
				if slices.Contains(c.aside, name) {
					suffix = ".aside"
				}
				if slices.Contains(c.damaged, name) {
					suffix = ".damaged"
				}
				if original, ok := c.files[name]; ok {
					require.Equal(t, string(original), string(after[name+suffix]), "%s: no byte is gone", name+suffix)
				}
			}
			require.Equal(t, c.net, sound(t, mem).Tokens.Net)
		})
	}
}

// What cannot be repaired is not touched.
func TestRepairRefuses(t *testing.T) { // Rule 15
	was := sample(t)
	open := func(b []byte) []byte { b[20] ^= 1; return b }
	last := func(b []byte) []byte { b[len(b)-5] ^= 1; return b }
	for name, f := range map[string]files{
		"the beginning of the only one":              {newest: was.with(newest, open)[newest]},
		"a beginning, and the one before":            was.with(newest, open).with(middle, open),
		"a beginning, and the end of the one before": was.with(newest, open).with(middle, last),
		"a beginning, and the one before is gone":    was.with(newest, open).with(middle, func([]byte) []byte { return nil }),
	} {
		mem := f.mem(t)
		_, err := repair(mem)
		require.ErrorIs(t, err, journal.ErrIrreparable, name)
		require.ErrorIs(t, err, journal.ErrCorrupt, name)
		require.Equal(t, map[string][]byte(f), map[string][]byte(filesOf(t, mem)), name)
	}
	later := func(b []byte) []byte { // of a version this program does not know, with fields it does not know
		line, rest, _ := bytes.Cut(bytes.Replace(b, []byte(`"format":1`), []byte(`"format":2,"new":1`), 1), []byte("\n"))
		crc := crc32.Checksum(line[:len(line)-18], crc32.MakeTable(crc32.Castagnoli))
		return slices.Concat(fmt.Appendf(line[:len(line)-18], `,"crc":"%08x"}`, crc), []byte("\n"), rest)
	}
	why := map[string]string{
		"of a later version": "its first line is undamaged and not understood",
		"of another number":  "its first line is undamaged and does not belong here: journal: 000003.jsonl is damaged in line 1 (byte 0): it says that it is 000002.jsonl",
	}
	for name, f := range map[string]files{
		"of a later version": was.with(newest, later),
		"of another number":  was.with(newest, func([]byte) []byte { return was[middle] }),
	} {
		mem := f.mem(t)
		_, err := repair(mem)
		require.ErrorIs(t, err, journal.ErrIrreparable, name)
		require.ErrorContains(t, err, why[name], name)
		require.Equal(t, map[string][]byte(f), map[string][]byte(filesOf(t, mem)), name)
	}
	_, err := repair(files{}.mem(t))
	require.ErrorIs(t, err, journal.ErrIrreparable)

	mem := was.mem(t)
	b, err := openFiles(t, mem)
	require.NoError(t, err)
	_, err = repair(mem)
	require.ErrorIs(t, err, journal.ErrLocked, "a book in use")
	require.NoError(t, b.Close())
}

// A repair has no byte free but those of the ballast.
func TestRepairOnAFullDisk(t *testing.T) { // Rule 11
	bad := sample(t).with(newest, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }).with(middle, func(b []byte) []byte { return b[:100] })
	bad["BALLAST"] = make([]byte, 3*len(bad[newest]))
	mem := bad.mem(t)
	mem.SetCapacity(mem.Used())
	r, err := repair(mem)
	require.NoError(t, err)
	require.Len(t, r.Aside, 2)
	mem.SetCapacity(-1)
	sound(t, mem)
}

// The power fails, the process is killed or the disk fails at every operation
// of a repair: what is found then is the old or the new, and repeating it goes
// on from there.
func TestRepairIsCutShort(t *testing.T) { // Rule 6, 8, 12
	was := sample(t)
	from, _ := lineOf(t, was[newest], `"rid":"d","amount":1500`)
	bad := was.with(newest, func(b []byte) []byte { b[from+30] ^= 1; return b }).with(oldest, func(b []byte) []byte { return b[:100] })
	whole := bad.mem(t)
	all, err := repair(whole)
	require.NoError(t, err)
	repaired := filesOf(t, whole)
	errDisk := errors.New("disk fails")
	for _, how := range []string{"crash", "kill", "fail", "full"} {
		for n := 1; ; n++ {
			require.Less(t, n, 200)
			seeds := 1
			if how == "crash" {
				seeds = 8
			}
			done := false
			for seed := range seeds {
				mem := bad.mem(t)
				next := mem
				r, err := repair(disk.Failing(mem, func(op disk.Op) disk.Fault {
					switch {
					case op.N != n:
					case how == "crash":
						next = mem.Crash(rand.New(rand.NewPCG(uint64(n), uint64(seed))))
					case how == "kill":
						next = mem.Kill()
					case how == "full":
						return disk.Fault{Err: syscall.ENOSPC}
					default:
						return disk.Fault{Err: errDisk}
					}
					return disk.Fault{}
				}))
				done = err == nil && next == mem
				found := filesOf(t, next)
				if next == mem { // whatever was done is told
					require.Equal(t, string(found[newest]) != string(bad[newest]), r.Segment != "", "%s at %d: %v", how, n, err)
					require.Equal(t, found[oldest] == nil, len(r.Aside) > 0, "%s at %d: %v", how, n, err)
					if r.Segment != "" {
						r.Repaired, all.Repaired = journal.Repaired{}, journal.Repaired{}
						require.Equal(t, all, r)
					}
				}
				if string(found[newest]) != string(bad[newest]) {
					require.Equal(t, string(repaired[newest]), string(found[newest]), "%s at %d", how, n)
					require.Equal(t, string(bad[newest]), string(found[newest+".damaged"]), "%s at %d", how, n)
				}
				if _, there := found[oldest]; !there {
					require.Equal(t, string(bad[oldest]), string(found[oldest+".damaged"]), "%s at %d", how, n)
				}
				_, err = repair(next)
				require.NoError(t, err, "%s at %d", how, n)
				require.Equal(t, string(repaired[newest]), string(filesOf(t, next)[newest]))
				sound(t, next, how, n)
			}
			if done {
				break
			}
		}
	}
}

// Whatever a disk does to the segments: a repair refuses and touches nothing, or
// leaves a book that is in order and goes on, with no fact in it that was not
// there and no byte gone.
func TestRepairByChance(t *testing.T) { // Rule 6
	was := sample(t)
	rng := rand.New(rand.NewPCG(*crashFirst, 7))
	refused := 0
	for n := range *crashSeeds / 4 {
		bad := was
		for range 1 + rng.IntN(4) {
			name := []string{oldest, middle, newest, newest, newest}[rng.IntN(5)]
			bad = bad.with(name, func(b []byte) []byte {
				if len(b) == 0 {
					return b
				}
				at, size := rng.IntN(len(b)), rng.IntN(400)
				end := min(at+size, len(b))
				switch rng.IntN(9) {
				case 0:
					return slices.Concat(b[:at], b[end:])
				case 1:
					return slices.Concat(b[:at], make([]byte, size), b[at:])
				case 2:
					return slices.Concat(b[:end], b[at:])
				case 3:
					clear(b[at:end])
				case 4:
					other := was[middle]
					return slices.Concat(b[:at], other[rng.IntN(len(other)):], b[at:])
				case 5:
					if rng.IntN(4) == 0 {
						return b[:at]
					}
				}
				b[at] ^= 1 << rng.IntN(8)
				return b
			})
		}
		mem := bad.mem(t)
		r, err := repair(mem)
		after := filesOf(t, mem)
		if err != nil {
			require.ErrorIs(t, err, journal.ErrIrreparable, n)
			require.Equal(t, map[string][]byte(bad), map[string][]byte(after), n)
			refused++
			continue
		}
		gone := map[string]string{r.Segment: r.Original}
		for _, a := range r.Aside {
			gone[a.Name] = a.Now
		}
		for name, content := range bad {
			if now, moved := gone[name]; moved {
				name = now
			}
			require.Equal(t, string(content), string(after[name]), "%d: %s", n, name)
		}
		if r.Segment != "" { // else opening cuts what is torn
			requireSubset(t, facts(t, was[newest]), facts(t, after[newest]), fmt.Sprint("damage ", n))
		}
		sound(t, mem, n)
	}
	require.Less(t, refused, max(2, *crashSeeds/8), "most can be repaired")
}
