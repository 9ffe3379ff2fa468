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
	for len(batch) > 0 || b.freed {
		for _, o := range batch {
			b.decide(o)
		}
		b.retest()
		err := b.commit()
		if err == nil {
			b.answer(batch)
			break
		}
		b.rollback()
		if errors.Is(err, journal.ErrConflict) {
			err = b.catchUp()
		}
		batch = b.again(batch, err)
	}
	b.tidy()
}

// answer ends the ops of a batch that is durable.
func (b *Book) answer(batch []*op) {
	for _, o := range batch {
		if o.waitsAt == nil {
			b.end(o)
		}
	}
	b.waiting = slices.DeleteFunc(b.waiting, func(o *op) bool {
		if !o.ready {
			return false
		}
		o.leave()
		b.end(o)
		return true
	})
}

func (b *Book) end(o *op) {
	if o.hold != nil && o.err == nil {
		b.log(o)
	}
	o.answer()
}

// again sorts a batch whose append failed with err (nil: others wrote first).
// Ops that wrote are told; all others are decided once more, for what they
// were decided on never came to be.
func (b *Book) again(batch []*op, err error) []*op {
	var retry []*op
	for _, o := range batch {
		switch {
		case o.waitsAt != nil: // stays in line
		case err != nil && o.wrote:
			b.fail(o, err)
		default:
			retry = append(retry, o)
		}
	}
	b.waiting = slices.DeleteFunc(b.waiting, func(o *op) bool {
		if err != nil && o.ready && o.wrote {
			o.leave()
			b.fail(o, err)
			return true
		}
		o.ready = false
		return false
	})
	b.freed = len(b.waiting) > 0
	return retry
}

// fail tells an op that its entries could not be written. A close that failed
// leaves its hold open in the book, and the book admits nothing more: what was
// really used is no longer in it.
func (b *Book) fail(o *op, err error) {
	if o.kind == opSettle || o.kind == opRefund || o.kind == opClose || errors.Is(err, journal.ErrPoisoned) {
		b.breakDown(err)
	}
	o.hold, o.receipt = nil, Receipt{}
	o.err = fmt.Errorf("budget: %s of %q is not booked: %w", opNames[o.kind], o.rid, err)
	o.answer()
}

// breakDown makes the book refuse every further reserve and extend.
func (b *Book) breakDown(err error) {
	if b.broken == nil {
		b.broken = fmt.Errorf("%w; open it anew: %w", ErrBroken, err)
		b.logger.LogAttrs(b.ctx, slog.LevelError, "book is broken and admits nothing more", slog.Any("error", err))
	}
}

// commit makes the batch durable.
func (b *Book) commit() error {
	if len(b.entries) == 0 {
		return nil
	}
	pos, err := b.journal.Append(b.ctx, b.pos, journal.Batch{ID: b.nextBatch(), Entries: b.entries})
	if err != nil {
		return err
	}
	for i := range b.entries {
		e := &b.entries[i]
		e.Seq = uint64(b.pos) + 1 + uint64(i)
		if e.Kind == journal.Settle || e.Kind == journal.Refund {
			b.closes++
		}
		b.stats.note(e)
		if b.observe != nil {
			b.observe(*e)
		}
		if e.Kind == journal.Limit {
			b.publishLimits()
		}
	}
	b.pos = pos
	b.entries, b.undos = b.entries[:0], b.undos[:0]
	return nil
}

func (b *Book) rollback() {
	b.unapply(0)
	b.entries = b.entries[:0]
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
	for e, err := range b.journal.Entries(b.ctx, b.pos) {
		if err == nil {
			err = b.ledger.apply(&e, new(undo))
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
	b.freed = true
	return nil
}
