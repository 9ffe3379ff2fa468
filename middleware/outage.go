package middleware

import (
	"log/slog"
	"sync"
	"time"
)

// How long calls to a host in trouble pause: at first, and at most.
const (
	firstPause   = 15 * time.Second
	longestPause = 5 * time.Minute
)

// health is what an attempt tells of its host.
type health uint8

const (
	unclear health = iota // nothing: it did not get there, or its caller gave it up
	ailing                // it has no answer to show, and may be on the bill
	healthy               // an answer to its end, or a refusal
)

// circuit watches the attempts at one host. It opens when too many in a row
// fail: then none is let through for a while, and after that one, the probe,
// which opens it again, for twice as long, if it fails. Any answer closes it.
type circuit struct {
	host string
	most int // failing attempts in a row
	log  *slog.Logger

	mu      sync.Mutex
	failed  int       // attempts in a row
	pauses  int       // in a row; none: it is closed
	until   time.Time // of the pause
	probing bool      // the probe is under way
}

// admit returns nil for an attempt that may go, and whether it is the probe.
func (c *circuit) admit() (probe bool, refused *OutageError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch now := time.Now(); {
	case c.pauses == 0:
		return false, nil
	case !c.probing && !now.Before(c.until):
		// Should it never tell, then another may go, but no sooner than this.
		c.probing, c.until = true, now.Add(c.pause())
		return true, nil
	}
	return false, c.refusal()
}

func (c *circuit) refusal() *OutageError {
	at := c.until
	if now := time.Now(); c.probing && at.Before(now) { // the probe takes its time
		at = now.Add(c.pause())
	}
	return &OutageError{Host: c.host, Failed: c.failed, Pauses: c.pauses, At: at}
}

// pause is how long the present one lasts.
func (c *circuit) pause() time.Duration {
	return min(firstPause<<min(c.pauses-1, 10), longestPause)
}

// saw takes what an attempt told.
func (c *circuit) saw(h health, probe bool) {
	if c == nil {
		return
	}
	opened, closed := false, false
	c.mu.Lock()
	c.probing = c.probing && !probe
	switch h {
	case healthy:
		closed = c.pauses > 0
		c.failed, c.pauses = 0, 0
	case ailing:
		c.failed++
		// What was under way when it opened tells nothing new.
		if opened = c.pauses > 0 && probe || c.pauses == 0 && c.failed >= c.most; opened {
			c.pauses++
			c.until = time.Now().Add(c.pause())
		}
	}
	now := c.refusal()
	c.mu.Unlock()
	switch host := slog.String("host", c.host); {
	case opened:
		c.log.Warn("a host fails again and again and may bill it: calls to it pause", host, slog.Int("failed", now.Failed), slog.Time("until", now.At))
	case closed:
		c.log.Info("a host answers again: calls to it go on", host)
	}
}

// circuit returns the circuit of a host; nil: its outages do not matter.
func (g *Guard) circuit(host string) *circuit {
	if g.outageAfter <= 0 {
		return nil
	}
	c, ok := g.circuits.Load(host)
	if !ok {
		c, _ = g.circuits.LoadOrStore(host, &circuit{host: host, most: g.outageAfter, log: g.logger})
	}
	return c.(*circuit)
}

// admit refuses an attempt while its host is in trouble.
func (c *call) admit() error {
	if c.circuit == nil || c.probe {
		return nil
	}
	probe, refused := c.circuit.admit()
	if c.probe = probe; refused != nil {
		return denied(refused)
	}
	return nil
}
