package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tollbook/tollbook/budget"
)

// alter opens the book of a state that nobody runs, lets do change it, and has
// run.json bear witness to where it ends now. Reservations that were left open
// stay so: whether they were billed is for their run to say.
func (u *ui) alter(ctx context.Context, state string, do func(*budget.Book) error, options ...budget.Option) (err error) {
	if _, err := foldBook(state); err != nil { // opening makes a book where there is none
		return err
	}
	if _, err := checkBook(state); err != nil {
		return err
	}
	book, err := budget.Open(ctx, bookOf(state), append(options, budget.OnOrphan(budget.OrphanKeep), budget.SoftLimits(u.softLimit))...)
	if err != nil {
		return openError(state, err)
	}
	defer func() {
		if closeErr := book.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("closing the book: %w", closeErr))
		}
	}()
	report := book.Report()
	u.mended(&report)
	pin, err := readPin(state)
	if err == nil { // another process may have been quicker
		err = pin.witness(state, &report)
	}
	if err != nil {
		return err
	}
	if err := do(book); err != nil || pin == nil {
		return err
	}
	report = book.Report()
	return pin.sign(state, &report)
}
