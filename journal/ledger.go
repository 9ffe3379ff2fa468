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
	return oneByOne(onlyEntries(readLedger(name, r, true)))
}

func onlyEntries(batches iter.Seq2[LedgerLines, error]) iter.Seq2[[]Entry, error] {
	return func(yield func([]Entry, error) bool) {
		for lines, err := range batches {
			if !yield(lines.Entries, err) {
				return
			}
		}
	}
}

// LedgerLines are entries of a ledger that stand on lines one behind another.
type LedgerLines struct {
	First   int64 // the line of the first of them, from 1
	Entries []Entry
}

// ReadLedgerBatches is [ReadLedger] for many entries at a time, which are valid
// until the next are asked for, as those of [Dir.HistoryBatches]. It reads and
// parses ahead in other goroutines, which have ended when the loop has: one left
// early waits for a Read that is under way.
func ReadLedgerBatches(name string, r io.Reader) iter.Seq2[LedgerLines, error] {
	return readLedger(name, r, false)
}

// readLedger is ReadLedgerBatches, with strings that stay or not.
func readLedger(name string, r io.Reader, stay bool) iter.Seq2[LedgerLines, error] {
	return func(yield func(LedgerLines, error) bool) {
		lines := int64(0)
		err := inBlocks(newLineReader(r, math.MaxInt64), stay, (*block).ofLedger, func(b *block) error {
			from, first := 0, lines+1
			for _, s := range b.skipped {
				if entries := b.entries[from:s.before]; len(entries) > 0 && !yield(LedgerLines{first, entries}, nil) {
					return errStopped
				}
				from, first = s.before, lines+s.line+1
				if s.reason == "" {
					continue
				}
				if !yield(LedgerLines{}, &CorruptError{Segment: name, Offset: s.off, Line: lines + s.line, Reason: s.reason, Unfinished: !b.done}) {
					return errStopped
				}
			}
			lines += b.lines
			if entries := b.entries[from:]; len(entries) > 0 && !yield(LedgerLines{first, entries}, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(LedgerLines{}, fmt.Errorf("journal: read %s: %w", name, err))
		}
	}
}

// skip is a line of a ledger that is no entry, or the last of several that say
// nothing.
type skip struct {
	before int   // number of entries of the block before it
	line   int64 // in the block, from 1
	off    int64
	reason string // empty: it is empty or a seal
}

// ofLedger parses the lines of a block, whoever wrote them.
func (b *block) ofLedger() {
	b.entries, b.skipped, b.lines = b.entries[:0], nil, 0
	if b.long {
		b.lines++
		b.skip(0, badLine("longer than any line of a ledger"))
		return
	}
	all, text := b.shared()
	for at, next := 0, 0; at <= len(b.text); at = next {
		b.lines++
		if next = at + quick(all[at:], text[at:], b.add()); next > at {
			continue
		}
		b.entries = b.entries[:len(b.entries)-1]
		line := b.lineAt(at)
		next = at + len(line) + 1
		e, err := ledgerLine(rawLine{text: line}, text[at:at+len(line)])
		if err == nil && e.Kind != 0 && e.Kind != Seal {
			*b.add() = e
			continue
		}
		b.skip(at, err)
	}
}

// skip notes that the line at is no entry, and why.
func (b *block) skip(at int, err error) {
	s := skip{before: len(b.entries), line: b.lines, off: b.off + int64(at)}
	if err != nil {
		s.reason = err.Error()
	} else if last := len(b.skipped) - 1; last >= 0 && b.skipped[last].reason == "" && b.skipped[last].before == s.before {
		b.skipped = b.skipped[:last]
	}
	b.skipped = append(b.skipped, s)
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
