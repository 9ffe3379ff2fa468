package budget

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tollbook/tollbook/journal"
)

// Journal is where a book keeps its entries. It stores and knows no rule.
type Journal interface {
	// Append makes the batch durable if the journal still ends at after, and
	// returns where it ends now; else it returns [journal.ErrConflict] and
	// nothing is written. The same batch (by its id) at the same position
	// again is success: an unknown outcome is settled by repeating. Entries
	// are the caller's again after it returned.
	Append(ctx context.Context, after journal.Pos, batch journal.Batch) (journal.Pos, error)
	// Entries yields, in order, what stands after a position; after 0, the
	// newest segment from its open line.
	Entries(ctx context.Context, after journal.Pos) iter.Seq2[journal.Entry, error]
	// Rotate starts a new segment that begins with carried, whose first entry
	// is the open line. It comes before the first Append after an opening.
	Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error)
}

// Book is a journal and the guard over it: it decides what may be reserved,
// books what became of it, and has every decision durable before it tells
// anybody. All methods are safe for concurrent use.
//
// A reservation that does not fit a limit is refused with an [*ExhaustedError].
// An entry that cannot be written is an error of the call that asked for it;
// if that was a close, the hold stays open in the book and the book admits
// nothing more ([ErrBroken]) until it is opened anew. While the disk has no
// room to spare, reserves and extends are refused ([journal.ErrFull]) and calls
// can be closed; when there is room again, the book goes on by itself.
type Book struct {
	ctx     context.Context // of Open, without its end: an append belongs to many callers
	journal Journal
	config
	recovery journal.Recovery        // what Open had to mend
	caps     atomic.Pointer[[]Limit] // as of the last durable batch
	ops      sync.Pool
	random   struct {
		sync.Mutex
		ahead *bufio.Reader
	}

	mu      sync.Mutex // guards the three below
	queue   []*op
	spare   []*op
	leading bool

	// What follows belongs to the leader.
	ledger    *ledger
	pos       journal.Pos
	time      int64           // of the batch in hand, Unix microseconds
	entries   []journal.Entry // of the batch in hand
	undos     []undo          // and how to take them back
	waiting   []*op
	pass      int       // counts the retests of the waiting line
	freed     bool      // something was given back since the last one
	carried   int       // entries that the last rotation carried
	batchID   uuid.UUID // of the next batch
	batches   uint64
	space     space
	unwatched bool        // of what is in the ledger, nobody looked which soft limits it reaches
	news      []SoftLimit // that the batch in hand reaches
	notBefore journal.Pos // of a rotation, after one that failed
	inHand    []*op       // what the leader has to answer still
	toLog     []closedOp  // of what has its answer
	orphans   []Orphan
	broken    error                  // why nothing more is admitted
	mourned   bool                   // and that was logged
	finished  bool                   // nothing more is written
	due       func(carried int) bool // of the journal, if it wants to rotate by itself

	untold   untold
	closing  sync.Once
	closeErr error
}

// Option sets something of a book at Open. A [Limit] is an Option.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	limits  []Limit
	soft    softLimits
	logger  *slog.Logger
	observe func(journal.Entry)
	pricer  Pricer
	clock   func() time.Time
	orphan  OrphanPolicy
	horizon time.Duration
}

// Logger lets the book tell a logger of overruns, orphans, refusals, failures
// and (level Info) soft limits. It never logs what the caller's calls contain.
func Logger(l *slog.Logger) Option { return option(func(c *config) { c.logger = l }) }

// Observe calls f with each entry once it is durable, in order, one at a time.
// The book stands still meanwhile: f must be quick and must not call the book.
func Observe(f func(journal.Entry)) Option { return option(func(c *config) { c.observe = f }) }

// Prices lets the book price reservations and usage.
func Prices(p Pricer) Option { return option(func(c *config) { c.pricer = p }) }

// Clock replaces [time.Now]. It is the time of day; where it goes back, the book's
// time stands still.
func Clock(now func() time.Time) Option { return option(func(c *config) { c.clock = now }) }

// Horizon is how long after its last entry a closed reservation can be named by
// a late call, over reopenings: one with a refunded or assumed figure, evidence,
// or the caller's own rid. Less than 14 days is 14 days. Books that share a
// journal must have the same horizon: what one leaves out of a rotation the other
// must not book on.
func Horizon(d time.Duration) Option { return option(func(c *config) { c.horizon = d }) }

// OrphanPolicy says what becomes of a reservation that is open when a book is
// opened: its owner is gone, and whether it was billed nobody knows.
type OrphanPolicy uint8

// The policies.
const (
	OrphanAssume OrphanPolicy = iota // charge the hold as assumed; the owner's late settle corrects it, once
	OrphanKeep                       // leave it open for whoever closes it by its rid
	OrphanRefund                     // give the last attempt's hold back, as Refund does. This gives up that the book never shows less than the bill
)

// OnOrphan sets the policy for orphans.
func OnOrphan(p OrphanPolicy) Option { return option(func(c *config) { c.orphan = p }) }

// Open opens the book in directory dir, or makes one. One process at a time
// holds it ([journal.ErrLocked]). Limits given are set if they differ from
// what the book holds; other limits in the book stay. ctx can keep it from
// opening, and does not end it.
func Open(ctx context.Context, dir string, opts ...Option) (*Book, error) {
	if dir == "" {
		return nil, &InvalidError{What: "book", Reason: "its directory has no name"}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b, err := newBook(ctx, opts)
	if err != nil {
		return nil, err
	}
	j, err := journal.OpenFile(dir, journal.FileOptions{Visit: b.ledger.foldAll})
	if err != nil {
		return nil, fmt.Errorf("budget: open: %w", err)
	}
	if err := b.start(j); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	if b.recovery = j.Recovery(); b.recovery.Unclean {
		b.logger.LogAttrs(ctx, slog.LevelWarn, "the book was not closed cleanly; its end was mended", slog.String("segment", b.recovery.Segment),
			slog.Int64("torn_bytes", b.recovery.Torn), slog.String("kept", b.recovery.Kept))
	}
	return b, nil
}

// New opens a book over a journal. If the journal has a method Close() error,
// the book's Close calls it.
func New(ctx context.Context, j Journal, opts ...Option) (*Book, error) {
	b, err := newBook(ctx, opts)
	if err != nil {
		return nil, err
	}
	for e, err := range j.Entries(b.ctx, 0) {
		if err == nil {
			err = b.ledger.fold(&e)
		}
		if err != nil {
			return nil, fmt.Errorf("budget: open: %w", err)
		}
	}
	if err := b.start(j); err != nil {
		return nil, err
	}
	return b, nil
}

// newBook returns a book whose ledger is to fold a journal before start.
func newBook(ctx context.Context, opts []Option) (*Book, error) {
	b := &Book{ctx: context.WithoutCancel(ctx), ledger: newLedger(), batchID: uuid.New(), unwatched: true}
	b.soft.percents = defaultPercents
	for _, o := range opts {
		if o != nil {
			o.apply(&b.config)
		}
	}
	if b.logger == nil {
		b.logger = slog.New(slog.DiscardHandler)
	}
	if b.clock == nil {
		b.clock = time.Now
	}
	b.horizon = max(b.horizon, minHorizon)
	for _, l := range b.limits {
		if err := l.Check(); err != nil {
			return nil, err
		}
	}
	thresholds, err := b.config.thresholds()
	if err != nil {
		return nil, err
	}
	if b.soft.tell != nil || b.logger.Enabled(b.ctx, slog.LevelInfo) {
		b.ledger.thresholds = thresholds
	}
	b.ledger.ahead = true
	return b, nil
}

// start lets the book write to the journal that its ledger is the fold of.
func (b *Book) start(j Journal) error {
	b.journal, b.pos = j, journal.Pos(b.ledger.seq)
	if j, ok := j.(interface{ Due(carried int) bool }); ok {
		b.due = j.Due
	}
	b.space.journal, _ = j.(interface{ Low() error })
	b.ledger.stats = stats{unknown: map[string]*int64{}} // from here on
	b.ledger.ahead, b.ledger.guarded = false, true
	if err := b.rotate(); err != nil {
		return fmt.Errorf("budget: open: %w", err)
	}
	if err := b.begin(); err != nil {
		return fmt.Errorf("budget: open: %w", err)
	}
	b.publishLimits()
	return nil
}

// begin books the limits that were given and treats the orphans. If another
// writer of a shared journal comes between, all is decided again on what is
// there then: an orphan that its owner has closed meanwhile is none.
func (b *Book) begin() error {
	defer b.tellAll() // also of what is durable when more fails
	err := b.takeOver()
	for errors.Is(err, journal.ErrConflict) {
		b.rollback()
		if err := b.catchUp(); err != nil {
			return err
		}
		err = b.takeOver()
	}
	if err != nil {
		return err
	}
	for _, o := range b.orphans {
		b.logger.LogAttrs(b.ctx, slog.LevelWarn, "open reservation of an owner that is gone", slog.String("rid", o.RID),
			slog.String("scope", o.Scope), slog.Int64("tokens", o.Tokens), slog.String("policy", o.Policy.String()))
	}
	return nil
}

func (b *Book) takeOver() error {
	b.time = b.now()
	for _, l := range b.limits {
		o := &op{kind: opLimit, limit: &l}
		if b.decide(o); o.err != nil {
			return o.err
		}
		if err := b.commit(); err != nil {
			return err
		}
	}
	var found []Orphan
	commit := func() error {
		err := b.commit()
		if err == nil {
			b.orphans, found = append(b.orphans, found...), nil
		}
		return err
	}
	for _, h := range b.ledger.openHolds() {
		if len(b.entries) >= maxBatch {
			if err := commit(); err != nil {
				return err
			}
		}
		o := &op{kind: opClose, hold: h, rid: h.rid, opened: h.opened}
		found = append(found, Orphan{OpenReservation: h.public(), Policy: b.orphan})
		switch b.orphan {
		case OrphanKeep:
			continue
		case OrphanRefund:
			o.kind, o.last, o.why = opRefund, NotBilled, "orphan"
		default:
			o.kind, o.usage.Why = opSettle, "orphan"
		}
		if b.decide(o); o.err != nil {
			return o.err
		}
	}
	b.freed = false
	return commit()
}

// Reserve holds an amount for one attempt of a call, durably, before the call
// leaves. It fails with an [*ExhaustedError] where a limit on the path has no
// room, [ErrInFlight] where the rid or key is open, [ErrConflict] where the
// rid is known with another amount, a [*ClosedError] where it was closed,
// [ErrInvalid], [ErrNoPrice], [ErrBroken] or [ErrBookClosed], with
// [journal.ErrFull], or as its journal fails. ctx ends a wait for room.
func (b *Book) Reserve(ctx context.Context, r Request) (*Reservation, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	o := b.op(opReserve)
	o.rid, o.request, o.priced = r.RID, r, r.Cost > 0
	if b.pricer != nil && !o.priced {
		o.price(b.pricer)
		o.tabled = o.priced
	}
	if r.RID == "" {
		id, err := b.newRID()
		if err != nil {
			return nil, fmt.Errorf("budget: reserve: no randomness for a rid: %w", err)
		}
		o.rid = id
	}
	b.do(ctx, o)
	var held *Reservation
	err := o.err
	if err == nil {
		held = &Reservation{book: b, rid: o.rid, hold: o.got, opened: o.opened, tokens: o.granted}
	}
	b.done(o)
	return held, err
}

// newRID makes a UUIDv7. Randomness is read ahead, which takes a system call
// out of each call.
func (b *Book) newRID() (string, error) {
	b.random.Lock()
	defer b.random.Unlock()
	if b.random.ahead == nil {
		b.random.ahead = bufio.NewReaderSize(rand.Reader, 1024)
	}
	id, err := uuid.NewV7FromReader(b.random.ahead)
	return id.String(), err
}

// price takes the cost of the worst case from a table. Where the split of the
// tokens is not known the dearer side counts; one that has no price cannot be
// used, as the output of an embedding.
func (o *op) price(p Pricer) {
	r := &o.request
	cost, err := p.Most(r.Model, Usage{Input: r.Tokens - r.Output, Output: r.Output, Units: r.Units})
	if r.Output == 0 {
		if asOutput, outErr := p.Most(r.Model, Usage{Output: r.Tokens, Units: r.Units}); outErr == nil && (err != nil || asOutput > cost) {
			cost, err = asOutput, nil
		}
	}
	if err == nil && cost >= 0 && cost <= MaxCost {
		r.Cost, o.priced, o.prices = cost, true, p.Table()
	}
}

// Reservation returns a handle by rid. Whether the book knows it, its methods
// tell ([ErrUnknown]).
func (b *Book) Reservation(rid string) *Reservation { return &Reservation{book: b, rid: rid} }

// SetLimit sets, changes or (with Unlimited) lifts a limit. A limit below what
// is in use refuses the next reserve and harms nothing else.
func (b *Book) SetLimit(ctx context.Context, l Limit) error {
	if err := l.Check(); err != nil {
		return err
	}
	o := b.op(opLimit)
	o.limit = &l
	b.do(ctx, o)
	return b.done(o)
}

// Limits returns the limits in force, by scope and unit.
func (b *Book) Limits() []Limit { return slices.Clone(*b.caps.Load()) }

// Limited reports whether a limit of unit u lies on the path of scope.
func (b *Book) Limited(scope string, u Unit) bool {
	for _, l := range *b.caps.Load() {
		if l.Unit == u && (l.Scope == "" || l.Scope == scope || strings.HasPrefix(scope, l.Scope) && scope[len(l.Scope)] == '/') {
			return true
		}
	}
	return false
}

// Close ends the book. Calls that wait for room get [ErrBookClosed], and so
// does every later call that would write; reads go on working. Open
// reservations stay open in the book, as orphans of its next opening. Every
// Close returns what the first did.
func (b *Book) Close() error {
	b.closing.Do(func() {
		o := b.op(opFinish)
		b.do(b.ctx, o)
		b.done(o)
		if c, ok := b.journal.(interface{ Close() error }); ok {
			b.closeErr = c.Close()
		}
	})
	return b.closeErr
}

// now is the time for the next entries, which never goes back.
func (b *Book) now() int64 {
	return max(b.clock().UnixMicro(), b.ledger.last)
}

// nextBatch names the next batch: random once per book, then counted.
func (b *Book) nextBatch() {
	b.batches++
	binary.BigEndian.PutUint64(b.batchID[8:], b.batches)
}

// publishLimits makes the limits readable without the leader.
func (b *Book) publishLimits() {
	limits := b.ledger.limits()
	b.caps.Store(&limits)
}
