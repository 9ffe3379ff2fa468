package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// maxLine bounds a line, so that a file without newlines cannot fill the
// memory. OpenAI's own bound for a whole Batch file is 200 MB.
const maxLine = 64 << 20

// lineReader yields the lines of a file of any size within bounded memory.
type lineReader struct {
	r      *bufio.Reader
	number int   // of the line last read, from 1
	start  int64 // offset where it starts
	offset int64 // offset behind it
	buf    []byte
}

var errLongLine = fmt.Errorf("the line is longer than %d MiB", maxLine>>20)

// next returns the next line without the white space around it and without the
// byte order mark some editors put first; it is valid until the next call.
// After errLongLine reading can go on with the line behind.
func (l *lineReader) next() ([]byte, error) {
	l.buf, l.start = l.buf[:0], l.offset
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		l.offset += int64(len(part))
		if long = long || len(l.buf)+len(part) > maxLine; !long {
			l.buf = append(l.buf, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err != nil && (err != io.EOF || l.offset == l.start):
			return nil, err
		}
		break
	}
	l.number++
	if long {
		return nil, errLongLine
	}
	return trim(l.buf), nil
}

// byteOrderMark is what some editors and servers put before UTF-8 text.
const byteOrderMark = "\ufeff"

// trim cuts JSON's white space around a line, and a byte order mark before it.
func trim(line []byte) []byte {
	return bytes.Trim(bytes.TrimPrefix(line, []byte(byteOrderMark)), " \t\r\n")
}
