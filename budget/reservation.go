package budget

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Request asks for an amount to be held. The zero Request asks for one attempt
// of no tokens on the root scope.
type Request struct {
	// RID names the reservation: 1 to 64 printable ASCII bytes, never used
	// before in this book. Empty: a UUIDv7 is made.
	RID string
	// Scope is a path such as "nightly/shard-3". The reservation draws on
	// every limit along it, on all or on none.
	Scope string
	// Key is the business name of the intent ("doc-17#summary-v2"), up to 256
	// bytes. Two reservations of one key are never open at once.
	Key string
	// Model, up to 256 bytes, is kept in the entry and asked of the book's
	// [Pricer].
	Model string
	// Tokens is the most one attempt can use, input and output.
	Tokens int64
	// Output is the part of Tokens that is output; it is only asked of the
	// Pricer. Zero: all of Tokens is priced both ways and the dearer counts.
	Output int64
	// Units is what one attempt uses at most besides tokens; it is only asked of
	// the Pricer.
	Units
	// Least lets Tokens be reduced, down to this many, to what the limits on the
	// path have left: not for what open holds take up, but where too much is
	// spent. It is output that is reduced, and some of it must stay. The cost is
	// that of what is granted where the Pricer says it; a Cost given here stays.
	// [Reservation.Tokens] is what was granted. Zero: all of Tokens or nothing.
	Least int64
	// Cost is the most one attempt can cost, in picodollars. Zero: the
	// Pricer says; under a money limit without a price the reserve fails with
	// [ErrNoPrice].
	Cost int64
	// MaxWait is how long to wait for room that open holds take up. Zero: not
	// at all. What would not fit even without them fails at once.
	MaxWait time.Duration
}

func (r *Request) check() error {
	if r.Tokens < 0 || r.Tokens > MaxTokens {
		return outside("request", "tokens", r.Tokens, 0, MaxTokens)
	}
	if r.Output < 0 || r.Output > r.Tokens {
		return outside("request", "output", r.Output, 0, r.Tokens)
	}
	if err := r.checkLeast(); err != nil {
		return err
	}
	if err := (Usage{Units: r.Units}).Check(); err != nil {
		return err
	}
	if r.Cost < 0 || r.Cost > MaxCost {
		return outside("request", "cost", r.Cost, 0, MaxCost)
	}
	if r.RID != "" {
		if err := checkRID(r.RID); err != nil {
			return err
		}
	}
	if err := checkText("key", r.Key); err != nil {
		return err
	}
	if err := checkText("model", r.Model); err != nil {
		return err
	}
	return checkScope(r.Scope)
}

func outside(what, figure string, n, least, most int64) error {
	return &InvalidError{What: what, Reason: fmt.Sprintf("%s of %d is outside %d to %d", figure, n, least, most)}
}

func checkRID(rid string) error {
	if len(rid) < 1 || len(rid) > 64 {
		return &InvalidError{What: "rid", Reason: fmt.Sprintf("%d bytes; 1 to 64 printable ASCII bytes make a rid", len(rid))}
	}
	for i := range len(rid) {
		if rid[i] < 0x20 || rid[i] > 0x7e {
			return &InvalidError{What: "rid", Reason: fmt.Sprintf("byte %d is %#x; 1 to 64 printable ASCII bytes make a rid", i, rid[i])}
		}
	}
	return nil
}

// checkText refuses what no name can be: more than 256 bytes, or control
// characters. Lines of the journal are bounded, and one caller's is not to fail
// the batch of all.
func checkText(what, s string) error {
	if s == "" {
		return nil
	}
	if len(s) > 256 {
		return &InvalidError{What: what, Reason: fmt.Sprintf("%d bytes; at most 256", len(s))}
	}
	if !utf8.ValidString(s) {
		return &InvalidError{What: what, Reason: "it is not valid UTF-8"}
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return &InvalidError{What: what, Reason: fmt.Sprintf("it contains the control character %U", r)}
		}
	}
	return nil
}

// note makes a remark fit for an entry: it is cut, never refused, since the
// figures beside it matter more.
func note(s string) string {
	if s == "" {
		return s
	}
	if len(s) > 128 {
		s = strings.Clone(s[:128])
	}
	bad := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if bad(r) {
			return -1
		}
		return r
	}, s)
}

// Evidence is what became known later of attempts that were charged at an
// assumed figure.
type Evidence struct {
	// Key names the evidence, 1 to 128 bytes; each is booked once.
	Key string
	// Usage is what the attempts used, all together. It must be known.
	Usage Usage
	// Attempts is how many of the assumed attempts it covers; zero is one.
	Attempts int64
}

// Check returns an [*InvalidError] for evidence that can be of no reservation.
func (e Evidence) Check() error {
	switch {
	case e.Key == "" || len(e.Key) > 128:
		return &InvalidError{What: "evidence", Reason: fmt.Sprintf("a key of %d bytes; 1 to 128 are needed", len(e.Key))}
	case e.Key == lateSettle:
		return &InvalidError{What: "evidence", Reason: fmt.Sprintf("the key %q is the book's own, for a settle that comes late", lateSettle)}
	case !e.Usage.Known() || e.Usage.Estimated:
		return &InvalidError{What: "evidence", Reason: "its usage is not known; an estimate corrects nothing"}
	}
	if err := checkText("evidence", e.Key); err != nil {
		return err
	}
	return e.Usage.Check()
}

// Receipt is what a closing call booked, or what was booked before it.
type Receipt struct {
	RID           string
	State         State
	Confirmed     int64 // tokens the provider reported
	Assumed       int64 // tokens charged without a report
	ConfirmedCost int64 // picodollars
	AssumedCost   int64
	Attempts      int64
	Overrun       int64 // tokens used above the hold; they are part of Confirmed and Assumed
	OverrunCost   int64
	Booked        bool // this very call wrote an entry
}

// Reservation is a handle on one reservation. Its methods are safe for
// concurrent use; whoever comes first closes it, once. Any number of handles
// may stand for one reservation.
type Reservation struct {
	book   *Book
	rid    string
	hold   *hold // as long as it is still this one's; nil in a handle made by rid
	opened int64 // tells this reservation from others of its rid
	tokens int64
}

// RID returns the reservation's id.
func (r *Reservation) RID() string { return r.rid }

// Tokens returns what is held for one attempt: the request's Tokens, or fewer
// where its Least allowed that. A handle made by rid does not know; it says zero.
func (r *Reservation) Tokens() int64 { return r.tokens }

// Extend takes the hold for one further attempt; call it before each one.
// last is what became of the attempt before: one that may have been billed
// stays held and the further one is held on top, so it can be refused
// ([ErrExhausted], [ErrBusy]); after one that surely was not billed nothing
// more is held. why is a word for the entry ("timeout", "429").
func (r *Reservation) Extend(ctx context.Context, last Outcome, why string) error {
	o := r.book.op(opExtend)
	o.last, o.why = last, note(why)
	_, err := r.do(ctx, o)
	return err
}

// Settle closes the reservation with what the last attempt used: the figure
// where u is known, else the hold, as assumed. Earlier attempts that may have
// been billed are charged at their holds. The identical call again returns the
// stored receipt, as long as the book remembers it ([ErrUnknown]). With a
// known figure a settle may also come late: it corrects an assumed close, or
// reverses a refund, once, within the [Horizon]. Anything else is a
// [*ClosedError].
func (r *Reservation) Settle(ctx context.Context, u Usage) (Receipt, error) {
	if err := u.Check(); err != nil {
		return Receipt{}, err
	}
	o := r.book.op(opSettle)
	o.usage = u
	o.usage.Ref, o.usage.Why = note(u.Ref), note(u.Why)
	return r.do(ctx, o)
}

// Refund closes the reservation and gives the hold back: last says why its
// last attempt is provably free, [NotBilled] or [NeverSent]. Earlier attempts
// that may have been billed stay charged at their holds; it is booked as a
// settle then, and the receipt says so.
func (r *Reservation) Refund(ctx context.Context, last Outcome, why string) (Receipt, error) {
	o := r.book.op(opRefund)
	o.last, o.why = last, note(why)
	return r.do(ctx, o)
}

// Close is what one defers: a reservation still open is charged at its hold,
// as assumed, because whoever got here without a result does not know that
// nothing was billed. After a settle or refund it does nothing.
func (r *Reservation) Close() error {
	_, err := r.do(context.Background(), r.book.op(opClose))
	return err
}

// Reclaim reverses a refund: the job came back after all. It books exactly the
// refunded amount, as assumed, once; of a reservation never refunded it books
// nothing, so the ordinary success path may call it unconditionally.
func (r *Reservation) Reclaim(ctx context.Context) (Receipt, error) {
	return r.do(ctx, r.book.op(opReclaim))
}

// Adjust replaces an assumed figure by what evidence says, once per evidence
// key, within the [Horizon].
func (r *Reservation) Adjust(ctx context.Context, e Evidence) (Receipt, error) {
	if err := e.Check(); err != nil {
		return Receipt{}, err
	}
	o := r.book.op(opAdjust)
	e.Usage.Ref, e.Usage.Why = note(e.Usage.Ref), note(e.Usage.Why)
	o.evidence = &e
	return r.do(ctx, o)
}

// Receipt returns what is booked so far, also of an open reservation, as long as
// the book remembers it ([ErrUnknown]).
func (r *Reservation) Receipt(ctx context.Context) (Receipt, error) {
	return r.do(ctx, r.book.op(opReceipt))
}

func (r *Reservation) do(ctx context.Context, o *op) (Receipt, error) {
	o.rid, o.hold, o.opened = r.rid, r.hold, r.opened
	r.book.do(ctx, o)
	receipt := o.receipt
	return receipt, r.book.done(o)
}
