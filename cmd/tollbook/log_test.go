package main

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What the book and the guard warn of is said as it happens, each kind once.
func TestTeller(t *testing.T) {
	var err bytes.Buffer
	tell := &teller{ui: newUI(nil, &err)}
	tell.level.Set(slog.LevelWarn)
	log := slog.New(tell)
	log.Debug("another attempt")
	log.Info("host is old")
	log.Warn("no usage", "rid", "a", "hold", 7)
	log.Warn("no usage", "rid", "b", "hold", 9)
	log.Warn("overrun")
	log.Error("book is broken", "error", errors.New("disk full"))
	log.Error("a call is not booked", "rid", "c", "error", errors.New("disk full"))
	assert.Equal(t, "tollbook: no usage: rid a, hold 7\ntollbook: overrun\ntollbook: book is broken: error disk full\n", err.String())
}
