package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func newLimit(ui *ui) *cobra.Command {
	var scope string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "limit STATE AMOUNT",
		Short: "Change a cap of a book",
		Long: `Set, change or lift a cap of a book: 2M caps tokens, 12.50usd money, unlimited
lifts the cap on tokens, unlimitedusd that on money. A cap below what is in use refuses the next call and harms
nothing else. The same again changes nothing.

It is for a book that nobody holds. A later run without --budget goes on under the
caps that stand in the book; --budget, where given, goes before the cap of its unit
on the whole book.`,
		Example: `  tollbook limit requests.state 2M
  tollbook limit requests.state 12.50usd --scope shard-3`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			limit, err := parseLimit(args[1])
			if err == nil {
				limit = limit.On(scope)
				err = limit.Check()
			}
			if err != nil {
				return usageError("", "%w", err)
			}
			var before, after []budget.Limit
			var report budget.Report
			err = ui.alter(cmd.Context(), args[0], func(b *budget.Book) error {
				before = b.Limits()
				if err := b.SetLimit(cmd.Context(), limit); err != nil {
					return err
				}
				after, report = b.Limits(), b.Report()
				return nil
			})
			switch {
			case errors.Is(err, journal.ErrLocked):
				return &exitError{Code: exitFailed, Err: err, Hint: "one process at a time has a book, and a cap of a run that is on cannot be changed yet: interrupt it and run it again with another --budget; no finished item is sent again"}
			case err != nil:
				return err
			}
			ui.limits(&report, !slices.Equal(before, after), asJSON)
			return nil
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "`path` that the cap is for, such as shard-3 (default: the whole book)")
	jsonFlag(cmd, &asJSON)
	return cmd
}
