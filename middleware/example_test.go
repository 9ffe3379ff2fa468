package middleware_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sashabaranov/go-openai"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// A budget that has room for the worst case of one call refuses the second
// if the first used too much of it.
func ExampleOpenAI() {
	provider := providertest.New(providertest.Options{Seed: 1}) // in place of a real one
	book := budget.Memory(budget.Tokens(150))
	defer book.Close()

	client, err := middleware.OpenAI(openai.DefaultConfig("key"), book, middleware.Base(provider.RoundTripper()))
	if err != nil {
		panic(err)
	}
	ctx := middleware.WithReceipt(context.Background(), func(r budget.Receipt) {
		fmt.Println(r.State, "as billed:", r.Confirmed == provider.Bill().TotalTokens)
	})
	for range 2 {
		_, err := client.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "gpt-4o", MaxCompletionTokens: 100,
			Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "Name three rivers."}}})
		if errors.Is(err, budget.ErrExhausted) {
			fmt.Println("not sent")
		}
	}
	// Output:
	// settled as billed: true
	// not sent
}
