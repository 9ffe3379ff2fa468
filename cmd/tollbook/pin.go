package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal/disk"
)

// pin is run.json: what a state directory was begun with and belongs to for
// ever, and what its last run left in the book. It holds no secret.
type pin struct {
	Version  int    `json:"version"`
	Input    string `json:"input"` // SHA-256 of the file
	Items    int    `json:"items"`
	Provider string `json:"provider"`         // base URL, or "sim"
	Out      string `json:"out"`              // relative to the state directory
	Errors   string `json:"errors,omitempty"` // the same; empty if the lines go to Out

	// A witness against a book that lost entries: Confirmed and Seq only grow.
	Book      string `json:"book"`      // its id
	Confirmed int64  `json:"confirmed"` // tokens
	Seq       uint64 `json:"seq"`       // of its last entry
}

const pinVersion = 1

func pinPath(state string) string { return filepath.Join(state, "run.json") }

// restorePin is what helps where run.json is lost. Another state would not
// know what was spent and answered.
const restorePin = "restore run.json from a copy: without it nobody knows which input the state belongs to, and a new state sends every item again"

// readPin returns the pin of a state directory; nil if there is none.
func readPin(state string) (*pin, error) {
	text, err := os.ReadFile(pinPath(state))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var p pin
	if err = json.Unmarshal(text, &p); err == nil && p.Version < 1 {
		err = errors.New("it names no version")
	}
	if err != nil {
		return nil, &exitError{Code: exitFailed, Err: fmt.Errorf("%s is damaged: %w", pinPath(state), err), Hint: restorePin}
	}
	if p.Version != pinVersion {
		return nil, &exitError{Code: exitFailed, Err: fmt.Errorf("%s has version %d, this program knows %d", pinPath(state), p.Version, pinVersion),
			Hint: "use the version of tollbook that wrote it"}
	}
	return &p, nil
}

// write makes the pin durable.
func (p *pin) write(state string) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return disk.Replace(disk.OS(), pinPath(state), append(text, '\n'))
}

// sign sets down what stands in the book.
func (p *pin) sign(state string, r *budget.Report) error {
	p.Book, p.Confirmed, p.Seq = r.Book, r.Tokens.Confirmed, r.Seq
	return p.write(state)
}

// witness holds a book against what run.json, if there is one, says of it. As
// a run may be on, run.json must have been read first.
func (p *pin) witness(state string, r *budget.Report) error {
	var err error
	hint := "restore the book from a copy; without it nobody knows what was spent"
	goOn := fmt.Sprintf("; tollbook repair %s goes on from what is left", state)
	switch path := pinPath(state); {
	case p == nil:
		return nil
	case r.Book == "":
		err = fmt.Errorf("%s is there, but its book is missing or empty", path)
	case r.Book != p.Book:
		err = fmt.Errorf("%s is of book %s, and the book there is %s", path, p.Book, r.Book)
	case r.Tokens.Confirmed < p.Confirmed:
		err = fmt.Errorf("%s saw %s, and the book holds %s: entries of it are lost", path, count(p.Confirmed, "confirmed token"), group(r.Tokens.Confirmed))
		hint += goOn
	case r.Seq < p.Seq:
		err = fmt.Errorf("%s saw entry %d, and the last in the book is %d: entries of it are lost", path, p.Seq, r.Seq)
		hint += goOn
	default:
		return nil
	}
	return &exitError{Code: exitBroken, Err: err, Hint: hint}
}

// check tells whether a run may go on with this state, without touching
// anything: the state must be empty, or have been begun with the same pin.
func (p *pin) check(state string) error {
	have, err := readPin(state)
	if err != nil {
		return err
	}
	if have == nil {
		return p.checkNew(state)
	}
	var differ []string
	if have.Input != p.Input {
		differ = append(differ, fmt.Sprintf("its input is another file, or was changed (items then: %d, now: %d)", have.Items, p.Items))
	}
	for _, f := range [...]struct{ name, have, want string }{
		{"provider", have.Provider, p.Provider}, {"--out", have.Out, p.Out}, {"--errors", have.Errors, p.Errors},
	} {
		if f.have != f.want {
			differ = append(differ, fmt.Sprintf("its %s is %s, not %s", f.name, quote(f.have), quote(f.want)))
		}
	}
	if differ == nil {
		return nil
	}
	return usageError("name another directory with --state; nothing was touched",
		"%s was begun otherwise: %s", state, strings.Join(differ, "; "))
}

// checkNew refuses to begin in a directory that holds something else, and to
// add to an output of another run, whose lines would count as done.
func (p *pin) checkNew(state string) error {
	entries, err := os.ReadDir(state)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		// A run that died before it wrote run.json left no more than a book and empty outputs.
		if name := e.Name(); name != "book" && name != p.Out && name != p.Errors && !strings.HasSuffix(name, disk.TempSuffix) {
			if name == "shards" {
				return usageError(restorePin, "%s is the state of a run, and its run.json is missing", state)
			}
			return usageError("name another directory with --state", "%s holds %s but no run.json: it is no state directory", state, quote(name))
		}
	}
	for _, f := range [...]struct{ flag, out string }{{"--out", p.Out}, {"--errors", p.Errors}} {
		if f.out == "" {
			continue
		}
		path := fromState(state, f.out)
		dir := filepath.Dir(path)
		if first, _, _ := strings.Cut(f.out, "/"); slices.Contains([]string{"book", "shards", "run.json"}, first) {
			return usageError("", "%s %s: the state keeps files of its own there", f.flag, path)
		}
		if dir != filepath.Clean(state) && !isDir(dir) {
			return usageError("make it first, or name another file", "%s %s: the directory %s does not exist", f.flag, path, dir)
		}
		if stat, err := os.Stat(path); err == nil && stat.Size() > 0 {
			return usageError("move it away, or name another file with --out or --errors", "%s exists already and belongs to another run", path)
		}
	}
	return nil
}

// checkOutput refuses what cannot keep lines.
func checkOutput(flag, path string) error {
	_, linkErr := os.Lstat(path)
	stat, err := os.Stat(path)
	what := ""
	switch {
	case path == "-":
		what = "lines go to a file, which a later run reads"
	case err == nil && !stat.Mode().IsRegular():
		what = "it is not a regular file"
	case err != nil && linkErr == nil:
		what = "it is a link to nothing"
	default:
		return nil
	}
	return usageError("name a file", "%s %s: %s", flag, path, what)
}

// toState makes a path relative to the state directory, so that the two can be
// moved together. Where that cannot be said, it is absolute.
func toState(state, path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	base, err := filepath.Abs(state)
	if err != nil {
		return "", err
	}
	if relative, err := filepath.Rel(base, absolute); err == nil {
		return filepath.ToSlash(relative), nil
	}
	return absolute, nil
}

// fromState is the reverse of toState.
func fromState(state, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(state, filepath.FromSlash(path))
}
