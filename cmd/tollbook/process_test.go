package main

// A run beside others: ctrl-c, a second process on the same state, readers
// while it works.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/middleware/providertest"
)

// process is this test binary run as tollbook.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr *bufio.Reader
	said   strings.Builder // what was read of stderr
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(self, args...)}
	p.cmd.Args[0] = "tollbook" // which testscript.Main runs by name
	p.cmd.Stdout = &p.stdout
	pipe, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	p.stderr = bufio.NewReader(pipe)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// says reads stderr up to the line that holds text.
func (p *process) says(text string) {
	p.t.Helper()
	for {
		line, err := p.stderr.ReadString('\n')
		p.said.WriteString(line)
		require.NoError(p.t, err, "it never said %q, but:\n%s", text, &p.said)
		if strings.Contains(line, text) {
			return
		}
	}
}

func (p *process) interrupt() { p.signal(os.Interrupt) }

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// exit waits for the end and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	_, err := io.Copy(&p.said, p.stderr)
	require.NoError(p.t, err)
	err = p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(p.t, err)
	return 0
}

// summary is what run --json printed.
func (p *process) summary() (end runJSON) {
	p.t.Helper()
	require.NoError(p.t, json.Unmarshal(p.stdout.Bytes(), &end), p.stdout.String())
	return end
}

// batch is ten items, and a provider that takes some time over each.
func batch(t *testing.T, latency time.Duration) (provider *providertest.Provider, args []string) {
	t.Helper()
	dir := t.TempDir()
	var lines strings.Builder
	for id := 'a'; id < 'k'; id++ {
		lines.WriteString(request(string(id), "Hello", "Hello "+string(id), `"messages"`, `"max_tokens": 20, "messages"`) + "\n")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in.jsonl"), []byte(lines.String()), 0o600))
	provider = providertest.New(providertest.Options{Latency: latency})
	server := providertest.NewServer(t, provider)
	return provider, []string{"run", filepath.Join(dir, "in.jsonl"), "--json", "--budget", "1M", "--workers", "3", "--base-url", server.URL + "/v1"}
}

// arrived waits until n calls have reached the provider.
func arrived(t *testing.T, p *providertest.Provider, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return p.Seen().Requests >= n }, 20*time.Second, time.Millisecond)
}

func TestInterruptDrains(t *testing.T) {
	provider, args := batch(t, 200*time.Millisecond)
	run := start(t, args...)
	arrived(t, provider, 3)
	run.interrupt()
	assert.Equal(t, exitInterrupted, run.exit())
	end := run.summary()
	assert.Equal(t, "interrupted", end.State)
	assert.Equal(t, int64(end.Done), end.Sent, "what was in flight has finished")
	assert.Positive(t, end.Pending)
	assert.Zero(t, end.Open)
	assert.Zero(t, end.Assumed)
	assert.Contains(t, run.said.String(), "tollbook: hint: run the same command again to go on")

	run = start(t, args...)
	assert.Equal(t, exitDone, run.exit())
	assert.Equal(t, 10, run.summary().Done)
	assert.Zero(t, provider.Seen().FullAgain, "no finished item was sent again")
}

// A terminal that goes away is a stop like others.
func TestHangUpDrains(t *testing.T) {
	provider, args := batch(t, 200*time.Millisecond)
	run := start(t, args...)
	arrived(t, provider, 3)
	run.signal(syscall.SIGHUP)
	assert.Equal(t, exitInterrupted, run.exit())
	assert.Zero(t, run.summary().Open)
}

func TestSecondInterruptStopsAtOnce(t *testing.T) {
	provider, args := batch(t, time.Hour)
	run := start(t, args...)
	arrived(t, provider, 3)

	// Meanwhile: a second run is told who holds the state, and changes nothing.
	second := start(t, args...)
	assert.Equal(t, exitFailed, second.exit())
	assert.Contains(t, second.said.String(), "is in use by process ")
	assert.Equal(t, int64(3), provider.Seen().Requests)
	// Another state does not write to the same output, though nothing is in it yet.
	third := start(t, append(args, "--state", filepath.Join(t.TempDir(), "third"), "--out", strings.TrimSuffix(args[1], ".jsonl")+".out.jsonl")...)
	assert.Equal(t, exitFailed, third.exit())
	assert.Contains(t, third.said.String(), "in.out.jsonl is in use by the run of another state")
	assert.Equal(t, int64(3), provider.Seen().Requests)
	// And readers read.
	state := strings.TrimSuffix(args[1], ".jsonl") + ".state"
	for _, read := range [][]string{{"status", state}, {"verify", state}, {"replay", state}, {"show", state, "a"}} {
		p := start(t, read...)
		assert.Equal(t, exitDone, p.exit(), "%s: %s%s", read[0], &p.stdout, &p.said)
	}

	run.interrupt()
	run.says("tollbook: stopping: ")
	run.interrupt()
	assert.Equal(t, exitInterrupted, run.exit())
	end := run.summary()
	assert.Equal(t, "interrupted", end.State)
	assert.Equal(t, 10, end.Pending)
	assert.Zero(t, end.Held, "nothing is left open")
	assert.Equal(t, end.Net, end.Assumed, "calls that were cut may have been billed")
	assert.GreaterOrEqual(t, end.Net, provider.Bill().TotalTokens)
}
