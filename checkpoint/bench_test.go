package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tollbook/tollbook/checkpoint"
)

// numbers is a source that holds nothing.
type numbers int

func (n numbers) Len() int               { return int(n) }
func (numbers) At(i int) (string, error) { return fmt.Sprintf("request-%d", i), nil }

// output options with lines as the CLI writes them, of some 500 bytes.
func benchOptions(b *testing.B, lines bool) checkpoint.Options[string] {
	o := checkpoint.Options[string]{Dir: filepath.Join(b.TempDir(), "state"), Key: func(s string) string { return s }, Shards: 12, Workers: 64}
	if lines {
		o.Outputs = []checkpoint.Output{{Path: filepath.Join(filepath.Dir(o.Dir), resultsFile), Key: cutKey}}
	}
	return o
}

// cutKey reads the key where this benchmark puts it, as a fast caller would.
func cutKey(line []byte) (string, error) {
	_, rest, _ := bytes.Cut(line, []byte(`"custom_id":"`))
	key, _, ok := bytes.Cut(rest, []byte{'"'})
	if !ok {
		return "", errors.New("no custom_id")
	}
	return string(key), nil
}

var padding = bytes.Repeat([]byte("x"), 400)

// Items per second with everything durable, against a function that takes no
// time; beside it what the disk allows: bare writes of one line, each synced.
func BenchmarkRun(b *testing.B) {
	for _, lines := range []bool{true, false} {
		b.Run(map[bool]string{true: "lines", false: "marks"}[lines], func(b *testing.B) {
			o := benchOptions(b, lines)
			b.ResetTimer()
			_, err := checkpoint.RunTasks(b.Context(), numbers(b.N), o, func(_ context.Context, t checkpoint.Task[string]) (checkpoint.Line, error) {
				if !lines {
					return checkpoint.Line{}, nil
				}
				return checkpoint.Line{JSON: fmt.Appendf(nil, `{"id":"batch_req_1","custom_id":%q,"response":{"status_code":200,"body":{"text":"%s"}},"error":null}`, t.Key, padding)}, nil
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
	b.Run("bare write and sync", func(b *testing.B) {
		f, err := os.OpenFile(filepath.Join(b.TempDir(), "bare"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		line := append(bytes.Repeat([]byte("x"), 499), '\n')
		for b.Loop() {
			if _, err := f.Write(line); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "items/s")
	})
}

// Memory an item, that which stays during a run and the most that is held
// while the state is opened.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1e4, 1e5, 1e6} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				most, stop := watchHeap()
				var lasting uint64
				var once sync.Once
				_, err := checkpoint.RunTasks(b.Context(), numbers(n), benchOptions(b, true), func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) {
					once.Do(func() { lasting = heap() })
					return checkpoint.Line{}, io.EOF
				})
				stop()
				if !errors.Is(err, checkpoint.ErrFailed) {
					b.Fatal(err)
				}
				b.ReportMetric(float64(lasting-min(before, lasting))/float64(n), "lasting-B/item")
				b.ReportMetric(float64(most()-before)/float64(n), "peak-B/item")
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// watchHeap samples the heap, garbage not yet collected included.
func watchHeap() (most func() uint64, stop func()) {
	var top uint64
	quit, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				top = max(top, m.HeapAlloc)
			}
		}
	}()
	return func() uint64 { return top }, func() { close(quit); <-over }
}
