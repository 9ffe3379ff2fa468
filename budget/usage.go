package budget

import (
	"fmt"

	"github.com/tollbook/tollbook/journal"
)

// MaxTokens is the largest number of tokens one reservation, one usage or one
// limit may name: 2^53, the largest integer every JSON reader holds exactly.
// More is an error, never a wrapped or clipped figure.
const MaxTokens = 1 << 53

// MaxCost is the same for money, in picodollars: about 1.1 million dollars.
const MaxCost = 1 << 60

// Units count what some models are sold by instead of tokens, or besides them.
// Limits know tokens, money and requests: of units only the price counts.
type Units struct {
	Images     int64 // generated
	Seconds    int64 // of sound, rounded up
	Characters int64 // of text to be spoken
}

// Usage is what one attempt used, in tokens. The zero Usage means that nothing
// is known, and unknown is charged at the hold; [NothingUsed] says that
// nothing was used indeed.
type Usage struct {
	Input      int64 // all prompt-side tokens, Cached and CacheWrite included
	Cached     int64 // part of Input read from the provider's cache
	CacheWrite int64 // part of Input written to it
	Output     int64 // all generated tokens, Reasoning included
	Reasoning  int64 // part of Output
	Units

	// Cost in picodollars, where it is known from elsewhere. Zero: the book's
	// Pricer says, for reservations that hold money.
	Cost int64
	// Estimated: counted by us, not reported by the provider. It is booked as
	// assumed, and evidence may correct it.
	Estimated bool
	// Ref is the provider's request id and Why says in a word or two why the
	// figure is unknown or estimated. Both are kept in the entry, cut to 128
	// bytes and to what can be printed.
	Ref string
	Why string

	nothing bool
}

// NothingUsed is the usage of an attempt that reached the provider and
// provably used nothing.
var NothingUsed = Usage{nothing: true}

// CostOnly is the usage of an attempt that used no tokens and cost this many
// picodollars.
func CostOnly(picodollars int64) Usage { return Usage{Cost: picodollars, nothing: true} }

// Total is Input + Output.
func (u Usage) Total() int64 { return u.Input + u.Output }

// Known reports whether u holds a figure, be it zero.
func (u Usage) Known() bool {
	return u.nothing || u.Input != 0 || u.Output != 0 || u.Units != Units{}
}

// free reports whether u says that nothing was used, of whatever kind.
func (u *Usage) free() bool { return u.Known() && u.Total() == 0 && u.Units == Units{} && u.Cost == 0 }

// Check returns an [*InvalidError] for figures that no attempt can have: a
// negative one, a part above its whole, or one above [MaxTokens] or [MaxCost].
func (u Usage) Check() error {
	if uint64(u.Input|u.Cached|u.CacheWrite|u.Output|u.Reasoning|u.Images|u.Seconds|u.Characters) >= MaxTokens { // then one may be; the sign counts, too
		for i, n := range [...]int64{u.Input, u.Cached, u.CacheWrite, u.Output, u.Reasoning, u.Images, u.Seconds, u.Characters} {
			if n < 0 || n > MaxTokens {
				return outside("usage", [...]string{"input", "cached", "cache write", "output", "reasoning", "images", "seconds", "characters"}[i], n, 0, MaxTokens)
			}
		}
	}
	switch {
	case u.Cached+u.CacheWrite > u.Input:
		return &InvalidError{What: "usage", Reason: fmt.Sprintf("cached %d and cache write %d exceed the input of %d tokens that holds them", u.Cached, u.CacheWrite, u.Input)}
	case u.Reasoning > u.Output:
		return &InvalidError{What: "usage", Reason: fmt.Sprintf("reasoning %d exceeds the output of %d tokens that holds it", u.Reasoning, u.Output)}
	case u.Total() > MaxTokens:
		return &InvalidError{What: "usage", Reason: fmt.Sprintf("total of %d tokens is above %d", u.Total(), int64(MaxTokens))}
	case u.Cost != 0 && !u.Known():
		return &InvalidError{What: "usage", Reason: fmt.Sprintf("a cost of %d picodollars without what it is for; give the tokens too, or CostOnly if it used none", u.Cost)}
	case u.Cost < 0 || u.Cost > MaxCost:
		return &InvalidError{What: "usage", Reason: fmt.Sprintf("cost of %d picodollars is outside 0 to %d", u.Cost, int64(MaxCost))}
	}
	return nil
}

// figures are the tokens of u, as the journal writes them.
func (u Usage) figures() journal.Usage {
	return journal.Usage{In: u.Input, Cached: u.Cached, Write: u.CacheWrite, Out: u.Output, Reasoning: u.Reasoning,
		Images: u.Images, Seconds: u.Seconds, Characters: u.Characters}
}

// Pricer tells what usage costs. Implementations must be safe for concurrent
// use and answer from memory: the guard asks while it decides.
type Pricer interface {
	// Cost of u by model in picodollars, rounded up. An unknown model, or a unit
	// that has no price, is [ErrNoPrice], never a cost of zero.
	Cost(model string, u Usage) (int64, error)
	// Most is the most that usage of u's Input, Output and Units can cost by
	// model, whatever of the tokens the provider counts as cached, written to its
	// cache, or reasoning. It is held for an attempt, whose Cost it must not be
	// below.
	Most(model string, u Usage) (int64, error)
	// Table names the price table by its date ("2026-11-01"); it is pinned in
	// the entries priced by it.
	Table() string
}
