package retry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tollbook/tollbook/retry"
)

// Whoever keeps the books is asked before each further attempt. Here they allow
// a second one and refuse the third.
func ExampleDo() {
	errSpent := errors.New("nothing left")
	policy := retry.Policy{
		FirstWait: time.Millisecond,
		Before: func(_ context.Context, next retry.Attempt) error {
			if next.N > 2 {
				return errSpent
			}
			return nil
		},
	}
	attempts, err := retry.Do(context.Background(), policy, func(_ context.Context, n int) (int, error) {
		return n, retry.CheckStatus(http.StatusServiceUnavailable, nil)
	})
	fmt.Println(attempts, errors.Is(err, errSpent))
	fmt.Println(err)
	// Output:
	// 2 true
	// retry: attempt 3 not made: nothing left; the last one failed: retry: HTTP 503 Service Unavailable (transient)
}
