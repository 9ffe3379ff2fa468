package providertest

import (
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"
)

// Bill is what was consumed, whether or not the client ever learnt it.
type Bill struct {
	Requests         int64 `json:"requests"` // that were billed
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

func (b *Bill) add(requests, prompt, completion int64) {
	b.Requests += requests
	b.PromptTokens += prompt
	b.CompletionTokens += completion
	b.TotalTokens += prompt + completion
}

// Seen counts what was asked, as GET /sim/seen shows it.
type Seen struct {
	Requests  int64           `json:"requests"`   // POSTs to a path that spends, valid or not
	Bodies    int64           `json:"bodies"`     // different ones among them
	Full      int64           `json:"full"`       // bodies answered in full, with status 200
	FullAgain int64           `json:"full_again"` // bodies answered in full more than once
	Faults    map[Fault]int64 `json:"faults"`     // served, by kind
}

// Record is what the books hold of one request body: its hash and counts,
// never the body.
type Record struct {
	Hash     string  // of seed, path and body
	Requests int64   // how often it came
	Full     int64   // how often its answer was written to the last byte, with status 200
	Faults   []Fault // kinds it met, each once
}

type hash [16]byte

type tally struct {
	requests, full uint32
	faults         uint16 // bit i: kinds[i]
}

// slot is where the usage report finds a bill.
type slot struct {
	minute int64 // Unix time / 60
	report string
	model  string
}

// books are what the provider knows about itself: per request 24 bytes, and
// that only for the first of its kind.
type books struct {
	mu     sync.Mutex
	bill   Bill
	bodies map[hash]tally
	usage  map[slot]Bill
	counts Seen // Faults unused, see faults
	faults [16]int64
}

// see notes the arrival of a request and returns which attempt at this body
// it is, counting from 1.
func (b *books) see(h hash) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bodies == nil {
		b.bodies, b.usage = map[hash]tally{}, map[slot]Bill{}
	}
	t := b.bodies[h]
	t.requests++
	b.bodies[h] = t
	b.counts.Requests++
	if t.requests == 1 {
		b.counts.Bodies++
	}
	return int(t.requests)
}

func (b *books) met(h hash, f Fault) {
	if f == "" {
		return
	}
	i := slices.Index(kinds, f)
	if i < 0 {
		panic(fmt.Sprintf("providertest: Options.Pick returned %q, which is no fault", f))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.bodies[h]
	t.faults |= 1 << i
	b.bodies[h] = t
	b.faults[i]++
}

func (b *books) full(h hash) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.bodies[h]
	t.full++
	b.bodies[h] = t
	switch t.full {
	case 1:
		b.counts.Full++
	case 2:
		b.counts.FullAgain++
	}
}

func (b *books) charge(report, model string, requests, prompt, completion int64) {
	s := slot{time.Now().Unix() / 60, report, model}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bill.add(requests, prompt, completion)
	u := b.usage[s]
	u.add(requests, prompt, completion)
	b.usage[s] = u
}

// Bill returns the true bill so far. A request is on it before the first byte
// of its answer leaves.
func (p *Provider) Bill() Bill {
	p.books.mu.Lock()
	defer p.books.mu.Unlock()
	return p.books.bill
}

// Seen returns the counts so far.
func (p *Provider) Seen() Seen {
	b := &p.books
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.counts
	s.Faults = map[Fault]int64{}
	for i, k := range kinds {
		if b.faults[i] > 0 {
			s.Faults[k] = b.faults[i]
		}
	}
	return s
}

// Record returns what is known of one body as it was sent to path.
func (p *Provider) Record(path string, body []byte) Record {
	h := p.hash(path, body)
	p.books.mu.Lock()
	defer p.books.mu.Unlock()
	return p.books.bodies[h].record(h)
}

// Records yields the record of every body, in no order. It works on a copy:
// calls may come meanwhile.
func (p *Provider) Records() iter.Seq[Record] {
	p.books.mu.Lock()
	all := make([]Record, 0, len(p.books.bodies))
	for h, t := range p.books.bodies {
		all = append(all, t.record(h))
	}
	p.books.mu.Unlock()
	return slices.Values(all)
}

func (t tally) record(h hash) Record {
	r := Record{Hash: hex.EncodeToString(h[:]), Requests: int64(t.requests), Full: int64(t.full)}
	for i, k := range kinds {
		if t.faults&(1<<i) != 0 {
			r.Faults = append(r.Faults, k)
		}
	}
	return r
}
