package disk

import (
	"cmp"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
)

// entry is a name: what it stands for, now and after a power cut.
type entry struct {
	live    *node   // nil: nothing
	synced  *node   // at the last SyncDir
	pending []*node // what it stood for since then, the last one is live
}

// at returns what stands under a cleaned name; nil is nothing.
func (m *Mem) at(name string) *node {
	if filepath.Dir(name) == name {
		return root
	}
	if e := m.names[name]; e != nil {
		return e.live
	}
	return nil
}

// dir fails if the name is not a directory's.
func (m *Mem) dir(name string) error {
	switch n := m.at(name); {
	case n == nil:
		return fs.ErrNotExist
	case !n.dir:
		return syscall.ENOTDIR
	}
	return nil
}

// file returns the file of that name.
func (m *Mem) file(name string) (*node, error) {
	n := m.at(name)
	switch {
	case n == nil:
		return nil, cmp.Or(m.dir(filepath.Dir(name)), fs.ErrNotExist)
	case n.dir:
		return nil, syscall.EISDIR
	}
	return n, nil
}

// link makes a name stand for something else; nil is nothing.
func (m *Mem) link(name string, n *node) {
	e := m.names[name]
	if e == nil {
		e = &entry{}
		m.names[name] = e
	}
	old := e.live
	e.live, e.pending = n, append(e.pending, n)
	if n != nil {
		n.links++
	}
	if old != nil {
		old.links--
		m.free(old)
	}
}

// free gives the room of a file back that nobody can reach any more.
func (m *Mem) free(n *node) {
	if n.links == 0 && n.handles == 0 {
		m.used -= int64(len(n.data))
	}
}

// add makes a new name for something new.
func (m *Mem) add(name string, n *node) error {
	if err := m.dir(filepath.Dir(name)); err != nil {
		return err
	}
	if m.at(name) != nil {
		return fs.ErrExist
	}
	m.link(name, n)
	return nil
}

// in returns what stands in a directory, sorted.
func (m *Mem) in(dir string) (names []string) {
	for name, e := range m.names {
		if e.live != nil && filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names
}

func (m *Mem) rename(from, to string) error {
	n, err := m.file(from)
	if err != nil {
		return err
	}
	if err := m.dir(filepath.Dir(to)); err != nil {
		return err
	}
	switch old := m.at(to); {
	case old == n: // POSIX: two names of one file, and nothing is done
	case old != nil && old.dir:
		return fs.ErrExist
	default:
		m.link(to, n)
		m.link(from, nil)
	}
	return nil
}
