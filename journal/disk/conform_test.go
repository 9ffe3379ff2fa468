// Mem answers as the operating system does, so that what holds over it holds
// over a real disk.
package disk_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// handles of the file system that a table works on, by name.
type handles struct {
	disk.FS
	dir   string
	files map[string]disk.File
	locks map[string]io.Closer
}

func (h *handles) path(name string) string { return filepath.Join(h.dir, name) }

// keep opens a file under a name for later steps.
func (h *handles) keep(as string, open func(string) (disk.File, error), name string) error {
	f, err := open(h.path(name))
	if err == nil {
		h.files[as] = f
	} else if f != nil {
		return errors.New("a file and an error")
	}
	return err
}

// says puts a result into a word: an error that callers ask about, or what was
// returned.
func says(v any, err error) string {
	var held *disk.HeldError
	switch {
	case err == nil:
		return fmt.Sprint(v)
	case errors.As(err, &held):
		return "held by " + held.Holder
	case errors.Is(err, fs.ErrNotExist):
		return "no such"
	case errors.Is(err, fs.ErrExist):
		return "exists"
	case errors.Is(err, fs.ErrClosed):
		return "closed"
	case errors.Is(err, io.EOF):
		return fmt.Sprintf("%v EOF", v)
	}
	return "error"
}

func TestMemAnswersAsTheSystem(t *testing.T) {
	ok := func(err error) (any, error) { return "ok", err }
	read := func(h *handles, file string, n int, off int64) (any, error) {
		p := make([]byte, n)
		n, err := h.files[file].ReadAt(p, off)
		return string(p[:n]), err
	}
	lock := func(h *handles, name string) (any, error) {
		l, err := h.Lock(h.path(name), name)
		if err == nil {
			h.locks[name] = l
		}
		return ok(err)
	}
	type step struct {
		want string
		do   func(h *handles) (any, error)
	}
	steps := map[string][]step{
		"directories": {
			{"ok", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("d"))) }},
			{"exists", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("d"))) }},
			{"no such", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("e/d"))) }},
			{"[]", func(h *handles) (any, error) { return h.List(h.path("d")) }},
			{"no such", func(h *handles) (any, error) { return h.List(h.path("e")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("b", h.Create, "d/b")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("a", h.Create, "d/../d/a")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("d/c"))) }},
			{"[a b c]", func(h *handles) (any, error) { return h.List(h.path("d")) }},
			{"exists", func(h *handles) (any, error) { return ok(h.keep("c", h.Create, "d/c")) }},
			{"error", func(h *handles) (any, error) { return ok(h.keep("c", h.Append, "d/c")) }},
			{"exists", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("d/a"))) }},
			{"error", func(h *handles) (any, error) { return ok(h.Mkdir(h.path("d/a/x"))) }},
			{"error", func(h *handles) (any, error) { return ok(h.keep("x", h.Open, "d/a/x")) }},
			{"error", func(h *handles) (any, error) { return ok(h.keep("x", h.Create, "d/a/x")) }},
			{"error", func(h *handles) (any, error) { return h.List(h.path("d/a")) }},
			{"exists", func(h *handles) (any, error) { return ok(h.Remove(h.path("d"))) }}, // ENOTEMPTY is that
			{"ok", func(h *handles) (any, error) { return ok(h.Remove(h.path("d/c"))) }},
			{"ok", func(h *handles) (any, error) { return ok(h.SyncDir(h.path("d"))) }},
			{"no such", func(h *handles) (any, error) { return ok(h.SyncDir(h.path("e"))) }},
		},
		"a file": {
			{"no such", func(h *handles) (any, error) { return ok(h.keep("w", h.Append, "f")) }},
			{"no such", func(h *handles) (any, error) { return ok(h.keep("r", h.Open, "f")) }},
			{"no such", func(h *handles) (any, error) { return ok(h.keep("w", h.Create, "e/f")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("w", h.Create, "f")) }},
			{"exists", func(h *handles) (any, error) { return ok(h.keep("w2", h.Create, "f")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("r", h.Open, "f")) }},
			{"11", func(h *handles) (any, error) { return h.files["w"].Write([]byte("hello world")) }},
			{"ell", func(h *handles) (any, error) { return read(h, "r", 3, 1) }},
			{"world EOF", func(h *handles) (any, error) { return read(h, "r", 6, 6) }},
			{" EOF", func(h *handles) (any, error) { return read(h, "r", 6, 11) }},
			{"", func(h *handles) (any, error) { return read(h, "r", 0, 99) }},
			{"error", func(h *handles) (any, error) { return read(h, "r", 1, -1) }},
			{"error", func(h *handles) (any, error) { return read(h, "w", 1, 0) }},
			{"error", func(h *handles) (any, error) { return h.files["r"].Write([]byte("x")) }},
			{"error", func(h *handles) (any, error) { return ok(h.files["r"].Truncate(0)) }},
			{"error", func(h *handles) (any, error) { return ok(h.files["r"].Allocate(20)) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["w"].Truncate(5)) }},
			{"error", func(h *handles) (any, error) { return ok(h.files["w"].Truncate(-1)) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("w2", h.Append, "f")) }},
			{"1", func(h *handles) (any, error) { return h.files["w2"].Write([]byte("!")) }},
			{"1", func(h *handles) (any, error) { return h.files["w"].Write([]byte("?")) }},
			{"hello!? EOF", func(h *handles) (any, error) { return read(h, "r", 9, 0) }},
			{"error", func(h *handles) (any, error) { return ok(h.files["w"].Allocate(6)) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["w"].Allocate(9)) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["w"].Truncate(10)) }},
			{"10", func(h *handles) (any, error) { return h.files["r"].Size() }},
			{"!?\x00\x00\x00 EOF", func(h *handles) (any, error) { return read(h, "r", 9, 5) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["w"].Sync()) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["w"].Close()) }},
			{"closed", func(h *handles) (any, error) { return ok(h.files["w"].Close()) }},
			{"closed", func(h *handles) (any, error) { return h.files["w"].Write([]byte("x")) }},
			{"closed", func(h *handles) (any, error) { return h.files["w"].Size() }},
			{"closed", func(h *handles) (any, error) { return h.files["w"].Linked() }},
			{"1", func(h *handles) (any, error) { return h.files["w2"].Write([]byte("x")) }},
		},
		"names of open files": {
			{"ok", func(h *handles) (any, error) { return ok(h.keep("a", h.Create, "a")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("b", h.Create, "b")) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("rb", h.Open, "b")) }},
			{"1", func(h *handles) (any, error) { return h.files["a"].Write([]byte("a")) }},
			{"true", func(h *handles) (any, error) { return h.files["b"].Linked() }},
			{"ok", func(h *handles) (any, error) { return ok(h.Rename(h.path("a"), h.path("b"))) }},
			{"[b]", func(h *handles) (any, error) { return h.List(h.dir) }},
			{"false", func(h *handles) (any, error) { return h.files["a"].Linked() }},
			{"false", func(h *handles) (any, error) { return h.files["b"].Linked() }},
			{"2", func(h *handles) (any, error) { return h.files["b"].Write([]byte("bb")) }},
			{"2", func(h *handles) (any, error) { return h.files["rb"].Size() }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("r", h.Open, "b")) }},
			{"a EOF", func(h *handles) (any, error) { return read(h, "r", 2, 0) }},
			{"ok", func(h *handles) (any, error) { return ok(h.Rename(h.path("b"), h.path("b"))) }},
			{"ok", func(h *handles) (any, error) { return ok(h.Remove(h.path("b"))) }},
			{"no such", func(h *handles) (any, error) { return ok(h.Remove(h.path("b"))) }},
			{"no such", func(h *handles) (any, error) { return ok(h.Rename(h.path("b"), h.path("a"))) }},
			{"1", func(h *handles) (any, error) { return h.files["a"].Write([]byte("A")) }},
			{"aA", func(h *handles) (any, error) { return read(h, "r", 2, 0) }},
			{"ok", func(h *handles) (any, error) { return ok(h.files["a"].Sync()) }},
			{"no such", func(h *handles) (any, error) { return ok(h.Rename(h.path("a"), h.path("e/a"))) }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("c", h.Create, "c")) }},
			{"no such", func(h *handles) (any, error) { return ok(h.Rename(h.path("c"), h.path("e/c"))) }},
		},
		"locks": {
			{"no such", func(h *handles) (any, error) { return lock(h, "e/LOCK") }},
			{"ok", func(h *handles) (any, error) { return lock(h, "LOCK") }},
			{"held by LOCK", func(h *handles) (any, error) { return lock(h, "./LOCK") }},
			{"ok", func(h *handles) (any, error) { return lock(h, "OTHER") }},
			{"[LOCK OTHER]", func(h *handles) (any, error) { return h.List(h.dir) }},
			{"ok", func(h *handles) (any, error) { return ok(h.locks["LOCK"].Close()) }},
			{"ok", func(h *handles) (any, error) { return lock(h, "LOCK") }},
			{"ok", func(h *handles) (any, error) { return ok(h.keep("r", h.Open, "LOCK")) }},
			{"LOCK EOF", func(h *handles) (any, error) { return read(h, "r", 9, 0) }},
			{"ok", func(h *handles) (any, error) { return ok(h.locks["LOCK"].Close()) }},
			{"ok", func(h *handles) (any, error) { return ok(h.locks["OTHER"].Close()) }},
		},
	}
	for name, steps := range steps {
		for system, open := range map[string]func() (disk.FS, string){
			"OS":  func() (disk.FS, string) { return disk.OS(), t.TempDir() },
			"Mem": func() (disk.FS, string) { return disk.NewMem(), "." },
		} {
			t.Run(name+" of "+system, func(t *testing.T) {
				if runtime.GOOS == "windows" && name == "names of open files" {
					t.Skip("Windows does not rename or remove a file that is open")
				}
				h := &handles{files: map[string]disk.File{}, locks: map[string]io.Closer{}}
				h.FS, h.dir = open()
				for i, step := range steps {
					require.Equal(t, step.want, says(step.do(h)), "step %d", i)
				}
				for _, f := range h.files {
					f.Close()
				}
			})
		}
	}
}
