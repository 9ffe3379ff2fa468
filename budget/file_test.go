package budget_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// The book on disk, in real processes: what was acknowledged is there after
// SIGKILL, and a second process is refused.

func TestMain(m *testing.M) {
	if dir := os.Getenv("TOLLBOOK_TEST_BOOK"); dir != "" {
		work := hammer
		if os.Getenv("TOLLBOOK_TEST_HOLD") != "" {
			work = holdOne
		}
		if err := work(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hammer reserves and settles until it is killed, and prints what it was
// acknowledged, after it was.
func hammer(dir string) error {
	ctx := context.Background()
	book, err := budget.Open(ctx, dir)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		r, err := book.Reserve(ctx, budget.Request{Tokens: 10, Scope: "s"})
		if err != nil {
			return err
		}
		fmt.Println("reserved", r.RID())
		if i%3 == 2 {
			continue // left open
		}
		if _, err := r.Settle(ctx, budget.Usage{Input: 7}); err != nil {
			return err
		}
		fmt.Println("settled", r.RID())
	}
}

// holdOne reserves r1, says so, and never closes it.
func holdOne(dir string) error {
	book, err := budget.Open(context.Background(), dir, budget.OnOrphan(budget.OrphanKeep))
	if err != nil {
		return err
	}
	if _, err := book.Reserve(context.Background(), budget.Request{RID: "r1", Tokens: 7}); err != nil {
		return err
	}
	fmt.Println("reserved r1")
	_, err = io.ReadAll(os.Stdin) // until it is killed
	return err
}

// cases 17, 63: a killed owner's hold has a name and an age. It is in every view
// before anything is written since, and closed by its rid, by whoever comes first.
func TestHoldOfAKilledOwner(t *testing.T) {
	s := newDesk(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TOLLBOOK_TEST_BOOK="+s.Path, "TOLLBOOK_TEST_HOLD=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "reserved r1\n", line)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	seen, err := budget.Fold(s.Newest())
	require.NoError(t, err)
	require.Equal(t, budget.Figures{Net: 7, Held: 7}, seen.Tokens)
	require.Len(t, seen.Open, 1)
	require.Equal(t, "r1", seen.Open[0].RID)
	require.InDelta(t, time.Now().Unix(), seen.Open[0].Since.Unix(), 60)

	b := s.open(t)
	require.Equal(t, seen.Open, b.Report().Open)
	require.Equal(t, budget.Orphan{OpenReservation: seen.Open[0], Policy: budget.OrphanKeep}, b.Report().Orphans[0])
	closeByMany(t, s, 1, b.Reservation("r1"))
	require.Equal(t, budget.Figures{Net: 5, Confirmed: 5}, b.Report().Tokens)
	require.NoError(t, s.reopen(t, b).Close())
}

func TestKilledProcessesLoseNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "book")
	said := map[string]string{}
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "TOLLBOOK_TEST_BOOK="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 0; n < 30+7*round && lines.Scan(); n++ {
			verb, rid, ok := strings.Cut(lines.Text(), " ")
			require.True(t, ok && verb != "error", lines.Text())
			said[rid] = verb
			if n == 10 {
				_, err := budget.Open(t.Context(), dir)
				require.ErrorIs(t, err, journal.ErrLocked, "a second process is refused")
			}
		}
		require.NoError(t, cmd.Process.Kill())
		for lines.Scan() { // what it had said before it died
			if verb, rid, ok := strings.Cut(lines.Text(), " "); ok && len(rid) == 36 {
				said[rid] = verb
			}
		}
		require.Error(t, cmd.Wait())
	}
	book, err := budget.Open(t.Context(), dir)
	require.NoError(t, err)
	require.True(t, book.Report().Recovery.Unclean, "I8: what was mended is told")
	require.NoError(t, book.Close())

	audit, seen := budget.NewAudit(), map[string]string{}
	for e, err := range (journal.Dir{Path: dir}).History() {
		require.NoError(t, err)
		audit.Add(&e)
		switch e.Kind {
		case journal.Reserve:
			seen[e.RID] = "reserved"
		case journal.Settle:
			if e.Confirmed > 0 {
				seen[e.RID] = "settled"
			}
		}
	}
	require.Empty(t, audit.Violations)
	require.Zero(t, audit.Open(), "orphans are charged")
	for rid, verb := range said {
		if verb == "settled" {
			require.Equal(t, "settled", seen[rid], "acknowledged and lost: %s", rid)
		} else {
			require.NotEmpty(t, seen[rid], "acknowledged and lost: %s", rid)
		}
	}
}

// Rule 17: a settled reservation is remembered over reopenings where a late call may
// name it, and the book's own rids of plain calls are not.
func TestRotationCarriesWhatALateCallNeeds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "book")
	book, err := budget.Open(t.Context(), dir, budget.Tokens(1000))
	require.NoError(t, err)
	plain := reserve(t, book, 10, 0)
	settle(t, plain, 5)
	refunded := reserve(t, book, 20, 0)
	_, err = refunded.Refund(t.Context(), budget.NeverSent, "dial")
	require.NoError(t, err)
	assumed := reserve(t, book, 30, 0)
	require.NoError(t, assumed.Close())
	open := reserve(t, book, 40, 0)
	require.NoError(t, open.Extend(t.Context(), budget.MaybeBilled, "timeout"))
	before := book.Report().Balance
	require.NoError(t, book.Close())

	for range 3 {
		book, err = budget.Open(t.Context(), dir, budget.OnOrphan(budget.OrphanKeep))
		require.NoError(t, err)
		require.Equal(t, before, book.Report().Balance)
		require.NoError(t, book.Close())
	}
	pruned, err := journal.Dir{Path: dir}.Prune(time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Len(t, pruned.Segments, 2, "that of their reserves, too")
	book, err = budget.Open(t.Context(), dir, budget.OnOrphan(budget.OrphanKeep))
	require.NoError(t, err)
	defer book.Close()
	_, err = book.Reservation(plain.RID()).Settle(t.Context(), budget.Usage{Input: 5})
	require.ErrorIs(t, err, budget.ErrUnknown)
	receipt, err := book.Reservation(refunded.RID()).Reclaim(t.Context())
	require.NoError(t, err)
	require.True(t, receipt.Booked)
	require.Equal(t, int64(20), receipt.Assumed)
	require.Equal(t, int64(3), settle(t, book.Reservation(assumed.RID()), 3).Confirmed)
	receipt = settle(t, book.Reservation(open.RID()), 4)
	require.Equal(t, []int64{4, 40, 2}, []int64{receipt.Confirmed, receipt.Assumed, receipt.Attempts})
	require.Equal(t, budget.Figures{Net: 5 + 20 + 3 + 44, Confirmed: 5 + 3 + 4, Assumed: 20 + 40}, book.Report().Tokens)
}

// A book opened by a relative path stays where it is.
func TestBookOutlivesChdir(t *testing.T) {
	t.Chdir(t.TempDir())
	book, err := budget.Open(t.Context(), "book")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir("sub", 0o700))
	t.Chdir("sub")
	settle(t, reserve(t, book, 1, 0), 1)
	require.NoError(t, book.Close())
}
