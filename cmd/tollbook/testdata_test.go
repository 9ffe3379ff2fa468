package main

// The sample batch of the README is what a real one looks like.

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSampleBatch(t *testing.T) {
	in, err := openInput("testdata/requests.jsonl")
	require.NoError(t, err)
	defer in.Close()
	require.Equal(t, 200, in.Len())

	seen := map[string]int{}
	bodies := map[string]bool{}
	for i := range in.Len() {
		it, err := in.At(i)
		require.NoError(t, err)
		bodies[string(it.Body)] = true
		seen[it.URL]++
		seen[it.Model]++
		var body map[string]any
		require.NoError(t, json.Unmarshal(it.Body, &body))
		for name := range body {
			seen[name]++
		}
		if len(it.Body) > 10_000 {
			seen["long"]++
		}
		for _, r := range string(it.Body) {
			if unicode.Is(unicode.Han, r) {
				seen["CJK"]++
				break
			}
		}
	}
	assert.Len(t, bodies, 200, "no request stands twice")
	for _, what := range append(urls, "gpt-4o-mini", "gpt-5-mini", "gpt-4.1", "text-embedding-3-small", "tools", "response_format", "max_tokens", "max_completion_tokens", "long", "CJK") {
		assert.GreaterOrEqual(t, seen[what], 3, what)
	}
}
