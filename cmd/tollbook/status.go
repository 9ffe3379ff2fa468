package main

import (
	"errors"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
)

func newStatus(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status STATE",
		Short: "Show what is spent, held and free, and how far the shards are",
		Long: `Show the limits of a state directory, what is spent, held and free, the open
reservations and how far the shards are. It only reads, also while a run is on:
then cursors may lag a second behind.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pin, pinErr := readPin(args[0])
			report, err := foldBook(args[0])
			if err != nil {
				return err
			}
			shards, err := checkpoint.Inspect(nil, args[0])
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			low, err := journal.Dir{Path: bookOf(args[0])}.Low()
			if err != nil {
				return err
			}
			ui.status(&report, shards, low, asJSON)
			return errors.Join(pinErr, pin.witness(args[0], &report))
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// foldBook is the balance of a state's book, without opening it.
func foldBook(state string) (budget.Report, error) {
	report, err := budget.Fold(journal.Dir{Path: bookOf(state)}.Newest())
	if err == nil && report.Book == "" {
		err = errNoSegments
	}
	if err != nil {
		return report, notBook(state, err)
	}
	return report, nil
}
