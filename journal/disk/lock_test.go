// One holder at a time, told apart by the system's lock and not by the file:
// a live holder is refused at once and named, a dead one is nobody (rule 23).
package disk_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// lockEnv makes the test binary a process that holds the named lock until it
// is killed or its stdin ends.
const lockEnv = "DISK_TEST_HOLD"

func TestMain(m *testing.M) {
	if name := os.Getenv(lockEnv); name != "" {
		l, err := disk.OS().Lock(name, fmt.Sprintf("pid %d", os.Getpid()))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		bufio.NewReader(os.Stdin).ReadByte()
		l.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestLockInOneProcess(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "LOCK")
	l, err := disk.OS().Lock(name, "a longer first holder")
	require.NoError(t, err)
	link := filepath.Join(t.TempDir(), "link")
	if os.Symlink(dir, link) == nil { // the same file by another path
		_, err = disk.OS().Lock(filepath.Join(link, "LOCK"), "second")
		var held *disk.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "a longer first holder", held.Holder)
	}
	require.NoError(t, l.Close())
	require.NoError(t, l.Close(), "closing twice is closing once")

	l, err = disk.OS().Lock(name, "second")
	require.NoError(t, err)
	defer l.Close()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "second", string(text))
}

// The holder's name finds no room, and the lock is as good without it.
func TestLockOnAFullDisk(t *testing.T) { // Rule 11, 23
	const full = "/dev/full" // takes a lock and no byte, on Linux
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	l, err := disk.OS().Lock(full, "first")
	require.NoError(t, err)
	_, err = disk.OS().Lock(full, "second")
	var held *disk.HeldError
	require.ErrorAs(t, err, &held)
	require.NoError(t, l.Close())
}

// A file that has its own text can be locked: who has no name writes none.
func TestLockKeepsTheText(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	mem := disk.NewMem()
	f, err := mem.Create("out")
	require.NoError(t, err)
	_, err = f.Write([]byte("text"))
	require.NoError(t, err)
	for _, test := range []struct {
		fsys disk.FS
		name string
	}{{disk.OS(), name}, {mem, "out"}} {
		l, err := test.fsys.Lock(test.name, "")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		f, err := test.fsys.Open(test.name)
		require.NoError(t, err)
		size, err := f.Size()
		require.NoError(t, err)
		require.Equal(t, int64(4), size)
		require.NoError(t, f.Close())
	}
}

// B21, case 75: the lock of a killed process blocks nobody; a live one does.
func TestLockOfAnotherProcess(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), lockEnv+"="+name)
	stdin, err := holder.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)

	_, err = disk.OS().Lock(name, "us")
	var held *disk.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, fmt.Sprintf("pid %d", holder.Process.Pid), held.Holder)

	require.NoError(t, holder.Process.Kill())
	var exit *exec.ExitError
	require.True(t, errors.As(holder.Wait(), &exit))
	l, err := disk.OS().Lock(name, "us")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.FileExists(t, name, "the lock file is never deleted")
}
