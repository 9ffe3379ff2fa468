package tokens_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/tokens"
)

// The figures that OpenAI's cookbook publishes, counted by its API, for these
// two requests (openai-cookbook, How_to_count_tokens_with_tiktoken).
func TestPublishedFigures(t *testing.T) {
	const messages = `"messages":[
		{"role":"system","content":"You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
		{"role":"system","name":"example_user","content":"New synergies will help drive top-line growth."},
		{"role":"system","name":"example_assistant","content":"Things working well together will increase revenue."},
		{"role":"system","name":"example_user","content":"Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
		{"role":"system","name":"example_assistant","content":"Let's talk later when we're less busy about how to do better."},
		{"role":"user","content":"This late pivot means we don't have time to boil the ocean for the client deliverable."}]`
	const weather = `"messages":[
		{"role":"system","content":"You are a helpful assistant that can answer to questions about the weather."},
		{"role":"user","content":"What's the weather like in San Francisco?"}],
		"tools":[{"type":"function","function":{"name":"get_current_weather","description":"Get the current weather in a given location",
			"parameters":{"type":"object","properties":{
				"location":{"type":"string","description":"The city and state, e.g. San Francisco, CA"},
				"unit":{"type":"string","description":"The unit of temperature to return","enum":["celsius","fahrenheit"]}},
			"required":["location"]}}}]`
	for _, c := range []struct {
		model, rest string
		want        int64
	}{
		{"gpt-4o", messages, 124}, {"gpt-4o-mini", messages, 124}, {"gpt-4", messages, 129}, {"gpt-3.5-turbo", messages, 129},
		{"gpt-4o", weather, 101}, {"gpt-4o-mini", weather, 101}, {"gpt-4", weather, 105}, {"gpt-3.5-turbo", weather, 105},
	} {
		body := []byte(`{"model":"` + c.model + `","max_tokens":1,` + c.rest + `}`)
		b, err := meter.OpenAIChat.Bound(meter.Request{Body: body}, meter.Options{Counter: tokens.Counter{}})
		require.NoError(t, err)
		require.Equal(t, c.want, b.Input, c.model)
		// A token a byte bounds the same request from far above.
		bytes, err := meter.OpenAIChat.Bound(meter.Request{Body: body}, meter.Options{})
		require.NoError(t, err)
		require.Greater(t, bytes.Input, c.want)
		require.Less(t, bytes.Input, int64(len(body)+200))
	}
}
