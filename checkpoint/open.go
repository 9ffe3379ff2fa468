package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/journal/disk"
)

// The files of a state directory, in its folder "shards".
const (
	shardsDir    = "shards"
	manifestName = "manifest.json"
	lockName     = "LOCK"
	tailSuffix   = ".tail" // a redo, see tail.go
	asideSuffix  = ".torn" // what was cut off a file, kept for people
)

// recovery is what is known while a state is opened.
type recovery struct {
	*state
	table   *keyTable
	fresh   bool      // there is no manifest yet
	sources []source  // parallel to state.files
	order   []int     // the marks, then the outputs: a line in an output overrules a mark
	offsets [][]int64 // per shard and file: the shard's cursor knows all lines before it
	cursors int       // how many could be read
	damaged []string  // those that could not
}

// openState opens the state directory or makes it. Another input is refused
// before anything is written, and before the lock is taken: it is not the
// business of this run who works there. Whatever is read is read before
// anything is repaired.
func openState(ctx context.Context, fsys disk.FS, dir string, shards int, outputs []Output,
	items int, key func(int) (string, error)) (_ *state, err error) {
	table, keys, err := readKeys(ctx, items, key)
	if err != nil {
		return nil, err
	}
	pin := manifest{Version: version, Items: items, Keys: keys, Shards: shards, Outputs: make([]string, len(outputs))}
	r := &recovery{state: &state{fsys: fsys, dir: filepath.Join(dir, shardsDir), pin: pin}, table: table}
	for i, o := range outputs {
		r.pin.Outputs[i] = filepath.Base(o.Path)
		r.sources = append(r.sources, source{path: o.Path, read: o.read})
		r.order = append(r.order, i)
	}
	r.sources = append(r.sources, source{path: filepath.Join(r.dir, marksName), read: readMark})
	r.order = slices.Insert(r.order, 0, len(outputs))

	if err := r.readPin(dir); err != nil {
		return nil, err
	}
	if err := disk.MkdirAll(fsys, r.dir); err != nil {
		return nil, &WriteError{r.dir, err}
	}
	r.lock, err = fsys.Lock(filepath.Join(r.dir, lockName), holder())
	if held := (*disk.HeldError)(nil); errors.As(err, &held) {
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	} else if err != nil {
		return nil, &WriteError{filepath.Join(r.dir, lockName), err}
	}
	for _, step := range []func() error{
		func() error { return r.readPin(dir) }, // it may have been made meanwhile
		r.checkFresh,
		r.readCursors,
		r.openSources,
		func() error { return r.readSources(ctx) },
		r.repair,
		r.openFiles,
		r.finish,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	return r.state, nil
}

func holder() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}

// readPin compares the state's manifest, if there is one, with this run's.
func (r *recovery) readPin(dir string) error {
	m, err := readManifest(r.fsys, filepath.Join(r.dir, manifestName))
	if err != nil {
		return err
	}
	if r.fresh = m == nil; r.fresh {
		return nil
	}
	if err := m.fits(dir, r.pin); err != nil {
		return err
	}
	r.pin = *m
	return nil
}

// tryAnew is what helps where the manifest is lost.
const tryAnew = "restore it, or remove all .json files there to make them anew from the lines of the outputs and marks.jsonl"

// checkFresh refuses to begin anew where there was a state, and sweeps files
// that a crash left unfinished.
func (r *recovery) checkFresh() error {
	names, err := r.fsys.List(r.dir)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, name := range names {
		path := filepath.Join(r.dir, name)
		if strings.HasSuffix(name, disk.TempSuffix) {
			if err := r.fsys.Remove(path); err != nil {
				return &WriteError{path, err}
			}
		} else if r.fresh && strings.HasSuffix(name, ".json") {
			return &DamagedError{filepath.Join(r.dir, manifestName), "it is missing, but " + name + " is there; " + tryAnew}
		}
	}
	return nil
}

// readCursors takes what the cursors know. One that is damaged, or of another
// state, counts as lost.
func (r *recovery) readCursors() error {
	files := len(r.sources)
	r.shards, r.known = newShards(r.pin.Items, r.pin.Shards), make([]int64, files)
	r.count[0] = r.pin.Items
	r.offsets = make([][]int64, r.pin.Shards)
	for i := range r.shards {
		sh := &r.shards[i]
		r.offsets[i] = make([]int64, files)
		path := filepath.Join(r.dir, cursorName(i))
		var c cursor
		err := readSealed(r.fsys, path, &c)
		if err == nil && (c.Keys != r.pin.Keys || c.Shard != i || c.Shards != r.pin.Shards || len(c.Offsets) != files) {
			err = errUnreadable
		}
		if err == nil {
			err = sh.load(c)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, errUnreadable):
			*sh = newShards(r.pin.Items, r.pin.Shards)[i]
			r.damaged = append(r.damaged, path)
		case errors.Is(err, errVersion):
			return &DamagedError{path, err.Error()}
		case err != nil:
			return fmt.Errorf("checkpoint: %w", err)
		default:
			r.cursors++
			r.offsets[i] = c.Offsets
			for f, offset := range c.Offsets {
				r.known[f] = max(r.known[f], offset)
			}
		}
		for k := range sh.n {
			if e := sh.at(k); e != 0 {
				r.count[0]--
				r.count[e]++
			}
		}
	}
	return nil
}

// finish makes a new state one that counts, and saves what was found.
func (r *recovery) finish() error {
	if r.fresh {
		if err := writeSealed(r.fsys, filepath.Join(r.dir, manifestName), r.pin); err != nil {
			return err
		}
	}
	return r.save(true)
}
