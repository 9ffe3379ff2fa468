//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package disk

import (
	"errors"
	"os"
)

func flockFile(*os.File) error { return errors.ErrUnsupported }
