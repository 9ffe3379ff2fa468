package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var machineAll = flag.Bool("machine.all", false, "inject at every system call, not at a sample of them")

// TestMachineSyscalls: the n-th system call of a writer kills it or fails, for
// n = 1, 2, … until a run no longer gets that far; after each the book holds
// what it must. The calls are real and so is the binary. Rules 1, 8, 9, 10, 13;
// B6, B14, B15.
func TestMachineSyscalls(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	if out, err := exec.Command(strace, "-f", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("needs strace that may trace: %v: %s", err, out)
	}
	for _, inject := range []struct {
		name, what string
		also       string // another fault, at all calls of its kind
		path       bool   // only calls on the segments that this run begins
	}{
		{name: "killed at fsync", what: "fsync,fdatasync:signal=KILL"},
		{name: "killed at a write", what: "write:signal=KILL", path: true},
		{name: "killed at a rename", what: "renameat,renameat2:signal=KILL"},
		{name: "fsync fails", what: "fsync,fdatasync:error=EIO"},
		{name: "fsync finds the disk full", what: "fsync,fdatasync:error=ENOSPC"},
		{name: "fsync fails for ever", what: "fsync,fdatasync:error=EIO:forever"},
		{name: "write fails", what: "write:error=EIO", path: true},
		{name: "disk full", what: "write:error=ENOSPC", path: true},
		{name: "disk full for ever", what: "write:error=ENOSPC:forever", path: true},
		{name: "no room for a ballast", what: "fallocate:error=ENOSPC:forever"},
		{name: "disk full, and the cut back fails", what: "write:error=ENOSPC", also: "ftruncate:error=EIO:when=1+", path: true},
	} {
		t.Run(strings.ReplaceAll(inject.name, " ", "-"), func(t *testing.T) {
			step, runs := 1, 0
			if !*machineAll {
				step = 13
			}
			for n := 1; ; n += step {
				if runs++; !injected(t, strace, inject.what, inject.also, n, inject.path) {
					break
				}
				require.Less(t, n, 2000, "it never ends")
			}
			t.Logf("%d runs", runs)
		})
	}
}

// TestMachineFileSizeLimit: the system lets a file grow to n bytes and no
// further, which gives real short writes, for n from nothing on. B15, rules 2, 10.
func TestMachineFileSizeLimit(t *testing.T) {
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Skip("needs prlimit")
	}
	step := 197
	if *machineAll {
		step = 7
	}
	for n := 0; n < 4000; n += step {
		if n > 100 && n <= 300 {
			continue // an open line is about as long
		}
		state, c := filepath.Join(t.TempDir(), "state"), newClaims()
		w := startWriter(t, c, []string{prlimit, "--fsize=" + strconv.Itoa(n)}, "-name", "a", "-workers", "1", "-keys", "20", "-segment", "100000", state)
		w.open()
		require.Equal(t, n > 300, w.hears() == "opened", "with room for %d bytes", n)
		require.True(t, w.end().Success())
		after := startWriter(t, c, nil, "-name", "b", "-workers", "1", "-keys", "4", "-segment", "2000", state)
		after.open()
		require.Equal(t, "opened", after.hears())
		require.Equal(t, "closed", after.hears())
		require.True(t, after.end().Success())
		c.hold(t, bookOf(state), false)
	}
}

// injected runs a writer twice over one book, the second time under strace with
// a fault at the n-th call, and then holds the book against what it said. It
// reports whether the fault came.
func injected(t *testing.T, strace, what, also string, n int, onSegments bool) bool {
	t.Helper()
	dir := t.TempDir()
	state, log, c := filepath.Join(dir, "state"), filepath.Join(dir, "strace"), newClaims()
	args := []string{"-name", "a", "-workers", "1", "-keys", "12", "-segment", "2000", state}
	before := startWriter(t, c, nil, args...)
	before.open()
	require.Equal(t, "opened", before.hears())
	require.Equal(t, "closed", before.hears())
	before.end()

	what, forever := strings.CutSuffix(what, ":forever")
	when := strconv.Itoa(n)
	if forever {
		when += "+"
	}
	under := []string{strace, "-f", "-qq", "-o", log, "-e", "trace=" + what[:strings.IndexByte(what, ':')], "-e", "inject=" + what + ":when=" + when}
	if also != "" {
		under = append(under, "-e", "inject="+also)
	}
	if onSegments {
		for segment := range 40 {
			name := filepath.Join(bookOf(state), fmt.Sprintf("%06d.jsonl", segment+1))
			under = append(under, "-P", name, "-P", name+".tmp")
		}
	}
	args[1] = "b"
	w := startWriter(t, c, under, args...)
	w.open()
	said := w.hears()
	if said == "opened" {
		said = w.hears()
	}
	killed := !w.end().Exited()
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	came := killed || strings.Contains(string(text), "(INJECTED)")
	if !came {
		require.Equal(t, "closed", said)
	}

	// A process that comes after finds a book that works.
	after := startWriter(t, c, nil, "-name", "c", "-workers", "1", "-keys", "4", state)
	after.open()
	require.Equal(t, "opened", after.hears(), "%s at %d: %s", what, n, text)
	require.Equal(t, "closed", after.hears())
	after.end()
	c.hold(t, bookOf(state), false)
	return came
}
