package budget_test

import (
	"flag"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeeds = flag.Int("seeds", 150, "simulations that TestSimulation runs")
	simFrom  = flag.Uint64("sim.from", 0, "seed of the first of them")
	simTrace = flag.Bool("sim.trace", false, "log each of their steps")
	simAgain = flag.Int("sim.again", 10, "run every so many-th a second time: it must take the same way")
)

// TestSimulation runs whole batches, one for each seed: guard, retry loop, runner and
// file journal, on a disk that crashes, against a provider with every fault, under a
// scheduler that decides who goes on next and when time passes. After each step I1
// to I6 hold, and I9 of each life; in the end the provider's own report leaves no
// drift.
//
// A seed takes the same way again, which is checked; not so with the race detector,
// whose scheduler is random on purpose.
func TestSimulation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var all simCounts
	start := time.Now()
	for seed := *simFrom; seed < *simFrom+uint64(*simSeeds); seed++ {
		way, err := simulate(t, seed, &all)
		switch {
		case err != nil:
			again, _ := simulate(t, seed, new(simCounts))
			t.Fatalf("seed %d: %v\n(a second time by the same way: %t)\nsee it with: go test ./budget -run Simulation -v -sim.from=%d -seeds=1 -sim.trace", seed, err, way == again, seed)
		case *simAgain > 0 && seed%uint64(*simAgain) == 0 && !raceEnabled:
			second, _ := simulate(t, seed, new(simCounts))
			if second == way {
				break
			}
			// A machine under load may take the processor away in the middle of a
			// step, for so long that Go lets another goroutine go on.
			if third, _ := simulate(t, seed, new(simCounts)); third != way && third != second {
				t.Fatalf("seed %d takes a way of its own each time: %x, %x, %x", seed, way, second, third)
			}
			all.strayed++
		}
	}
	t.Logf("%d seeds in %v: %+v", *simSeeds, time.Since(start).Round(time.Millisecond), all)
}

func simulate(t *testing.T, seed uint64, all *simCounts) (way uint64, err error) {
	synctest.Test(t, func(t *testing.T) {
		var say func(string, ...any)
		if *simTrace {
			say = t.Logf
		}
		w := newSimulation(seed, say)
		err = w.run()
		way = w.trace
		c := w.counts
		all.seeds++
		all.lives, all.steps, all.crashes, all.pauses = all.lives+c.lives, all.steps+c.steps, all.crashes+c.crashes, all.pauses+c.pauses
		all.troubles, all.sent, all.entries, all.late = all.troubles+c.troubles, all.sent+c.sent, all.entries+c.entries, all.late+c.late
	})
	return way, err
}
