package middleware_test

// The cap that the book decides is the cap that the provider sees.

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/providertest"
	"github.com/tollbook/tollbook/retry"
)

const capless = `{"model":"house-model","messages":[{"role":"user","content":"?"}]}`

// defaults bounds a request without a cap by so many tokens of output.
func defaults(output int64) middleware.Option {
	return middleware.Bounds(meter.Options{DefaultOutput: output})
}

// sees is an answer that notes the body it was for.
func sees(bodies *[]string, a providertest.Answer) providertest.Answer {
	a.When = func(_ *http.Request, body []byte) bool {
		*bodies = append(*bodies, string(body))
		return true
	}
	return a
}

// inputOf is the bound of a body's input.
func inputOf(t testing.TB, body string) int64 {
	t.Helper()
	b, err := meter.OpenAIChat.Bound(meter.Request{Body: []byte(body)}, meter.Options{DefaultOutput: 1})
	require.NoError(t, err)
	return b.Input
}

func TestCapOutput(t *testing.T) {
	named := strings.Replace(capless, `"messages"`, `"max_completion_tokens":80,"messages"`, 1)
	written := func(cap string) string { return capless[:len(capless)-1] + `,"max_tokens":` + cap + `}` }
	for _, c := range []struct {
		name string
		body string
		left int64 // of the limit, for output
		opts []middleware.Option
		want string // what the provider sees; empty: nothing
	}{
		{"without the option nothing is written", capless, 1000, nil, capless},
		{"what is reserved is written", capless, 1000, []middleware.Option{middleware.CapOutput(10)}, written("50")},
		{"and lowered to what is left", capless, 20, []middleware.Option{middleware.CapOutput(10)}, written("20")},
		{"down to the least", capless, 10, []middleware.Option{middleware.CapOutput(10)}, written("10")},
		{"and no further", capless, 9, []middleware.Option{middleware.CapOutput(10)}, ""},
		{"a least of nothing is one", capless, 1, []middleware.Option{middleware.CapOutput(0)}, written("1")},
		{"a cap that fits stays", named, 80, []middleware.Option{middleware.CapOutput(10)}, named},
		{"one that does not is lowered", named, 20, []middleware.Option{middleware.CapOutput(10)}, strings.Replace(named, "80", "20", 1)},
		{"one below the least is left alone", named, 79, []middleware.Option{middleware.CapOutput(90)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, budget.Tokens(inputOf(t, c.body)+c.left), append(c.opts, defaults(50))...)
			var seen []string
			if c.want == "" {
				_, err := l.do(context.Background(), c.body)
				require.ErrorIs(t, err, budget.ErrExhausted)
				return
			}
			l.provider.Expect(t, sees(&seen, providertest.JSON(200, answered(1, 5))))
			l.must(c.body)
			require.Equal(t, []string{c.want}, seen)
			l.tokens(6, 0)
		})
	}
}

// Where nothing is known of a model and no limit asks, there is nothing to write.
func TestCapOutputWithoutALimit(t *testing.T) {
	l := newLab(t, budget.Requests(1), middleware.CapOutput(10))
	var seen []string
	l.provider.Expect(t, sees(&seen, providertest.JSON(200, answered(1, 5))))
	l.must(capless)
	require.Equal(t, []string{capless}, seen)
}

// Every attempt sends the same cap, with our question for the usage and, to a host
// that does not know it, without; and holds the same.
func TestCapOutputOfEveryAttempt(t *testing.T) {
	body := strings.Replace(capless, "{", `{"stream":true,`, 1)
	capped := body[:len(body)-1] + `,"max_tokens":50}`
	asking := capped[:len(capped)-1] + `,"stream_options":{"include_usage":true}}`
	l := newLab(t, budget.Tokens(plenty), middleware.CapOutput(10), defaults(50), middleware.Retry(retry.Policy{Attempts: 3}))
	var seen []string
	unknown := providertest.JSON(400, `{"error":{"message":"no","type":"invalid_request_error","param":"stream_options","code":null}}`)
	l.provider.Expect(t, sees(&seen, refusal(429, "slow_down")), sees(&seen, unknown), sees(&seen, providertest.SSE(word("ninepence"))))
	l.must(body)
	l.guard.Wait()
	require.Equal(t, []string{asking, asking, capped}, seen)
	l.tokens(0, inputOf(t, body)+50)
}

// A model of a family that knows the new name only gets it there.
func TestCapOutputOfAReasoningModel(t *testing.T) {
	body := strings.Replace(capless, "house-model", "gpt-5-mini", 1)
	l := newLab(t, budget.Tokens(inputOf(t, body)+4000), middleware.CapOutput(1000))
	var seen []string
	l.provider.Expect(t, sees(&seen, providertest.JSON(200, answered(1, 5))))
	l.must(body)
	require.Equal(t, []string{body[:len(body)-1] + `,"max_completion_tokens":4000}`}, seen)
}
