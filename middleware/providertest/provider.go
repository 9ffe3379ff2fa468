package providertest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

const maxBody = 64 << 20

// Options of a Provider. The zero value answers at once, without faults.
type Options struct {
	// Seed picks one of 2^64 providers.
	Seed uint64
	// Latency passes before the first byte of what is drawn, answer or fault.
	// Requests with an error of their own and GETs are answered at once.
	Latency time.Duration
	// ChunkLatency passes between the chunks of a stream.
	ChunkLatency time.Duration
	// Faults are drawn by the seed, the request and the attempt.
	Faults Faults
	// Pick, if not nil, says which fault a request meets, in place of Faults;
	// "" is none. It is called concurrently.
	Pick func(Request) Fault
	// BillAsSent bills the output of an answer as it is generated: what a
	// client that hung up did not wait for is not billed. By default the whole
	// answer is on the bill when the request is taken. Faults that break an
	// answer bill all of it either way.
	BillAsSent bool
	// Longest is the longest answer, in words a choice; zero is 120.
	Longest int
	// StallFor is the longest a Stall lasts; zero is one minute.
	StallFor time.Duration
	// RetryAfter is the wait that RateLimited asks for, rounded up to seconds
	// where the form knows nothing finer; zero is 100 ms.
	RetryAfter time.Duration
}

// Request is what Pick decides by.
type Request struct {
	Path    string
	Body    []byte
	Attempt int // at this path and body, from 1
}

// Provider is a simulated provider, an [http.Handler] for the paths under /v1
// and /sim. See the package documentation for what it does. It is safe for
// concurrent use. In a synctest bubble it must be made inside the bubble.
type Provider struct {
	opt    Options
	books  books
	script script

	closed chan struct{}
	close  sync.Once
}

// New makes a provider. It panics on faults that ParseFaults would refuse.
func New(opt Options) *Provider {
	if err := opt.Faults.check(); err != nil {
		panic(err.Error())
	}
	return &Provider{opt: opt, closed: make(chan struct{})}
}

// Close ends every wait of the provider, those to come included: the
// connections concerned are cut. It is for shutting down the server around it.
func (p *Provider) Close() { p.close.Do(func() { close(p.closed) }) }

// ServeHTTP serves one request.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case path == "/sim/bill" && r.Method == http.MethodGet:
		show(w, text(200, "application/json", string(marshal(p.Bill()))))
	case path == "/sim/seen" && r.Method == http.MethodGet:
		show(w, text(200, "application/json", string(marshal(p.Seen()))))
	case p.script.on():
		p.follow(w, r)
	case spends(path) && r.Method == http.MethodPost:
		p.spend(w, r)
	case strings.HasPrefix(path, "/v1/models") && r.Method == http.MethodGet:
		show(w, models(path))
	case strings.HasPrefix(path, "/v1/organization/usage/") && r.Method == http.MethodGet:
		show(w, p.report(strings.TrimPrefix(path, "/v1/organization/usage/"), r.URL.Query()))
	case spends(path):
		show(w, failure(&problem{status: 405, kind: "invalid_request_error", code: "method_not_supported",
			message: "Not allowed to " + r.Method + " on " + path + "."}))
	default:
		show(w, failure(notFound(r)))
	}
}

func spends(path string) bool {
	return path == "/v1/chat/completions" || path == "/v1/completions" || path == "/v1/embeddings"
}

func notFound(r *http.Request) *problem {
	return &problem{status: 404, kind: "invalid_request_error", code: "unknown_url",
		message: "Unknown request URL: " + r.Method + " " + r.URL.Path + ". Please check the URL for typos."}
}

// spend serves what is billed.
func (p *Provider) spend(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		show(w, failure(&problem{status: 413, kind: "invalid_request_error", message: "The request body is too large, or broke off."}))
		return
	}
	h := p.hash(r.URL.Path, raw)
	attempt := p.books.see(h)
	c, bad := understand(r.URL.Path, raw)
	if bad != nil {
		show(w, failure(bad))
		return
	}
	rng := rand.New(rand.NewChaCha8(sha256.Sum256(binary.BigEndian.AppendUint64(h[:], uint64(attempt)))))
	fault := p.opt.Faults.draw(rng)
	if p.opt.Pick != nil {
		fault = p.opt.Pick(Request{Path: r.URL.Path, Body: raw, Attempt: attempt})
	}
	p.books.met(h, fault)
	id := hex.EncodeToString(binary.BigEndian.AppendUint32(h[:8:8], uint32(attempt)))
	w.Header().Set("X-Request-Id", "req_"+id)
	p.send(w, r.Context(), h, c, p.compose(c, prefix(c)+id, fault, rng))
}

func prefix(c *call) string {
	if c.chat {
		return "chatcmpl-"
	}
	return "cmpl-"
}

// hash names a body at a path, for this seed.
func (p *Provider) hash(path string, body []byte) hash {
	s := sha256.New()
	s.Write(binary.BigEndian.AppendUint64(nil, p.opt.Seed))
	s.Write([]byte(path))
	s.Write([]byte{0})
	s.Write(body)
	return hash(s.Sum(nil)[:len(hash{})])
}

// send bills rep and carries it out. The bill comes first: whoever has a byte
// of an answer finds it on the bill.
func (p *Provider) send(w http.ResponseWriter, ctx context.Context, h hash, c *call, rep reply) {
	asSent := p.opt.BillAsSent && rep.good()
	if rep.requests > 0 {
		now := rep.completion
		if asSent {
			now = 0
		}
		p.books.charge(c.report, c.model, rep.requests, rep.prompt, now)
	}
	if !p.wait(ctx, p.opt.Latency) {
		panic(http.ErrAbortHandler)
	}
	if rep.end == stalled {
		p.wait(ctx, p.stallFor())
	}
	if len(rep.frames) == 0 {
		panic(http.ErrAbortHandler)
	}
	head(w, rep)
	for i, f := range rep.frames {
		if i > 0 && !p.wait(ctx, p.opt.ChunkLatency) {
			panic(http.ErrAbortHandler)
		}
		if asSent {
			p.books.charge(c.report, c.model, 0, 0, f.tokens)
		}
		if i == len(rep.frames)-1 && rep.good() && ctx.Err() == nil {
			p.books.full(h) // before the client can know
		}
		if _, err := w.Write(f.data); err != nil {
			panic(http.ErrAbortHandler)
		}
		if len(rep.frames) > 1 || rep.end != whole {
			http.NewResponseController(w).Flush()
		}
	}
	if rep.end == cut {
		panic(http.ErrAbortHandler)
	}
}

// show sends a reply that has nothing to do with the bill.
func show(w http.ResponseWriter, rep reply) {
	head(w, rep)
	w.Write(rep.frames[0].data)
}

func head(w http.ResponseWriter, rep reply) {
	for k, v := range rep.header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(rep.status)
}

// wait reports whether d passed before the client gave up and the provider
// was closed.
func (p *Provider) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-p.closed:
	}
	return false
}

func (p *Provider) longest() int {
	if p.opt.Longest <= 0 {
		return 120
	}
	return p.opt.Longest
}

func (p *Provider) stallFor() time.Duration {
	if p.opt.StallFor <= 0 {
		return time.Minute
	}
	return p.opt.StallFor
}
