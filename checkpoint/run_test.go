// I9 for a run that is not killed: an item is done when its line is durable; a
// pause is cheap; nothing that has ended is sent again.
package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal/disk"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// job is a run over n items named k0, k1, … with two outputs, results and
// errors, on a disk in memory.
type job struct {
	n  int
	fs *memFS
	o  checkpoint.Options[string]
	do func(ctx context.Context, t checkpoint.Task[string]) (checkpoint.Line, error)

	mu   sync.Mutex
	sent map[string]int // how often do was called
}

const (
	resultsFile = "results.jsonl"
	errorsFile  = "errors.jsonl"
)

func newJob(n int) *job {
	j := &job{n: n, fs: newMemFS(), sent: map[string]int{}}
	j.o = checkpoint.Options[string]{Dir: "state", Key: func(s string) string { return s }, Shards: 3, Workers: 4,
		Outputs: []checkpoint.Output{{Path: resultsFile, Key: lineKey}, {Path: errorsFile, Key: lineKey, Failed: true}}}
	j.do = func(_ context.Context, t checkpoint.Task[string]) (checkpoint.Line, error) { return line(t), nil }
	return j
}

func (j *job) Len() int                 { return j.n }
func (j *job) At(i int) (string, error) { return fmt.Sprint("k", i), nil }
func (j *job) file(name string) string  { return j.fs.read(name) }
func (j *job) state(name string) string { return filepath.Join("state/shards", name) }
func (j *job) sentOnce(key string) bool { return j.sent[key] == 1 }
func (j *job) run(ctx context.Context) (checkpoint.Summary, error) {
	j.o.FS = j.fs
	return checkpoint.RunTasks(ctx, j, j.o, func(ctx context.Context, t checkpoint.Task[string]) (checkpoint.Line, error) {
		j.mu.Lock()
		j.sent[t.Key]++
		j.mu.Unlock()
		return j.do(ctx, t)
	})
}

func line(t checkpoint.Task[string]) checkpoint.Line {
	return checkpoint.Line{JSON: fmt.Appendf(nil, `{"custom_id":%q,"shard":%d}`, t.Key, t.Shard)}
}

func lineKey(line []byte) (string, error) {
	var l struct {
		ID string `json:"custom_id"`
	}
	err := json.Unmarshal(line, &l)
	return l.ID, err
}

// keysIn returns the keys of a file's lines, each of which must be whole.
func keysIn(t testing.TB, content string) (keys []string) {
	t.Helper()
	for l := range bytes.Lines([]byte(content)) {
		key, err := lineKey(l)
		require.NoError(t, err, "line %q", l)
		require.True(t, bytes.HasSuffix(l, []byte("\n")), "line %q", l)
		keys = append(keys, key)
	}
	return keys
}

// complete checks that every item has exactly one line or mark.
func (j *job) complete(t testing.TB) {
	t.Helper()
	got := append(keysIn(t, j.file(resultsFile)), keysIn(t, j.file(errorsFile))...)
	for l := range strings.Lines(j.file(j.state("marks.jsonl"))) {
		var m struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(l), &m))
		got = append(got, m.Key)
	}
	var want []string
	for i := range j.n {
		want = append(want, fmt.Sprint("k", i))
	}
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, want, got, "every item exactly once")
}

// pauseError pauses a run, as the errors of a provider's quota do.
type pauseError struct{ at time.Time }

func (e pauseError) Error() string      { return "no quota" }
func (e pauseError) Pause() bool        { return true }
func (e pauseError) RetryAt() time.Time { return e.at }

func TestEveryEnding(t *testing.T) {
	j := newJob(7)
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		l := line(task)
		assert.Equal(t, task.Index%3, task.Shard)
		assert.Equal(t, fmt.Sprint("shard-", task.Shard), task.ShardName())
		switch task.Index {
		case 1: // no line: a mark
			return checkpoint.Line{}, nil
		case 2:
			l.Output = 1
			return l, errors.New("refused")
		case 3:
			return checkpoint.Line{}, checkpoint.Failed(errors.New("refused"))
		case 4:
			return checkpoint.Line{}, fmt.Errorf("deep: %w", checkpoint.Dead(5, errors.New("overloaded")))
		case 5:
			return checkpoint.Line{}, errors.New("odd")
		}
		return l, nil
	}
	want := checkpoint.Counts{Items: 7, Done: 3, Failed: 3, Dead: 1, Retry: 1, Sent: 7}
	sum, err := j.run(t.Context())
	require.Equal(t, want, sum.Counts)
	require.Equal(t, 3, sum.Shards)
	var failed *checkpoint.FailedError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	require.Contains(t, j.file(j.state("marks.jsonl")), `{"key":"k4","end":"dead","attempts":5,"error":"deep: overloaded","t":`)

	// Again: only what failed for no good reason is sent.
	sum, err = j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	want.Sent = 1
	require.Equal(t, want, sum.Counts)

	// With RetryDead the dead letter, too. What is done then is done.
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) { return line(task), nil }
	j.o.RetryDead = true
	sum, err = j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	require.Equal(t, checkpoint.Counts{Items: 7, Done: 5, Failed: 2, Sent: 2}, sum.Counts)
	sum, _ = j.run(t.Context())
	require.Equal(t, checkpoint.Counts{Items: 7, Done: 5, Failed: 2}, sum.Counts)
	require.Equal(t, map[string]int{"k0": 1, "k1": 1, "k2": 1, "k3": 1, "k4": 2, "k5": 3, "k6": 1}, j.sent)

	shards, err := checkpoint.Inspect(j.fs, "state")
	require.NoError(t, err)
	require.Equal(t, []checkpoint.ShardStatus{{Shard: 0, Items: 3, Done: 2, Failed: 1, Low: 3},
		{Shard: 1, Items: 2, Done: 2, Low: 2}, {Shard: 2, Items: 2, Done: 1, Failed: 1, Low: 2}}, shards)
}

// One file may hold both kinds of lines; a resume tells them apart.
func TestOneOutput(t *testing.T) {
	j := newJob(10)
	j.o.Outputs = []checkpoint.Output{{Path: resultsFile, Key: lineKey,
		FailedLine: func(line []byte) bool { return bytes.Contains(line, []byte(`"shard":1`)) }}}
	want := checkpoint.Counts{Items: 10, Done: 7, Failed: 3, Sent: 10}
	sum, err := j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	require.Equal(t, want, sum.Counts)
	j.o.Dir, want.Sent = "anew", 0 // all from the lines
	sum, err = j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	require.Equal(t, want, sum.Counts)
}

// The three-line form, and items without a line.
func TestRun(t *testing.T) {
	o := checkpoint.Options[int]{Dir: t.TempDir(), Key: func(i int) string { return fmt.Sprint(i) }}
	sum, err := checkpoint.Run(t.Context(), []int{1, 2, 3}, o, func(context.Context, int) error { return nil })
	require.NoError(t, err)
	require.Equal(t, checkpoint.Counts{Items: 3, Done: 3, Sent: 3}, sum.Counts)
	sum, err = checkpoint.Run(t.Context(), []int{1, 2, 3}, o, func(context.Context, int) error { panic("finished items are skipped") })
	require.NoError(t, err)
	require.Equal(t, checkpoint.Counts{Items: 3, Done: 3}, sum.Counts)
	sum, err = checkpoint.Run(t.Context(), nil, checkpoint.Options[int]{Dir: t.TempDir(), Key: o.Key}, func(context.Context, int) error { return nil })
	require.NoError(t, err)
	require.Zero(t, sum.Items)
}

// A pause lets running items finish, names the latest time to come back, and
// after it no finished item is sent again. case 39: what paused is pending, not
// failed, even if its function calls that final.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(100)
		j.o.Workers = 8
		early, late := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
			switch task.Index {
			case 39:
				time.Sleep(time.Second)
				return checkpoint.Line{}, fmt.Errorf("call: %w", pauseError{early})
			case 36:
				time.Sleep(time.Second / 2)
				return checkpoint.Line{}, checkpoint.Failed(pauseError{late})
			}
			time.Sleep(time.Second)
			return line(task), nil
		}
		sum, err := j.run(t.Context())
		var paused *checkpoint.PausedError
		require.ErrorAs(t, err, &paused)
		require.ErrorIs(t, err, checkpoint.ErrPaused)
		var cause pauseError
		require.ErrorAs(t, err, &cause)
		require.Equal(t, late, cause.at, "the first cause")
		require.Equal(t, late, paused.RetryAt, "the latest time")
		require.Equal(t, checkpoint.Counts{Items: 100, Done: 38, Pending: 62, Sent: 40}, sum.Counts)
		require.Len(t, keysIn(t, j.file(resultsFile)), sum.Done, "running items were recorded")

		j.do = newJob(0).do
		again, err := j.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, sum.Pending, again.Sent)
		j.complete(t)
		delete(j.sent, "k39")
		delete(j.sent, "k36")
		require.NotContains(t, slices.Collect(maps.Values(j.sent)), 2)
	})
}

// The context's end drains: what runs may finish, on a context that goes on.
// Abort cuts it short.
func TestInterrupt(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprint("abort ", abort), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(20)
				ctx, cancel := context.WithCancelCause(t.Context())
				stop := make(chan struct{})
				j.o.Abort = stop
				j.do = func(ctx context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
					select {
					case <-time.After(time.Minute):
						return line(task), nil
					case <-ctx.Done():
						if task.Index%2 == 0 {
							return checkpoint.Line{}, checkpoint.Failed(ctx.Err())
						}
						return checkpoint.Line{}, errors.New("cut short")
					}
				}
				time.AfterFunc(90*time.Second, func() { cancel(errors.New("ctrl-c")) })
				time.AfterFunc(100*time.Second, func() {
					if abort {
						close(stop)
					}
				})
				sum, err := j.run(ctx)
				require.ErrorIs(t, err, checkpoint.ErrInterrupted)
				require.ErrorContains(t, err, "ctrl-c")
				finished := map[bool]int{false: 8, true: 4}[abort]
				require.Equal(t, checkpoint.Counts{Items: 20, Done: finished, Pending: 20 - finished, Sent: 8}, sum.Counts)
			})
		})
	}
}

// Cancelled before the first item: nothing is made, nothing is sent.
func TestInterruptedAtOnce(t *testing.T) {
	j := newJob(3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := j.run(ctx)
	require.ErrorIs(t, err, checkpoint.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"."}, j.fs.names())
}

// case 73: rows are known by key, and another input is refused untouched.
func TestOtherInput(t *testing.T) {
	j := newJob(10)
	_, err := j.run(t.Context())
	require.NoError(t, err)
	j.fs.write(j.state("LOCK"), "somebody else")
	before := j.fs.copy()

	for name, keys := range map[string][]string{
		"row on top":  {"new", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"},
		"row changed": {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "other"},
		"reordered":   {"k1", "k0", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"},
	} {
		t.Run(name, func(t *testing.T) {
			o := j.o
			o.Outputs = nil // differs as well, but is not what is wrong first
			_, err := checkpoint.Run(t.Context(), keys, o, func(context.Context, string) error { panic("sent") })
			var input *checkpoint.InputError
			require.ErrorAs(t, err, &input)
			require.ErrorIs(t, err, checkpoint.ErrInput)
			require.Equal(t, len(keys), input.Items)
			require.Equal(t, 10, input.Pinned)
			for _, name := range j.fs.names() {
				require.Equal(t, before.read(name), j.file(name), name)
			}
		})
	}

	t.Run("other outputs", func(t *testing.T) {
		j.o.Outputs = j.o.Outputs[:1]
		_, err := j.run(t.Context())
		require.ErrorIs(t, err, checkpoint.ErrInput)
		require.ErrorContains(t, err, "outputs")
	})
}

// Two runs make the state at the same time: the slower one is not fooled.
func TestOtherInputMeanwhile(t *testing.T) {
	j, slow := newJob(10), newJob(11)
	slow.fs = j.fs
	slow.fs.op = func(op, name string) error {
		if op == "mkdir" && name == "state/shards" {
			slow.fs.op = nil
			_, err := j.run(t.Context())
			require.NoError(t, err)
		}
		return nil
	}
	_, err := slow.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrInput)
	require.Empty(t, slow.sent)
}

func TestDuplicateKey(t *testing.T) {
	o := checkpoint.Options[string]{Dir: "state", Key: func(s string) string { return s }, FS: newMemFS()}
	_, err := checkpoint.Run(t.Context(), []string{"a", "b", "c", "b"}, o, func(context.Context, string) error { panic("sent") })
	var duplicate *checkpoint.DuplicateError
	require.ErrorAs(t, err, &duplicate)
	require.Equal(t, checkpoint.DuplicateError{Key: "b", First: 1, Second: 3}, *duplicate)
	for _, bad := range []string{"", "\xff"} {
		_, err = checkpoint.Run(t.Context(), []string{"a", bad}, o, func(context.Context, string) error { panic("sent") })
		require.ErrorContains(t, err, "item 1")
	}
	require.Equal(t, []string{"."}, o.FS.(*memFS).names())
}

func TestLocked(t *testing.T) {
	j := newJob(1)
	j.do = func(ctx context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		second := newJob(1)
		second.fs = j.fs
		_, err := second.run(ctx)
		assert.ErrorIs(t, err, checkpoint.ErrLocked)
		assert.ErrorAs(t, err, new(*disk.HeldError))
		assert.Empty(t, second.sent)
		return line(task), nil
	}
	_, err := j.run(t.Context())
	require.NoError(t, err)
}

// The number of shards is the state's.
func TestShardsOfTheState(t *testing.T) {
	j := newJob(10)
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		return checkpoint.Line{}, pauseError{}
	}
	_, err := j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrPaused)
	j.do = newJob(0).do
	j.o.Shards = 7
	sum, err := j.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, sum.Shards)
	j.complete(t)
}

// The shards take turns.
func TestFair(t *testing.T) {
	j := newJob(30)
	j.o.Workers = 1
	var shards []int
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		shards = append(shards, task.Shard)
		return line(task), nil
	}
	_, err := j.run(t.Context())
	require.NoError(t, err)
	for i, shard := range shards {
		require.Equal(t, i%3, shard)
	}
}

// A line that could not be read back, or not told from others, is not written.
func TestBadLine(t *testing.T) {
	for name, bad := range map[string]checkpoint.Line{
		"other item":     {JSON: []byte(`{"custom_id":"k1"}`)},
		"two lines":      {JSON: []byte("{\"custom_id\":\"k0\"\n}")},
		"no JSON":        {JSON: []byte(`{"custom_id":"k0"}}`)},
		"no such output": {Output: 2, JSON: []byte(`{"custom_id":"k0"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(1)
			j.do = func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) { return bad, nil }
			sum, err := j.run(t.Context())
			require.ErrorContains(t, err, `"k0"`)
			require.Equal(t, checkpoint.Counts{Items: 1, Pending: 1, Sent: 1}, sum.Counts)
			require.Empty(t, j.file(resultsFile))
		})
	}
}

// A full disk stops the run with a clear word; what was in flight is pending,
// nothing half written stays, and the run goes on once there is room.
func TestDiskFull(t *testing.T) {
	j := newJob(100)
	writes := 0
	j.fs.op = func(op, name string) error {
		if op == "write" && name == resultsFile {
			if writes++; writes >= 5 {
				return syscall.ENOSPC
			}
		}
		return nil
	}
	sum, err := j.run(t.Context())
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.True(t, disk.IsFull(err))
	require.ErrorContains(t, err, "the disk is full")
	require.LessOrEqual(t, sum.Sent, sum.Done+4)
	require.Len(t, keysIn(t, j.file(resultsFile)), sum.Done)

	j.fs.op = nil
	again, err := j.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, sum.Pending, again.Sent)
	j.complete(t)
}

// No room at the start: nothing is sent.
func TestDiskFullAtOnce(t *testing.T) {
	for _, refused := range []string{"mkdir", "create", "write", "sync"} {
		j := newJob(3)
		j.fs.op = func(op, _ string) error {
			if op == refused {
				return syscall.ENOSPC
			}
			return nil
		}
		_, err := j.run(t.Context())
		require.ErrorIs(t, err, syscall.ENOSPC, refused)
		require.ErrorContains(t, err, "the disk is full")
		require.Empty(t, j.sent)
	}
}

// A failed sync is final: no second one is asked, and what it was for is
// pending (rule 8 of the journal).
func TestFailedSync(t *testing.T) {
	j := newJob(50)
	failed := false
	j.fs.op = func(op, name string) error {
		if name != resultsFile || op == "truncate" {
			return nil
		}
		if failed {
			t.Errorf("%s after a failed sync", op)
		}
		if op == "sync" && len(j.file(resultsFile)) > 200 {
			failed = true
			return syscall.EIO
		}
		return nil
	}
	sum, err := j.run(t.Context())
	require.ErrorIs(t, err, syscall.EIO)

	// The lines read well, from the cache. Only their second writing is worth
	// believing: they survive a power cut after it.
	j.fs.op = nil
	again, err := j.run(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, again.Sent, sum.Pending)
	j.fs = j.fs.powerCut()
	j.complete(t)
}

// An item told to come later frees its worker and comes back at its time.
func TestLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(10)
		j.o.Workers = 1
		begin := time.Now()
		var order []string
		j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
			order = append(order, task.Key)
			if task.Index < 2 && task.Start < 3 {
				return checkpoint.Line{}, checkpoint.Later(time.Now().Add(time.Minute), errors.New("rate limited"))
			}
			time.Sleep(time.Second)
			return line(task), nil
		}
		sum, err := j.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, checkpoint.Counts{Items: 10, Done: 10, Sent: 10}, sum.Counts)
		require.Equal(t, "k0 k1 k2 k3 k4 k5 k6 k7 k8 k9 k0 k1 k0 k1", strings.Join(order, " "))
		require.Equal(t, 2*time.Minute+2*time.Second, time.Since(begin))
		j.complete(t)
	})
}

// Where every item is put off, not all of them are started: what waits is
// bounded, in number and in how often.
func TestLaterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1000)
		j.o.Workers = 2
		j.o.Progress = new(checkpoint.Progress)
		j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
			return checkpoint.Line{}, checkpoint.Later(time.Now().Add(time.Hour), nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
		defer cancel()
		time.AfterFunc(40*time.Minute, func() {
			require.Equal(t, checkpoint.Counts{Items: 1000, Pending: 1000, Sent: 32, Waiting: 32}, j.o.Progress.Counts())
		})
		_, err := j.run(ctx)
		require.ErrorIs(t, err, checkpoint.ErrInterrupted)

		j.n, j.fs, j.sent = 1, newMemFS(), map[string]int{}
		sum, err := j.run(t.Context())
		require.ErrorIs(t, err, checkpoint.ErrFailed)
		require.Equal(t, checkpoint.Counts{Items: 1, Failed: 1, Retry: 1, Sent: 1}, sum.Counts)
		require.Equal(t, map[string]int{"k0": 100}, j.sent)
	})
}

// A function that ends its goroutine loses its worker, not the run's honesty.
func TestGoexit(t *testing.T) {
	j := newJob(100)
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		if task.Index == 20 {
			runtime.Goexit()
		}
		return line(task), nil
	}
	sum, err := j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrInterrupted)
	require.ErrorContains(t, err, `"k20"`)
	require.Equal(t, sum.Sent-1, sum.Done)
}

// While a run is on it can be asked how far it is, and the cursors follow.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(10)
		j.o.Progress = new(checkpoint.Progress)
		require.Zero(t, j.o.Progress.Counts())
		j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
			time.Sleep(700 * time.Millisecond)
			return line(task), nil
		}
		time.AfterFunc(1300*time.Millisecond, func() {
			require.Equal(t, checkpoint.Counts{Items: 10, Done: 4, Pending: 6, Sent: 8, Running: 4}, j.o.Progress.Counts())
			shards, err := checkpoint.Inspect(j.fs, "state")
			require.NoError(t, err)
			require.Equal(t, []checkpoint.ShardStatus{{Shard: 0, Items: 4, Done: 2, Low: 2}, {Shard: 1, Items: 3, Done: 1, Low: 1}, {Shard: 2, Items: 3, Done: 1, Low: 1}}, shards)
		})
		_, err := j.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, checkpoint.Counts{Items: 10, Done: 10, Sent: 10}, j.o.Progress.Counts())
	})
	_, err := checkpoint.Inspect(nil, t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
}
