package budget_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var simMutants = flag.Bool("sim.mutants", false, "take safeguards out of a copy of the code, one at a time: TestSimulation must notice within -seeds")

// mutant is the code without one of its safeguards.
type mutant struct {
	name  string
	edits []edit
}

// edit replaces what stands once in a file.
type edit struct{ file, old, new string }

var mutants = []mutant{
	{"no extend before a retry", []edit{{"middleware/transport.go", "c.hold.Extend(ctx, c.last.outcome, c.last.why); err != nil", "error(nil); err != nil"}}},
	{"an extend that adds nothing", []edit{{"budget/state.go", "change.Amount, change.Cost, change.Maybe = h.each, h.eachCost, 1", "change.Maybe = 1"}}},
	{"no sync before the answer", []edit{{"journal/file.go", "	if err == nil {\n		err = f.active.Sync()\n	}\n	if err == nil {\n		err = f.linked()", "	if err == nil {\n		err = f.linked()"}}},
	{"closed as often as asked", []edit{{"budget/decide.go", "		if h.state == StateOpen {\n			b.entries, err = h.settle", "		if h.state != 0 {\n			b.entries = h.closing(b.entries, Usage{}, money{})\n		} else {\n			b.entries, err = h.settle"}, {"budget/state.go", "	if h.state != want {", "	if h.state != want && e.Kind != journal.Settle {"}}},
	{"orphans are given back", []edit{{"budget/book.go", "o.kind, o.usage.Why = opSettle, \"orphan\"", "o.kind, o.last, o.why = opRefund, NotBilled, \"orphan\""}}},
	{"a reclaim of half", []edit{{"budget/state.go", "	e.Assumed, e.AssumedCost, e.Maybe = h.each, h.eachCost, 1\n	if h.unsent", "	e.Amount /= 2\n	e.Assumed, e.AssumedCost, e.Maybe = e.Amount, h.eachCost, 1\n	if h.unsent"}}},
	{"a timeout is given back", []edit{{"middleware/exchange.go", "	return budget.MaybeBilled\n}", "	return budget.NotBilled\n}"}}},
	{"a cut stream costs nothing", []edit{{"middleware/closing.go", "		*u = budget.Usage{Ref: u.Ref, Why: why}", "		*u = budget.NothingUsed"}}},
	{"an aborted stream costs what was seen", []edit{{"middleware/closing.go", "case aborted && c.guard.onAbort == ObservedOnAbort:", "case aborted:"}}},
	{"an answer without usage costs nothing", []edit{{"middleware/closing.go", "	if !u.Known() && u.Why == \"\" {", "	if !u.Known() {\n		u = budget.NothingUsed\n	}\n	if !u.Known() && u.Why == \"\" {"}}},
	{"a 500 is free", []edit{{"middleware/meter/refusal.go", "	case 402, 429:", "	case 402, 429, 500:"}}},
	{"holds do not count", []edit{{"budget/account.go", "(asked <= limit.max-u.of(at.sum) && limit.max > 0)", "(asked <= limit.max-u.spent(at.sum) && limit.max > 0)"}}},
	{"an answer before its close", []edit{{"middleware/transport.go", "		c.close(c.last)()\n	}\n	return resp, err", "		go func() { c.close(c.last)() }()\n	}\n	return resp, err"}}},
	{"the end of a stream before its close", []edit{{"middleware/stream.go", "	s.tell = s.call.close(res)", "	go func() { s.call.close(res)() }()"}}},
	{"a failed sync is not final", []edit{{"journal/file.go", "		f.active.Truncate(f.synced)\n		return f.fail(err)", "		f.active.Truncate(f.synced)\n		return err"}}},
	{"an item is done before its line is synced", []edit{{"checkpoint/lines.go", "	if err := f.file.Sync(); err != nil {\n		f.poison", "	if err := error(nil); err != nil {\n		f.poison"}}},
	{"a torn end goes on", []edit{{"journal/recover.go", "	case end.damage != nil && !end.torn:", "	case end.damage != nil:"}}},
}

// TestSimulationMutants: without any one of its safeguards the code is found out.
func TestSimulationMutants(t *testing.T) {
	if !*simMutants {
		t.Skip("takes minutes: -sim.mutants")
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(root)))
			for _, e := range m.edits {
				path := filepath.Join(dir, e.file)
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, 1, strings.Count(string(text), e.old), "in %s: %s", e.file, e.old)
				require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600))
			}
			cmd := exec.Command("go", "test", "./budget", "-vet=off", "-run", "^TestSimulation$", "-seeds", strconv.Itoa(*simSeeds), "-sim.again", "0")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "nothing was noticed in %d seeds", *simSeeds)
			found := regexp.MustCompile(`seed (\d+): (.*)`).FindStringSubmatch(string(out))
			require.NotNil(t, found, "%s", out)
			t.Logf("noticed by seed %s: %.150s", found[1], found[2])
		})
	}
}
