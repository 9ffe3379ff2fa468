package main

// Output lines have the shape of the Batch format and hold the answer as the
// provider wrote it.

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOutputLine(t *testing.T) {
	for name, c := range map[string]struct {
		line outputLine
		want string
		ok   bool
	}{
		"answer": {answered("a<1>", "req_1", 200, []byte("{\n \"n\": 12345678901234567890.10,\n \"t\": \"x<y\u2028\"\n}\n")),
			`{"id":"batch_req_1","custom_id":"a<1>","response":{"status_code":200,"request_id":"req_1","body":{"n":12345678901234567890.10,"t":"x<y` + "\u2028" + `"}},"error":null}`, true},
		"refusal of the provider": {answered("a", "", 400, []byte(`{"error":{"code":"x"}}`)),
			`{"id":"batch_req_1","custom_id":"a","response":{"status_code":400,"request_id":"","body":{"error":{"code":"x"}}},"error":null}`, false},
		"HTML page": {answered("a", "", 502, []byte("<h1>Bad\xff Gateway</h1>\n")),
			`{"id":"batch_req_1","custom_id":"a","response":{"status_code":502,"request_id":"","body":"<h1>Bad` + "\ufffd" + ` Gateway</h1>\n"},"error":null}`, false},
		"empty body": {answered("a", "", 200, nil),
			`{"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"request_id":"","body":""},"error":null}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.line.ID = "batch_req_1"
			got, err := c.line.encode()
			require.NoError(t, err)
			assert.Equal(t, c.want, string(got))
			assert.Equal(t, c.ok, c.line.ok())
		})
	}
}

// A recorded output file of the Batch API reads into our line and comes out
// the same, white space apart.
func TestOutputLineFollowsTheFormat(t *testing.T) {
	recorded, err := os.ReadFile("testdata/openai-batch-output.jsonl")
	require.NoError(t, err)
	for line := range bytes.Lines(recorded) {
		var l outputLine
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		require.NoError(t, dec.Decode(&l))
		got, err := l.encode()
		require.NoError(t, err)
		assert.JSONEq(t, string(line), string(got))
	}
}
