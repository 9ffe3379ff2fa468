package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
)

// ReadLedger yields the entries of one file as it stands, whoever wrote it. A
// line needs "ev", "rid" and "amount"; spaces and other fields are no matter,
// and nothing is asked of the lines before. Empty lines and seals are skipped.
// For a line that is none it yields a [*CorruptError] that has name as its
// Segment, and goes on behind it if the caller does; after any other error it
// ends. For strings and goroutines, see [Dir.Newest] and [ReadLedgerBatches].
func ReadLedger(name string, r io.Reader) iter.Seq2[Entry, error] {
	return oneByOne(ReadLedgerBatches(name, r))
}

// ReadLedgerBatches is [ReadLedger] for many entries at a time, which are valid
// until the next are asked for. It reads and parses ahead in other goroutines,
// which have ended when the loop has: one left early waits for a Read that is
// under way.
func ReadLedgerBatches(name string, r io.Reader) iter.Seq2[[]Entry, error] {
	return func(yield func([]Entry, error) bool) {
		lines := int64(0)
		err := inBlocks(newLineReader(r, math.MaxInt64), (*block).ofLedger, func(b *block) error {
			from := 0
			for _, f := range b.faults {
				f.damage.Segment = name
				f.damage.Line += lines
				if entries := b.entries[from:f.before]; len(entries) > 0 && !yield(entries, nil) || !yield(nil, &f.damage) {
					return errStopped
				}
				from = f.before
			}
			lines += b.lines
			if entries := b.entries[from:]; len(entries) > 0 && !yield(entries, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, fmt.Errorf("journal: read %s: %w", name, err))
		}
	}
}

// fault is a line of a ledger that is none.
type fault struct {
	before int // number of entries of the block before it
	damage CorruptError
}

// ofLedger parses the lines of a block, whoever wrote them.
func (b *block) ofLedger() {
	b.entries, b.faults, b.lines = b.entries[:0], nil, 0
	b.each(func(line []byte, text string, off int64) bool {
		b.lines++
		e, err := ledgerLine(rawLine{text: line, long: b.long}, text)
		switch {
		case err != nil:
			b.faults = append(b.faults, fault{len(b.entries), CorruptError{Offset: off, Line: b.lines, Reason: err.Error(), Unfinished: !b.done}})
		case e.Kind != 0 && e.Kind != Seal:
			*b.add() = e
		}
		return true
	})
}

// ledgerLine returns the zero Entry for an empty line. text is that of line.
func ledgerLine(line rawLine, text string) (e Entry, err error) {
	if line.long {
		return e, badLine("longer than any line of a ledger")
	}
	if len(bytes.TrimSpace(line.text)) == 0 {
		return e, nil
	}
	if e, err = parseForeign(line.text, text); err != nil {
		return Entry{}, err
	}
	return e, nil
}
