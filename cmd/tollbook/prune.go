package main

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/journal"
)

func newPrune(ui *ui) *cobra.Command {
	var keep string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "prune STATE --keep 14d",
		Short: "Remove old history of a book",
		Long: `Remove whole segments of a book that hold nothing younger than --keep. No balance
changes, since each segment begins with what the ones before add up to; what is
gone is the history: show and replay do not know it any more. The newest two
segments always stay, and nothing is removed while the newest is damaged. What
repairs and openings kept beside segments that are there no more (*.torn,
*.damaged, *.aside) is told and stays, until you remove it. It can run while the book is in use, and on a full disk.`,
		Example: "  tollbook prune requests.state --keep 14d\n  tollbook prune requests.state --keep 0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := keepFrom(keep, time.Now())
			if err != nil {
				return err
			}
			pruned, err := journal.Dir{Path: bookOf(args[0])}.Prune(from)
			if err == nil && pruned.Left == 0 {
				err = errNoSegments
			}
			if len(pruned.Segments) > 0 || err == nil {
				ui.pruned(&pruned, asJSON)
			}
			if err != nil {
				return notBook(args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&keep, "keep", "", "`age` such as 14d or 36h up to which all is kept; 0 keeps the newest two segments")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// keepFrom is the time since which everything is kept. Zero keeps nothing,
// whatever the clocks of former writers said.
func keepFrom(keep string, now time.Time) (time.Time, error) {
	if keep == "" {
		return now, usageError("for example --keep 14d; --keep 0 keeps the newest two segments", "no --keep")
	}
	age, err := time.ParseDuration(keep)
	if days, ok := strings.CutSuffix(keep, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		age = time.Duration(n) * 24 * time.Hour
	}
	switch {
	case err != nil || age < 0:
		return now, usageError("for example --keep 14d or --keep 36h", "--keep %s is no age", quote(keep))
	case age == 0:
		return time.UnixMicro(math.MaxInt64), nil
	}
	return now.Add(-age), nil
}

// pruned prints what is gone.
func (u *ui) pruned(p *journal.Pruned, asJSON bool) {
	if asJSON {
		u.data(struct {
			Removed     []string `json:"removed"`
			Bytes       int64    `json:"bytes"`
			Left        int      `json:"left"`         // segments
			Beside      []string `json:"beside"`       // files that repairs and openings kept, for people to remove
			BesideBytes int64    `json:"beside_bytes"` // of these
		}{append([]string{}, p.Segments...), p.Bytes, p.Left, append([]string{}, p.Beside...), p.BesideBytes})
		return
	}
	for _, name := range p.Segments {
		u.line("removed %s", name)
	}
	u.line("freed %d", p.Bytes)
	u.line("left %d", p.Left)
	if n := len(p.Beside); n > 0 {
		u.say("kept beside the segments: %s, %s, from %s on", count(int64(n), "file"), count(p.BesideBytes, "byte"), p.Beside[0])
		u.hint("repairs and openings kept them for you to look at; remove them when you have")
	}
}
