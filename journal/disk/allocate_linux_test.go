// What Allocate adds is really taken, so that removing it sets room free, and
// what a file system cannot give is written (rule 11).
package disk

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllocateTakesRoom(t *testing.T) {
	ways := map[string]func(File) error{
		"asked for": func(f File) error { return f.Allocate(300_001) },
		"written":   func(f File) error { return writeNoise(f, 300_001-5) },
	}
	for name, allocate := range ways {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "BALLAST")
			f, err := OS().Create(path)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.Write([]byte("hello"))
			require.NoError(t, err)
			require.NoError(t, allocate(f))
			require.NoError(t, f.Sync())
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.EqualValues(t, 300_001, info.Size())
			require.GreaterOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, info.Size())
			require.Error(t, f.Allocate(300_000), "it never cuts")
			require.NoError(t, f.Allocate(300_001))

			_, err = f.Write([]byte("!")) // behind what was allocated
			require.NoError(t, err)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, "hello", string(content[:5]))
			require.Equal(t, "!", string(content[300_001:]))
			if name == "written" {
				var packed bytes.Buffer
				w := gzip.NewWriter(&packed)
				_, err := w.Write(content)
				require.NoError(t, errors.Join(err, w.Close()))
				require.Greater(t, packed.Len(), 300_000, "no file system makes it smaller")
			}
		})
	}
}
