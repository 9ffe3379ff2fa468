package middleware

import (
	"context"

	"github.com/tollbook/tollbook/budget"
)

type (
	scopeKey   struct{}
	keyKey     struct{}
	receiptKey struct{}
)

// WithScope has calls made with the context draw on a scope, such as
// "nightly/shard-3", in place of the guard's own.
func WithScope(ctx context.Context, scope string) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

// WithKey gives calls made with the context their business name, such as
// "doc-17#summary-v2". Two calls of one key are never under way at once: the
// second is refused with [budget.ErrInFlight].
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyKey{}, key)
}

// WithReceipt has f told what was booked for each call made with the context:
// once for every reservation, after its close is durable and before the result
// reaches the caller (of a stream, its end). If the caller gives a stream up by
// cancelling, f runs on a goroutine of the guard. f is not called where nothing
// was reserved, or where the close could not be written.
func WithReceipt(ctx context.Context, f func(budget.Receipt)) context.Context {
	return context.WithValue(ctx, receiptKey{}, f)
}

func (g *Guard) scopeOf(ctx context.Context) string {
	if scope, ok := ctx.Value(scopeKey{}).(string); ok {
		return scope
	}
	return g.scope
}

func keyOf(ctx context.Context) string {
	key, _ := ctx.Value(keyKey{}).(string)
	return key
}

func tellReceipt(ctx context.Context, r budget.Receipt) {
	if f, ok := ctx.Value(receiptKey{}).(func(budget.Receipt)); ok && f != nil {
		f(r)
	}
}
