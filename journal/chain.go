package journal

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// chain is where a journal stands: what the next line of a segment has to fit.
// Writing and reading advance it in the same way.
type chain struct {
	segment int64  // number of the segment
	lines   int64  // in this segment
	seq     uint64 // of the last line, maybe in the segment before
	crc     uint32 // of that line
	joined  bool   // seq, crc and book are known, also before the first line
	synced  int64  // of the last line
	seals   int
	carries int64 // lines that became durable together with the open line
	book    string
	lastT   int64 // latest time of a line that is not carried
}

// startOf is the chain for a segment whose predecessor is not looked at. The
// first has none.
func startOf(number int64) chain { return chain{segment: number, joined: number == 1} }

// following is the chain for the segment after c.
func (c *chain) following() chain {
	return chain{segment: c.segment + 1, seq: c.seq, crc: c.crc, joined: true, book: c.book, lastT: c.lastT}
}

// lastEntry is the position of the last entry that is no seal.
func (c *chain) lastEntry() Pos { return Pos(c.seq) - Pos(c.seals) }

// at reports whether nothing but seals stands behind a position. Seals are not
// yielded to readers, so a reader may not know their positions.
func (c *chain) at(pos Pos) bool { return pos == Pos(c.seq) || pos == c.lastEntry() }

// append adds the line of e, with synced bytes of the segment known durable.
func (c *chain) append(buf []byte, e *Entry, synced int64) ([]byte, error) {
	e.Seq, e.Synced, e.Prev = c.seq+1, synced, c.crc
	buf, err := AppendLine(buf, e)
	if err == nil {
		c.took(e)
	}
	return buf, err
}

// appendSeals adds the two lines of a clean end.
func (c *chain) appendSeals(buf []byte, synced int64) ([]byte, error) {
	var err error
	for range 2 {
		if buf, err = c.append(buf, &Entry{Kind: Seal, T: c.lastT}, synced); err != nil {
			break
		}
	}
	return buf, err
}

// misfit says why a line that is good in itself must not stand at off.
func (c *chain) misfit(e *Entry, off int64) string {
	first := c.lines == 0
	switch {
	case first != (e.Kind == Open):
		return "an open line must be first, and only there"
	case first && e.Opening.Version != Version:
		return fmt.Sprintf("format version %d is not known to this program, which knows %d", e.Opening.Version, Version)
	case first && e.Opening.Segment != c.segment:
		return fmt.Sprintf("it says that it is %s: the file was renamed, copied or swapped", segmentName(e.Opening.Segment))
	case first && e.Opening.LastCRC != e.Prev:
		return "last_crc and prev differ"
	case first && !c.joined:
		return "" // what was before is not known
	case e.Prev != c.crc:
		return "prev is not the checksum of the line before"
	case e.Seq != c.seq+1:
		return "seq does not rise by one"
	case first && c.book != "" && e.Opening.Book != c.book:
		return "belongs to another book"
	case e.Synced != off && (first || e.Synced != c.synced):
		return "synced is not where its batch began"
	case c.seals >= 2:
		return "stands behind the seals"
	case c.seals == 1 && e.Kind != Seal:
		return "stands between the seals"
	}
	return ""
}

// adopt makes e fit, whose predecessor is damaged.
func (c *chain) adopt(e *Entry) {
	c.seq, c.crc, c.synced, c.joined = e.Seq-1, e.Prev, e.Synced, true
	if e.Kind != Open {
		c.lines = max(c.lines, 1)
	}
}

// join takes the lines of a block, whose chain behind them is b.
func (c *chain) join(b *chain, entries []Entry) {
	c.lines += int64(len(entries))
	c.seq, c.crc, c.synced, c.joined = b.seq, b.crc, b.synced, true
	if entries[0].Kind == Open {
		c.book, c.carries = b.book, b.carries
	}
	c.lastT = max(c.lastT, b.lastT)
}

func (c *chain) took(e *Entry) {
	c.lines++
	c.seq, c.crc, c.synced, c.joined = e.Seq, e.CRC, e.Synced, true
	switch e.Kind {
	case Seal:
		c.seals++
	case Open:
		c.book, c.carries = strings.Clone(e.Opening.Book), e.Opening.Carries
	}
	if !e.Carried {
		c.lastT = max(c.lastT, e.T)
	}
}

// lastBatch remembers the newest batch, so that repeating it is success.
type lastBatch struct {
	id         uuid.UUID
	after, end Pos
}

// repeated reports whether a batch that is to follow after is the newest one.
func (l *lastBatch) repeated(id uuid.UUID, after Pos) bool {
	return id != uuid.Nil && id == l.id && after == l.after
}
