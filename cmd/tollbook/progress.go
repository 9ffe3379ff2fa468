package main

import (
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
)

// snapshot is how far a run is.
type snapshot struct {
	checkpoint.Counts
	Tokens budget.Figures
	Limit  int64 // of tokens; negative is none
}

func (s snapshot) ended() int { return s.Done + s.Failed + s.Dead }

// text is the part of a progress line behind the count of items.
func (s snapshot) text() string {
	parts := lossesText(s.Counts)
	used := group(s.Tokens.Net)
	if s.Limit >= 0 {
		used += " of " + group(s.Limit)
	}
	parts = append(parts, used+" tokens")
	if s.Tokens.Held > 0 {
		parts = append(parts, group(s.Tokens.Held)+" held")
	}
	return strings.Join(parts, ", ")
}

// How often progress is looked at, and how often plain lines tell of it.
const (
	lookEvery  = 200 * time.Millisecond
	plainEvery = 10 * time.Second
)

// follow shows progress until the returned function is called: a live line on
// a terminal, elsewhere a plain line for each quarter and every ten seconds.
func (u *ui) follow(items int, now func() snapshot) (stop func()) {
	show, end := u.plain(now), func() {}
	if u.live {
		show, end = u.bar(items, now)
	}
	over := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				show()
			case <-over:
				return
			}
		}
	})
	return func() { close(over); gone.Wait(); end() }
}

// plain prints a line when there is something to tell.
func (u *ui) plain(now func() snapshot) (show func()) {
	said, quarter := time.Now(), 0
	return func() {
		s := now()
		if s.Items == 0 {
			return
		}
		q := 4 * s.ended() / s.Items
		if (q > quarter && q < 4) || time.Since(said) >= plainEvery {
			u.say("%d of %s, %s", s.ended(), count(int64(s.Items), "item"), s.text())
			said = time.Now()
		}
		quarter = q
	}
}

// bar draws a live line; lines that are said meanwhile appear above it.
func (u *ui) bar(items int, now func() snapshot) (show, end func()) {
	// Looking at the book may make its caller say what there is to say, and while
	// the line is drawn nothing can be said: it is only drawn what was seen before.
	var seen atomic.Pointer[snapshot]
	seen.Store(&snapshot{Limit: -1})
	progress := mpb.New(mpb.WithOutput(u.err), mpb.WithAutoRefresh(), mpb.WithRefreshRate(lookEvery), mpb.WithWidth(60))
	bar := progress.AddBar(int64(items),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d items ")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + seen.Load().text() + ", " }), decor.Elapsed(decor.ET_STYLE_GO)))
	plain := u.swap(progress)
	show = func() {
		s := now()
		seen.Store(&s)
		bar.SetCurrent(int64(s.ended()))
	}
	show()
	end = func() {
		show()
		bar.Abort(false) // leaves the line as it is, also where it is not full
		progress.Wait()
		u.swap(plain)
	}
	return show, end
}

// swap changes where lines for people go and returns where they went.
func (u *ui) swap(to io.Writer) (before io.Writer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, u.err = u.err, to
	return before
}
