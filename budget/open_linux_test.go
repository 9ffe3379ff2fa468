package budget_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// BenchmarkOpen opens a book whose newest segment is full: 64 MiB, some 230,000
// lines, of reservations that were settled by a report, a hundred at a time. The
// target is 300 ms, after a clean end and after a kill. With rids of the caller's
// own, which a late call may name, the next segment begins with a line for each.
// "best-ms" is the quickest round, which other load disturbs least; "cpu-ms" is
// what the process used.
func BenchmarkOpen(b *testing.B) {
	for _, rids := range []string{"made", "own"} {
		killed, closed := fullBook(b, rids == "own")
		for _, end := range []struct{ name, dir string }{{"closed", closed}, {"killed", killed}} {
			b.Run("rids="+rids+"/"+end.name, func(b *testing.B) { openAgain(b, end.dir, end.dir == killed) })
		}
	}
}

func openAgain(b *testing.B, from string, killed bool) {
	best, cpu := time.Duration(1<<63-1), time.Duration(0)
	for range b.N {
		b.StopTimer()
		dir := copyDurably(b, from)
		b.StartTimer()
		start, used := time.Now(), cpuTime(b)
		book, err := budget.Open(b.Context(), dir)
		best, cpu = min(best, time.Since(start)), cpu+cpuTime(b)-used
		b.StopTimer()
		require.NoError(b, err)
		require.Equal(b, killed, book.Report().Recovery.Unclean)
		require.NoError(b, book.Close())
		require.NoError(b, os.RemoveAll(dir))
	}
	b.ReportMetric(best.Seconds()*1e3, "best-ms")
	b.ReportMetric(cpu.Seconds()*1e3/float64(b.N), "cpu-ms")
}

// cpuTime is what the process has used of all cores.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fullBook makes a book with a full newest segment, and returns it as a kill
// leaves it and as its owner does.
func fullBook(b *testing.B, own bool) (killed, closed string) {
	closed = filepath.Join(b.TempDir(), "closed")
	j, err := journal.OpenFile(closed, journal.FileOptions{SegmentBytes: 1 << 40})
	require.NoError(b, err)
	book, err := budget.New(b.Context(), j)
	require.NoError(b, err)
	segment := filepath.Join(closed, "000001.jsonl")
	call := func(ctx context.Context, i int) error {
		q := budget.Request{Tokens: 800, Cost: 1_200_000_000, Scope: "nightly/shard-" + strconv.Itoa(i%8), Model: "gpt-5-mini"}
		if own {
			q.RID = uuid.NewString()
		}
		r, err := book.Reserve(ctx, q)
		if err != nil {
			return err
		}
		_, err = r.Settle(ctx, budget.Usage{Input: 500, Cached: 100, Output: 120, Cost: 930_000_000, Ref: "req_0123456789abcdef"})
		return err
	}
	callers, ctx := errgroup.WithContext(b.Context())
	for i := range 100 {
		callers.Go(func() error {
			for {
				if i, err := os.Stat(segment); err != nil || i.Size() > journal.DefaultSegmentBytes {
					return err
				}
				for range 10 {
					if err := call(ctx, i); err != nil {
						return err
					}
				}
			}
		})
	}
	require.NoError(b, callers.Wait())
	killed = copyDurably(b, closed)
	require.NoError(b, book.Close())
	return killed, closed
}

// copyDurably copies a book so that nothing of it waits to be written.
func copyDurably(b *testing.B, from string) (to string) {
	to = filepath.Join(b.TempDir(), "copy")
	require.NoError(b, os.CopyFS(to, os.DirFS(from)))
	names, err := os.ReadDir(to)
	require.NoError(b, err)
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(to, name.Name()), os.O_RDWR, 0)
		require.NoError(b, err)
		require.NoError(b, f.Sync())
		require.NoError(b, f.Close())
	}
	return to
}
