package budget

import (
	"cmp"
	"errors"

	"github.com/tollbook/tollbook/journal"
)

// The waiting line: reserves that fit their limits but for open holds. It is
// served first come first served: who came later never passes on an account
// where an earlier one waits, so a large one is not starved by small ones.
// Extends do not queue, or open calls could wait for each other.

// wait puts a reserve into the line, or tells one in line what is full now.
func (b *Book) wait(o *op, full *account, refusal error) {
	if o.waitsAt == nil {
		b.waiting = append(b.waiting, o)
	} else {
		o.waitsAt.waiters--
	}
	o.waitsAt, o.refusal = full, refusal
	full.waiters++
	full.pass = b.pass
}

// leave takes an op out of the count of those who wait; the caller takes it
// out of the line.
func (o *op) leave() {
	o.waitsAt.waiters--
	o.waitsAt, o.ready = nil, false
}

// crowded returns the account on the path of a where somebody waits, if any.
func (a *account) crowded() *account {
	for _, at := range a.path {
		if at.waiters > 0 {
			return at
		}
	}
	return nil
}

// behind is the refusal of a reserve that others wait before.
func (a *account) behind(ask journal.Change) *ExhaustedError {
	u := TokenUnit
	for u < RequestUnit && !a.caps[u].set {
		u++
	}
	net := u.of(a.sum)
	return &ExhaustedError{Scope: a.scope, Kind: u, Asked: u.of(ask), Limit: a.caps[u].max, Net: net, Held: net - u.spent(a.sum), Busy: true}
}

// retest tries the line again after something was freed. An op that finds an
// answer is ready, and leaves the line when the batch is durable.
func (b *Book) retest() {
	if !b.freed {
		return
	}
	b.freed = false
	b.pass++
	for _, o := range b.waiting {
		if len(b.entries) >= maxBatch {
			b.freed = true // the rest is for the next batch
			return
		}
		if o.ready || b.fullInPass(o) && !b.hopeless(o) {
			continue
		}
		b.decide(o)
		o.ready = !errors.Is(o.err, ErrBusy)
	}
}

// fullInPass reports whether an earlier one still waits on o's path.
func (b *Book) fullInPass(o *op) bool {
	for _, at := range b.ledger.nearest(o.request.Scope).path {
		if at.pass == b.pass {
			return true
		}
	}
	return false
}

// hopeless reports whether waiting cannot help o any more.
func (b *Book) hopeless(o *op) bool {
	refused := admit(b.ledger.nearest(o.request.Scope), b.least(o), nil)
	return b.admitting() != nil || refused != nil && !refused.Busy
}

// cancel ends a reserve that still waits: with the cause it is given, else as
// it was refused last.
func (b *Book) cancel(o *op) {
	w := o.cancel
	if w.waitsAt == nil || w.ready {
		return
	}
	w.err = cmp.Or(o.cause, w.refusal)
	w.ready, b.freed = true, true
}
