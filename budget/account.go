package budget

import (
	"fmt"
	"strings"

	"github.com/tollbook/tollbook/journal"
)

// maxScopes bounds the scopes of a book, whose balances must fit into the open
// line of a segment.
const maxScopes = 100_000

// account is what stands on one scope, all below it included.
type account struct {
	scope   string
	number  int        // in the order they were made
	path    []*account // itself, its parent, … the root
	sum     journal.Change
	open    int64
	caps    [RequestUnit + 1]capacity // by Unit
	waiters int                       // reserves waiting for room here
	pass    int                       // of the waiters' last retest that found it full
}

type capacity struct {
	set  bool
	told uint8 // percent up to which its soft limits are told
	max  int64
	next int64 // spent, the next one is reached
}

// known returns the account of a scope, if there is one. The same scope is often
// asked for again.
func (l *ledger) known(scope string) *account {
	last := l.recent.at(scope)
	if a := *last; a != nil && a.scope == scope {
		return a
	}
	a := l.accounts[scope]
	if a != nil {
		*last = a
	}
	return a
}

// recent keeps some of what was found by name, to be found again without a map.
type recent[T any] [64]T

func (r *recent[T]) at(name string) *T {
	if name == "" {
		return &r[0]
	}
	return &r[(16*len(name)+int(name[len(name)-1]))%len(r)]
}

// account returns the account of a scope, made where it is new.
func (l *ledger) account(scope string) *account {
	if a := l.known(scope); a != nil {
		return a
	}
	parent, scope := "", strings.Clone(scope)
	if i := strings.LastIndexByte(scope, '/'); i >= 0 {
		parent = scope[:i]
	}
	a := &account{scope: scope}
	a.path = append([]*account{a}, l.account(parent).path...)
	a.number = len(l.numbered)
	l.accounts[scope], l.numbered = a, append(l.numbered, a)
	return a
}

// nearest returns the account of a scope, or of what stands above it as long as
// nothing was booked on it: the same limits hold for both.
func (l *ledger) nearest(scope string) *account {
	for {
		if a := l.known(scope); a != nil {
			return a
		}
		scope = scope[:max(0, strings.LastIndexByte(scope, '/'))]
	}
}

// room refuses a scope that is one too many.
func (l *ledger) room(scope string) error {
	if l.known(scope) == nil && len(l.accounts)+strings.Count(scope, "/") >= maxScopes {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q would be one too many: the book has %d; scopes are for teams, runs and shards, keys are for calls", scope, len(l.accounts))}
	}
	return nil
}

// checkScope refuses paths that are not ones: empty segments, control
// characters, more than 256 bytes.
func checkScope(scope string) error {
	if scope == "" {
		return nil
	}
	if strings.HasPrefix(scope, "/") || strings.HasSuffix(scope, "/") || strings.Contains(scope, "//") {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q has an empty segment; write it as a/b/c", scope)}
	}
	if strings.ContainsAny(scope, "\"\\") {
		return &InvalidError{What: "scope", Reason: fmt.Sprintf("%q holds a quote or a backslash", scope)}
	}
	return checkText("scope", scope)
}

// admit tells whether ask fits under every limit on the path of a. For an
// extend, own is what the reservation holds already: that much will be spent,
// so it is not in the way for a time only; and a unit of which the extend asks
// nothing is no matter. A reserve must find every limit in order, and a limit
// of zero admits none.
func admit(a *account, ask journal.Change, own *journal.Change) *ExhaustedError {
	var busy *ExhaustedError
	for _, at := range a.path {
		for u := TokenUnit; u <= RequestUnit; u++ {
			limit := &at.caps[u]
			if !limit.set {
				continue
			}
			asked := u.of(ask)
			if (own != nil && asked == 0) || (asked <= limit.max-u.of(at.sum) && limit.max > 0) {
				continue
			}
			spent := u.spent(at.sum)
			err := &ExhaustedError{Scope: at.scope, Kind: u, Asked: asked, Limit: limit.max, Net: u.of(at.sum), Held: u.of(at.sum) - spent}
			if own != nil && u != RequestUnit {
				spent += u.of(*own)
			}
			if err.Busy = limit.max > 0 && asked <= limit.max-spent; !err.Busy {
				return err
			}
			if busy == nil {
				busy = err
			}
		}
	}
	return busy
}

// capped reports whether any limit of unit u is on the path.
func (a *account) capped(u Unit) bool {
	for _, at := range a.path {
		if at.caps[u].set {
			return true
		}
	}
	return false
}

// add moves every balance along the path, or none.
func (a *account) add(c *journal.Change) error {
	for i, at := range a.path {
		if err := at.sum.Add(c); err != nil {
			take(a.path[:i], *c)
			return fmt.Errorf("%w: scope %q: %w", ErrDamaged, at.scope, err)
		}
	}
	return nil
}

// take takes out of the balances what is known to be in them.
func take(path []*account, c journal.Change) {
	for _, at := range path {
		at.sum, _ = at.sum.Plus(c.Negated())
	}
}

func parseUnit(word string) Unit {
	for u := TokenUnit; u <= RequestUnit; u++ {
		if unitNames[u] == word {
			return u
		}
	}
	return 0
}
