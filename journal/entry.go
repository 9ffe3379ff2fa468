package journal

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Kind says what an [Entry] records. The zero Kind is not valid, so that a
// forgotten field never passes for a fact.
type Kind uint8

// The kinds of entries, in the words of the line format.
const (
	Open    Kind = iota + 1 // a segment's first line, with the balances so far
	Reserve                 // an amount is held under a rid
	Extend                  // the hold for one further attempt
	Settle                  // closed: what was used, as reported or as assumed
	Refund                  // closed: provably nothing was used
	Reclaim                 // a refund reversed: the job came back after all
	Adjust                  // evidence for an assumed figure
	Limit                   // a cap set, changed or lifted
	Carry                   // what must be remembered of a closed rid
	Seal                    // the clean end of a segment
)

var kindNames = [...]string{Open: "open", Reserve: "reserve", Extend: "extend", Settle: "settle", Refund: "refund",
	Reclaim: "reclaim", Adjust: "adjust", Limit: "limit", Carry: "carry", Seal: "seal"}

// String returns the word that the line format uses in "ev".
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Valid reports whether k is one of the kinds above.
func (k Kind) Valid() bool { return k >= Open && k <= Seal }

// ParseKind is the reverse of [Kind.String]; ok is false for any other word.
func ParseKind(word string) (k Kind, ok bool) {
	for k := Open; k <= Seal; k++ {
		if kindNames[k] == word {
			return k, true
		}
	}
	return 0, false
}

// Change is what one entry adds to the counters; a balance is the sum of the
// changes of all entries before it. Tokens are whole tokens, money is whole
// picodollars (1 USD = 10^12).
type Change struct {
	Amount        int64 // net tokens: confirmed, assumed and held
	Cost          int64 // net picodollars
	Requests      int64 // attempts: +1 per reserve and extend, -1 per attempt never sent
	Confirmed     int64 // tokens the provider reported
	ConfirmedCost int64 // picodollars for these
	Assumed       int64 // tokens spent as far as must be assumed
	AssumedCost   int64 // picodollars for these
	Maybe         int64 // attempts whose figure is assumed
}

// ErrOverflow is returned where a sum of changes leaves the range of int64.
var ErrOverflow = errors.New("journal: sum overflows 64 bits")

// Add adds d to c, or returns [ErrOverflow] and leaves c as it was.
func (c *Change) Add(d *Change) error {
	amount, cost, requests, maybe := c.Amount+d.Amount, c.Cost+d.Cost, c.Requests+d.Requests, c.Maybe+d.Maybe
	confirmed, confirmedCost := c.Confirmed+d.Confirmed, c.ConfirmedCost+d.ConfirmedCost
	assumed, assumedCost := c.Assumed+d.Assumed, c.AssumedCost+d.AssumedCost
	over := wrapped(c.Amount, d.Amount, amount) | wrapped(c.Cost, d.Cost, cost) | wrapped(c.Requests, d.Requests, requests) |
		wrapped(c.Confirmed, d.Confirmed, confirmed) | wrapped(c.ConfirmedCost, d.ConfirmedCost, confirmedCost) |
		wrapped(c.Assumed, d.Assumed, assumed) | wrapped(c.AssumedCost, d.AssumedCost, assumedCost) | wrapped(c.Maybe, d.Maybe, maybe)
	if over < 0 {
		return ErrOverflow
	}
	c.Amount, c.Cost, c.Requests, c.Maybe = amount, cost, requests, maybe
	c.Confirmed, c.ConfirmedCost, c.Assumed, c.AssumedCost = confirmed, confirmedCost, assumed, assumedCost
	return nil
}

// Plus returns c + d, or [ErrOverflow].
func (c Change) Plus(d Change) (Change, error) {
	err := c.Add(&d)
	return c, err
}

// wrapped is negative if the sum of a and b left int64: its sign is then that of
// neither.
func wrapped(a, b, sum int64) int64 { return (a ^ sum) & (b ^ sum) }

// Negated returns -c. The most negative int64 has no negation; no counter
// reaches it, because sums are checked and amounts are bounded far below.
func (c Change) Negated() Change {
	return Change{-c.Amount, -c.Cost, -c.Requests, -c.Confirmed, -c.ConfirmedCost, -c.Assumed, -c.AssumedCost, -c.Maybe}
}

// Usage is what a provider reported, in tokens: In includes Cached and Write,
// Out includes Reasoning. The others count what some models are sold by besides.
type Usage struct {
	In, Cached, Write, Out, Reasoning int64
	Images, Seconds, Characters       int64
}

// Entry is one immutable fact. The guard fills in everything but Seq, Synced,
// Prev and CRC, which belong to the journal that stores it.
type Entry struct {
	Kind Kind
	RID  string // empty for open, limit and seal
	Change
	T int64 // Unix time in microseconds

	Seq    uint64 // position in the journal, rising by one; the first is 1
	Synced int64  // offset in the segment known durable when the line was built
	Prev   uint32 // CRC of the line before
	CRC    uint32 // CRC-32C of the line up to `,"crc"`

	Scope    string // path such as "nightly/shard-3"; empty is the root
	Key      string // the caller's business name for the intent
	Model    string
	Usage    Usage
	Tries    int64  // attempts so far, at a close
	Why      string // what became of the last attempt
	Ref      string // the provider's request id
	Evidence string // adjust: names the evidence, once each
	Prices   string // date of the price table the cost was taken from
	Named    bool   // the rid was the caller's own
	Carried  bool   // repeats, in a new segment, what an older one holds

	Cap     *Cap     // limit
	Opening *Opening // open
	Past    *Past    // carry, and carried reserve lines
}

// Cap is the content of a [Limit] entry: one cap on one kind of amount.
type Cap struct {
	Kind      string // "tokens", "cost" or "requests"
	Max       int64  // zero is zero
	Told      int64  // percent of Max up to which its soft limits are told; zero is none
	Unlimited bool   // the cap is lifted; Max and Told say nothing
}

// Opening is the content of an [Open] entry. The entry's own Change holds the
// balance of the root scope without what is still open.
type Opening struct {
	Version  int    // of the format
	Book     string // id of the book, the same in all its segments
	Segment  int64  // number of the segment, from 1
	LastCRC  uint32 // CRC of the last line of the segment before
	Carries  int64  // how many lines after this one were made durable together with it
	Balances []Balance
}

// Balance is what stands on one scope below the root, without what is still open.
type Balance struct {
	Scope string
	Change
}

// Past is what later entries may still need of a reservation whose own lines
// lie in an older segment.
type Past struct {
	State         string // "open", "settled" or "refunded"
	Opened        int64  // carry: Unix microseconds of its reserve; the entry's T is that of its close
	Each          int64  // hold of one attempt, in tokens
	EachCost      int64
	Lost          int64 // earlier attempts charged at their hold
	Confirmed     int64
	ConfirmedCost int64
	Assumed       int64
	AssumedCost   int64
	Maybe         int64 // attempts whose figure is assumed
	LastCost      int64 // the part of AssumedCost that stands for the last attempt
	Held          int64 // tokens held when it was closed
	HeldCost      int64
	Unsent        bool // refunded: the last attempt was never sent
	Evidence      []Proof
}

// Proof is one piece of evidence already booked for a closed reservation.
type Proof struct {
	Key   string
	Usage Usage
	Cost  int64 // picodollars it confirmed
}

// Pos is a place in a journal: the Seq of the last entry before it. Zero is
// the beginning.
type Pos uint64

// Batch is what one Append makes durable: all of it or, reported, nothing.
type Batch struct {
	ID      uuid.UUID // names the batch, so that repeating it is safe
	Entries []Entry
}

// Errors that every journal returns, wrapped with its own words.
var (
	// ErrConflict: the journal no longer ends where the caller thought.
	ErrConflict = errors.New("journal: conflict: it has grown since it was read")
	// ErrCorrupt: bytes that were durable are damaged. Writing is refused.
	ErrCorrupt = errors.New("journal: corrupt")
	// ErrLocked: another process holds the journal.
	ErrLocked = errors.New("journal: locked by another process")
	// ErrClosed: the journal was closed.
	ErrClosed = errors.New("journal: closed")
	// ErrTooLong: a line longer than a journal writes; read, it is damage.
	ErrTooLong = errors.New("journal: line too long")
	// ErrFull: no space left; nothing of the batch is in the journal.
	ErrFull = errors.New("journal: disk full")
	// ErrPoisoned: a write or fsync failed in a way that leaves the file in
	// doubt; every later call fails until the journal is opened anew.
	ErrPoisoned = errors.New("journal: poisoned by an earlier failure")
)
