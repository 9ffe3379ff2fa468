// Package meter reads the wire formats of LLM providers: what a request may
// cost at most, what a response did cost, and which refusals are surely not
// billed. Everything is read from the raw bytes, so that figures an SDK's types
// leave out still count.
//
// [For] picks the [Meter] of a request by method and path. The meter's Bound
// is reserved before the request leaves; its [Watch] sees every byte of the
// response go by and ends with a [Reading]; its Refused judges a status of 400
// and above.
//
// A bound holds for providers whose tokenizer is a byte-level BPE (a token is
// at least one byte) or known to the [Counter], and which keep to the output
// cap of the request. What a provider adds out of sight of the request is
// covered by stated allowances (see prompt.go); a request that its own bytes
// do not bound is refused with an [*UnboundedError], unless [Options] say what
// does. A provider that bills
// reasoning above max_tokens exceeds the bound, which a book reports as an
// overrun.
package meter

import (
	"net/http"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// Meter knows one wire format. Implementations are safe for concurrent use and
// keep nothing of a request. To bend a single rule of one, embed it and
// override the method.
type Meter interface {
	// Bound says what one attempt may cost at most. It never sends anything. A
	// request it cannot bound is refused: the error is [ErrRefused], the call
	// must not leave.
	Bound(r Request, o Options) (Bound, error)
	// Streams reports whether a response with a status below 300 is a stream,
	// which is handed on as it comes.
	Streams(b Bound, h http.Header) bool
	// Watch follows the body of one response with a status below 300 to the
	// request that b bounds. sent tells that b.WithUsage was sent in place of
	// the caller's body, so that what it adds to a stream is taken out again.
	Watch(b Bound, h http.Header, sent bool) Watch
	// Refused judges a response with a status of 400 and above. body is its
	// beginning, up to [MaxRefusalBytes]; a cut one is judged as not understood.
	Refused(status int, h http.Header, body []byte) Refusal
}

// Request is what a meter reads of a request.
type Request struct {
	Path   string // of the URL, without query
	Header http.Header
	Body   []byte // not changed and not kept
}

// Options are the caller's choices for bounds. The zero Options count bytes,
// and refuse a request without an output cap unless the model's own is known.
type Options struct {
	// Counter counts the tokens of text. Nil: one token a byte, which no
	// byte-level BPE exceeds.
	Counter Counter
	// DefaultOutput is the number of output tokens reserved, per choice, for a
	// request that names no cap. Zero: the model's known maximum. It is a
	// guess, and an answer above it an overrun, unless it is written into the
	// request ([Bound.Within]).
	DefaultOutput int64
	// ImageTokens is reserved for each image in a request, whatever its size.
	// Zero: [DefaultImageTokens].
	ImageTokens int64
	// ContextWindow is how many tokens the model can read at most, the
	// largest of them where there are several. With it a request that draws in what its bytes do not
	// bound (a stored conversation, a file by its id) is not refused: its input is
	// bounded by the whole window. Zero: it is refused.
	ContextWindow int64
	// Steps is how many steps of the model one request may lead to, where the
	// provider runs tools for it (a web search, say) and the model goes on with
	// their results. With it and ContextWindow such a request is not refused: it
	// is bounded by a window of input and a whole answer for each step. It is the
	// caller's word; what a provider does beyond is an overrun. Zero: it is refused.
	Steps int64
}

// Counter counts tokens. Count must not return less than the model's own
// tokenizer would, never fails, takes any bytes, and is safe for concurrent
// use. An empty model is an unknown one.
type Counter interface {
	Count(model, text string) int64
}

// Bound is what one attempt of a request may cost at most.
type Bound struct {
	Model        string
	Input        int64 // prompt side, at most
	Output       int64 // generated, at most, all choices together
	budget.Units       // used besides, at most

	Choices   int64  // how many answers are generated side by side; at least 1
	Stream    bool   // the answer is asked for as server-sent events
	Body      []byte // the body to send; nil: the request's own
	WithUsage []byte // the body to send so that the stream ends with its usage; nil: send Body

	capping capping
	usage   *edit // of which WithUsage is made
}

// Total is Input + Output. It is at most [budget.MaxTokens].
func (b Bound) Total() int64 { return b.Input + b.Output }

// Usage is the bound as usage, of which a Pricer says what it costs at most.
func (b Bound) Usage() budget.Usage {
	return budget.Usage{Input: b.Input, Output: b.Output, Units: b.Units}
}

// Watch follows one response body. It is for one goroutine.
type Watch interface {
	// Write takes the next bytes of the body, split anywhere, and returns
	// those to hand on, valid until the next call. It does not keep p.
	Write(p []byte) []byte
	// End says that no more bytes come, for whatever reason, and returns what
	// was held back. More calls return nothing.
	End() []byte
	// Reading is what is known so far. It may be asked at any time.
	Reading() Reading
}

// Reading is what the bytes of one response told.
type Reading struct {
	// Usage as last reported, never a lower figure after a higher one. Not
	// Known: Usage.Why says why. Ref is the id of the answer.
	Usage budget.Usage
	// Final: Usage is known and the last word: nothing more is generated, and
	// nothing was after it was reported. A stream may have no end marker then.
	Final bool
	// Finished: the format's end marker was seen. An unfinished response was cut.
	Finished bool
	// Stopped: every choice gave its finish reason; nothing more is generated.
	// Streams only.
	Stopped bool
	// Failure is an error inside a response with a good status, else nil.
	Failure *Refusal
	// Generated is the size in bytes of the generated text seen, tool calls
	// and visible reasoning included. Streams only: a JSON body sets it to at
	// least 1 where it holds any.
	Generated int64
	// Pieces is how many chunks held generated text, those of several choices
	// counted for each: the model wrote at least as many tokens, unless somebody
	// on the way cuts the text finer. Streams only.
	Pieces int64
}

// Words for [budget.Usage.Why], so that a report can count them.
const (
	NoUsage    = "no usage"               // the response names none
	Unreadable = "unreadable usage"       // it is not understood, or contradicts itself
	ZeroUsage  = "zero usage with output" // no output, or nothing at all, yet something was generated
)

// Observed is the usage to charge for an answer that was given up half-way,
// if only what was seen shall be charged: the input bound, and a token for each
// byte seen, within the output bound; or what was reported, if that is more. It
// is marked as estimated.
func (r Reading) Observed(b Bound) budget.Usage {
	u := budget.Usage{Input: b.Input, Output: min(r.Generated, b.Output), Ref: r.Usage.Ref}
	if r.Usage.Total() > u.Total() {
		u = r.Usage
	}
	u.Estimated, u.Why = true, "observed until the abort"
	return u
}

// Refusal is what an error response tells, of the things that no status says.
type Refusal struct {
	// Unbilled: the attempt was surely not billed. Else it may have been.
	Unbilled bool
	// Stop: trying again does not help until somebody tops up an account,
	// raises a limit, or a day ends.
	Stop bool
	// RetryAfter is the wait that the body asks for; zero if none.
	RetryAfter time.Duration
	// NoUsageOption: the error names the option that Bound.WithUsage adds. Send
	// the caller's own body instead.
	NoUsageOption bool
	// Code is the error's code, else its type, if it is a [Code]. Never a
	// message, which could quote the prompt or a key.
	Code string
}

// MaxRefusalBytes is how much of an error body Refused needs at most.
const MaxRefusalBytes = 64 << 10
