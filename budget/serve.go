package budget

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/tollbook/tollbook/journal"
)

// All of this runs in the leader only, which therefore needs no lock.

// serve brings every op of a batch to its answer, or into the waiting line.
func (b *Book) serve(batch []*op) {
	for b.inHand = batch; len(b.inHand) > 0 || b.freed; {
		b.time = b.now()
		b.checkSpace()
		for _, o := range b.inHand {
			b.decide(o)
		}
		b.retest()
		err := b.commit()
		if err == nil {
			b.answer()
			break
		}
		b.rollback()
		if errors.Is(err, journal.ErrConflict) {
			err = b.catchUp()
		}
		b.again(err)
	}
	b.inHand = nil
	b.tidy()
	if len(b.waiting) > 0 {
		b.checkSpace()
	}
	if b.freed && len(b.waiting) > 0 { // the book broke, or the disk is full: those who wait are told
		b.serve(nil)
		return
	}
	b.tellSpace()
	b.mourn()
}

// answer ends the ops of a batch that is durable. What there is to log of them
// is logged when all have their answers.
func (b *Book) answer() {
	for i, o := range b.inHand {
		if o.waitsAt == nil {
			b.end(o)
		}
		b.inHand[i] = nil
	}
	if len(b.waiting) > 0 {
		b.waiting = slices.DeleteFunc(b.waiting, func(o *op) bool {
			if !o.ready {
				return false
			}
			o.leave()
			b.end(o)
			return true
		})
	}
	closed := b.toLog
	b.toLog = closed[:0] // first: a log handler may panic
	for _, c := range closed {
		b.log(c)
	}
}

func (b *Book) end(o *op) {
	if b.worthLogging(o) {
		b.toLog = append(b.toLog, closedOp{o.kind, o.receipt})
	}
	o.answer()
}

// again sorts a batch whose append failed with err (nil: others wrote first).
// Ops that wrote are told; all others are decided once more, for what they were
// decided on never came to be.
func (b *Book) again(err error) {
	b.inHand = slices.DeleteFunc(b.inHand, func(o *op) bool {
		if err != nil && o.wrote && o.waitsAt == nil {
			b.fail(o, err)
			return true
		}
		return o.waitsAt != nil // stays in line
	})
	b.waiting = slices.DeleteFunc(b.waiting, func(o *op) bool {
		if err != nil && o.ready && o.wrote {
			o.leave()
			b.fail(o, err)
			return true
		}
		o.ready, o.wrote, o.got, o.err = false, false, nil, o.refusal
		return false
	})
	b.freed = len(b.waiting) > 0
}

// abandon ends the book after a panic in the leader: how far it came is not
// known, so nothing more is written, and everybody in hand is told.
func (b *Book) abandon() {
	b.rollback()
	b.breakDown(errPanicked)
	b.finished, b.mourned = true, true // the panic tells itself
	tell := func(o *op) {
		o.got, o.receipt = nil, Receipt{}
		o.err = fmt.Errorf("budget: %s of %q may not be booked: %w", opNames[o.kind], o.rid, b.broken)
		o.answer()
	}
	for _, o := range b.inHand {
		if o != nil && o.waitsAt == nil {
			tell(o)
		}
	}
	for _, o := range b.waiting {
		o.leave()
		tell(o)
	}
	b.inHand, b.waiting = nil, nil
}

var errPanicked = errors.New("a function given to the book panicked")

// fail tells an op that its entries could not be written. A close that failed
// leaves its hold open in the book, and the book admits nothing more: what was
// really used is no longer in it.
func (b *Book) fail(o *op, err error) {
	if o.kind == opSettle || o.kind == opRefund || o.kind == opClose || errors.Is(err, journal.ErrPoisoned) {
		b.breakDown(err)
	}
	o.got, o.receipt = nil, Receipt{}
	o.err = fmt.Errorf("budget: %s of %q is not booked: %w", opNames[o.kind], o.rid, err)
	o.answer()
}

// breakDown makes the book refuse every further reserve and extend.
func (b *Book) breakDown(err error) {
	if b.broken == nil {
		b.broken, b.freed = fmt.Errorf("%w; open it anew: %w", ErrBroken, err), true
	}
}

// mourn logs that the book broke, once, when everybody has an answer: a log
// handler is the caller's, and may panic.
func (b *Book) mourn() {
	if b.broken != nil && !b.mourned {
		b.mourned = true
		b.logger.LogAttrs(b.ctx, slog.LevelError, "book is broken and admits nothing more", slog.Any("error", b.broken))
	}
}

// commit makes the batch durable.
func (b *Book) commit() error {
	if err := b.tellSoft(); err != nil {
		return err
	}
	if len(b.entries) == 0 {
		b.ledger.rest()
		return nil
	}
	pos, err := b.journal.Append(b.ctx, b.pos, journal.Batch{ID: b.batchID, Entries: b.entries})
	b.nextBatch()
	if err != nil {
		return err
	}
	written := b.entries
	for i := range written {
		written[i].Seq = uint64(b.pos) + 1 + uint64(i)
	}
	b.pos, b.undos, b.entries = pos, b.undos[:0], b.entries[:0]
	b.ledger.rest()
	if len(b.news) > 0 {
		b.untold.add(b.news)
		b.news = b.news[:0]
	}
	for i := range written {
		if written[i].Kind == journal.Limit {
			b.publishLimits()
		}
		if b.observe != nil {
			b.observe(written[i])
		}
	}
	return nil
}

func (b *Book) rollback() {
	b.unapply(0)
	b.ledger.rest()
	b.entries, b.news = b.entries[:0], b.news[:0]
}

func (b *Book) unapply(to int) {
	for i := len(b.undos) - 1; i >= to; i-- {
		b.ledger.undo(&b.undos[i])
	}
	b.undos = b.undos[:to]
}

// catchUp folds what others appended to a shared journal.
func (b *Book) catchUp() error {
	from := b.pos
	b.ledger.guarded = false
	defer func() { b.ledger.guarded = true }()
	for e, err := range b.journal.Entries(b.ctx, b.pos) {
		if err == nil && (e.Carried || e.Kind == journal.Open) {
			err = b.rotatedByAnother(&e)
		}
		if err == nil {
			err = b.ledger.fold(&e)
		}
		if err != nil {
			b.breakDown(err)
			return err
		}
		b.pos = journal.Pos(e.Seq)
	}
	if b.pos == from {
		err := fmt.Errorf("budget: the journal reports a conflict at %d, and nothing new: %w", from, journal.ErrConflict)
		b.breakDown(err)
		return err
	}
	b.publishLimits()
	b.freed, b.unwatched = true, true
	return nil
}

// rotatedByAnother reads a line that a segment of another writer begins with.
// Its limits hold from here on; all else must be known already, or entries
// before it are gone unread.
func (b *Book) rotatedByAnother(e *journal.Entry) error {
	if err := errors.Join(b.ledger.contradictions(e)...); err != nil {
		return fmt.Errorf("%w: the journal was rotated by another writer, and entries before it are gone unread: %w", ErrDamaged, err)
	}
	switch e.Kind {
	case journal.Open:
		for _, a := range b.ledger.accounts {
			a.caps = [RequestUnit + 1]capacity{}
		}
	case journal.Limit:
		return b.ledger.limit(e, new(undo))
	}
	return nil
}
