package budget_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// flaky is a memory journal whose appends fail when told to, and that keeps
// every entry it ever took.
type flaky struct {
	*journal.Memory
	fail error

	mu  sync.Mutex // keeps all in the order of the journal
	all []journal.Entry
}

func newFlaky() *flaky { return &flaky{Memory: journal.NewMemory()} }

func (f *flaky) Append(ctx context.Context, after journal.Pos, b journal.Batch) (journal.Pos, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return after, f.fail
	}
	pos, err := f.Memory.Append(ctx, after, b)
	if err == nil {
		f.all = append(f.all, b.Entries...)
	}
	return pos, err
}

func (f *flaky) Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pos, err := f.Memory.Rotate(ctx, after, carried)
	if err == nil {
		f.all = append(f.all, carried...)
	}
	return pos, err
}

func (f *flaky) Close() error { return nil }

func seq(entries []journal.Entry) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// naive is the book as one would explain it: a list of attempts per
// reservation, each with what it stands at.
type naive struct {
	state    string // "", open, closed, refunded
	hold     int64
	attempts []attempt
	used     map[string]bool // evidence keys
	last     int64           // figure the last attempt was reported with, -1 unknown
}

type attempt struct {
	figure  int64
	assumed bool // may have been billed, stands at an assumed figure
	free    bool
}

func (n *naive) totals() (net, confirmed, assumed int64) {
	for _, a := range n.attempts {
		if n.state == "open" {
			if !a.free {
				net += n.hold
			}
			continue
		}
		net += a.figure
		if a.assumed {
			assumed += a.figure
		} else {
			confirmed += a.figure
		}
	}
	return
}

func (n *naive) lastAttempt() *attempt { return &n.attempts[len(n.attempts)-1] }

// TestModel runs random calls on few reservations, with reopenings and failed
// appends, against the naive book: I1 to I4 after every step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		j := newFlaky()
		const limit = 1000
		var told ear
		open := func() *budget.Book {
			b, err := budget.New(ctx, j, budget.Tokens(limit), budget.OnOrphan(budget.OrphanKeep), budget.SoftLimits(told.hear))
			require.NoError(t, err)
			return b
		}
		book := open()
		model := map[string]*naive{}
		for i := range 6 {
			model[fmt.Sprintf("r%d", i)] = &naive{used: map[string]bool{}, last: -1}
		}
		sums := func() (net, spent int64) {
			for _, n := range model {
				s, confirmed, assumed := n.totals()
				net, spent = net+s, spent+confirmed+assumed
			}
			return
		}
		failing := errors.New("disk on fire")

		check := func() {
			require.NoError(t, budget.Inconsistent(book))
			r := book.Report()
			var want budget.Figures
			for rid, n := range model {
				if n.state == "" {
					continue
				}
				s, c, a := n.totals()
				want.Net, want.Confirmed, want.Assumed = want.Net+s, want.Confirmed+c, want.Assumed+a
				got, err := book.Reservation(rid).Receipt(ctx)
				require.NoError(t, err)
				require.Equal(t, []int64{c, a}, []int64{got.Confirmed, got.Assumed}, "%s", rid)
			}
			want.Held = want.Net - want.Confirmed - want.Assumed
			require.Equal(t, want, r.Tokens)
			require.LessOrEqual(t, r.Tokens.Held, int64(limit))
			audit, soft := budget.NewAudit(), newSoftFold(50, 80, 95)
			var durable []budget.SoftLimit
			for _, e := range j.all {
				audit.Add(&e)
				more, err := soft.add(&e)
				require.NoError(t, err)
				durable = append(durable, more...)
			}
			require.Equal(t, durable, told.heard, "each threshold is told once, when it is durable")
			require.NoError(t, soft.overdue())
			require.Empty(t, audit.Violations)
			require.Empty(t, audit.MultiClosed)
			require.Equal(t, want.Net, audit.Net, "I3: the sum of the amounts is the counter")
		}

		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"reserve": func(t *rapid.T) {
				rid, tokens := pick(t, model), rapid.Int64Range(0, 400).Draw(t, "tokens")
				least := rapid.Int64Range(0, tokens).Draw(t, "least")
				n := model[rid]
				net, spent := sums()
				grant := tokens
				if left := limit - spent; least > 0 && tokens > left {
					grant = max(least, left)
				}
				r, err := book.Reserve(ctx, budget.Request{RID: rid, Tokens: tokens, Least: least, Scope: "a/b"})
				switch {
				case n.state != "" && n.hold != tokens && (least == 0 || n.hold < least || n.hold > tokens):
					require.ErrorIs(t, err, budget.ErrConflict)
				case n.state == "open":
					require.ErrorIs(t, err, budget.ErrInFlight)
				case n.state != "":
					require.ErrorIs(t, err, budget.ErrClosed)
				case spent+grant > limit:
					require.ErrorIs(t, err, budget.ErrExhausted)
				case net+grant > limit:
					require.ErrorIs(t, err, budget.ErrBusy)
				default:
					require.NoError(t, err)
					require.Equal(t, grant, r.Tokens())
					*n = naive{state: "open", hold: grant, attempts: []attempt{{}}, used: map[string]bool{}, last: -1}
				}
			},
			"reserve that fails": func(t *rapid.T) {
				rid := pick(t, model)
				j.fail = failing
				_, err := book.Reserve(ctx, budget.Request{RID: rid, Tokens: 1, Scope: "a/b"})
				j.fail = nil
				require.Error(t, err)
			},
			"extend": func(t *rapid.T) {
				rid := pick(t, model)
				n := model[rid]
				before, _ := sums()
				maybe := rapid.Bool().Draw(t, "maybe billed")
				outcome := budget.NotBilled
				if maybe {
					outcome = budget.MaybeBilled
				}
				err := book.Reservation(rid).Extend(ctx, outcome, "x")
				switch {
				case n.state == "":
					require.ErrorIs(t, err, budget.ErrUnknown)
				case n.state != "open":
					require.ErrorIs(t, err, budget.ErrClosed)
				case maybe && n.hold > 0 && before+n.hold > limit:
					require.True(t, errors.Is(err, budget.ErrExhausted) || errors.Is(err, budget.ErrBusy), err)
				default:
					require.NoError(t, err)
					n.lastAttempt().free = !maybe
					n.attempts = append(n.attempts, attempt{})
				}
			},
			"settle": func(t *rapid.T) {
				rid, used := pick(t, model), rapid.Int64Range(1, 500).Draw(t, "used")
				n := model[rid]
				receipt, err := book.Reservation(rid).Settle(ctx, budget.Usage{Input: used})
				switch {
				case n.state == "":
					require.ErrorIs(t, err, budget.ErrUnknown)
					return
				case n.state == "open":
					n.close(func(a *attempt) { *a = attempt{figure: used} })
				case n.state == "refunded" || n.last == -1 && n.lastAttempt().assumed:
					*n.lastAttempt() = attempt{figure: used}
					n.state = "closed"
				case n.last == used:
					require.NoError(t, err)
					require.False(t, receipt.Booked)
					return
				default:
					require.ErrorIs(t, err, budget.ErrClosed)
					return
				}
				n.last = used
				require.NoError(t, err)
				require.True(t, receipt.Booked)
			},
			"settle that fails": func(t *rapid.T) {
				rid := pick(t, model)
				if model[rid].state != "open" {
					return
				}
				j.fail = failing
				_, err := book.Reservation(rid).Settle(ctx, budget.Usage{Input: 1})
				require.ErrorIs(t, err, failing)
				j.fail = nil
				_, err = book.Reserve(ctx, budget.Request{Tokens: 0})
				require.ErrorIs(t, err, budget.ErrBroken, "I5: it admits nothing more")
				book = open()
			},
			"late call that fails": func(t *rapid.T) {
				rid := pick(t, model)
				if state := model[rid].state; state == "" || state == "open" {
					return
				}
				j.fail = failing
				_, err := book.Reservation(rid).Adjust(ctx, budget.Evidence{Key: "e", Usage: budget.Usage{Input: 1}})
				require.Error(t, err)
				_, err = book.Reservation(rid).Reclaim(ctx)
				require.Equal(t, model[rid].state == "refunded", err != nil)
				j.fail = nil
			},
			"close": func(t *rapid.T) {
				rid := pick(t, model)
				n := model[rid]
				err := book.Reservation(rid).Close()
				if n.state == "" {
					require.ErrorIs(t, err, budget.ErrUnknown)
					return
				}
				require.NoError(t, err)
				if n.state == "open" {
					n.close(func(a *attempt) { *a = attempt{figure: n.hold, assumed: true} })
				}
			},
			"refund": func(t *rapid.T) {
				rid := pick(t, model)
				n := model[rid]
				if n.state != "open" {
					return // by table in TestEveryStateEveryCall
				}
				_, err := book.Reservation(rid).Refund(ctx, budget.NotBilled, "429")
				require.NoError(t, err)
				lost := false
				n.close(func(a *attempt) { *a = attempt{} })
				for _, a := range n.attempts {
					lost = lost || a.assumed
				}
				if n.last = 0; !lost {
					n.state, n.last = "refunded", -1
				}
			},
			"reclaim": func(t *rapid.T) {
				rid := pick(t, model)
				n := model[rid]
				if n.state == "" {
					return
				}
				receipt, err := book.Reservation(rid).Reclaim(ctx)
				require.NoError(t, err)
				require.Equal(t, n.state == "refunded", receipt.Booked)
				if n.state == "refunded" {
					n.state = "closed"
					*n.lastAttempt() = attempt{figure: n.hold, assumed: true}
				}
			},
			"reopen": func(*rapid.T) {
				require.NoError(t, book.Close())
				book = open()
			},
		})
	})
}

// close gives every attempt its figure: earlier ones that may have been billed
// their hold, the last one what f says.
func (n *naive) close(f func(*attempt)) {
	n.state = "closed"
	for i := range n.attempts {
		a := &n.attempts[i]
		if i == len(n.attempts)-1 {
			f(a)
		} else if a.free {
			*a = attempt{free: true}
		} else {
			*a = attempt{figure: n.hold, assumed: true}
		}
	}
}

func pick(t *rapid.T, model map[string]*naive) string {
	return fmt.Sprintf("r%d", rapid.IntRange(0, len(model)-1).Draw(t, "rid"))
}
