package main

// What status and show print on stdout: text for people, and with --json the
// same under the names of the outside contract.

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/journal"
)

// figuresJSON are the four parts of a balance, in tokens or picodollars.
type figuresJSON struct {
	Net       int64 `json:"net"`
	Confirmed int64 `json:"confirmed"`
	Assumed   int64 `json:"assumed"`
	Held      int64 `json:"held"`
}

// bookJSON is what status and run share.
type bookJSON struct {
	figuresJSON
	Open   int64       `json:"open"`
	Cost   figuresJSON `json:"cost"`
	Limits []limitJSON `json:"limits"`
}

// limitJSON is one limit; the unit it counts is the one that is there.
type limitJSON struct {
	Scope    string `json:"scope"` // empty is the whole book
	Tokens   *int64 `json:"tokens,omitempty"`
	Cost     *int64 `json:"cost,omitempty"`
	Requests *int64 `json:"requests,omitempty"`
	Window   string `json:"window"` // empty is for ever
	Free     int64  `json:"free"`   // negative after an overrun
	Told     int    `json:"told"`   // percent of the highest soft limit told
}

func toBookJSON(r *budget.Report) bookJSON {
	b := bookJSON{figuresJSON: figuresJSON(r.Tokens), Open: r.Balance.Open, Cost: figuresJSON(r.Cost), Limits: []limitJSON{}}
	for _, l := range r.Limits {
		if l.Unlimited {
			continue
		}
		j := limitJSON{Scope: l.Scope, Free: l.Free, Told: l.Told}
		switch l.Unit {
		case budget.TokenUnit:
			j.Tokens = &l.Max
		case budget.CostUnit:
			j.Cost = &l.Max
		default:
			j.Requests = &l.Max
		}
		b.Limits = append(b.Limits, j)
	}
	return b
}

// maxShown is how many of a list are printed for people.
const maxShown = 20

// statusJSON is what status --json prints.
type statusJSON struct {
	Book string `json:"book"`
	bookJSON
	Requests     int64             `json:"requests"` // attempts that left, or may have left
	Low          bool              `json:"low"`      // the book has no ballast; see [journal.Dir.Low]
	Items        int               `json:"items"`
	Done         int               `json:"done"`
	Failed       int               `json:"failed"`
	Dead         int               `json:"dead"`
	Pending      int               `json:"pending"`
	Reservations []reservationJSON `json:"reservations"`
	Shards       []shardJSON       `json:"shards"`
}

type reservationJSON struct {
	RID      string    `json:"rid"`
	Scope    string    `json:"scope"`
	Key      string    `json:"key"`
	Model    string    `json:"model"`
	Tokens   int64     `json:"tokens"`
	Cost     int64     `json:"cost"`
	Attempts int64     `json:"attempts"`
	Since    time.Time `json:"since"`
}

type shardJSON struct {
	Shard   int    `json:"shard"`
	Items   int    `json:"items"`
	Done    int    `json:"done"`
	Failed  int    `json:"failed"`
	Dead    int    `json:"dead"`
	Pending int    `json:"pending"`
	Error   string `json:"error,omitempty"`
}

// status prints where a book and its shards stand.
func (u *ui) status(r *budget.Report, shards []checkpoint.ShardStatus, low, asJSON bool) {
	v := statusJSON{Book: r.Book, bookJSON: toBookJSON(r), Requests: r.Requests, Low: low, Reservations: []reservationJSON{}, Shards: []shardJSON{}}
	for _, o := range r.Open {
		v.Reservations = append(v.Reservations, reservationJSON(o))
	}
	for _, s := range shards {
		j := shardJSON{Shard: s.Shard, Items: s.Items, Done: s.Done, Failed: s.Failed, Dead: s.Dead, Pending: s.Items - s.Done - s.Failed - s.Dead}
		if s.Err != nil {
			j.Error = s.Err.Error()
		}
		v.Shards = append(v.Shards, j)
		v.Items, v.Done, v.Failed, v.Dead, v.Pending = v.Items+j.Items, v.Done+j.Done, v.Failed+j.Failed, v.Dead+j.Dead, v.Pending+j.Pending
	}
	if asJSON {
		u.data(v)
		return
	}

	if low {
		u.say("no room in reserve: the book has no BALLAST, as after a full disk or in a copy that left it out; it makes one in use, and admits no call while the disk is too full for that")
	}
	w := tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "book\t%s\n", v.Book)
	for _, l := range r.Limits {
		fmt.Fprintf(w, "limit\t%s\n", limitText(l))
	}
	if len(v.Limits) == 0 {
		fmt.Fprint(w, "limit\tnone\n")
	}
	fmt.Fprintf(w, "net\t%s\n", balanceText(r.Balance))
	fmt.Fprintf(w, "requests\t%s\n", group(r.Requests))
	fmt.Fprintf(w, "open\t%d\n", v.Open)
	for _, o := range v.Reservations[:min(maxShown, len(v.Reservations))] {
		fmt.Fprintf(w, "\t%s  %s tokens since %s (%s ago), %s\n", o.RID, group(o.Tokens), o.Since.Format(time.DateTime), time.Since(o.Since).Round(time.Second), o.Key)
	}
	if more := len(v.Reservations) - maxShown; more > 0 {
		fmt.Fprintf(w, "\tand %d more; --json lists them all\n", more)
	}
	w.Flush()
	if len(v.Shards) == 0 {
		return
	}
	w = tabwriter.NewWriter(u.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\nshard\titems\tdone\tfailed\tdead\tpending\t\n")
	for _, s := range v.Shards {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t\n", s.Shard, s.Items, s.Done, s.Failed, s.Dead, s.Pending)
	}
	w.Flush()
	for _, s := range v.Shards {
		if s.Error != "" {
			u.say("shard %d: %s; the next run makes it anew", s.Shard, s.Error)
		}
	}
}

// show prints the lives of reservations, entry by entry.
func (u *ui) show(lives []life, asJSON bool) error {
	if asJSON {
		return u.showJSON(lives)
	}
	for i, l := range lives {
		if i > 0 {
			u.line("")
		}
		first := l.entries[0]
		w := tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "rid\t%s\nstate\t%s\n", l.rid, l.state())
		for _, f := range [...]struct{ name, value string }{{"key", first.Key}, {"scope", first.Scope}, {"model", first.Model}} {
			if f.value != "" {
				fmt.Fprintf(w, "%s\t%s\n", f.name, f.value)
			}
		}
		w.Flush()
		w = tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, "\ntime\tentry\tnet\tconfirmed\tassumed\t\n")
		for _, e := range l.entries {
			fmt.Fprintf(w, "%s\t%s\t%+d\t%+d\t%+d\t%s\n", time.UnixMicro(e.T).Format("2006-01-02 15:04:05.000"), e.Kind, e.Amount, e.Confirmed, e.Assumed, noteOf(&e))
		}
		w.Flush()
	}
	return nil
}

// showJSON prints each entry as its line in the journal.
func (u *ui) showJSON(lives []life) error {
	type lifeJSON struct {
		RID     string            `json:"rid"`
		State   string            `json:"state"`
		Entries []json.RawMessage `json:"entries"`
	}
	all := []lifeJSON{}
	for _, l := range lives {
		j := lifeJSON{RID: l.rid, State: l.state()}
		for _, e := range l.entries {
			line, err := journal.AppendLine(nil, &e)
			if err != nil {
				return err
			}
			j.Entries = append(j.Entries, line)
		}
		all = append(all, j)
	}
	u.data(all)
	return nil
}

// noteOf is what an entry says besides figures.
func noteOf(e *journal.Entry) string {
	var notes []string
	if e.Tries > 0 {
		notes = append(notes, count(e.Tries, "attempt"))
	}
	for _, f := range [...]struct{ name, value string }{{"", e.Why}, {"evidence ", e.Evidence}, {"ref ", e.Ref}} {
		if f.value != "" {
			notes = append(notes, f.name+f.value)
		}
	}
	if e.Carried {
		notes = append(notes, "carried from an older segment")
	}
	return strings.Join(notes, ", ")
}

// balanceText is a balance in one line.
func balanceText(b budget.Balance) string {
	text := fmt.Sprintf("%s tokens: %s confirmed, %s assumed, %s held", group(b.Tokens.Net), group(b.Tokens.Confirmed), group(b.Tokens.Assumed), group(b.Tokens.Held))
	if b.Cost != (budget.Figures{}) {
		text += fmt.Sprintf("; %s: %s confirmed, %s assumed, %s held", budget.FormatUSD(b.Cost.Net), budget.FormatUSD(b.Cost.Confirmed), budget.FormatUSD(b.Cost.Assumed), budget.FormatUSD(b.Cost.Held))
	}
	return text
}

// limitText is a limit and what it has left, in one line.
func limitText(l budget.LimitReport) string {
	scope := ""
	if l.Scope != "" {
		scope = " on " + l.Scope
	}
	if l.Unlimited {
		return fmt.Sprintf("unlimited %s%s", l.Unit, scope)
	}
	return fmt.Sprintf("%s%s, %s free", amountText(l.Unit, l.Max), scope, amountText(l.Unit, l.Free))
}

// amountText is Unit.Format with digits in groups.
func amountText(u budget.Unit, n int64) string {
	if u == budget.CostUnit {
		return budget.FormatUSD(n)
	}
	return group(n) + " " + u.String()
}

// count is a number of things.
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return group(n) + " " + thing + "s"
}

// group writes a number with its digits in groups of three.
func group(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
