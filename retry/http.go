package retry

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter is the most a server can sensibly ask for: a leap year, longer
// than any quota's window. More than that is no wait but a broken header (a Unix
// time where seconds belong, say) and counts as none.
const MaxRetryAfter = 366 * 24 * time.Hour

// StatusError is an HTTP answer that is a failure, and answers the loop's
// questions.
type StatusError struct {
	Status int       // the HTTP status, 400 or above
	Class  Class     // what it means for the loop
	At     time.Time // the server does not want us back before; zero: it did not say
}

// CheckStatus judges an answer by its status and header alone; the body is for
// whoever knows the provider. It is nil below 400, else a [*StatusError] whose
// time counts from now.
func CheckStatus(status int, header http.Header) error {
	class := StatusClass(status, header)
	if class == None {
		return nil
	}
	e := &StatusError{Status: status, Class: class}
	now := time.Now()
	if wait, ok := RetryAfter(header, now); ok {
		e.At = now.Add(wait)
	}
	return e
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("retry: HTTP %d", e.Status)
	if name := http.StatusText(e.Status); name != "" {
		text += " " + name
	}
	text += " (" + e.Class.String() + ")"
	if !e.At.IsZero() {
		text += ", not before " + e.At.Format(time.RFC3339)
	}
	return text
}

// Pause reports the class [Stop].
func (e *StatusError) Pause() bool { return e.Class == Stop }

// Retryable reports whether the same request may be sent again.
func (e *StatusError) Retryable() bool { return e.Class.Again() }

// RateLimited reports the class [RateLimited].
func (e *StatusError) RateLimited() bool { return e.Class == RateLimited }

// RetryAt is when the server wants us back at the earliest; zero: unknown.
func (e *StatusError) RetryAt() time.Time { return e.At }

// RetryAfter is what is left until then, and whether the server said anything.
func (e *StatusError) RetryAfter() (time.Duration, bool) {
	if e.At.IsZero() {
		return 0, false
	}
	return max(0, time.Until(e.At)), true
}

// StatusClass is the class of an HTTP answer: None below 400; Stop for 402,
// which providers send when money is missing; else as the X-Should-Retry header
// says, if it says true or false; else RateLimited for 429 and Transient for 408,
// 409 and 5xx (529, overloaded, among them) apart from 501 and 505, which no
// repetition mends. 409 follows the official OpenAI and Anthropic SDKs, which
// use it for lock timeouts, and so does X-Should-Retry.
func StatusClass(status int, header http.Header) Class {
	switch {
	case status < 400:
		return None
	case status == http.StatusPaymentRequired:
		return Stop
	case header.Get("X-Should-Retry") == "false":
		return Permanent
	case status == http.StatusTooManyRequests:
		return RateLimited
	case header.Get("X-Should-Retry") == "true":
		return Transient
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict:
		return Transient
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return Permanent
	}
	if status >= 500 {
		return Transient
	}
	return Permanent
}

// RetryAfter reads how long the server asks to wait: Retry-After-Ms
// (milliseconds), else Retry-After (seconds, also fractions of them, or an HTTP
// date, which counts from now; a past one is zero). False means that there is
// nothing to go by: no header, or one that is negative, not a number, or beyond
// [MaxRetryAfter].
func RetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	if wait, ok := parseWait(header.Get("Retry-After-Ms"), time.Millisecond); ok {
		return wait, true
	}
	value := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := parseWait(value, time.Second); ok {
		return wait, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	wait := max(0, date.Sub(now)) // Sub saturates
	if wait > MaxRetryAfter {
		return 0, false
	}
	return wait, true
}

// parseWait compares as float before it converts: a duration of 1e100 s is
// whatever the machine makes of it, and NaN is below nothing.
func parseWait(value string, unit time.Duration) (time.Duration, bool) {
	f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil {
		return 0, false
	}
	f = math.Ceil(f * float64(unit)) // never early
	if f >= 0 && f <= float64(MaxRetryAfter) {
		return time.Duration(f), true
	}
	return 0, false
}
