package budget_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// scheduler decides what happens next. Whoever meets the world outside (the disk,
// the provider, the caller of a call) waits at a gate until it is let through, one
// at a time, and only when all others wait as well. So between two gates one
// goroutine runs, or several whose order says nothing, and a seed always takes the
// same way. It also lets time pass, so that whatever waits for an answer may find
// its time over.
type scheduler struct {
	rng    *rand.Rand
	say    func(format string, args ...any) // nil: silent
	check  func()                           // after each step
	die    func(why string)                 // ends the life
	last   int                              // the step at which it ends; 0: none
	passes []time.Duration                  // how much time passes now and then

	mu     sync.Mutex // momentary: nothing waits while it is held
	parked []*gate
	open   bool // nobody waits any more
	came   chan struct{}

	steps int
	trace uint64
}

type gate struct {
	name string
	pass chan struct{}
}

func newScheduler(rng *rand.Rand) *scheduler {
	return &scheduler{rng: rng, came: make(chan struct{}, 1), check: func() {}, passes: []time.Duration{time.Millisecond, 30 * time.Millisecond, time.Second}}
}

// gate waits until the scheduler lets this one through. The name is the same
// whenever the seed is.
func (s *scheduler) gate(format string, args ...any) {
	s.mu.Lock()
	if s.open {
		s.mu.Unlock()
		return
	}
	g := &gate{name: fmt.Sprintf(format, args...), pass: make(chan struct{})}
	s.parked = append(s.parked, g)
	s.mu.Unlock()
	select {
	case s.came <- struct{}{}:
	default:
	}
	<-g.pass
}

// run schedules until over is closed.
func (s *scheduler) run(over <-chan struct{}) {
	for {
		// Timers of one moment fire in random order, so no two steps are at the
		// same time.
		time.Sleep(time.Microsecond)
		synctest.Wait()
		s.check()
		select {
		case <-over:
			return
		default:
		}
		if s.steps++; s.steps == s.last {
			s.die("the time has come")
		}
		switch g := s.pick(); {
		case g != nil:
			s.note("%s", g.name)
			close(g.pass)
		case s.waiting() > 0:
			d := s.passes[s.rng.IntN(len(s.passes))]
			s.note("%v pass", d)
			time.Sleep(d)
		default: // until a timer fires, or all is over
			s.note("wait")
			select {
			case <-s.came:
			case <-over:
			}
		}
	}
}

func (s *scheduler) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parked)
}

// pick takes one gate out, or none, now and then, so that time passes.
func (s *scheduler) pick() *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) == 0 || s.rng.IntN(8) == 0 {
		return nil
	}
	slices.SortStableFunc(s.parked, func(a, b *gate) int { return cmp.Compare(a.name, b.name) })
	i := s.rng.IntN(len(s.parked))
	g := s.parked[i]
	s.parked = slices.Delete(s.parked, i, i+1)
	return g
}

// release lets everybody through from now on.
func (s *scheduler) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	for _, g := range s.parked {
		close(g.pass)
	}
	s.parked = nil
}

// note keeps the way that was taken.
func (s *scheduler) note(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%x %s", s.trace, what)
	s.trace = h.Sum64()
	if s.say != nil {
		s.say("%4d %s", s.steps, what)
	}
}
