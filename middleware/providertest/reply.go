package providertest

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// reply is everything a request will get and be billed, decided before the
// first byte leaves.
type reply struct {
	status     int
	header     map[string]string
	frames     []frame // the body in the pieces it is flushed in
	end        end
	requests   int64 // 1 if billed
	prompt     int64
	completion int64
}

// frame is one piece of the body and the output tokens generated for it.
type frame struct {
	data   []byte
	tokens int64
}

// end is how the connection ends.
type end int

const (
	whole   end = iota // after the whole body
	short              // in mid-body, but as if that were all
	cut                // in mid-body, or before any byte: the connection closes
	stalled            // silent until the client gives up, then the connection closes
)

// good reports whether the client gets all of an answer.
func (r reply) good() bool { return r.status == http.StatusOK && r.end == whole }

// compose decides the reply to c under a fault, and what c is billed. Dates
// apart, the same rng gives the same reply.
func (p *Provider) compose(c *call, id string, fault Fault, rng *rand.Rand) reply {
	variant := rng.IntN(1 << 20)
	switch fault {
	case RateLimited:
		return p.rateLimited(variant)
	case OutOfQuota:
		return failure(&problem{status: 429, kind: "insufficient_quota", code: "insufficient_quota",
			message: "You exceeded your current quota, please check your plan and billing details."})
	case ServerError:
		return failure(serverError)
	case ErrorBody:
		if variant%3 != 2 {
			return errorBody(variant % 3)
		}
	}

	w := wire{id: id, created: time.Now().Unix(), call: c}
	var (
		r reply
		a answer
	)
	if c.report == "embeddings" {
		if fault == Overrun {
			c.prompt = c.inputBytes + 1 + rng.Int64N(int64(p.longest()))
		}
		w.usage = usage(c, a, fault, variant)
		r = w.embeddings(p.opt.Seed)
	} else {
		a = think(c, rng, p.longest(), fault == Overrun)
		w.usage = usage(c, a, fault, variant)
		if c.stream {
			r = w.stream(a)
		} else {
			r = w.whole(a)
		}
	}
	return r.under(fault, variant).billed(c.prompt, a.completion)
}

// under bends a whole reply to a fault that comes after the work.
func (r reply) under(fault Fault, variant int) reply {
	switch fault {
	case ServerErrorBilled:
		return failure(serverError)
	case ErrorBody:
		return errorBody(2)
	case Stall:
		return reply{end: stalled}
	case Lost:
		return reply{end: cut}
	case Cut:
		r.end = cut
		if len(r.frames) > 1 {
			// Somewhere before the last frame, [DONE].
			r.frames = r.frames[:1+variant%(len(r.frames)-1)]
			if variant&(1<<19) != 0 {
				r.end = short
			}
		}
		last := &r.frames[len(r.frames)-1]
		last.data = last.data[:(len(last.data)+1)/2]
	}
	return r
}

func (r reply) billed(prompt, completion int64) reply {
	r.requests, r.prompt, r.completion = 1, prompt, completion
	return r
}

var serverError = &problem{status: 500, kind: "server_error",
	message: "The server had an error while processing your request. Sorry about that!"}

func (p *Provider) rateLimited(variant int) reply {
	r := failure(&problem{status: 429, kind: "requests", code: "rate_limit_exceeded",
		message: "Rate limit reached. Please try again later."})
	wait := p.opt.RetryAfter
	if wait == 0 {
		wait = 100 * time.Millisecond
	}
	up := wait + time.Second - 1 // both forms know whole seconds only
	switch variant % 4 {
	case 0:
		r.header["Retry-After"] = strconv.FormatInt(int64(up/time.Second), 10)
	case 1:
		r.header["Retry-After"] = time.Now().Add(up).UTC().Format(http.TimeFormat)
	case 2:
		r.header["Retry-After-Ms"] = strconv.FormatInt(wait.Milliseconds(), 10)
	}
	r.header["X-Ratelimit-Remaining-Requests"] = "0"
	r.header["X-Ratelimit-Reset-Requests"] = wait.String()
	return r
}

func errorBody(which int) reply {
	switch which {
	case 0:
		return text(502, "text/html", "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><center><h1>502 Bad Gateway</h1></center></body>\r\n</html>\r\n")
	case 1:
		return text(500, "text/plain", "")
	default:
		return text(504, "text/plain", "upstream request timeout")
	}
}

func text(status int, kind, body string) reply {
	return single(status, kind, frame{data: []byte(body)})
}

func single(status int, kind string, f frame) reply {
	return reply{status: status, frames: []frame{f},
		header: map[string]string{"Content-Type": kind, "Content-Length": strconv.Itoa(len(f.data))}}
}

// failure is the reply that a problem gets. It is not billed.
func failure(p *problem) reply {
	orNull := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return text(p.status, "application/json", string(marshal(map[string]any{"error": map[string]any{
		"message": p.message, "type": p.kind, "param": orNull(p.param), "code": orNull(p.code)}})))
}
