// I9 after kill -9 and after a power cut, at any operation on the disk, also
// during recovery: no item whose end was counted is sent again, outputs end up
// complete and without a second line.
package checkpoint_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal/disk"
)

// dieAt makes operation n and all later ones fail; reached tells if it came to that.
func (m *memFS) dieAt(n int) (reached func() bool) {
	ops := 0
	m.op = func(op, _ string) error {
		if ops++; ops < n {
			return nil
		}
		if ops > n || op == "sync" { // not a failed sync, but one that never was
			m.mem.Kill()
		}
		return disk.ErrGone
	}
	return func() bool { return ops >= n }
}

func TestCrashAtEveryOperation(t *testing.T) {
	ends := map[string]func(*memFS) *memFS{"kill": (*memFS).kill, "power cut": (*memFS).powerCut}
	for first, crash1 := range ends {
		for second, crash2 := range ends {
			t.Run(first+", then "+second, func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					survived := false
					synctest.Test(t, func(t *testing.T) {
						j := crashJob()
						j.fs.rng = rand.New(rand.NewPCG(uint64(n), 0))
						reached := j.fs.dieAt(n)
						pending := j.crashed(t, j.n)
						survived = !reached()
						j.fs = crash1(j.fs)
						// The second crash comes at a place that moves through
						// the recovery while n goes through the run.
						j.fs.dieAt(1 + n%40)
						pending = j.crashed(t, pending)
						j.fs = crash2(j.fs)
						pending = j.crashed(t, pending)
						require.Zero(t, pending)
						j.fs = j.fs.powerCut()
						j.complete(t)
					})
					if survived || t.Failed() {
						require.Greater(t, n, 60, "the sweep was short")
						return
					}
				}
			})
		}
	}
}

// crashJob has items that end in every way and take some time, so that cursors
// are saved in between, and, from an earlier crash, a line in its output that
// lacks its newline.
func crashJob() *job {
	j := newJob(24)
	j.fs.write(resultsFile, `{"custom_id":"k0"}`)
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		time.Sleep(time.Duration(300+task.Index) * time.Millisecond)
		l := line(task)
		switch task.Index % 6 {
		case 1:
			return checkpoint.Line{}, nil
		case 2:
			l.Output = 1
		case 3:
			return checkpoint.Line{}, checkpoint.Dead(2, errors.New("gave up"))
		}
		return l, nil
	}
	return j
}

// crashed runs a job that may die, and returns how many items are pending by
// what the run counted as ended: a later run sends these at most.
func (j *job) crashed(t *testing.T, pending int) int {
	t.Helper()
	sum, err := j.run(t.Context())
	require.LessOrEqual(t, sum.Sent, pending)
	if sum.Items == 0 { // not even opened
		require.ErrorIs(t, err, disk.ErrGone)
		return pending
	}
	if err != nil && !errors.Is(err, checkpoint.ErrFailed) {
		require.ErrorIs(t, err, disk.ErrGone)
	}
	require.Zero(t, sum.Retry)
	return sum.Pending
}

// The same with a process that is really killed. The child tells each key on
// its standard output when the item starts.
const childEnv = "TOLLBOOK_CHECKPOINT_CHILD"

const (
	childItems   = 5000
	childWorkers = 16
)

// child runs the job if this process is one, and reports whether it was.
func child() bool {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return false
	}
	j := newJob(childItems)
	o := j.o
	o.Dir, o.Workers, o.Shards = filepath.Join(dir, "state"), childWorkers, 12
	for i := range o.Outputs {
		o.Outputs[i].Path = filepath.Join(dir, o.Outputs[i].Path)
	}
	_, err := checkpoint.RunTasks(context.Background(), j, o, func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		if _, err := fmt.Println(task.Key); err != nil {
			panic(err)
		}
		l := line(task)
		switch task.Index % 10 {
		case 3:
			l.Output = 1
		case 7:
			return checkpoint.Line{}, nil
		}
		return l, nil
	})
	if err != nil && !errors.Is(err, checkpoint.ErrFailed) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func TestKill9(t *testing.T) {
	const kills = 12
	dir, sent := t.TempDir(), 0
	for round := range kills + 1 {
		recorded := recordedKeys(t, dir)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		last := 1 + rand.IntN(childItems/kills)
		if round == kills {
			last = childItems
		}
		for in := bufio.NewScanner(stdout); in.Scan(); sent++ {
			assert.False(t, recorded[in.Text()], "%s was recorded and is sent again", in.Text())
			if last--; last == 0 {
				assert.NoError(t, cmd.Process.Kill())
			}
		}
		if err := cmd.Wait(); round == kills {
			require.NoError(t, err)
		}
		require.Empty(t, stderr.String())
	}
	require.Len(t, recordedKeys(t, dir), childItems)
	t.Logf("%d kills, %d of %d items sent again", kills, sent-childItems, childItems)
	require.LessOrEqual(t, sent-childItems, kills*childWorkers)
}

// recordedKeys reads the whole lines of the outputs and marks.
func recordedKeys(t *testing.T, dir string) map[string]bool {
	keys := map[string]bool{}
	for _, name := range []string{resultsFile, errorsFile, "state/shards/marks.jsonl"} {
		content, _ := os.ReadFile(filepath.Join(dir, name))
		for l := range strings.Lines(string(content)) {
			if !strings.HasSuffix(l, "\n") {
				continue
			}
			parts := strings.SplitN(l, `"`, 5) // {"custom_id":"k1"… or {"key":"k1"…
			require.False(t, keys[parts[3]], "%s twice", parts[3])
			keys[parts[3]] = true
		}
	}
	return keys
}
