package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// A carried line that does not say what it carries is damage, though its
// checksum is right.
func TestShowCarryOfNothing(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.OpenFile(dir, journal.FileOptions{})
	require.NoError(t, err)
	_, err = j.Rotate(t.Context(), 0, []journal.Entry{
		{Kind: journal.Open, Opening: &journal.Opening{}},
		{Kind: journal.Carry, RID: "x", Carried: true},
	})
	require.NoError(t, err)
	require.NoError(t, j.Close())
	_, err = findLives(journal.Dir{Path: dir}, "x")
	require.ErrorIs(t, err, budget.ErrDamaged)
	assert.ErrorContains(t, err, `carry line 2 of "x" names no state`)
	assert.Equal(t, exitBroken, exitCode(err))
}
