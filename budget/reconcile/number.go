package reconcile

import (
	"fmt"

	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tollbook/tollbook/budget"
)

// parseCount reads a whole number that may be written 3.0, as exports of tables
// do.
func parseCount(text string) (int64, error) {
	whole, zeros, point := strings.Cut(text, ".")
	if point && (zeros == "" || strings.Trim(zeros, "0") != "") || !isDigits(whole) {
		return 0, fmt.Errorf("%s is no whole number from 0 on", short(text))
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > budget.MaxTokens {
		return 0, fmt.Errorf("%s is above %d", short(text), int64(budget.MaxTokens))
	}
	return n, nil
}

// parseMoney reads a decimal number of units of 10^scale picodollars, to the
// nearest picodollar: providers write what a float makes of a sum.
func parseMoney(text string, scale int) (int64, error) {
	bad := fmt.Errorf("%s is no amount of money from 0 on", short(text))
	mantissa, power, scientific := strings.Cut(strings.ToLower(text), "e")
	exponent := 0
	if scientific {
		n, err := strconv.Atoi(power)
		if err != nil || n < -99 || n > 99 {
			return 0, bad
		}
		exponent = n
	}
	whole, frac, point := strings.Cut(mantissa, ".")
	if !isDigits(whole) || point && !isDigits(frac) || len(mantissa) > 64 {
		return 0, bad
	}
	n, _ := new(big.Int).SetString(whole+frac, 10)
	shift := scale + exponent - len(frac)
	ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil)
	if shift >= 0 {
		n.Mul(n, ten)
	} else {
		half := new(big.Int).Rsh(ten, 1)
		n.Div(n.Add(n, half), ten)
	}
	if !n.IsInt64() || n.Int64() > budget.MaxCost {
		return 0, fmt.Errorf("%s is above %s", short(text), budget.FormatUSD(budget.MaxCost))
	}
	return n.Int64(), nil
}

// parseTime reads Unix seconds, or RFC 3339.
func parseTime(text string) (time.Time, error) {
	if n, err := parseCount(text); err == nil {
		if n > 1<<36 {
			return time.Time{}, fmt.Errorf("%s is no time in seconds", short(text))
		}
		return time.Unix(n, 0).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Year() < 1970 {
		return time.Time{}, fmt.Errorf("%s is no time; Unix seconds or RFC 3339 are", short(text))
	}
	return t.UTC(), nil
}

// checkModel refuses what no book can hold.
func checkModel(name string) error {
	if len(name) > 256 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("%s is no name of a model", short(name))
	}
	return nil
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// short quotes what a report says, if need be the beginning of it.
func short(text string) string {
	if len(text) > 40 {
		return strconv.Quote(text[:40]) + "…"
	}
	return strconv.Quote(text)
}
