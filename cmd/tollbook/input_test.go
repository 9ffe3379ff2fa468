package main

// A Batch input is checked from end to end before the first call; every fault
// is named by its line, and what is read back is what was checked.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// request is a good line of input; edit may spoil it.
func request(id string, edit ...string) string {
	line := `{"custom_id": "` + id + `", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}}`
	return strings.NewReplacer(edit...).Replace(line)
}

func writeInput(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestInputFaults(t *testing.T) {
	a := request("a") + "\n"
	for name, c := range map[string]struct{ content, want string }{
		"empty file":        {"", "holds no requests"},
		"blank lines only":  {"\n \r\n\n", "holds no requests"},
		"gzip":              {"\x1f\x8b\x08", "is compressed with gzip; unpack it first"},
		"half a character":  {request(`\ud83d`), "line 1: custom_id holds half a character, a surrogate without its other half"},
		"cut JSON":          {a + request("b")[:40] + "\n" + request("c"), `line 2: it is not JSON: unexpected end of JSON input, at byte 40 of 40`},
		"bad JSON":          {a + request("b", `"method"`, "method"), "line 2: it is not JSON: invalid character 'm' looking for beginning of object key string, at byte 20 of"},
		"two on one line":   {request("a") + request("b"), "line 1: it is not JSON: invalid character '{' after top-level value"},
		"not an object":     {`["custom_id"]`, "line 1: it is JSON but not an object"},
		"null":              {"null", "line 1: it is JSON but not an object"},
		"not UTF-8":         {request("a", "Hello", "\xff\xfe"), "line 1: it is not UTF-8 text"},
		"no id":             {request("a", "custom_id", "customid"), "line 1: custom_id is missing"},
		"id in capitals":    {request("a", "custom_id", "Custom_ID"), "line 1: custom_id is missing"},
		"null id":           {request("a", `"a"`, "null"), "line 1: custom_id is missing"},
		"number id":         {request("a", `"a"`, "7"), "line 1: custom_id is not a string"},
		"empty id":          {request(""), "line 1: custom_id is empty"},
		"long id":           {request(strings.Repeat("x", 257)), "line 1: custom_id is 257 bytes long, at most 256 are possible"},
		"control in id":     {request(`a\u0000`), `line 1: custom_id "a\x00" holds a control character`},
		"no method":         {request("a", `"method": "POST", `, ""), "line 1: method is missing"},
		"GET":               {request("a", "POST", "GET"), `line 1: method is "GET", expected "POST"`},
		"no url":            {request("a", `"url": "/v1/chat/completions", `, ""), "line 1: url is missing"},
		"unknown url":       {request("a", "chat/completions", "responses"), `line 1: url is "/v1/responses", expected one that can be metered: /v1/chat/completions, /v1/completions, /v1/embeddings`},
		"full url":          {request("a", "/v1/chat", "https://api.openai.com/v1/chat"), "line 1: url is "},
		"no body":           {`{"custom_id":"a","method":"POST","url":"/v1/embeddings"}`, "line 1: body is missing"},
		"body text":         {`{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":"x"}`, "line 1: body is not a JSON object"},
		"body null":         {`{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":null}`, "line 1: body is not a JSON object"},
		"no model":          {request("a", `"model": "gpt-4o-mini", `, ""), "line 1: body: model is missing"},
		"long model":        {request("a", "gpt-4o-mini", strings.Repeat("x", 257)), "line 1: body: model is 257 bytes long, at most 256 are possible"},
		"control in model":  {a + request("b", "gpt-4o-mini", `gpt\u0007`), `line 2: body: model "gpt\a" holds a control character`},
		"stream text":       {request("a", `"model"`, `"stream": "yes", "model"`), "line 1: body: stream is neither true nor false"},
		"duplicate":         {a + request("b") + "\n\n" + a, `line 4: custom_id "a" is on line 1 already`},
		"escaped duplicate": {a + request(`\u0061`), `line 2: custom_id "a" is on line 1 already`},
		"many faults":       {strings.Repeat("{\n", 25), "\nand 15 more"},
		"fault after dup":   {a + a + "{", "line 3: it is not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openInput(writeInput(t, c.content))
			assert.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "Hello", "what the body holds stays out of errors")
		})
	}
}

func TestInputThatIsNoFile(t *testing.T) {
	_, err := openInput(filepath.Join(t.TempDir(), "missing.jsonl"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = openInput(t.TempDir())
	assert.ErrorContains(t, err, "not a regular file")
}

func TestInputLongLine(t *testing.T) {
	path := writeInput(t, request("a", "Hello", strings.Repeat("x", maxLine))+"\n"+request("b")+"\n{")
	_, err := openInput(path)
	assert.ErrorContains(t, err, "line 1: the line is longer than 64 MiB")
	assert.ErrorContains(t, err, "line 3: it is not JSON", "reading goes on behind the long line")

	in, err := openInput(writeInput(t, request("a", "Hello", strings.Repeat("x", 3<<20))+"\n"+request("b")))
	require.NoError(t, err, "a line larger than the read buffer")
	defer in.Close()
	it, err := in.At(1)
	require.NoError(t, err)
	assert.Equal(t, "b", it.ID)
}

func TestInputRandomAccess(t *testing.T) {
	// Byte order mark, CRLF, blank lines, spaces, a last line without newline.
	path := writeInput(t, "\ufeff"+request("a")+"\r\n\r\n  "+request("b", "/v1/chat/completions", "/v1/embeddings")+" \n"+
		request("c", `"model"`, `"stream":true,"model"`))
	in, err := openInput(path)
	require.NoError(t, err)
	defer in.Close()
	require.Equal(t, 3, in.Len())
	for _, i := range []int{2, 0, 1, 0} {
		it, err := in.At(i)
		require.NoError(t, err)
		assert.Equal(t, string(rune('a'+i)), it.ID)
		assert.Equal(t, "gpt-4o-mini", it.Model)
		assert.Equal(t, i == 2, it.Stream)
		assert.Equal(t, map[bool]string{true: "/v1/embeddings", false: "/v1/chat/completions"}[i == 1], it.URL)
	}

	assert.Equal(t, path+": line 1", in.where(0))
	assert.Equal(t, path+": line 3", in.where(1))
	assert.Equal(t, path+": line 4", in.where(2))

	require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
	_, err = in.At(0)
	assert.ErrorContains(t, err, "changed while the run was reading it")
}

func TestInputFingerprint(t *testing.T) {
	one, err := openInput(writeInput(t, request("a")+"\n"))
	require.NoError(t, err)
	defer one.Close()
	same, err := openInput(writeInput(t, request("a")+"\n"))
	require.NoError(t, err)
	defer same.Close()
	other, err := openInput(writeInput(t, request("a", "Hello", "Hallo")+"\n"))
	require.NoError(t, err)
	defer other.Close()
	assert.Equal(t, one.Fingerprint, same.Fingerprint)
	assert.NotEqual(t, one.Fingerprint, other.Fingerprint)
}

// A real file of another tool's tests that ends in an empty line.
func TestInputForeignFixture(t *testing.T) {
	in, err := openInput("testdata/litellm-batch-small.jsonl")
	require.NoError(t, err)
	defer in.Close()
	assert.Equal(t, 3, in.Len())
}

// At most 16 bytes an item stay in memory.
func TestInputMemory(t *testing.T) {
	const items = 20_000
	var b bytes.Buffer
	for i := range items {
		b.WriteString(request(fmt.Sprintf("item-%d", i)))
		b.WriteByte('\n')
	}
	path := writeInput(t, b.String())
	b = bytes.Buffer{}
	before := heap()
	in, err := openInput(path)
	require.NoError(t, err)
	defer in.Close()
	assert.LessOrEqual(t, heap()-before, int64(items*16))
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkOpenInput(b *testing.B) {
	var lines bytes.Buffer
	for i := range 10_000 {
		lines.WriteString(request(fmt.Sprintf("item-%d", i), "Hello", strings.Repeat("Hello there. ", 80)))
		lines.WriteByte('\n')
	}
	path := filepath.Join(b.TempDir(), "in.jsonl")
	require.NoError(b, os.WriteFile(path, lines.Bytes(), 0o600))
	b.SetBytes(int64(lines.Len()))
	for b.Loop() {
		in, err := openInput(path)
		require.NoError(b, err)
		in.Close()
	}
}
