package main

import (
	"flag"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var machineKills = flag.Int("machine.kills", 30, "kills of the holder of a book")

// TestMachineKills: two processes compete for one book. While one holds it the
// other is refused; when it is killed, at any moment, also while it opens or
// rotates, the other has the book at once. Nothing acknowledged is lost, nothing
// is made up, nothing is closed twice. Rules 1, 7, 9, 13, 22, 23; I2, I3, I8; B6, B21.
func TestMachineKills(t *testing.T) {
	const each = 30 // kills of one book: what is carried grows with them
	rnd := rand.New(rand.NewPCG(uint64(*machineKills), 23))
	for done := 0; done < *machineKills; done += each {
		killHolders(t, rnd, min(each, *machineKills-done))
	}
}

func killHolders(t *testing.T, rnd *rand.Rand, kills int) {
	state, c := filepath.Join(t.TempDir(), "state"), newClaims()
	writer := func(n int) *writing {
		return startWriter(t, c, nil, "-name", "w"+string(rune('0'+n/10))+string(rune('0'+n%10)), state)
	}
	holder, slowest := writer(0), time.Duration(0)
	for n := range kills {
		other := writer(n + 1)
		began := time.Now()
		holder.open()
		if rnd.IntN(4) > 0 {
			require.Equal(t, "opened", holder.hears(), "after a kill the lock is free at once")
			slowest = max(slowest, time.Since(began))
			other.open()
			require.Equal(t, "locked", other.hears())
		} // else it is killed while it opens, perhaps
		time.Sleep(time.Duration(rnd.IntN(30_000)) * time.Microsecond) // the moment of the kill is what is random here
		holder.kill()
		holder = other
	}
	holder.open()
	require.Equal(t, "opened", holder.hears())
	holder.kill()
	c.hold(t, bookOf(state), false)
	verifies(t, state)
	t.Logf("%d kills, %d steps acknowledged, slowest take-over %v", kills, c.count(), slowest)
}
