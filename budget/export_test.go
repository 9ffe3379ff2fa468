package budget

import (
	"context"
	"errors"
	"fmt"

	"github.com/tollbook/tollbook/journal"
)

// OpenFile is Open for any disk and segments of any size, with what is put between
// book and journal, if anything.
func OpenFile(ctx context.Context, dir string, o journal.FileOptions, between func(*journal.File) Journal, opts ...Option) (*Book, error) {
	b, err := newBook(ctx, opts)
	if err != nil {
		return nil, err
	}
	o.Visit = b.ledger.foldAll
	f, err := journal.OpenFile(dir, o)
	if err != nil {
		return nil, err
	}
	j := Journal(f)
	if between != nil {
		j = between(f)
	}
	if err := b.start(j); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return b, nil
}

// Inconsistent says what about the places of a book's reservations cannot be
// between two batches, or nil.
func Inconsistent(b *Book) error {
	var err error
	o := b.op(opRead)
	o.read = func(l *ledger) { err = l.inconsistent() }
	b.do(b.ctx, o)
	b.done(o)
	return err
}

func (l *ledger) inconsistent() error {
	open, closed := 0, 0
	for h := l.open.next; h != &l.open; h = h.next {
		if open++; l.find(h.rid) != h || h.state != StateOpen || l.holds[h.at.index()] != h {
			return fmt.Errorf("open reservation %q is not in its place", h.rid)
		}
	}
	for i := range l.closed.blocks {
		b, kept, plain := &l.closed.blocks[i], 0, 0
		var bad error
		l.closed.each(i, l.numbered, func(r ref, h *life) {
			closed++
			_, size := l.closed.get(r, l.numbered)
			if kept += size; h.plain() {
				plain += size
			}
			if found := l.find(h.rid); found == nil || found.at != r || found.opened != h.opened || found.state == StateOpen {
				bad = fmt.Errorf("closed reservation %q is not found", h.rid)
			}
		})
		if gone := len(b.bytes) - kept; bad != nil || gone != b.gone || plain != b.plain {
			return fmt.Errorf("block %d has %d bytes gone and %d plain, and says %d, %d: %v", i, gone, plain, b.gone, b.plain, bad)
		}
	}
	if open+closed != l.rids.count || int64(open) != l.root.open || len(l.holds) != open+len(l.idle) || len(l.touched) > 0 {
		return fmt.Errorf("%d open (%d by the root), %d closed, %d known; %d holds, %d idle, %d touched", open, l.root.open, closed, l.rids.count, len(l.holds), len(l.idle), len(l.touched))
	}
	for _, r := range l.idle {
		if h := l.holds[r.index()]; h != nil && (h.state != 0 || h.at != r) {
			return fmt.Errorf("the idle hold %d is in use by %q", r.index(), h.rid)
		}
	}
	return nil
}
