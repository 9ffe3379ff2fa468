// What a crash or an accident does to the files of a state: healed and reported
// where nothing is lost, else refused with the place named; never begun anew in
// silence.
package checkpoint_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal/disk"
)

// stopped is a run of 20 items that was killed: some have ended in each way,
// the cursors know none of it.
func stopped(t *testing.T) *job {
	t.Helper()
	j := newJob(20)
	j.do = func(_ context.Context, task checkpoint.Task[string]) (checkpoint.Line, error) {
		l := line(task)
		switch {
		case task.Index >= 12:
			return checkpoint.Line{}, pauseError{}
		case task.Index%4 == 1:
			return checkpoint.Line{}, nil
		case task.Index%4 == 2:
			l.Output = 1
		}
		return l, nil
	}
	j.o.Workers = 1
	before := newJob(20)
	before.do = func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) {
		return checkpoint.Line{}, pauseError{}
	}
	_, err := before.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrPaused)
	j.fs = before.fs.copy()
	_, err = j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrPaused)
	for i := range 3 {
		name := j.state(fmt.Sprintf("%03d.json", i))
		j.fs.write(name, before.file(name))
	}
	j.fs = j.fs.copy()
	j.do, j.o.Workers, j.sent = newJob(0).do, 4, map[string]int{}
	return j
}

// lose removes files of the state.
func (j *job) lose(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, j.fs.Remove(j.state(name)))
	}
}

// resume runs to the end and checks that just the pending items were sent.
func (j *job) resume(t *testing.T, pending int) checkpoint.Summary {
	t.Helper()
	sum, err := j.run(t.Context())
	if err != nil {
		require.ErrorIs(t, err, checkpoint.ErrFailed)
	}
	require.Equal(t, pending, sum.Sent)
	require.Equal(t, j.n, sum.Done+sum.Failed)
	j.complete(t)
	return sum
}

func TestResumeReadsTheFiles(t *testing.T) {
	j := stopped(t)
	sum := j.resume(t, 8)
	require.Empty(t, sum.Repairs)
	require.Equal(t, 3, sum.Failed)
}

// case 79: a damaged cursor is made anew from the lines, is kept and reported;
// no finished item is sent again.
func TestDamagedCursor(t *testing.T) {
	name := "state/shards/001.json"
	for what, damage := range map[string]func(string) string{
		"empty":       func(string) string { return "" },
		"cut":         func(s string) string { return s[:len(s)/2] },
		"bit flipped": func(s string) string { return strings.Replace(s, `"low":7`, `"low":6`, 1) },
		"zeros":       func(s string) string { return strings.Repeat("\x00", len(s)) },
	} {
		t.Run(what, func(t *testing.T) {
			j := newJob(20)
			j.resume(t, 20)
			j.fs.write(name, damage(j.file(name)))
			j.sent = map[string]int{}
			sum := j.resume(t, 0)
			require.Empty(t, j.sent)
			require.Len(t, sum.Repairs, 1)
			require.Equal(t, name, sum.Repairs[0].Path)
			require.Contains(t, j.fs.names(), name+".damaged")
			shards, err := checkpoint.Inspect(j.fs, "state")
			require.NoError(t, err)
			require.Equal(t, 7, shards[1].Done)

			// A second one does not overwrite the first that was kept.
			kept := j.file(name + ".damaged")
			j.fs.write(name, "again")
			j.resume(t, 0)
			require.Equal(t, kept, j.file(name+".damaged"))
			require.Equal(t, "again", j.file(name+".damaged-2"))
		})
	}
}

// All cursors lost: all is read from the lines, and what was a dead letter once
// is done if there is a line for it.
func TestLostCursors(t *testing.T) {
	j := newJob(20)
	j.do = func(context.Context, checkpoint.Task[string]) (checkpoint.Line, error) {
		return checkpoint.Line{}, checkpoint.Dead(1, syscall.ECONNREFUSED)
	}
	sum, err := j.run(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFailed)
	require.Equal(t, 20, sum.Dead)
	j.do, j.o.RetryDead = newJob(0).do, true
	sum, err = j.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 20, sum.Done)

	j.lose(t, "000.json", "001.json", "002.json")
	j.o.RetryDead = false
	sum, err = j.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, checkpoint.Summary{Counts: checkpoint.Counts{Items: 20, Done: 20}, Shards: 3}, sum)
}

// A new state takes the lines that are in its outputs, so that a lost state
// directory costs nothing.
func TestLostState(t *testing.T) {
	j := newJob(20)
	j.resume(t, 20)
	j.o.Dir = "other"
	j.resume(t, 0)
	j.n = 25 // the input grew
	j.o.Dir = "third"
	j.resume(t, 5)
}

// A cursor that was being written is swept, not read.
func TestUnfinishedCursor(t *testing.T) {
	j := newJob(20)
	j.resume(t, 20)
	name := j.state("001.json" + disk.TempSuffix)
	j.fs.write(name, j.file(j.state("000.json")))
	require.Empty(t, j.resume(t, 0).Repairs)
	require.NotContains(t, j.fs.names(), name)
}

// case 70: a torn end is cut at any byte, kept aside and reported; complete JSON that
// lacks only its newline gets it. So it is where no cursor tells what was written.
func TestTornEnd(t *testing.T) {
	cursors := []string{"000.json", "001.json", "002.json"}
	for _, lost := range [][]string{nil, cursors, append(cursors, "manifest.json")} {
		for _, file := range []string{resultsFile, "state/shards/marks.jsonl"} {
			whole := stopped(t).file(file)
			last := whole[strings.LastIndexByte(whole[:len(whole)-1], '\n')+1:]
			for cut := 1; cut <= len(last); cut++ {
				j := stopped(t)
				j.fs.write(file, whole[:len(whole)-cut])
				j.lose(t, lost...)
				switch cut {
				case 1, len(last):
					require.Empty(t, j.resume(t, 8+cut/len(last)).Repairs)
				default:
					sum := j.resume(t, 9)
					require.Len(t, sum.Repairs, 1)
					require.Equal(t, file, sum.Repairs[0].Path)
					require.Equal(t, last[:len(last)-cut], j.file(j.state(file[strings.LastIndexByte(file, '/')+1:]+".torn")))
				}
				require.Empty(t, j.resume(t, 0).Repairs)
			}
		}
	}
}

// Lines that nobody has synced count only once they are.
func TestLostStateUnsynced(t *testing.T) {
	j := newJob(2)
	f, err := j.fs.Create(resultsFile)
	require.NoError(t, err)
	_, err = f.Write([]byte(`{"custom_id":"k0"}` + "\n" + `{"custom_id":"k1"}` + "\n"))
	require.NoError(t, err)
	j.resume(t, 0)
	j.fs = j.fs.powerCut()
	j.resume(t, 0)
}

// A lost block in the middle of the tail takes no good line along.
func TestHoleInTail(t *testing.T) {
	j := stopped(t)
	lines := strings.SplitAfter(j.file(resultsFile), "\n")
	lines[2] = strings.Repeat("\x00", len(lines[2])-1) + "\n"
	j.fs.write(resultsFile, strings.Join(lines, "")+"\x00\x00\x00")
	sum := j.resume(t, 9)
	require.Len(t, sum.Repairs, 1)
	require.Equal(t, lines[2]+"\x00\x00\x00", j.file(j.state(resultsFile+".torn")))
}

// What no run has torn, in a file that no cursor knows, is not for a run to take
// out: the file may be somebody's.
func TestForeignLines(t *testing.T) {
	for _, lost := range [][]string{{"000.json", "001.json", "002.json"}, {"000.json", "001.json", "002.json", "manifest.json"}} {
		for _, file := range []string{resultsFile, "state/shards/marks.jsonl"} {
			for _, bad := range []string{"my notes", "", "\x00\x00", `{"custom_id":5,"end":"over"}`} {
				for before := range 3 {
					j := stopped(t)
					lines := strings.SplitAfter(j.file(file), "\n")[:2]
					content := strings.Join(slices.Insert(lines, before, bad+"\n"), "")
					j.fs.write(file, content)
					j.lose(t, lost...)
					names := j.fs.names()
					_, err := j.run(t.Context())
					var damaged *checkpoint.DamagedError
					require.ErrorAs(t, err, &damaged, "%q", content)
					require.Equal(t, file, damaged.Path)
					require.Contains(t, damaged.Reason, "cannot be read")
					require.Equal(t, content, j.file(file))
					require.Equal(t, names, j.fs.names())
					require.Empty(t, j.sent)
				}
			}
		}
	}
}

// What cannot be healed is refused with the file and the reason, and nothing
// is changed.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		path   string
		damage func(*memFS, string)
		reason string
	}{
		"output cut":      {resultsFile, func(fs *memFS, s string) { fs.write(resultsFile, s[:len(s)-1]) }, "are known to be written"},
		"output gone":     {resultsFile, func(fs *memFS, s string) { fs.Remove(resultsFile) }, "it is missing"},
		"output replaced": {resultsFile, func(fs *memFS, s string) { fs.write(resultsFile, s[1:]+" ") }, "no line ends at byte"},
		"newline replaced": {resultsFile, func(fs *memFS, s string) {
			fs.write(resultsFile, s[:len(s)-1]+" ")
			fs.Remove("state/shards/001.json") // the others know where the file ended
		}, "no line ends at byte"},
		"tail beyond the end": {resultsFile, func(fs *memFS, s string) { fs.write("state/shards/results.jsonl.tail", "9999\n{}\n") }, "before its last lines"},
		"tail of nothing":     {"state/shards/results.jsonl.tail", func(fs *memFS, s string) { fs.write("state/shards/results.jsonl.tail", "{}") }, "offset"},
		"marks gone":          {"state/shards/marks.jsonl", func(fs *memFS, s string) { fs.Remove("state/shards/marks.jsonl") }, "it is missing"},
		"second line":         {resultsFile, func(fs *memFS, s string) { fs.write(resultsFile, s+`{"custom_id":"k3"}`+"\n") }, `second one for the key "k3"`},
		"foreign line":        {resultsFile, func(fs *memFS, s string) { fs.write(resultsFile, s+`{"custom_id":"x"}`+"\n") }, `"x", which is not in the input`},
		"old line spoilt": {resultsFile, func(fs *memFS, s string) {
			fs.write(resultsFile, strings.Replace(s, "}\n{", "\x00\n{", 1))
			fs.Remove("state/shards/001.json") // else it is not read
		}, "cannot be read"},
		"manifest cut":  {"state/shards/manifest.json", func(fs *memFS, s string) { fs.write("state/shards/manifest.json", s[:20]) }, "cut short"},
		"manifest gone": {"state/shards/manifest.json", func(fs *memFS, s string) { fs.Remove("state/shards/manifest.json") }, "it is missing"},
		"cursor of another version": {"state/shards/002.json", func(fs *memFS, s string) {
			text := `{"version":2`
			crc := crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli))
			fs.write("state/shards/002.json", fmt.Sprintf("%s,\"crc\":\"%08x\"}\n", text, crc))
		}, "unknown format version 2"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(20)
			j.resume(t, 20)
			test.damage(j.fs, j.file(resultsFile))
			before := j.fs.copy()
			j.sent = map[string]int{}
			_, err := j.run(t.Context())
			var damaged *checkpoint.DamagedError
			require.ErrorAs(t, err, &damaged)
			require.ErrorIs(t, err, checkpoint.ErrDamaged)
			require.Equal(t, test.path, damaged.Path)
			require.Contains(t, damaged.Reason, test.reason)
			require.Empty(t, j.sent)
			require.Equal(t, before.names(), j.fs.names())
			for _, name := range j.fs.names() {
				require.Equal(t, before.read(name), j.file(name), name)
			}
		})
	}
}

// The way out that the error names for a lost manifest.
func TestMadeAnew(t *testing.T) {
	j := stopped(t)
	j.lose(t, "manifest.json", "000.json", "001.json", "002.json")
	j.resume(t, 8)
}

// A save that fails stops the run, but loses nothing.
func TestFailedSave(t *testing.T) {
	j := newJob(20)
	j.fs.op = func(op, name string) error {
		if op == "rename" && strings.HasSuffix(name, "001.json") && len(j.file(resultsFile)) > 0 {
			return syscall.EIO
		}
		return nil
	}
	_, err := j.run(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
	j.fs.op = nil
	j.resume(t, 0)
}
