package journal

import (
	"errors"
	"fmt"
	"io"
)

// Finding is one thing that [Dir.Verify] has to say about a segment.
type Finding struct {
	Segment string // name of the file
	Offset  int64  // where it begins
	Bytes   int64  // how much of the file it concerns; 0 if that cannot be said
	Line    int64  // number of its first line, from 1
	Reason  string // in words; never repeats what a line holds
	// Note: no damage, but the state in which a crash or a live writer leaves
	// the newest segment.
	Note bool
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: line %d (byte %d, %d bytes): %s", f.Segment, f.Line, f.Offset, f.Bytes, f.Reason)
}

// Audit is the result of [Dir.Verify].
type Audit struct {
	Segments int
	Lines    int64 // good ones, open lines and seals included
	Bytes    int64 // of all segments
	Findings []Finding
}

// Damaged reports whether any finding is more than a note.
func (a *Audit) Damaged() bool {
	for _, f := range a.Findings {
		if !f.Note {
			return true
		}
	}
	return false
}

// Verify checks every byte of every segment: that each line is one to the
// letter, its checksum, seq, prev and synced, that segments follow each other
// and end in two seals. It goes on behind damage and returns all it finds; an
// error says only that something could not be read. Whether the entries make
// sense together is not looked at here.
func (d Dir) Verify() (Audit, error) {
	return d.VerifyEntries(func() func([]Entry) { return func([]Entry) {} })
}

// VerifyEntries is [Dir.Verify], and in the same reading calls what begin
// returns with what [Dir.HistoryBatches] yields: all entries before the first
// damage, valid until it returns. If segments were pruned meanwhile it begins anew, and fails with
// [ErrConflict] when that happened many times.
func (d Dir) VerifyEntries(begin func() func([]Entry)) (a Audit, err error) {
	for range 10 {
		if a, err = d.audit((*pass).run, begin()); !errors.Is(err, ErrConflict) {
			break
		}
	}
	return a, err
}

func (d Dir) audit(read func(*pass) error, visit func([]Entry)) (Audit, error) {
	_, numbers, err := listSegments(d.fs(), d.Path)
	if err != nil {
		return Audit{}, fmt.Errorf("journal: %w", err)
	}
	a := auditor{dir: d, read: read, visit: visit}
	for i, number := range numbers {
		newest := i == len(numbers)-1
		if i > 0 && number != numbers[i-1]+1 {
			a.missing(numbers[i-1]+1, number-1)
		}
		err := a.segment(number, newest)
		if err != nil {
			return a.Audit, fmt.Errorf("journal: %w", err)
		}
	}
	return a.Audit, nil
}

// auditor goes through the segments in order.
type auditor struct {
	Audit
	dir   Dir
	chain chain // behind the segment before, if that is known
	read  func(*pass) error
	visit func([]Entry)
}

func (a *auditor) missing(from, to int64) {
	reason := "the segment is missing between two others"
	if to > from {
		reason = fmt.Sprintf("this segment and all up to %s are missing between two others", segmentName(to))
	}
	a.Findings = append(a.Findings, Finding{Segment: segmentName(from), Line: 1, Reason: reason})
}

func (a *auditor) segment(number int64, newest bool) error {
	start := a.chain.following()
	if !a.chain.joined || start.segment != number {
		start = startOf(number)
	}
	entries := a.entries()
	last := durable{visit: entries}
	if newest {
		entries = last.add
	}
	p, err := a.pass(start, newest, entries)
	if err == nil && newest && p.damaged() {
		last.again()
		p, err = a.pass(start, newest, entries)
	}
	if err == nil {
		err = last.flush()
	}
	if err != nil {
		return err
	}
	a.Segments++
	a.Lines += p.count
	a.Bytes += p.size
	a.Findings = append(a.Findings, p.found...)
	a.chain = p.chain
	a.chain.joined = p.chain.seals == 2 && !p.lost
	return nil
}

// entries returns what to do with good lines: nothing, once there was damage.
func (a *auditor) entries() func([]Entry) error {
	if a.Damaged() {
		return func([]Entry) error { return nil }
	}
	return func(entries []Entry) error {
		if entries = unsealed(entries); len(entries) > 0 {
			a.visit(entries)
		}
		return nil
	}
}

func (a *auditor) pass(start chain, newest bool, entries func([]Entry) error) (*pass, error) {
	s, err := openSegment(a.dir.fs(), a.dir.Path, segmentName(start.segment), start)
	if err != nil {
		return nil, err
	}
	s.stay = newest // of what is held back
	p := &pass{segment: s, entries: entries}
	err = a.read(p)
	p.end(newest)
	return p, errors.Join(err, s.close())
}

// pass is one reading of one segment, through and past all damage.
type pass struct {
	*segment
	entries func([]Entry) error // takes the good ones before the first finding
	batch   []Entry             // that it is to have
	number  int64               // lines
	count   int64               // good ones among them
	found   []Finding
	before  int64  // good lines before the first finding
	seq     uint64 // of the last of them
	torn    bool   // the first finding can be the beginning of a torn end
	durable int64  // furthest synced of any line behind the first finding
	lost    bool   // the line before is not known
}

func (p *pass) damaged() bool { return (&Audit{Findings: p.found}).Damaged() }

func (p *pass) run() error {
	err := p.blocks(func(entries []Entry) error {
		p.number += int64(len(entries))
		p.count = p.number
		return p.entries(entries)
	})
	if !errors.Is(err, errOdd) {
		return err
	}
	return p.byLine()
}

func (p *pass) byLine() error {
	for {
		line, err := p.lines.next()
		if errors.Is(err, io.EOF) {
			return p.flush()
		}
		if err != nil {
			return err
		}
		if p.line(line); len(p.batch) >= batchLen {
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
}

func (p *pass) flush() error {
	defer func() { p.batch = p.batch[:0] }()
	return p.entries(p.batch)
}

func (p *pass) line(line rawLine) {
	var e Entry
	p.number++
	reason := ""
	if line.long {
		reason = "longer than any line that is written"
	} else if err := parseLine(line.text, string(line.text), &e); err != nil {
		reason = err.Error()
	} else if !line.done {
		reason = "the line has no end"
	}
	whole := reason == ""
	if whole {
		if p.lost {
			p.chain.adopt(&e)
		}
		if len(p.found) > 0 { // offsets may have moved, which is said already
			p.chain.synced = e.Synced
		}
		reason = p.chain.misfit(&e, line.off)
		p.chain.took(&e)
		if len(p.found) > 0 && e.Seq > p.seq {
			p.durable = max(p.durable, e.Synced)
		}
	}
	switch {
	case reason == "":
		p.count++
		if len(p.found) == 0 {
			p.batch = append(p.batch, e)
		}
	case p.lost && !whole: // one stretch of damage, however many lines it looks like
		p.found[len(p.found)-1].Bytes += line.size
	default:
		if len(p.found) == 0 {
			p.before, p.seq, p.torn = p.count, p.chain.seq, !whole
		}
		p.found = append(p.found, Finding{Segment: p.name, Offset: line.off, Bytes: line.size, Line: p.number, Reason: reason})
	}
	p.lost = !whole
}

// end judges the findings once all is read, by the rules of [segment.torn].
func (p *pass) end(newest bool) {
	if newest && p.torn && p.before > p.chain.carries && p.durable <= p.found[0].Offset {
		torn := p.found[0]
		torn.Bytes, torn.Note = p.size-torn.Offset, true
		torn.Reason = "unfinished write at the end; opening the journal mends it"
		p.found = []Finding{torn}
	}
	end := Finding{Segment: p.name, Offset: p.size, Line: p.number + 1}
	switch {
	case len(p.found) == 0 && p.short():
		end.Reason = p.cutShort().Reason
	case p.chain.seals >= 2:
		return
	case newest:
		end.Reason, end.Note = "no seals at the end: in use, or not closed cleanly", true
	default:
		end.Reason = p.noSeal().Reason
	}
	p.found = append(p.found, end)
}
