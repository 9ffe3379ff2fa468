package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interrupts turns ctrl-c, SIGTERM and SIGHUP into the two ways a run ends early: the
// first ends drain, after which nothing new starts and running calls finish;
// the second closes abort, which cuts them. A third has its usual effect.
// Call release when the run is over.
func interrupts(parent context.Context, ui *ui) (drain context.Context, abort <-chan struct{}, release func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	drain, cancel := context.WithCancel(parent)
	cut, over, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	next := func() bool {
		select {
		case <-signals:
			return true
		case <-over:
			return false
		}
	}
	go func() {
		defer close(gone)
		defer signal.Stop(signals)
		if !next() {
			return
		}
		ui.say("stopping: calls in flight finish, nothing new starts; ctrl-c again to stop at once")
		cancel()
		if next() {
			close(cut)
		}
	}()
	return drain, cut, func() { close(over); <-gone; cancel() }
}
