package main

import (
	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func newVerify(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify STATE",
		Short: "Check every byte of a book",
		Long: `Check every byte of every segment that a book keeps: checksums, chain, numbers
and seals, and that the entries make sense together, also what each segment
carries over from the ones before. It changes nothing and can run while the book
is in use. Damage or any violation exits 5.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := journal.Dir{Path: bookOf(args[0])}
			pin, pinErr := readPin(args[0])
			bytes, entries, err := verifyBook(dir)
			if err != nil {
				return notBook(args[0], err)
			}
			if bytes.Segments == 0 {
				return notBook(args[0], errNoSegments)
			}
			var lost error
			if report := entries.Report(); !bytes.Damaged() {
				lost = pin.witness(args[0], &report)
			}
			ui.verify(&bytes, entries, lost, asJSON)
			if bytes.Damaged() {
				return &exitError{Code: exitBroken, Hint: mendHint(args[0])}
			}
			if len(entries.Violations) > 0 || lost != nil {
				return &exitError{Code: exitBroken, Hint: hintOf(lost)}
			}
			return pinErr
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// verifyBook checks bytes and entries in one reading.
func verifyBook(dir journal.Dir) (bytes journal.Audit, entries *budget.Audit, err error) {
	bytes, err = dir.VerifyEntries(func() func([]journal.Entry) {
		entries = budget.NewAudit()
		return entries.AddAll
	})
	return bytes, entries, err
}
