// Package retry decides whether there is another attempt, and waits for it.
//
// It knows nothing of budgets and imports nothing of tollbook: an attempt costs
// money whether or not it helped, so whoever keeps the books is asked before
// each further one, through [Policy.Before], and may say no.
//
//	attempt ─▶ Classify ─▶ long enough to stop? ─▶ Before ─▶ wait ─▶ next attempt
//	              │                 │                 │        │
//	              ▼                 ▼                 ▼        ▼
//	       the bare error       *StopError        *AbandonedError
//
// # What is tried again
//
// An error is asked questions through one-method interfaces, each found with
// the errors package through any wrapping; its text is never read. The first
// line that fits decides:
//
//	Denied() bool        Denied       our own refusal; never tried again
//	Pause() bool         Stop         quota or spend limit: go on later
//	Retryable() bool     the outermost answer decides: false is Permanent
//	RateLimited() bool   RateLimited  tried again
//	Retryable() bool     Transient    tried again
//	context.Canceled     Permanent    somebody wanted it to end
//	Timeout() bool       Transient    an attempt's own deadline, a slow network
//	a broken connection  Transient    reset, refused, cut short, HTTP/2 stream reset
//	anything else        Permanent    a blind retry may be billed
//
// Two more questions give times: RetryAfter() (time.Duration, bool) is the
// least wait before the next attempt, RetryAt() time.Time when a pause ends
// (zero: not known).
//
// [CheckStatus] makes such an error of an HTTP answer. The codes that tell an
// exhausted quota from an ordinary 429 stand in the body, which only a meter
// can read: it returns a [StopError] instead.
//
// # How long
//
// Our own waits are full jitter: evenly spread between zero and a bound that
// doubles from [Policy.FirstWait] up to [Policy.LongestWait], so that callers
// who failed together do not come back together. A wait the server asks for is
// the floor, and our own comes on top of it. A server that asks for more than
// the longest wait, and a wait that would outlast the context's deadline, are
// not waited for at all: [Do] returns a [StopError] with the time to come back.
// The end of the context ends every wait at once.
//
// Pausing after a run of failures that may have been billed needs a memory
// over many calls and is not here: whoever counts them returns a [StopError].
package retry
