package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func newReplay(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay PATH...",
		Short: "Add up a ledger from its lines and check it",
		Long: `Add up ledgers, one after another, and check that every reservation was opened
once and closed at most once. Any JSON Lines file whose lines have "ev", "rid"
and "amount" will do, also one that tollbook did not write. A file is folded as
it stands, a state directory or its book/ with its whole retained history, and
"-" reads stdin. Any violation exits 5.`,
		Example: "  tollbook replay requests.state\n  tollbook replay ledger.jsonl\n  ssh host cat ledger.jsonl | tollbook replay -",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			fold := ledgerFold{audit: budget.NewAudit()}
			for _, path := range paths {
				if err := fold.path(path, cmd.InOrStdin()); err != nil {
					return err
				}
			}
			for _, note := range fold.notes {
				ui.say("%s", note)
			}
			ui.replay(&fold, asJSON)
			if fold.found > 0 {
				return &exitError{Code: exitBroken, Hint: fold.hint}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// ledgerFold adds up ledgers.
type ledgerFold struct {
	audit      *budget.Audit
	found      int64    // violations, and damage that is one
	violations []string // the first of them
	notes      []string // what is worth a word and no violation
	hint       string
}

// maxViolations is how many are kept: a file that is no ledger at all has one
// a line.
const maxViolations = 1000

func (f *ledgerFold) violation(format string, args ...any) {
	if f.found++; f.found <= maxViolations {
		f.violations = append(f.violations, fmt.Sprintf(format, args...))
	}
}

// add folds entries of the named ledger.
func (f *ledgerFold) add(name string, entries []journal.Entry) {
	f.audit.AddAll(entries)
	for _, v := range f.audit.Violations {
		f.violation("%s: %s", name, v)
	}
	f.audit.Violations = nil
}

// path folds one argument of replay.
func (f *ledgerFold) path(path string, stdin io.Reader) error {
	if path == "-" {
		return f.lines("stdin", stdin)
	}
	stat, err := os.Stat(path)
	if err != nil {
		return usageError("", "%w", err)
	}
	if stat.IsDir() {
		return f.book(path)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return f.lines(path, file)
}

// lines folds a ledger as it stands. A last line that is neither whole nor
// ended was being written, or its writer was killed: it is no fact yet. Where
// it is all there is, the file is something else.
func (f *ledgerFold) lines(name string, r io.Reader) error {
	counted := false
	for batch, err := range journal.ReadLedgerBatches(name, r) {
		bad, _ := errors.AsType[*journal.CorruptError](err)
		switch {
		case err == nil:
			counted = true
			f.audit.Line = batch.First - 1
			f.add(name, batch.Entries)
		case bad == nil:
			return err
		case bad.Unfinished && counted:
			f.notes = append(f.notes, fmt.Sprintf("%s: line %d is unfinished and not counted", name, bad.Line))
		default:
			f.violation("%s: line %d: %s", name, bad.Line, bad.Reason)
		}
	}
	return nil
}

// book folds all segments that a book keeps. It ends at damage, since what
// stands behind it cannot be trusted.
func (f *ledgerFold) book(state string) error {
	empty := true
	for entries, err := range (journal.Dir{Path: bookOf(state)}).HistoryBatches() {
		empty = false
		switch {
		case errors.Is(err, journal.ErrCorrupt):
			f.violation("%s", err)
			f.hint = mendHint(state)
			return nil
		case err != nil:
			return notBook(state, err)
		}
		f.add(state, entries)
	}
	if empty {
		return notBook(state, errNoSegments)
	}
	return nil
}

var errNoSegments = errors.New("there are no segments")

// notBook says what to give, where a directory holds no book. One that was the
// state of a run has lost it.
func notBook(state string, err error) error {
	switch stat, statErr := os.Stat(state); {
	case statErr == nil && !stat.IsDir():
		err = errors.New("it is a file")
	case errors.Is(err, journal.ErrCorrupt):
		return &exitError{Code: exitBroken, Err: err, Hint: repairHint(state)}
	case errors.Is(err, syscall.EISDIR):
		return &exitError{Code: exitBroken, Err: err, Hint: "a directory stands in the place of a file of the book"}
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoSegments):
		return err
	default:
		if p, _ := readPin(state); p != nil {
			return p.witness(state, &budget.Report{})
		}
	}
	return usageError("give the directory that tollbook run --state names, such as requests.state", "%s holds no book: %w", cmp.Or(state, `""`), err)
}

// bookOf is the directory of a state's book; a book's own directory is itself.
func bookOf(state string) string {
	if book := filepath.Join(state, "book"); isDir(book) {
		return book
	}
	return state
}

func isDir(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.IsDir()
}

// jsonFlag gives a reading command its --json.
func jsonFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "json", false, "print JSON on stdout")
}
