package main

// What replay and verify print on stdout: text for people, and with --json the
// same under the names of the outside contract.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

// replayJSON is what replay --json prints.
type replayJSON struct {
	Reserves    int64            `json:"reserves"`
	Refunds     int64            `json:"refunds"`
	Settles     int64            `json:"settles"`
	Reclaims    int64            `json:"reclaims"`
	Adjusts     int64            `json:"adjusts"`
	Extends     int64            `json:"extends"`
	Net         int64            `json:"net"`
	Confirmed   int64            `json:"confirmed"`
	Assumed     int64            `json:"assumed"`
	Held        int64            `json:"held"`
	Open        int64            `json:"open"`
	Overruns    int64            `json:"overruns"`
	MultiClosed map[string]int64 `json:"multi_closed"`
	Found       int64            `json:"violations_found"`
	Violations  []string         `json:"violations"` // the first of them
}

// replay prints what ledgers add up to.
func (u *ui) replay(f *ledgerFold, asJSON bool) {
	a := f.audit
	report := a.Report()
	v := replayJSON{Reserves: a.Reserves, Refunds: a.Refunds, Settles: a.Settles, Reclaims: a.Reclaims, Adjusts: a.Adjusts, Extends: a.Extends,
		Net: a.Net, Confirmed: report.Tokens.Confirmed, Assumed: report.Tokens.Assumed, Held: report.Tokens.Held, Open: a.Open(),
		Overruns: a.Overruns, MultiClosed: a.MultiClosed, Found: f.found, Violations: append([]string{}, f.violations...)}
	if asJSON {
		u.data(v)
		return
	}
	// The first five lines are a contract: scripts compare them.
	u.line("reserves %d", v.Reserves)
	u.line("refunds %d", v.Refunds)
	u.line("settles %d", v.Settles)
	u.line("net %d", v.Net)
	u.line("multi-closed rids %s", dict(v.MultiClosed))
	u.line("reclaims %d", v.Reclaims)
	u.line("adjusts %d", v.Adjusts)
	u.line("extends %d", v.Extends)
	u.line("open %d", v.Open)
	u.line("confirmed %d", v.Confirmed)
	u.line("assumed %d", v.Assumed)
	u.line("held %d", v.Held)
	u.line("overruns %d", v.Overruns)
	u.line("violations %d", v.Found)
	for _, what := range v.Violations[:min(maxShown, len(v.Violations))] {
		u.line("  %s", what)
	}
	if more := v.Found - maxShown; more > 0 {
		u.line("  and %d more; --json lists the first %d", more, len(v.Violations))
	}
}

// dict writes a map as both JSON and Python read it, the most first.
func dict(m map[string]int64) string {
	rids := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	parts := make([]string, len(rids))
	for i, rid := range rids {
		quoted, err := marshal(rid)
		if err != nil {
			quoted = []byte(strconv.Quote(rid))
		}
		parts[i] = fmt.Sprintf("%s: %d", quoted, m[rid])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// verify prints what a check of every byte and every entry found, and what
// run.json knows that is lost.
func (u *ui) verify(bytes *journal.Audit, entries *budget.Audit, lost error, asJSON bool) {
	type findingJSON struct {
		Segment string `json:"segment"`
		Line    int64  `json:"line"`
		Offset  int64  `json:"offset"`
		Bytes   int64  `json:"bytes"`
		Reason  string `json:"reason"`
		Damage  bool   `json:"damage"` // else it is how a crash or a live writer leaves the newest segment
	}
	v := struct {
		Segments   int           `json:"segments"`
		Lines      int64         `json:"lines"`
		Bytes      int64         `json:"bytes"`
		Findings   []findingJSON `json:"findings"`
		Violations []string      `json:"violations"`
	}{bytes.Segments, bytes.Lines, bytes.Bytes, []findingJSON{}, []string{}}
	for _, f := range bytes.Findings {
		v.Findings = append(v.Findings, findingJSON{f.Segment, f.Line, f.Offset, f.Bytes, f.Reason, !f.Note})
	}
	for _, violation := range entries.Violations {
		v.Violations = append(v.Violations, violation.String())
	}
	if lost != nil {
		v.Violations = append(v.Violations, lost.Error())
	}
	if asJSON {
		u.data(v)
		return
	}
	u.line("segments %d", v.Segments)
	u.line("lines %d", v.Lines)
	u.line("bytes %d", v.Bytes)
	damages := 0
	for _, f := range bytes.Findings {
		if f.Note {
			u.line("note: %s", f)
			continue
		}
		damages++
		u.line("damage: %s", f)
	}
	for _, what := range v.Violations {
		u.line("violation: %s", what)
	}
	if damages+len(v.Violations) == 0 {
		u.line("clean")
	}
}
