// Power cuts, kills and failing disks at every operation, and at every one of
// the recovery after it: no acknowledged entry is lost, none is invented, none
// counts twice, and no crash passes for corruption (I2 to I6, I8).
package budget_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

var (
	crashSeeds = flag.Int("crash.seeds", 300, "random histories of crashes that TestCrashSeeds tries")
	crashFirst = flag.Uint64("crash.first", 0, "seed of the first of them")
	crashTrace = flag.Bool("crash.trace", false, "log each step of them")
	crashFull  = flag.Bool("crash.full", false, "TestTroubleAtEveryOperation meets trouble at every operation, the second one too, not at a few")
)

// TestCrashSeeds lives random lives on a disk that meets with trouble now and
// then.
func TestCrashSeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := *crashFirst; seed < *crashFirst+uint64(*crashSeeds); seed++ {
			w := newWorld(seed)
			if *crashTrace {
				w.trace = t.Logf
			}
			what := attemptTo(func() {
				if w.rng.IntN(4) == 0 { // batches of many blocks
					w.segment, w.crowd = 30_000, 40
				}
				for range 1 + w.rng.IntN(4) {
					random := func(within int) strike {
						return strike{powerCut + trouble(w.rng.IntN(6)), 1 + w.rng.IntN(within)}
					}
					w.meet([]strike{random(120), random(6), random(6)}[:w.rng.IntN(4)]...)
					w.live(w.rng.IntN(30))
				}
				w.outlive()
			})
			if what != "" {
				t.Fatalf("seed %d: %s\nsee it with: go test ./budget -run TestCrashSeeds -v -crash.first=%d -crash.seeds=1 -crash.trace", seed, what, seed)
			}
		}
	})
}

// TestTroubleAtEveryOperation leads one life that has everything in it, once for
// each kind of trouble and each operation it can happen to (with -crash.full, else
// every fifth). The next operation is the last, or the process goes on; the next
// process meets with trouble, too.
func TestTroubleAtEveryOperation(t *testing.T) {
	seed := fullLife(t)
	step := 5
	if *crashFull {
		step = 1
	}
	for first := powerCut; first <= full; first++ {
		t.Run(first.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				for at, met := 1, true; met; at += step {
					plans := [][]strike{{{first, at}}, {{first, at}, {powerCut, 1}}, {{first, at}, {killed, 1}}}
					if first == powerCut || first == killed {
						plans = plans[:1]
					}
					for _, plan := range plans {
						w := newWorld(seed)
						name := fmt.Sprint(plan)
						what := attemptTo(func() {
							w.meet(plan...)
							w.live(lifeSteps)
						})
						if what != "" {
							t.Fatalf("%s: %s", name, what)
						}
						if met = w.metTrouble; !met {
							t.Logf("fewer than %d operations, %d recoveries", at, runs)
							require.Greater(t, at, 20)
							break
						}
						runs += recoveries(t, w, name, at)
					}
				}
			})
		})
	}
}

const lifeSteps = 40

// fullLife returns a seed of a life in which everything happens.
func fullLife(t *testing.T) (seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		for ; ; seed++ {
			require.Less(t, seed, uint64(10_000))
			w := newWorld(seed)
			require.Empty(t, attemptTo(func() { w.live(lifeSteps) }))
			if !slices.ContainsFunc([]string{"reserve", "extend", "settle", "refund", "close", "reclaim", "settle late", "adjust", "repeat",
				"close again", "too late", "together", "limit", "prune", "rotate", "reopen", "room", "told"}, func(what string) bool { return !w.did[what] }) {
				return
			}
		}
	})
	return seed
}

// recoveries lets trouble happen at every operation of the process that finds w,
// or at one.
func recoveries(t *testing.T, w *world, name string, at int) (runs int) {
	for i, with := range []trouble{powerCut, killed, refused, full} {
		if !*crashFull && i != at%4 {
			continue
		}
		again := 1
		if !*crashFull {
			again += at % 37
		}
		for met := true; met; again++ {
			runs++
			v := w.copy(uint64(at*1000 + again))
			what := attemptTo(func() {
				v.meet(strike{with, again})
				v.live(3)
				v.outlive()
			})
			if what != "" {
				t.Fatalf("%s, then %s: %s", name, strike{with, again}, what)
			}
			met = *crashFull && v.metTrouble
		}
	}
	return runs
}

// Found by seed 2337: a limit whose change failed in doubt is not said to be
// what it was before.
func TestLimitInDoubt(t *testing.T) {
	j := newFlaky()
	b, err := budget.New(t.Context(), j, budget.Tokens(10))
	require.NoError(t, err)
	j.fail = journal.ErrPoisoned
	require.ErrorIs(t, b.SetLimit(t.Context(), budget.Tokens(5)), journal.ErrPoisoned)
	require.ErrorIs(t, b.SetLimit(t.Context(), budget.Tokens(10)), journal.ErrPoisoned)
}
