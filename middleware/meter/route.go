package meter

import (
	"net/http"
	"strings"
)

// Route gives the requests of one method and path their meter.
type Route struct {
	Method string // empty is POST
	// Path is a whole number of trailing path segments, such as
	// "chat/completions"; "*" is any one segment, "*:verb" one that ends so.
	Path  string
	Meter Meter // nil: the path is free
}

// For returns the meter of a request, nil for one that is free. A request that
// may spend and has no meter is a [*PathError]: an unguarded path would be a
// hole in the budget. The caller's routes go before the built-in ones, the
// first that fits wins.
func For(r *http.Request, own ...Route) (Meter, error) {
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	for _, route := range own {
		if route.method() == r.Method && tail(segments, route.Path) >= 0 {
			return route.Meter, nil
		}
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, "":
		// A websocket begins as a GET, and then spends out of sight.
		if r.Header.Get("Upgrade") == "" {
			return nil, nil
		}
	case http.MethodDelete:
		return nil, nil
	case http.MethodPost:
		for _, route := range metered {
			if tail(segments, route.Path) >= 0 {
				return route.Meter, nil
			}
		}
		for _, path := range free {
			if i := tail(segments, path); i >= 0 && isBase(segments[:i]) {
				return nil, nil
			}
		}
	}
	return nil, &PathError{Method: r.Method, Path: r.URL.Path}
}

func (r Route) method() string {
	if r.Method == "" {
		return http.MethodPost
	}
	return r.Method
}

// metered holds the built-in formats. Each fits under any base path: metering
// is safe wherever it matches. A path goes before one that is its tail.
var metered = []Route{
	{Path: "chat/completions", Meter: OpenAIChat},
	{Path: "completions", Meter: OpenAICompletions},
	{Path: "embeddings", Meter: OpenAIEmbeddings},
	{Path: "v1/messages", Meter: AnthropicMessages},
	{Path: "*:generateContent", Meter: GeminiGenerate},
	{Path: "*:streamGenerateContent", Meter: GeminiStream},
}

// free holds the POSTs that are known to spend nothing. They must stand right
// behind a base path, because the same words deeper down may spend:
// vector_stores/*/files embeds what files merely stores.
var free = []string{
	"moderations",
	"responses/input_tokens", "messages/count_tokens", "models/*:countTokens",
	"files", "uploads", "uploads/*/parts", "uploads/*/complete",
	"assistants", "assistants/*", "threads", "threads/*/messages", "threads/*/messages/*",
	"responses/*/cancel", "batches/*/cancel", "messages/batches/*/cancel", "uploads/*/cancel",
	"threads/*/runs/*/cancel", "fine_tuning/jobs/*/cancel",
}

// tail returns the index where pattern begins at the end of segments, or -1.
func tail(segments []string, pattern string) int {
	want := strings.Split(strings.Trim(pattern, "/"), "/")
	first := len(segments) - len(want)
	if first < 0 {
		return -1
	}
	for i, w := range want {
		got := segments[first+i]
		if ending, any := strings.CutPrefix(w, "*"); got == "" || any && !strings.HasSuffix(got, ending) || !any && w != got {
			return -1
		}
	}
	return first
}

// isBase reports whether segments can be the base path of an API: nothing, or
// ending in a version such as v1 or v1beta, or in openai.
func isBase(segments []string) bool {
	if len(segments) == 0 {
		return true
	}
	last := segments[len(segments)-1]
	return last == "openai" || (len(last) >= 2 && last[0] == 'v' && last[1] >= '0' && last[1] <= '9')
}
