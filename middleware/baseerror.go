package middleware

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
)

// baseError is an error of the base in words of our own: net/http quotes what it
// cannot read, and that may be an answer. What it was is found by errors.Is and
// errors.As.
type baseError struct {
	host string
	err  error
}

// worded returns an error of the base that may be shown: as it is if its text
// surely quotes nobody.
func worded(to *url.URL, err error) error {
	if err == nil || plain(err) {
		return err
	}
	own := &baseError{to.Host, err}
	if u, ok := errors.AsType[*url.Error](err); ok {
		// This one is found before the base's, whose URL may hold an API key.
		return &url.Error{Op: u.Op, URL: (&url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}).String(), Err: own}
	}
	return own
}

func (e *baseError) Error() string {
	why := ""
	switch {
	case anyIn(e.err, func(err error) bool {
		if plain(err) {
			why = ": " + err.Error()
		}
		return why != ""
	}):
	case e.Timeout():
		why = ": timeout"
	default:
		why = fmt.Sprintf(" (%T)", innermost(e.err))
	}
	return "middleware: the exchange with " + e.host + " failed" + why
}

func (e *baseError) Unwrap() error { return e.err }

// Timeout is asked by the *url.Error that http.Client puts around.
func (e *baseError) Timeout() bool {
	return anyIn(e.err, func(err error) bool {
		t, ok := err.(interface{ Timeout() bool })
		return ok && t.Timeout()
	})
}

// plain reports whether the text of err is made on this machine, all of it:
// names, addresses, the words of the system and of certificates.
func plain(err error) bool {
	switch e := err.(type) {
	case *net.OpError:
		return e.Err != nil && plain(e.Err) // a proxy's answer is wrapped in one too
	case *os.SyscallError:
		return plain(e.Err)
	case syscall.Errno, *net.DNSError, *TimeoutError, tls.RecordHeaderError, *tls.CertificateVerificationError,
		x509.CertificateInvalidError, x509.HostnameError, x509.UnknownAuthorityError:
		return true
	}
	for _, known := range [...]error{io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, net.ErrClosed} {
		if err == known {
			return true
		}
	}
	return false
}

func innermost(err error) error {
	for next := err; next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}
