package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/tollbook/tollbook/journal/disk"
)

// source is one file that is read for ends.
type source struct {
	path string
	read func(line []byte) (key string, e end, err error)
	size int64
	bad  []span // lines of the tail that cannot be read
}

// openSources finishes what a crash left undone in the files, makes them if
// the state is new, and holds their sizes against what the cursors know.
func (r *recovery) openSources() error {
	for i := range r.sources {
		s := &r.sources[i]
		if err := replay(r.fsys, s.path, r.beside(s.path, tailSuffix)); err != nil {
			return &WriteError{s.path, err}
		}
		open := r.fsys.Open
		if r.fresh {
			open = func(path string) (disk.File, error) { return appendTo(r.fsys, path) }
		}
		f, err := open(s.path)
		if errors.Is(err, fs.ErrNotExist) {
			return &DamagedError{s.path, fmt.Sprintf("it is missing; %d bytes of it are known to be written; restore it, or take another state directory to begin anew", r.known[i])}
		}
		if err != nil {
			return &WriteError{s.path, err}
		}
		s.size, err = f.Size()
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		if s.size < r.known[i] {
			return &DamagedError{s.path, fmt.Sprintf("it has %d bytes, but %d are known to be written; restore it, or take another state directory to begin anew", s.size, r.known[i])}
		}
	}
	return nil
}

// beside names a file in the state directory that goes with another.
func (r *recovery) beside(path, suffix string) string {
	return filepath.Join(r.dir, filepath.Base(path)+suffix)
}

// readSources reads the lines that no cursor knows.
func (r *recovery) readSources(ctx context.Context) error {
	for _, i := range r.order {
		from := int64(math.MaxInt64)
		for sh := range r.shards {
			from = min(from, r.offsets[sh][i])
		}
		if err := r.readSource(ctx, i, from); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) readSource(ctx context.Context, i int, from int64) error {
	s := &r.sources[i]
	f, err := r.fsys.Open(s.path)
	if err != nil {
		return fmt.Errorf("checkpoint: read %s: %w", s.path, err)
	}
	defer f.Close()
	if ok, err := isLineEnd(f, r.known[i]); err != nil {
		return fmt.Errorf("checkpoint: read %s: %w", s.path, err)
	} else if !ok {
		return &DamagedError{s.path, fmt.Sprintf("no line ends at byte %d, where one was written; restore it", r.known[i])}
	}
	lines := 0
	return scanLines(s.path, f, from, s.size, func(at span, line []byte) error {
		if lines++; lines%1024 == 0 && ctx.Err() != nil {
			return interrupted(ctx)
		}
		// Where no cursor tells what this state has written, the file may be
		// somebody's: only a last line without its newline can be torn.
		if whole := int64(len(line)) < at.to-at.from; whole && r.cursors == 0 {
			r.known[i] = at.to
		}
		return r.readLine(i, at, line)
	})
}

// readLine takes one line. What it says in an error is where the line stands,
// never what is in it.
func (r *recovery) readLine(i int, at span, line []byte) error {
	s := &r.sources[i]
	key, e, err := s.read(line)
	if err != nil || !json.Valid(line) {
		if at.from < r.known[i] {
			return &DamagedError{s.path, fmt.Sprintf("the line at byte %d, once written whole, cannot be read; restore it, choose another output, or take it out and remove all .json files of the state", at.from)}
		}
		s.bad = append(s.bad, at)
		return nil
	}
	item, ok, err := r.table.find(key)
	if err != nil {
		return err
	}
	if !ok {
		return &DamagedError{s.path, fmt.Sprintf("the line at byte %d is for the key %q, which is not in the input; take that line out, or choose another output", at.from, key)}
	}
	if at.from < r.offsets[item%len(r.shards)][i] {
		return nil // the shard's cursor knows it
	}
	sh, k := r.place(item)
	isMark := i == len(r.sources)-1
	if had := sh.at(k); !isMark && (had == done || had == failed) {
		return &DamagedError{s.path, fmt.Sprintf("the line at byte %d is the second one for the key %q; take one of the two out", at.from, key)}
	}
	r.set(item, e)
	return nil
}

// repair puts damaged cursors aside and writes tails anew.
func (r *recovery) repair() error {
	for _, path := range r.damaged {
		kept, err := r.freeName(path + ".damaged")
		if err == nil {
			err = r.fsys.Rename(path, kept)
		}
		if err == nil {
			err = r.fsys.SyncDir(r.dir)
		}
		if err != nil {
			return &WriteError{path, err}
		}
		r.report(path, "damaged; made anew from the outputs and marks, and kept as "+filepath.Base(kept))
	}
	for i := range r.sources {
		if err := r.repairTail(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) repairTail(i int) error {
	s, from := &r.sources[i], r.known[i]
	if from == s.size {
		return nil
	}
	if len(s.bad) > 0 {
		aside := r.beside(s.path, asideSuffix)
		if err := keepAside(r.fsys, s.path, aside, s.bad); err != nil {
			return &WriteError{aside, err}
		}
		r.report(s.path, fmt.Sprintf("%d unfinished lines taken out, from byte %d on, and kept in %s", len(s.bad), s.bad[0].from, aside))
	}
	if err := rewriteTail(r.fsys, s.path, r.beside(s.path, tailSuffix), from, s.size, s.bad); err != nil {
		return &WriteError{s.path, err}
	}
	return nil
}

func (r *recovery) report(path, what string) {
	r.repairs = append(r.repairs, Repair{Path: path, What: what})
}

func (r *recovery) freeName(name string) (string, error) {
	names, err := r.fsys.List(r.dir)
	free := name
	for n := 2; slices.Contains(names, filepath.Base(free)); n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	return free, err
}

// openFiles opens the files for appending and syncs what may have been left
// unsynced in them where no cursor knew. From here on nothing in them is in
// doubt, so that the cursors may know all of it.
func (r *recovery) openFiles() error {
	for i, s := range r.sources {
		f, err := r.fsys.Append(s.path)
		if err != nil {
			return &WriteError{s.path, err}
		}
		r.files = append(r.files, &lineFile{path: s.path, file: f, landed: r.landed(i)})
		size, err := f.Size()
		if err = errors.Join(err, f.Sync()); err != nil {
			return &WriteError{s.path, err}
		}
		r.files[i].size, r.known[i] = size, size
	}
	// A name that is found here may be one that an earlier run could not make
	// durable: that of a file with lines, or of the manifest, which the cursors
	// must not outlive.
	dirs := map[string]bool{r.dir: true}
	for _, s := range r.sources {
		dirs[filepath.Dir(s.path)] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := r.fsys.SyncDir(dir); err != nil {
			return &WriteError{dir, err}
		}
	}
	return nil
}
