package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// parseForeign reads a line of any ledger that has "ev", "rid" and "amount",
// as in
//
//	{"ev": "refund", "rid": "4da43c6da5d7", "amount": -1323, "t": 1790000000.38}
//
// Spaces, the order of fields, fields it does not know and missing ones are no
// matter; the names it knows mean what they mean in [AppendLine]. A line that
// has this package's own "prev" or "crc" must be one by [ParseLine]'s rules, so
// that damage is not read over as foreign. An error says in words what is
// wrong, and does not repeat the line.
// e is of use only without one. text is the line once more, as for parseLine.
func parseForeign(line []byte, text string) (e Entry, err error) {
	line, text = bytes.TrimSpace(line), strings.TrimSpace(text)
	if n := len(line) - len(crcField); n > 0 && bytes.HasPrefix(line[n:], []byte(crcField[:8])) {
		err := parseLine(line, text, &e) // ours, seen at a glance
		return e, err
	}
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return e, jsonReason(err)
	}
	if isCRC(w.Prev) || isCRC(w.CRC) {
		err := parseLine(line, text, &e)
		return e, err
	}
	kind, ok := ParseKind(w.Ev)
	switch {
	case w.Ev == "":
		return e, badLine("no ev")
	case !ok:
		return e, badLine("an ev that no entry has")
	case w.RID == nil:
		return e, badLine("no rid")
	case w.Amount == nil:
		return e, badLine("no amount")
	}
	e = Entry{
		Kind: kind, RID: *w.RID, Change: w.change(*w.Amount), Seq: w.Seq, Synced: w.Synced,
		Scope: w.Scope, Key: w.Key, Model: w.Model, Usage: Usage(w.Usage), Tries: w.Tries,
		Why: w.Why, Ref: w.Ref, Evidence: w.Evidence, Prices: w.Prices, Named: w.Named, Carried: w.Carried,
	}
	if kind == Limit {
		e.Cap = &Cap{Kind: w.Limit.Unit, Max: w.Limit.Max, Told: w.Limit.Told, Unlimited: w.Limit.Unlimited}
	}
	if kind == Open {
		e.Opening = w.opening()
	}
	if e.T, err = w.T.micros(); err == nil && w.Past != nil {
		e.Past, err = w.Past.past()
	}
	return e, err
}

// wire is a line as package json reads it.
type wire struct {
	Ev     string   `json:"ev"`
	RID    *string  `json:"rid"`
	Amount *int64   `json:"amount"`
	T      unixTime `json:"t"`
	Seq    uint64   `json:"seq"`
	Synced int64    `json:"synced"`
	Scope  string   `json:"scope"`
	Key    string   `json:"key"`
	Model  string   `json:"model"`
	wireCounters
	Usage    wireUsage `json:"usage"`
	Tries    int64     `json:"tries"`
	Why      string    `json:"why"`
	Ref      string    `json:"ref"`
	Evidence string    `json:"evidence"`
	Prices   string    `json:"prices"`
	Named    bool      `json:"named"`
	Carried  bool      `json:"carried"`
	Limit    struct {
		Unit      string `json:"unit"`
		Max       int64  `json:"max"`
		Told      int64  `json:"told"`
		Unlimited bool   `json:"unlimited"`
	} `json:"limit"`
	Format   int    `json:"format"`
	Book     string `json:"book"`
	Segment  int64  `json:"segment"`
	LastCRC  string `json:"last_crc"`
	Carries  int64  `json:"carries"`
	Balances []struct {
		Scope  string `json:"scope"`
		Amount int64  `json:"amount"`
		wireCounters
	} `json:"balances"`
	Past *wirePast       `json:"past"`
	Prev json.RawMessage `json:"prev"`
	CRC  json.RawMessage `json:"crc"`
}

type wireCounters struct {
	Cost          int64 `json:"cost"`
	Requests      int64 `json:"requests"`
	Confirmed     int64 `json:"confirmed"`
	ConfirmedCost int64 `json:"confirmed_cost"`
	Assumed       int64 `json:"assumed"`
	AssumedCost   int64 `json:"assumed_cost"`
	Maybe         int64 `json:"maybe"`
}

type wireUsage struct {
	In        int64 `json:"in"`
	Cached    int64 `json:"cached"`
	Write     int64 `json:"write"`
	Out       int64 `json:"out"`
	Reasoning int64 `json:"reasoning"`

	Images     int64 `json:"images"`
	Seconds    int64 `json:"seconds"`
	Characters int64 `json:"characters"`
}

type wirePast struct {
	State         string   `json:"state"`
	Opened        unixTime `json:"opened"`
	Each          int64    `json:"each"`
	EachCost      int64    `json:"each_cost"`
	Lost          int64    `json:"lost"`
	Confirmed     int64    `json:"confirmed"`
	ConfirmedCost int64    `json:"confirmed_cost"`
	Assumed       int64    `json:"assumed"`
	AssumedCost   int64    `json:"assumed_cost"`
	Maybe         int64    `json:"maybe"`
	LastCost      int64    `json:"last_cost"`
	Held          int64    `json:"held"`
	HeldCost      int64    `json:"held_cost"`
	Unsent        bool     `json:"unsent"`
	Evidence      []struct {
		Key   string    `json:"key"`
		Usage wireUsage `json:"usage"`
		Cost  int64     `json:"cost"`
	} `json:"evidence"`
}

func (c wireCounters) change(amount int64) Change {
	return Change{Amount: amount, Cost: c.Cost, Requests: c.Requests, Confirmed: c.Confirmed,
		ConfirmedCost: c.ConfirmedCost, Assumed: c.Assumed, AssumedCost: c.AssumedCost, Maybe: c.Maybe}
}

func (w *wire) opening() *Opening {
	crc, _ := strconv.ParseUint(w.LastCRC, 16, 32)
	o := &Opening{Version: w.Format, Book: w.Book, Segment: w.Segment, LastCRC: uint32(crc), Carries: w.Carries}
	for _, b := range w.Balances {
		o.Balances = append(o.Balances, Balance{Scope: b.Scope, Change: b.change(b.Amount)})
	}
	return o
}

func (w *wirePast) past() (*Past, error) {
	opened, err := w.Opened.micros()
	if err != nil {
		return nil, err
	}
	p := &Past{State: w.State, Opened: opened, Each: w.Each, EachCost: w.EachCost, Lost: w.Lost,
		Confirmed: w.Confirmed, ConfirmedCost: w.ConfirmedCost, Assumed: w.Assumed, AssumedCost: w.AssumedCost,
		Maybe: w.Maybe, LastCost: w.LastCost, Held: w.Held, HeldCost: w.HeldCost, Unsent: w.Unsent}
	for _, e := range w.Evidence {
		p.Evidence = append(p.Evidence, Proof{Key: e.Key, Usage: Usage(e.Usage), Cost: e.Cost})
	}
	return p, nil
}

// unixTime is seconds as a JSON number, of whatever precision and notation.
type unixTime struct{ json.Number }

func (t unixTime) micros() (int64, error) {
	if t.Number == "" {
		return 0, nil
	}
	p := parser{line: string(t.Number)}
	if micros := p.micros(); p.bad == "" && p.rest() == "" {
		return micros, nil
	}
	seconds, err := t.Float64()
	if micros := math.Round(seconds * 1e6); err == nil && math.Abs(micros) < math.MaxInt64 {
		return int64(micros), nil
	}
	return 0, badLine("t is no time")
}

func (t *unixTime) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &t.Number) }

// isCRC reports whether a field holds what this package writes: eight
// lower-case hex digits in quotes.
func isCRC(field []byte) bool {
	if len(field) != 10 || field[0] != '"' {
		return false
	}
	p := parser{line: string(field[1:9])}
	p.hex()
	return p.bad == ""
}

// jsonReason keeps of an error where it is and which type was due, and drops
// what would repeat content.
func jsonReason(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return badLine("no JSON object")
		}
		return badLine(fmt.Sprintf("field %q is not %s", e.Field, dueName(e.Type.Kind())))
	}
	return err
}

func dueName(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	}
	return "a whole number of 64 bits"
}
