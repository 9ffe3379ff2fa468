package main

// All printing is here, in print_*.go and in progress.go. The rules:
//
//   - Data goes to stdout and is the only thing there. Everything for people
//     goes to stderr.
//   - Lines on stderr begin with "tollbook: ", then a lower-case letter, and
//     end without a full stop. A hint has its own line and says what to try.
//   - Colours and live lines only on a terminal, and never with NO_COLOR, CI or
//     TERM=dumb.
//   - No prompt, no answer and no key is ever printed.

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// ui is where a command prints.
type ui struct {
	out  *sink
	live bool // stderr is a terminal that takes cursor movements

	mu  sync.Mutex
	err io.Writer
}

func newUI(out, err io.Writer) *ui {
	return &ui{out: &sink{w: out}, err: err, live: isLive(err, os.Getenv)}
}

// isLive reports whether w is a terminal and the environment does not ask for
// plain lines.
func isLive(w io.Writer, env func(string) string) bool {
	f, ok := w.(*os.File)
	if !ok || env("NO_COLOR") != "" || env("CI") != "" || env("TERM") == "dumb" {
		return false
	}
	width, _, err := term.GetSize(int(f.Fd())) // fails where there is no terminal
	return err == nil && width > 0
}

// say prints a line for people, or several. It may be called concurrently.
func (u *ui) say(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(u.err, "tollbook: %s\n", strings.ReplaceAll(text, "\n", "\ntollbook: "))
}

// hint prints what to try.
func (u *ui) hint(format string, args ...any) { u.say("hint: "+format, args...) }

// failure prints why a command failed, if there is something left to say.
func (u *ui) failure(err error) {
	if err == nil {
		return
	}
	var exit *exitError
	if !errors.As(err, &exit) || exit.Err != nil {
		u.say("%v", err)
	}
	switch {
	case exit != nil && exit.Hint != "":
		u.hint("%s", exit.Hint)
	case errors.Is(err, fs.ErrPermission):
		u.hint("run it as the user the files belong to")
	}
}

// line prints a line of data.
func (u *ui) line(format string, args ...any) {
	fmt.Fprintf(u.out, format+"\n", args...)
}

// data prints v as JSON, the only thing on stdout.
func (u *ui) data(v any) {
	enc := json.NewEncoder(u.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	u.out.note(enc.Encode(v))
}

// sink is stdout. It remembers the first failure, so that what prints need not
// look each time; the command fails at its end.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.note(err)
	return n, err
}

func (s *sink) note(err error) { s.err = cmp.Or(s.err, err) }
