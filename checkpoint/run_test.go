// I9 for a run that nothing disturbs: an item is done when its line is durable,
// and nothing that has ended is sent again.
package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal/disk"
)

func TestEveryEnding(t *testing.T) {
	j := newJob(7)
	j.o.Why = error.Error
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

// I10: the text of an item's error may quote its prompt. What enters the state and
// the text of the run's error is what the caller makes of it.
func TestWhy(t *testing.T) {
	refused := errors.New("you said: SECRET")
	for name, err := range map[string]error{
		"failed": checkpoint.Failed(refused), "dead": checkpoint.Dead(1, refused), "odd": refused, "pause": errors.Join(refused, pauseError{}),
	} {
		for _, why := range []string{"", "HTTP 500"} {
			j := newJob(1)
			if why != "" {
				j.o.Why = func(error) string { return why }
			}
			j.do = func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) { return checkpoint.Line{}, err }
			_, got := j.run(t.Context())
			require.ErrorIs(t, got, refused, name)
			require.ErrorContains(t, got, why)
			marks := j.file(j.state("marks.jsonl"))
			require.NotContains(t, marks+got.Error(), "SECRET", name)
			if marks != "" {
				require.Equal(t, why != "", strings.Contains(marks, `"error":"HTTP 500"`))
			}
		}
	}
}

// A dead letter that is sent again is one until its new end is durable, so that
// without RetryDead it is never sent, whatever became of a run with it.
func TestRetryDead(t *testing.T) {
	gaveUp := checkpoint.Dead(1, errors.New("gave up"))
	dead := checkpoint.Counts{Items: 4, Dead: 4}
	for name, test := range map[string]struct {
		err  error // of the run with RetryDead
		want checkpoint.Counts
	}{
		"paused":       {pauseError{}, checkpoint.Counts{Items: 4, Pending: 4, Sent: 1}},
		"failed oddly": {errors.New("odd"), checkpoint.Counts{Items: 4, Dead: 4, Sent: 4}},
		"gave up":      {gaveUp, checkpoint.Counts{Items: 4, Dead: 4, Sent: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(4)
			j.o.Workers = 1
			run := func(again bool, err error) checkpoint.Counts {
				j.o.RetryDead = again
				j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
					return checkpoint.Line{}, err
				}
				sum, _ := j.run(t.Context())
				return sum.Counts
			}
			run(false, gaveUp)
			require.Equal(t, test.want, run(true, test.err))
			require.Equal(t, dead, run(false, nil))
			j.lose(t, "000.json", "001.json", "002.json")
			require.Equal(t, dead, run(false, nil))
			require.Equal(t, checkpoint.Counts{Items: 4, Done: 4, Sent: 4}, run(true, nil))
			require.Equal(t, checkpoint.Counts{Items: 4, Done: 4}, run(true, nil))
		})
	}
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
	slow.fs = over(j.fs.mem, j.fs.rng)
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
