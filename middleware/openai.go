package middleware

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/sashabaranov/go-openai"

	"github.com/tollbook/tollbook/budget"
)

// OpenAI returns an ordinary client for config all of whose methods are
// guarded: each ends in config.HTTPClient, whose transport the guard becomes.
// That must be an [*http.Client] (or nil), which is copied: its Transport stays
// the base, CheckRedirect and Jar stay, and its Timeout bounds what [Timeouts]
// bounds instead, because it would span the waits. Options given go before.
//
// For a guard that several clients share, or to call [Guard.Wait], set
// config.HTTPClient to an http.Client with [Transport] yourself. [DrainOnAbort]
// needs that, and is refused here.
func OpenAI(config openai.ClientConfig, book *budget.Book, opts ...Option) (*openai.Client, error) {
	var client http.Client
	switch c := config.HTTPClient.(type) {
	case nil:
	case *http.Client:
		if c != nil {
			client = *c
		}
	default:
		return nil, fmt.Errorf("middleware: OpenAI: config.HTTPClient is a %T and not an *http.Client, so its calls cannot be guarded; give what it does to an http.RoundTripper and that to middleware.Base", c)
	}
	opts = append([]Option{Base(client.Transport), Timeouts(client.Timeout, client.Timeout)}, opts...)
	guard := Transport(book, opts...)
	if guard.onAbort == DrainOnAbort {
		return nil, errors.New("middleware: OpenAI: under DrainOnAbort answers are read on after their calls, and nobody could wait for that before the book's Close; make the guard with middleware.Transport, set config.HTTPClient to an http.Client over it, and call the guard's Wait")
	}
	client.Transport, client.Timeout = guard, 0
	config.HTTPClient = &client
	return openai.NewClientWithConfig(config), nil
}
