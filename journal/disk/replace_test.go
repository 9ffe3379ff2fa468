// Replace is atomic and durable: whatever fails, the name holds the whole old
// content or the whole new one, and success means that every step a power cut
// could undo was synced, in order (rule 12, B16).
package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// traced logs every operation that does something and fails the one at index
// failAt (-1: none), a write half way.
type traced struct {
	disk.FS
	ops    []string
	failAt int
}

var errInjected = errors.New("injected")

func trace(fsys disk.FS, failAt int) *traced {
	t := &traced{failAt: failAt}
	t.FS = disk.Failing(fsys, func(op disk.Op) disk.Fault {
		if op.Kind.Reads() && op.Kind != disk.OpClose {
			return disk.Fault{}
		}
		t.ops = append(t.ops, op.Kind.String()+" "+filepath.Base(op.Name))
		if len(t.ops)-1 == t.failAt {
			return disk.Fault{Err: errInjected, Bytes: int(op.Bytes) / 2}
		}
		return disk.Fault{}
	})
	return t
}

func TestReplaceFailsAtEveryStep(t *testing.T) {
	for step := 0; ; step++ {
		dir := t.TempDir()
		name := filepath.Join(dir, "c.json")
		require.NoError(t, disk.Replace(disk.OS(), name, []byte("old content")))
		fsys := trace(disk.OS(), step)
		err := disk.Replace(fsys, name, []byte("new"))
		content, readErr := os.ReadFile(name)
		require.NoError(t, readErr)
		names, listErr := fsys.List(dir)
		require.NoError(t, listErr)
		require.Equal(t, []string{"c.json"}, names, "step %d leaves nothing else", step)
		if step == len(fsys.ops) { // nothing was left to fail
			require.NoError(t, err)
			require.Equal(t, "new", string(content))
			require.Equal(t, []string{"create c.json.tmp", "write c.json.tmp", "sync c.json.tmp", "close c.json.tmp",
				"rename c.json", "syncdir " + filepath.Base(dir)}, fsys.ops)
			return
		}
		require.ErrorIs(t, err, errInjected, "step %d", step)
		require.Contains(t, []string{"old content", "new"}, string(content), "step %d", step)
		if !strings.HasPrefix(fsys.ops[step], "syncdir") {
			require.Equal(t, "old content", string(content), "step %d", step)
		}
	}
}

// Power fails before each operation: the old content or the new one, whole, and
// after nil the new one.
func TestReplaceSurvivesPowerCuts(t *testing.T) {
	for k := 1; ; k++ {
		m := disk.NewMem()
		require.NoError(t, disk.Replace(m, "c.json", []byte("old content")))
		cut := false
		err := disk.Replace(disk.Failing(m, func(op disk.Op) disk.Fault {
			if cut = cut || op.N == k; cut {
				m.Kill()
			}
			return disk.Fault{}
		}), "c.json", []byte("new"))
		found := outcomes(t, m, func(m *disk.Mem) string { return content(t, m, "c.json") })
		if !cut {
			require.NoError(t, err)
			require.Equal(t, map[string]int{"new": 4000}, found)
			return
		}
		require.ErrorIs(t, err, disk.ErrGone)
		delete(found, "old content")
		delete(found, "new")
		require.Empty(t, found, "power cut before operation %d", k)
	}
}

// B16: a temporary file left by a crash is neither appended to nor in the way.
func TestReplaceIgnoresLeftover(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "checkpoint-9.json")
	require.NoError(t, os.WriteFile(name+disk.TempSuffix, []byte(`{"old":`), 0o600))
	require.NoError(t, disk.Replace(disk.OS(), name, []byte(`{}`)))
	content, err := disk.ReadFile(disk.OS(), name, 2)
	require.NoError(t, err)
	assert.Equal(t, `{}`, string(content))
	assert.NoFileExists(t, name+disk.TempSuffix)

	_, err = disk.ReadFile(disk.OS(), name, 1)
	assert.ErrorContains(t, err, "more than the 1 allowed")
}

func TestMkdirAllSyncsEachParent(t *testing.T) {
	root := t.TempDir()
	base := filepath.Base(root)
	dir := filepath.Join(root, "a", "b")
	fsys := trace(disk.OS(), -1)
	require.NoError(t, disk.MkdirAll(fsys, dir))
	require.Equal(t, []string{"mkdir b", "mkdir a", "syncdir " + base, "mkdir b", "syncdir a"}, fsys.ops)

	// Again: it exists, and its maker may have died before the sync.
	fsys.ops = nil
	require.NoError(t, disk.MkdirAll(fsys, dir))
	require.Equal(t, []string{"mkdir b", "syncdir a"}, fsys.ops)

	fsys = trace(disk.OS(), 1)
	require.ErrorIs(t, disk.MkdirAll(fsys, dir), errInjected)
}

func TestOS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	fsys := disk.OS()
	require.NoError(t, fsys.Mkdir(dir))
	require.ErrorIs(t, fsys.Mkdir(dir), fs.ErrExist)
	name := filepath.Join(dir, "f")
	_, err := fsys.Append(name)
	require.ErrorIs(t, err, fs.ErrNotExist)

	f, err := fsys.Create(name)
	require.NoError(t, err)
	_, err = fsys.Create(name)
	require.ErrorIs(t, err, fs.ErrExist)
	_, err = f.Write([]byte("hello world"))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(5))
	_, err = f.Write([]byte("!")) // at the new end, not where it was before
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())

	r, err := fsys.Open(name)
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Write([]byte("x"))
	require.Error(t, err)
	size, err := r.Size()
	require.NoError(t, err)
	require.EqualValues(t, 6, size)
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "hello!", string(content))

	if runtime.GOOS != "windows" {
		for path, want := range map[string]fs.FileMode{dir: fs.ModeDir | 0o700, name: 0o600} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, want, info.Mode(), path)
		}
	}
	assert.True(t, disk.IsFull(&fs.PathError{Err: syscall.ENOSPC}))
	assert.False(t, disk.IsFull(&fs.PathError{Err: syscall.EIO}))
	assert.False(t, disk.IsFull(nil))
}
