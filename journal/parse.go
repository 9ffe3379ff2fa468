package journal

import (
	"bytes"
	"fmt"
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
	var want [len(crcField)]byte
	if string(append(appendCRC(append(want[:0], crcField[:8]...), crc), `"}`...)) != text[n:] {
		return badLine("checksum does not match")
	}
	n -= len(prevField)
	prev := parser{line: text[n : n+len(prevField)]}
	prev.want(`,"prev":"`)
	e.Prev = prev.hex()
	prev.want(`"`)
	if prev.bad != "" {
		return prev.bad
	}
	p := parser{line: text[:n]}
	p.entry(e)
	if p.bad != "" {
		return p.bad
	}
	if p.at < n {
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

	if p.begins(`,"seq"`) && p.skip(`,"seq":`) {
		e.Seq = p.natural()
		p.check(e.Seq != 0, "zero seq written out")
		p.ended()
	}
	e.Synced = p.optional(`,"synced":`)
	e.Scope = p.optionalText(`,"scope":`)
	e.Key = p.optionalText(`,"key":`)
	e.Model = p.optionalText(`,"model":`)
	p.counters(&e.Change)
	p.usage(&e.Usage)
	e.Tries = p.optional(`,"tries":`)
	e.Why = p.optionalText(`,"why":`)
	e.Ref = p.optionalText(`,"ref":`)
	e.Evidence = p.optionalText(`,"evidence":`)
	e.Prices = p.optionalText(`,"prices":`)
	e.Named = p.flag(`,"named":true`)
	e.Carried = p.flag(`,"carried":true`)
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
	c.Cost = p.optional(`,"cost":`)
	c.Requests = p.optional(`,"requests":`)
	c.Confirmed = p.optional(`,"confirmed":`)
	c.ConfirmedCost = p.optional(`,"confirmed_cost":`)
	c.Assumed = p.optional(`,"assumed":`)
	c.AssumedCost = p.optional(`,"assumed_cost":`)
	c.Maybe = p.optional(`,"maybe":`)
}

func (p *parser) usage(u *Usage) {
	if !p.begins(`,"usage"`) || !p.skip(`,"usage":{`) {
		return
	}
	more := false
	u.In = p.member(`,"in":`, &more)
	u.Cached = p.member(`,"cached":`, &more)
	u.Write = p.member(`,"write":`, &more)
	u.Out = p.member(`,"out":`, &more)
	u.Reasoning = p.member(`,"reasoning":`, &more)
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
	n := p.number(name)
	*more = *more || n != 0
	return n
}

func (p *parser) cap() *Cap {
	p.want(`,"limit":{"unit":`)
	c := &Cap{Kind: p.text()}
	if c.Unlimited = p.skip(`,"unlimited":true`); !c.Unlimited {
		p.want(`,"max":`)
		c.Max = p.integer()
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
	o.Carries = p.optional(`,"carries":`)
	if p.skip(`,"balances":[`) {
		for more := true; more; more = p.skip(`,`) {
			var b Balance
			p.want(`{"scope":`)
			b.Scope = p.text()
			b.Amount = p.optional(`,"amount":`)
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
	past.Each = p.optional(`,"each":`)
	past.EachCost = p.optional(`,"each_cost":`)
	past.Lost = p.optional(`,"lost":`)
	past.Confirmed = p.optional(`,"confirmed":`)
	past.ConfirmedCost = p.optional(`,"confirmed_cost":`)
	past.Assumed = p.optional(`,"assumed":`)
	past.AssumedCost = p.optional(`,"assumed_cost":`)
	past.Maybe = p.optional(`,"maybe":`)
	past.LastCost = p.optional(`,"last_cost":`)
	past.Held = p.optional(`,"held":`)
	past.HeldCost = p.optional(`,"held_cost":`)
	past.Unsent = p.flag(`,"unsent":true`)
	if p.skip(`,"evidence":[`) {
		for more := true; more; more = p.skip(`,`) {
			var proof Proof
			p.want(`{"key":`)
			proof.Key = p.text()
			p.usage(&proof.Usage)
			proof.Cost = p.optional(`,"cost":`)
			p.want(`}`)
			past.Evidence = append(past.Evidence, proof)
		}
		p.want(`]`)
	}
	p.want(`}`)
	return &past
}
