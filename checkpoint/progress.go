package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"

	"github.com/tollbook/tollbook/journal/disk"
)

// Progress tells how far a run is, from any goroutine. The zero value is ready
// to be set in [Options]; a later run with the same one takes it over.
type Progress struct{ queue atomic.Pointer[queue] }

// Counts is how far a run is. Done, Failed, Dead and Pending add up to Items.
type Counts struct {
	Items, Done, Failed, Dead, Pending int

	Retry   int // the part of Failed that the next run sends again
	Sent    int // items this run started
	Running int // the part of Pending that has a worker
	Waiting int // the part of Pending that was told to come later
}

// Counts returns zeros until the state is open. It costs no more than a lock.
func (p *Progress) Counts() Counts {
	if q := p.queue.Load(); q != nil {
		return q.counts()
	}
	return Counts{}
}

func (p *Progress) follow(q *queue) {
	if p != nil {
		p.queue.Store(q)
	}
}

// ShardStatus is where one shard stands, by its cursor.
type ShardStatus struct {
	Shard                     int // from 0
	Items, Done, Failed, Dead int
	Low                       int   // all items before it have ended; counted within the shard
	Err                       error // the cursor is damaged; the next run makes it anew
}

// Inspect reads the cursors of a state directory, also while a run works on it;
// they lag behind the outputs by a second or so. fsys may be nil for disk.OS().
// A directory without a state is fs.ErrNotExist.
func Inspect(fsys disk.FS, dir string) ([]ShardStatus, error) {
	if fsys == nil {
		fsys = disk.OS()
	}
	dir = filepath.Join(dir, shardsDir)
	m, err := readManifest(fsys, filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("checkpoint: %s holds no state: %w", dir, fs.ErrNotExist)
	}
	shards := make([]ShardStatus, m.Shards)
	for i, sh := range newShards(m.Items, m.Shards) {
		shards[i] = ShardStatus{Shard: i, Items: sh.n}
		path := filepath.Join(dir, cursorName(i))
		var c cursor
		err := readSealed(fsys, path, &c)
		if err == nil {
			err = sh.load(c)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // not saved yet
		}
		if err != nil {
			shards[i].Err = &DamagedError{path, err.Error()}
			continue
		}
		shards[i].Low, shards[i].Failed, shards[i].Dead = c.Low, sh.failed.count(), sh.dead.count()
		shards[i].Done = sh.ended.count() - shards[i].Failed - shards[i].Dead
	}
	return shards, nil
}
