package budget_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// Durable reserve + settle beside what the disk allows: two bare group commits
// (write and fdatasync) of as many bytes. Both run in turns within one benchmark, because only their
// ratio means anything on a shared machine. The targets are 0.9 for one
// goroutine and 0.8 for many.
func BenchmarkDurable(b *testing.B) {
	for _, workers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("goroutines=%d", workers), func(b *testing.B) {
			book, err := budget.Open(b.Context(), filepath.Join(b.TempDir(), "book"), budget.Tokens(budget.MaxTokens))
			if err != nil {
				b.Fatal(err)
			}
			defer book.Close()
			bare := newBareLog(b)
			line := make([]byte, 230)    // the mean of a reserve and a settle line
			pairs := max(workers*32, 64) // as many a goroutine as make its start not count
			var ours, theirs time.Duration
			b.ResetTimer()
			for range b.N {
				ours += inParallel(b, workers, pairs, func() error {
					r, err := book.Reserve(b.Context(), budget.Request{Tokens: 800, Scope: "nightly/shard-3", Model: "gpt-5-mini"})
					if err == nil {
						_, err = r.Settle(b.Context(), budget.Usage{Input: 500, Output: 120, Cached: 100, Ref: "req_0123456789abcdef"})
					}
					return err
				})
				theirs += inParallel(b, workers, pairs, func() error {
					if err := bare.commit(line); err != nil {
						return err
					}
					return bare.commit(line)
				})
			}
			b.ReportMetric(float64(pairs*b.N)/ours.Seconds(), "pairs/s")
			b.ReportMetric(float64(pairs*b.N)/theirs.Seconds(), "bare-pairs/s")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func inParallel(b *testing.B, workers, calls int, f func() error) time.Duration {
	start, wg := time.Now(), sync.WaitGroup{}
	for w := range workers {
		wg.Go(func() {
			for i := w; i < calls; i += workers {
				if err := f(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// bareLog is the least a group commit can be: while one write and fsync is on
// its way, the next collects.
type bareLog struct {
	file    *os.File
	mu      sync.Mutex
	buf     []byte
	waiters []chan error
	writing bool
}

func newBareLog(b *testing.B) *bareLog {
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "bare"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return &bareLog{file: f}
}

func (l *bareLog) commit(line []byte) error {
	l.mu.Lock()
	l.buf = append(l.buf, line...)
	if l.writing {
		done := make(chan error, 1)
		l.waiters = append(l.waiters, done)
		l.mu.Unlock()
		return <-done
	}
	l.writing = true
	var own error
	for first := true; len(l.buf) > 0; first = false {
		buf, waiters := l.buf, l.waiters
		l.buf, l.waiters = nil, nil
		l.mu.Unlock()
		_, err := l.file.Write(buf)
		if err == nil {
			err = syscall.Fdatasync(int(l.file.Fd()))
		}
		if first {
			own = err
		}
		for _, w := range waiters {
			w <- err
		}
		l.mu.Lock()
	}
	l.writing = false
	l.mu.Unlock()
	return own
}
