//go:build unix

package disk

import (
	"os"
	"syscall"
)

var fullErrnos = [...]syscall.Errno{syscall.EDQUOT, syscall.EFBIG}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		d.Close()
		return err
	}
	return d.Close()
}
