package budget

import (
	"context"
	"time"
)

// The guard is a single writer. Callers queue what they want and wait; one of
// them at a time leads: it takes the whole queue, decides each call in order
// on the ledger, appends all the entries in one batch and answers everybody.
// While an append is on its way to the disk the next queue collects, and that
// is the group commit: no timer, one write and one fsync for all who came
// meanwhile. A leader serves one queue and hands over to the first of the
// next, so that nobody works for the others for ever.

// opKind is what a call asks of the leader.
type opKind uint8

const (
	opReserve opKind = iota + 1
	opExtend
	opSettle
	opRefund
	opClose
	opReclaim
	opAdjust
	opLimit
	opReceipt
	opCancel // of a waiting reserve
	opRead   // look at the ledger between two batches
	opFinish // no more calls
)

var opNames = [...]string{opReserve: "reserve", opExtend: "extend", opSettle: "settle", opRefund: "refund", opClose: "close",
	opReclaim: "reclaim", opAdjust: "adjust", opLimit: "limit", opReceipt: "receipt", opCancel: "cancel", opRead: "read", opFinish: "close"}

// op is one call: what is asked, then the answer.
type op struct {
	kind   opKind
	rid    string
	hold   *hold // of a handle; nil: looked up by rid
	opened int64 // of that reservation, which tells it from others of its rid

	request  Request
	priced   bool // the request's cost is known, be it zero
	tabled   bool // by the Pricer, which may be asked again
	prices   string
	usage    Usage
	last     Outcome
	why      string
	evidence *Evidence
	limit    *Limit
	cancel   *op   // the waiting reserve to end …
	cause    error // … and what it is told
	read     func(*ledger)

	wrote   bool     // the batch in hand holds entries of this op
	waitsAt *account // in the waiting line: what was full when it was last tried
	ready   bool     // in the waiting line, with an answer that holds once the batch is durable
	refusal error    // in the waiting line: why it waits
	got     *hold    // what it was decided on
	granted int64    // tokens of it
	receipt Receipt
	err     error
	silent  bool // the leader's own: nobody listens
	done    chan signal
}

// signal is what reaches the goroutine behind an op: youLead while it is the
// first of the queue, then its answer.
type signal bool

const (
	answered signal = false
	youLead  signal = true
)

// op returns an op to be filled in and given to do. Ops are reused, so that a
// call allocates none and copies little; each book has its own, because a
// channel of one synctest bubble must not turn up in another. The channel holds
// what can be on its way at one time: the lead, the answer, and the answer to a
// cancel.
func (b *Book) op(kind opKind) *op {
	o, _ := b.ops.Get().(*op)
	if o == nil {
		o = &op{done: make(chan signal, 3)}
	}
	o.kind = kind
	return o
}

// do runs one op to its answer, which the caller reads before it gives the op to
// done. ctx ends the wait for room and nothing else: what is in a leader's hands
// comes to its end.
func (b *Book) do(ctx context.Context, o *op) {
	if o.kind == opReserve && o.request.MaxWait > 0 {
		b.post(o)
		b.awaitRoom(ctx, o)
	} else if batch := b.enter(o); batch != nil {
		o.silent = true // its answer is there when lead returns: it waits for nothing but the batch
		b.lead(batch)
	} else {
		for <-o.done == youLead {
			b.lead(b.take())
		}
	}
}

// done lets an op be used again, and returns its error.
func (b *Book) done(o *op) error {
	done, err := o.done, o.err
	*o = op{}
	o.done = done
	b.ops.Put(o)
	return err
}

// awaitRoom waits for the answer to a reserve that may be kept waiting, and
// cancels it when its time or its context ends. The cancel may come too late;
// the reserve is granted then, and the caller has it to close.
func (b *Book) awaitRoom(ctx context.Context, o *op) {
	timer := time.NewTimer(o.request.MaxWait)
	defer timer.Stop()
	timeout, cancelled := timer.C, ctx.Done()
	expected := 1
	hear := func(s signal) {
		if s == youLead {
			b.lead(b.take())
		} else {
			expected--
		}
	}
	for expected > 0 {
		var cause error
		select {
		case s := <-o.done:
			hear(s)
			continue
		case <-timeout:
		case <-cancelled:
			cause = context.Cause(ctx)
		}
		timeout, cancelled = nil, nil
		select {
		case s := <-o.done: // it was there in time, and may be the answer
			hear(s)
		default:
		}
		if expected > 0 {
			expected++
			b.post(&op{kind: opCancel, cancel: o, cause: cause, done: o.done})
		}
	}
}

// enter queues an op. If nobody leads the caller does now, and is given the
// queue.
func (b *Book) enter(o *op) (queue []*op) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, o)
	if b.leading {
		return nil
	}
	b.leading = true
	return b.swap()
}

// maxBatch bounds the calls that are served at once. A batch is held in memory
// as it will be written, and since names are bounded, so is that.
const maxBatch = 4096

// swap takes the queue and leaves an empty one, or the rest of a very long one.
func (b *Book) swap() []*op {
	queue := b.queue
	b.queue, b.spare = b.spare, nil
	if len(queue) > maxBatch {
		b.queue = append(b.queue, queue[maxBatch:]...)
		clear(queue[maxBatch:])
		queue = queue[:maxBatch]
	}
	return queue
}

// take is swap for who was given the lead.
func (b *Book) take() []*op {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.swap()
}

// post queues an op whose answer comes by signal, and leads if nobody does.
func (b *Book) post(o *op) {
	if batch := b.enter(o); batch != nil {
		b.lead(batch)
	}
}

// answer tells the goroutine behind o that its answer is there.
func (o *op) answer() {
	if !o.silent {
		o.done <- answered
	}
}

// lead serves what was the queue, hands over, and tells then what there is to
// tell.
func (b *Book) lead(batch []*op) {
	b.turn(batch)
	b.tellAll()
}

func (b *Book) turn(batch []*op) {
	defer b.handOver(batch)
	b.serve(batch)
}

// handOver gives the lead to the first of the queue. It is deferred: a panic of
// a caller's own function (a Pricer, an Observe, a clock, a log handler) ends the
// book, and must not leave the others waiting.
func (b *Book) handOver(batch []*op) {
	p := recover()
	if p != nil {
		defer panic(p)
	}
	if p != nil || b.inHand != nil { // without a panic the goroutine was ended
		b.abandon()
	}
	clear(batch)
	b.mu.Lock()
	b.spare = batch[:0]
	b.leading = len(b.queue) > 0
	var next *op
	if b.leading {
		next = b.queue[0]
	}
	b.mu.Unlock()
	if next != nil {
		next.done <- youLead
	}
}
