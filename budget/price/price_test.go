package price_test

import (
	"context"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/price"
)

const mtok = 1_000_000

func read(t *testing.T, text string) *price.Table {
	t.Helper()
	table, err := price.Read(strings.NewReader(text))
	require.NoError(t, err)
	return table
}

func usd(t *testing.T, dollars string) int64 {
	t.Helper()
	r, ok := new(big.Rat).SetString(dollars)
	require.True(t, ok)
	r.Mul(r, big.NewRat(1_000_000_000_000, 1))
	require.True(t, r.IsInt())
	return r.Num().Int64()
}

// TestDefault: figures of the embedded table, as its source and the providers'
// own pages have them.
func TestDefault(t *testing.T) {
	table := price.Default().Clock(func() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) })
	require.Equal(t, "2026-09-23", table.Date())
	require.Equal(t, table.Date(), table.Table())
	require.Contains(t, table.Source(), "MIT")
	for _, c := range []struct {
		model string
		usage budget.Usage
		usd   string
	}{
		{"gpt-4o-mini", budget.Usage{Input: mtok, Output: mtok}, "0.75"},
		{"gpt-4o-mini-2024-07-18", budget.Usage{Input: mtok, Output: mtok}, "0.75"},
		{"openai/gpt-4o-mini", budget.Usage{Input: mtok, Output: mtok}, "0.75"},
		{"azure/gpt-4o-mini", budget.Usage{Input: mtok, Output: mtok}, "0.75"},
		{"gpt-5.6-sol", budget.Usage{Input: 271_999, Output: mtok}, "21.087996"},
		{"gpt-5.6-sol", budget.Usage{Input: 272_000, Output: mtok}, "32.176"},
		{"claude-opus-5-5", budget.Usage{Input: mtok, Output: mtok}, "24"},
		{"claude-opus-5-5-20260801", budget.Usage{Input: mtok, Cached: mtok / 2, CacheWrite: mtok / 4, Output: 0}, "2.35"},
		{"text-embedding-3-small", budget.Usage{Input: mtok}, "0.02"},
		{"text-embedding-3-small", budget.Usage{Input: 1}, "0.00000002"},
		{"gpt-oss-120b", budget.Usage{Input: mtok}, "0.35"},     // the dearest who serves it
		{"o3", budget.Usage{Input: mtok}, "2"},                  // since 2025-06-10; 10 before
		{"deepseek-v4-pro", budget.Usage{Output: mtok}, "3.96"}, // the dearest hour
	} {
		got, err := table.Cost(c.model, c.usage)
		require.NoError(t, err, c.model)
		require.Equal(t, usd(t, c.usd), got, "%s %+v", c.model, c.usage)
	}
	old, err := table.Clock(func() time.Time { return time.Date(2025, 6, 9, 23, 59, 59, 0, time.UTC) }).Cost("o3", budget.Usage{Input: mtok})
	require.NoError(t, err)
	require.Equal(t, usd(t, "10"), old)
	require.EqualValues(t, 1_000_000, table.ContextWindow("claude-opus-5-5"))
	require.Zero(t, table.ContextWindow("nobody-knows"))
	_, err = table.Cost("gpt-4o-minni", budget.Usage{Input: 1})
	require.ErrorIs(t, err, budget.ErrNoPrice)
	_, err = table.Cost("text-embedding-3-small", budget.Usage{Input: 1, Output: 1})
	require.ErrorIs(t, err, budget.ErrNoPrice, "an output that has no price is not free")
	_, err = table.Cost("gpt-4o-mini", budget.Usage{Input: -1})
	require.ErrorIs(t, err, budget.ErrInvalid)
}

const small = `{"date":"2026-11-01","providers":[
	{"id":"a","models":[
		{"id":"m","match":{"or":[{"equals":"m"},{"starts_with":"m-"}]},"context_window":1000,"prices":{"input_mtok":{"base":1,"tiers":[{"start":100,"price":2},{"start":200,"price":0.5}]},
			"cache_read_mtok":0.1,"cache_write_mtok":1.25,"cache_write_1h_mtok":3,"output_mtok":{"base":4,"tiers":[{"start":200,"price":8}]},"output_reasoning_mtok":5}},
		{"id":"m-not","match":{"and":[{"contains":"x"},{"regex":"^(?!.*-[tT](?:$|-))m"}]},"prices":{"input_mtok":7}}]},
	{"id":"b","models":[{"id":"bm","prices":{"input_mtok":100}},{"id":"shared","prices":{"input_mtok":3}}]},
	{"id":"c","fallback_model_providers":["b"],"models":[{"id":"shared","match":{"ends_with":"red"},"prices":{"input_mtok":2}}]}]}`

func TestNamesAndTiers(t *testing.T) {
	table := read(t, small)
	for _, c := range []struct {
		model string
		usage budget.Usage
		pico  int64
	}{
		{"m", budget.Usage{Input: 100}, 100_000_000},
		{"b/bm", budget.Usage{Input: 100}, 10_000_000_000},
		{"m-2026", budget.Usage{Input: 101}, 202_000_000},
		{"m", budget.Usage{Input: 201, Output: 1}, 100_500_000 + 8_000_000},
		{"m", budget.Usage{Input: 100, Cached: 40, CacheWrite: 20, Output: 10, Reasoning: 4}, 40_000_000 + 4_000_000 + 25_000_000 + 24_000_000 + 20_000_000},
		{"mx", budget.Usage{Input: 1}, 7_000_000},
		{"shared", budget.Usage{Input: 1}, 3_000_000}, // the dearest
		{"c/shared", budget.Usage{Input: 1}, 2_000_000},
		{"c/bm", budget.Usage{Input: 1}, 100_000_000},
	} {
		got, err := table.Cost(c.model, c.usage)
		require.NoError(t, err, c.model)
		require.Equal(t, c.pico, got, "%s %+v", c.model, c.usage)
	}
	_, err := table.Cost("mx-T", budget.Usage{Input: 1})
	require.ErrorIs(t, err, budget.ErrNoPrice)
	most, err := table.Most("m", budget.Usage{Input: 201, Output: 1})
	require.NoError(t, err)
	require.EqualValues(t, 201*3_000_000+8_000_000, most)
}

// TestMost: however a provider counts what a call used, and however little of
// it, it costs no more than the call could at most.
func TestMost(t *testing.T) {
	tables := []*price.Table{read(t, small), price.Default()}
	models := [][]string{{"m", "b/bm", "shared"}, {"gpt-5.6-sol", "claude-sonnet-4-5", "gemini-2.5-pro", "deepseek-v4-pro", "o3"}}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, 1).Draw(t, "table")
		name := rapid.SampledFrom(models[i]).Draw(t, "model")
		n := rapid.Int64Range(0, 500_000)
		u := budget.Usage{Input: n.Draw(t, "input")}
		u.Cached = rapid.Int64Range(0, u.Input).Draw(t, "cached")
		u.CacheWrite = rapid.Int64Range(0, u.Input-u.Cached).Draw(t, "write")
		if name != "b/bm" && name != "shared" {
			u.Output = n.Draw(t, "output")
			u.Reasoning = rapid.Int64Range(0, u.Output).Draw(t, "reasoning")
		}
		cost, err := tables[i].Cost(name, u)
		if err != nil {
			t.Fatal(err)
		}
		most, err := tables[i].Most(name, budget.Usage{Input: u.Input + n.Draw(t, "more"), Output: u.Output})
		if err != nil || most < cost {
			t.Fatalf("%s: %+v costs %d, and at most %d: %v", name, u, cost, most, err)
		}
	})
}

// TestExact: a million usages cost by integers what they cost by fractions,
// rounded up.
func TestExact(t *testing.T) {
	table := read(t, `{"x":{"litellm_provider":"p","input_cost_per_token":1.23456789e-06,"cache_read_input_token_cost":3e-9,"cache_creation_input_token_cost":"0.000002","output_cost_per_token":7.7e-05,"output_cost_per_reasoning_token":1e-18}}`)
	rate := func(s string) *big.Rat {
		r, ok := new(big.Rat).SetString(s)
		require.True(t, ok)
		return r.Mul(r, big.NewRat(1_000_000_000_000, 1))
	}
	rates := []*big.Rat{rate("1.23456789e-06"), rate("3e-9"), rate("0.000002"), rate("7.7e-05"), rate("1e-18")}
	rng := rand.New(rand.NewPCG(1, 2))
	n := mtok
	if testing.Short() {
		n /= 100
	}
	sum, product, rest := new(big.Rat), new(big.Rat), new(big.Int)
	for range n {
		bound := int64(1) << rng.IntN(32)
		u := budget.Usage{Cached: rng.Int64N(bound), CacheWrite: rng.Int64N(bound), Reasoning: rng.Int64N(bound)}
		u.Input, u.Output = u.Cached+u.CacheWrite+rng.Int64N(bound), u.Reasoning+rng.Int64N(bound)
		got, err := table.Cost("x", u)
		require.NoError(t, err)
		sum.SetInt64(0)
		for i, tokens := range []int64{u.Input - u.Cached - u.CacheWrite, u.Cached, u.CacheWrite, u.Output - u.Reasoning, u.Reasoning} {
			sum.Add(sum, product.Mul(rates[i], product.SetInt64(tokens)))
		}
		want, _ := new(big.Int).QuoRem(sum.Num(), sum.Denom(), rest)
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		if want.Int64() != got {
			t.Fatalf("%+v: %d by integers, %v by fractions", u, got, want)
		}
	}
}

func TestFallbackAndOver(t *testing.T) {
	own := read(t, `{"date":"2026-12-01","providers":[{"id":"us","models":[{"id":"gpt-4o-mini","prices":{"input_mtok":1}}]}]}`)
	both := own.Over(price.Default())
	require.Equal(t, "2026-12-01 over 2026-09-23", both.Table())
	cost, err := both.Cost("gpt-4o-mini", budget.Usage{Input: mtok})
	require.NoError(t, err)
	require.Equal(t, usd(t, "1"), cost)
	cost, err = both.Cost("claude-opus-5-5", budget.Usage{Input: mtok})
	require.NoError(t, err)
	require.Equal(t, usd(t, "4"), cost)
	with, err := both.WithFallback(price.Rates{Input: usd(t, "10"), Output: usd(t, "20")})
	require.NoError(t, err)
	cost, err = with.Cost("nobody-knows", budget.Usage{Input: mtok, Output: 1})
	require.NoError(t, err)
	require.Equal(t, usd(t, "10")+20_000_000, cost)
	_, err = both.WithFallback(price.Rates{Input: -1})
	require.Error(t, err)
}

func TestLiteLLM(t *testing.T) {
	table := read(t, `{"sample_spec":{"input_cost_per_token":"text"},
		"gpt-9":{"litellm_provider":"openai","max_input_tokens":400000,"input_cost_per_token":2.5e-06,"output_cost_per_token":1e-05,"mode":"chat"},
		"vertex_ai/gem":{"litellm_provider":"vertex_ai","max_input_tokens":"lots","input_cost_per_token":1e-06,"input_cost_per_token_above_200k_tokens":2e-06,
			"output_cost_per_token_above_200k_tokens":null,"output_cost_per_token":3e-06},
		"whisper":{"litellm_provider":"openai","input_cost_per_second":0.0001}}`)
	for _, c := range []struct {
		model string
		usage budget.Usage
		pico  int64
	}{
		{"gpt-9", budget.Usage{Input: 2, Output: 1}, 15_000_000},
		{"openai/gpt-9", budget.Usage{Input: 2}, 5_000_000},
		{"vertex_ai/gem", budget.Usage{Input: 200_001, Output: 1}, 400_005_000_000},
		{"gem", budget.Usage{Input: 200_000}, 200_000_000_000},
	} {
		got, err := table.Cost(c.model, c.usage)
		require.NoError(t, err, c.model)
		require.Equal(t, c.pico, got, c.model)
	}
	for _, model := range []string{"whisper", "sample_spec"} {
		_, err := table.Cost(model, budget.Usage{Input: 1})
		require.ErrorIs(t, err, budget.ErrNoPrice, model)
	}
	require.EqualValues(t, 400_000, table.ContextWindow("gpt-9"))
	require.Equal(t, "undated", table.Table())
}

// TestUnknownModel: a money limit and a model that is misspelt: nothing is held,
// nothing leaves. // case 56 // case 77
func TestUnknownModel(t *testing.T) {
	ctx := context.Background()
	book := budget.Memory(budget.USD("5.00"), budget.Prices(price.Default()))
	defer book.Close()
	_, err := book.Reserve(ctx, budget.Request{Model: "gpt-4o-minni", Tokens: 1000, Output: 500})
	require.ErrorIs(t, err, budget.ErrNoPrice)
	require.Zero(t, book.Report().Open)
	r, err := book.Reserve(ctx, budget.Request{Model: "gpt-4o-mini", Tokens: 1000, Output: 500})
	require.NoError(t, err)
	receipt, err := r.Settle(ctx, budget.Usage{Input: 400, Output: 100})
	require.NoError(t, err)
	require.EqualValues(t, 400*150_000+100*600_000, receipt.ConfirmedCost)
	r, err = book.Reserve(ctx, budget.Request{Model: "claude-sonnet-4-5", Tokens: 1000, Output: 500})
	require.NoError(t, err)
	require.Equal(t, 500*usd(t, "6")/mtok+500*usd(t, "15")/mtok, book.Report().Cost.Held, "all of the input may be written to the cache, for an hour")
	require.NoError(t, r.Close())
	_, err = book.Reserve(ctx, budget.Request{Model: "text-embedding-3-small", Tokens: 1000})
	require.NoError(t, err)
}

// TestEleventh: an eleventh of the cap eleven times is the cap, and the twelfth
// is refused. // case 83
func TestEleventh(t *testing.T) {
	ctx := context.Background()
	table := read(t, `{"providers":[{"id":"p","models":[{"id":"m","prices":{"input_mtok":0.1}}]}]}`)
	book := budget.Memory(budget.USD("1.1"), budget.Prices(table))
	defer book.Close()
	for range 11 {
		r, err := book.Reserve(ctx, budget.Request{Model: "m", Tokens: mtok, Cost: usd(t, "0.1")})
		require.NoError(t, err)
		_, err = r.Settle(ctx, budget.Usage{Input: mtok})
		require.NoError(t, err)
	}
	require.Equal(t, usd(t, "1.1"), book.Report().Cost.Confirmed)
	_, err := book.Reserve(ctx, budget.Request{Model: "m", Tokens: 1, Cost: 1})
	require.ErrorIs(t, err, budget.ErrExhausted)
}

func TestReadRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":               ``,
		"no JSON":               `{"providers":[`,
		"a number":              `7`,
		"no model":              `{"providers":[]}`,
		"empty":                 `{}`,
		"date":                  `{"date":"yesterday","providers":[{"id":"p","models":[{"id":"m","prices":{"input_mtok":1}}]}]}`,
		"provider twice":        `[{"id":"p","models":[]},{"id":"p","models":[]}]`,
		"no prices":             `[{"id":"p","models":[{"id":"m"}]}]`,
		"negative":              `[{"id":"p","models":[{"id":"m","prices":{"input_mtok":-1}}]}]`,
		"text for a price":      `[{"id":"p","models":[{"id":"m","prices":{"input_mtok":"cheap"}}]}]`,
		"huge":                  `[{"id":"p","models":[{"id":"m","prices":{"input_mtok":1e99}}]}]`,
		"exponent":              `{"m":{"input_cost_per_token":1e-999999999}}`,
		"tier below zero":       `[{"id":"p","models":[{"id":"m","prices":{"input_mtok":{"base":1,"tiers":[{"start":-5,"price":2}]}}}]}]`,
		"tier without a price":  `[{"id":"p","models":[{"id":"m","prices":{"input_mtok":{"base":1,"tiers":[{"start":5}]}}}]}]`,
		"unknown condition":     `[{"id":"p","models":[{"id":"m","match":{"sounds_like":"m"},"prices":{"input_mtok":1}}]}]`,
		"two conditions":        `[{"id":"p","models":[{"id":"m","match":{"equals":"m","contains":"m"},"prices":{"input_mtok":1}}]}]`,
		"no regular expression": `[{"id":"p","models":[{"id":"m","match":{"regex":"("},"prices":{"input_mtok":1}}]}]`,
		"open lookahead":        `[{"id":"p","models":[{"id":"m","match":{"regex":"^(?!a"},"prices":{"input_mtok":1}}]}]`,
		"from no day":           `[{"id":"p","models":[{"id":"m","prices":[{"constraint":{"start_date":"soon"},"prices":{"input_mtok":1}}]}]}]`,
	} {
		_, err := price.Read(strings.NewReader(text))
		require.ErrorContains(t, err, "price: reading a table: ", name)
	}
	_, err := price.ReadFile("no such file")
	require.Error(t, err)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"x":{"litellm_provider":"p","input_cost_per_token":1e-06,"input_cost_per_token_above_128k_tokens":2e-06}}`))
	f.Add([]byte(`[{"id":"p","models":[{"id":"m","match":{"regex":"^(?!a)b"},"prices":[{"prices":{"input_mtok":1}},{"constraint":{"start_time":"1","end_time":"2"},"prices":{"output_mtok":2}}]}]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := price.Read(strings.NewReader(string(data)))
		if err != nil {
			return
		}
		for _, model := range []string{"m", "b", "x", "p/m"} {
			cost, err := table.Cost(model, budget.Usage{Input: 300, Cached: 100, CacheWrite: 50, Output: 7, Reasoning: 2})
			most, mostErr := table.Most(model, budget.Usage{Input: 300, Output: 7})
			if err == nil && (cost < 0 || mostErr == nil && most < cost) {
				t.Fatalf("%q costs %d, at most %d", model, cost, most)
			}
		}
	})
}

func BenchmarkCost(b *testing.B) {
	table := price.Default()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := table.Cost("claude-sonnet-4-5", budget.Usage{Input: 1000, Cached: 100, Output: 50}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestProviders: each provider that the table is made of is in it.
func TestProviders(t *testing.T) {
	for _, model := range []string{"gpt-4o", "claude-sonnet-5", "gemini-2.5-flash", "mistral-large-latest", "command-r", "deepseek-chat", "grok-4.5", "groq/llama-3.3-70b-versatile"} {
		cost, err := price.Default().Cost(model, budget.Usage{Input: 1})
		require.NoError(t, err, model)
		require.Positive(t, cost, model)
	}
}
