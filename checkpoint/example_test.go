package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tollbook/tollbook/checkpoint"
)

// The provider's quota ends in the middle; the second run sends what is left.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "state")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	articles := []string{"one", "two", "three", "four"}
	o := checkpoint.Options[string]{Dir: dir, Workers: 1, Key: func(article string) string { return article }}
	quota := 2
	summarize := func(ctx context.Context, article string) error {
		if quota == 0 {
			return pauseError{} // middleware.IsPause tells real ones
		}
		quota--
		fmt.Println("summarized", article)
		return nil
	}

	sum, err := checkpoint.Run(context.Background(), articles, o, summarize)
	if errors.Is(err, checkpoint.ErrPaused) {
		fmt.Println("paused,", sum.Pending, "pending")
	}
	quota = 10
	sum, err = checkpoint.Run(context.Background(), articles, o, summarize)
	fmt.Println(sum.Done, "done,", err)
	// Output:
	// summarized one
	// summarized two
	// paused, 2 pending
	// summarized three
	// summarized four
	// 4 done, <nil>
}
