package middleware_test

// Where the events of outcomes_test.go happen: servers and wires on this
// machine that fail in each way there is.

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware"
)

// site is a base whose first attempt meets an event and whose others are
// answered well.
type site struct {
	url           string // for the call
	well          string // the good server's host
	wire          http.RoundTripper
	plain         *http.Transport
	attempts      atomic.Int64
	first, others atomic.Int64  // requests that reached a server
	reached       chan struct{} // closed when an event that stalls has begun
	once          sync.Once
}

func newSite(t *testing.T, e event) *site {
	at := &site{plain: &http.Transport{}, reached: make(chan struct{})}
	t.Cleanup(at.plain.CloseIdleConnections)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if e.answer != nil && at.attempts.Load() == 1 {
			at.first.Add(1)
			e.answer(w, r, at)
			return
		}
		at.others.Add(1)
		if strings.Contains(string(body), `"stream":true`) {
			write(w, 200, "data: "+finish+"\n\ndata: {\"choices\":[],\"usage\":"+usageOf(5, 5)+"}\n\ndata: [DONE]\n\n", "Content-Type", "text/event-stream")
			return
		}
		write(w, 200, answered(5, 5))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	at.url, at.well, at.wire = server.URL, server.Listener.Addr().String(), at.plain
	if e.wire != nil {
		at.wire, at.url = e.wire(t, at)
		if c, ok := at.wire.(*http.Transport); ok {
			t.Cleanup(c.CloseIdleConnections)
		}
	}
	return at
}

func (at *site) RoundTrip(r *http.Request) (*http.Response, error) {
	if at.attempts.Add(1) == 1 {
		return at.wire.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", at.well
	return at.plain.RoundTrip(r)
}

func (at *site) reach() { at.once.Do(func() { close(at.reached) }) }

func write(w http.ResponseWriter, status int, body string, header ...string) {
	w.Header().Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// hijacked writes an answer as it stands and hangs up.
func hijacked(w http.ResponseWriter, answer string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, answer)
	conn.Close()
}

// stallAfter begins an answer, if there is a beginning, and goes no further.
func stallAfter(w http.ResponseWriter, r *http.Request, at *site, contentType, begin string) {
	if begin != "" {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, begin)
		_ = http.NewResponseController(w).Flush()
	}
	at.reach()
	<-r.Context().Done()
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	z.Close()
	return b.String()
}

// Callers.

func cancelledBefore(_ *site, g *middleware.Guard, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	_, _ = g.RoundTrip(r.WithContext(ctx))
}

// cancelled calls off when the event has begun.
func cancelled(at *site, g *middleware.Guard, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	gone := make(chan struct{})
	go func() {
		<-at.reached
		cancel()
		close(gone)
	}()
	_, _ = g.RoundTrip(r.WithContext(ctx))
	<-gone
}

// deadline has its deadline when the event has begun.
func deadline(at *site, g *middleware.Guard, r *http.Request) {
	_, _ = g.RoundTrip(r.WithContext(expiring{r.Context(), at.reached}))
}

type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func cancelledInStream(_ *site, g *middleware.Guard, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if resp, err := g.RoundTrip(r.WithContext(ctx)); err == nil {
		_, _ = resp.Body.Read(make([]byte, 10))
		cancel()
		_ = drain(resp)
	}
}

func closedEarly(_ *site, g *middleware.Guard, r *http.Request) {
	if resp, err := g.RoundTrip(r); err == nil {
		_, _ = resp.Body.Read(make([]byte, 10))
		resp.Body.Close()
	}
}

// Wires.

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func refusedDial(t *testing.T, _ *site) (http.RoundTripper, string) {
	return &http.Transport{}, "http://" + closedPort(t)
}

// resolving dials by a resolver that asks there.
func resolving(network, server string) http.RoundTripper {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	return &http.Transport{DialContext: (&net.Dialer{Resolver: resolver}).DialContext}
}

// noSuchName has a name server that knows no names.
func noSuchName(t *testing.T, _ *site) (http.RoundTripper, string) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		query := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12 // of the question, whose name ends with an empty label
			for end < n && query[end] != 0 {
				end += int(query[end]) + 1
			}
			answer := append([]byte(nil), query[:end+5]...)
			copy(answer[2:12], []byte{0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0}) // no such name
			_, _ = conn.WriteTo(answer, from)
		}
	})
	t.Cleanup(func() { conn.Close(); serving.Wait() })
	return resolving("udp", conn.LocalAddr().String()), "http://provider.test."
}

func noResolver(t *testing.T, _ *site) (http.RoundTripper, string) {
	return resolving("tcp", closedPort(t)), "http://provider.test."
}

func slowDial(_ *testing.T, at *site) (http.RoundTripper, string) {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		at.reach()
		<-ctx.Done()
		return nil, ctx.Err()
	}}, "http://provider.test"
}

func tlsServer(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func untrusted(t *testing.T, at *site) (http.RoundTripper, string) {
	return &http.Transport{}, tlsServer(t, func(http.ResponseWriter, *http.Request) { at.first.Add(1) }).URL
}

func noTLS(t *testing.T, at *site) (http.RoundTripper, string) {
	return &http.Transport{}, strings.Replace(at.url, "http:", "https:", 1)
}

func closedProxy(t *testing.T, at *site) (http.RoundTripper, string) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }))
	t.Cleanup(proxy.Close)
	to, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	return &http.Transport{Proxy: http.ProxyURL(to)}, "https://provider.test"
}

// serving accepts one connection and gives it to serve, which hangs up.
func serving(t *testing.T, l net.Listener, serve func(net.Conn)) {
	var done sync.WaitGroup
	done.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn)
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
}

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// closesEarly has the beginning of a request and hangs up.
func closesEarly(t *testing.T, at *site) (http.RoundTripper, string) {
	l := listen(t)
	serving(t, l, func(conn net.Conn) {
		_, err := io.ReadFull(conn, make([]byte, 1000))
		assert.NoError(t, err)
		at.first.Add(1)
	})
	return &http.Transport{}, "http://" + l.Addr().String()
}

// stale is a connection that has served once, and hangs up on the next request.
func stale(t *testing.T, at *site) (http.RoundTripper, string) {
	l := listen(t)
	serving(t, l, func(conn net.Conn) {
		_, err := conn.Read(make([]byte, 4096))
		assert.NoError(t, err)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		for rest := len(prompt); rest > 0; { // the header comes in one piece with some of the body, or before it
			n, err := conn.Read(make([]byte, 4096))
			if err != nil {
				break
			}
			rest -= n
		}
		at.first.Add(1)
	})
	transport := &http.Transport{}
	resp, err := transport.RoundTrip(httptest.NewRequest("GET", "http://"+l.Addr().String(), nil))
	require.NoError(t, err)
	require.NoError(t, errors.Join(drain(resp), resp.Body.Close()))
	return transport, "http://" + l.Addr().String()
}

// h2 takes a request over HTTP/2 and answers with these frames.
func h2(answer func(stream uint32) []byte) func(*testing.T, *site) (http.RoundTripper, string) {
	return func(t *testing.T, at *site) (http.RoundTripper, string) {
		certificates := tlsServer(t, nil).TLS.Certificates
		l := tls.NewListener(listen(t), &tls.Config{Certificates: certificates, NextProtos: []string{"h2"}})
		serving(t, l, func(conn net.Conn) {
			_, _ = io.ReadFull(conn, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
			_, _ = conn.Write(frame(4, 0, nil)) // settings
			for {
				head := make([]byte, 9)
				if _, err := io.ReadFull(conn, head); err != nil {
					return
				}
				size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
				_, _ = io.CopyN(io.Discard, conn, size)
				if kind, flags := head[3], head[4]; kind <= 1 && flags&1 != 0 { // the end of the request
					at.first.Add(1)
					_, _ = conn.Write(answer(binary.BigEndian.Uint32(head[5:])))
				}
			}
		})
		return &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, "https://" + l.Addr().String()
	}
}

func frame(kind byte, stream uint32, payload []byte) []byte {
	f := append([]byte{0, 0, byte(len(payload)), kind, 0}, binary.BigEndian.AppendUint32(nil, stream)...)
	return append(f, payload...)
}

func rstStream(code uint32) func(uint32) []byte {
	return func(stream uint32) []byte { return frame(3, stream, binary.BigEndian.AppendUint32(nil, code)) }
}

// goAway says that no stream was taken up.
func goAway(uint32) []byte { return frame(7, 0, make([]byte, 8)) }
