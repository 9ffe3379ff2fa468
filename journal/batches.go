package journal

import (
	"cmp"
	"errors"
	"io"
)

// A segment is read in blocks as long as all is well. Whatever is not, the end
// of a live segment included, is left to next, line by line, so that nobody but
// it judges damage.

// batches visits the lines up to the end or to the first damage, which is
// returned, as each does, many at a time. They are valid until visit returns,
// their strings too unless they are to stay.
func (s *segment) batches(visit func([]Entry) error) error {
	err := s.blocks(visit)
	if !errors.Is(err, errOdd) {
		return err
	}
	var batch []Entry
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		defer func() { batch = batch[:0] }()
		return visit(batch)
	}
	err = s.each(func(e *Entry) error {
		if batch = append(batch, *e); len(batch) < batchLen {
			return nil
		}
		return flush()
	})
	if _, damage := errors.AsType[*CorruptError](err); err == nil || damage {
		err = cmp.Or(flush(), err)
	}
	return err
}

// ignore is a visit that wants nothing but the judgement.
func ignore([]Entry) error { return nil }

// batchLen is how many lines that were read one by one make a batch.
const batchLen = 1024

// errOdd says that the line behind the good ones is to be looked at by next.
var errOdd = errors.New("odd")

// blocks visits lines as long as all of a block are good. At one that has any
// other it returns errOdd, and next goes on at its beginning.
func (s *segment) blocks(visit func([]Entry) error) error {
	err := inBlocks(s.lines, s.stay, (*block).ofSegment, func(b *block) error {
		if b.odd || s.chain.misfit(&b.entries[0], b.off) != "" {
			return errOdd
		}
		s.chain.join(&b.chain, b.entries)
		s.good, s.ended = b.off+b.size, true
		return visit(b.entries)
	})
	if err == nil && s.short() {
		err = errOdd
	}
	if errors.Is(err, errOdd) {
		s.lines = newLineReader(io.NewSectionReader(s.file, s.good, s.size-s.good), s.size-s.good)
		s.lines.off = s.good
	}
	return err
}

// ofSegment parses the lines of a block and checks that each follows the one
// before it, but for the first.
func (b *block) ofSegment() {
	b.entries, b.chain, b.odd = b.entries[:0], chain{}, b.long || !b.done
	if b.odd {
		return
	}
	all, text := b.shared()
	for at, next := 0, 0; at <= len(b.text) && !b.odd; at = next {
		e := b.add()
		if next = at + quick(all[at:], text[at:], e); next == at {
			line := b.lineAt(at)
			next = at + len(line) + 1
			if parseLine(line, text[at:at+len(line)], e) != nil {
				*e, b.odd = Entry{}, true // parts of text that it got
				return
			}
		}
		off := b.off + int64(at)
		if at == 0 {
			b.chain.adopt(e) // whether it follows is found out in order
		} else {
			b.odd = b.chain.misfit(e, off) != ""
		}
		b.odd = b.odd || e.Kind == Seal // the end of a segment is looked at closely
		b.chain.took(e)
	}
}

// durable passes on what is read of the newest segment, to which somebody may
// be appending, except a last batch, which is held back until what follows it
// says that it was durable, or until the end. For damage that is not there at a
// second look was a batch that a full disk cut back, and that another took the
// place of while it was being read.
type durable struct {
	visit func([]Entry) error
	held  []Entry
	seen  uint64 // seq of the last entry passed on
}

func (d *durable) add(entries []Entry) error {
	for len(entries) > 0 && entries[0].Seq <= d.seen { // at a second look
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return nil
	}
	n := len(entries)
	newest := entries[n-1].Synced
	for n > 0 && newest > 0 && entries[n-1].Synced == newest { // with 0, it is as old as the segment's name
		n--
	}
	if len(d.held) > 0 && newest > d.held[0].Synced {
		if err := d.flush(); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := d.pass(entries[:n]); err != nil {
			return err
		}
	}
	d.held = append(d.held, entries[n:]...)
	return nil
}

// flush passes on what is held back.
func (d *durable) flush() error {
	held := d.held
	d.held = d.held[:0]
	if len(held) == 0 {
		return nil
	}
	return d.pass(held)
}

// again begins a second look.
func (d *durable) again() { d.held = d.held[:0] }

func (d *durable) pass(entries []Entry) error {
	d.seen = entries[len(entries)-1].Seq
	return d.visit(entries)
}
