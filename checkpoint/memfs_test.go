package checkpoint_test

import (
	"math/rand/v2"
	"path/filepath"

	"github.com/tollbook/tollbook/journal/disk"
)

// memFS is a disk in memory that crashes. op, if set, is asked before each
// operation that changes something and may refuse it; a refused write leaves
// half of its bytes behind.
type memFS struct {
	disk.FS
	mem *disk.Mem
	rng *rand.Rand // of power cuts
	op  func(op, name string) error
}

func newMemFS() *memFS { return over(disk.NewMem(), rand.New(rand.NewPCG(1, 2))) }

func over(mem *disk.Mem, rng *rand.Rand) *memFS {
	m := &memFS{mem: mem, rng: rng}
	m.FS = disk.Failing(mem, func(op disk.Op) disk.Fault {
		if m.op == nil || op.Kind.Reads() || op.Kind == disk.OpLock {
			return disk.Fault{}
		}
		return disk.Fault{Err: m.op(op.Kind.String(), op.Name), Bytes: int(op.Bytes) / 2}
	})
	return m
}

// kill leaves the disk as the next process finds it, powerCut as the next start
// of the machine does.
func (m *memFS) kill() *memFS     { return over(m.mem.Kill(), m.rng) }
func (m *memFS) powerCut() *memFS { return over(m.mem.Crash(m.rng), m.rng) }

// foresee is what a power cut would leave now.
func (m *memFS) foresee() *memFS { return over(m.mem.Foresee(m.rng), m.rng) }

// copy is the disk as it is, all synced.
func (m *memFS) copy() *memFS {
	c := newMemFS()
	for _, name := range m.names() {
		if _, err := m.mem.List(name); err != nil {
			c.write(name, m.read(name))
		} else if name != "." {
			must(disk.MkdirAll(c.mem, name))
		}
	}
	return c
}

// read returns the content of a file, write makes one durable.
func (m *memFS) read(name string) string {
	content, _ := disk.ReadFile(m.mem, name, 1<<20)
	return string(content)
}

func (m *memFS) write(name, content string) { must(disk.Replace(m.mem, name, []byte(content))) }

// names returns every path, each directory before what is in it.
func (m *memFS) names() []string {
	var names []string
	var walk func(string)
	walk = func(path string) {
		names = append(names, path)
		children, _ := m.mem.List(path) // none in a file
		for _, name := range children {
			walk(filepath.Join(path, name))
		}
	}
	walk(".")
	return names
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
