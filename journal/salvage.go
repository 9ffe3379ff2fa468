package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tollbook/tollbook/journal/disk"
)

// salvage makes a good segment of a damaged one.
type salvage struct {
	f       *File
	s       *segment
	end     ending // where its good lines end
	before  chain  // joined: its beginning is made anew behind this
	newFold func() Fold

	fold        Fold
	w           io.Writer
	buf         []byte // not yet written to w
	chain       chain  // behind what was written
	size        int64  // of that
	batch       int64  // where the lines that are written anew begin
	seq         uint64 // of the last entry of the original that is accounted for
	last        uint64 // of the last good line behind the kept ones
	sealed      bool   // and behind it there were no more
	kept, moved int64
	lost        []Lost
	stretch     *Lost // of bad lines, which goes on
}

// replacement makes the good segment and a copy of the original.
func (v *salvage) replacement() (r Repaired, err error) {
	if err := v.f.inRoom(v.write); err != nil {
		return r, err
	}
	original, err := v.f.freeName(v.s.name + damagedSuffix)
	if err != nil {
		return r, err
	}
	r = Repaired{Segment: v.s.name, Damage: v.end.damage, Original: original, Kept: v.kept, Moved: v.moved, Lost: v.lost}
	if v.before.joined {
		r.Begun = segmentName(v.before.segment)
	}
	return r, v.f.inRoom(func() error { return v.f.copyOut(v.s, 0, original) })
}

// write writes the good segment under the temporary name, and reads it back.
// What it finds on the way is of this call.
func (v *salvage) write() error {
	*v = salvage{f: v.f, s: v.s, end: v.end, before: v.before, newFold: v.newFold, fold: v.newFold()}
	start := startOf(v.end.facts.segment)
	if v.before.joined {
		start = v.before.following()
	}
	temp := v.s.name + disk.TempSuffix
	err := disk.WriteTemp(v.f.fs, v.f.path(temp), func(w disk.File) (err error) {
		v.w = w
		if v.before.joined {
			err = v.beginAnew()
		} else {
			err = v.keepPrefix()
		}
		if err == nil {
			err = v.readOn()
		}
		if err == nil {
			v.buf, err = v.chain.appendSeals(v.buf, v.size+int64(len(v.buf)))
		}
		return errors.Join(err, v.flush())
	})
	if err != nil {
		return err
	}
	return v.f.verify(temp, start, v.chain, v.size)
}

// flush writes what was gathered.
func (v *salvage) flush() error {
	n, err := v.w.Write(v.buf)
	v.size += int64(n)
	v.buf = v.buf[:0]
	return err
}

// keepPrefix takes the good lines as they are, up to the last that is no seal.
func (v *salvage) keepPrefix() error {
	err := v.f.newest(v.end.facts.segment, func(e *Entry) error {
		if e.Seq > v.end.facts.seq {
			return errStopped
		}
		v.kept++
		_, err := v.fold.Keep(e)
		return err
	})
	if _, damaged := errors.AsType[*CorruptError](err); err != nil && !damaged && !errors.Is(err, errStopped) {
		return err
	}
	v.chain, v.batch, v.seq = v.end.facts, v.end.size, v.end.facts.seq
	n, err := io.Copy(v.w, io.NewSectionReader(v.s.file, 0, v.end.size))
	v.size = n
	return err
}

// beginAnew begins with what the segment before adds up to.
func (v *salvage) beginAnew() error {
	err := v.f.newest(v.before.segment, func(e *Entry) error {
		_, err := v.fold.Keep(e)
		return err
	})
	if err != nil {
		return err
	}
	v.chain = v.before.following()
	carried := v.fold.Snapshot()
	if err := checkCarried(carried, v.before.book); err != nil {
		return err
	}
	carried[0].Opening.place(&v.chain, carried)
	for i := range carried {
		if err := v.add(&carried[i]); err != nil {
			return err
		}
	}
	v.batch, v.seq = v.size+int64(len(v.buf)), v.before.seq+1+uint64(v.s.chain.carries)
	v.end.size = 0 // all lines are looked at, for the facts behind
	return nil
}

// add writes a line.
func (v *salvage) add(e *Entry) (err error) {
	if v.buf, err = v.chain.append(v.buf, e, v.batch); err == nil && len(v.buf) >= readSize {
		err = v.flush()
	}
	return err
}

// readOn looks at every line from where the good ones end.
func (v *salvage) readOn() error {
	from := v.end.size
	lines := newLineReader(io.NewSectionReader(v.s.file, from, v.s.size-from), v.s.size-from)
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			v.closeEnd()
			return nil
		}
		if err != nil {
			return err
		}
		off := from + line.off
		for _, piece := range pieces(line.text) {
			if err := v.look(piece, off, line.long); err != nil {
				return err
			}
			off += int64(len(piece))
		}
		if v.stretch != nil { // the newline, or what of a long line was not held
			v.stretch.Bytes = from + line.off + line.size - v.stretch.Offset
		}
	}
}

// pieces cuts a line where another seems to begin, since a damaged newline
// makes one of two. No good line holds such a place, as it has quotes.
func pieces(line []byte) (cut [][]byte) {
	for {
		i := bytes.Index(line[min(1, len(line)):], lineStart)
		if i < 0 {
			return append(cut, line)
		}
		cut, line = append(cut, line[:i+1]), line[i+1:]
	}
}

var (
	lineStart = []byte(`{"ev":"`)
	lineEnd   = []byte(`"}`)
)

// look takes one piece of the original.
func (v *salvage) look(piece []byte, off int64, long bool) error {
	var e Entry
	bad := parseLine(piece, string(piece), &e)
	if i := bytes.LastIndex(piece, lineEnd); bad != nil && i >= 0 { // a byte more, where the newline should be
		whole := piece[:i+len(lineEnd)]
		if parseLine(whole, string(whole), &e) == nil {
			bad = nil
		}
	}
	if bad == nil {
		return v.good(&e, off, int64(len(piece)))
	}
	if v.stretch == nil {
		v.stretch = &Lost{Offset: off, First: v.seq + 1, Reason: bad.Error()}
	}
	v.stretch.Bytes = off + int64(len(piece)) - v.stretch.Offset
	if e, ok := seems(piece); ok && !long {
		v.stretch.Entries = append(v.stretch.Entries, e)
	}
	return nil
}

// seems reads of a damaged line what it seems to say, if it is JSON still.
func seems(piece []byte) (Entry, bool) {
	var w struct {
		Ev     string `json:"ev"`
		RID    string `json:"rid"`
		Amount *int64 `json:"amount"`

		Carried bool `json:"carried"`
	}
	if json.Unmarshal(bytes.Trim(piece, "\x00 \n"), &w) != nil || w.Amount == nil || w.Carried {
		return Entry{}, false
	}
	kind, ok := ParseKind(w.Ev)
	return Entry{Kind: kind, RID: w.RID, Change: Change{Amount: *w.Amount}}, ok && kind != Seal && kind != Open
}

// good takes a line that is good in itself: it is written anew if it follows.
func (v *salvage) good(e *Entry, off, size int64) error {
	begins := e.Kind == Open || e.Carried
	v.last = e.Seq
	if begins && v.before.joined { // made anew already, with all around it
		v.stretch = nil
		v.seq = max(v.seq, e.Seq)
		return nil
	}
	leave := func(why string) {
		v.lost = append(v.lost, Lost{Offset: off, Bytes: size, First: e.Seq, Last: e.Seq, Reason: why, Entries: []Entry{*e}, Whole: true})
	}
	if e.Seq <= v.seq {
		leave(fmt.Sprintf("the number of an entry before it; %d have come", v.seq))
		v.lost[len(v.lost)-1].First = 0 // it is there, or told to be lost
		return nil
	}
	v.closeStretch(e.Seq)
	v.seq = e.Seq
	switch {
	case e.Kind == Seal:
		v.sealed = true
		return nil
	case begins:
		leave("only the beginning of a segment has such a line")
		return nil
	}
	entries, misfit := v.fold.Keep(e)
	if misfit != nil {
		leave(misfit.Error())
		return nil
	}
	for i := range entries {
		if err := v.add(&entries[i]); err != nil {
			return fmt.Errorf("entry %d: %w", e.Seq, err)
		}
	}
	v.moved++
	return nil
}

// closeEnd says what may have stood behind the last line.
func (v *salvage) closeEnd() {
	end := Lost{Offset: v.s.size, Reason: "there are no seals at its end"}
	if v.before.joined && v.last <= v.before.seq+uint64(v.s.chain.carries) {
		end.First, end.Reason = max(v.last, v.before.seq)+1, v.s.cutShort().Reason
	}
	told := v.sealed || v.stretch != nil
	v.closeStretch(0)
	if !told {
		v.lost = append(v.lost, end)
	}
}

// closeStretch ends a stretch of bad lines before the entry next; 0: nothing
// more is known to have followed.
func (v *salvage) closeStretch(next uint64) {
	l := v.stretch
	v.stretch = nil
	if l == nil && next > v.seq+1 {
		l = &Lost{First: v.seq + 1, Reason: "the lines are not there"}
	}
	if l == nil {
		return
	}
	if l.First = v.seq + 1; next > 0 {
		l.Last = next - 1
	}
	if v.sealed || next == l.First { // bytes where there never was an entry
		l.First, l.Last = 0, 0
	}
	if l.First > 0 || !v.before.joined {
		v.lost = append(v.lost, *l)
	}
}
