package journal

import (
	"bytes"
	"fmt"
	"math"
)

// badLine is what is wrong with a line, in words.
type badLine string

func (b badLine) Error() string { return string(b) }

// ParseLine is the reverse of [AppendLine]; the newline may be there or not.
// It takes exactly what AppendLine writes: the checksum is compared over the
// raw bytes before anything is parsed, and then a space, an unknown field or a
// zero written out is refused like any other damage, with [ErrCorrupt].
func ParseLine(line []byte) (e Entry, err error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if err := parseLine(line, string(line), &e); err != nil {
		return Entry{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return e, nil
}

// The ends of every line, filled with zeros to show their length.
const (
	prevField = `,"prev":"00000000"`
	crcField  = `,"crc":"00000000"}`
)

// parseLine fills e from a line without its newline. text is the same line, of
// which the strings of e become parts.
func parseLine(line []byte, text string, e *Entry) error {
	*e = Entry{}
	n := len(line) - len(crcField)
	if n < len(prevField) {
		return badLine("too short for a line")
	}
	crc := checksum(line[:n])
	if tail := text[n:]; tail[:8] != crcField[:8] || tail[16:] != crcField[16:] || hexOf(tail[8:16]) != uint64(crc) {
		return badLine("checksum does not match")
	}
	n -= len(prevField)
	prev := hexOf(text[n+9 : n+17])
	if prev > math.MaxUint32 || text[n:n+9] != prevField[:9] || text[n+17] != '"' {
		return badLine("no prev of 8 lower-case hex digits")
	}
	e.Prev = uint32(prev)
	p := parser{line: text} // with what is behind, so that eight bytes can be had
	p.entry(e)
	if p.bad != "" {
		return p.bad
	}
	if p.at != n {
		return badLine(fmt.Sprintf("unexpected text %d bytes before its end", len(text)-p.at))
	}
	e.CRC = crc
	return nil
}

// entry reads all fields between the opening brace and "prev", in the order in
// which AppendLine writes them.
func (p *parser) entry(e *Entry) {
	p.want(`{"ev":"`)
	e.Kind = p.kind()
	p.want(`,"rid":`)
	e.RID = p.text()
	p.want(`,"amount":`)
	e.Amount = p.integer()
	p.want(`,"t":`)
	e.T = p.micros()

	if p.has(`,"seq":`) {
		e.Seq = p.natural()
		p.check(e.Seq != 0, "zero seq written out")
		p.ended()
	}
	e.Synced = p.optional(p.has(`,"synced":`))
	e.Scope = p.optionalText(p.has(`,"scope":`))
	e.Key = p.optionalText(p.has(`,"key":`))
	e.Model = p.optionalText(p.has(`,"model":`))
	p.counters(&e.Change)
	p.usage(&e.Usage)
	e.Tries = p.optional(p.has(`,"tries":`))
	e.Why = p.optionalText(p.has(`,"why":`))
	e.Ref = p.optionalText(p.has(`,"ref":`))
	e.Evidence = p.optionalText(p.has(`,"evidence":`))
	e.Prices = p.optionalText(p.has(`,"prices":`))
	e.Named = p.flag(p.has(`,"named":true`))
	e.Carried = p.flag(p.has(`,"carried":true`))
	switch e.Kind {
	case Limit:
		e.Cap = p.cap()
	case Open:
		e.Opening = p.opening()
	}
	if p.skip(`,"past":{"state":`) {
		e.Past = p.past()
	}
}

func (p *parser) kind() (k Kind) {
	switch {
	case p.skip(`reserve"`):
		return Reserve
	case p.skip(`settle"`):
		return Settle
	}
	for k := Open; k <= Seal; k++ {
		if p.skip(kindNames[k]) {
			p.want(`"`)
			return k
		}
	}
	p.fail("unknown ev")
	return 0
}

func (p *parser) counters(c *Change) {
	c.Cost = p.optional(p.has(`,"cost":`))
	c.Requests = p.optional(p.has(`,"requests":`))
	c.Confirmed = p.optional(p.has(`,"confirmed":`))
	c.ConfirmedCost = p.optional(p.has(`,"confirmed_cost":`))
	c.Assumed = p.optional(p.has(`,"assumed":`))
	c.AssumedCost = p.optional(p.has(`,"assumed_cost":`))
	c.Maybe = p.optional(p.has(`,"maybe":`))
}

func (p *parser) usage(u *Usage) {
	if !p.has(`,"usage":{`) {
		return
	}
	more := false
	u.In = p.member(`,"in":`, &more)
	u.Cached = p.member(`,"cached":`, &more)
	u.Write = p.member(`,"write":`, &more)
	u.Out = p.member(`,"out":`, &more)
	u.Reasoning = p.member(`,"reasoning":`, &more)
	u.Images = p.member(`,"images":`, &more)
	u.Seconds = p.member(`,"seconds":`, &more)
	u.Characters = p.member(`,"characters":`, &more)
	p.check(more, "empty usage written out")
	p.want(`}`)
	p.ended()
}

// member is optional for an object whose first field has no comma; more says
// that there was one.
func (p *parser) member(name string, more *bool) int64 {
	if !*more {
		name = name[1:]
	}
	if !p.skip(name) {
		return 0
	}
	*more = true
	return p.nonzero()
}

func (p *parser) cap() *Cap {
	p.want(`,"limit":{"unit":`)
	c := &Cap{Kind: p.text()}
	if c.Unlimited = p.skip(`,"unlimited":true`); !c.Unlimited {
		p.want(`,"max":`)
		c.Max = p.integer()
		c.Told = p.optional(p.has(`,"told":`))
	}
	p.want(`}`)
	return c
}

func (p *parser) opening() *Opening {
	var o Opening
	p.want(`,"format":`)
	o.Version = int(p.integer())
	p.want(`,"book":`)
	o.Book = p.text()
	p.want(`,"segment":`)
	o.Segment = p.integer()
	p.want(`,"last_crc":"`)
	o.LastCRC = p.hex()
	p.want(`"`)
	p.ended()
	o.Carries = p.optional(p.has(`,"carries":`))
	if p.skip(`,"balances":[`) {
		for more := true; more; more = p.skip(`,`) {
			var b Balance
			p.want(`{"scope":`)
			b.Scope = p.text()
			b.Amount = p.optional(p.has(`,"amount":`))
			p.counters(&b.Change)
			p.want(`}`)
			o.Balances = append(o.Balances, b)
		}
		p.want(`]`)
	}
	return &o
}

func (p *parser) past() *Past {
	past := Past{State: p.text()}
	if p.skip(`,"opened":`) {
		past.Opened = p.micros()
		p.check(past.Opened != 0, "zero opened written out")
	}
	past.Each = p.optional(p.has(`,"each":`))
	past.EachCost = p.optional(p.has(`,"each_cost":`))
	past.Lost = p.optional(p.has(`,"lost":`))
	past.Confirmed = p.optional(p.has(`,"confirmed":`))
	past.ConfirmedCost = p.optional(p.has(`,"confirmed_cost":`))
	past.Assumed = p.optional(p.has(`,"assumed":`))
	past.AssumedCost = p.optional(p.has(`,"assumed_cost":`))
	past.Maybe = p.optional(p.has(`,"maybe":`))
	past.LastCost = p.optional(p.has(`,"last_cost":`))
	past.Held = p.optional(p.has(`,"held":`))
	past.HeldCost = p.optional(p.has(`,"held_cost":`))
	past.Unsent = p.flag(p.has(`,"unsent":true`))
	if p.skip(`,"evidence":[`) {
		for more := true; more; more = p.skip(`,`) {
			var proof Proof
			p.want(`{"key":`)
			proof.Key = p.text()
			p.usage(&proof.Usage)
			proof.Cost = p.optional(p.has(`,"cost":`))
			p.want(`}`)
			past.Evidence = append(past.Evidence, proof)
		}
		p.want(`]`)
	}
	p.want(`}`)
	return &past
}
