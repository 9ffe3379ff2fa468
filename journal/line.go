package journal

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"unicode/utf8"
)

// Version is the line format that this package writes.
const Version = 1

// The longest line, newline included, that is written or read. An open line
// holds a balance for every scope and window, and may be longer.
const (
	MaxLine     = 1 << 20
	MaxOpenLine = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// AppendLine appends the line of e to dst, newline included, and sets e.CRC.
// Everything else in e is written as it stands, Seq, Synced and Prev too. It
// allocates nothing but room in dst. A line that could not be read back is
// refused with [ErrTooLong], and dst is returned as it was.
//
// A line is one JSON object in this order, without spaces:
//
//	"ev"              word of the Kind
//	"rid"             string
//	"amount"          integer; tokens
//	"t"               Unix seconds with up to six decimals, trailing zeros cut
//	------------------------------------------ left out if zero, false or empty
//	"seq" "synced"    integers
//	"scope" "key" "model"                                               strings
//	"cost" "requests" "confirmed" "confirmed_cost"                     integers
//	"assumed" "assumed_cost" "maybe"                                   integers
//	"usage"           {"in" "cached" "write" "out" "reasoning"
//	                   "images" "seconds" "characters"}
//	"tries"           integer
//	"why" "ref" "evidence" "prices"                                     strings
//	"named" "carried" true
//	"limit"           ev limit only: {"unit" "max" "told"} or
//	                  {"unit" "unlimited":true}
//	"format" "book" "segment" "last_crc" "carries"              ev open only
//	"balances"        ev open only: [{"scope" "amount" "cost" … "maybe"}, …]
//	"past"            {"state" "opened" "each" "each_cost" "lost" "confirmed"
//	                   "confirmed_cost" "assumed" "assumed_cost" "maybe"
//	                   "last_cost" "held" "held_cost" "unsent"
//	                   "evidence":[{"key" "usage" "cost"}, …]}
//	------------------------------------------------------------ always present
//	"prev"            8 hex digits: "crc" of the line before
//	"crc"             8 hex digits: CRC-32C of the line up to here, `,"crc"` excluded
//
// Inside the objects, "unit", "max" (unless unlimited), "scope", "state",
// "key", "format", "book", "segment" and "last_crc" are always there. Strings
// escape only what JSON demands, as \" \\ \n \r \t or \u00xx; bytes that are no
// UTF-8 become U+FFFD.
func AppendLine(dst []byte, e *Entry) ([]byte, error) {
	if err := e.check(); err != nil {
		return dst, err
	}
	b := append(dst, `{"ev":"`...)
	b = append(b, kindNames[e.Kind]...)
	b = append(b, `","rid":`...)
	b = appendQuoted(b, e.RID)
	b = append(b, `,"amount":`...)
	b = strconv.AppendInt(b, e.Amount, 10)
	b = append(b, `,"t":`...)
	b = appendMicros(b, e.T)

	if e.Seq != 0 {
		b = strconv.AppendUint(append(b, `,"seq":`...), e.Seq, 10)
	}
	b = appendInt(b, `,"synced":`, e.Synced)
	b = appendString(b, `,"scope":`, e.Scope)
	b = appendString(b, `,"key":`, e.Key)
	b = appendString(b, `,"model":`, e.Model)
	b = appendCounters(b, &e.Change)
	if e.Usage != (Usage{}) {
		b = appendUsage(b, &e.Usage)
	}
	b = appendInt(b, `,"tries":`, e.Tries)
	b = appendString(b, `,"why":`, e.Why)
	b = appendString(b, `,"ref":`, e.Ref)
	b = appendString(b, `,"evidence":`, e.Evidence)
	b = appendString(b, `,"prices":`, e.Prices)
	b = appendTrue(b, `,"named":`, e.Named)
	b = appendTrue(b, `,"carried":`, e.Carried)
	if e.Cap != nil {
		b = appendCap(b, e.Cap)
	}
	if e.Opening != nil {
		b = appendOpening(b, e.Opening)
	}
	if e.Past != nil {
		b = appendPast(b, e.Past)
	}

	b = append(b, `,"prev":"`...)
	b = appendCRC(b, e.Prev)
	b = append(b, '"')
	e.CRC = checksum(b[len(dst):])
	b = append(b, `,"crc":"`...)
	b = appendCRC(b, e.CRC)
	b = append(b, "\"}\n"...)
	if n := len(b) - len(dst); n > maxLine(e.Kind == Open) {
		return dst, fmt.Errorf("%w: %s line of rid %.64q has %d bytes, at most %d are written", ErrTooLong, e.Kind, e.RID, n, maxLine(e.Kind == Open))
	}
	return b, nil
}

func maxLine(open bool) int {
	if open {
		return MaxOpenLine
	}
	return MaxLine
}

// fits refuses what has no line. Only what may be too long is encoded for that.
func (e *Entry) fits() error {
	n := len(e.RID) + len(e.Scope) + len(e.Key) + len(e.Model) + len(e.Why) + len(e.Ref) + len(e.Evidence) + len(e.Prices)
	if e.Opening != nil {
		for i := range e.Opening.Balances {
			n += 64 + len(e.Opening.Balances[i].Scope)
		}
	}
	if e.Past != nil {
		for i := range e.Past.Evidence {
			n += 64 + len(e.Past.Evidence[i].Key)
		}
	}
	if n < maxLine(e.Kind == Open)/8 { // a byte takes six at most
		return e.check()
	}
	line := *e
	_, err := AppendLine(nil, &line)
	return err
}

// check refuses what a line cannot say.
func (e *Entry) check() error {
	switch {
	case !e.Kind.Valid():
		return fmt.Errorf("journal: entry of rid %.64q has no valid kind (%d)", e.RID, e.Kind)
	case (e.Opening != nil) != (e.Kind == Open):
		return fmt.Errorf("journal: entry of kind %s: an opening belongs to open entries, and to each of them", e.Kind)
	case (e.Cap != nil) != (e.Kind == Limit):
		return fmt.Errorf("journal: entry of kind %s: a cap belongs to limit entries, and to each of them", e.Kind)
	}
	return nil
}

func appendCounters(b []byte, c *Change) []byte {
	b = appendInt(b, `,"cost":`, c.Cost)
	b = appendInt(b, `,"requests":`, c.Requests)
	b = appendInt(b, `,"confirmed":`, c.Confirmed)
	b = appendInt(b, `,"confirmed_cost":`, c.ConfirmedCost)
	b = appendInt(b, `,"assumed":`, c.Assumed)
	b = appendInt(b, `,"assumed_cost":`, c.AssumedCost)
	return appendInt(b, `,"maybe":`, c.Maybe)
}

func appendUsage(b []byte, u *Usage) []byte {
	b = append(b, `,"usage":{`...)
	start := len(b)
	b = appendInt(b, `,"in":`, u.In)
	b = appendInt(b, `,"cached":`, u.Cached)
	b = appendInt(b, `,"write":`, u.Write)
	b = appendInt(b, `,"out":`, u.Out)
	b = appendInt(b, `,"reasoning":`, u.Reasoning)
	b = appendInt(b, `,"images":`, u.Images)
	b = appendInt(b, `,"seconds":`, u.Seconds)
	b = appendInt(b, `,"characters":`, u.Characters)
	b = append(b[:start], b[start+1:]...) // the comma of whichever came first
	return append(b, '}')
}

func appendCap(b []byte, c *Cap) []byte {
	b = append(b, `,"limit":{"unit":`...)
	b = appendQuoted(b, c.Kind)
	if c.Unlimited {
		b = append(b, `,"unlimited":true`...)
	} else {
		b = append(b, `,"max":`...)
		b = strconv.AppendInt(b, c.Max, 10)
		b = appendInt(b, `,"told":`, c.Told)
	}
	return append(b, '}')
}

func appendOpening(b []byte, o *Opening) []byte {
	b = append(b, `,"format":`...)
	b = strconv.AppendInt(b, int64(o.Version), 10)
	b = append(b, `,"book":`...)
	b = appendQuoted(b, o.Book)
	b = append(b, `,"segment":`...)
	b = strconv.AppendInt(b, o.Segment, 10)
	b = append(b, `,"last_crc":"`...)
	b = appendCRC(b, o.LastCRC)
	b = append(b, '"')
	b = appendInt(b, `,"carries":`, o.Carries)
	for i := range o.Balances {
		b = append(b, listStart(`,"balances":[`, i)...)
		b = append(b, `{"scope":`...)
		b = appendQuoted(b, o.Balances[i].Scope)
		b = appendInt(b, `,"amount":`, o.Balances[i].Amount)
		b = appendCounters(b, &o.Balances[i].Change)
		b = append(b, '}')
	}
	return appendListEnd(b, len(o.Balances))
}

func appendPast(b []byte, p *Past) []byte {
	b = append(b, `,"past":{"state":`...)
	b = appendQuoted(b, p.State)
	if p.Opened != 0 {
		b = appendMicros(append(b, `,"opened":`...), p.Opened)
	}
	b = appendInt(b, `,"each":`, p.Each)
	b = appendInt(b, `,"each_cost":`, p.EachCost)
	b = appendInt(b, `,"lost":`, p.Lost)
	b = appendInt(b, `,"confirmed":`, p.Confirmed)
	b = appendInt(b, `,"confirmed_cost":`, p.ConfirmedCost)
	b = appendInt(b, `,"assumed":`, p.Assumed)
	b = appendInt(b, `,"assumed_cost":`, p.AssumedCost)
	b = appendInt(b, `,"maybe":`, p.Maybe)
	b = appendInt(b, `,"last_cost":`, p.LastCost)
	b = appendInt(b, `,"held":`, p.Held)
	b = appendInt(b, `,"held_cost":`, p.HeldCost)
	b = appendTrue(b, `,"unsent":`, p.Unsent)
	for i := range p.Evidence {
		b = append(b, listStart(`,"evidence":[`, i)...)
		b = append(b, `{"key":`...)
		b = appendQuoted(b, p.Evidence[i].Key)
		if p.Evidence[i].Usage != (Usage{}) {
			b = appendUsage(b, &p.Evidence[i].Usage)
		}
		b = appendInt(b, `,"cost":`, p.Evidence[i].Cost)
		b = append(b, '}')
	}
	b = appendListEnd(b, len(p.Evidence))
	return append(b, '}')
}

// listStart is what stands before element i of a list.
func listStart(name string, i int) string {
	if i == 0 {
		return name
	}
	return ","
}

func appendListEnd(b []byte, n int) []byte {
	if n == 0 {
		return b // it was never begun
	}
	return append(b, ']')
}

func appendInt(b []byte, name string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), n, 10)
}

func appendTrue(b []byte, name string, is bool) []byte {
	if !is {
		return b
	}
	return append(append(b, name...), "true"...)
}

func appendString(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	return appendQuoted(append(b, name...), s)
}

const hexDigits = "0123456789abcdef"

func appendCRC(b []byte, crc uint32) []byte {
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[crc>>shift&15])
	}
	return b
}

func appendMicros(b []byte, t int64) []byte {
	micros := uint64(t)
	if t < 0 {
		b, micros = append(b, '-'), -micros
	}
	b = strconv.AppendUint(b, micros/1e6, 10)
	rest := micros % 1e6
	if rest == 0 {
		return b
	}
	b = append(b, '.')
	for unit := uint64(1e5); rest > 0; unit /= 10 {
		b = append(b, byte('0'+rest/unit))
		rest %= unit
	}
	return b
}

// plain reports whether a byte stands for itself inside a JSON string.
func plain(c byte) bool { return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' }

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for len(s) > 0 {
		n := 0
		for n < len(s) && plain(s[n]) {
			n++
		}
		b = append(b, s[:n]...)
		if s = s[n:]; s == "" {
			break
		}
		if s[0] >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s)
			b = utf8.AppendRune(b, r) // U+FFFD for what is no UTF-8
			s = s[size:]
			continue
		}
		b = appendEscape(b, s[0])
		s = s[1:]
	}
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}
