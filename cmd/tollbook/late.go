package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// What comes late to a reservation that is closed: a job that came back after
// its refund, and evidence of what an assumed attempt really used.

func newReclaim(ui *ui) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reclaim STATE RID",
		Short: "Take back a refund: the job came back after all",
		Long: `Take back the refund of a reservation whose job came back after all. Exactly what
was refunded is charged again, as assumed, once; adjust replaces it by what was
really used. Of a reservation that was never refunded nothing is booked, so a
script may call it for every success, and as often as it likes.

It needs the book for itself. RID is what show lists for an item.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return reclaim(cmd.Context(), ui, args[0], args[1], asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func reclaim(ctx context.Context, ui *ui, state, rid string, asJSON bool) error {
	l, err := findLife(state, rid)
	if err != nil {
		return err
	}
	if l.state() != "refunded" {
		ui.receipt(l.receipt(), asJSON)
		ui.say("nothing to reclaim: %s", l.unrefunded())
		return nil
	}
	var receipt budget.Receipt
	err = ui.alter(ctx, state, func(b *budget.Book) (err error) {
		receipt, err = b.Reservation(rid).Reclaim(ctx)
		return err
	})
	if err != nil {
		return l.explain(state, err)
	}
	ui.receipt(receipt, asJSON)
	if !receipt.Booked { // another process was quicker
		ui.say("nothing to reclaim: it was reclaimed already")
		return nil
	}
	ui.say("reclaimed: %s are charged again, as assumed", count(receipt.Assumed, "token"))
	ui.hint("tollbook adjust %s %s --evidence KEY books what was really used", state, rid)
	return nil
}

// adjustOptions are the flags of adjust as they were given.
type adjustOptions struct {
	state, rid string
	evidence   budget.Evidence
	cost       string
	given      func(flag string) bool
	nothing    bool
	prices     string
	asJSON     bool
}

func newAdjust(ui *ui) *cobra.Command {
	var o adjustOptions
	cmd := &cobra.Command{
		Use:   "adjust STATE RID --evidence KEY (--input N --output N | --nothing)",
		Short: "Replace an assumed figure by what evidence says",
		Long: `Replace an assumed figure of a reservation by what evidence says was used: the
provider's log, a support answer, a line of the bill. KEY names the evidence.
The same key again changes nothing, and with other figures it is refused.

Evidence covers one assumed attempt unless --attempts says how many; its figures
are of all of them together. --nothing says that provably nothing was used. Where
the book holds money, what the tokens cost is --cost, else the price table's word.

It needs the book for itself. RID is what show lists for an item.`,
		Example: `  tollbook adjust requests.state RID --evidence log-2026-11-03 --input 812 --output 95 --ref req_7f3
  tollbook adjust requests.state RID --evidence ticket-4411 --nothing`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.state, o.rid, o.given = args[0], args[1], cmd.Flags().Changed
			return o.run(cmd.Context(), ui)
		},
	}
	f, u := cmd.Flags(), &o.evidence.Usage
	f.StringVar(&o.evidence.Key, "evidence", "", "`key` that names the evidence, such as the id of a log line or a ticket")
	f.Int64Var(&u.Input, "input", 0, "`tokens` of input, cached ones included")
	f.Int64Var(&u.Cached, "cached", 0, "`tokens` of the input that were read from the provider's cache")
	f.Int64Var(&u.CacheWrite, "cache-write", 0, "`tokens` of the input that were written to it")
	f.Int64Var(&u.Output, "output", 0, "`tokens` of output, reasoning included")
	f.Int64Var(&u.Reasoning, "reasoning", 0, "`tokens` of the output that were reasoning")
	f.StringVar(&o.cost, "cost", "", "`amount` of money, such as 0.0125usd (default: by the price table)")
	f.BoolVar(&o.nothing, "nothing", false, "provably nothing was used")
	f.Int64Var(&o.evidence.Attempts, "attempts", 1, "`number` of assumed attempts that the evidence covers")
	f.StringVar(&u.Ref, "ref", "", "the provider's `id` of the request")
	f.StringVar(&o.prices, "prices", "", "`file` with prices of your own, as run takes it")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *adjustOptions) run(ctx context.Context, ui *ui) error {
	if err := o.check(); err != nil {
		return err
	}
	prices, err := priceTable(o.prices)
	if err != nil {
		return err
	}
	l, err := findLife(o.state, o.rid)
	if err != nil {
		return err
	}
	if u := o.evidence.Usage; u.Total() > 0 && u.Cost == 0 && l.heldMoney() {
		// Evidence comes once: money that it leaves assumed would stay so.
		model := l.entries[0].Model
		if _, err := prices.Cost(model, u); err != nil {
			return usageError("give --cost, or its price with --prices FILE", "reservation %s holds money, and the price table of %s does not know model %s", quote(o.rid), prices.Table(), quote(model))
		}
	}
	var receipt budget.Receipt
	err = ui.alter(ctx, o.state, func(b *budget.Book) (err error) {
		receipt, err = b.Reservation(o.rid).Adjust(ctx, o.evidence)
		return err
	}, budget.Prices(prices))
	if err != nil {
		return l.explain(o.state, err)
	}
	ui.receipt(receipt, o.asJSON)
	if receipt.Booked {
		ui.say("booked, as evidence %s says", quote(o.evidence.Key))
	} else {
		ui.say("nothing changed: evidence %s is booked already", quote(o.evidence.Key))
	}
	return nil
}

// check makes the evidence of what was given. Unknown is never zero: that
// nothing was used must be said.
func (o *adjustOptions) check() error {
	u := &o.evidence.Usage
	counted := false
	for _, flag := range [...]string{"input", "cached", "cache-write", "output", "reasoning"} {
		counted = counted || o.given(flag)
	}
	switch {
	case o.evidence.Key == "":
		return usageError("for example --evidence log-2026-11-03", "no --evidence: it names what the figures are taken from, so that they are booked once")
	case o.nothing && (counted || o.cost != ""):
		return usageError("", "--nothing goes without figures")
	case !o.nothing && !(o.given("input") && o.given("output")):
		return usageError("give both; --nothing says that provably nothing was used", "no --input and --output: what is not known is not zero")
	case o.evidence.Attempts < 1:
		return usageError("", "--attempts is %d, expected 1 or more", o.evidence.Attempts)
	case o.cost != "":
		cost, err := parseMoney(o.cost)
		if err != nil {
			return usageError("for example --cost 0.0125usd", "--cost: %w", err)
		}
		if cost == 0 && u.Input+u.Output > 0 {
			return usageError("without --cost the price table says", "--cost %s: a cost of zero is none", o.cost)
		}
		u.Cost = cost
	}
	switch ref := u.Ref; {
	case o.nothing:
		o.evidence.Usage = budget.NothingUsed
		o.evidence.Usage.Ref = ref
	case u.Input|u.Output|u.Cached|u.CacheWrite|u.Reasoning != 0:
	case u.Cost == 0:
		return usageError("--nothing says that provably nothing was used", "--input 0 and --output 0, and no --cost")
	default:
		o.evidence.Usage = budget.CostOnly(u.Cost)
		o.evidence.Usage.Ref = ref
	}
	if err := o.evidence.Check(); err != nil {
		return usageError("", "%w", err)
	}
	return nil
}

// findLife finds a reservation by its rid. It only reads, so that a name that is
// mistaken changes nothing.
func findLife(state, rid string) (*life, error) {
	if _, err := checkBook(state); err != nil {
		return nil, err
	}
	lives, err := findLives(journal.Dir{Path: bookOf(state)}, rid)
	if err != nil {
		return nil, notBook(state, err)
	}
	var found *life
	var others []string
	for i := range lives {
		if lives[i].rid == rid {
			found = &lives[i] // of a rid that was used again, the last
		} else {
			others = append(others, lives[i].rid)
		}
	}
	switch {
	case found != nil:
		return found, nil
	case others != nil:
		return nil, &exitError{Code: exitUsage, Err: fmt.Errorf("%s is an item, no reservation", quote(rid)), Hint: "its reservations are " + strings.Join(others, ", ")}
	}
	return nil, fmt.Errorf("no reservation %s in %s", quote(rid), bookOf(state))
}

// receipt is what the entries of a closed reservation add up to.
func (l *life) receipt() budget.Receipt {
	r := budget.Receipt{RID: l.rid, State: budget.StateOpen}
	var sum, held journal.Change
	for i := range l.entries {
		e := &l.entries[i]
		change := e.Change
		switch e.Kind {
		case journal.Settle, journal.Refund:
			held = sum
		case journal.Carry:
			p := e.Past
			change = journal.Change{Amount: p.Confirmed + p.Assumed, Cost: p.ConfirmedCost + p.AssumedCost,
				Confirmed: p.Confirmed, Assumed: p.Assumed, ConfirmedCost: p.ConfirmedCost, AssumedCost: p.AssumedCost}
			held = journal.Change{Amount: p.Held, Cost: p.HeldCost}
		case journal.Extend:
			r.Attempts++
		case journal.Reserve:
			r.Attempts = max(1, e.Tries)
		}
		r.Attempts = max(r.Attempts, e.Tries)
		sum, _ = sum.Plus(change) // the book was folded: no sum leaves 64 bits
	}
	r.Confirmed, r.ConfirmedCost = sum.Confirmed, sum.ConfirmedCost
	r.Assumed, r.AssumedCost = sum.Assumed, sum.AssumedCost
	switch l.state() {
	case "settled":
		r.State, r.Overrun, r.OverrunCost = budget.StateSettled, max(0, sum.Amount-held.Amount), max(0, sum.Cost-held.Cost)
	case "refunded":
		r.State = budget.StateRefunded
	}
	return r
}

// heldMoney reports whether its hold was one of money too.
func (l *life) heldMoney() bool {
	first := &l.entries[0]
	return first.Cost > 0 || first.Past != nil && first.Past.EachCost > 0
}

// unrefunded is why there is no refund to take back.
func (l *life) unrefunded() string {
	switch {
	case l.state() == "open":
		return "it is open, and its hold is charged"
	case l.entries[0].Kind == journal.Carry: // what went before is pruned
		return "it is settled, not refunded"
	}
	for _, e := range l.entries {
		if e.Kind == journal.Refund {
			return "its refund was taken back already"
		}
	}
	return "it was never refunded"
}

// explain is an error of a late call in the words of the command.
func (l *life) explain(state string, err error) error {
	rid := quote(l.rid)
	closed, _ := errors.AsType[*budget.ClosedError](err)
	switch {
	case errors.Is(err, budget.ErrInFlight):
		return &exitError{Code: exitFailed, Err: fmt.Errorf("reservation %s is open; settle it: nothing of it is assumed yet", rid),
			Hint: "the next tollbook run charges what an earlier one left open; then adjust it"}
	case closed != nil && closed.State == budget.StateRefunded:
		return &exitError{Code: exitFailed, Err: fmt.Errorf("reservation %s is refunded, and nothing of it is assumed", rid),
			Hint: fmt.Sprintf("tollbook reclaim %s %s takes the refund back; then adjust it", state, l.rid)}
	case closed != nil, errors.Is(err, budget.ErrUnknown) && l.state() == "settled" && l.receipt().Assumed == 0:
		return fmt.Errorf("nothing of reservation %s is assumed: it is settled with %s as reported; nothing was changed", rid, count(l.receipt().Confirmed, "token"))
	case errors.Is(err, budget.ErrUnknown):
		return fmt.Errorf("reservation %s is past the horizon: it was closed more than 14 days ago, and nothing is booked on it any more", rid)
	case errors.Is(err, budget.ErrInvalid):
		return usageError("", "%w", err)
	}
	return err
}
