package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"

	"github.com/tollbook/tollbook/journal/disk"
)

// version is the format of the files below. A file of another version is
// refused, never read as if it were damaged.
const version = 1

// maxStateFile bounds what is read of a state file.
const maxStateFile = 1 << 30

// manifest pins what a state directory was made for. It is written once, as
// the last step of making the directory.
type manifest struct {
	Version int      `json:"version"`
	Items   int      `json:"items"`
	Keys    string   `json:"keys"` // SHA-256 over all keys in their order
	Shards  int      `json:"shards"`
	Outputs []string `json:"outputs"` // base names
}

// fits tells whether m pins the same input as the manifest of this run. The
// number of shards is the state's own affair.
func (m manifest) fits(dir string, run manifest) error {
	reason := ""
	switch {
	case m.Items != run.Items:
		reason = "the number of items differs"
	case m.Keys != run.Keys:
		reason = "the keys or their order differ"
	case !slices.Equal(m.Outputs, run.Outputs):
		reason = fmt.Sprintf("its outputs are named %q, not %q", m.Outputs, run.Outputs)
	default:
		return nil
	}
	return &InputError{Dir: dir, Items: run.Items, Pinned: m.Items, Reason: reason}
}

// cursor is the content of shards/NNN.json: which of the shard's items have
// ended, as of the lines that stand in the files before Offsets. Shard s of n
// has the items s, s+n, s+2n, …, here counted 0, 1, 2, ….
//
// A cursor is a shortcut. What has ended stands in the files, so a lost cursor
// costs only the time to read them from their beginning.
type cursor struct {
	Version int     `json:"version"`
	Keys    string  `json:"keys"` // of the manifest
	Shard   int     `json:"shard"`
	Shards  int     `json:"shards"`
	Items   int     `json:"items"`   // of this shard
	Offsets []int64 `json:"offsets"` // of the outputs in their order, then of the marks
	Low     int     `json:"low"`     // all items below it have ended
	Above   string  `json:"above"`   // items above it that have ended: "7-9,12"
	Failed  string  `json:"failed"`  // those of the ended that failed for good
	Dead    string  `json:"dead"`    // those that are dead letters
}

func cursorName(shard int) string { return fmt.Sprintf("%03d.json", shard) }

// errUnreadable and errVersion are what readSealed finds wrong with a file.
var (
	errUnreadable = errors.New("it is cut short or its checksum does not fit")
	errVersion    = errors.New("unknown format version")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal writes v, a struct, as one JSON object whose last field is the CRC-32C
// of all bytes before it:
//
//	{"version":1,…,"crc":"9a1b2c3d"}⏎
func seal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1]
	return fmt.Appendf(b, `,"crc":"%08x"}`+"\n", crc32.Checksum(b, castagnoli)), nil
}

// sealSize is the length of what seal puts behind the checked bytes.
const sealSize = len(`,"crc":"9a1b2c3d"}` + "\n")

func unseal(b []byte, v any) error {
	at := len(b) - sealSize
	if at < 1 || !bytes.Equal(b[at:], fmt.Appendf(nil, `,"crc":"%08x"}`+"\n", crc32.Checksum(b[:at], castagnoli))) {
		return errUnreadable
	}
	var head struct{ Version int }
	if err := json.Unmarshal(b, &head); err != nil {
		return errUnreadable
	}
	if head.Version != version {
		return fmt.Errorf("%w %d, this program knows %d", errVersion, head.Version, version)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

// readSealed reads what seal wrote. A missing file is fs.ErrNotExist.
func readSealed(fsys disk.FS, name string, v any) error {
	b, err := disk.ReadFile(fsys, name, maxStateFile)
	if err != nil {
		return err
	}
	return unseal(b, v)
}

func writeSealed(fsys disk.FS, name string, v any) error {
	b, err := seal(v)
	if err == nil {
		err = disk.Replace(fsys, name, b)
	}
	if err != nil {
		return &WriteError{name, err}
	}
	return nil
}

// readManifest returns nil where there is none.
func readManifest(fsys disk.FS, name string) (*manifest, error) {
	var m manifest
	err := readSealed(fsys, name, &m)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errUnreadable), errors.Is(err, errVersion):
		return nil, &DamagedError{name, err.Error() + "; " + tryAnew}
	case err != nil:
		return nil, fmt.Errorf("checkpoint: %w", err)
	case m.Shards < 1 || m.Items < 0:
		return nil, &DamagedError{name, fmt.Sprintf("it names %d shards and %d items", m.Shards, m.Items)}
	}
	return &m, nil
}
