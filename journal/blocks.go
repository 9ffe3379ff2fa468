package journal

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
)

// block is a run of lines, and what was made of it.
type block struct {
	rawLine         // as [lineReader.run] returned it
	failed  error   // instead of lines: the reading ended here
	entries []Entry // of its lines, whose strings all are parts of one
	chain   chain   // of a segment: behind the last line, as far as these lines tell
	odd     bool    // of a segment: to be looked at line by line
	skipped []skip  // of a ledger
	lines   int64   // of a ledger

	buf    []byte        // that its text is in
	worked bool          // on when it was read
	ready  chan struct{} // work on it has ended
}

// inBlocks cuts what l reads into blocks, has work make entries of them in as
// many goroutines as can run, a few blocks ahead, and calls use with each of
// them in order. What a block holds is valid until use returns, but for strings.
// It returns the first error of use or of reading, when all its goroutines have
// ended; one that is in a Read keeps it waiting.
func inBlocks(l *lineReader, work func(*block), use func(*block) error) error {
	workers := runtime.GOMAXPROCS(0)
	p := pipeline{lines: l, work: work, free: make(chan *block, 2*workers), order: make(chan *block, 2*workers), stop: make(chan struct{})}
	for range cap(p.free) {
		p.free <- &block{ready: make(chan struct{}, 1)}
	}
	var running sync.WaitGroup
	for range workers {
		running.Go(p.run)
	}
	defer running.Wait()
	defer close(p.stop)
	for b := range p.order {
		<-b.ready
		if b.failed != nil {
			return b.failed
		}
		if err := use(b); err != nil {
			return err
		}
		p.free <- b
	}
	return nil
}

// pipeline is what the goroutines of inBlocks share. Each block is in one place
// only: free, with one of them, in order, or in use.
type pipeline struct {
	work  func(*block)
	free  chan *block
	stop  chan struct{} // closed when nothing more is needed
	order chan *block   // as they were read; closed behind the last one

	mu    sync.Mutex // one reads at a time, and so says the order
	lines *lineReader
	ended bool
}

func (p *pipeline) run() {
	for {
		select {
		case <-p.stop:
			return
		case b := <-p.free:
			if !p.read(b) {
				return
			}
			if b.failed == nil && !b.worked {
				p.work(b)
			}
			b.ready <- struct{}{}
		}
	}
}

// read fills b with the next lines, or reports that there are none.
func (p *pipeline) read(b *block) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stop:
		return false
	default:
	}
	if p.ended {
		return false
	}
	b.rawLine, b.failed = p.lines.run()
	if b.failed != nil {
		p.ended = true
		defer close(p.order)
		if errors.Is(b.failed, io.EOF) {
			return false
		}
	}
	if b.worked = b.failed == nil && len(b.text) > p.lines.size; b.worked { // one long line at a time
		p.work(b)
		b.text = nil
	}
	b.buf = p.lines.swap(b.buf)
	p.order <- b
	return true
}

// add makes room for one more entry, which holds anything.
func (b *block) add() *Entry {
	if n := len(b.entries); n < cap(b.entries) {
		b.entries = b.entries[:n+1]
	} else {
		b.entries = append(b.entries, Entry{})
	}
	return &b.entries[len(b.entries)-1]
}

// each splits the text of b into its lines, until visit returns false.
func (b *block) each(visit func(line []byte, text string, off int64) bool) {
	rest, text, off := b.text, string(b.text), b.off
	for more := true; more; {
		n := bytes.IndexByte(rest, '\n')
		if more = n >= 0; !more {
			n = len(rest)
		}
		if !visit(rest[:n:n], text[:n], off) {
			return
		}
		if more {
			rest, text, off = rest[n+1:], text[n+1:], off+int64(n)+1
		}
	}
}
