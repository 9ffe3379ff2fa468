package journal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/journal/disk"
)

// A read that fails is an error of the disk and no damage: nobody takes what
// could not be read for torn or for missing, and nothing is changed or skipped.
func TestEveryReadFails(t *testing.T) {
	crashed := segmentOf(t, false)
	torn := crashed[:len(crashed)-10]
	for name, read := range map[string]func(Dir) error{
		"open": func(d Dir) error {
			f, err := OpenFile(d.Path, FileOptions{FS: d.FS})
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"newest":  func(d Dir) error { return last(d.Newest()) },
		"history": func(d Dir) error { return last(d.History()) },
		"verify": func(d Dir) error {
			audit, err := d.Verify()
			if err == nil {
				require.False(t, audit.Damaged())
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				reads := 0
				mem := bookOf(t, torn)
				err := read(Dir{Path: "book", FS: disk.Failing(mem, func(op disk.Op) disk.Fault {
					switch op.Kind {
					case disk.OpList, disk.OpOpen, disk.OpReadAt, disk.OpSize:
						if reads++; reads == n {
							return disk.Fault{Err: errDisk}
						}
					}
					return disk.Fault{}
				})})
				if reads < n {
					require.NoError(t, err)
					require.Greater(t, n, 2)
					return
				}
				require.ErrorIs(t, err, errDisk, "read %d", n)
				require.NotErrorIs(t, err, ErrCorrupt, "read %d", n)
				left, err := disk.ReadFile(mem, "book/000001.jsonl", 1<<20)
				require.NoError(t, err)
				require.Equal(t, string(torn), string(left), "read %d", n)
				require.NoError(t, read(Dir{Path: "book", FS: mem}), "and then it can be read")
			}
		})
	}
}
