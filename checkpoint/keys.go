package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// keyTable finds items by key while a state is opened, and is dropped
// afterwards. It holds 8 bytes an item and no key: each slot is a hash of the
// key whose low bits are replaced by the item's index. Two keys may share the
// hash bits that are left, so a hit counts only after the key itself was
// compared.
type keyTable struct {
	slots []uint64 // sorted
	low   uint64   // mask of the index bits
	seed  maphash.Seed
	key   func(i int) (string, error)
}

// readKeys reads every key once: it returns the table and the fingerprint of
// the keys in their order, or a [*DuplicateError].
func readKeys(ctx context.Context, n int, key func(i int) (string, error)) (*keyTable, string, error) {
	t := &keyTable{slots: make([]uint64, n), low: 1<<bits.Len(uint(n)) - 1, seed: maphash.MakeSeed(), key: key}
	h, buf := sha256.New(), make([]byte, 0, 4096)
	for i := range n {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, "", interrupted(ctx)
		}
		k, err := key(i)
		if err != nil {
			return nil, "", fmt.Errorf("checkpoint: item %d cannot be read: %w", i, err)
		}
		// The key goes through JSON and back, which would change invalid UTF-8.
		if k == "" || !utf8.ValidString(k) {
			return nil, "", fmt.Errorf("checkpoint: item %d has the key %q; a key is non-empty UTF-8 and unlike all others", i, k)
		}
		t.slots[i] = t.hash(k) | uint64(i)
		buf = append(binary.AppendUvarint(buf[:0], uint64(len(k))), k...)
		h.Write(buf)
	}
	slices.Sort(t.slots)
	return t, hex.EncodeToString(h.Sum(nil)), t.unique()
}

func (t *keyTable) hash(key string) uint64 { return maphash.String(t.seed, key) &^ t.low }

// unique compares the keys of neighbours whose hashes agree.
func (t *keyTable) unique() error {
	for a := range t.slots {
		for b := a + 1; b < len(t.slots) && t.slots[a]&^t.low == t.slots[b]&^t.low; b++ {
			i, j := int(t.slots[a]&t.low), int(t.slots[b]&t.low) // i < j: slots are sorted
			ki, err := t.key(i)
			if err != nil {
				return fmt.Errorf("checkpoint: item %d cannot be read: %w", i, err)
			}
			if kj, err := t.key(j); err != nil {
				return fmt.Errorf("checkpoint: item %d cannot be read: %w", j, err)
			} else if ki == kj {
				return &DuplicateError{Key: ki, First: i, Second: j}
			}
		}
	}
	return nil
}

// find returns the index of the item with this key.
func (t *keyTable) find(key string) (i int, ok bool, err error) {
	h := t.hash(key)
	for at, _ := slices.BinarySearch(t.slots, h); at < len(t.slots) && t.slots[at]&^t.low == h; at++ {
		i := int(t.slots[at] & t.low)
		k, err := t.key(i)
		if err != nil {
			return 0, false, fmt.Errorf("checkpoint: item %d cannot be read: %w", i, err)
		}
		if k == key {
			return i, true, nil
		}
	}
	return 0, false, nil
}
