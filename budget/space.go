package budget

import (
	"fmt"
	"log/slog"
)

// space is what the book knows of the room its journal has left. A journal may
// offer a method
//
//	Low() error
//
// that returns an error that is [journal.ErrFull] while what room there is
// should go to closes. The book then refuses reserves and extends with it, and
// goes on by itself when there is room again.
type space struct {
	journal interface{ Low() error } // nil: it does not say
	low     error                    // why nothing is admitted; nil if there is room
	told    bool                     // and that was logged
}

// checkSpace asks the journal. Who waits for room under a limit is told that
// there is none on the disk.
func (b *Book) checkSpace() {
	if b.space.journal == nil {
		return
	}
	before := b.space.low
	b.space.low = nil
	if err := b.space.journal.Low(); err != nil {
		b.space.low = fmt.Errorf("budget: open calls can be closed, and none admitted: %w", err)
		b.freed = b.freed || before == nil
	}
}

// tellSpace logs once that room is short, and once that it is there again.
func (b *Book) tellSpace() {
	switch low := b.space.low; {
	case low != nil && !b.space.told:
		b.space.told = true
		b.logger.LogAttrs(b.ctx, slog.LevelWarn, "the disk is full: open calls can be closed, and none admitted until there is room")
	case low == nil && b.space.told:
		b.space.told = false
		b.logger.LogAttrs(b.ctx, slog.LevelWarn, "the disk has room again; calls are admitted")
	}
}
