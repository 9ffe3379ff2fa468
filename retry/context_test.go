// Proves that the caller's context ends every wait at once, lets no further
// attempt slip through, and is not taken for an attempt's own timeout.
package retry_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/retry"
)

var errCallerGone = errors.New("test: the caller went away")

// case 11 (d): the context ends a wait at once, whichever wait it is.
func TestContextEndsEveryWait(t *testing.T) {
	for wait := 1; wait <= 3; wait++ {
		t.Run(fmt.Sprint("wait ", wait), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				attempts := 0
				var cancelled time.Time
				_, err := retry.Do(ctx, retry.Policy{
					Backoff: steady,
					Before: func(_ context.Context, next retry.Attempt) error {
						if next.N == wait+1 {
							time.AfterFunc(next.Wait/2, func() {
								cancelled = time.Now()
								cancel(errCallerGone)
							})
						}
						return nil
					},
				}, func(context.Context, int) (int, error) {
					attempts++
					return 0, transient
				})
				require.Equal(t, wait, attempts)
				require.Equal(t, cancelled, time.Now())
				require.ErrorIs(t, err, errCallerGone)
				require.ErrorIs(t, err, transient)
			})
		})
	}
}

// The end of the context at the very moment a wait ends, or before a wait of
// zero, must not let one more attempt slip through: select picks at random.
func TestContextEndsWithTheWait(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			_, err := retry.Do(ctx, retry.Policy{
				Backoff: func(int) time.Duration { return 0 },
				Before: func(context.Context, retry.Attempt) error {
					cancel(errCallerGone)
					return nil
				},
			}, func(_ context.Context, n int) (int, error) {
				require.Equal(t, 1, n)
				return 0, transient
			})
			require.ErrorIs(t, err, errCallerGone)
		})
	}
}

func TestContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		fail := func(err error) (int, error) {
			attempts := 0
			_, got := retry.Do(ctx, retry.Policy{}, func(context.Context, int) (int, error) {
				attempts++
				cancel(errCallerGone)
				return 0, err
			})
			return attempts, got
		}
		attempts, err := fail(transient)
		require.Equal(t, 1, attempts)
		require.ErrorIs(t, err, errCallerGone, "the context ended in the attempt")
		require.ErrorIs(t, err, transient)

		attempts, err = fail(transient)
		require.Zero(t, attempts, "it had ended before")
		require.True(t, err == errCallerGone)
	})
}

// The caller's own deadline is not taken for an attempt's timeout, and comes back
// as it was.
func TestCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		attempts := 0
		var timeout error
		_, err := retry.Do(ctx, retry.Policy{}, func(ctx context.Context, _ int) (int, error) {
			attempts++
			<-ctx.Done()
			timeout = &url.Error{Op: "Post", URL: "/", Err: ctx.Err()}
			return 0, timeout
		})
		require.Equal(t, 1, attempts)
		require.True(t, err == timeout, "%#v", err)
	})
}

// A wait that would outlast the deadline never starts: better a pause now than
// a failure then.
func TestWaitPastDeadline(t *testing.T) {
	for deadline, attempts := range map[time.Duration]int{
		time.Second:                           1, // the wait's very end is too late
		time.Second + time.Millisecond:        2,
		3*time.Second + 500*time.Millisecond:  3,
		10*time.Second + 500*time.Millisecond: 4, // all: the last failure comes bare
	} {
		t.Run(deadline.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				last := time.Now()
				got, err := retry.Do(ctx, retry.Policy{Backoff: steady}, func(_ context.Context, n int) (int, error) {
					last = time.Now()
					return n, transient
				})
				require.Equal(t, attempts, got)
				require.Equal(t, last, time.Now())
				require.ErrorIs(t, err, transient)
				if attempts == 4 {
					require.True(t, err == transient)
					return
				}
				require.Equal(t, retry.Stop, retry.Classify(err))
				stop, ok := errors.AsType[*retry.StopError](err)
				require.True(t, ok)
				require.Equal(t, last.Add(steady(attempts)), stop.RetryAt())
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			})
		})
	}
}
