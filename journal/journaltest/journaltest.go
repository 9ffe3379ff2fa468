// Package journaltest is the suite that every journal must pass: what package
// budget builds on, one promise a case. Whoever stores a book's entries
// elsewhere runs it in a test:
//
//	func TestJournal(t *testing.T) {
//		journaltest.Run(t, func(t *testing.T) journaltest.Store {
//			path := filepath.Join(t.TempDir(), "book.db")
//			return journaltest.Store{Keeps: true, Open: func(t testing.TB) journaltest.Journal {
//				j, err := mystore.Open(path)
//				if err != nil {
//					t.Fatal(err)
//				}
//				return j
//			}}
//		})
//	}
//
// I1 to I8 are the promises of DESIGN.md, rules are those of
// journal/DURABILITY.md. Whether an entry survives a power cut is beyond this
// suite: that takes a disk that crashes, as package journal/disk makes them.
package journaltest

import (
	"context"
	"iter"
	"testing"

	"github.com/tollbook/tollbook/journal"
)

// Journal is what package budget asks of a journal. If it also has the methods
//
//	Close() error
//	Due(carried int) bool
//
// they are tested, too.
type Journal interface {
	Append(ctx context.Context, after journal.Pos, batch journal.Batch) (journal.Pos, error)
	Entries(ctx context.Context, after journal.Pos) iter.Seq2[journal.Entry, error]
	Rotate(ctx context.Context, after journal.Pos, carried []journal.Entry) (journal.Pos, error)
}

// Store is a place for one journal, empty at first, and what can be done to
// it. Only Open is required; cases that need what a store lacks are skipped.
type Store struct {
	// Open returns a handle on the journal. It ends the test if it cannot.
	// Handles that a case leaves open are the store's to clean up, where that
	// matters.
	Open func(t testing.TB) Journal
	// Keeps: the content outlives its handle. Once a handle was closed or
	// killed, Open finds again what was there.
	Keeps bool
	// Kill drops the open handle without Close, as the end of its process
	// would.
	Kill func(t testing.TB)
	// Shared: Open may be called while other handles are open, and all are on
	// the same content, as those of several processes are.
	Shared bool
	// FailAppend makes the next Append of the open handle report an error,
	// whatever became of its entries.
	FailAppend func(t testing.TB)
}

// Run tests a journal; open makes a new store for each case.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
	}
}

// check runs one case, and says what a failure breaks.
func (c *testCase) check(t testing.TB, s Store) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("broken promise: %s", c.promise)
		}
	})
	c.test(t, s)
}

type testCase struct {
	name    string
	promise string
	test    func(t testing.TB, s Store)
}

var cases = []testCase{
	{"EveryField", "what was appended is read back, every field of it (I1, rule 29)", everyField},
	{"Positions", "positions rise by one with every entry, and entries carry them (rule 3)", positions},
	{"Conflict", "an append that does not follow the last entry is a conflict and writes nothing (I4)", conflict},
	{"Repeat", "the newest batch again, at its position, is success and written once (rule 27)", repeat},
	{"EmptyBatch", "a batch of nothing writes nothing", emptyBatch},
	{"AllOrNothing", "a batch is appended whole or not at all (rule 18)", allOrNothing},
	{"ReadBackOrRefused", "what could not be read back is not written (rule 29)", readBackOrRefused},
	{"FirstARotation", "nothing is appended before the first segment was begun (rule 7)", firstARotation},
	{"ContextDone", "a context that is done keeps a call from starting", contextDone},
	{"OwnMemory", "an entry never changes: its memory is shared with nobody (I1)", ownMemory},
	{"Contention", "whoever races, each batch is there once, whole, and where its writer was told (I2, I4)", contention},
	{"FailedAppend", "an append that failed is settled by repeating it, or poisons the journal (rules 1, 8, 27)", failedAppend},

	{"Snapshot", "a rotation is the snapshot: the newest segment is the whole state (I3, rule 14)", snapshot},
	{"RotateConflict", "a rotation that does not follow the last entry is a conflict and changes nothing (I4)", rotateConflict},
	{"RotateRefuses", "a segment begins with an open entry of the same book, or not at all (rule 14)", rotateRefuses},
	{"DueByHalf", "no segment is due again at once: what rotations cost stays in proportion (rule 14)", dueByHalf},

	{"EntriesAfter", "entries are those behind a position; of one before the newest segment, all of that (I3)", entriesAfter},
	{"EntriesStop", "a reader may stop anywhere, and read again", entriesStop},
	{"ReadWhileAppending", "a reader sees all that was there when it began, in order, and ends (rule 24)", readWhileAppending},
	{"ReadWhileRotating", "a reader whose entries a rotation drops is told, and sees nothing false (rule 24)", readWhileRotating},

	{"Close", "after Close every call fails with ErrClosed, and every Close answers alike (rule 22)", closed},
	{"Reopen", "what was acknowledged is there in the next process, and positions go on rising (I1, rule 1)", reopen},
	{"Kill", "what was acknowledged outlives a kill (rule 1)", kill},
	{"SecondHandle", "handles of one journal exclude each other by conflicts, and repeats are safe between them (I4, rules 26, 27)", secondHandle},
}
