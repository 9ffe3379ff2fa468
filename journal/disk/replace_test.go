// Replace is atomic and durable: whatever fails, the name holds the whole old
// content or the whole new one, and success means that every step a power cut
// could undo was synced, in order (rule 12, B16).
package disk_test

import (
	"errors"
	"fmt"
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

// traced logs every operation and fails the one at index failAt (-1: none).
type traced struct {
	disk.FS
	ops    []string
	failAt int
}

var errInjected = errors.New("injected")

func (t *traced) op(format string, args ...any) error {
	t.ops = append(t.ops, fmt.Sprintf(format, args...))
	if len(t.ops)-1 == t.failAt {
		return errInjected
	}
	return nil
}

func (t *traced) Create(name string) (disk.File, error) {
	if err := t.op("create %s", filepath.Base(name)); err != nil {
		return nil, err
	}
	f, err := t.FS.Create(name)
	return &tracedFile{f, t}, err
}

func (t *traced) Rename(from, to string) error {
	if err := t.op("rename %s %s", filepath.Base(from), filepath.Base(to)); err != nil {
		return err
	}
	return t.FS.Rename(from, to)
}

func (t *traced) SyncDir(dir string) error {
	if err := t.op("syncdir %s", filepath.Base(dir)); err != nil {
		return err
	}
	return t.FS.SyncDir(dir)
}

func (t *traced) Mkdir(dir string) error {
	if err := t.op("mkdir %s", filepath.Base(dir)); err != nil {
		return err
	}
	return t.FS.Mkdir(dir)
}

type tracedFile struct {
	disk.File
	t *traced
}

func (f *tracedFile) Write(p []byte) (int, error) {
	if err := f.t.op("write %d", len(p)); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *tracedFile) Sync() error {
	if err := f.t.op("sync"); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *tracedFile) Close() error {
	err := f.t.op("close")
	return errors.Join(err, f.File.Close())
}

func TestReplaceFailsAtEveryStep(t *testing.T) {
	for step := 0; ; step++ {
		dir := t.TempDir()
		name := filepath.Join(dir, "c.json")
		require.NoError(t, disk.Replace(disk.OS(), name, []byte("old content")))
		fsys := &traced{FS: disk.OS(), failAt: step}
		err := disk.Replace(fsys, name, []byte("new"))
		content, readErr := os.ReadFile(name)
		require.NoError(t, readErr)
		names, listErr := fsys.List(dir)
		require.NoError(t, listErr)
		require.Equal(t, []string{"c.json"}, names, "step %d leaves nothing else", step)
		if step == len(fsys.ops) { // nothing was left to fail
			require.NoError(t, err)
			require.Equal(t, "new", string(content))
			require.Equal(t, []string{"create c.json.tmp", "write 3", "sync", "close",
				"rename c.json.tmp c.json", "syncdir " + filepath.Base(dir)}, fsys.ops)
			return
		}
		require.ErrorIs(t, err, errInjected, "step %d", step)
		require.Contains(t, []string{"old content", "new"}, string(content), "step %d", step)
		if !strings.HasPrefix(fsys.ops[step], "syncdir") {
			require.Equal(t, "old content", string(content), "step %d", step)
		}
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
	fsys := &traced{FS: disk.OS(), failAt: -1}
	require.NoError(t, disk.MkdirAll(fsys, dir))
	require.Equal(t, []string{"mkdir b", "mkdir a", "syncdir " + base, "mkdir b", "syncdir a"}, fsys.ops)

	// Again: it exists, and its maker may have died before the sync.
	fsys.ops = nil
	require.NoError(t, disk.MkdirAll(fsys, dir))
	require.Equal(t, []string{"mkdir b", "syncdir a"}, fsys.ops)

	fsys = &traced{FS: disk.OS(), failAt: 1}
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
