// Proves that an error's class is found by asking it, through any wrapping, and
// never by its text.
package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/retry"
)

// answers says only what it is asked about, as a foreign SDK's error would.
type (
	retryable   bool
	rateLimited bool
	pauses      bool
	denies      bool
	timesOut    bool
)

func (retryable) Error() string         { return "test: 429 insufficient_quota" } // text decides nothing
func (a retryable) Retryable() bool     { return bool(a) }
func (rateLimited) Error() string       { return "test: limited" }
func (a rateLimited) RateLimited() bool { return bool(a) }
func (pauses) Error() string            { return "test: pauses" }
func (a pauses) Pause() bool            { return bool(a) }
func (denies) Error() string            { return "test: denies" }
func (a denies) Denied() bool           { return bool(a) }
func (timesOut) Error() string          { return "test: times out" }
func (a timesOut) Timeout() bool        { return bool(a) }

func TestClassify(t *testing.T) {
	operr := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	tests := map[string]struct {
		err  error
		want retry.Class
	}{
		"nil":                    {nil, retry.None},
		"unknown":                {errors.New("429 timeout, please retry"), retry.Permanent},
		"retryable":              {retryable(true), retry.Transient},
		"not retryable":          {retryable(false), retry.Permanent},
		"rate limited":           {rateLimited(true), retry.RateLimited},
		"not rate limited":       {rateLimited(false), retry.Permanent},
		"pause":                  {pauses(true), retry.Stop},
		"no pause":               {errors.Join(pauses(false), retryable(true)), retry.Transient},
		"denied":                 {denies(true), retry.Denied},
		"not denied":             {errors.Join(denies(false), retryable(true)), retry.Transient},
		"denied wins over pause": {errors.Join(pauses(true), denies(true)), retry.Denied},
		"denied wins at depth":   {fmt.Errorf("a: %w", errors.Join(retryable(true), fmt.Errorf("b: %w", denies(true)))), retry.Denied}, // case 46
		"pause wins":             {errors.Join(retryable(true), pauses(true)), retry.Stop},
		"the outermost decides":  {errors.Join(retryable(false), retryable(true), rateLimited(true)), retry.Permanent},
		"no beats a timeout":     {errors.Join(timesOut(true), retryable(false)), retry.Permanent},

		"cancelled":         {&url.Error{Op: "Post", Err: context.Canceled}, retry.Permanent},
		"cancelled reading": {errors.Join(io.ErrUnexpectedEOF, context.Canceled), retry.Permanent},
		"deadline":          {context.DeadlineExceeded, retry.Transient},
		"read deadline":     {operr(os.ErrDeadlineExceeded), retry.Transient},
		"timeout in depth":  {&url.Error{Op: "Post", Err: fmt.Errorf("headers: %w", timesOut(true))}, retry.Transient},
		"no timeout":        {timesOut(false), retry.Permanent},
		"reset":             {fmt.Errorf("read: %w", syscall.ECONNRESET), retry.Transient},
		"refused":           {operr(os.NewSyscallError("connect", syscall.ECONNREFUSED)), retry.Transient},
		"cut short":         {fmt.Errorf("body: %w", io.ErrUnexpectedEOF), retry.Transient},
		"closed unanswered": {&url.Error{Op: "Post", Err: io.EOF}, retry.Transient},
		"bad address":       {operr(&net.AddrError{Err: "missing port"}), retry.Permanent},
		"closed in use":     {operr(net.ErrClosed), retry.Transient},
		"full disk":         {&os.PathError{Op: "write", Err: syscall.ENOSPC}, retry.Permanent}, // case 14
		"no such name":      {operr(&net.DNSError{IsNotFound: true}), retry.Permanent},
		"resolver down":     {operr(&net.DNSError{IsTemporary: true}), retry.Transient},
		"resolver slow":     {operr(&net.DNSError{IsTimeout: true}), retry.Transient},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, retry.Classify(tt.err))
			if tt.err != nil {
				require.Equal(t, tt.want, retry.Classify(fmt.Errorf("wrapped: %w", tt.err)))
			}
			require.Equal(t, tt.want == retry.Transient || tt.want == retry.RateLimited, tt.want.Again())
		})
	}
}

// What net/http really returns, over HTTP/1 and HTTP/2, when the server breaks
// off before and in its answer.
func TestClassifyBrokenServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, after := range []string{"", "half an answer"} {
			t.Run(fmt.Sprintf("http2=%v after=%q", http2, after), func(t *testing.T) {
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if after != "" {
						fmt.Fprint(w, after)
						w.(http.Flusher).Flush()
					}
					panic(http.ErrAbortHandler)
				}))
				server.EnableHTTP2 = http2
				server.StartTLS()
				defer server.Close()
				resp, err := server.Client().Post(server.URL, "text/plain", nil)
				if after != "" {
					require.NoError(t, err)
					_, err = io.ReadAll(resp.Body)
					require.NoError(t, resp.Body.Close())
				}
				require.Error(t, err)
				require.Equal(t, retry.Transient, retry.Classify(err), "%#v", err)
			})
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	limited := &retry.StatusError{Status: 429, Class: retry.RateLimited, At: at}
	for want, err := range map[string]error{
		"retry: HTTP 429 Too Many Requests (rate limited), not before 2026-11-30T12:00:00Z": limited,
		"retry: HTTP 529 (transient)":                                                         &retry.StatusError{Status: 529, Class: retry.Transient},
		"retry: stopped: insufficient_quota":                                                  quota,
		"retry: stopped: r; come back at 2026-11-30T12:00:00Z: test: plain":                   &retry.StopError{Reason: "r", At: at, Err: errPlain},
		"retry: attempt 3 not made: test: budget exhausted; the last one failed: test: plain": &retry.AbandonedError{N: 3, Reason: errDenied, Last: errPlain},
	} {
		require.EqualError(t, err, want)
	}
}
