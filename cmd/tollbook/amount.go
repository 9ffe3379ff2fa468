package main

import (
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/tollbook/tollbook/budget"
)

// amountForms is what parseLimit reads, for help and hints.
const (
	tokenForms  = "a number of tokens (1500, 500k, 2M, 1.5B)"
	amountForms = tokenForms + ", money (12.50usd) or unlimited"
)

var errForm = errors.New("expected " + tokenForms)

// parseLimit reads an amount as people write it. Zero is zero: a cap that
// admits nothing. "unlimited" lifts the cap on tokens, "unlimitedusd" that on
// money.
func parseLimit(text string) (budget.Limit, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	if s == "unlimited" {
		return budget.Limit{Unit: budget.TokenUnit, Unlimited: true}, nil
	}
	if money, ok := strings.CutSuffix(s, "usd"); ok {
		if strings.TrimSpace(money) == "unlimited" {
			return budget.Limit{Unit: budget.CostUnit, Unlimited: true}, nil
		}
		n, err := parseMoney(text)
		return budget.Picodollars(n), err
	}
	n, err := parseTokens(s)
	if err == errForm {
		err = errors.New("expected " + amountForms)
	}
	if err != nil {
		return budget.Limit{}, fmt.Errorf("%q is not an amount: %w", text, err)
	}
	return budget.Tokens(n), nil
}

// parseMoney reads an amount of money, such as 12.50usd, in picodollars.
func parseMoney(text string) (int64, error) {
	dollars, ok := strings.CutSuffix(strings.ToLower(strings.TrimSpace(text)), "usd")
	if !ok {
		return 0, fmt.Errorf("%q is not an amount of money: expected one such as 12.50usd", text)
	}
	n, err := budget.ParseUSD(strings.TrimSpace(dollars))
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount of money: %w", text, err)
	}
	return n, nil
}

// parseTokens reads a whole number of tokens, with k, M or B for a thousand, a
// million or a billion. Decimals are exact: "1.5k" is 1500, "1.2345k" is not a
// whole number and refused.
func parseTokens(s string) (int64, error) {
	digits, scale := s, int64(1)
	for suffix, factor := range map[string]int64{"k": 1e3, "m": 1e6, "b": 1e9} {
		if cut, ok := strings.CutSuffix(s, suffix); ok {
			digits, scale = strings.TrimSpace(cut), factor
		}
	}
	digits = strings.ReplaceAll(digits, "_", "")
	whole, frac, point := strings.Cut(digits, ".")
	if whole == "" || (point && frac == "") || strings.Trim(whole+frac, "0123456789") != "" || len(digits) > 40 {
		return 0, errForm
	}
	n, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, errForm
	}
	n.Mul(n, new(big.Rat).SetInt64(scale))
	switch {
	case !n.IsInt():
		return 0, fmt.Errorf("tokens come whole")
	case n.Num().Cmp(big.NewInt(budget.MaxTokens)) > 0:
		return 0, fmt.Errorf("the most is %d tokens", int64(budget.MaxTokens))
	}
	return n.Num().Int64(), nil
}
