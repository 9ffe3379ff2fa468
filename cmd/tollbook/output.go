package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// A line of Batch output. An answer of any status is a response; an error says
// why there is none. Exactly one of the two is set.
type outputLine struct {
	ID       string          `json:"id"`
	CustomID string          `json:"custom_id"`
	Response *outputResponse `json:"response"`
	Error    *outputError    `json:"error"`
}

type outputResponse struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

// outputError is never written: an item without an answer is sent again.
type outputError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// answered is the output line for an answer of the provider. A body that is not
// JSON, such as a proxy's HTML page, becomes a JSON string.
func answered(customID, requestID string, status int, body []byte) outputLine {
	if !json.Valid(body) || !utf8.Valid(body) {
		body, _ = marshal(string(bytes.ToValidUTF8(body, []byte("\ufffd"))))
	}
	return outputLine{CustomID: customID, Response: &outputResponse{StatusCode: status, RequestID: requestID, Body: body}}
}

// ok reports whether the item was done: an answer with a status of success.
func (l *outputLine) ok() bool {
	return l.Response != nil && l.Response.StatusCode >= 200 && l.Response.StatusCode < 300
}

// encode writes the line, without its newline. A body that spans lines is
// compacted; its figures and texts stay as the provider wrote them.
func (l *outputLine) encode() ([]byte, error) { return marshal(l) }

// batchID is the id of an output line: the reservation's own, so that an
// answer leads to its entries in the book.
func batchID(rid string) string {
	if rid == "" {
		rid = uuid.NewString()
	}
	return "batch_req_" + strings.ReplaceAll(rid, "-", "")
}

// customID reads back whose line an output line is.
func customID(line []byte) (string, error) {
	var l struct {
		CustomID string `json:"custom_id"`
	}
	err := json.Unmarshal(line, &l)
	return l.CustomID, err
}

// isFailure tells the lines of items that failed for good.
func isFailure(line []byte) bool {
	var l outputLine
	return json.Unmarshal(line, &l) != nil || !l.ok()
}

// marshal is json.Marshal without escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}
