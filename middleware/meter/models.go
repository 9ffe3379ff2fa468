package meter

import (
	"slices"
	"strings"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// baseModel strips what gateways and fine-tuning put around a model's name:
// openai/gpt-4o:free, ft:gpt-4o-2024-08-06:org::id.
func baseModel(model string) string {
	model = strings.TrimPrefix(strings.TrimPrefix(model, "openai/"), "ft:")
	model, _, _ = strings.Cut(model, ":")
	return model
}

// frameOf picks the frame for a model, by the longest prefix.
func frameOf(model string) frame {
	name := baseModel(model)
	best, found := frame{perRequest: 256, perMessage: 8, perInput: 64, perTool: 16, anyTools: 1000, toolFactor: 2}, 0
	for _, f := range frames {
		if strings.HasPrefix(name, f.prefix) && len(f.prefix) > found {
			best, found = f.frame, len(f.prefix)
		}
	}
	return best
}

var (
	// Known to the cookbook: functions by its formula, 12 once, and 10 or 7 each.
	classic = frame{perRequest: 3, perMessage: 3, perTool: 10, anyTools: 12}
	omni    = frame{perRequest: 3, perMessage: 3, perTool: 7, anyTools: 12}
	// Later models of OpenAI: the same frame, functions as their JSON.
	later = frame{perRequest: 3, perMessage: 3, perTool: 16, anyTools: 64, toolFactor: 1}
)

var frames = []struct {
	prefix string
	frame
}{
	{"gpt-3.5", classic}, {"gpt-35", classic}, {"gpt-4", classic}, {"gpt-4o", omni}, {"chatgpt-4o", omni},
	{"gpt-4.1", later}, {"gpt-4.5", later}, {"gpt-5", later}, {"o1", later}, {"o3", later}, {"o4", later},
	{"text-embedding-", later}, {"davinci-002", later}, {"babbage-002", later},
}

// searches refuses a request that a model may answer which draws in more than
// the request: names are its own, beside those that the request lists.
func (r *request) searches(names ...string) error {
	if r.models.present() && r.models.kind() != '[' {
		return &BodyError{Reason: `"models" is not a list`}
	}
	for m := range r.models.elements() {
		if m.kind() != '"' {
			return &BodyError{Reason: `an element of "models" is not a name`}
		}
		names = append(names, m.str())
	}
	if i := slices.IndexFunc(names, searches); i >= 0 {
		return r.loops("model " + quotable(names[i]))
	}
	return nil
}

// searches reports whether a model searches the web of itself, or stands for
// more than a model: a preset of OpenRouter's holds a prompt.
func searches(model string) bool {
	name := model[strings.LastIndexByte(model, '/')+1:]
	return strings.HasSuffix(name, ":online") || strings.Contains(name, "-search-preview") || strings.Contains(name, "-search-api") ||
		strings.Contains(name, "deep-research") || strings.HasPrefix(name, "sonar") || strings.HasPrefix(name, "compound") ||
		strings.Contains(model, "@preset/")
}

// limits of a model, in tokens: of one answer, reasoning included, and of the
// prompt and the answer together.
type limits struct{ output, window int64 }

// maxOutput is the most that a model generates in one answer.
func maxOutput(model string) (tokens int64, known bool) {
	l, known := limitsOf(model)
	return l.output, known
}

// windowOf is the most that prompt and answer may have together; of a model that
// is not known, that no request reaches.
func windowOf(model string) int64 {
	if l, known := limitsOf(model); known {
		return l.window
	}
	return budget.MaxTokens
}

// limitsOf finds a model. A dated snapshot (-2024-08-06, -20240806, -0613) counts
// as its model; other longer names do not, because a later model of a family may
// generate more.
func limitsOf(model string) (l limits, known bool) {
	name := baseModel(model)
	l, known = models[name]
	for _, layout := range [...]string{"-2006-01-02", "-20060102", "-0102"} {
		at := max(len(name)-len(layout), 0)
		if _, err := time.Parse(layout, name[at:]); err == nil && !known {
			l, known = models[name[:at]]
		}
	}
	return l, known
}

// models holds the limits of common models, as models.dev lists them
// (github.com/anomalyco/models.dev, MIT, commit f3fc6922 of 2026-07-02); those
// of the plain completion models and chatgpt-4o-latest are from OpenAI's pages.
var models = map[string]limits{
	"gpt-3.5-turbo": {4_096, 16_385}, "gpt-35-turbo": {4_096, 16_385}, "gpt-3.5-turbo-instruct": {4_096, 4_096},
	"davinci-002": {16_384, 16_384}, "babbage-002": {16_384, 16_384},
	"gpt-4": {8_192, 8_192}, "gpt-4-turbo": {4_096, 128_000},
	"gpt-4o": {16_384, 128_000}, "gpt-4o-2024-05-13": {4_096, 128_000}, "gpt-4o-mini": {16_384, 128_000}, "chatgpt-4o-latest": {16_384, 128_000},
	"gpt-4.1": {32_768, 1_047_576}, "gpt-4.1-mini": {32_768, 1_047_576}, "gpt-4.1-nano": {32_768, 1_047_576},
	"o1": {100_000, 200_000}, "o3": {100_000, 200_000}, "o3-mini": {100_000, 200_000}, "o4-mini": {100_000, 200_000},
	"gpt-5": {128_000, 400_000}, "gpt-5-mini": {128_000, 400_000}, "gpt-5-nano": {128_000, 400_000}, "gpt-5-chat-latest": {128_000, 400_000},
	"gpt-5.1": {128_000, 400_000}, "gpt-5.2": {128_000, 400_000}, "gpt-5.4": {128_000, 1_050_000}, "gpt-5.4-mini": {128_000, 400_000},
	"gpt-5.4-nano": {128_000, 400_000}, "gpt-5.5": {128_000, 1_050_000},
	"gemini-2.0-flash": {8_192, 1_048_576}, "gemini-2.5-flash-lite": {65_536, 1_048_576}, "gemini-2.5-flash": {65_536, 1_048_576}, "gemini-2.5-pro": {65_536, 1_048_576},
	"claude-sonnet-4-5": {64_000, 200_000}, "claude-haiku-4-5": {64_000, 200_000}, "claude-sonnet-4-6": {64_000, 1_000_000},
	"claude-opus-4-5": {64_000, 200_000}, "claude-opus-4-6": {128_000, 1_000_000}, "claude-opus-4-7": {128_000, 1_000_000}, "claude-sonnet-5": {128_000, 1_000_000},
	"deepseek-chat": {384_000, 1_000_000}, "deepseek-reasoner": {384_000, 1_000_000},
}
