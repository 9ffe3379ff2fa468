// Both journals of this package pass the suite that every journal must pass.
package journal_test

import (
	"path/filepath"
	"testing"

	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/journaltest"
)

func TestMemoryConforms(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journaltest.Store {
		return journaltest.Store{Open: func(testing.TB) journaltest.Journal { return journal.NewMemory() }}
	})
}

func TestFileConforms(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) journaltest.Store {
		dir := filepath.Join(t.TempDir(), "book")
		return journaltest.Store{Keeps: true, Open: func(t testing.TB) journaltest.Journal {
			f, err := journal.OpenFile(dir, journal.FileOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}}
	})
}
