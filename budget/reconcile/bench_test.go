package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/tollbook/tollbook/journal"
)

// BenchmarkCompare streams a history of calls that are confirmed, but for one
// in a hundred.
func BenchmarkCompare(b *testing.B) {
	b.ReportAllocs()
	report := usageOf(day, []Line{used("m", 1, 1)})
	entries := func(yield func(journal.Entry, error) bool) {
		for i := range b.N {
			e := journal.Entry{Kind: journal.Reserve, RID: fmt.Sprintf("0198f3a0-0000-7000-8000-%012d", i), T: nov1.Add(time.Duration(i)).UnixMicro(), Model: "m", Change: journal.Change{Amount: 100, Requests: 1}}
			if !yield(e, nil) {
				return
			}
			e.Kind, e.Change, e.Usage = journal.Settle, journal.Change{Amount: -50, Confirmed: 50}, journal.Usage{In: 40, Out: 10}
			if i%100 == 0 {
				e.Change, e.Usage = journal.Change{Assumed: 100, Maybe: 1}, journal.Usage{}
			}
			if !yield(e, nil) {
				return
			}
		}
	}
	if _, err := Compare(report, entries, late); err != nil {
		b.Fatal(err)
	}
}
