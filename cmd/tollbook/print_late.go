package main

// What reclaim, adjust and limit print on stdout.

import (
	"fmt"
	"text/tabwriter"

	"github.com/tollbook/tollbook/budget"
)

// receiptJSON is what reclaim and adjust print with --json.
type receiptJSON struct {
	RID           string `json:"rid"`
	State         string `json:"state"`
	Confirmed     int64  `json:"confirmed"` // tokens
	Assumed       int64  `json:"assumed"`
	ConfirmedCost int64  `json:"confirmed_cost"` // picodollars
	AssumedCost   int64  `json:"assumed_cost"`
	Attempts      int64  `json:"attempts"`
	Overrun       int64  `json:"overrun"` // tokens
	OverrunCost   int64  `json:"overrun_cost"`
	Booked        bool   `json:"booked"` // by this very call
}

// receipt prints what is booked on a reservation.
func (u *ui) receipt(r budget.Receipt, asJSON bool) {
	if asJSON {
		u.data(receiptJSON{r.RID, r.State.String(), r.Confirmed, r.Assumed, r.ConfirmedCost, r.AssumedCost, r.Attempts, r.Overrun, r.OverrunCost, r.Booked})
		return
	}
	w := tabwriter.NewWriter(u.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "rid\t%s\nstate\t%s\n", r.RID, r.State)
	fmt.Fprintf(w, "confirmed\t%s\n", spentText(r.Confirmed, r.ConfirmedCost))
	fmt.Fprintf(w, "assumed\t%s\n", spentText(r.Assumed, r.AssumedCost))
	fmt.Fprintf(w, "attempts\t%d\n", r.Attempts)
	if r.Overrun > 0 || r.OverrunCost > 0 {
		fmt.Fprintf(w, "overrun\t%s\n", spentText(r.Overrun, r.OverrunCost))
	}
	w.Flush()
}

// spentText is tokens and, where there is some, money.
func spentText(tokens, cost int64) string {
	text := count(tokens, "token")
	if cost != 0 {
		text += ", " + budget.FormatUSD(cost)
	}
	return text
}

// limits prints the limits of a book, after one was changed or not.
func (u *ui) limits(r *budget.Report, booked, asJSON bool) {
	if asJSON {
		u.data(struct {
			Booked bool        `json:"booked"`
			Limits []limitJSON `json:"limits"`
		}{booked, toBookJSON(r).Limits})
		return
	}
	for _, l := range r.Limits {
		u.line("limit %s", limitText(l))
	}
	if len(r.Limits) == 0 {
		u.line("limit none")
	}
	if !booked {
		u.say("nothing changed: it is so already")
	}
}

// mended says what the opening of a book had to mend.
func (u *ui) mended(r *budget.Report) {
	if torn := r.Recovery; torn.Torn > 0 {
		u.say("repaired the book: a crash had torn its last write; %d bytes were cut off and are kept in %s", torn.Torn, torn.Kept)
	}
}
