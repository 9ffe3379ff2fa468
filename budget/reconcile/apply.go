package reconcile

import (
	"context"
	"fmt"
	"sync"

	"github.com/tollbook/tollbook/budget"
)

// Applied is what an [Apply] booked.
type Applied struct {
	Calls    int64 // reservations that were corrected
	Released int64 // tokens that no longer count against limits; negative for an overrun
	Unpriced int64 // of these calls, those whose money stays assumed: the book knows no price
}

// Apply books the adjustments of a result: in each row that is not blocked, the
// assumed figures are replaced by what the bill leaves for them. Afterwards the
// bill of such a row is what the book has confirmed, and its net.
//
// The result must be of this book, and no call of its rows may be changed
// between the comparison and here; a late settle of one is a [budget.ErrClosed]
// or [budget.ErrInvalid], a call past the horizon [budget.ErrUnknown]. After an
// error, or a crash, a part is booked: compare again and apply that result, and
// the rest gets the figures it would have got. To apply one again that is
// applied changes nothing.
func Apply(ctx context.Context, book *budget.Book, r Result) (Applied, error) {
	if id := book.Report().Book; id != r.Book {
		return Applied{}, fmt.Errorf("%w: the comparison is of book %s, and this is %s", budget.ErrConflict, r.Book, id)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan Adjustment)
	var all Applied
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range min(64, r.adjustments()) { // at a time, so that many share a write
		workers.Go(func() {
			for a := range work {
				one, err := a.apply(ctx, book)
				if err != nil {
					cancel(err)
				}
				mu.Lock()
				all.Calls, all.Released, all.Unpriced = all.Calls+one.Calls, all.Released+one.Released, all.Unpriced+one.Unpriced
				mu.Unlock()
			}
		})
	}
	r.send(ctx, work)
	close(work)
	workers.Wait()
	return all, context.Cause(ctx)
}

func (r *Result) adjustments() (n int) {
	for i := range r.Rows {
		n += len(r.Rows[i].Adjustments)
	}
	return n
}

// send gives out the adjustments until ctx ends.
func (r *Result) send(ctx context.Context, work chan<- Adjustment) {
	for i := range r.Rows {
		for _, a := range r.Rows[i].Adjustments {
			if ctx.Err() != nil {
				return
			}
			select {
			case work <- a:
			case <-ctx.Done():
			}
		}
	}
}

func (a *Adjustment) apply(ctx context.Context, book *budget.Book) (one Applied, err error) {
	reservation := book.Reservation(a.RID)
	before, err := reservation.Receipt(ctx)
	if err != nil {
		return one, fmt.Errorf("reconcile: %w", err)
	}
	after, err := reservation.Adjust(ctx, a.Evidence)
	if err != nil {
		return one, fmt.Errorf("reconcile: %w", err)
	}
	if !after.Booked {
		return one, nil
	}
	one.Calls, one.Released = 1, before.Confirmed+before.Assumed-after.Confirmed-after.Assumed
	if after.AssumedCost > 0 {
		one.Unpriced = 1
	}
	return one, nil
}
