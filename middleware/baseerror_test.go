package middleware_test

// I10: what the base says of a failure may quote the answer, and is not repeated.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
)

// Real sockets: an answer without a status line or header, on a metered path and on a free one.
func TestAnswerInAnErrorOfTheBase(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	for name, raw := range map[string]string{
		"no status line": answered(5, 5) + "\r\n\r\n",
		"no header":      head + "ninepence\r\n\r\n",
		"no encoding":    head + "Transfer-Encoding: ninepence\r\n\r\n",
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/moderations"} {
			t.Run(name+path, func(t *testing.T) {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					conn, _, err := w.(http.Hijacker).Hijack()
					if assert.NoError(t, err) {
						_, _ = io.WriteString(conn, raw)
						conn.Close()
					}
				}))
				defer server.Close()
				base := &http.Transport{}
				defer base.CloseIdleConnections()
				l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base))
				_, err := (&http.Client{Transport: l.guard}).Post(server.URL+path, "application/json", strings.NewReader(prompt))
				require.Error(t, err)
				require.NotContains(t, err.Error(), "ninepence")
				require.Contains(t, err.Error(), server.Listener.Addr().String())
			})
		}
	}
}

func TestWordsForErrorsOfTheBase(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	said := errors.New("ninepence")
	for want, err := range map[string]error{
		"dial tcp: connection refused": refused,
		"EOF":                          io.EOF,
		"lookup x: no such host":       &net.DNSError{Name: "x", Err: "no such host"},
		"middleware: the exchange with provider.test failed: dial tcp: connection refused":       fmt.Errorf("%w: %w", said, refused),
		"middleware: the exchange with provider.test failed: connection reset by peer":           fmt.Errorf("ninepence: %w", syscall.ECONNRESET),
		"middleware: the exchange with provider.test failed: timeout":                            &net.OpError{Op: "read", Err: slow{}},
		"middleware: the exchange with provider.test failed (*errors.errorString)":               &net.OpError{Op: "proxyconnect", Err: said},
		`Get "http://provider.test/v1": middleware: the exchange with provider.test failed: EOF`: &url.Error{Op: "Get", URL: "/ninepence?key=sesame", Err: io.EOF},
	} {
		l := newLab(t, budget.Tokens(plenty), middleware.Base(base(func(*http.Request) (*http.Response, error) { return nil, err })))
		r, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://me:sesame@provider.test/v1?key=sesame", nil)
		_, got := l.guard.RoundTrip(r)
		require.EqualError(t, got, want)
		require.ErrorIs(t, got, err)
		wrapped := url.Error{Err: got}
		require.Equal(t, strings.Contains(want, "timeout"), wrapped.Timeout())
	}
}

// A body that breaks off, of a stream and of a whole answer.
func TestAnswerInAnErrorOfABody(t *testing.T) {
	said := errors.New("ninepence")
	for _, contentType := range []string{"text/event-stream", "application/json"} {
		l := newLab(t, budget.Tokens(plenty), once, middleware.Base(base(func(r *http.Request) (*http.Response, error) {
			resp := reply(r, 200, http.Header{"Content-Type": {contentType}}, "")
			resp.Body = io.NopCloser(iotest.ErrReader(said))
			return resp, nil
		})))
		resp, err := l.do(context.Background(), prompt)
		if err == nil {
			err = drain(resp)
		}
		require.ErrorIs(t, err, said)
		require.NotContains(t, err.Error(), "ninepence")
	}
}

// slow is a timeout in the words of whoever made it.
type slow struct{}

func (slow) Error() string { return "ninepence" }
func (slow) Timeout() bool { return true }
