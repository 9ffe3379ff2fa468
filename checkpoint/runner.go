package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// runner is one run.
type runner[T any] struct {
	Options[T]
	items Source[T]
	do    func(context.Context, Task[T]) (Line, error)
	queue *queue
}

// run returns when every worker has.
func (r *runner[T]) run(ctx context.Context) {
	running, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	var workers, helpers sync.WaitGroup
	over := make(chan struct{})
	helpers.Go(func() { r.watch(ctx, abort, over) })
	helpers.Go(func() {
		if err := r.queue.keepSaving(over); err != nil {
			r.queue.stopBroken(err)
		}
	})
	for range min(r.Workers, r.queue.count[0]) {
		workers.Go(func() { r.work(running) })
	}
	workers.Wait()
	close(over)
	helpers.Wait()
}

// watch stops the run when the context ends or Abort is closed.
func (r *runner[T]) watch(ctx context.Context, abort func(), over <-chan struct{}) {
	stop := func() { r.queue.stop(func() { r.queue.cut = interrupted(ctx) }) }
	select {
	case <-over:
		return
	case <-ctx.Done():
		stop()
	case <-r.Abort:
		stop()
		abort()
		return
	}
	select {
	case <-over:
	case <-r.Abort:
		abort()
	}
}

func (r *runner[T]) work(ctx context.Context) {
	for {
		s, ok := r.queue.take()
		if !ok {
			return
		}
		r.one(ctx, s)
	}
}

// one runs one item to its end and gives the worker back.
func (r *runner[T]) one(ctx context.Context, s start) {
	defer r.queue.release()
	item, err := r.items.At(s.item)
	if err != nil {
		r.queue.stopBroken(fmt.Errorf("checkpoint: item %d cannot be read: %w", s.item, err))
		return
	}
	t := Task[T]{Item: item, Index: s.item, Key: r.Key(item), Shard: s.item % len(r.queue.shards), Start: s.nth}
	line, err := r.call(ctx, t)
	pause := err != nil && r.IsPause(err)
	if pause {
		r.queue.stopPaused(err)
	}
	final, _ := errors.AsType[*finalError](err)
	aborted := ctx.Err() != nil
	switch at := retryAt(err); {
	case len(line.JSON) > 0:
		if err != nil && !pause {
			r.queue.note(err)
		}
		r.write(t, line)
	case pause:
	case err == nil:
		r.mark(t, done, 0, "")
	case aborted && (final == nil || errors.Is(err, context.Canceled)):
		// Cut short by us: pending, even where the function calls it final.
	case final != nil:
		r.queue.note(err)
		r.mark(t, final.end, final.attempts, r.Why(err))
	case !at.IsZero() && s.nth < maxStarts:
		r.queue.park(s, at)
	default:
		r.queue.giveUp(s.item, err)
	}
}

// call stops the run if do ends the goroutine, as the FailNow of a test does:
// the worker is lost, and with the last one nobody would go on.
func (r *runner[T]) call(ctx context.Context, t Task[T]) (Line, error) {
	returned := false
	defer func() {
		if !returned {
			r.queue.stop(func() { r.queue.cut = fmt.Errorf("%w: the function of item %q did not return", ErrInterrupted, t.Key) })
		}
	}()
	line, err := r.do(ctx, t)
	returned = true
	return line, err
}

// write makes the item's line durable. A line that a resume could not read
// back would have its item sent again, so it is tried before.
func (r *runner[T]) write(t Task[T], line Line) {
	if err := r.check(t, line); err != nil {
		r.queue.stopBroken(err)
		return
	}
	_, e, _ := r.Outputs[line.Output].read(line.JSON) // checked: no error
	r.append(line.Output, line.JSON, ending{t.Index, e})
}

func (r *runner[T]) check(t Task[T], line Line) error {
	if line.Output < 0 || line.Output >= len(r.Outputs) {
		return fmt.Errorf("checkpoint: item %q wrote to output %d of %d", t.Key, line.Output, len(r.Outputs))
	}
	out := r.Outputs[line.Output]
	if len(line.JSON) >= maxLine || bytes.IndexByte(line.JSON, '\n') >= 0 || !json.Valid(line.JSON) {
		return fmt.Errorf("checkpoint: the line of item %q for %s is not one JSON value on one line of less than %d bytes", t.Key, out.Path, maxLine)
	}
	if key, err := out.Key(line.JSON); err != nil || key != t.Key {
		return fmt.Errorf("checkpoint: the line of item %q for %s reads back as that of %q", t.Key, out.Path, key)
	}
	return nil
}

func (r *runner[T]) mark(t Task[T], e end, attempts int, why string) {
	line, err := markLine(t.Key, e, attempts, why)
	if err != nil {
		r.queue.stopBroken(fmt.Errorf("checkpoint: mark item %q: %w", t.Key, err))
		return
	}
	r.append(len(r.Outputs), line, ending{t.Index, e})
}

func (r *runner[T]) append(file int, line []byte, e ending) {
	if err := r.queue.files[file].append(line, e); err != nil {
		r.queue.stopBroken(err)
	}
}
