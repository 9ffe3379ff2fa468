package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/retry"
)

// execute opens the books and sends what is left to send.
func (o *runOptions) execute(ctx context.Context, ui *ui, in *input, p *provider, pin *pin, options []budget.Option) error {
	tell := &teller{ui: ui}
	tell.level.Set(slog.LevelError) // what the opening mends is in the summary
	log := slog.New(tell)
	defer o.unlock()
	book, err := o.open(ctx, pin, append(options, budget.Logger(log), budget.SoftLimits(ui.softLimit)))
	if err != nil {
		return err
	}
	tell.level.Set(slog.LevelWarn)
	drain, abort, release := interrupts(ctx, ui)
	defer release()

	j := &job{provider: p, apart: o.errors != "", attempts: o.attempts, progress: new(checkpoint.Progress), log: log, pace: &pacer{RPM: int64(o.rpm), TPM: int64(o.tpm)}, bounds: o.bounds()}
	j.halt, j.cancel = context.WithCancel(drain)
	defer j.cancel()
	guarding := []middleware.Option{
		middleware.Base(departures{p.connect}),
		middleware.Bounds(o.bounds()),
		middleware.Logger(log),
		middleware.MaxWait(24 * time.Hour), // open calls end, and a run that stops ends the wait
		middleware.Timeouts(o.timeout, o.timeout),
		middleware.Retry(retry.Policy{Attempts: o.attempts, Before: j.before}),
	}
	if o.capOutput > 0 {
		guarding = append(guarding, middleware.CapOutput(int64(o.capOutput)))
	}
	guard := middleware.Transport(book, guarding...)
	j.client = &http.Client{Transport: guard, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

	if p.key == "" && !o.sim {
		ui.say("no API key: %s is not set, so calls go without one", o.keyEnv)
	}
	ui.say("%s, %s, %s", count(int64(in.Len()), "item"), count(int64(o.workers), "worker"), capsText(book.Limits()))
	stop := ui.follow(in.Len(), func() snapshot { return look(j.progress, book) })
	sum, err := checkpoint.RunTasks(drain, in, checkpoint.Options[item]{
		Dir: o.state, Key: func(it item) string { return it.ID }, Shards: o.shards, Workers: o.workers, IsPause: isPause, Why: wording, RetryDead: o.retryDead,
		Outputs: o.outputs(), Abort: abort, Progress: j.progress,
	}, j.do)
	stop()
	guard.Wait()
	report := book.Report()
	end := conclude(sum, err, j.cause, &report)
	end.Sent, end.Requests = j.sent.Load(), j.requests.Load()
	if err := pin.sign(o.state, &report); err != nil {
		end.fail(err)
	}
	if err := book.Close(); err != nil {
		end.fail(fmt.Errorf("closing the book: %w", err))
	}
	return ui.conclusion(end, o)
}

// open takes the book, under whose lock the state is settled: it belongs to
// this input and provider from here on.
func (o *runOptions) open(ctx context.Context, pin *pin, options []budget.Option) (*budget.Book, error) {
	book, err := budget.Open(ctx, filepath.Join(o.state, "book"), options...)
	if err != nil {
		return nil, openError(o.state, err)
	}
	report := book.Report()
	have, err := readPin(o.state)
	if err == nil {
		err = o.lock(have == nil)
	}
	if err == nil { // another process may have been quicker
		err = errors.Join(pin.check(o.state), have.witness(o.state, &report))
	}
	if err == nil && have == nil && report.Requests > 0 {
		err = usageError(restorePin, "%s holds a book that is in use, but no run.json", o.state)
	}
	if err == nil { // also of limits that were changed just now, and of orphans
		err = pin.sign(o.state, &report)
	}
	if err != nil {
		return nil, errors.Join(err, book.Close())
	}
	return book, nil
}

// lock keeps other states from the outputs until this run ends. One that is
// missing is made only for a new state: for an old one it is lost.
func (o *runOptions) lock(fresh bool) error {
	for _, out := range o.outputs() {
		if _, err := os.Stat(out.Path); err != nil && !fresh {
			continue
		}
		l, err := disk.OS().Lock(out.Path, "")
		if _, held := errors.AsType[*disk.HeldError](err); held {
			return &exitError{Code: exitFailed, Err: fmt.Errorf("%s is in use by the run of another state", out.Path), Hint: "name another file with --out or --errors; nothing was sent"}
		}
		if err != nil {
			return err
		}
		o.locks = append(o.locks, l)
	}
	return nil
}

func (o *runOptions) unlock() {
	for _, l := range o.locks {
		l.Close()
	}
}

// openError says what to try when a book does not open.
func openError(state string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, journal.ErrLocked):
		hint = "one process at a time runs a state; tollbook status shows how far it is"
	case errors.Is(err, journal.ErrCorrupt):
		hint = repairHint(state)
	case errors.Is(err, journal.ErrFull):
		hint = "free space and run the same command again; nothing was sent"
	}
	if hint == "" {
		return err
	}
	return &exitError{Code: exitCode(err), Err: err, Hint: hint}
}

// outputs are the files of the lines: answers, and failures where they have a
// file of their own.
func (o *runOptions) outputs() []checkpoint.Output {
	if o.errors == "" {
		return []checkpoint.Output{{Path: o.out, Key: customID, FailedLine: isFailure}}
	}
	return []checkpoint.Output{{Path: o.out, Key: customID}, {Path: o.errors, Key: customID, Failed: true}}
}

// look is how far the run is now.
func look(progress *checkpoint.Progress, book *budget.Book) snapshot {
	report := book.Report()
	s := snapshot{Counts: progress.Counts(), Tokens: report.Tokens, Limit: -1}
	for _, l := range report.Limits {
		if l.Unit == budget.TokenUnit && l.Scope == "" && !l.Unlimited {
			s.Limit = l.Max
		}
	}
	return s
}
