package disk

import (
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
)

// node is a file or a directory, under any number of names. The bytes of a
// slice of content are never overwritten, so that contents share them: an
// append writes behind the end of all, and what follows a truncate is a copy.
type node struct {
	dir     bool
	links   int // names it has now
	handles int // open ones

	data  []byte   // as it is read
	safe  []byte   // as it was at the last Sync
	clean int      // so many bytes are, what was lost apart, the same in data, safe and past
	past  [][]byte // what it was, since then, before each Truncate
	lost  []span   // of data: given up by a Sync that failed, and clean for every other one
}

type span struct{ from, to int }

// root stands for the directories that are always there.
var root = &node{dir: true}

// append adds p and returns by how much the file grew.
func (n *node) append(p []byte) int64 {
	n.data = append(n.data, p...)
	return int64(len(p))
}

// truncate cuts to size and returns by how much the file grew, a negative
// number.
func (n *node) truncate(size int) int64 {
	grew := int64(size - len(n.data))
	if grew == 0 {
		return 0
	}
	n.past = append(n.past, n.written())
	n.data = n.data[:size:size]
	n.clean = min(n.clean, size)
	lost := n.lost[:0:0]
	for _, l := range n.lost {
		if l.from < size {
			lost = append(lost, span{l.from, min(l.to, size)})
		}
	}
	n.lost = lost
	return grew
}

// written is data without what a failed Sync gave up: that part reads as it
// was written, and will never be on the disk.
func (n *node) written() []byte {
	if len(n.lost) == 0 {
		return n.data
	}
	data := slices.Clone(n.data)
	for _, l := range n.lost {
		clear(data[l.from:l.to])
	}
	return data
}

func (n *node) sync() {
	n.safe, n.clean, n.past = n.written(), len(n.data), nil
}

// failSync is what a system does whose disk refused: the bytes are no longer
// to be written, as if they were.
func (n *node) failSync() {
	from := n.clean
	if last := len(n.lost) - 1; last >= 0 {
		from = max(from, n.lost[last].to)
	}
	if from < len(n.data) {
		n.lost = append(n.lost, span{from, len(n.data)})
	}
}

// memFile is a handle.
type memFile struct {
	m      *Mem
	name   string
	node   *node
	writes bool
	closed bool
}

// begin locks for an operation of the handle.
func (f *memFile) begin(op string, allowed bool) (unlock func(), err error) {
	unlock, err = f.m.begin(op, f.name)
	switch {
	case err != nil:
	case f.closed:
		err = named(op, f.name, fs.ErrClosed)
	case !allowed:
		err = named(op, f.name, syscall.EBADF)
	}
	return unlock, err
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	unlock, err := f.begin("read", !f.writes)
	defer unlock()
	if err != nil {
		return 0, err
	}
	data := f.node.data
	switch {
	case off < 0:
		return 0, named("read", f.name, fs.ErrInvalid)
	case len(p) == 0:
		return 0, nil
	case off >= int64(len(data)):
		return 0, io.EOF
	}
	n := copy(p, data[off:])
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

func (f *memFile) Write(p []byte) (int, error) {
	unlock, err := f.begin("write", f.writes)
	defer unlock()
	if err != nil {
		return 0, err
	}
	fits := f.m.fits(len(p))
	f.m.used += f.node.append(p[:fits])
	if fits < len(p) {
		err = named("write", f.name, syscall.ENOSPC)
	}
	return fits, err
}

// fits returns how many of n bytes there is room for.
func (m *Mem) fits(n int) int {
	if m.capacity < 0 {
		return n
	}
	return int(max(0, min(int64(n), m.capacity-m.used)))
}

func (f *memFile) Truncate(size int64) error {
	unlock, err := f.begin("truncate", f.writes)
	defer unlock()
	switch {
	case err != nil:
		return err
	case size < 0:
		return named("truncate", f.name, fs.ErrInvalid)
	case size > int64(len(f.node.data)):
		return f.extend("truncate", size)
	}
	f.m.used += f.node.truncate(int(size))
	return nil
}

func (f *memFile) Allocate(size int64) error {
	unlock, err := f.begin("allocate", f.writes)
	defer unlock()
	if err == nil && size < int64(len(f.node.data)) {
		err = named("allocate", f.name, fs.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return f.extend("allocate", size)
}

// extend adds zeros, all or none.
func (f *memFile) extend(op string, size int64) error {
	n := int(size) - len(f.node.data)
	if f.m.fits(n) < n {
		return named(op, f.name, syscall.ENOSPC)
	}
	f.m.used += f.node.append(make([]byte, n))
	return nil
}

func (f *memFile) Size() (int64, error) {
	unlock, err := f.begin("size", true)
	defer unlock()
	if err != nil {
		return 0, err
	}
	return int64(len(f.node.data)), nil
}

func (f *memFile) Sync() error {
	unlock, err := f.begin("sync", f.writes)
	defer unlock()
	if err == nil {
		f.node.sync()
	}
	return err
}

// failSync is a Sync that fails.
func (f *memFile) failSync() {
	unlock, err := f.begin("sync", f.writes)
	defer unlock()
	if err == nil {
		f.node.failSync()
	}
}

func (f *memFile) Linked() (bool, error) {
	unlock, err := f.begin("linked", true)
	defer unlock()
	if err != nil {
		return false, err
	}
	return f.m.at(filepath.Clean(f.name)) == f.node, nil
}

func (f *memFile) Close() error {
	unlock, err := f.begin("close", true)
	defer unlock()
	if err != nil {
		return err
	}
	f.closed = true
	f.node.handles--
	f.m.free(f.node)
	return nil
}
