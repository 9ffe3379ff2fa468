package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

var machineImages = flag.Int("machine.images", 6, "crash images of each file system")

// volume is a file system in a file, mounted by loop.
type volume struct {
	t     *testing.T
	image string
	dir   string // "" while it is not mounted
}

// kinds are the file systems, each made as small as it can be; what of an image
// is not used takes no room.
var kinds = map[string]struct {
	size    string
	options []string
}{
	"ext4":  {"16M", []string{"-q", "-F", "-m", "0"}},
	"xfs":   {"300M", []string{"-q"}},
	"btrfs": {"64M", []string{"-q", "--mixed"}},
}

// newVolume makes an image and mounts it, all of which ends with the test.
// Options are for mkfs.
func newVolume(t *testing.T, kind, image, size string, options ...string) *volume {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs." + kind)
	if _, noLoop := os.Stat("/dev/loop-control"); os.Geteuid() != 0 || noLoop != nil || err != nil {
		t.Skipf("needs root, loop devices and mkfs.%s", kind)
	}
	v := &volume{t: t, image: image}
	run(t, "truncate", "-s", size, image)
	run(t, mkfs, slices.Concat(kinds[kind].options, options, []string{image})...)
	if out, err := exec.Command("mount", "-o", "loop", image, v.mountPoint()).CombinedOutput(); err != nil {
		t.Skipf("needs loop devices that can be mounted: %s", out)
	}
	return v
}

func (v *volume) mountPoint() string {
	v.dir = v.t.TempDir()
	v.t.Cleanup(v.unmount)
	return v.dir
}

func (v *volume) mount() {
	v.t.Helper()
	run(v.t, "mount", "-o", "loop", v.image, v.mountPoint())
}

// pageByPage has the device take one page of memory at a time. Of a longer write
// a loop device over a full file system may store the beginning and say that it
// stored all (measured on Linux 6.18); one page it stores or refuses.
func (v *volume) pageByPage() {
	v.t.Helper()
	device, err := exec.Command("findmnt", "-no", "MAJ:MIN", v.dir).Output()
	require.NoError(v.t, err)
	limit := filepath.Join("/sys/dev/block", strings.TrimSpace(string(device)), "queue/max_sectors_kb")
	require.NoError(v.t, os.WriteFile(limit, []byte(strconv.Itoa(os.Getpagesize()>>10)), 0))
}

func (v *volume) unmount() {
	if v.dir == "" {
		return
	}
	if exec.Command("umount", v.dir).Run() != nil {
		exec.Command("umount", "-l", v.dir).Run() // after a failure somebody may be in it still
	}
	v.dir = ""
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

// TestMachineCrashImages: what is on the device at one moment of a writer's work
// is what a power cut leaves. Mounted, it holds everything that was acknowledged
// before. Rules 1, 5, 7, 9, 12, 13; B6, B7.
func TestMachineCrashImages(t *testing.T) {
	for kind, k := range kinds {
		t.Run(kind, func(t *testing.T) {
			dir, c, rnd := t.TempDir(), newClaims(), rand.New(rand.NewPCG(9, uint64(*machineImages)))
			v := newVolume(t, kind, filepath.Join(dir, "disk"), k.size)
			w := startWriter(t, c, nil, filepath.Join(v.dir, "state"))
			w.open()
			require.Equal(t, "opened", w.hears())
			type copied struct {
				image  string
				before *claims
			}
			var copies []copied
			for n := range *machineImages {
				time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond) // the moment is what is random here
				w.pause()
				now := copied{filepath.Join(dir, fmt.Sprint("copy", n)), c.sofar()}
				run(t, "cp", "--sparse=always", v.image, now.image)
				copies = append(copies, now)
				w.resume()
			}
			w.kill()
			v.unmount()
			for _, now := range copies {
				found := &volume{t: t, image: now.image}
				found.mount()
				state := filepath.Join(found.dir, "state")
				book, err := openBook(bookOf(state), journal.FileOptions{})
				require.NoError(t, err)
				require.NoError(t, book.Close())
				now.before.hold(t, bookOf(state), true)
				found.unmount()
				require.NoError(t, os.Remove(now.image))
			}
			t.Logf("%d images, %d steps acknowledged before the last", len(copies), copies[len(copies)-1].before.count())
		})
	}
}

// pause stops the process and waits until all of its threads stand still.
func (w *writing) pause() {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(w.t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", w.cmd.Process.Pid))
		for _, thread := range threads {
			stat, _ := os.ReadFile(thread)
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return err == nil && len(threads) > 0
	}, 20*time.Second, time.Millisecond)
}

func (w *writing) resume() {
	w.t.Helper()
	require.NoError(w.t, w.cmd.Process.Signal(syscall.SIGCONT))
}

// fill takes up all the room of a file system.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for chunk := make([]byte, 64<<10); len(chunk) >= 512; {
		if _, err = f.Write(chunk); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			chunk = chunk[:len(chunk)/2]
		}
	}
	if err := f.Sync(); err != nil {
		require.ErrorIs(t, err, syscall.ENOSPC)
	}
}

// TestMachineDiskFull: the disk fills up under a writer, a few times. What is
// refused is not booked and what was acknowledged stays; with the disk still
// full the book can be opened, and with room again it goes on. B15, rules 10, 11.
func TestMachineDiskFull(t *testing.T) {
	dir, c := t.TempDir(), newClaims()
	v := newVolume(t, "ext4", filepath.Join(dir, "disk"), "16M")
	state, filler := filepath.Join(v.dir, "state"), filepath.Join(v.dir, "filler")
	w := startWriter(t, c, nil, state)
	w.open()
	require.Equal(t, "opened", w.hears())
	for n := range 6 {
		goesOn(t, w, c)
		refused := c.refusals()
		w.pause() // or it gives the ballast up while the disk is being filled, with that room, too
		fill(t, filler)
		w.resume()
		require.Eventually(t, func() bool { return c.refusals() > refused }, 20*time.Second, time.Millisecond)
		if n%2 == 0 {
			w.kill()
			w = startWriter(t, c, nil, "-name", fmt.Sprint("x", n), state)
			w.open()
			require.Equal(t, "opened", w.hears(), "with the room of the ballast")
		}
		require.NoError(t, os.Remove(filler))
	}
	goesOn(t, w, c)
	w.kill()
	c.hold(t, bookOf(state), false)
	verifies(t, state)
	t.Logf("%d steps acknowledged, %d refused", c.count(), c.refusals())
}

// TestMachineLowSpace: on a full disk nothing is admitted, and every open
// reservation can still be closed; the book goes on by itself when there is room
// again. Rule 11.
func TestMachineLowSpace(t *testing.T) {
	ctx := t.Context()
	v := newVolume(t, "ext4", filepath.Join(t.TempDir(), "disk"), "16M")
	state, filler := filepath.Join(v.dir, "state"), filepath.Join(v.dir, "filler")
	book, err := openBook(bookOf(state), journal.FileOptions{SegmentBytes: 64 << 10})
	require.NoError(t, err)
	defer book.Close()
	reserve := func() (*budget.Reservation, error) { return book.Reserve(ctx, budget.Request{Tokens: 100}) }
	for range 3 {
		var open []*budget.Reservation
		for range 100 {
			r, err := reserve()
			require.NoError(t, err)
			open = append(open, r)
		}
		fill(t, filler)
		for err = nil; err == nil; {
			var r *budget.Reservation
			if r, err = reserve(); err == nil {
				open = append(open, r)
			}
		}
		require.ErrorIs(t, err, journal.ErrFull)
		require.ErrorIs(t, open[0].Extend(ctx, budget.MaybeBilled, "timeout"), journal.ErrFull)
		for n, r := range open {
			switch n % 3 {
			case 0:
				_, err = r.Settle(ctx, budget.Usage{Input: 60})
			case 1:
				_, err = r.Refund(ctx, budget.NotBilled, "429")
			case 2:
				err = r.Close()
			}
			require.NoError(t, err, "close %d of %d", n, len(open))
		}
		_, err = open[1].Reclaim(ctx)
		require.NoError(t, err)
		require.NoError(t, book.Report().Broken)

		require.NoError(t, os.Remove(filler))
		require.Eventually(t, func() bool {
			r, err := reserve()
			return err == nil && r.Close() == nil
		}, 20*time.Second, 10*time.Millisecond)
	}
	require.NoError(t, book.Close())
	verifies(t, state)
}

// goesOn waits until a writer has done some more steps, in a book opened anew
// where the full disk ended its work.
func goesOn(t *testing.T, w *writing, c *claims) {
	t.Helper()
	from := c.count()
	require.Eventually(t, func() bool {
		select {
		case said := <-w.said:
			require.True(t, strings.HasPrefix(said, "closed") || said == "opened", "%s", said)
			if said != "opened" {
				w.open()
			}
		default:
		}
		return c.count() > from+100
	}, 20*time.Second, time.Millisecond)
}

// TestMachineWritebackFails: the image of a file system stands on a full one, so
// that the system itself cannot write what it took, and says so at an fsync or
// not at all. What was acknowledged is there once the device works again, also
// what the next process found in memory only and built on. B14, rules 8, 9.
func TestMachineWritebackFails(t *testing.T) {
	for n := range 4 {
		dir, c := t.TempDir(), newClaims()
		outer := newVolume(t, "ext4", filepath.Join(dir, "outer"), "16M")
		inner := newVolume(t, "ext4", filepath.Join(outer.dir, "inner"), "48M", "-b", strconv.Itoa(os.Getpagesize()))
		inner.pageByPage()
		state, filler := filepath.Join(inner.dir, "state"), filepath.Join(outer.dir, "filler")
		w := startWriter(t, c, nil, state)
		w.open()
		require.Equal(t, "opened", w.hears())
		c.reaches(t, 50*(n+1))
		fill(t, filler)
		said := w.hears()
		require.Contains(t, said, "closed journal: poisoned", "after %d steps", c.count())
		require.NoError(t, os.Remove(filler))
		if n%2 == 1 {
			w.open()
			require.Equal(t, "opened", w.hears())
			c.reaches(t, c.count()+50)
		}
		w.kill()
		inner.unmount()
		inner.mount()
		state = filepath.Join(inner.dir, "state")
		book, err := openBook(bookOf(state), journal.FileOptions{})
		require.NoError(t, err)
		require.NoError(t, book.Close())
		c.hold(t, bookOf(state), false)
		t.Logf("%d steps acknowledged; then: %s", c.count(), said)
		inner.unmount()
		outer.unmount()
	}
}
