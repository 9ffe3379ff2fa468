package budget

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tollbook/tollbook/journal"
)

// SoftLimit is a percentage of a limit that is spent: time to look, and nothing
// is refused for it.
type SoftLimit struct {
	Scope   string // empty is the root: the whole book
	Unit    Unit
	Percent int   // the threshold
	Spent   int64 // confirmed and assumed, without holds, when it was reached
	Max     int64 // the limit
}

// defaultPercents are the thresholds of a book that was given none.
var defaultPercents = []int{50, 80, 95}

// SoftLimits calls tell (nil: nobody) when what is spent reaches a percentage of
// a limit, and the book's [Logger] tells of it too. It does so for every limit
// above zero, be it set later. Without percents, and without this option, they are
// 50, 80 and 95; [NoSoftLimits] has none.
//
// Each threshold of a limit is told once, also across openings and by all books
// that share a journal: that it is told is an entry, durable before tell is
// called, so a crash between the two loses the call and nothing repeats it. Of
// several reached at once each is told, the lowest first. What is spent can fall
// again, by evidence; that re-arms nothing. A changed limit does: of its
// thresholds those are told again that what is spent no longer reaches. What a
// book opens with counts as reached at its opening, if nobody was told before.
//
// tell is called by one of the book's callers behind its own call, before that
// returns, be it Open. It is called for one threshold at a time, in order, and may
// call the book, but must wait for no call under way, nor close its answer: its
// caller may be the one that is closing it. The others do not wait for it. If it panics, its caller does;
// the book goes on.
func SoftLimits(tell func(SoftLimit), percents ...int) Option {
	if len(percents) == 0 {
		percents = defaultPercents
	}
	return option(func(c *config) { c.soft = softLimits{tell, percents} })
}

// NoSoftLimits lets the book tell of no percentage.
func NoSoftLimits() Option { return option(func(c *config) { c.soft = softLimits{} }) }

type softLimits struct {
	tell     func(SoftLimit)
	percents []int
}

// thresholds returns the percentages that somebody is told of, in order.
func (c *config) thresholds() ([]int, error) {
	percents := slices.Sorted(slices.Values(c.soft.percents))
	for i, p := range percents {
		switch {
		case p <= 0 || p > 100:
			return nil, &InvalidError{What: "soft limit", Reason: fmt.Sprintf("%d %%; it must be from 1 to 100", p)}
		case i > 0 && p == percents[i-1]:
			return nil, &InvalidError{What: "soft limit", Reason: fmt.Sprintf("%d %% is given twice", p)}
		}
	}
	return percents, nil
}

// share is the least amount that is percent of limit, or more.
func share(percent int, limit int64) int64 {
	high, low := bits.Mul64(uint64(percent), uint64(limit))
	amount, rest := bits.Div64(high, low, 100) // percent and the top half of a positive limit are below 100
	if rest > 0 {
		amount++
	}
	return int64(amount)
}

// arm finds out how much is spent when the next threshold is reached.
func (c *capacity) arm(thresholds []int) {
	c.next = math.MaxInt64
	for _, p := range thresholds {
		if c.set && c.max > 0 && p > int(c.told) {
			c.next = share(p, c.max)
			return
		}
	}
}

// stillTold is how far the thresholds of a limit that changes to l need not be
// told again: they were, and what is spent reaches them under the new one too.
func (l *ledger) stillTold(to Limit) (percent int) {
	a := l.accounts[to.Scope]
	if a == nil || to.Unlimited || to.Max == 0 {
		return 0
	}
	for _, p := range l.thresholds {
		if p <= int(a.caps[to.Unit].told) && to.Unit.spent(a.sum) >= share(p, to.Max) {
			percent = p
		}
	}
	return percent
}

// tellSoft puts into the batch in hand which thresholds it reaches.
func (b *Book) tellSoft() error {
	if len(b.ledger.thresholds) == 0 {
		return nil
	}
	if b.unwatched {
		b.unwatched = false
		if err := b.reach(b.ledger.numbered); err != nil {
			return err
		}
	}
	for i := range b.undos { // as they are now: what reach adds reaches nothing more
		var path []*account
		switch u := &b.undos[i]; {
		case u.kind == journal.Limit:
			path = u.at.path[:1]
		case u.h != nil:
			path = u.h.account.path
		}
		if err := b.reach(path); err != nil {
			return err
		}
	}
	return nil
}

func (b *Book) reach(accounts []*account) error {
	for _, a := range accounts {
		for u := TokenUnit; u <= RequestUnit; u++ {
			if c := &a.caps[u]; !c.set || u.spent(a.sum) < c.next {
				continue
			}
			if err := b.reached(a, u); err != nil {
				return err
			}
		}
	}
	return nil
}

// reached books the thresholds of one limit.
func (b *Book) reached(a *account, u Unit) error {
	c, spent := a.caps[u], u.spent(a.sum)
	told := c.told
	for _, p := range b.ledger.thresholds {
		if p > int(c.told) && spent >= share(p, c.max) {
			b.news = append(b.news, SoftLimit{Scope: a.scope, Unit: u, Percent: p, Spent: spent, Max: c.max})
			told = uint8(p)
		}
	}
	b.entries = append(b.entries, journal.Entry{Kind: journal.Limit, Scope: a.scope, Cap: &journal.Cap{Kind: u.String(), Max: c.max, Told: int64(told)}})
	return b.applyFrom(len(b.entries)-1, nil)
}

// untold are the soft limits that are durable and still to be told, in order.
// Who led tells them when the lead is handed over, so that tell may call the book.
type untold struct {
	some    atomic.Bool // of soft; to be read without the lock
	mu      sync.Mutex
	soft    []SoftLimit
	telling bool // somebody is; who comes meanwhile leaves his to them
}

// add leaves news to be told.
func (t *untold) add(news []SoftLimit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.soft = append(t.soft, news...)
	t.some.Store(true)
}

// next takes the first, for the caller to tell.
func (t *untold) next() (s SoftLimit, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.telling || len(t.soft) == 0 {
		return s, false
	}
	s, t.soft, t.telling = t.soft[0], t.soft[1:], true
	t.some.Store(len(t.soft) > 0)
	return s, true
}

func (t *untold) told() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.telling = false
}

// tellAll tells what there is to tell, unless somebody else is at it.
func (b *Book) tellAll() {
	for b.untold.some.Load() {
		s, ok := b.untold.next()
		if !ok {
			return
		}
		b.tell(s)
	}
}

func (b *Book) tell(s SoftLimit) {
	defer b.untold.told() // also after a panic, which is its caller's
	b.logger.LogAttrs(b.ctx, slog.LevelInfo, "a soft limit is reached", slog.Int("percent", s.Percent), slog.String("scope", s.Scope),
		slog.String("unit", s.Unit.String()), slog.Int64("spent", s.Spent), slog.Int64("limit", s.Max))
	if b.soft.tell != nil {
		b.soft.tell(s)
	}
}
