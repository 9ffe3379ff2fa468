package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// teller says what the book and the guard warn of while a run is on. Each kind
// of warning is said the first time, and of errors only the first, since others
// come of it; how many there were is in the summary. It takes only what a
// record itself holds.
type teller struct {
	ui    *ui
	level slog.LevelVar
	told  sync.Map // what was said, by its text; all errors by ""
}

func (t *teller) Enabled(_ context.Context, l slog.Level) bool { return l >= t.level.Level() }

func (t *teller) Handle(_ context.Context, r slog.Record) error {
	kind := r.Message
	if r.Level >= slog.LevelError {
		kind = ""
	}
	if _, told := t.told.LoadOrStore(kind, true); told {
		return nil
	}
	text, sep := r.Message, ": "
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf("%s%s %v", sep, a.Key, a.Value)
		sep = ", "
		return true
	})
	t.ui.say("%s", text)
	return nil
}

func (t *teller) WithAttrs([]slog.Attr) slog.Handler { return t }
func (t *teller) WithGroup(string) slog.Handler      { return t }
