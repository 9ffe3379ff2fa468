// A pause is cheap: nothing is started any more, what runs may finish, and what
// has ended is not sent again. An item that waits for its time holds no worker.
package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/checkpoint"
)

// pauseError pauses a run, as the errors of a provider's quota do.
type pauseError struct{ at time.Time }

func (e pauseError) Error() string { return "no quota" }

func (e pauseError) Pause() bool { return true }

func (e pauseError) RetryAt() time.Time { return e.at }

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

// mute can be asked all that a pause can, and answers no.
type mute struct{ error }

func (mute) Pause() bool { return false }

func (mute) RetryAt() time.Time { return time.Time{} }

// An error in the tree that answers no does not hide one that answers yes.
func TestEveryErrorIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet, at := mute{errors.New("slow")}, time.Now().Add(time.Hour)
		pause := pauseError{at}
		for _, hidden := range []error{errors.Join(quiet, pause), fmt.Errorf("%w: %w", quiet, fmt.Errorf("call: %w", pause))} {
			j := newJob(1)
			j.do = func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) {
				return checkpoint.Line{}, checkpoint.Failed(hidden)
			}
			_, err := j.run(t.Context())
			var paused *checkpoint.PausedError
			require.ErrorAs(t, err, &paused)
			require.Equal(t, at, paused.RetryAt)
		}
		j := newJob(1)
		j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
			if task.Start == 1 {
				return checkpoint.Line{}, errors.Join(quiet, checkpoint.Later(at, nil))
			}
			return line(task), nil
		}
		_, err := j.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, at, time.Now())
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
