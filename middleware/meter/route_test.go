// Nothing that may spend passes without a meter.

package meter_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
)

func request(t *testing.T, method, path string) *http.Request {
	r, err := http.NewRequest(method, "http://host"+path, nil)
	require.NoError(t, err)
	return r
}

func TestFor(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         meter.Meter // nil: free
	}{
		{"POST", "/v1/chat/completions", meter.OpenAIChat},
		{"POST", "/openai/v1/chat/completions", meter.OpenAIChat},
		{"POST", "/api/v1/chat/completions/", meter.OpenAIChat},
		{"POST", "/openai/deployments/my-gpt/chat/completions?api-version=2023-05-15", meter.OpenAIChat},
		{"POST", "/chat/completions", meter.OpenAIChat},
		{"POST", "/v1/completions", meter.OpenAICompletions},
		{"POST", "/beta/completions", meter.OpenAICompletions},
		{"POST", "/openai/deployments/e/embeddings", meter.OpenAIEmbeddings},
		{"POST", "/v1/messages", meter.AnthropicMessages},
		{"POST", "/anthropic/v1/messages", meter.AnthropicMessages},
		{"POST", "/v1beta/models/gemini-2.5-flash:generateContent", meter.GeminiGenerate},
		{"POST", "/v1/projects/p/locations/l/publishers/google/models/gemini-2.5-flash:streamGenerateContent?alt=sse", meter.GeminiStream},
		{"POST", "/v1beta/models/gemini-2.5-flash:countTokens", nil},
		{"GET", "/v1/models", nil},
		{"GET", "/v1/chat/completions", nil},
		{"HEAD", "/", nil},
		{"", "/v1/models", nil},
		{"DELETE", "/v1/files/f", nil},
		{"POST", "/v1/moderations", nil},
		{"POST", "/moderations", nil},
		{"POST", "/openai/v1/responses/input_tokens", nil},
		{"POST", "/v1/files", nil},
		{"POST", "/v1/uploads/u/parts", nil},
		{"POST", "/v1/batches/b/cancel", nil},
		{"POST", "/v1/threads/t/runs/r/cancel", nil},
		{"POST", "/v1beta/openai/files", nil},
	} {
		m, err := meter.For(request(t, c.method, c.path))
		require.NoError(t, err, c.path)
		if c.want == nil {
			require.Nil(t, m, c.path)
			continue
		}
		// Meters are told apart by what they refuse.
		for _, body := range []string{`{"max_tokens":1,"prompt":"a"}`, `{"max_tokens":1,"messages":[]}`, `{"max_tokens":1,"messages":[],"container":1}`, `{"input":"a"}`, `{"contents":[]}`} {
			_, want := bound(c.want, body, meter.Options{})
			_, got := bound(m, body, meter.Options{})
			require.Equal(t, want, got, c.path)
		}
	}
}

// case 53
func TestForRefuses(t *testing.T) {
	for _, c := range []struct{ method, path string }{
		{"POST", "/v1/responses"}, {"POST", "/v1/images/generations"}, {"POST", "/v1/batches"}, {"POST", "/v1/threads/runs"},
		{"POST", "/v1/threads/t/runs"}, {"POST", "/v1/messages/batches"}, {"POST", "/v1beta/models/m:batchGenerateContent"}, {"POST", "/v1beta/models/m:embedContent"}, {"POST", "/v1/vector_stores/v/files"}, {"POST", "/v1/containers/c/files"}, {"POST", "/v1/decisions"},
		{"POST", "/v1/other/moderations"}, {"POST", "/v1/xchat/xcompletions"}, {"POST", "/v1/Chat/Completions"}, {"POST", "/v1/uploads//parts"},
		{"POST", "/"}, {"PUT", "/v1/files"}, {"PATCH", "/v1/chat/completions"}, {"CONNECT", "/v1/realtime"},
	} {
		_, err := meter.For(request(t, c.method, c.path))
		require.ErrorIs(t, err, meter.ErrRefused, c.path)
		require.ErrorAs(t, err, new(*meter.PathError))
		require.ErrorContains(t, err, "meter.Route")
	}
	websocket := request(t, "GET", "/v1/realtime?key=secret")
	websocket.Header.Set("Upgrade", "websocket")
	_, err := meter.For(websocket)
	require.ErrorIs(t, err, meter.ErrRefused, "it would spend out of sight")
	require.NotContains(t, err.Error(), "secret")
}

func TestForOwnRoutes(t *testing.T) {
	own := []meter.Route{
		{Path: "rerank"},
		{Path: "agents/*/run", Meter: meter.OpenAIChat},
		{Method: "GET", Path: "realtime"},
		{Path: "chat/completions"},
	}
	for path, metered := range map[string]bool{"/v2/rerank": false, "/v1/agents/7/run": true, "/v1/chat/completions": false, "/v1/embeddings": true} {
		m, err := meter.For(request(t, "POST", path), own...)
		require.NoError(t, err, path)
		require.Equal(t, metered, m != nil, path)
	}
	_, err := meter.For(request(t, "POST", "/v1/agents/run"), own...)
	require.ErrorIs(t, err, meter.ErrRefused)
	websocket := request(t, "GET", "/v1/realtime")
	websocket.Header.Set("Upgrade", "websocket")
	m, err := meter.For(websocket, own...)
	require.NoError(t, err)
	require.Nil(t, m)
}
