package budget

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal"
)

// archive holds what is closed, as bytes without a pointer: most reservations
// are never asked for again, and must cost little for as long as one may be. They
// lie in blocks in the order they were put away, and are forgotten by the block:
// what must stay of one moves to the end, and its memory goes.
type archive struct {
	blocks  []block
	free    []int // blocks that hold nothing
	filling int   // the one that is added to
	added   int   // bytes, since forget last came by
}

type block struct {
	bytes  []byte
	base   int64 // times in it count from here
	newest int64 // when the last of it was closed
	gone   int   // bytes of records that are
	plain  int   // and of others that nobody needs ([life.plain])
	seen   bool  // full when forget last came by
}

// blockBytes bounds a block, unless one record is longer. With room for the one
// that will not fit, it is what the heap gives.
const (
	blockBytes = 1<<16 - blockRoom
	blockRoom  = 512
)

// The first byte of a record.
const (
	isGone     = 1 << iota // no longer the reservation's: it was taken out, or its rid used again
	isUUID                 // the rid is one in canonical form, in 16 bytes
	isNamed                // life.named
	isRefunded             // else it is settled
	isUnsent               // life.unsent
	hasTexts               // key, model and prices follow
	hasProofs              // evidence follows
)

// add puts h away.
func (a *archive) add(h *life) ref {
	if len(a.blocks) == 0 {
		a.blocks = append(a.blocks, block{base: h.closed})
	}
	b := &a.blocks[a.filling]
	offset := len(b.bytes)
	bytes := h.pack(b.bytes, b.base)
	if offset > 0 && len(bytes) > blockBytes {
		b = a.nextBlock(h.closed)
		offset, bytes = 0, h.pack(b.bytes, b.base)
	}
	b.bytes = bytes
	b.newest = max(b.newest, h.closed)
	size := len(bytes) - offset
	a.added += size
	if h.plain() {
		b.plain += size
	}
	return ref(a.filling+1)<<16 | ref(offset)
}

// nextBlock begins a block, with room for as much as the one before holds and
// one more, so that most books have a small one.
func (a *archive) nextBlock(base int64) *block {
	room := len(a.blocks[a.filling].bytes) + blockRoom
	if n := len(a.free); n > 0 {
		a.filling, a.free = a.free[n-1], a.free[:n-1]
	} else {
		a.filling, a.blocks = len(a.blocks), append(a.blocks, block{})
	}
	a.blocks[a.filling] = block{base: base, newest: base, bytes: make([]byte, 0, room)}
	return &a.blocks[a.filling]
}

func (a *archive) place(r ref) (b *block, offset int) {
	return &a.blocks[r>>16-1], int(r & (1<<16 - 1))
}

// get returns what was put away, and how many bytes it takes there.
func (a *archive) get(r ref, accounts []*account) (h life, size int) {
	b, offset := a.place(r)
	return unpack(b.bytes[offset:], b.base, accounts)
}

// named reports whether a record is of this rid.
func (a *archive) named(r ref, rid string) bool {
	b, offset := a.place(r)
	record := b.bytes[offset:]
	if record[0]&isUUID != 0 {
		a, b, ok := parseUUID(rid)
		return ok && a == binary.LittleEndian.Uint64(record[1:]) && b == binary.LittleEndian.Uint64(record[9:])
	}
	n, size := binary.Uvarint(record[1:])
	return int(n) == len(rid) && string(record[1+size:1+size+int(n)]) == rid
}

// setGone marks the record of h as gone, or takes that back.
func (a *archive) setGone(h *hold, gone bool) {
	if h.at.isHold() {
		return // it is not put away
	}
	b, offset := a.place(h.at)
	size := h.size
	if !gone {
		size = -size
	}
	b.bytes[offset] ^= isGone
	b.gone += size
	if h.plain() {
		b.plain -= size
	}
}

// each calls f with every record of block i that is not gone.
func (a *archive) each(i int, accounts []*account, f func(ref, *life)) {
	b := a.blocks[i]
	for offset := 0; offset < len(b.bytes); {
		h, n := unpack(b.bytes[offset:], b.base, accounts)
		if b.bytes[offset]&isGone == 0 {
			f(ref(i+1)<<16|ref(offset), &h)
		}
		offset += n
	}
}

// empty lets go of block i, which is not the one that is added to.
func (a *archive) empty(i int) {
	a.blocks[i] = block{}
	a.free = append(a.free, i)
}

// pack appends h, which is closed, to dst: the first byte, the rid, the account,
// the times, which of the figures are not zero, and these.
func (h *life) pack(dst []byte, base int64) []byte {
	first := len(dst)
	if a, b, ok := parseUUID(h.rid); ok {
		dst = binary.LittleEndian.AppendUint64(append(dst, isUUID), a)
		dst = binary.LittleEndian.AppendUint64(dst, b)
	} else {
		dst = appendText(append(dst, 0), h.rid)
	}
	dst = h.packNumbers(dst, base)
	if h.named {
		dst[first] |= isNamed
	}
	if h.state == StateRefunded {
		dst[first] |= isRefunded
	}
	if h.unsent {
		dst[first] |= isUnsent
	}
	if !h.plain() && len(h.key)+len(h.model)+len(h.prices) > 0 {
		dst[first] |= hasTexts
		dst = appendText(appendText(appendText(dst, h.key), h.model), h.prices)
	}
	if len(h.proofs) > 0 {
		dst[first] |= hasProofs
		dst = binary.AppendUvarint(dst, uint64(len(h.proofs)))
		for _, p := range h.proofs {
			dst = appendText(dst, p.Key)
			for _, n := range [...]int64{p.Usage.In, p.Usage.Cached, p.Usage.Write, p.Usage.Out, p.Usage.Reasoning,
				p.Usage.Images, p.Usage.Seconds, p.Usage.Characters, p.Cost} {
				dst = binary.AppendVarint(dst, n)
			}
		}
	}
	return dst
}

// packNumbers appends all that is a number.
func (h *life) packNumbers(dst []byte, base int64) []byte {
	var figures [figureCount]int64
	h.figures(&figures)
	which := uint64(0)
	for i := range figures {
		if figures[i] != 0 {
			which |= 1 << i
		}
	}
	n := len(dst)
	dst = slices.Grow(dst, numbersRoom)[:n+numbersRoom]
	n += binary.PutUvarint(dst[n:], uint64(h.account.number))
	n += binary.PutVarint(dst[n:], h.closed-base)
	n += binary.PutVarint(dst[n:], h.closed-h.opened)
	n += binary.PutUvarint(dst[n:], which)
	for ; which != 0; which &= which - 1 {
		n += binary.PutVarint(dst[n:], figures[bits.TrailingZeros64(which)])
	}
	return dst[:n]
}

// numbersRoom is what packNumbers takes at most.
const numbersRoom = (4 + figureCount) * binary.MaxVarintLen64

// unpack is the reverse of pack; n is how many bytes it took. The texts of a
// plain one are lost.
func unpack(record []byte, base int64, accounts []*account) (h life, n int) {
	r := reader{record, 1}
	first := record[0]
	if first&isUUID != 0 {
		h.rid = uuid.UUID(record[1:17]).String()
		r.n += 16
	} else {
		h.rid = r.text()
	}
	h.account = accounts[r.uint()]
	h.closed = base + r.int()
	h.opened = h.closed - r.int()
	which := r.uint()
	var figures [figureCount]int64
	for i := range figures {
		if which>>i&1 != 0 {
			figures[i] = r.int()
		}
	}
	h.setFigures(&figures)
	h.named, h.unsent, h.state = first&isNamed != 0, first&isUnsent != 0, StateSettled
	if first&isRefunded != 0 {
		h.state = StateRefunded
	}
	if first&hasTexts != 0 {
		h.key, h.model, h.prices = r.text(), r.text(), r.text()
	}
	if first&hasProofs != 0 {
		h.proofs = make([]journal.Proof, r.uint())
		for i := range h.proofs {
			p := &h.proofs[i]
			p.Key = r.text()
			for _, n := range [...]*int64{&p.Usage.In, &p.Usage.Cached, &p.Usage.Write, &p.Usage.Out, &p.Usage.Reasoning,
				&p.Usage.Images, &p.Usage.Seconds, &p.Usage.Characters, &p.Cost} {
				*n = r.int()
			}
		}
	}
	return h, r.n
}

const figureCount = 23

// figures are the numbers of a life, the usual ones first, and each less what it
// usually is by the others: most are zero then. They wrap around as they must.
func (h *life) figures(f *[figureCount]int64) {
	s, u := &h.sum, &h.usage
	f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7] = h.each, u.In, u.Out, h.eachCost, s.ConfirmedCost, u.Cached, u.Reasoning, u.Write
	f[8], f[9] = h.tries-1, h.lost
	f[10], f[11], f[12], f[13], f[14] = s.Requests-h.tries, s.Confirmed-u.In-u.Out, s.Assumed, s.AssumedCost, s.Maybe
	f[15], f[16] = s.Amount-s.Confirmed-s.Assumed, s.Cost-s.ConfirmedCost-s.AssumedCost
	f[17], f[18], f[19] = h.lastCost, h.held-h.each, h.heldCost-h.eachCost
	f[20], f[21], f[22] = u.Images, u.Seconds, u.Characters
}

func (h *life) setFigures(f *[figureCount]int64) {
	s, u := &h.sum, &h.usage
	h.each, u.In, u.Out, h.eachCost, s.ConfirmedCost, u.Cached, u.Reasoning, u.Write = f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]
	h.tries, h.lost = f[8]+1, f[9]
	s.Requests, s.Confirmed, s.Assumed, s.AssumedCost, s.Maybe = f[10]+h.tries, f[11]+u.In+u.Out, f[12], f[13], f[14]
	s.Amount, s.Cost = f[15]+s.Confirmed+s.Assumed, f[16]+s.ConfirmedCost+s.AssumedCost
	h.lastCost, h.held, h.heldCost = f[17], f[18]+h.each, f[19]+h.eachCost
	u.Images, u.Seconds, u.Characters = f[20], f[21], f[22]
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// reader takes a record apart; nobody but pack wrote it.
type reader struct {
	bytes []byte
	n     int
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.bytes[r.n:])
	r.n += n
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.bytes[r.n:])
	r.n += n
	return v
}

func (r *reader) text() string {
	n := int(r.uint())
	s := string(r.bytes[r.n : r.n+n])
	r.n += n
	return s
}
