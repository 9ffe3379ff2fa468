// A file that cannot be written, and a line that could not be read back, stop the
// run with a clear word and lose nothing that was acknowledged.
package checkpoint_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal/disk"
)

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

// A directory that could not be synced, once, may hold a name that a power cut
// takes away. Whoever opens the state next finds the name, and must not rely on
// it: what is done is done, and nothing passes for damage.
func TestNameThatIsNotDurable(t *testing.T) {
	for n := 1; ; n++ {
		j := newJob(5)
		synced := 0
		j.fs.op = func(op, name string) error {
			if op == "syncdir" {
				if synced++; synced == n {
					return syscall.EIO
				}
			}
			return nil
		}
		_, err := j.run(t.Context())
		if synced < n {
			require.NoError(t, err)
			require.Greater(t, n, 3)
			return
		}
		j.fs = j.fs.kill()
		var cut []*memFS // what a power cut leaves, at each operation
		j.fs.op = func(string, string) error {
			for range 12 {
				cut = append(cut, j.fs.foresee())
			}
			return nil
		}
		sum, err := j.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, 5, sum.Done)
		for _, after := range cut {
			again := newJob(5)
			again.fs = after
			_, err := again.run(t.Context())
			require.NoError(t, err, "sync of a directory %d failed", n)
		}
		for range 20 {
			again := newJob(5)
			again.fs = j.fs.foresee()
			sum, err := again.run(t.Context())
			require.NoError(t, err, "sync of a directory %d failed", n)
			require.Zero(t, sum.Sent, "sync of a directory %d failed", n)
		}
	}
}
