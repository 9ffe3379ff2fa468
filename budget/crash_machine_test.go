package budget_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"

	"github.com/tollbook/tollbook/journal/disk"
)

// trouble is what happens to the disk at one operation.
type trouble uint8

const (
	none     trouble = iota
	powerCut         // the machine stops before the operation
	killed           // the process does, in the middle of it if it is a write
	refused          // it fails and does nothing, or of a write a part
	behind           // it does its work, and then fails
	short            // a write stops short, without an error
	full             // there is no room, at a write, a sync or whatever makes something
)

var troubleNames = [...]string{"", "power cut", "kill", "error", "error behind", "short write", "full disk"}

func (t trouble) String() string { return troubleNames[t] }

// strikes reports whether an operation is one that this can happen to.
func (t trouble) strikes(op disk.Op) bool {
	switch t {
	case powerCut, killed, behind:
		return !op.Kind.Reads()
	case refused:
		return true
	case short:
		return op.Kind == disk.OpWrite
	case full:
		return !op.Kind.Reads() && op.Kind != disk.OpRemove && op.Kind != disk.OpLock
	}
	return false
}

var errDevice = errors.New("the device fails")

// strike is trouble at an operation: the at-th, from 1, of those it can happen to,
// counted from the strike before.
type strike struct {
	with trouble
	at   int
}

func (s strike) String() string { return fmt.Sprintf("%s at operation %d", s.with, s.at) }

// machine is a disk that meets with trouble.
type machine struct {
	mem   *disk.Mem
	rng   *rand.Rand
	plan  []strike
	found bool      // some trouble
	dead  bool      // it ended the process
	after *disk.Mem // then, the disk that the next one finds
}

func (m *machine) fault(op disk.Op) disk.Fault {
	if m.dead && m.after == nil {
		m.after = m.mem.Kill()
	}
	if m.dead || len(m.plan) == 0 || !m.plan[0].with.strikes(op) {
		return disk.Fault{}
	}
	if m.plan[0].at--; m.plan[0].at > 0 {
		return disk.Fault{}
	}
	with := m.plan[0].with
	m.plan, m.found, m.dead = m.plan[1:], true, with == powerCut || with == killed
	some := 0
	if op.Kind == disk.OpWrite {
		some = m.rng.IntN(int(op.Bytes) + 1)
	}
	switch with {
	case powerCut:
		m.after = m.mem.Crash(m.rng)
	case killed:
		if op.Kind == disk.OpWrite {
			return disk.Fault{Err: disk.ErrGone, Bytes: some}
		}
		m.after = m.mem.Kill()
	case refused:
		return disk.Fault{Err: errDevice, Bytes: some}
	case behind:
		return disk.Fault{Err: errDevice, Done: true}
	case short:
		return disk.Fault{Short: true, Bytes: min(some, max(0, int(op.Bytes)-1))}
	case full:
		return disk.Fault{Err: syscall.ENOSPC, Bytes: some}
	}
	return disk.Fault{}
}
