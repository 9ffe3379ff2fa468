package providertest

// A real client can talk to the provider, and what it is told is what is on
// the bill.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client talks to p over the loopback.
func client(t *testing.T, p *Provider) *openai.Client {
	config := openai.DefaultConfig("sk-any")
	s := NewServer(t, p)
	config.BaseURL, config.HTTPClient = s.URL+"/v1", s.Client()
	return openai.NewClientWithConfig(config)
}

func userSays(text string) []openai.ChatCompletionMessage {
	return []openai.ChatCompletionMessage{{Role: "user", Content: text}}
}

func billed(u openai.Usage) Bill {
	return Bill{1, int64(u.PromptTokens), int64(u.CompletionTokens), int64(u.TotalTokens)}
}

// post sends a raw body in memory and returns status and body.
func post(t testing.TB, p *Provider, path, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://provider.test"+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := p.RoundTripper().RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func get(t testing.TB, p *Provider, path string, v any) int {
	t.Helper()
	req, err := http.NewRequest("GET", "http://provider.test"+path, nil)
	require.NoError(t, err)
	resp, err := p.RoundTripper().RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(v))
	return resp.StatusCode
}

func TestChat(t *testing.T) {
	p := New(Options{Seed: 1})
	resp, err := client(t, p).CreateChatCompletion(t.Context(), openai.ChatCompletionRequest{Model: "gpt-4o-mini", Messages: userSays("Say something nice."), N: 3})
	require.NoError(t, err)
	require.Len(t, resp.Choices, 3)
	words := 0
	for _, c := range resp.Choices {
		words += len(strings.Fields(c.Message.Content))
	}
	require.Equal(t, words, resp.Usage.CompletionTokens)
	require.Equal(t, 3+3+3, resp.Usage.PromptTokens)
	require.Equal(t, billed(resp.Usage), p.Bill())
}

func TestCapsAreRespected(t *testing.T) {
	for name, body := range map[string]string{
		"max_tokens":            `{"model":"gpt-4o","messages":[{"content":"x"}],"max_tokens":4,"n":2}`,
		"max_completion_tokens": `{"model":"gpt-5","messages":[{"content":"x"}],"max_tokens":100,"max_completion_tokens":4,"n":2}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{Longest: 1000})
			status, answer, err := post(t, p, "/v1/chat/completions", body)
			require.NoError(t, err)
			require.Equal(t, 200, status)
			require.Equal(t, int64(8), p.Bill().CompletionTokens)
			require.Contains(t, answer, `"finish_reason":"length"`)
		})
	}
}

func TestStream(t *testing.T) {
	for _, asked := range []bool{false, true} {
		for _, model := range []string{"gpt-4o", "gpt-5-mini"} {
			t.Run(fmt.Sprintf("%s usage=%v", model, asked), func(t *testing.T) {
				p := New(Options{Seed: 2})
				req := openai.ChatCompletionRequest{Model: model, Messages: userSays("Tell me."), Stream: true}
				if asked {
					req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
				}
				s, err := client(t, p).CreateChatCompletionStream(t.Context(), req)
				require.NoError(t, err)
				defer s.Close()
				var text, finish string
				var usage []openai.Usage
				for {
					chunk, err := s.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					require.NoError(t, err)
					if chunk.Usage != nil {
						require.Empty(t, chunk.Choices)
						usage = append(usage, *chunk.Usage)
						continue
					}
					text += chunk.Choices[0].Delta.Content
					finish += string(chunk.Choices[0].FinishReason)
				}
				require.Equal(t, "stop", finish)
				hidden := int64(0)
				if asked {
					require.Len(t, usage, 1)
					require.Equal(t, billed(usage[0]), p.Bill())
					hidden = int64(usage[0].CompletionTokensDetails.ReasoningTokens)
				} else {
					require.Empty(t, usage)
				}
				if asked || model == "gpt-4o" {
					require.Equal(t, p.Bill().CompletionTokens, Words(text)+hidden)
				}
			})
		}
	}
}

func TestToolCalls(t *testing.T) {
	tools := []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "look_up", Description: "Looks a word up."}}}
	p := New(Options{})
	c := client(t, p)
	called := 0
	for i := range 20 {
		req := openai.ChatCompletionRequest{Model: "gpt-4o", Tools: tools, Messages: userSays(fmt.Sprint("question ", i))}
		resp, err := c.CreateChatCompletion(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, 3+3+2+4+2+4, resp.Usage.PromptTokens)
		if m := resp.Choices[0].Message; len(m.ToolCalls) > 0 {
			called++
			require.Equal(t, openai.FinishReasonToolCalls, resp.Choices[0].FinishReason)
			require.Equal(t, "look_up", m.ToolCalls[0].Function.Name)
			require.True(t, json.Valid([]byte(m.ToolCalls[0].Function.Arguments)))
		}

		s, err := c.CreateChatCompletionStream(t.Context(), req)
		require.NoError(t, err)
		arguments := ""
		for {
			chunk, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			for _, call := range chunk.Choices[0].Delta.ToolCalls {
				arguments += call.Function.Arguments
			}
		}
		require.NoError(t, s.Close())
		require.True(t, arguments == "" || json.Valid([]byte(arguments)), arguments)
	}
	require.Greater(t, called, 0)
	require.Less(t, called, 20)
}

func TestCompletions(t *testing.T) {
	p := New(Options{Longest: 1000})
	resp, err := client(t, p).CreateCompletion(t.Context(), openai.CompletionRequest{Model: "gpt-3.5-turbo-instruct",
		Prompt: []string{"Once upon", "a time"}, N: 2, BestOf: 3, Echo: true})
	require.NoError(t, err)
	require.Len(t, resp.Choices, 4)
	require.True(t, strings.HasPrefix(resp.Choices[3].Text, "a time"))
	require.Equal(t, 4, resp.Usage.PromptTokens)
	require.Equal(t, 2*3*16, resp.Usage.CompletionTokens) // all of best_of, 16 each where no cap is given
	require.Equal(t, billed(*resp.Usage), p.Bill())

	status, stream, err := post(t, p, "/v1/completions", `{"model":"m","prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true}}`)
	require.NoError(t, err)
	require.Equal(t, 200, status)
	require.Contains(t, stream, `"object":"text_completion"`)
	require.Contains(t, stream, `"choices":[],"usage":{`)
	require.True(t, strings.HasSuffix(stream, "data: [DONE]\n\n"))
	require.Equal(t, int64(4+3), p.Bill().PromptTokens)
}

func TestEmbeddings(t *testing.T) {
	p := New(Options{})
	c := client(t, p)
	resp, err := c.CreateEmbeddings(t.Context(), openai.EmbeddingRequest{Model: openai.SmallEmbedding3, Input: []string{"one two", "three"}, Dimensions: 5})
	require.NoError(t, err)
	require.Equal(t, Bill{1, 3, 0, 3}, p.Bill())
	require.Equal(t, billed(resp.Usage), p.Bill())
	require.Len(t, resp.Data, 2)
	require.Len(t, resp.Data[1].Embedding, 5)
	square := 0.0
	for _, x := range resp.Data[0].Embedding {
		square += float64(x) * float64(x)
	}
	require.InDelta(t, 1, math.Sqrt(square), 1e-6)
	require.NotEqual(t, resp.Data[0].Embedding, resp.Data[1].Embedding)

	again, err := c.CreateEmbeddings(t.Context(), openai.EmbeddingRequest{Model: openai.SmallEmbedding3, Input: "three", Dimensions: 5, EncodingFormat: openai.EmbeddingEncodingFormatBase64})
	require.NoError(t, err)
	require.Equal(t, resp.Data[1].Embedding, again.Data[0].Embedding) // the vector is of the text

	_, err = c.CreateEmbeddings(t.Context(), openai.EmbeddingRequestTokens{Model: openai.SmallEmbedding3, Input: [][]int{{1, 2, 3}, {4}}})
	require.NoError(t, err)
	require.Equal(t, int64(3+1+4), p.Bill().PromptTokens)
}

func TestBadRequestsAreNotBilled(t *testing.T) {
	p := New(Options{Faults: Faults{Overrun: 1}})
	const chat, text, embed = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	for _, c := range []struct {
		path, body string
		status     int
		param      string
	}{
		{chat, `{"model":`, 400, ""},
		{chat, `[]`, 400, ""},
		{chat, `{"messages":[{"content":"x"}]}`, 400, "model"},
		{chat, `{"model":"m"}`, 400, "messages"},
		{chat, `{"model":"m","messages":[]}`, 400, "messages"},
		{chat, `{"model":"m","messages":[{"content":7}]}`, 400, "messages[0].content"},
		{chat, `{"model":"m","messages":[{"content":"x"}],"max_tokens":0}`, 400, "max_tokens"},
		{chat, `{"model":"m","messages":[{"content":"x"}],"max_tokens":"5"}`, 400, "max_tokens"},
		{chat, `{"model":"m","messages":[{"content":"x"}],"max_completion_tokens":9223372036854775807}`, 400, "max_completion_tokens"},
		{chat, `{"model":"m","messages":[{"content":"x"}],"n":129}`, 400, "n"},
		{text, `{"model":"m"}`, 400, "prompt"},
		{text, `{"model":"m","prompt":"x","n":3,"best_of":2}`, 400, "best_of"},
		{embed, `{"model":"m","input":[]}`, 400, "input"},
		{embed, `{"model":"m","input":["x",""]}`, 400, "input"},
		{embed, `{"model":"m","input":"x","dimensions":99999}`, 400, "dimensions"},
		{embed, `{"model":"m","input":"x","encoding_format":"hex"}`, 400, "encoding_format"},
		{"/v1/responses", `{}`, 404, ""},
		{"/v1", `{}`, 404, ""},
	} {
		status, body, err := post(t, p, c.path, c.body)
		require.NoError(t, err)
		require.Equal(t, c.status, status, c.body)
		var e openai.ErrorResponse
		require.NoError(t, json.Unmarshal([]byte(body), &e), body)
		require.Equal(t, "invalid_request_error", e.Error.Type)
		require.NotEmpty(t, e.Error.Message)
		if c.param != "" {
			require.Equal(t, c.param, *e.Error.Param)
		}
	}
	var ignored any
	require.Equal(t, 405, get(t, p, chat, &ignored))
	require.Zero(t, p.Bill())
}

func TestModels(t *testing.T) {
	c := client(t, New(Options{}))
	list, err := c.ListModels(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, list.Models)
	m, err := c.GetModel(t.Context(), list.Models[0].ID)
	require.NoError(t, err)
	require.Equal(t, list.Models[0].ID, m.ID)
	_, err = c.GetModel(t.Context(), "no-such-model")
	var api *openai.APIError
	require.ErrorAs(t, err, &api)
	require.Equal(t, 404, api.HTTPStatusCode)
}

// BenchmarkChat is one request and answer in memory, HTTP apart.
func BenchmarkChat(b *testing.B) {
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprint("stream ", stream), func(b *testing.B) {
			p := New(Options{Faults: Faults{RateLimited: 0.02, Cut: 0.02}})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				post(b, p, "/v1/chat/completions", fmt.Sprintf(`{"model":"gpt-4o","messages":[{"content":"number %d"}],"stream":%v}`, i, stream))
			}
		})
	}
}
