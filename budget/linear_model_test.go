package budget_test

import "github.com/tollbook/tollbook/budget"

// What a book is, for one caller at a time: a list of attempts for each
// reservation, each with what it stands at. It is written from the design's
// words and shares nothing with the guard. All of it is values, so that a state
// can be kept and compared.

const shelfRIDs = 5

// shelf is the whole book. Reservations 0 to 2 are on scope "a", the others on "b";
// limits are on the root and on "a".
type shelf struct {
	rootCap, aCap int64
	rids          [shelfRIDs]slip
}

// unlimited is a limit that is not there.
const unlimited = -1

func onA(rid int) bool { return rid < 3 }

type slip struct {
	state      budget.State // zero: never reserved
	hold       int64        // of one attempt
	n          int
	tries      [8]try // the first n
	evidence   [3]int64
	freed      bool  // closed by a refund, though earlier attempts stay charged
	heldAtEnd  int64 // what it held when it was closed
	lastFigure int64 // what the last attempt was reported with; 0: it was not
}

// try is one attempt. While the reservation is open, figure says nothing.
type try struct {
	figure  int64
	assumed bool
	free    bool
}

func (s *slip) last() *try { return &s.tries[s.n-1] }

// totals are the parts of the net.
func (s *slip) totals() (confirmed, assumed, held int64) {
	for _, a := range s.tries[:s.n] {
		switch {
		case s.state == budget.StateOpen && !a.free:
			held += s.hold
		case s.state == budget.StateOpen:
		case a.assumed:
			assumed += a.figure
		default:
			confirmed += a.figure
		}
	}
	return
}

// sums adds up what counts against the limit of the root, or of scope "a".
func (b *shelf) sums(root bool) (confirmed, assumed, held int64) {
	for rid := range b.rids {
		if root || onA(rid) {
			c, a, h := b.rids[rid].totals()
			confirmed, assumed, held = confirmed+c, assumed+a, held+h
		}
	}
	return
}

// refusal is what becomes of asked tokens more on the path of a rid. own is
// what the reservation holds itself, which no refund will give back.
func (b *shelf) refusal(rid int, asked, own int64) outcome {
	busy := outcome("")
	for _, root := range []bool{false, true} {
		limit := b.rootCap
		if !root {
			limit = b.aCap
		}
		if limit == unlimited || !root && !onA(rid) {
			continue
		}
		confirmed, assumed, held := b.sums(root)
		switch {
		case limit > 0 && confirmed+assumed+held+asked <= limit:
		case limit > 0 && confirmed+assumed+own+asked <= limit:
			busy = isBusy
		default:
			return isExhausted
		}
	}
	return busy
}

// close gives every attempt its figure: earlier ones that may have been billed
// their hold, the last one what is given.
func (s *slip) close(state budget.State, last try) {
	_, _, s.heldAtEnd = s.totals()
	for i := range s.n - 1 {
		if !s.tries[i].free {
			s.tries[i] = try{figure: s.hold, assumed: true}
		}
	}
	s.state, *s.last() = state, last
}

// earlier is the first attempt before the last that stands at an assumed figure.
func (s *slip) earlier() *try {
	for i := range s.n - 1 {
		if s.tries[i].assumed {
			return &s.tries[i]
		}
	}
	return nil
}

// do is one call, alone: what the book is after it, and what it answers.
func (b shelf) do(c call) (shelf, answer) {
	s := &b.rids[c.rid]
	switch c.kind {
	case toLimit:
		if c.onRoot {
			b.rootCap = c.amount
		} else {
			b.aCap = c.amount
		}
		return b, answer{is: isDone}
	case toReport:
		confirmed, assumed, held := b.sums(true)
		return b, answer{is: isDone, confirmed: confirmed, assumed: assumed, held: held}
	case toOpen:
		for rid := range b.rids {
			if s := &b.rids[rid]; s.state == budget.StateOpen && !c.keep {
				s.close(budget.StateSettled, try{figure: s.hold, assumed: true})
			}
		}
		return b, answer{is: isDone}
	case toReserve:
		switch {
		case s.state != 0 && s.hold != c.amount:
			return b, answer{is: isConflict}
		case s.state == budget.StateOpen:
			return b, answer{is: isInFlight}
		case s.state != 0:
			return b, answer{is: isClosed}
		}
		if no := b.refusal(c.rid, c.amount, 0); no != "" {
			return b, answer{is: no}
		}
		*s = slip{state: budget.StateOpen, hold: c.amount, n: 1}
		return b, answer{is: isDone}
	}
	if s.state == 0 {
		return b, answer{is: isUnknown}
	}
	switch c.kind {
	case toExtend:
		asked := int64(0)
		if c.maybe {
			asked = s.hold
		}
		if s.state != budget.StateOpen {
			return b, answer{is: isClosed}
		}
		_, _, own := s.totals()
		if no := b.refusal(c.rid, asked, own); no != "" && asked > 0 {
			return b, answer{is: no}
		}
		s.last().free = !c.maybe
		s.tries[s.n] = try{}
		s.n++
		return b, answer{is: isDone}
	case toSettle:
		switch {
		case s.state == budget.StateOpen:
			s.close(budget.StateSettled, try{figure: c.amount})
		case s.state == budget.StateRefunded || s.last().assumed:
			s.state, *s.last() = budget.StateSettled, try{figure: c.amount}
		case s.lastFigure == c.amount:
			return b, s.receipt(false)
		default:
			return b, answer{is: isClosed}
		}
		s.lastFigure = c.amount
		return b, s.receipt(true)
	case toAssume:
		if s.state == budget.StateOpen {
			s.close(budget.StateSettled, try{figure: s.hold, assumed: true})
			return b, s.receipt(true)
		}
		if s.state == budget.StateSettled && s.last().assumed {
			return b, s.receipt(false)
		}
		return b, answer{is: isClosed}
	case toRefund:
		switch {
		case s.state == budget.StateOpen:
			s.close(budget.StateRefunded, try{free: true})
			if s.freed = s.earlier() != nil; s.freed {
				s.state = budget.StateSettled
			}
			return b, s.receipt(true)
		case s.state == budget.StateRefunded || s.freed:
			return b, s.receipt(false)
		}
		return b, answer{is: isClosed}
	case toReclaim:
		if s.state != budget.StateRefunded {
			return b, s.receipt(false)
		}
		s.reclaim()
		return b, s.receipt(true)
	case toAdjust:
		switch known := &s.evidence[c.evidence]; {
		case *known == c.amount:
			return b, s.receipt(false)
		case *known != 0:
			return b, answer{is: isConflict}
		case s.state == budget.StateOpen:
			return b, answer{is: isInFlight}
		case s.earlier() != nil:
			*s.earlier() = try{figure: c.amount}
			*known = c.amount
		case s.last().assumed:
			*s.last(), s.lastFigure = try{figure: c.amount}, c.amount
			*known = c.amount
		default:
			return b, answer{is: isClosed}
		}
		return b, s.receipt(true)
	}
	return b, s.receipt(false)
}

func (s *slip) reclaim() {
	s.state, *s.last() = budget.StateSettled, try{figure: s.hold, assumed: true}
}

func (s *slip) receipt(booked bool) answer {
	confirmed, assumed, held := s.totals()
	a := answer{is: isDone, booked: booked, state: s.state, confirmed: confirmed, assumed: assumed, attempts: int64(s.n)}
	if s.state != budget.StateOpen {
		a.overrun = max(0, confirmed+assumed+held-s.heldAtEnd)
	}
	return a
}

// after is every book that may be there when a call was answered so; none means
// that it cannot have been.
func (b shelf) after(c call, a answer) (states []any) {
	next, says := b.do(c)
	switch a.is {
	case isRefused: // nothing was written, whatever was asked
		return []any{b}
	case isLost: // it may have been written, and of two entries the first alone
		states = []any{b}
		if next != b {
			states = append(states, next)
		}
		if c.kind == toSettle && b.rids[c.rid].state == budget.StateRefunded {
			b.rids[c.rid].reclaim()
			states = append(states, b)
		}
		return states
	case isBusy:
		if c.waits && c.kind == toReserve && b.rids[c.rid].state == 0 { // others may have been before it in line
			return []any{b}
		}
	}
	if says == a {
		states = []any{next}
	}
	return states
}
