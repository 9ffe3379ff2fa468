// Package checkpoint runs many items once each and remembers which have ended,
// so that a run can be stopped at any moment and gone on with: after a pause no
// finished item is sent again, after a kill at most those that were in flight.
//
//	sum, err := checkpoint.Run(ctx, items, checkpoint.Options[Item]{Dir: "state", Key: Item.ID, Workers: 64},
//		func(ctx context.Context, it Item) error { … })
//	if errors.Is(err, checkpoint.ErrPaused) { … } // run it again later: finished items are skipped
//
// # When an item has ended
//
// An item has ended when one line that says so is durable: a line in one of the
// outputs, which the item's function returned, or else a mark in the state
// directory. Its worker takes no other item before. Nothing else decides: the
// cursors only spare a later run the reading of all lines.
//
// What the function returns says how the item ended:
//
//	nil                 done
//	Failed(err)         failed for good, never sent again
//	Dead(attempts, err) a dead letter, sent again only with Options.RetryDead
//	Later(at, err)      not ended: started again at that time, in this run
//	a pause             not ended: nothing is started any more, running items finish
//	any other error     failed in this run; the next run sends it again
//
// A pause is an error for which Options.IsPause is true, and wins over all
// others, so that an account without funds never makes its items fail for good.
//
// # What it holds
//
// A run needs three bits of memory an item, and, while it opens the state, 8
// bytes an item. The state directory holds the folder shards: manifest.json
// pins the input, NNN.json are the cursors, marks.jsonl the marks, LOCK keeps
// other runs out. Files of a state are for the run that made them; another
// input is refused.
//
// # Limits
//
// Two runs with different state directories must not share an output. The order
// of lines in an output is the order in which items ended. A time told by Later
// does not outlive the run, and after a kill an item that waited for one counts
// as in flight.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/tollbook/tollbook/journal/disk"
)

// Source is a list of items. At may be called concurrently, must return the
// same item for the same index every time, and should be cheap: Run reads all
// items once for their keys before it starts the first.
type Source[T any] interface {
	Len() int
	At(i int) (T, error)
}

// Options says how to run. Dir and Key must be given.
type Options[T any] struct {
	// Dir is the state directory. It is made if missing, and may hold other
	// files.
	Dir string
	// Key names an item: non-empty UTF-8, unlike all others, and the same in
	// every run.
	Key func(T) string
	// Shards is into how many shards a new state splits the items; 0 is 1, at
	// most 1000. A state keeps its number: on a resume this field is ignored,
	// and Summary.Shards tells.
	Shards int
	// Workers is how many items run at a time, over all shards; 0 is 16.
	Workers int
	// IsPause tells which errors of an item stop the run until later. Nil asks
	// the error: those that answer Pause() bool with true.
	IsPause func(error) bool
	// Why words an item's error, for marks.jsonl, which keeps the first 1,000
	// bytes, and for the text of the run's error. Nothing else of the error's
	// text enters there, because that of a provider may quote the prompt; the
	// run's error wraps it. Nil: no words. Where texts are known to be clean,
	// error.Error will do. It may be called concurrently.
	Why func(error) string
	// Outputs are the files that Line.Output counts, from 0. A state keeps
	// their number, order and base names.
	Outputs []Output
	// RetryDead sends dead letters again. One that does not end in this run,
	// or fails but not for good, stays a dead letter.
	RetryDead bool
	// Abort, when closed, cancels the context of running items, too. The
	// context of Run does not: its end only stops new items from starting,
	// because a call cut short may have been billed. To have it cancel running
	// items at once, give its Done channel here. Nil: nothing cancels them.
	Abort <-chan struct{}
	// Progress, if not nil, can be asked how far the run is.
	Progress *Progress
	// FS is the disk; nil is disk.OS().
	FS disk.FS
}

// Output is a file of lines, one for each item that ended in it. It is made
// with mode 0600 if missing; its directory must be there. Lines that are there
// already count, also for a new state, and must all be lines of items: only a
// last one that was cut short is taken out, and kept in the state directory.
type Output struct {
	Path string
	// Key reads back from a line, which is valid JSON without its newline, the
	// key of its item. It must be cheap: it is asked for every line before it
	// is written, too.
	Key func(line []byte) (string, error)
	// Failed: items with a line here have failed for good, else they are done.
	Failed bool
	// FailedLine tells the lines of items that have failed for good, in a file
	// that holds both kinds. Nil: Failed says it for all lines.
	FailedLine func(line []byte) bool
}

// Task is one item to work on.
type Task[T any] struct {
	Item  T
	Index int // in the source
	Key   string
	Shard int // from 0
	Start int // how often this run has started the item: 1, more after Later
}

// ShardName is the shard as a scope names it, such as "shard-3".
func (t Task[T]) ShardName() string { return fmt.Sprintf("shard-%d", t.Shard) }

// Line is what an item writes as its end; the zero Line is none. A line ends
// the item as its output says, whatever the function's error.
type Line struct {
	Output int    // index in Options.Outputs
	JSON   []byte // one JSON value, without newlines
}

// Summary is how a run ended.
type Summary struct {
	Counts
	Shards  int
	Repairs []Repair // what was found damaged when the state was opened, and healed
}

// Repair is a file of the state, or an output, that was put right.
type Repair struct{ Path, What string }

// Run is [RunTasks] for items in memory whose function writes no lines.
func Run[T any](ctx context.Context, items []T, o Options[T], do func(context.Context, T) error) (Summary, error) {
	return RunTasks(ctx, sliceSource[T](items), o, func(ctx context.Context, t Task[T]) (Line, error) {
		return Line{}, do(ctx, t.Item)
	})
}

type sliceSource[T any] []T

func (s sliceSource[T]) Len() int            { return len(s) }
func (s sliceSource[T]) At(i int) (T, error) { return s[i], nil }

// RunTasks calls do for every item that has not ended, Options.Workers at a
// time, the shards taking turns, and returns when all have ended or nothing more
// may start. The context given to do carries the values of ctx, but not its end.
//
// The error is nil if every item is done; else it is, in this order, what went
// wrong with the state or a file, [ErrInterrupted], [ErrPaused] or [ErrFailed].
// Before the first item starts it can also be [ErrInput], [ErrLocked],
// [ErrDamaged] or a [*DuplicateError]. The summary is valid with every error,
// zero if nothing was opened.
func RunTasks[T any](ctx context.Context, items Source[T], o Options[T], do func(context.Context, Task[T]) (Line, error)) (Summary, error) {
	if err := o.defaults(); err != nil {
		return Summary{}, err
	}
	keyOf := func(i int) (string, error) {
		item, err := items.At(i)
		if err != nil {
			return "", err
		}
		return o.Key(item), nil
	}
	state, err := openState(ctx, o.FS, o.Dir, o.Shards, o.Outputs, items.Len(), keyOf)
	if err != nil {
		return Summary{}, err
	}
	if o.RetryDead {
		state.retryDead()
	}
	r := &runner[T]{Options: o, items: items, do: do, queue: newQueue(state, o.Workers)}
	o.Progress.follow(r.queue)
	r.run(ctx)
	return r.queue.result(o.Why, errors.Join(state.save(true), state.close()))
}

func (o *Options[T]) defaults() error {
	if o.Dir == "" || o.Key == nil {
		return errors.New("checkpoint: Options.Dir and Options.Key must be given")
	}
	if o.Shards < 0 || o.Shards > 1000 || o.Workers < 0 {
		return fmt.Errorf("checkpoint: %d shards and %d workers asked; shards go from 1 to 1000, workers from 1", o.Shards, o.Workers)
	}
	names := []string{marksName}
	for _, out := range o.Outputs {
		name := filepath.Base(out.Path)
		if out.Path == "" || out.Key == nil || slices.Contains(names, name) {
			return fmt.Errorf("checkpoint: output %q needs a path, whose base name no other output has, and a Key", out.Path)
		}
		names = append(names, name)
	}
	if o.Shards == 0 {
		o.Shards = 1
	}
	if o.Workers == 0 {
		o.Workers = 16
	}
	if o.IsPause == nil {
		o.IsPause = asksPause
	}
	if o.Why == nil {
		o.Why = func(error) string { return "" }
	}
	if o.FS == nil {
		o.FS = disk.OS()
	}
	return nil
}

func (o Output) read(line []byte) (string, end, error) {
	key, err := o.Key(line)
	if o.Failed || o.FailedLine != nil && o.FailedLine(line) {
		return key, failed, err
	}
	return key, done, err
}
