package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds a custom_id and a model in bytes: both stand in the book.
const maxName = 256

// urls are the endpoints whose calls can be metered.
var urls = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}

// item is one request of a Batch input file.
type item struct {
	ID     string // custom_id
	URL    string // with the leading /v1
	Model  string
	Stream bool            // the body asks for a stream
	Body   json.RawMessage // as it stands in the file
}

// parseItem checks one line. Errors quote names, never what is in the body.
func parseItem(line []byte) (item, error) {
	if !utf8.Valid(line) {
		return item{}, errors.New("it is not UTF-8 text")
	}
	// A map, because decoding into a struct would also take "Custom_ID".
	var fields map[string]json.RawMessage
	if err := unmarshal(line, &fields); err != nil {
		return item{}, err
	}
	var it item
	var method string
	for _, f := range [...]struct {
		name string
		to   *string
	}{{"custom_id", &it.ID}, {"method", &method}, {"url", &it.URL}} {
		if err := stringField(fields, f.name, f.to); err != nil {
			return item{}, err
		}
	}
	switch {
	case method != "POST":
		return item{}, fmt.Errorf("method is %s, expected \"POST\"", quote(method))
	case !slices.Contains(urls, it.URL):
		return item{}, fmt.Errorf("url is %s, expected one that can be metered: %s", quote(it.URL), strings.Join(urls, ", "))
	case fields["body"] == nil:
		return item{}, errors.New("body is missing")
	}
	it.Body = fields["body"]
	if it.Body[0] != '{' {
		return item{}, errors.New("body is not a JSON object")
	}
	var body map[string]json.RawMessage
	if err := unmarshal(it.Body, &body); err != nil {
		return item{}, err
	}
	if err := stringField(body, "model", &it.Model); err != nil {
		return item{}, fmt.Errorf("body: %w", err)
	}
	switch stream := string(body["stream"]); stream {
	case "", "false", "null":
	case "true":
		it.Stream = true
	default:
		return item{}, errors.New("body: stream is neither true nor false")
	}
	return it, nil
}

// unmarshal says in its errors where the text stops being a JSON object.
func unmarshal(text []byte, to *map[string]json.RawMessage) error {
	err := json.Unmarshal(text, to)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("it is not JSON: %v, at byte %d of %d", syntax, syntax.Offset, len(text))
	case err != nil || *to == nil:
		return errors.New("it is JSON but not an object")
	}
	return nil
}

// stringField reads a string that must be there and be fit for the book.
func stringField(fields map[string]json.RawMessage, name string, to *string) error {
	raw, ok := fields[name]
	switch {
	case !ok || string(raw) == "null":
		return fmt.Errorf("%s is missing", name)
	case json.Unmarshal(raw, to) != nil:
		return fmt.Errorf("%s is not a string", name)
	case *to == "":
		return fmt.Errorf("%s is empty", name)
	case len(*to) > maxName:
		return fmt.Errorf("%s is %d bytes long, at most %d are possible", name, len(*to), maxName)
	case strings.Count(*to, "\ufffd") > bytes.Count(raw, []byte("\ufffd"))+bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`)):
		return fmt.Errorf("%s holds half a character, a surrogate without its other half", name)
	case strings.ContainsFunc(*to, unicode.IsControl):
		return fmt.Errorf("%s %s holds a control character", name, quote(*to))
	}
	return nil
}

// quote makes a name from the input printable and short.
func quote(name string) string {
	const most = 80
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q…", strings.ToValidUTF8(name[:most], ""))
}
