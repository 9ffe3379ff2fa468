package budget_test

// Every answer a book gives under concurrent callers is one that a book for one
// caller at a time could have given, in some order that keeps what came after
// what: for whatever the callers saw, there was one book (I2, I4). Writes whose
// fate is unknown, crashes and reopenings included (I5, rules 1, 8).
//
//	go test ./budget -run Linearizable -linear.seeds 10000

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

var (
	linearSeeds = flag.Int("linear.seeds", 500, "histories to check")
	linearFrom  = flag.Int("linear.from", 0, "first seed")
)

type callKind int

const (
	toReserve callKind = iota
	toExtend
	toSettle
	toAssume
	toRefund
	toReclaim
	toAdjust
	toReceipt
	toLimit
	toReport
	toOpen // the book is opened anew
)

var callNames = [...]string{"reserve", "extend", "settle", "assume", "refund", "reclaim", "adjust", "receipt", "limit", "report", "open"}

// call is what a caller asks.
type call struct {
	kind     callKind
	rid      int
	amount   int64
	maybe    bool // extend: the last attempt may have been billed
	evidence int
	onRoot   bool // limit: of the root, else of scope "a"
	keep     bool // open: orphans stay open
	waits    bool // reserve: for a moment; and others do
	byHandle bool // through what Reserve returned, if this book did
}

type outcome string

const (
	isDone      outcome = "done"
	isExhausted outcome = "exhausted"
	isBusy      outcome = "busy"
	isInFlight  outcome = "in flight"
	isConflict  outcome = "conflict"
	isClosed    outcome = "closed"
	isUnknown   outcome = "unknown rid"
	isRefused   outcome = "not written"
	isLost      outcome = "perhaps written"
)

// answer is what it gets.
type answer struct {
	is                                                       outcome
	booked                                                   bool
	state                                                    budget.State
	confirmed, assumed, held /* report */, attempts, overrun int64
}

// TestLinearizable checks many small histories: few reservations, tight limits,
// some callers, reopenings, and faults in half of them.
func TestLinearizable(t *testing.T) {
	model := (&porcupine.NondeterministicModel{
		Init:              func() []any { return []any{shelf{rootCap: unlimited, aCap: unlimited}} },
		Step:              func(state, input, output any) []any { return state.(shelf).after(input.(call), output.(answer)) },
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}).ToModel()
	seen := map[string]int{}
	for seed := *linearFrom; seed < *linearFrom+*linearSeeds; seed++ {
		h := newHistory(t, uint64(seed))
		h.run()
		for _, op := range h.ops {
			seen[callNames[op.Input.(call).kind]+": "+string(op.Output.(answer).is)]++
		}
		if result := porcupine.CheckOperationsTimeout(model, h.ops, time.Minute); result != porcupine.Ok {
			for _, op := range h.ops {
				t.Logf("%d: %d–%d %s %+v -> %+v", op.ClientId, op.Call, op.Return, callNames[op.Input.(call).kind], op.Input, op.Output)
			}
			t.Fatalf("seed %d: %v: no book for one caller could have answered so", seed, result)
		}
	}
	t.Logf("%v", seen)
	if *linearSeeds < 50 {
		return
	}
	for _, must := range []string{"reserve: done", "reserve: busy", "reserve: exhausted", "extend: busy", "extend: exhausted", "settle: closed",
		"settle: perhaps written", "reserve: perhaps written", "reserve: not written", "adjust: conflict", "refund: done", "reclaim: done"} {
		require.NotZero(t, seen[must], "no history had %q", must)
	}
}

const (
	callers = 4
	sole    = callers // who calls when nobody else does
)

// history is one run of a book and what its callers saw.
type history struct {
	t      *testing.T
	rnd    *rand.Rand
	faulty bool
	waits  bool
	clock  atomic.Int64 // orders calls and answers

	disk  *disk.Mem
	next  *disk.Mem    // what is found after a crash
	luck  *rand.Rand   // of the disk
	fault atomic.Int64 // operations until one fails; 0: none

	soft    []budget.SoftLimit
	handles [shelfRIDs]atomic.Pointer[budget.Reservation] // of the book that is open

	mu  sync.Mutex
	ops []porcupine.Operation
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{t: t, rnd: rand.New(rand.NewPCG(seed, 4)), luck: rand.New(rand.NewPCG(seed, 8)), disk: disk.NewMem(), faulty: seed%2 == 1, waits: seed%4 > 1}
}

// run opens the book a few times, and lets some callers call it at once.
func (h *history) run() {
	const calls, openings = 6, 3
	extends := [shelfRIDs]int{}
	for opening := range openings {
		began := h.clock.Load()
		book := h.open()
		if h.faulty {
			h.fault.Store(int64(1 + h.rnd.IntN(25)))
		}
		if opening == 0 {
			for _, c := range []call{{kind: toLimit, onRoot: true, amount: 12}, {kind: toLimit, amount: 9}} {
				h.call(book, sole, c)
			}
		}
		var all sync.WaitGroup
		for client := range callers {
			var script []call
			for range calls {
				c := h.draw()
				if c.kind == toExtend {
					if extends[c.rid]++; extends[c.rid] > 7 {
						c.kind = toReceipt
					}
				}
				script = append(script, c)
			}
			all.Go(func() {
				for _, c := range script {
					h.call(book, client, c)
				}
			})
		}
		all.Wait()
		h.fault.Store(0)
		if h.faulty && h.rnd.IntN(3) == 0 && h.next == nil {
			h.next = h.disk.Crash(h.rnd)
		}
		book.Close()
		if h.next != nil {
			h.disk, h.next = h.next, nil
		}
		// What may have been written may turn up at the next opening.
		end := h.clock.Add(1)
		for i := range h.ops {
			if h.ops[i].Output.(answer).is == isLost && h.ops[i].Return > began {
				h.ops[i].Return = end
			}
		}
	}
	book := h.open()
	h.call(book, sole, call{kind: toReport})
	for rid := range shelfRIDs {
		h.call(book, sole, call{kind: toReceipt, rid: rid})
	}
	require.NoError(h.t, book.Close())
	h.checkSoft()
}

// checkSoft compares what was told of soft limits with the journal; after a
// crash something durable may not have been told.
func (h *history) checkSoft() {
	soft := newSoftFold(50, 80, 95)
	var durable []budget.SoftLimit
	for e, err := range (journal.Dir{Path: "book", FS: h.disk}).History() {
		require.NoError(h.t, err)
		told, err := soft.add(&e)
		require.NoError(h.t, err)
		durable = append(durable, told...)
	}
	require.NoError(h.t, soft.overdue())
	if !h.faulty {
		require.Equal(h.t, durable, h.soft)
	}
}

// open opens the book, which is a call like others.
func (h *history) open() *budget.Book {
	c, policy := call{kind: toOpen, keep: h.rnd.IntN(2) == 0}, budget.OrphanAssume
	if c.keep {
		policy = budget.OrphanKeep
	}
	began := h.clock.Add(1)
	files := journal.FileOptions{SegmentBytes: 4096, FS: disk.Failing(h.disk, h.fails)}
	book, err := budget.OpenFile(h.t.Context(), "book", files, nil, budget.OnOrphan(policy), budget.SoftLimits(func(s budget.SoftLimit) { h.soft = append(h.soft, s) }))
	require.NoError(h.t, err)
	h.add(sole, c, answer{is: isDone}, began)
	for rid := range h.handles {
		h.handles[rid].Store(nil)
	}
	return book
}

// fails is asked before each operation of the disk, one at a time. Others come
// meanwhile.
func (h *history) fails(op disk.Op) disk.Fault {
	for range 3 {
		runtime.Gosched()
	}
	if op.Kind.Reads() || h.fault.Add(-1) != 0 {
		return disk.Fault{}
	}
	switch h.luck.IntN(6) {
	case 0:
		return disk.Fault{Err: syscall.ENOSPC, Bytes: h.luck.IntN(int(op.Bytes) + 1)}
	case 1:
		return disk.Fault{Err: syscall.EIO, Bytes: h.luck.IntN(int(op.Bytes) + 1)}
	case 2:
		return disk.Fault{Err: syscall.EIO, Done: true}
	case 3:
		h.next = h.disk.Kill()
	default:
		h.next = h.disk.Crash(h.luck)
	}
	return disk.Fault{} // it is gone
}

// draw makes up a call.
func (h *history) draw() call {
	c := call{kind: callKind(h.rnd.IntN(int(toOpen))), rid: h.rnd.IntN(shelfRIDs), waits: h.waits, byHandle: h.rnd.IntN(2) == 0}
	if h.rnd.IntN(4) == 0 {
		c.kind = toReserve
	}
	switch c.kind {
	case toReserve:
		c.amount = []int64{2, 3, 4, 5, 3}[c.rid]
		if h.rnd.IntN(8) == 0 {
			c.amount = int64(h.rnd.IntN(7))
		}
	case toExtend:
		c.maybe = h.rnd.IntN(3) > 0
	case toSettle:
		c.amount = []int64{1, 2, 6}[h.rnd.IntN(3)]
	case toAdjust:
		c.amount, c.evidence = []int64{1, 2}[h.rnd.IntN(2)], h.rnd.IntN(3)
	case toLimit:
		c.onRoot = h.rnd.IntN(2) == 0
		c.amount = []int64{0, 4, 7, 10, 10, 13, unlimited}[h.rnd.IntN(7)]
	}
	return c
}

// call makes one call and sets down its answer.
func (h *history) call(book *budget.Book, client int, c call) {
	began := h.clock.Add(1)
	h.add(client, c, h.ask(book, c), began)
}

func (h *history) add(client int, c call, a answer, began int64) {
	ended := h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.is == isRefused || a.is == isLost {
		require.True(h.t, h.faulty, "%+v", c)
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: c, Call: began, Output: a, Return: ended})
}

// ask makes a call of a book.
func (h *history) ask(book *budget.Book, c call) answer {
	ctx := context.Background()
	rid, scope := fmt.Sprintf("r%d", c.rid), "b"
	if onA(c.rid) {
		scope = "a"
	}
	r := h.handles[c.rid].Load()
	if r == nil || !c.byHandle {
		r = book.Reservation(rid)
	}
	var receipt budget.Receipt
	var err error
	switch c.kind {
	case toReserve:
		request := budget.Request{RID: rid, Scope: scope, Tokens: c.amount}
		if c.waits {
			request.MaxWait = 2 * time.Millisecond
		}
		var made *budget.Reservation
		if made, err = book.Reserve(ctx, request); err == nil {
			h.handles[c.rid].Store(made)
		}
	case toExtend:
		outcome := budget.NotBilled
		if c.maybe {
			outcome = budget.MaybeBilled
		}
		err = r.Extend(ctx, outcome, "")
	case toSettle:
		receipt, err = r.Settle(ctx, budget.Usage{Input: c.amount})
	case toAssume:
		receipt, err = r.Settle(ctx, budget.Usage{})
	case toRefund:
		receipt, err = r.Refund(ctx, budget.NotBilled, "")
	case toReclaim:
		receipt, err = r.Reclaim(ctx)
	case toAdjust:
		receipt, err = r.Adjust(ctx, budget.Evidence{Key: fmt.Sprintf("e%d", c.evidence), Usage: budget.Usage{Input: c.amount}})
	case toReceipt:
		receipt, err = r.Receipt(ctx)
	case toLimit:
		limit := budget.Tokens(max(0, c.amount))
		if limit.Unlimited = c.amount == unlimited; !c.onRoot {
			limit = limit.On("a")
		}
		err = book.SetLimit(ctx, limit)
	case toReport:
		tokens := book.Report().Tokens
		return answer{is: isDone, confirmed: tokens.Confirmed, assumed: tokens.Assumed, held: tokens.Held}
	}
	if err != nil {
		return answer{is: outcomeOf(err)}
	}
	if receipt.RID == "" {
		return answer{is: isDone}
	}
	return answer{is: isDone, booked: receipt.Booked, state: receipt.State, confirmed: receipt.Confirmed, assumed: receipt.Assumed,
		attempts: receipt.Attempts, overrun: receipt.Overrun}
}

func outcomeOf(err error) outcome {
	for _, is := range []struct {
		err error
		outcome
	}{
		{budget.ErrBroken, isRefused}, {journal.ErrFull, isRefused}, {journal.ErrPoisoned, isLost}, {budget.ErrExhausted, isExhausted}, {budget.ErrBusy, isBusy},
		{budget.ErrInFlight, isInFlight}, {budget.ErrConflict, isConflict}, {budget.ErrClosed, isClosed}, {budget.ErrUnknown, isUnknown},
	} {
		if errors.Is(err, is.err) {
			return is.outcome
		}
	}
	return outcome(err.Error())
}
