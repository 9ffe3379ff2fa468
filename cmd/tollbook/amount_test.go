package main

// Amounts are read as people write them; what is no amount is refused, never
// read as zero or as unlimited.

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
)

func TestParseLimit(t *testing.T) {
	unlimited := budget.Limit{Unit: budget.TokenUnit, Unlimited: true}
	for text, want := range map[string]budget.Limit{
		"0":                budget.Tokens(0), // case 10: zero is zero
		"1500":             budget.Tokens(1500),
		"2_000_000":        budget.Tokens(2_000_000),
		"500k":             budget.Tokens(500_000),
		"500K":             budget.Tokens(500_000),
		"2M":               budget.Tokens(2_000_000),
		"1.5M":             budget.Tokens(1_500_000),
		"0.0015k":          {},
		"1.5B":             budget.Tokens(1_500_000_000),
		"9007199254740992": budget.Tokens(budget.MaxTokens),
		"12.50usd":         budget.Picodollars(12_500_000_000_000),
		"12.50 USD":        budget.Picodollars(12_500_000_000_000),
		"0usd":             budget.Picodollars(0),
		"unlimited":        unlimited,
		"Unlimited":        unlimited,
		"unlimitedusd":     {Unit: budget.CostUnit, Unlimited: true},
		"unlimited USD":    {Unit: budget.CostUnit, Unlimited: true},

		"banana": {}, "": {}, "-1": {}, "+1": {}, "k": {}, "1.": {}, ".5k": {}, "1e6": {}, "0x10": {}, "1,5": {}, "1/2": {},
		"inf": {}, "NaN": {}, "null": {}, "1.5": {}, "1kk": {}, "9007199254740993": {}, "99999999999999B": {}, "usd": {}, "-3usd": {},
		"0.0000000000001usd": {}, "5eur": {}, "１２": {},
	} {
		got, err := parseLimit(text)
		if want == (budget.Limit{}) {
			assert.Error(t, err, "%q", text)
			continue
		}
		require.NoError(t, err, "%q", text)
		assert.Equal(t, want, got, "%q", text)
	}
}
