package middleware

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"time"

	"github.com/sashabaranov/go-openai"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/meter"
)

// IsDenied reports whether err is our own refusal to send: a [*DeniedError], a
// refusal of the book itself, or what an SDK makes of the synthetic answer that
// stands for one. It finds them through any wrapping. If it was a further
// attempt that was refused, earlier ones were sent.
func IsDenied(err error) bool {
	if errors.Is(err, budget.ErrExhausted) || errors.Is(err, budget.ErrBusy) || errors.Is(err, meter.ErrRefused) {
		return true
	}
	return anyIn(err, func(err error) bool {
		if d, ok := err.(interface{ Denied() bool }); ok && d.Denied() {
			return true
		}
		answer := answerIn(err)
		return answer.header.Get(headerDenied) != "" || answer.kind == typeDenied
	})
}

// IsPause reports whether err says that nothing is wrong with the call and that
// going on now is of no use: the budget is used up, or busy for longer than
// the call was to wait; the book cannot write; a quota, a spend limit or an
// account is used up; a host fails again and again; a wait would be too long. It knows the errors of this
// package, of budget and of retry, and what SDKs make of them, through any
// wrapping; also a provider's own answer that says so.
func IsPause(err error) bool {
	for _, pause := range [...]error{budget.ErrExhausted, budget.ErrBusy, budget.ErrBroken, budget.ErrBookClosed} {
		if errors.Is(err, pause) {
			return true
		}
	}
	return anyIn(err, func(err error) bool {
		if p, ok := err.(interface{ Pause() bool }); ok && p.Pause() {
			return true
		}
		answer := answerIn(err)
		switch {
		case answer.header.Get(headerDenied) != "":
			return answer.header.Get(headerPaused) != ""
		case answer.kind == typeDenied && answer.code == codeRequest:
			return false
		case answer.status == http.StatusPaymentRequired:
			return true
		case answer.body != nil:
			return meter.OpenAIChat.Refused(answer.status, answer.header, answer.body).Stop
		}
		return false
	})
}

// RetryAt is when to come back after err: zero if that is not known.
func RetryAt(err error) (at time.Time) {
	anyIn(err, func(err error) bool {
		if r, ok := err.(interface{ RetryAt() time.Time }); ok {
			at = r.RetryAt()
		} else if text := answerIn(err).header.Get(headerRetryAt); text != "" {
			at, _ = time.Parse(time.RFC3339Nano, text)
		}
		return !at.IsZero()
	})
	return at
}

// answer is what is left of an HTTP answer in an SDK's error.
type answer struct {
	status int
	header http.Header // nil where the SDK drops it
	kind   string      // the error's type
	code   string
	body   []byte // of an error, or as much of it as the SDK kept
}

func answerIn(err error) (a answer) {
	switch e := err.(type) {
	case *openai.RequestError:
		return answer{status: e.HTTPStatusCode, body: e.Body}
	case *openai.APIError:
		a.status, a.kind = e.HTTPStatusCode, e.Type
		a.code, _ = e.Code.(string)
		a.body, _ = json.Marshal(map[string]any{"error": map[string]any{"code": e.Code, "type": e.Type, "message": e.Message}})
		return a
	}
	if r := responseIn(err); r != nil {
		return answer{status: r.StatusCode, header: r.Header}
	}
	return a
}

// responseIn returns the HTTP response that the errors of the Stainless SDKs
// carry in a field of that name. Their types are not linked for it.
func responseIn(err error) *http.Response {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	field := v.FieldByName("Response")
	if !field.IsValid() || !field.CanInterface() {
		return nil
	}
	r, _ := field.Interface().(*http.Response)
	return r
}

// anyIn reports whether yes holds for any error in the tree of err. errors.As
// stops at the first that can be asked, whatever it answers.
func anyIn(err error, yes func(error) bool) bool {
	if err == nil {
		return false
	}
	if yes(err) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return anyIn(e.Unwrap(), yes)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if anyIn(err, yes) {
				return true
			}
		}
	}
	return false
}
