package journal

import (
	"os"
	"syscall"
)

// dataSync is the cheapest call that makes a grown file durable.
func dataSync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
