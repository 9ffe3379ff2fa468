package checkpoint

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/tollbook/tollbook/journal/disk"
)

// maxLine bounds what is held in memory of one line, in bytes.
const maxLine = 256 << 20

// span is a stretch of a file, in bytes.
type span struct{ from, to int64 }

// scanLines calls visit for each line of the file between from and size, with
// where it stands and without its newline; the last one may have had none.
func scanLines(path string, r io.ReaderAt, from, size int64, visit func(at span, line []byte) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(r, from, size-from), 1<<18)
	var long []byte // what was read so far of a line longer than the buffer
	for {
		part, err := in.ReadSlice('\n')
		if len(long)+len(part) > maxLine {
			return &DamagedError{path, fmt.Sprintf("the line at byte %d is longer than %d bytes", from, maxLine)}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("checkpoint: read %s: %w", path, err)
		}
		line := part
		if len(long) > 0 {
			line = append(long, part...)
		}
		if len(line) > 0 {
			to := from + int64(len(line))
			if err := visit(span{from, to}, bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
				return err
			}
			from = to
		}
		if err != nil {
			return nil
		}
		long = long[:0]
	}
}

// A tail is the end of a file that a run left behind without telling a cursor:
// what was killed between its last line and its last save. It is written anew
// before anything is appended, for two reasons. Its bad lines must go without
// taking good ones along. And a sync may have failed unseen: then the tail is
// in the system's cache, reads well, and no later sync would bring it to disk.
//
// A crash in between must not lose good lines either, so the new tail is made
// durable in a file of its own first, a redo: the offset in decimal, a newline,
// and the bytes that belong behind that offset.

// rewriteTail replaces what stands in the file behind from by the same without
// the bad spans. The redo's name is in the state directory.
func rewriteTail(fsys disk.FS, path, redo string, from, size int64, bad []span) error {
	in, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	err = disk.WriteTemp(fsys, redo+disk.TempSuffix, func(w disk.File) error {
		if _, err := fmt.Fprintf(w, "%d\n", from); err != nil {
			return err
		}
		at := from
		for _, b := range append(bad, span{size, size}) {
			if err := copySpan(w, in, span{at, b.from}); err != nil {
				return err
			}
			at = b.to
		}
		// A good last line that lacks its newline gets it.
		if ended, err := isLineEnd(in, size); ended || err != nil || len(bad) > 0 && bad[len(bad)-1].to == size {
			return err
		}
		_, err := w.Write([]byte{'\n'})
		return err
	})
	if err == nil {
		err = fsys.Rename(redo+disk.TempSuffix, redo)
	}
	if err == nil {
		err = fsys.SyncDir(filepath.Dir(redo))
	}
	if err == nil {
		err = replay(fsys, path, redo)
	}
	return err
}

// isLineEnd tells whether at is behind a line of the file, or its beginning.
func isLineEnd(r io.ReaderAt, at int64) (bool, error) {
	if at == 0 {
		return true, nil
	}
	last := make([]byte, 1)
	n, err := r.ReadAt(last, at-1)
	if n == 1 {
		err = nil // an io.EOF may come with the last byte
	}
	return last[0] == '\n', err
}

// replay does what a redo says and removes it; without one it does nothing.
// Doing it twice, or again after a crash, comes to the same.
func replay(fsys disk.FS, path, redo string) error {
	in, err := fsys.Open(redo)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	size, err := in.Size()
	if err != nil {
		return err
	}
	head := make([]byte, min(size, 20))
	if _, err := in.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	digits, _, ok := bytes.Cut(head, []byte{'\n'})
	from, err := strconv.ParseInt(string(digits), 10, 64)
	if !ok || err != nil || from < 0 {
		return &DamagedError{redo, "it does not begin with an offset"}
	}

	out, err := fsys.Append(path)
	if err != nil {
		return err
	}
	// A shorter file must not be filled up with zeros.
	if now, err := out.Size(); err != nil || now < from {
		return errors.Join(err, out.Close(), &DamagedError{path, fmt.Sprintf("it has %d bytes, but %d were written before its last lines", now, from)})
	}
	if err := out.Truncate(from); err != nil {
		return errors.Join(err, out.Close())
	}
	err = copySpan(out, in, span{int64(len(digits)) + 1, size})
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	in.Close() // Windows removes no open file
	if err := fsys.Remove(redo); err != nil {
		return err
	}
	// Were the redo to come back after later lines, it would undo them.
	return fsys.SyncDir(filepath.Dir(redo))
}

// keepAside appends the bad spans to a file in the state directory.
func keepAside(fsys disk.FS, path, aside string, bad []span) error {
	in, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := appendTo(fsys, aside)
	if err != nil {
		return err
	}
	for _, b := range bad {
		if err == nil {
			err = copySpan(out, in, b)
		}
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// appendTo opens a file for appending and makes it if it is missing. Its name
// is durable afterwards, even if a run that died made it.
func appendTo(fsys disk.FS, path string) (disk.File, error) {
	f, err := fsys.Append(path)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Create(path)
	}
	if err != nil {
		return nil, err
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func copySpan(w io.Writer, r io.ReaderAt, s span) error {
	n, err := io.Copy(w, io.NewSectionReader(r, s.from, s.to-s.from))
	if err == nil && n < s.to-s.from {
		err = io.ErrUnexpectedEOF
	}
	return err
}
