package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func newShow(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show STATE RID",
		Short: "Show the life of one reservation",
		Long: `Show every entry of one reservation, in order, from all segments that are kept.
In place of RID the custom_id of an item does, and shows all its reservations.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, name := bookOf(args[0]), args[1]
			lives, err := findLives(journal.Dir{Path: dir}, name)
			if err != nil {
				return notBook(args[0], err)
			}
			if len(lives) == 0 {
				return fmt.Errorf("no reservation %s, and none for an item of that name, in %s", quote(name), dir)
			}
			return ui.show(lives, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// life is what the book knows of one reservation.
type life struct {
	rid     string
	entries []journal.Entry
}

// state is the state that the last entry leaves.
func (l *life) state() string {
	switch last := l.entries[len(l.entries)-1]; last.Kind {
	case journal.Settle, journal.Reclaim, journal.Adjust:
		return "settled"
	case journal.Refund:
		return "refunded"
	case journal.Carry:
		return last.Past.State
	}
	return "open"
}

// findLives collects the entries of the reservations whose rid or key is name.
// What a later segment repeats counts only where its original is gone.
func findLives(dir journal.Dir, name string) ([]life, error) {
	var lives []life
	last := error(errNoSegments)
	at := map[string]int{}
	for e, err := range dir.History() {
		if last = err; err != nil {
			break
		}
		if e.Kind == journal.Reserve && !e.Carried { // be it of a rid that is used again
			delete(at, e.RID)
		}
		i, known := at[e.RID]
		switch {
		case e.Kind == journal.Carry && e.Past == nil:
			return nil, fmt.Errorf("%w: carry line %d of %s names no state", budget.ErrDamaged, e.Seq, quote(e.RID))
		case e.RID == "" || known && e.Carried:
			continue
		case !known && e.RID != name && (e.Key == "" || e.Key != name):
			continue
		case !known:
			i = len(lives)
			at[e.RID] = i
			lives = append(lives, life{rid: e.RID})
		}
		lives[i].entries = append(lives[i].entries, e)
	}
	return lives, last
}
