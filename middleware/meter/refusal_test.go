// A refusal is given back only where it is surely unbilled, and a stop is told
// from what passes: both from codes, not from text.

package meter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/meter"
)

func TestRefused(t *testing.T) {
	type refusal = meter.Refusal
	openAI := func(code, kind string) string {
		return `{"error":{"message":"some text with key sk-123","type":"` + kind + `","param":null,"code":"` + code + `"}}`
	}
	gemini := func(quota, more string) string {
		return `[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"` + quota + `"}]}` + more + `]}}]`
	}
	const retryIn = `,{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}`
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   refusal
	}{
		{"rate limit", 429, openAI("rate_limit_exceeded", "tokens"), refusal{Unbilled: true, Code: "rate_limit_exceeded"}},
		{"rate limit of a proxy", 429, "<html>slow down</html>", refusal{Unbilled: true}},
		{"a bad request", 400, openAI("context_length_exceeded", "invalid_request_error"), refusal{Unbilled: true, Code: "context_length_exceeded"}},
		{"a bad key", 401, openAI("invalid_api_key", "invalid_request_error"), refusal{Unbilled: true, Code: "invalid_api_key"}},
		{"code null", 404, `{"error":{"message":"m","type":"invalid_request_error","code":null}}`, refusal{Unbilled: true, Code: "invalid_request_error"}},
		{"code a number", 403, `{"error":{"message":"m","code":403}}`, refusal{Unbilled: true, Code: "403"}},
		{"code a map", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"n","code":{"a":1}}}`, refusal{Code: "invalid_request_error"}},
		{"code a text", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"n","code":"you said: hi"}}`, refusal{Code: "invalid_request_error"}},
		{"error a string", 422, `{"error":"no such field"}`, refusal{}},
		{"error a string, elsewhere", 404, `{"error":"no such model"}`, refusal{Unbilled: true}},
		{"Mistral", 400, `{"object":"error","message":"m","type":"invalid_model","code":1500}`, refusal{Unbilled: true, Code: "invalid_model"}},
		{"Mistral, a number that says nothing", 422, `{"object":"error","message":"m","type":"invalid_request_error","param":"x","code":1210}`, refusal{Code: "invalid_request_error"}},
		{"vLLM", 400, `{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}`, refusal{Unbilled: true, Code: "BadRequestError"}},
		{"its type, another's code", 400, `{"error":{"message":"m","type":"BadRequestError","param":null,"code":"flagged"}}`, refusal{Code: "flagged"}},
		{"Gemini", 400, `[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]`, refusal{Unbilled: true, Code: "INVALID_ARGUMENT"}},
		{"by param", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"messages[0].role","code":null}}`, refusal{Unbilled: true, Code: "invalid_request_error"}},
		{"by param, the status for a code", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"n","code":"400"}}`, refusal{Unbilled: true, Code: "invalid_request_error"}},
		{"by param, the type for a code", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"n","code":"invalid_request_error"}}`, refusal{Unbilled: true, Code: "invalid_request_error"}},
		{"param of no bad request", 400, `{"error":{"message":"m","type":"x","param":"n","code":null}}`, refusal{Code: "x"}},
		{"an unknown code, whatever the type and param", 400, `{"error":{"message":"m","type":"invalid_request_error","param":"prompt","code":"flagged"}}`, refusal{Code: "flagged"}},
		{"OpenAI's model wrote up to its limit", 400, `{"error":{"message":"Could not finish the message because max_tokens or model output limit was reached.","type":"invalid_request_error","param":null,"code":null}}`, refusal{Code: "invalid_request_error"}},
		{"Anthropic's filter held an answer back", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}`, refusal{Code: "invalid_request_error"}},
		{"FastAPI's fields", 422, `{"detail":[{"type":"missing","loc":["body","model"],"msg":"Field required"}]}`, refusal{Unbilled: true}},
		{"FastAPI's text", 400, `{"detail":"generation failed"}`, refusal{}},
		{"FastAPI", 404, `{"detail":"Not Found"}`, refusal{Unbilled: true}},
		{"Anthropic's form", 413, `{"type":"error","error":{"type":"request_too_large","message":"m"}}`, refusal{Unbilled: true, Code: "request_too_large"}},

		{"an error without form", 400, `Bad Request`, refusal{}},
		{"a cut body", 400, openAI("a", "b")[:40], refusal{}},
		{"no body", 400, ``, refusal{}},
		{"Azure bills what its filter holds back", 400, `{"error":{"code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"}}}`, refusal{Code: "content_filter"}},
		{"by the inner code alone", 400, `{"error":{"code":"bad","innererror":{"code":"ResponsibleAIPolicyViolation"}}}`, refusal{Code: "bad"}},
		{"Groq generated before it refused", 400, `{"error":{"type":"invalid_request_error","code":"x","failed_generation":"{}"}}`, refusal{Code: "x"}},
		{"by the code alone", 400, openAI("tool_use_failed", "invalid_request_error"), refusal{Code: "tool_use_failed"}},
		{"an answer beside the error", 400, `{"choices":[{}],"error":{"code":"x"}}`, refusal{Code: "x"}},
		{"usage beside the error", 429, `{"error":{"code":"x"},"usage":{"total_tokens":7}}`, refusal{Code: "x"}},

		{"request timeout", 408, openAI("timeout", "x"), refusal{Code: "timeout"}},
		{"conflict", 409, openAI("lock", "x"), refusal{Code: "lock"}},
		{"server error", 500, openAI("server_error", "server_error"), refusal{Code: "server_error"}},
		{"unavailable", 503, openAI("unavailable", "server_error"), refusal{Code: "unavailable"}},
		{"overloaded", 503, openAI("engine_overloaded", "server_error"), refusal{Unbilled: true, Code: "engine_overloaded"}},
		{"overloaded by type", 529, `{"type":"error","error":{"type":"overloaded_error"}}`, refusal{Unbilled: true, Code: "overloaded_error"}},
		{"not by text", 503, `{"error":{"message":"overloaded"}}`, refusal{}},
		{"teapot", 418, openAI("x", "y"), refusal{Code: "x"}},

		{"case 38: quota by code", 429, openAI("insufficient_quota", "x"), refusal{Unbilled: true, Stop: true, Code: "insufficient_quota"}},
		{"case 38: quota by type", 429, `{"error":{"type":"insufficient_quota","code":null}}`, refusal{Unbilled: true, Stop: true, Code: "insufficient_quota"}},
		{"case 38: project", 429, openAI("project_spend_limit_exceeded", "x"), refusal{Unbilled: true, Stop: true, Code: "project_spend_limit_exceeded"}},
		{"case 38: organization", 429, openAI("organization_spend_limit_exceeded", "x"), refusal{Unbilled: true, Stop: true, Code: "organization_spend_limit_exceeded"}},
		{"usage limit", 429, openAI("organization_usage_limit_exceeded", "x"), refusal{Unbilled: true, Stop: true, Code: "organization_usage_limit_exceeded"}},
		{"enforced limit", 429, openAI("", "enforced_spend_limit_reached"), refusal{Unbilled: true, Stop: true, Code: "enforced_spend_limit_reached"}},
		{"credit", 429, openAI("credit_balance_exhausted", "x"), refusal{Unbilled: true, Stop: true, Code: "credit_balance_exhausted"}},
		{"case 38: 402", 402, `Payment Required`, refusal{Unbilled: true, Stop: true}},
		{"case 38: a gateway's budget", 429, `{"error":{"type":"budget_exceeded","code":"429"}}`, refusal{Unbilled: true, Stop: true, Code: "budget_exceeded"}},
		{"a gateway's budget under 400", 400, `{"error":{"type":"budget_exceeded","code":"400"}}`, refusal{Unbilled: true, Stop: true, Code: "budget_exceeded"}},
		{"case 39", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}`, refusal{Unbilled: true, Stop: true, Code: "invalid_request_error"}},
		{"case 39: not under another status", 500, `{"error":{"type":"x","message":"Your credit balance is too low"}}`, refusal{Code: "x"}},
		{"case 39: not in another field", 400, `{"error":{"type":"invalid_request_error","message":"m","param":"credit balance is too low"}}`, refusal{Unbilled: true, Code: "invalid_request_error"}},

		{"case 40: per day", 429, gemini("GenerateRequestsPerDayPerProject", ""), refusal{Unbilled: true, Stop: true, Code: "RESOURCE_EXHAUSTED"}},
		{"case 40: per minute", 429, gemini("GenerateRequestsPerMinutePerProject", retryIn), refusal{Unbilled: true, RetryAfter: 36 * time.Second, Code: "RESOURCE_EXHAUSTED"}},
		{"case 40: both", 429, gemini(`x"},{"quotaId":"InputTokensPerDay`, retryIn), refusal{Unbilled: true, Stop: true, Code: "RESOURCE_EXHAUSTED"}},
		{"absurd delays", 429, gemini("PerMinute", `,{"retryDelay":"-5s"},{"retryDelay":"1e99s"},{"retryDelay":7}`), refusal{Unbilled: true, Code: "RESOURCE_EXHAUSTED"}},

		{"no include_usage here", 400, `{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error"}}`, refusal{Unbilled: true, NoUsageOption: true, Code: "invalid_request_error"}},
		{"include_usage by param", 400, `{"error":{"message":"m","param":"stream_options.include_usage"}}`, refusal{Unbilled: true, NoUsageOption: true}},
		{"param goes before message", 400, `{"error":{"message":"Invalid value: 'include_usage'","param":"messages[0].role","type":"invalid_request_error","code":"invalid_value"}}`, refusal{Unbilled: true, Code: "invalid_value"}},
		{"FastAPI's form of it", 422, `{"detail":[{"loc":["body","stream_options"],"msg":"extra fields not permitted"}]}`, refusal{Unbilled: true, NoUsageOption: true}},
		{"not in an echo of the request", 422, `{"detail":[{"loc":["body","model"],"msg":"no such model","input":{"stream_options":{"include_usage":true}}}]}`, refusal{Unbilled: true}},
		{"not under another status", 500, `{"error":{"message":"stream_options"}}`, refusal{}},
	} {
		require.Equal(t, c.want, meter.OpenAIChat.Refused(c.status, nil, []byte(c.body)), c.name)
	}
}

// I10: a code is a short word, or it is none.
func TestCodeIsAWord(t *testing.T) {
	for code, want := range map[string]string{
		`"rate_limit.v2:burst-1"`: "rate_limit.v2:burst-1", `429`: "429", `"` + strings.Repeat("x", 64) + `"`: strings.Repeat("x", 64),
		`"` + strings.Repeat("x", 65) + `"`: "", `"your purse"`: "", `"data/of/theirs"`: "", `"na\u00efve"`: "", `{"a":"b"}`: "",
	} {
		require.Equal(t, want, meter.OpenAIChat.Refused(429, nil, []byte(`{"error":{"code":`+code+`}}`)).Code, code)
	}
}

// Error bodies are whatever a stranger sends.
func TestRefusedDeep(t *testing.T) {
	for _, open := range []string{`[`, `{"error":`, `{"error":{"details":[{"violations":[`} {
		require.False(t, meter.OpenAIChat.Refused(400, nil, []byte(strings.Repeat(open, meter.MaxRefusalBytes/len(open)))).Unbilled)
	}
}
