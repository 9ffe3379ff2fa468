package main

// One exit code when several apply: 5, 1, 130, 3, 4. A command line that is
// refused exits 2.

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWorstExitCode(t *testing.T) {
	order := []int{exitBroken, exitFailed, exitInterrupted, exitPaused, exitPartly, exitDone}
	for i, code := range order {
		assert.Equal(t, code, worst(append([]int{exitDone}, order[i:]...)...), "%v", order[i:])
	}
	assert.Equal(t, exitDone, worst())
}

func TestExitCodeOfErrors(t *testing.T) {
	assert.Equal(t, exitDone, exitCode(nil))
	assert.Equal(t, exitFailed, exitCode(errors.New("disk full")))
	assert.Equal(t, exitUsage, exitCode(fmt.Errorf("run: %w", usageError("", "no budget"))))
}

func TestRefusedCommandLines(t *testing.T) {
	for _, args := range [][]string{{"banana"}, {"--banana"}, {"sim", "--banana"}, {"sim", "banana"}, {"sim", "--faults", "banana=1"}} {
		var out, err bytes.Buffer
		assert.Equal(t, exitUsage, tollbook(args, nil, &out, &err), "%q", args)
		assert.Empty(t, out.String())
		assert.Regexp(t, `^tollbook: [a-z].*banana.*\ntollbook: hint: `, err.String())
	}
}
