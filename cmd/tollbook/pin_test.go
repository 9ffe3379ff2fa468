// What a run changes in the book at its beginning is witnessed at once: a run
// that is killed leaves a run.json that knows it (I8).
package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
)

func TestOpeningIsWitnessed(t *testing.T) {
	dir := t.TempDir()
	o := runOptions{state: dir, out: filepath.Join(dir, "out")}
	defer o.unlock()
	was := uint64(0)
	for n := range int64(2) {
		book, err := o.open(t.Context(), &pin{Version: pinVersion, Out: "out"}, []budget.Option{budget.Tokens(n)})
		require.NoError(t, err)
		p, err := readPin(o.state)
		require.NoError(t, err)
		require.Equal(t, book.Report().Seq, p.Seq)
		require.Greater(t, p.Seq, was)
		was = p.Seq
		o.unlock()
		require.NoError(t, book.Close())
		_, err = checkBook(o.state)
		require.NoError(t, err)
	}
	p, err := readPin(o.state)
	require.NoError(t, err)
	p.Seq += 100
	require.NoError(t, p.write(o.state))
	_, err = o.open(t.Context(), &pin{Version: pinVersion, Out: "out"}, nil)
	require.Equal(t, exitBroken, exitCode(err), "opening does not sign what it contradicts")
}
