// What Mem and Failing do to those who trust a disk too much: each kind of loss
// is there, each by itself, and nothing that was synced is ever lost.
package disk_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

const block = 4096

// content returns what a file holds; "-" where there is none.
func content(t testing.TB, fsys disk.FS, name string) string {
	t.Helper()
	data, err := disk.ReadFile(fsys, name, 1<<20)
	if err != nil {
		require.ErrorIs(t, err, fs.ErrNotExist)
		return "-"
	}
	return string(data)
}

// put writes a new file; it is not synced, and neither is its name.
func put(t testing.TB, fsys disk.FS, name, content string) disk.File {
	t.Helper()
	f, err := fsys.Create(name)
	require.NoError(t, err)
	_, err = f.Write([]byte(content))
	require.NoError(t, err)
	return f
}

// durable is put and all syncs that it takes.
func durable(t testing.TB, fsys disk.FS, name, content string) disk.File {
	t.Helper()
	f := put(t, fsys, name, content)
	require.NoError(t, f.Sync())
	require.NoError(t, fsys.SyncDir(filepath.Dir(name)))
	return f
}

// outcomes counts what a look at the disk finds after many power cuts.
func outcomes(t testing.TB, m *disk.Mem, look func(*disk.Mem) string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for seed := range uint64(4000) {
		found[look(m.Crash(rand.New(rand.NewPCG(seed, 0))))]++
	}
	return found
}

// blocks writes each block of a file as the letter it is of, or 0 for zeros, and
// what is no whole block of one letter as its length and end.
func blocks(content string) string {
	var s strings.Builder
	for at := 0; at < len(content); at += block {
		b := content[at:min(at+block, len(content))]
		switch letters := strings.Trim(b, b[:1]); {
		case len(b) == block && letters == "" && b[0] == 0:
			s.WriteByte('0')
		case len(b) == block && letters == "":
			s.WriteByte(b[0])
		default:
			s.WriteByte('~')
		}
	}
	return s.String()
}

// letters is one block of each.
func letters(s string) string {
	var content strings.Builder
	for _, c := range s {
		content.WriteString(strings.Repeat(string(c), block))
	}
	return content.String()
}

func TestCrashTakesBlocks(t *testing.T) {
	m := disk.NewMem()
	f := durable(t, m, "f", letters("ab"))
	_, err := f.Write([]byte(letters("cde")))
	require.NoError(t, err)
	found := outcomes(t, m, func(m *disk.Mem) string { return blocks(content(t, m, "f")) })
	for one := range found {
		require.Regexp(t, "^ab[c0~]?[d0~]?[e0~]?$", one, "what was synced is there, and a block is where it was")
	}
	for _, want := range []string{"ab", "abc", "abcd", "abcde", "ab0d", "ab00e", "abc0e", "ab0de", "ab000", "ab~de"} {
		require.Contains(t, found, want)
	}
}

func TestCrashTearsAnywhere(t *testing.T) {
	m := disk.NewMem()
	f := durable(t, m, "f", "durable.")
	_, err := f.Write([]byte("0123456789"))
	require.NoError(t, err)
	found := outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "f") })
	for n := range 11 {
		require.Contains(t, found, "durable.0123456789"[:8+n], "torn before byte %d", n)
		require.Contains(t, found, "durable."+"0123456789"[:n]+strings.Repeat("\x00", 10-n), "zeros from byte %d", n)
	}
}

// A truncate is one more thing that may not have happened, in the content and
// in the length.
func TestCrashUndoesTruncate(t *testing.T) {
	m := disk.NewMem()
	f := durable(t, m, "f", "durable.")
	for _, s := range []string{"old", "new!"} {
		require.NoError(t, f.Truncate(4))
		_, err := f.Write([]byte(s))
		require.NoError(t, err)
	}
	require.Equal(t, "duranew!", content(t, m, "f"))
	found := outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "f") })
	for one := range found {
		require.True(t, strings.HasPrefix(one, "dura"), one)
	}
	for _, want := range []string{"dura", "durable.", "duraold", "duranew!", "duranew", "durabl"} {
		require.Contains(t, found, want)
	}

	m = disk.NewMem()
	f = durable(t, m, "f", "durable.")
	require.NoError(t, f.Truncate(4))
	require.NoError(t, f.Sync())
	require.Equal(t, map[string]int{"dura": 4000}, outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "f") }))
}

func TestCrashTakesNames(t *testing.T) {
	names := func(m *disk.Mem) string {
		names, err := m.List(".")
		require.NoError(t, err)
		for i, name := range names {
			if name != "d" {
				names[i] += "=" + content(t, m, name)
			}
		}
		return strings.Join(names, " ")
	}
	m := disk.NewMem()
	durable(t, m, "kept", "k")
	durable(t, m, "new", "old")
	durable(t, m, "removed", "r")
	require.NoError(t, m.Remove("removed"))
	require.NoError(t, put(t, m, "made", "m").Sync())
	require.NoError(t, put(t, m, "tmp", "new").Sync())
	require.NoError(t, m.Rename("tmp", "new"))
	require.NoError(t, m.Mkdir("d"))
	durable(t, m, "d/f", "f") // its name is durable in d, which is not
	want := map[string]bool{}
	for i := range 32 {
		s := []string{"kept=k"}
		pick := func(bit int, if1, if0 string) {
			if s = append(s, if0); i&(1<<bit) != 0 {
				s[len(s)-1] = if1
			}
		}
		pick(0, "made=m", "")
		pick(1, "new=new", "new=old")
		pick(2, "", "removed=r")
		pick(3, "tmp=new", "") // the old name of a rename
		pick(4, "d", "")
		s = slices.DeleteFunc(s, func(s string) bool { return s == "" })
		slices.Sort(s)
		want[strings.Join(s, " ")] = true
	}
	found := outcomes(t, m, names)
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(found)), "all of 2^5")

	next := m.Kill()
	require.Equal(t, "d kept=k made=m new=new", names(next))
	require.Equal(t, found, outcomes(t, next, names), "a kill makes nothing durable")
	next = m.Kill()
	require.NoError(t, next.SyncDir("."))
	require.Equal(t, map[string]int{"d kept=k made=m new=new": 4000}, outcomes(t, next, names))
	for seed := range uint64(100) {
		m := m.Crash(rand.New(rand.NewPCG(seed, 1)))
		require.Contains(t, []string{"f", "-"}, content(t, m, "d/f"))
	}
}

// B14: the page cache's lie.
func TestFailedSync(t *testing.T) {
	m := disk.NewMem()
	failed := false
	fsys := disk.Failing(m, func(op disk.Op) disk.Fault {
		if op.Kind == disk.OpSync && failed {
			failed = false
			return disk.Fault{Err: syscall.EIO}
		}
		return disk.Fault{}
	})
	f := durable(t, fsys, "f", "durable.")
	_, err := f.Write([]byte("lost"))
	require.NoError(t, err)
	failed = true
	require.ErrorIs(t, f.Sync(), syscall.EIO)
	_, err = f.Write([]byte("later"))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	m = m.Kill()
	require.Equal(t, "durable.lostlater", content(t, m, "f"), "it reads well")
	g, err := m.Append("f")
	require.NoError(t, err)
	require.NoError(t, g.Sync(), "and syncs well, also by the next process")
	found := outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "f") })
	require.Equal(t, map[string]int{"durable.\x00\x00\x00\x00later": 4000}, found)

	// Written anew, into a file of its own or behind a truncate, it is durable.
	m = m.Kill()
	durable(t, m, "g", content(t, m, "f"))
	h, err := m.Append("f")
	require.NoError(t, err)
	require.NoError(t, h.Truncate(10))
	_, err = h.Write([]byte("ST"))
	require.NoError(t, err)
	require.NoError(t, h.Sync())
	found = outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "f") + content(t, m, "g") })
	require.Equal(t, map[string]int{"durable.\x00\x00ST" + "durable.lostlater": 4000}, found)
}

func TestGone(t *testing.T) {
	for name, end := range map[string]func(*disk.Mem) *disk.Mem{
		"kill":  (*disk.Mem).Kill,
		"crash": func(m *disk.Mem) *disk.Mem { return m.Crash(rand.New(rand.NewPCG(1, 1))) },
	} {
		t.Run(name, func(t *testing.T) {
			m := disk.NewMem()
			l, err := m.Lock("LOCK", "first")
			require.NoError(t, err)
			require.NoError(t, m.SyncDir("."))
			f := durable(t, m, "f", "x")
			r, err := m.Open("f")
			require.NoError(t, err)
			next := end(m)
			_, err = f.Write([]byte("y"))
			require.ErrorIs(t, err, disk.ErrGone)
			require.ErrorIs(t, f.Sync(), disk.ErrGone)
			_, err = r.ReadAt(make([]byte, 1), 0)
			require.ErrorIs(t, err, disk.ErrGone)
			require.ErrorIs(t, f.Close(), disk.ErrGone)
			require.ErrorIs(t, m.Remove("f"), disk.ErrGone)
			require.ErrorIs(t, l.Close(), disk.ErrGone)
			_, err = next.Lock("LOCK", "second")
			require.NoError(t, err, "the dead hold no locks")
			require.Equal(t, "x", content(t, next, "f"))

			// Whoever comes next shares nothing with it.
			g, err := next.Append("f")
			require.NoError(t, err)
			_, err = g.Write([]byte("1"))
			require.NoError(t, err)
			require.Equal(t, "x", content(t, end(m), "f"))
		})
	}
}

func TestSameSeedSameDisk(t *testing.T) {
	m := disk.NewMem()
	for i := range 20 {
		name := fmt.Sprint(i)
		put(t, m, name, letters("abc")[:i*500])
		if i%3 == 0 {
			require.NoError(t, m.Rename(name, "r"+name))
		}
	}
	image := func(seed uint64) string {
		var s strings.Builder
		next := m.Crash(rand.New(rand.NewPCG(seed, 0)))
		names, err := next.List(".")
		require.NoError(t, err)
		for _, name := range names {
			s.WriteString(name + "=" + content(t, next, name) + ";")
		}
		return s.String()
	}
	for seed := range uint64(20) {
		require.Equal(t, image(seed), image(seed))
		require.NotEqual(t, image(seed), image(seed+1))
	}
}

func TestCapacity(t *testing.T) {
	m := disk.NewMem()
	m.SetCapacity(100)
	f := put(t, m, "f", strings.Repeat("f", 60))
	g, err := m.Create("g")
	require.NoError(t, err)
	full := func(err error) {
		t.Helper()
		require.True(t, disk.IsFull(err), "%v", err)
	}
	n, err := g.Write(bytes.Repeat([]byte("g"), 50))
	full(err)
	require.Equal(t, 40, n, "what fits is written")
	n, err = f.Write([]byte("x"))
	full(err)
	require.Zero(t, n)
	full(g.Allocate(41))
	require.NoError(t, g.Truncate(10))
	require.NoError(t, g.Allocate(40))
	full(g.Allocate(41))
	require.EqualValues(t, 100, m.Used())

	require.NoError(t, m.Remove("f"))
	require.EqualValues(t, 100, m.Used(), "somebody has it open")
	require.NoError(t, f.Close())
	require.EqualValues(t, 40, m.Used())
	h := put(t, m, "h", "1234567890")
	require.NoError(t, h.Close())
	require.NoError(t, g.Close())
	require.NoError(t, m.Rename("h", "g"))
	require.EqualValues(t, 10, m.Used(), "it was replaced")

	m = m.Kill()
	require.EqualValues(t, 10, m.Used())
	put(t, m, "f", strings.Repeat("f", 90))
	require.NoError(t, m.SyncDir("."))
	m = m.Crash(rand.New(rand.NewPCG(1, 2)))
	require.EqualValues(t, len(content(t, m, "f")+content(t, m, "g")), m.Used())
	m.SetCapacity(-1)
	put(t, m, "i", strings.Repeat("i", 1000))
}
