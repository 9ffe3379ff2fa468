package middleware

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/retry"
)

// DefaultMaxWait is how long a call waits for room where [MaxWait] is not given.
// Near the end of a limit calls go a few at a time, and the last of a crowd waits
// for many answers: of 64 that take 30 s each, some would give up after a minute
// with a twentieth of the limit unused.
const DefaultMaxWait = 15 * time.Minute

// DefaultOutageAfter is how many attempts in a row may fail where [OutageAfter]
// is not given.
const DefaultOutageAfter = 5

// An Option sets one thing of a [Guard]. Of the same option the last counts.
type Option func(*config)

type config struct {
	base           http.RoundTripper
	bounds         meter.Options
	routes         []meter.Route
	retry          retry.Policy
	scope          string
	maxWait        time.Duration
	leastOutput    int64 // 0: caps are left alone
	onAbort        AbortPolicy
	stopOverrun    bool
	headers, idle  time.Duration
	outageAfter    int
	denyByResponse bool
	logger         *slog.Logger
}

func newConfig(opts []Option) config {
	c := config{maxWait: DefaultMaxWait, outageAfter: DefaultOutageAfter}
	for _, o := range opts {
		o(&c)
	}
	if c.base == nil {
		c.base = http.DefaultTransport
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Base is what sends the attempts; nil, and the default, is
// [http.DefaultTransport]. It must not retry by itself: such an attempt would
// be on the bill and not in the book.
func Base(rt http.RoundTripper) Option { return func(c *config) { c.base = rt } }

// Bounds says how requests are bounded: with which tokenizer, and what is
// reserved for a request that names no output cap.
func Bounds(o meter.Options) Option { return func(c *config) { c.bounds = o } }

// CapOutput has the guard write the output cap into requests: into one that
// names none what is reserved for it, DefaultOutput of [Bounds] or the model's
// known maximum, so that the bound is a cap and no guess; into any what the
// limits have left, where that is less than it asks for, but never below least
// tokens for each choice. So a budget is used to its end. An answer that meets
// the cap ends with finish_reason "length"; with a reasoning model least should
// leave room to think and to answer. Less left than that is
// [budget.ErrExhausted], as ever. All attempts of a call are sent alike.
//
// Nothing is written where it would only do harm: the maximum of a model whose
// window could not hold the prompt beside it, or of a plain completion, which
// servers end after 16 tokens or so; nor where nothing is known and no limit
// asks. A least below 1 is 1; without the option caps are left alone.
func CapOutput(least int64) Option { return func(c *config) { c.leastOutput = max(least, 1) } }

// Routes gives paths a meter, or declares them free (a [meter.Route] without
// one). They go before the built-in ones. A path that may spend and has neither
// is refused.
func Routes(r ...meter.Route) Option { return func(c *config) { c.routes = r } }

// Retry is how often and how patiently to try. Its Before is asked first, the
// book after it.
func Retry(p retry.Policy) Option { return func(c *config) { c.retry = p } }

// Scope is the scope of calls whose context names none, see [WithScope].
func Scope(path string) Option { return func(c *config) { c.scope = path } }

// MaxWait is how long a call waits for room that open calls take up: 0 is not
// at all, and [DefaultMaxWait] if the option is not given; the call's context
// ends the wait, too. A call for which there would be no room even then is
// refused at once.
func MaxWait(d time.Duration) Option { return func(c *config) { c.maxWait = d } }

// Timeouts bounds each attempt: the wait for the response's header, and every
// single wait for more of its body. Zero is no bound, and the default. There is
// none for the whole call: it would span the waits for room and between
// attempts. The caller's context does that.
func Timeouts(header, idle time.Duration) Option {
	return func(c *config) { c.headers, c.idle = header, idle }
}

// OutageAfter is how many attempts in a row at one host may fail without an
// answer, each of them perhaps on the bill, before calls to it pause:
// [DefaultOutageAfter] if the option is not given, and 0 is never. The calls
// refused then are an [*OutageError]. What is under way finishes; so an outage
// costs at most the holds of that many attempts and of those under way, and of
// one for each pause, which lasts 15 s at first and doubles up to 5 min.
//
// A time-out counts as failing, also one by the deadline of the caller's
// context; its cancelling does not, nor what surely was not billed.
func OutageAfter(failures int) Option { return func(c *config) { c.outageAfter = failures } }

// OnAbort says what an aborted stream is charged.
func OnAbort(p AbortPolicy) Option { return func(c *config) { c.onAbort = p } }

// StopOverrun ends a stream in the middle when its output passes what was
// reserved for it: it goes on to the reader for at most one chunk more, and ends
// with an [*OverrunError]; so does the exchange with the provider. What came is
// charged then, as assumed: the prompt's bound, and the output as reported so
// far or a token for each chunk with text of each choice, whichever is more.
//
// Without it such a stream goes on to its end, and what it used above its hold is
// booked as an overrun. Where somebody between the model and here cuts its text
// into pieces smaller than tokens, streams would be stopped too early.
func StopOverrun() Option { return func(c *config) { c.stopOverrun = true } }

// DenyByResponse answers denials and pauses with a synthetic 402, as Stainless
// SDKs get it anyway, instead of a Go error: for a client that flattens errors
// or tries them again.
func DenyByResponse() Option { return func(c *config) { c.denyByResponse = true } }

// Logger hears of what needs attention: a close that could not be written, an
// answer without readable usage, a client that retries by itself. It is told
// ids, numbers and codes, never what a call contains.
func Logger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// AbortPolicy says what to charge for a stream that the caller gave up before
// its end, when the provider has not told the usage yet. Providers mostly bill
// the whole answer then, or what was generated so far.
type AbortPolicy uint8

const (
	// ChargeHold charges the hold, as assumed: the only figure that is surely
	// not below the bill.
	ChargeHold AbortPolicy = iota
	// ObservedOnAbort charges the prompt's bound and a token for each byte of
	// answer that was seen, or what was reported by then if that is more, as an
	// estimate. It gives up that the book never shows less than the bill.
	ObservedOnAbort
	// DrainOnAbort reads on in the background, for at most 2 minutes and
	// 16 MiB, and charges what the provider reports at the end; the hold, if
	// that does not come. The caller is not kept waiting; [Guard.Wait] is.
	DrainOnAbort
)
