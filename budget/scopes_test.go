package budget

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Scopes are bounded, so that the open line of a segment can hold them all, and
// only what is booked makes one.
func TestScopesAreBounded(t *testing.T) {
	b := Memory(Tokens(10))
	_, err := b.Reserve(t.Context(), Request{Scope: "a/b/c", Tokens: 11})
	require.ErrorIs(t, err, ErrExhausted)
	require.NoError(t, b.SetLimit(t.Context(), Limit{Unit: TokenUnit, Scope: "x/y", Unlimited: true}))
	require.Len(t, b.ledger.accounts, 1)

	for i := range maxScopes - 2 {
		b.ledger.account(strconv.Itoa(i))
	}
	_, err = b.Reserve(t.Context(), Request{Scope: "a/b", Tokens: 1})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = b.Reserve(t.Context(), Request{Scope: "a", Tokens: 1})
	require.NoError(t, err)
	_, err = b.Reserve(t.Context(), Request{Scope: "b", Tokens: 1})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, b.SetLimit(t.Context(), Tokens(1).On("b")), ErrInvalid)
	_, err = b.Reserve(t.Context(), Request{Scope: "7", Tokens: 1})
	require.NoError(t, err)
}

// A limit that cannot be set keeps the book from opening.
func TestOpenRefusesALimitOnOneScopeTooMany(t *testing.T) {
	b := Memory()
	for i := range maxScopes - 1 {
		b.ledger.account(strconv.Itoa(i))
	}
	b.limits = []Limit{Tokens(5).On("new")}
	require.ErrorIs(t, b.begin(), ErrInvalid)
}

// Evidence is bounded: a rotation carries it in one line.
func TestEvidenceIsBounded(t *testing.T) {
	b := Memory()
	r, err := b.Reserve(t.Context(), Request{Tokens: 1})
	require.NoError(t, err)
	for range maxProofs + 10 {
		require.NoError(t, r.Extend(t.Context(), MaybeBilled, ""))
	}
	require.NoError(t, r.Close())
	for i := range maxProofs {
		_, err = r.Adjust(t.Context(), Evidence{Key: strconv.Itoa(i), Usage: Usage{Input: 1}})
		require.NoError(t, err)
	}
	_, err = r.Adjust(t.Context(), Evidence{Key: "one more", Usage: Usage{Input: 1}})
	require.ErrorIs(t, err, ErrInvalid)
}
