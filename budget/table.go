package budget

// table finds a reservation by the hash of its rid. It knows neither rid nor
// reservation: a slot holds a part of the hash and a ref, and the caller tells
// whether that is the one. So a reservation takes 10 to 15 bytes here, and no
// pointer for the garbage collector to follow.
//
// It is open addressing with linear probing, in shards that grow one at a time
// and by a half: no call pays for moving millions. The first 8 bits of a hash
// choose the shard and the next 24, the slot's tag, choose the slot, in order;
// so a shard that grows is read and written from front to back.
type table struct {
	shards [256]shard
	count  int

	// Where the last find ended: what is done next mostly is so with the same hash.
	// Below zero where slots have moved since.
	looked uint64
	ended  int
}

type shard struct {
	slots []uint64 // tag and ref; zero is free
	used  int
}

// ref says where a reservation is. It has refBits bits and is never zero.
type ref uint64

const (
	refBits = 40
	tagBits = 64 - refBits
)

func (t *table) at(hash uint64) (s *shard, tag uint64) {
	return &t.shards[hash>>56], hash >> 32 & (1<<tagBits - 1)
}

func (s *shard) home(tag uint64) int { return int(tag * uint64(len(s.slots)) >> tagBits) }

func (s *shard) next(i int) int {
	if i++; i < len(s.slots) {
		return i
	}
	return 0
}

// smallShard is how many slots a shard keeps, though none is used: all are 128 KiB.
const smallShard = 64

// find returns the ref with this hash that is the one, or zero.
func (t *table) find(hash uint64, is func(ref) bool) ref {
	s, tag := t.at(hash)
	if s.used == 0 {
		return 0
	}
	i := s.home(tag)
	for ; s.slots[i] != 0; i = s.next(i) {
		if r := ref(s.slots[i] & (1<<refBits - 1)); s.slots[i]>>refBits == tag && is(r) {
			t.looked, t.ended = hash, i
			return r
		}
	}
	t.looked, t.ended = hash, i
	return 0
}

// fetch has the processor read where hashes are looked for. To wait for memory
// takes longer than all else about an entry, and for many places at a time hardly
// longer than for one, if there is nothing to do between them.
func (t *table) fetch(hashes []uint64) (unused uint64) {
	for _, hash := range hashes {
		if s, tag := t.at(hash); s.used > 0 {
			i := s.home(tag)
			unused ^= s.slots[i] ^ s.slots[min(i+lineSlots, len(s.slots))-1]
		}
	}
	return unused
}

// lineSlots is how many slots the processor reads at once.
const lineSlots = 8

// put adds a ref that is not there.
func (t *table) put(hash uint64, r ref) {
	s, tag := t.at(hash)
	if s.used >= len(s.slots)/5*4 {
		s.resize(len(s.slots)*3/2 + 8)
		t.ended = -1
	}
	i := s.home(tag)
	if t.looked == hash && t.ended >= 0 {
		i = t.ended
	}
	s.add(i, tag<<refBits|uint64(r))
	s.used++
	t.count++
}

func (s *shard) add(i int, slot uint64) {
	for s.slots[i] != 0 {
		i = s.next(i)
	}
	s.slots[i] = slot
}

func (s *shard) resize(n int) {
	old := s.slots
	s.slots = make([]uint64, n)
	clear(s.slots) // memory that is read before it is written costs two page faults
	for _, slot := range old {
		if slot != 0 {
			s.add(s.home(slot>>refBits), slot)
		}
	}
}

// slot returns the index of a ref, or -1.
func (t *table) slot(hash uint64, s *shard, tag uint64, r ref) int {
	if s.used == 0 {
		return -1
	}
	if t.looked == hash && t.ended >= 0 && s.slots[t.ended] == tag<<refBits|uint64(r) {
		return t.ended
	}
	i := s.home(tag)
	for s.slots[i] != tag<<refBits|uint64(r) {
		if s.slots[i] == 0 {
			return -1
		}
		i = s.next(i)
	}
	return i
}

// replace puts now where was is, and reports whether it is there.
func (t *table) replace(hash uint64, was, now ref) bool {
	s, tag := t.at(hash)
	i := t.slot(hash, s, tag, was)
	if i >= 0 {
		s.slots[i] = tag<<refBits | uint64(now)
	}
	return i >= 0
}

// remove takes a ref out, and closes the gap in the run it was in.
func (t *table) remove(hash uint64, r ref) {
	s, tag := t.at(hash)
	gap := t.slot(hash, s, tag, r)
	if gap < 0 {
		return
	}
	t.ended = -1
	distance := func(from, to int) int { return (to - from + len(s.slots)) % len(s.slots) }
	for i := s.next(gap); s.slots[i] != 0; i = s.next(i) {
		if distance(s.home(s.slots[i]>>refBits), i) >= distance(gap, i) {
			s.slots[gap], gap = s.slots[i], i
		}
	}
	s.slots[gap] = 0
	s.used--
	t.count--
	if s.used < len(s.slots)/8 && len(s.slots) > smallShard {
		s.resize(s.used*2 + 8)
	}
}
