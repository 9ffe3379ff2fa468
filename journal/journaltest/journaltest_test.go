// The suite accepts a journal that keeps its promises, and every case of it
// finds one that breaks them.
package journaltest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

func TestSoundJournal(t *testing.T) { Run(t, func(*testing.T) Store { return new(store).asStore() }) }

// Each fault, and the case that must find it.
func TestBrokenJournals(t *testing.T) {
	untested := map[string]bool{}
	for _, c := range cases {
		untested[c.name] = true
	}
	for fault, found := range map[string]string{
		"loses a field":                       "EveryField",
		"leaves a position out":               "Positions",
		"acknowledges half a batch":           "Positions",
		"forgets the conflict check":          "Conflict",
		"writes a repeated batch twice":       "Repeat",
		"knows a batch anywhere":              "Repeat",
		"takes a repeat for a conflict":       "Repeat",
		"remembers batches by nothing":        "EmptyBatch",
		"keeps what stood before a bad entry": "AllOrNothing",
		"cuts long texts":                     "ReadBackOrRefused",
		"appends before the first rotation":   "FirstARotation",
		"ignores the context":                 "ContextDone",
		"keeps the caller's memory":           "OwnMemory",
		"hands out its own memory":            "OwnMemory",
		"checks, then writes":                 "Contention",
		"forgets that a failed append is in":  "FailedAppend",
		"names the book anew":                 "Snapshot",
		"drops what is carried":               "Snapshot",
		"rotates anywhere":                    "RotateConflict",
		"takes any beginning":                 "RotateRefuses",
		"is always due":                       "DueByHalf",
		"counts positions from nought":        "EntriesAfter",
		"begins with the oldest segment":      "EntriesAfter",
		"reads on after a stop":               "EntriesStop",
		"never ends a reading":                "ReadWhileAppending",
		"reads what is not whole":             "ReadWhileAppending",
		"reads over into the next segment":    "ReadWhileRotating",
		"works on when closed":                "Close",
		"loses the last batch when closed":    "Reopen",
		"loses the last batch when killed":    "Kill",
		"knows repeats on one handle only":    "SecondHandle",
	} {
		t.Run(fault, func(t *testing.T) {
			for _, c := range cases {
				if c.name != found {
					continue
				}
				rec := &recorder{TB: t}
				rec.run(func() { c.check(rec, (&store{fault: fault}).asStore()) })
				if !rec.failed {
					t.Errorf("%s does not find a journal that %s", c.name, fault)
				}
			}
		})
		delete(untested, found)
	}
	for name := range untested {
		t.Errorf("%s has not been seen to fail", name)
	}
}

// What a store lacks is skipped with a word and is no failure.
func TestLackingStore(t *testing.T) {
	for _, c := range cases {
		rec := &recorder{TB: t}
		rec.run(func() {
			full := new(store)
			c.check(rec, Store{Open: func(testing.TB) Journal { return bare{full.open()} }})
		})
		if rec.failed {
			t.Errorf("%s fails: %v", c.name, rec.said)
		}
		if want := slices.Contains([]string{"FailedAppend", "DueByHalf", "Close", "Reopen", "Kill", "SecondHandle"}, c.name); rec.skipped != want {
			t.Errorf("%s skipped: %v", c.name, rec.skipped)
		}
	}
}

// bare hides the methods that a journal need not have.
type bare struct{ Journal }

// recorder is a test whose end is not that of the test around it.
type recorder struct {
	testing.TB
	failed, skipped bool
	said            []string
}

// run calls f, which may end its goroutine, or panic as the runtime does where
// an iterator goes on after a stop.
func (r *recorder) run(f func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("%v", p)
			}
		}()
		f()
	})
	wg.Wait()
}

func (r *recorder) Failed() bool              { return r.failed }
func (r *recorder) Logf(f string, a ...any)   { r.said = append(r.said, fmt.Sprintf(f, a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.Logf(f, a...); r.failed = true }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Fatalf("%s", fmt.Sprint(a...)) }
func (r *recorder) Skip(a ...any)             { r.Logf("%s", fmt.Sprint(a...)); r.skipped = true; runtime.Goexit() }
