package providertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"sync"
)

// NewServer serves p on the loopback until t ends. Its URL has no /v1 yet.
func NewServer(t TB, p *Provider) *httptest.Server {
	s := httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close() // or a stall would hold up the server
		s.Close()
	})
	return s
}

// RoundTripper answers requests to any host by p, in memory: for tests in a
// synctest bubble. A connection never fails to be made, and never makes the
// provider wait: what it writes is kept until read. A connection that it cuts
// is [io.ErrUnexpectedEOF] to the client, or an error that wraps [io.EOF] if no
// byte was answered. As with any transport, bodies are to be closed.
func (p *Provider) RoundTripper() http.RoundTripper { return roundTripper{p} }

type roundTripper struct{ handler http.Handler }

func (rt roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, err := receive(r)
	if err != nil {
		return nil, err
	}
	// The handler hears of a client that gave up after the client's own side
	// has: its reaction must not be taken for the provider's.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	in := r.Clone(ctx)
	in.Body, in.ContentLength, in.RequestURI, in.RemoteAddr = io.NopCloser(bytes.NewReader(sent)), int64(len(sent)), r.URL.RequestURI(), "memory"
	c := &connection{header: http.Header{}, answered: make(chan struct{}), done: make(chan struct{}), cancel: cancel}
	c.changed.L = &c.mu
	c.unwatch = context.AfterFunc(r.Context(), func() {
		c.end(context.Cause(r.Context()), true)
		cancel()
	})
	go c.serve(rt.handler, in)

	select {
	case <-c.answered:
		if c.status != 0 {
			if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotFirstResponseByte != nil {
				trace.GotFirstResponseByte()
			}
			return c.response(r), nil
		}
		err = fmt.Errorf("providertest: connection closed before the answer: %w", io.EOF)
	case <-r.Context().Done():
	}
	c.Close()
	if r.Context().Err() != nil {
		err = context.Cause(r.Context())
	}
	return nil, err
}

// receive takes the request's body over, as a connection that sends it does.
func receive(r *http.Request) ([]byte, error) {
	var sent []byte
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if sent, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, context.Cause(r.Context())
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		if trace.WroteHeaders != nil {
			trace.WroteHeaders()
		}
		if trace.WroteRequest != nil {
			trace.WroteRequest(httptrace.WroteRequestInfo{})
		}
	}
	return sent, nil
}

// connection is one exchange: the handler's ResponseWriter at one end, the
// response's body at the other.
type connection struct {
	answered chan struct{} // closed with the header, or at the end without one
	answer   sync.Once     // closes answered; sent and status do not change after
	sent     http.Header
	status   int           // 0: there was no answer
	done     chan struct{} // closed when the handler has returned
	cancel   func()        // of the handler's context: the client is gone
	unwatch  func() bool   // of the client's context

	header  http.Header // the handler's
	mu      sync.Mutex
	changed sync.Cond
	buf     bytes.Buffer
	err     error // what a reader gets after buf
}

// serve runs the handler; it ends when the handler does, which the body's
// Close waits for.
func (c *connection) serve(h http.Handler, r *http.Request) {
	defer close(c.done)
	defer c.cancel()
	defer func() {
		switch v := recover(); v {
		case nil:
			c.WriteHeader(http.StatusOK)
			c.end(io.EOF, false)
		case http.ErrAbortHandler:
			c.end(io.ErrUnexpectedEOF, false)
			c.answer.Do(func() { close(c.answered) })
		default:
			panic(v)
		}
	}()
	h.ServeHTTP(c, r)
}

// end says what a reader gets at the end, which the first call decides; with
// now, what is not yet read is dropped.
func (c *connection) end(err error, now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now {
		c.buf.Reset()
	}
	if c.err == nil || now {
		c.err = err
	}
	c.changed.Broadcast()
}

func (c *connection) response(r *http.Request) *http.Response {
	length, err := strconv.ParseInt(c.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	return &http.Response{Status: fmt.Sprintf("%d %s", c.status, http.StatusText(c.status)), StatusCode: c.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: c.sent, ContentLength: length, Body: c, Request: r}
}

// Header, WriteHeader, Write and Flush are the handler's side.
func (c *connection) Header() http.Header { return c.header }

func (c *connection) WriteHeader(status int) {
	c.answer.Do(func() {
		c.status, c.sent = status, c.header.Clone()
		close(c.answered)
	})
}

func (c *connection) Write(b []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.changed.Broadcast()
	return c.buf.Write(b)
}

func (c *connection) Flush() {}

// Read and Close are the client's.
func (c *connection) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.buf.Len() == 0 && c.err == nil {
		c.changed.Wait()
	}
	if c.buf.Len() > 0 {
		return c.buf.Read(b)
	}
	c.unwatch()
	return 0, c.err
}

// Close hangs up and waits until the handler knows.
func (c *connection) Close() error {
	c.unwatch()
	c.cancel()
	<-c.done
	c.end(http.ErrBodyReadAfterClose, true)
	return nil
}
