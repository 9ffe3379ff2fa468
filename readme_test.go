package tollbook_test

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/sashabaranov/go-openai"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware"
)

// summarise is the README's example; it is compiled here, and compared below.
func summarise(ctx context.Context, key string, req openai.ChatCompletionRequest) error {
	book, err := budget.Open(ctx, "run1.book", budget.Tokens(2_000_000))
	if err != nil {
		return err
	}
	defer book.Close()
	client, err := middleware.OpenAI(openai.DefaultConfig(key), book)
	if err != nil {
		return err
	}
	_, err = client.CreateChatCompletion(ctx, req) // reserved, retried, closed once
	if errors.Is(err, budget.ErrExhausted) {
		log.Print("the budget is used up: raise it and run again")
	}
	return err
}

var _ = summarise

func TestReadmeExampleIsTheCompiledOne(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(readme), "```go\n")
	block, _, closed := strings.Cut(block, "```")
	if !ok || !closed || !strings.Contains(string(source), block) {
		t.Errorf("the README's Go example is not the one compiled here:\n%s", block)
	}
}
