package main

import (
	"errors"
	"flag"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

var machineReadings = flag.Int("machine.readings", 6, "readings, and copies, of a book that is being written")

// keepsOpen opens a writer's book whenever it is closed, until stop is closed.
func (w *writing) keepsOpen(stop <-chan struct{}) {
	w.open()
	for {
		select {
		case said := <-w.said:
			if said != "opened" {
				w.open()
			}
		case <-stop:
			return
		}
	}
}

// TestMachineReaders: a writer appends, rotates often, finds the disk full now
// and then and is opened anew, and its old segments are pruned. Who reads beside
// it never sees damage, a half line, or sums that do not add up. B3, rule 24.
func TestMachineReaders(t *testing.T) {
	state, c := filepath.Join(t.TempDir(), "state"), newClaims()
	w := startWriter(t, c, nil, "-segment", "3000", "-full", "15", state)
	stop, all := make(chan struct{}), sync.WaitGroup{}
	all.Go(func() { w.keepsOpen(stop) })
	defer all.Wait()
	defer close(stop)
	c.reaches(t, 100)

	dir, pruned, again := journal.Dir{Path: bookOf(state)}, 0, 0
	for n := range *machineReadings {
		from := c.count()
		audit := budget.NewAudit()
		for e, err := range dir.History() {
			if errors.Is(err, journal.ErrConflict) {
				again++
				break
			}
			require.NoError(t, err)
			audit.Add(&e)
		}
		require.Empty(t, audit.Violations)
		require.Empty(t, audit.MultiClosed)
		bytes, err := dir.Verify()
		require.NoError(t, err)
		require.False(t, bytes.Damaged(), "%v", bytes.Findings)
		report, err := budget.Fold(dir.Newest())
		require.NoError(t, err)
		require.Equal(t, report.Tokens.Net, report.Tokens.Confirmed+report.Tokens.Assumed+report.Tokens.Held)
		if n%5 == 4 {
			for _, command := range []string{"status", "verify", "replay"} {
				p := start(t, command, state)
				require.Equal(t, exitDone, p.exit(), "%s: %s%s", command, &p.stdout, &p.said)
			}
		}
		gone, err := dir.Prune(time.Now())
		require.NoError(t, err)
		pruned += len(gone.Segments)
		c.reaches(t, from+20) // it is at work
	}
	require.Positive(t, c.refusals())
	require.Positive(t, pruned)
	t.Logf("%d steps acknowledged, %d refused, %d segments pruned, %d readings to be repeated", c.count(), c.refusals(), pruned, again)
}

// TestMachineBackups: a plain copy of the files, taken while a writer is at work
// and rotates, is a book that opens and holds all that was acknowledged before
// the copy began.
func TestMachineBackups(t *testing.T) {
	cp, err := exec.LookPath("cp")
	if err != nil {
		t.Skip("needs cp")
	}
	const each = 2 // copies of one book, which grows while they are read, and faster the longer that takes
	for done := 0; done < *machineReadings; done += each {
		backups(t, cp, min(each, *machineReadings-done))
	}
}

func backups(t *testing.T, cp string, copies int) {
	state, c := filepath.Join(t.TempDir(), "state"), newClaims()
	w := startWriter(t, c, nil, "-segment", "5000", state)
	w.open()
	require.Equal(t, "opened", w.hears())
	for range copies {
		before := c.sofar()
		c.reaches(t, before.count()+5)
		to := filepath.Join(t.TempDir(), "copy")
		// It fails if a temporary file was gone before its turn came.
		out, err := exec.Command(cp, "-r", state, to).CombinedOutput()
		verifies(t, to)
		book, openErr := openBook(bookOf(to), journal.FileOptions{})
		require.NoError(t, openErr, "after a copy that said %v: %s", err, out)
		require.NoError(t, book.Close())
		before.hold(t, bookOf(to), true)
	}
	w.kill()
	c.hold(t, bookOf(state), false)
}
