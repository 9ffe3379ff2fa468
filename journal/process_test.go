// One writer at a time, also among processes: a live holder is refused at once
// and named, a killed one blocks nobody and loses nothing acknowledged
// (rule 23).
package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// childEnv makes the test binary another writer: "hold DIR" or "append DIR".
const childEnv = "JOURNAL_TEST_CHILD"

func TestMain(m *testing.M) {
	what, dir, isChild := strings.Cut(os.Getenv(childEnv), " ")
	if !isChild {
		os.Exit(m.Run())
	}
	os.Exit(child(what, dir))
}

const (
	exitLocked = 3
	records    = 5
)

func child(what, dir string) int {
	f, err := OpenFile(dir, FileOptions{})
	if errors.Is(err, ErrLocked) {
		return exitLocked
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	pos, err := f.Rotate(ctx, f.chain.lastEntry(), opening())
	for i := 0; err == nil && i < records; i++ {
		e := reserve(fmt.Sprintf("%d-%d", os.Getpid(), i), 1)
		e.Key = strings.Repeat("k", 300_000)
		pos, err = f.Append(ctx, pos, batch(e))
	}
	if err == nil && what == "hold" {
		fmt.Println("held")
		io.ReadAll(os.Stdin) // until killed
	}
	if err = errors.Join(err, f.Close()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func start(t *testing.T, what, dir string) (cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0], "-secret=argument")
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(func() { stdin.Close() })
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewReader(pipe)
}

// Rule 23, B4, B21, case 75: the holder is named, and when it is killed nobody has to tidy up.
func TestHolderIsKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "book")
	holder, out := start(t, "hold", dir)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)

	before := read(t, filepath.Join(dir, "000001.jsonl"))
	_, err = OpenFile(dir, FileOptions{})
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.ErrorIs(t, err, ErrLocked)
	require.Contains(t, locked.Holder, fmt.Sprintf("process %d (%s) on ", holder.Process.Pid, filepath.Base(os.Args[0])))
	require.NotContains(t, locked.Holder, "secret")
	require.Equal(t, string(before), string(read(t, filepath.Join(dir, "000001.jsonl"))), "refused without a trace")

	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	f := open(t, dir)
	require.True(t, f.Recovery().Unclean)
	require.FileExists(t, filepath.Join(dir, lockName))
	want := []string{"open"}
	for i := range records {
		want = append(want, fmt.Sprintf("%d-%d", holder.Process.Pid, i))
	}
	goOn(t, dir, f, want)
}

// Case 71: six processes, five records of 300 KB each. Whoever is not refused
// has all of its lines in the book, each whole.
func TestManyProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "book")
	var writers []*exec.Cmd
	for range 6 {
		cmd, _ := start(t, "append", dir)
		writers = append(writers, cmd)
	}
	want := map[string]bool{}
	for _, cmd := range writers {
		err := cmd.Wait()
		if err == nil {
			for i := range records {
				want[fmt.Sprintf("%d-%d", cmd.Process.Pid, i)] = true
			}
			continue
		}
		require.Equal(t, exitLocked, cmd.ProcessState.ExitCode())
	}
	require.NotEmpty(t, want)
	got := map[string]bool{}
	for _, rid := range rids(t, Dir{Path: dir}.History()) {
		if rid != "open" {
			got[rid] = true
		}
	}
	require.Equal(t, want, got)
	clean(t, dir)
}

func TestSecondOpenInTheSameProcess(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	_, err := OpenFile(dir, FileOptions{})
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, fmt.Sprintf("process %d", os.Getpid()))
	require.NoError(t, f.Close())
	require.NoError(t, open(t, dir).Close())
}

// A writer stays with its book when the process changes its directory,
// whichever way it named the system's disk.
func TestChangedDirectory(t *testing.T) {
	for _, fsys := range []disk.FS{nil, disk.OS()} {
		home := t.TempDir()
		t.Chdir(home)
		f, err := OpenFile("book", FileOptions{FS: fsys})
		require.NoError(t, err)
		t.Chdir(t.TempDir())
		pos := rotate(t, f, 0)
		rotate(t, f, put(t, f, pos, reserve("a", 1)))
		require.NoError(t, f.Close())
		require.Equal(t, []string{"open", "a", "open"}, rids(t, Dir{Path: filepath.Join(home, "book")}.History()))
	}
}
