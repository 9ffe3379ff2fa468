// Package budget holds calls to a paid service to a hard budget of tokens,
// money and requests, and keeps the book that proves it.
//
// Before a call leaves, [Book.Reserve] holds the most it can cost. The
// reservation stays open over all attempts of the call, each further one
// announced by [Reservation.Extend], and is closed exactly once: by
// [Reservation.Settle] with what was really used, or by [Reservation.Refund]
// where provably nothing was. Every step is an entry in a [Journal], durable
// before the step is taken, and the counters are the sum of the entries. So
// at every moment, also after a crash,
//
//	confirmed <= what the provider bills <= net
//
// provided that no attempt bills more than was held for it; one that does is
// recorded in full and reported as an overrun.
package budget
