package disk

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
)

// blockSize is the unit in which a system writes a file to its disk, each block
// when it likes.
const blockSize = 4096

// Kill returns the disk as the next process finds it after this one was killed:
// all that was written is there, and what was not synced still is not. Locks
// are given back. m and all its handles fail with [ErrGone] from then on, but
// it can be killed and crashed again, for the same end or another one.
func (m *Mem) Kill() *Mem { return m.end((*entry).killed, (*node).killed) }

// Crash returns the disk as the machine finds it after a power cut. What was
// synced is there, bytes and names. Of all else chance decides, by rng alone:
//
//   - each unsynced block of 4 KiB is there or not, as any content it had
//     since the last Sync; one that is missing before one that is there reads
//     as zeros;
//   - the length is one that the file had since, or any in between, and a block
//     may be zeros from any byte on: a torn write;
//   - each unsynced change of a name (by Create, Mkdir, Remove, and both names
//     of a Rename) happened or not, by itself;
//   - what a failed Sync gave up is lost, also if a later Sync returned nil
//     (see [Failing]).
//
// As Kill, it ends m, and can be called again for another outcome.
func (m *Mem) Crash(rng *rand.Rand) *Mem {
	return m.end(func(e *entry) *entry { return e.cut(rng) }, func(n *node) *node { return n.cut(rng) })
}

// Foresee returns what Crash would, and does not end m.
func (m *Mem) Foresee(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next(func(e *entry) *entry { return e.cut(rng) }, func(n *node) *node { return n.cut(rng) })
}

func (m *Mem) end(name func(*entry) *entry, file func(*node) *node) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	return m.next(name, file)
}

// next makes the disk that follows m. It asks in an order that is always the
// same, parents first, and for each file once. The caller holds mu.
func (m *Mem) next(name func(*entry) *entry, file func(*node) *node) *Mem {
	next := NewMem()
	next.capacity = m.capacity
	nodes := map[*node]*node{nil: nil}
	follow := func(n *node) *node {
		if _, ok := nodes[n]; !ok {
			nodes[n] = file(n)
		}
		return nodes[n]
	}
	for _, path := range slices.Sorted(maps.Keys(m.names)) {
		e := name(m.names[path])
		e.live, e.synced = follow(e.live), follow(e.synced)
		for i, n := range e.pending {
			e.pending[i] = follow(n)
		}
		if e.live == nil && len(e.pending) == 0 {
			continue
		}
		if e.live != nil && next.dir(filepath.Dir(path)) != nil {
			continue // it went with its directory
		}
		next.names[path] = e
		if n := e.live; n != nil {
			if n.links++; n.links == 1 {
				next.used += int64(len(n.data))
			}
		}
	}
	return next
}

func (e *entry) killed() *entry {
	return &entry{live: e.live, synced: e.synced, pending: slices.Clone(e.pending)}
}

// cut is what the name stands for after a power cut: the last of its changes
// that happened.
func (e *entry) cut(rng *rand.Rand) *entry {
	n := e.synced
	for _, p := range e.pending {
		if rng.IntN(2) == 0 {
			n = p
		}
	}
	return &entry{live: n, synced: n}
}

func (n *node) killed() *node {
	data := n.data[:len(n.data):len(n.data)] // a dead writer's slice may have room behind
	return &node{dir: n.dir, data: data, safe: n.safe, clean: n.clean, past: slices.Clip(n.past), lost: slices.Clip(n.lost)}
}

// cut is the file after a power cut.
func (n *node) cut(rng *rand.Rand) *node {
	data := n.safe
	if n.clean < len(n.safe) || len(n.past) > 0 || len(n.data) > n.clean {
		data = n.torn(rng)
	}
	data = data[:len(data):len(data)]
	return &node{dir: n.dir, data: data, safe: data, clean: len(data)}
}

// torn mixes, block by block, what an unsynced file was since its last Sync.
func (n *node) torn(rng *rand.Rand) []byte {
	was := append([][]byte{n.safe, n.written()}, n.past...)
	longest := 0
	for _, w := range was {
		longest = max(longest, len(w))
	}
	size := n.clean + rng.IntN(longest-n.clean+1)
	switch rng.IntN(3) {
	case 0:
		size = len(was[rng.IntN(len(was))])
	case 1:
		size = max(n.clean, size-size%blockSize)
	}
	data := make([]byte, size)
	copy(data, n.safe[:n.clean])
	for from, to := n.clean, 0; from < size; from = to {
		to = min(from-from%blockSize+blockSize, size)
		if i := rng.IntN(len(was) + 1); i < len(was) && from < len(was[i]) {
			copy(data[from:to], was[i][from:])
		}
		if rng.IntN(4) == 0 {
			clear(data[from+rng.IntN(to-from) : to])
		}
	}
	return data
}
