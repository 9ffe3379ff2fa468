//go:build !linux

package disk

// fallocate reports false: only Linux offers it to everybody.
func (f osFile) fallocate(off, n int64) (done bool, err error) { return false, nil }
