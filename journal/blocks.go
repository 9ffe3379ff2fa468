package journal

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"
	"unsafe"
)

// block is a run of lines, and what was made of it.
type block struct {
	rawLine         // as [lineReader.run] returned it
	failed  error   // instead of lines: the reading ended here
	entries []Entry // of its lines, whose strings are parts of buf
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
// them in order. What a block holds is valid until use returns, and its strings
// for ever if they are to stay. It returns the first error of use or of reading,
// when all its goroutines have ended; one that is in a Read keeps it waiting.
func inBlocks(l *lineReader, stay bool, work func(*block), use func(*block) error) error {
	workers := runtime.GOMAXPROCS(0)
	p := pipeline{lines: l, stay: stay, work: work, free: make(chan *block, 2*workers), order: make(chan *block, 2*workers), stop: make(chan struct{})}
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
	stay  bool // a buffer is used once
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
	if p.stay {
		b.buf = nil
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

// shared is the text of b with what stands behind it: the bytes, and a string
// that is the same memory, so that those of entries cost nothing. It changes
// when the buffer is used again.
func (b *block) shared() ([]byte, string) {
	all := b.text[:len(b.text)+slack]
	return all, unsafe.String(&all[0], len(all))
}

// lineAt is the line of b that begins at, without its newline.
func (b *block) lineAt(at int) []byte {
	line := b.text[at:]
	if n := bytes.IndexByte(line, '\n'); n >= 0 {
		line = line[:n:n]
	}
	return line
}
