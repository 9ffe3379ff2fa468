// Package middleware puts a budget around the HTTP client of any LLM SDK.
//
// [Transport] is an http.RoundTripper, the [Guard], whose documentation is the
// manual; [OpenAI] is the shortest way to a guarded go-openai client:
//
//	book, err := budget.Open(ctx, "run1.book", budget.Tokens(2_000_000))
//	defer book.Close()
//	client, err := middleware.OpenAI(openai.DefaultConfig(key), book)
//
// No prompt, answer or API key gets into the book, the log or an error that
// this package makes.
//
// The flow, one file each: a call is reserved and run (transport.go), an
// attempt sent (exchange.go) and judged (attempt.go), a streamed answer
// followed to its end (stream.go), and the reservation closed (closing.go).
package middleware
