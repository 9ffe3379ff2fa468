package budget

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tollbook/tollbook/journal"
)

// Unit is what a limit counts. The zero Unit is not valid.
type Unit uint8

// The units.
const (
	TokenUnit   Unit = iota + 1 // tokens
	CostUnit                    // picodollars
	RequestUnit                 // attempts that left, or may have left
)

var unitNames = [...]string{TokenUnit: "tokens", CostUnit: "cost", RequestUnit: "requests"}

// String returns "tokens", "cost" or "requests", as the journal writes it.
func (u Unit) String() string {
	if u.valid() {
		return unitNames[u]
	}
	return fmt.Sprintf("Unit(%d)", uint8(u))
}

func (u Unit) valid() bool { return u >= TokenUnit && u <= RequestUnit }

// Format writes an amount of this unit for people: "1200 tokens", "12.50 USD".
func (u Unit) Format(n int64) string {
	if u == CostUnit {
		return FormatUSD(n)
	}
	return strconv.FormatInt(n, 10) + " " + u.String()
}

// of picks the unit's net figure.
func (u Unit) of(c journal.Change) int64 { return u.in(&c) }

// in is of without a copy: to copy what was just added to takes longer than all
// the adding.
func (u Unit) in(c *journal.Change) int64 {
	switch u {
	case TokenUnit:
		return c.Amount
	case CostUnit:
		return c.Cost
	default:
		return c.Requests
	}
}

// spent picks the unit's part that no refund gives back: all but the holds.
func (u Unit) spent(c journal.Change) int64 {
	switch u {
	case TokenUnit:
		return c.Confirmed + c.Assumed
	case CostUnit:
		return c.ConfirmedCost + c.AssumedCost
	default:
		return c.Requests
	}
}

// Limit caps one unit for a scope and all below it. Where no limit is set the
// unit is unlimited; a limit of zero admits nothing. Make one with [Tokens],
// [USD], [Picodollars] or [Requests]; a Limit is also an [Option] of Open.
type Limit struct {
	Unit      Unit
	Max       int64
	Scope     string // empty is the root: the whole book
	Unlimited bool   // lifts the cap; Max says nothing

	err error
}

// Tokens limits tokens.
func Tokens(n int64) Limit { return Limit{Unit: TokenUnit, Max: n} }

// Requests limits attempts: every one that left, or may have left.
func Requests(n int64) Limit { return Limit{Unit: RequestUnit, Max: n} }

// Picodollars limits money: 1 USD = 10^12 picodollars.
func Picodollars(n int64) Limit { return Limit{Unit: CostUnit, Max: n} }

// USD limits money, given as a decimal such as "5" or "0.25". A string that is
// not one makes Open and SetLimit fail; it is never read as zero.
func USD(decimal string) Limit {
	n, err := ParseUSD(decimal)
	return Limit{Unit: CostUnit, Max: n, err: err}
}

// On returns the same limit on a scope such as "team/a".
func (l Limit) On(scope string) Limit { l.Scope = scope; return l }

// Check returns an [*InvalidError] for what no limit can be: one without a unit or
// with a scope that is none, below zero, or above [MaxTokens] or [MaxCost].
func (l Limit) Check() error {
	switch {
	case l.err != nil:
		return l.err
	case !l.Unit.valid():
		return &InvalidError{What: "limit", Reason: "it names no unit; make it with Tokens, USD or Requests"}
	case l.Max < 0:
		return &InvalidError{What: "limit", Reason: fmt.Sprintf("%d %s is negative", l.Max, l.Unit)}
	case l.Unit != CostUnit && l.Max > MaxTokens:
		return &InvalidError{What: "limit", Reason: fmt.Sprintf("%d %s is above %d", l.Max, l.Unit, int64(MaxTokens))}
	case l.Max > MaxCost:
		return &InvalidError{What: "limit", Reason: fmt.Sprintf("%s is above %s", FormatUSD(l.Max), FormatUSD(MaxCost))}
	}
	return checkScope(l.Scope)
}

// apply makes a Limit an Option.
func (l Limit) apply(c *config) { c.limits = append(c.limits, l) }

// ParseUSD reads a decimal number of dollars, exact to the picodollar.
func ParseUSD(decimal string) (int64, error) {
	bad := &InvalidError{What: "money", Reason: fmt.Sprintf("%q is not a decimal number of dollars with at most 12 digits behind the point", decimal)}
	whole, frac, point := strings.Cut(decimal, ".")
	if whole == "" || len(frac) > 12 || (point && frac == "") {
		return 0, bad
	}
	digits := whole + frac + strings.Repeat("0", 12-len(frac))
	if strings.Trim(digits, "0123456789") != "" {
		return 0, bad
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > MaxCost {
		return 0, &InvalidError{What: "money", Reason: fmt.Sprintf("%q is above %s", decimal, FormatUSD(MaxCost))}
	}
	return n, nil
}

// FormatUSD writes picodollars as dollars: two digits behind the point, more
// where they are not zero.
func FormatUSD(picodollars int64) string {
	sign, n := "", uint64(picodollars)
	if picodollars < 0 {
		sign, n = "-", uint64(math.MaxUint64)-uint64(picodollars)+1
	}
	frac := strings.TrimRight(fmt.Sprintf("%012d", n%1e12), "0")
	for len(frac) < 2 {
		frac += "0"
	}
	return fmt.Sprintf("%s%d.%s USD", sign, n/1e12, frac)
}
