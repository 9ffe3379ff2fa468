package budget

import "hash/maphash"

// Where the ledger has its reservations. An open one is a hold, for the guard to
// work on, and holds are used again; a closed one is put away in the archive.
// A late call gets a copy of it, which an entry turns into a hold again until
// the batch in hand is through.

// hold is a reservation that is open, or that entries in hand change.
type hold struct {
	prev, next *hold // among the open ones
	hash       uint64
	at         ref // its place among the holds; of a copy, that in the archive
	size       int // of a copy: the bytes it takes there
	life
}

// holdBit tells a ref to a hold from one into the archive.
const holdBit ref = 1 << (refBits - 1)

func (r ref) isHold() bool { return r&holdBit != 0 }

func (r ref) index() int { return int(r &^ holdBit) }

func (l *ledger) hash(rid string) uint64 { return maphash.String(l.seed, rid) }

// find returns the reservation of a rid, or nil: a hold, or a copy of what was
// put away.
func (l *ledger) find(rid string) *hold { return l.hashed(l.hash(rid), rid) }

// hashed is find where the hash of the rid is known.
func (l *ledger) hashed(hash uint64, rid string) *hold {
	r := l.rids.find(hash, func(r ref) bool {
		if r.isHold() {
			return l.holds[r.index()].rid == rid
		}
		return l.closed.named(r, rid)
	})
	switch {
	case r == 0:
		return nil
	case r.isHold():
		return l.holds[r.index()]
	}
	return l.copyOf(hash, r)
}

func (l *ledger) copyOf(hash uint64, r ref) *hold {
	h := &hold{hash: hash, at: r}
	h.life, h.size = l.closed.get(r, l.numbered)
	return h
}

// place returns a place among the holds, with one in it that is not used, or
// with none.
func (l *ledger) place() (ref, *hold) {
	if n := len(l.idle); n > 0 {
		r := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return r, l.holds[r.index()]
	}
	l.holds = append(l.holds, nil)
	return holdBit | ref(len(l.holds)-1), nil
}

// enter returns a blank hold for a new reservation. The rid may be that
// of one past the horizon.
func (l *ledger) enter(hash uint64, old *hold) *hold {
	r, h := l.place()
	if h == nil {
		h = &hold{at: r}
		l.holds[r.index()] = h
	}
	if h.hash = hash; old == nil {
		l.rids.put(hash, r)
		return h
	}
	l.rids.replace(hash, old.at, r)
	l.closed.setGone(old, true)
	return h
}

// withdraw takes an enter back.
func (l *ledger) withdraw(h, old *hold) {
	if old == nil {
		l.rids.remove(h.hash, h.at)
	} else {
		l.rids.replace(h.hash, h.at, old.at)
		l.closed.setGone(old, false)
	}
	l.leave(h)
}

// leave lets a hold be used again.
func (l *ledger) leave(h *hold) {
	h.life = life{}
	l.idle = append(l.idle, h.at)
}

// touch notes that h may have to be put away when the batch is through. What
// was put away is a hold again, from before it is changed: it is taken out as it
// was counted.
func (l *ledger) touch(h *hold) {
	l.touched = append(l.touched, h)
	if h.at.isHold() {
		return
	}
	r, _ := l.place()
	l.rids.replace(h.hash, h.at, r)
	l.closed.setGone(h, true)
	l.holds[r.index()], h.at = h, r
}

// rest puts away what is closed. It comes after each batch, when nothing of it
// can be taken back any more.
func (l *ledger) rest() {
	for _, h := range l.touched {
		if h.state != StateSettled && h.state != StateRefunded {
			continue // open again, or gone already
		}
		if l.ahead && h.plain() {
			l.rids.remove(h.hash, h.at)
		} else if r := l.closed.add(&h.life); !l.rids.replace(h.hash, h.at, r) {
			l.closed.setGone(l.copyOf(h.hash, r), true) // its rid has a new life
		}
		l.leave(h)
	}
	l.touched = l.touched[:0]
}

// forget drops closed reservations that no late call needs: those closed before
// the horizon, and plain ones. It goes over blocks that it pays for and leaves what
// was closed since it last came by. A new life of a rid is later than what was
// forgotten, be it by a microsecond: so a handle tells it from its own.
func (l *ledger) forget(horizon int64) {
	l.last++
	l.closed.added = 0
	for i := range len(l.idle) - int(l.root.open) - 64 { // holds of a time with more of them
		l.holds[l.idle[i].index()] = nil
	}
	for i := range l.closed.blocks {
		b := &l.closed.blocks[i]
		switch {
		case len(b.bytes) == 0:
		case b.seen && (b.newest < horizon || 2*(b.gone+b.plain) >= len(b.bytes)):
			l.goOver(i, horizon)
		default:
			b.seen = i != l.closed.filling
		}
	}
}

// goOver empties block i; what is still needed moves to the end.
func (l *ledger) goOver(i int, horizon int64) {
	if i == l.closed.filling {
		l.closed.nextBlock(l.closed.blocks[i].base)
	}
	l.closed.each(i, l.numbered, func(r ref, h *life) {
		if hash := l.hash(h.rid); h.forgettable(horizon) {
			l.rids.remove(hash, r)
		} else {
			l.rids.replace(hash, r, l.closed.add(h))
		}
	})
	l.closed.empty(i)
}
