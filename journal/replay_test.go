// How fast a book is read: a benchmark of books as a guard writes them.
package journal_test

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
	"github.com/tollbook/tollbook/journal/disk"
)

var (
	replayEntries = flag.Int("replay.entries", 100_000, "entries of the book that the benchmarks read")
	replayDir     = flag.String("replay.dir", "", "where that book is, or is made and left; empty: in a temporary directory")
)

// BenchmarkReplay reads a book with everything checked: its bytes and chain
// alone, its entries too as the command replay does, and both as verify does.
// "one" is the same in a single file, read as anybody's ledger.
//
//	go test ./journal -run '^$' -bench Replay -replay.entries 10000000 -replay.dir DIR
func BenchmarkReplay(b *testing.B) {
	book, one := bigBooks(b, *replayEntries)
	audit, err := book.Verify()
	require.NoError(b, err)
	size := audit.Bytes
	ledger := func(add func([]journal.Entry)) error {
		file, err := os.Open(one)
		require.NoError(b, err)
		defer file.Close()
		for lines, err := range journal.ReadLedgerBatches(one, file) {
			if err != nil {
				return err
			}
			add(lines.Entries)
		}
		return nil
	}
	for _, bench := range []struct {
		name string
		read func(add func([]journal.Entry)) error
	}{
		{"book", func(add func([]journal.Entry)) error { return all(book.HistoryBatches(), add) }},
		{"one", ledger},
		{"verify", func(add func([]journal.Entry)) error {
			bytes, err := book.VerifyEntries(func() func([]journal.Entry) { return add })
			require.False(b, bytes.Damaged())
			return err
		}},
	} {
		b.Run(bench.name+"/parse", func(b *testing.B) {
			measure(b, size, func() (lines int) {
				require.NoError(b, bench.read(func(entries []journal.Entry) { lines += len(entries) }))
				return lines
			})
		})
		b.Run(bench.name+"/fold", func(b *testing.B) {
			measure(b, size, func() (lines int) {
				audit := budget.NewAudit()
				require.NoError(b, bench.read(func(entries []journal.Entry) {
					lines += len(entries)
					audit.AddAll(entries)
				}))
				require.Empty(b, audit.Violations)
				return lines
			})
		})
	}
}

func all(batches iter.Seq2[[]journal.Entry, error], add func([]journal.Entry)) error {
	for entries, err := range batches {
		if err != nil {
			return err
		}
		add(entries)
	}
	return nil
}

// measure reports MB/s, and how long a line takes.
func measure(b *testing.B, bytes int64, read func() (lines int)) {
	b.SetBytes(bytes)
	lines := 0
	for b.Loop() {
		lines += read()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(lines), "ns/line")
}

// bigBooks makes a book of many segments and one of a single one.
func bigBooks(tb testing.TB, entries int) (book journal.Dir, one string) {
	dir := *replayDir
	if dir == "" {
		dir = tb.TempDir()
	}
	many, single := filepath.Join(dir, fmt.Sprint(entries)), filepath.Join(dir, fmt.Sprint(entries, ".one"))
	if _, err := os.Stat(many); err != nil {
		writeBook(tb, many, entries, 0)
		writeBook(tb, single, entries, 1<<50)
	}
	return journal.Dir{Path: many}, filepath.Join(single, "000001.jsonl")
}

// writeBook has a guard write a book, whose calls overlap by some hundreds. It
// is not made durable on the way, which would be most of the time.
func writeBook(tb testing.TB, dir string, entries int, segmentBytes int64) {
	j, err := journal.OpenFile(dir, journal.FileOptions{FS: unsynced{disk.OS()}, SegmentBytes: segmentBytes})
	require.NoError(tb, err)
	written := 0
	book, err := budget.New(context.Background(), j, budget.Tokens(budget.MaxTokens), budget.USD("900000"), budget.Prices(price{}),
		budget.Observe(func(journal.Entry) { written++ }))
	require.NoError(tb, err)
	ctx := context.Background()
	var open [300]*budget.Reservation
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; written < entries; i++ {
		at := &open[rng.IntN(len(open))]
		if r := *at; r != nil {
			if i%50 == 0 {
				require.NoError(tb, r.Extend(ctx, budget.NotBilled, "429"))
			}
			usage := budget.Usage{Input: int64(400 + i%300), Cached: int64(i % 200), Output: int64(20 + i%90), Ref: fmt.Sprintf("req_%016x", i*7919)}
			if i%1000 == 0 {
				_, err = r.Refund(ctx, budget.NeverSent, "connection refused")
			} else {
				_, err = r.Settle(ctx, usage)
			}
			require.NoError(tb, err)
		}
		if i%10_000 == 0 {
			require.NoError(tb, book.SetLimit(ctx, budget.Tokens(budget.MaxTokens).On(fmt.Sprintf("nightly/shard-%d", i%7))))
		}
		*at, err = book.Reserve(ctx, budget.Request{Scope: fmt.Sprintf("nightly/shard-%d", i%12), Model: models[i%len(models)], Tokens: int64(900 + i%1000)})
		require.NoError(tb, err)
	}
	for _, r := range open {
		if r != nil {
			_, err := r.Settle(ctx, budget.Usage{Input: 10})
			require.NoError(tb, err)
		}
	}
	require.NoError(tb, book.Close())
}

var models = []string{"gpt-5-mini", "gpt-5", "claude-sonnet-4-5"}

// price is a price table of one price.
type price struct{}

func (price) Cost(_ string, u budget.Usage) (int64, error) { return 1_500_000 * u.Total(), nil }
func (price) Table() string                                { return "2026-11-01" }
func (p price) Most(model string, u budget.Usage) (int64, error) {
	return p.Cost(model, u)
}

// unsynced leaves it to the system when bytes become durable.
type unsynced struct{ disk.FS }

func (u unsynced) Append(name string) (disk.File, error) {
	f, err := u.FS.Append(name)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ disk.File }

func (unsyncedFile) Sync() error { return nil }
