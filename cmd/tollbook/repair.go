package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func newRepair(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "repair STATE",
		Short: "Make a damaged book usable again, and say what is lost",
		Long: `Make a damaged book one that can be run on, and say what of it is lost. What is
good before and behind damage in the newest segment is kept; damaged or missing
older segments end the history there, and no balance changes. No byte is deleted:
originals stay beside as *.jsonl.damaged, good segments that are no longer part
of the book as *.jsonl.aside.

What was lost can have raised or lowered the net and the limits: compare them with
the provider's own report. "missing" are the tokens of undamaged lines that could
not be kept; damaged lines are not counted, only shown. A book that is in order is not changed. What cannot be repaired exits 5.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			repaired, err := budget.Repair(bookOf(args[0]), journal.FileOptions{})
			if err != nil && repaired.Changed() {
				ui.repaired(&repaired, unwitnessed{}, asJSON)
			}
			switch {
			case errors.Is(err, journal.ErrCorrupt):
				return &exitError{Code: exitBroken, Err: err, Hint: "put the right file back, or restore the book from a copy; tollbook replay adds up what of a single segment can be read"}
			case errors.Is(err, journal.ErrIrreparable):
				return notBook(args[0], errNoSegments)
			case errors.Is(err, journal.ErrFull):
				return &exitError{Code: exitFailed, Err: err, Hint: "free up space and run the same command again; no byte of the book is gone"}
			case err != nil:
				return notBook(args[0], openError(args[0], err))
			}
			lost, err := resign(args[0])
			ui.repaired(&repaired, lost, asJSON)
			if err != nil {
				return err
			}
			bytes, entries, err := verifyBook(journal.Dir{Path: bookOf(args[0])})
			if err != nil {
				return notBook(args[0], err)
			}
			if bytes.Damaged() || len(entries.Violations) > 0 {
				return &exitError{Code: exitBroken, Err: errors.New("the book still is not in order"), Hint: "tollbook verify tells what it is"}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// repairHint says what to do about a damaged book.
func repairHint(state string) string {
	return fmt.Sprintf("nothing was changed; tollbook verify %s tells all that is damaged, tollbook repair %s mends it and says what is lost", state, state)
}

// unwitnessed is what run.json saw and the book does not hold now.
type unwitnessed struct {
	Confirmed int64  // tokens
	Entries   uint64 // at the end
}

// resign lets run.json, if there is one, bear witness to what the book holds
// now, and returns what it saw that is gone.
func resign(state string) (gone unwitnessed, err error) {
	p, err := readPin(state)
	if p == nil || err != nil {
		return gone, err
	}
	report, err := foldBook(state)
	if err != nil {
		return gone, err
	}
	if report.Book != p.Book {
		return gone, p.witness(state, &report)
	}
	gone.Confirmed = max(0, p.Confirmed-report.Tokens.Confirmed)
	gone.Entries = p.Seq - min(p.Seq, report.Seq)
	if gone == (unwitnessed{}) {
		return gone, nil
	}
	return gone, p.sign(state, &report)
}

// repaired prints what was done and what is lost.
func (u *ui) repaired(r *budget.Repaired, gone unwitnessed, asJSON bool) {
	if r.Segment != "" {
		gone.Entries = 0 // those that are left have other numbers, and the lost were told
	}
	lossy := !r.Harmless() || gone != (unwitnessed{})
	switch {
	case asJSON:
		u.data(toRepairJSON(r, gone))
	case !r.Changed() && !lossy:
		u.line("nothing to repair")
	default:
		u.repairLines(r, gone, lossy)
	}
	if len(r.Aside) > 0 {
		u.say("replay and show no longer know what was set aside; no balance changed by that")
	}
	if gone.Confirmed > 0 {
		u.say("run.json had seen %s more than the book holds now", count(gone.Confirmed, "confirmed token"))
	}
	if gone.Entries > 0 {
		u.say("the book ends %s before where run.json had seen it end", count(int64(gone.Entries), "position"))
	}
	if lossy {
		u.say("what was lost can have raised or lowered the net, the confirmed tokens and the limits%s", silentText(r))
		u.hint("compare the book with the provider's usage report, which is the judge; calls whose close was lost are charged what they held")
	}
}

// repairLines is the same for people.
func (u *ui) repairLines(r *budget.Repaired, gone unwitnessed, lossy bool) {
	if r.Segment != "" {
		u.line("damaged %s: line %d (byte %d): %s", r.Segment, r.Damage.Line, r.Damage.Offset, r.Damage.Reason)
		if r.Begun != "" {
			u.line("begun anew from %s", r.Begun)
		}
		u.line("kept %d", r.Kept)
		u.line("moved %d", r.Moved)
		for _, l := range r.Lost {
			u.line("%s", lossText(&l))
		}
		u.line("original %s", r.Original)
	}
	for _, l := range r.Raised {
		u.line("limit %s", raisedText(l))
	}
	for _, a := range r.Aside {
		why := ""
		if a.Reason != "" {
			why = ": " + a.Reason
		}
		u.line("aside %s as %s%s", a.Name, a.Now, why)
	}
	if gone.Confirmed > 0 {
		u.line("gone %d", gone.Confirmed)
	}
	if gone.Entries > 0 {
		u.line("cut %d", gone.Entries)
	}
	if lossy {
		u.line("missing %d", r.Missing)
	}
}

// raisedText is such a limit in one line.
func raisedText(l budget.Limit) string {
	scope := ""
	if l.Scope != "" {
		scope = " on " + l.Scope
	}
	return amountText(l.Unit, l.Max) + scope + ": it must have been raised to at least that by what was lost; set it anew"
}

// lossText is a loss in one line.
func lossText(l *journal.Lost) string {
	what := "bytes that were no entry"
	switch {
	case l.First == 0 && l.Whole:
		what = "a line that comes again, or too late"
	case l.Harmless():
	case l.First == 0:
		what = "maybe more behind its last line"
	case l.Last == 0:
		what = fmt.Sprintf("entry %d and maybe more", l.First)
	case l.First == l.Last:
		what = fmt.Sprintf("entry %d", l.First)
	default:
		what = fmt.Sprintf("entries %d to %d", l.First, l.Last)
	}
	var says []string
	for _, e := range l.Entries {
		if e.RID == "" { // a limit
			says = append(says, e.Kind.String())
			continue
		}
		says = append(says, fmt.Sprintf("%s of %s, %s tokens", e.Kind, quote(e.RID), group(e.Amount)))
	}
	text := "lost " + what
	if l.Whole {
		text = "left out " + what
	}
	if l.Bytes > 0 {
		text += fmt.Sprintf(" (byte %d, %d bytes)", l.Offset, l.Bytes)
	}
	text += ": " + l.Reason
	if says == nil {
		return text
	}
	if l.Whole {
		return text + "; it says " + says[0]
	}
	return text + "; it seems to say " + strings.Join(says, " and ")
}

// silentText is how much nobody knows of what was lost.
func silentText(r *budget.Repaired) (text string) {
	if r.Silent > 0 {
		text = fmt.Sprintf("; nothing can be read of %s", count(int64(r.Silent), "lost line"))
	}
	if r.Endless {
		text += "; how much was lost at the end cannot be said"
	}
	return text
}

// repairJSON is what repair --json prints.
type repairJSON struct {
	Segment  string      `json:"segment"` // the newest, if it was damaged
	Line     int64       `json:"line"`
	Offset   int64       `json:"offset"`
	Reason   string      `json:"reason"`
	Original string      `json:"original"`
	Begun    string      `json:"begun"`
	Kept     int64       `json:"kept"`
	Moved    int64       `json:"moved"`
	Lost     []lostJSON  `json:"lost"`
	Raised   []raiseJSON `json:"raised"` // limits that must have been raised by what was lost
	Aside    []asideJSON `json:"aside"`
	Missing  int64       `json:"missing"` // tokens, of undamaged lines that could not be kept
	Silent   uint64      `json:"silent"`  // lost entries of which nothing can be read
	Endless  bool        `json:"endless"` // and maybe more of them at the end
	Gone     int64       `json:"gone"`    // confirmed tokens that run.json saw and the book does not hold
	Cut      uint64      `json:"cut"`     // entries that run.json saw behind the last that is left; 0 if the newest segment was made anew
}

type lostJSON struct {
	First   uint64      `json:"first"`
	Last    uint64      `json:"last"`
	Offset  int64       `json:"offset"`
	Bytes   int64       `json:"bytes"`
	Reason  string      `json:"reason"`
	Whole   bool        `json:"whole"`
	Entries []entryJSON `json:"entries"`
}

type entryJSON struct {
	Ev     string `json:"ev"`
	RID    string `json:"rid"`
	Amount int64  `json:"amount"`
}

type raiseJSON struct {
	Scope string `json:"scope"`
	Unit  string `json:"unit"`
	Max   int64  `json:"max"`
}

type asideJSON struct {
	Segment string `json:"segment"`
	Now     string `json:"now"`
	Reason  string `json:"reason"`
}

func toRepairJSON(r *budget.Repaired, gone unwitnessed) repairJSON {
	v := repairJSON{Segment: r.Segment, Original: r.Original, Begun: r.Begun, Kept: r.Kept, Moved: r.Moved,
		Lost: []lostJSON{}, Raised: []raiseJSON{}, Aside: []asideJSON{}, Missing: r.Missing, Gone: gone.Confirmed, Cut: gone.Entries, Silent: r.Silent, Endless: r.Endless}
	if r.Damage != nil {
		v.Line, v.Offset, v.Reason = r.Damage.Line, r.Damage.Offset, r.Damage.Reason
	}
	for _, l := range r.Lost {
		j := lostJSON{First: l.First, Last: l.Last, Offset: l.Offset, Bytes: l.Bytes, Reason: l.Reason, Whole: l.Whole, Entries: []entryJSON{}}
		for _, e := range l.Entries {
			j.Entries = append(j.Entries, entryJSON{e.Kind.String(), e.RID, e.Amount})
		}
		v.Lost = append(v.Lost, j)
	}
	for _, l := range r.Raised {
		v.Raised = append(v.Raised, raiseJSON{l.Scope, l.Unit.String(), l.Max})
	}
	for _, a := range r.Aside {
		v.Aside = append(v.Aside, asideJSON{a.Name, a.Now, a.Reason})
	}
	return v
}
