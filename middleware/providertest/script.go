package providertest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// TB is the part of [testing.TB] that this package needs; it does not import
// testing, so that a command can serve a Provider.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(func())
}

// Answer is an exact answer to one call of a script.
type Answer struct {
	// When, if not nil, restricts the calls the answer is for. It is also the
	// place to look at what was sent.
	When func(r *http.Request, body []byte) bool

	Status int         // zero is 200
	Header http.Header // Content-Type is application/json unless set
	Parts  []Part      // the body

	// Prompt and Completion are billed when the call arrives.
	Prompt, Completion int64
}

// Part is a piece of a scripted body: text, a wait, or a hang-up. Each text is
// flushed by itself. Status and header leave with the first text.
type Part struct {
	text string
	wait <-chan struct{}
	cut  bool
}

// Text is a piece of the body as it stands. Text("") sends the header.
func Text(s string) Part { return Part{text: s} }

// Event is a server-sent event with one line of data.
func Event(data string) Part { return Text("data: " + data + "\n\n") }

// Wait stalls until released is closed, the client gives up, or the provider
// is closed; after the latter two nothing follows.
func Wait(released <-chan struct{}) Part { return Part{wait: released} }

// Hangup closes the connection; as the first part, without a byte.
func Hangup() Part { return Part{cut: true} }

// JSON is an answer with this status and body.
func JSON(status int, body string) Answer { return Answer{Status: status, Parts: []Part{Text(body)}} }

// SSE is a stream of these events, followed by [DONE].
func SSE(data ...string) Answer {
	a := Answer{Header: http.Header{"Content-Type": {"text/event-stream"}}}
	for _, d := range append(data, "[DONE]") {
		a.Parts = append(a.Parts, Event(d))
	}
	return a
}

// Billed returns a with this on the bill.
func (a Answer) Billed(prompt, completion int64) Answer {
	a.Prompt, a.Completion = prompt, completion
	return a
}

// CutAt returns a with the connection cut after n bytes of its body.
func (a Answer) CutAt(n int) Answer {
	var kept []Part
	for _, part := range a.Parts {
		if n < len(part.text) {
			kept = append(kept, Text(part.text[:n]))
			break
		}
		n -= len(part.text)
		kept = append(kept, part)
	}
	a.Parts = append(kept, Hangup())
	return a
}

// script is the queue of answers to come. Its zero value is no script.
type script struct {
	mu      sync.Mutex
	t       TB
	answers []Answer
}

// Expect puts p in scripted mode and queues answers. From then on every call
// other than GET /sim/… gets the first answer in the queue that is for it. A
// call that no answer is for fails t, and so does an answer that nobody asked
// for until t ends. Options play no part, but for Seed in the books.
func (p *Provider) Expect(t TB, answers ...Answer) {
	t.Helper()
	s := &p.script
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, answers...)
	if s.t != nil {
		return
	}
	s.t = t
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.answers); n > 0 {
			t.Errorf("providertest: %d scripted answers were never asked for", n)
		}
	})
}

func (s *script) on() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t != nil
}

// next takes the answer for a call out of the queue, or fails the test.
func (s *script) next(r *http.Request, body []byte) (Answer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, a := range s.answers {
		if a.When == nil || a.When(r, body) {
			s.answers = append(s.answers[:i:i], s.answers[i+1:]...)
			return a, true
		}
	}
	s.t.Errorf("providertest: unexpected call %s %s of %d bytes; %d other answers are left in the script", r.Method, r.URL.Path, len(body), len(s.answers))
	return Answer{}, false
}

// follow serves a call by the script.
func (p *Provider) follow(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h := p.hash(r.URL.Path, body)
	p.books.see(h)
	a, ok := p.script.next(r, body)
	if !ok {
		// An answer that no client tries again.
		w.Header().Set("X-Should-Retry", "false")
		show(w, failure(&problem{status: 400, kind: "invalid_request_error", code: "unexpected_call",
			message: fmt.Sprintf("The script has no answer for %s %s.", r.Method, r.URL.Path)}))
		return
	}
	if a.Prompt != 0 || a.Completion != 0 {
		p.books.charge(reportOf(r.URL.Path), modelOf(body), 1, a.Prompt, a.Completion)
	}
	p.play(w, r.Context(), a, h)
}

func reportOf(path string) string {
	if strings.HasSuffix(path, "/embeddings") {
		return "embeddings"
	}
	return "completions"
}

// modelOf is the model a body names, if it can be read.
func modelOf(raw []byte) string {
	var b struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(raw, &b) // a script may be for anything
	return b.Model
}

// play sends a scripted answer.
func (p *Provider) play(w http.ResponseWriter, ctx context.Context, a Answer, h hash) {
	w.Header().Set("Content-Type", "application/json")
	for k, v := range a.Header {
		w.Header()[http.CanonicalHeaderKey(k)] = v
	}
	if len(a.Parts) == 1 && w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.Parts[0].text)))
	}
	status := cmp.Or(a.Status, http.StatusOK)
	broken := slices.ContainsFunc(a.Parts, func(p Part) bool { return p.cut })
	for i, part := range a.Parts {
		switch {
		case part.cut:
			panic(http.ErrAbortHandler)
		case part.wait != nil:
			select {
			case <-part.wait:
				continue
			case <-ctx.Done():
			case <-p.closed:
			}
			panic(http.ErrAbortHandler)
		}
		if i == len(a.Parts)-1 && status == http.StatusOK && !broken && ctx.Err() == nil {
			p.books.full(h)
		}
		if i == firstText(a.Parts) {
			w.WriteHeader(status)
		}
		if _, err := io.WriteString(w, part.text); err != nil {
			panic(http.ErrAbortHandler)
		}
		if len(a.Parts) > 1 {
			http.NewResponseController(w).Flush()
		}
	}
	if firstText(a.Parts) < 0 {
		w.WriteHeader(status)
	}
}

func firstText(parts []Part) int {
	return slices.IndexFunc(parts, func(p Part) bool { return !p.cut && p.wait == nil })
}
