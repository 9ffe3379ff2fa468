package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollbook/tollbook/checkpoint"
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

func (j *job) Len() int { return j.n }

func (j *job) At(i int) (string, error) { return fmt.Sprint("k", i), nil }

func (j *job) file(name string) string { return j.fs.read(name) }

func (j *job) state(name string) string { return filepath.Join("state/shards", name) }

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
