// The durable file: a line is acknowledged after its sync, a batch is one
// write, and a failure is nobody else's.
package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// slowFile takes a second for each sync, and fails where it is told to.
type slowFile struct {
	data          string
	writes, syncs int
	failWrite     int // this write leaves half of its bytes
	failSync      int
	failCut       bool

	mu     sync.Mutex // callers look whether their line is there
	synced string
}

func (f *slowFile) Write(p []byte) (int, error) {
	if f.writes++; f.writes == f.failWrite {
		f.data += string(p[:len(p)/2])
		return len(p) / 2, nil // a short write need not come with an error
	}
	f.data += string(p)
	return len(p), nil
}

func (f *slowFile) Sync() error {
	time.Sleep(time.Second)
	if f.syncs++; f.syncs == f.failSync {
		return io.ErrClosedPipe
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = f.data
	return nil
}

func (f *slowFile) holds(line string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Contains(f.synced, line+"\n")
}

func (f *slowFile) Truncate(size int64) error {
	if f.failCut {
		return io.ErrNoProgress
	}
	f.data = f.data[:size]
	return nil
}

func (f *slowFile) ReadAt([]byte, int64) (int, error) { return 0, errors.ErrUnsupported }
func (f *slowFile) Allocate(int64) error              { return errors.ErrUnsupported }
func (f *slowFile) Linked() (bool, error)             { return true, nil }
func (f *slowFile) Size() (int64, error)              { return int64(len(f.data)), nil }
func (f *slowFile) Close() error                      { return nil }

// appendAll appends n lines at the same time, rounds times, and returns the
// errors by line.
func appendAll(f *lineFile, disk *slowFile, n, rounds int) (errs []error) {
	var wg sync.WaitGroup
	errs = make([]error, n*rounds)
	for i := range n {
		wg.Go(func() {
			for r := range rounds {
				text := fmt.Sprintf("line %d", i*rounds+r)
				err := f.append([]byte(text), ending{i*rounds + r, done})
				if err == nil && !disk.holds(text) {
					err = errors.New("acknowledged before it was synced")
				}
				errs[i*rounds+r] = err
			}
		})
	}
	wg.Wait()
	return errs
}

func TestBatches(t *testing.T) {
	for name, test := range map[string]struct {
		disk     *slowFile
		why      error // of the lines that fail
		poisoned bool
	}{
		"all well":    {&slowFile{}, nil, false},
		"short write": {&slowFile{failWrite: 2}, io.ErrShortWrite, false},
		"no way back": {&slowFile{failWrite: 2, failCut: true}, io.ErrNoProgress, true},
		"failed sync": {&slowFile{failSync: 2}, io.ErrClosedPipe, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk, landed, size := test.disk, 0, int64(0)
				f := &lineFile{file: disk, landed: func(b []ending, s int64) { landed += len(b); size = s }}
				failed := 0
				for _, err := range appendAll(f, disk, 64, 8) {
					if err != nil {
						require.ErrorIs(t, err, test.why)
						failed++
					}
				}
				require.Equal(t, 64*8, landed+failed)
				require.EqualValues(t, len(disk.synced), size)
				require.Equal(t, landed, strings.Count(disk.synced, "\n"))
				if test.poisoned {
					require.Equal(t, 2, disk.writes, "nothing after the failure")
					require.LessOrEqual(t, landed, 64)
					return
				}
				require.Equal(t, disk.synced, disk.data, "nothing of the failed batch stays")
				require.Equal(t, test.why != nil, failed > 0)
				require.LessOrEqual(t, failed, 64)
				// While one batch is synced the next collects, so two batches
				// take all 64 callers on.
				require.LessOrEqual(t, disk.writes, 16)
			})
		})
	}
}
