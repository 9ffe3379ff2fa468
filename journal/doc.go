// Package journal keeps the facts of a book in order: an append-only list of
// entries, in a file or in memory. It stores and checks; which entry may
// follow which is the business of package budget.
//
// [OpenFile] is the journal on disk and [NewMemory] the one that ends with the
// process; both append only if nobody else did since the caller looked, and
// both begin a new segment with the whole state. [Dir] reads a journal on disk
// without disturbing its writer, and [ReadLedger] anybody's ledger.
//
// What a file journal promises rests on this: fsync does what it says or
// fails; a rename on one file system is atomic; the disk is local. A drive
// that acknowledges what it has not stored breaks the promise, and so does a
// network file system. Damage to what was durable is found by checksums, of
// lines and of their order, and never repaired by itself.
//
// To read the source, begin with entry.go (what is stored), line.go (as what),
// chain.go (in which order), file.go (how it is appended), rotate.go, open.go
// and recover.go (how a segment begins and what a crash leaves); then segment.go
// and blocks.go (how it is read, line by line and on all cores), ballast.go (a
// full disk), repair.go and salvage.go (damage).
package journal
