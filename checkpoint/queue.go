package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queue decides which item a worker starts next, and when there is none left.
// Its fields are guarded by state.mu.
type queue struct {
	*state
	wake   *sync.Cond  // a worker may find an item now, or none for ever
	timer  *time.Timer // fires when the first of parked is due
	parked []start     // told to come later, by time
	room   int         // bounds parked and running together

	running int
	sent    int // items started by this run
	retry   int // items that failed in this run but not for good

	stopped  bool  // nothing is started any more
	first    error // of the items
	cut      error // ErrInterrupted
	pause    error // the first cause
	comeBack time.Time
	broken   error // the first thing that went wrong with a file
}

// start is one start of an item.
type start struct {
	item int
	nth  int       // in this run, from 1
	due  time.Time // not before
}

// parkedPerWorker bounds how many items wait for their time. Where all are to
// come later, starting ever more of them would only make them wait, too.
const parkedPerWorker = 16

// maxStarts bounds how often one run starts an item that is put off each time.
const maxStarts = 100

func newQueue(s *state, workers int) *queue {
	q := &queue{state: s, wake: sync.NewCond(&s.mu), room: parkedPerWorker * workers}
	q.timer = time.AfterFunc(time.Hour, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		q.wake.Broadcast()
	})
	q.timer.Stop()
	return q
}

// take waits for an item that may start; ok is false when this run starts none
// any more. Each take that is ok ends with a call of release.
func (q *queue) take() (s start, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.stopped {
		if len(q.parked) > 0 && !time.Now().Before(q.parked[0].due) {
			s = q.parked[0]
			q.parked = slices.Delete(q.parked, 0, 1)
			q.rewind()
			s.nth++
			q.running++
			return s, true
		}
		if len(q.parked)+q.running < q.room {
			if i, ok := q.pick(); ok {
				q.running++
				q.sent++
				return start{item: i, nth: 1}, true
			}
		}
		if q.running == 0 && len(q.parked) == 0 {
			break
		}
		q.wake.Wait()
	}
	q.wake.Broadcast()
	return start{}, false
}

// release gives the worker back; the item has ended or is pending.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	if q.running == 0 {
		q.wake.Broadcast()
	}
}

// park lets the item start again at the given time or soon after.
func (q *queue) park(s start, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// The wait is a duration from now on: a clock that is set does not stretch it.
	s.due = time.Now().Add(time.Until(at))
	i, _ := slices.BinarySearchFunc(q.parked, s, func(a, b start) int {
		return cmp.Or(a.due.Compare(b.due), -1) // behind those that are due at the same time
	})
	q.parked = slices.Insert(q.parked, i, s)
	q.rewind()
	q.wake.Broadcast()
}

func (q *queue) rewind() {
	if len(q.parked) > 0 && !q.stopped {
		q.timer.Reset(time.Until(q.parked[0].due))
	}
}

// note keeps the first error of an item.
func (q *queue) note(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.first == nil {
		q.first = err
	}
}

// giveUp counts an item that failed in this run, but not for good. What was a
// dead letter is one again.
func (q *queue) giveUp(item int, err error) {
	q.note(err)
	q.mu.Lock()
	defer q.mu.Unlock()
	if sh, k := q.place(item); sh.at(k) == dead {
		q.set(item, dead)
	} else {
		q.retry++
	}
}

// stop ends admission; set says why.
func (q *queue) stop(set func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	set()
	q.stopped = true
	q.timer.Stop()
	q.wake.Broadcast()
}

func (q *queue) stopPaused(cause error) {
	q.stop(func() {
		if q.pause == nil {
			q.pause = cause
		}
		if at := retryAt(cause); at.After(q.comeBack) {
			q.comeBack = at
		}
	})
}

func (q *queue) stopBroken(err error) {
	q.stop(func() {
		if q.broken == nil {
			q.broken = err
		}
	})
}

func (q *queue) counts() Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Counts{
		Items: q.pin.Items, Done: q.count[done], Failed: q.count[failed] + q.retry, Dead: q.count[dead],
		Pending: q.count[0] - q.retry, Retry: q.retry, Sent: q.sent, Running: q.running, Waiting: len(q.parked),
	}
}

// result says how the run ended, once all workers have: what went wrong first,
// then what is left to do, then what failed.
func (q *queue) result(why func(error) string, closing error) (Summary, error) {
	sum := Summary{Counts: q.counts(), Shards: len(q.shards), Repairs: q.repairs}
	switch broken := errors.Join(q.broken, closing); {
	case broken != nil:
		return sum, broken
	case q.cut != nil && sum.Pending > 0:
		return sum, fmt.Errorf("%w, %d of %d items pending", q.cut, sum.Pending, sum.Items)
	case q.pause != nil && sum.Pending > 0:
		return sum, &PausedError{Cause: q.pause, Why: why(q.pause), RetryAt: q.comeBack, Items: sum.Items, Pending: sum.Pending}
	case sum.Failed+sum.Dead > 0:
		err := &FailedError{Items: sum.Items, Failed: sum.Failed, Retry: sum.Retry, Dead: sum.Dead, First: q.first}
		if q.first != nil {
			err.Why = why(q.first)
		}
		return sum, err
	}
	return sum, nil
}
