package main

// What scripts about late corrections need: books and reports of the day before
// yesterday, which is final and within the horizon.

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/middleware/providertest"
)

// Without --apply it works beside a run; with it, it needs the book for itself,
// and what it cannot have it leaves alone.
func TestReconcileBesideARun(t *testing.T) {
	state := t.TempDir()
	book, err := budget.Open(context.Background(), filepath.Join(state, "book"))
	require.NoError(t, err)
	defer book.Close()
	r, err := book.Reserve(context.Background(), budget.Request{Model: "gpt-4o", Tokens: 100})
	require.NoError(t, err)
	_, err = r.Settle(context.Background(), budget.Usage{Input: 10, Output: 5})
	require.NoError(t, err)
	report := fmt.Sprintf("start,end,model,input,output\n%d,%d,gpt-4o,10,5\n", theDay.Unix(), theDay.AddDate(0, 0, 4).Unix())
	call := func(args ...string) (code int, stdout, stderr string) {
		var out, err strings.Builder
		code = tollbook(append([]string{"reconcile", state, "--usage", "-"}, args...), strings.NewReader(report), &out, &err)
		return code, out.String(), err.String()
	}
	code, stdout, stderr := call()
	require.Equal(t, exitDone, code, stderr)
	require.Regexp(t, `gpt-4o +15 +15 +0 +0 +0 +ok\n$`, stdout)
	code, stdout, stderr = call("--apply")
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "one process at a time runs a state")
}

// theDay is the day that books and reports are of.
var theDay = time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -2)

// book DIR CALL... makes a book of that day, or adds to it. A CALL is
// settled:MODEL:INPUT:OUTPUT, or assumed, refunded, open or KEY=open:MODEL:TOKENS;
// $RID is the last one's. The first may be @DAYS ago instead.
func cmdBook(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: book DIR [@DAYS] CALL...")
	}
	ctx := context.Background()
	noon, calls := theDay.Add(12*time.Hour), args[1:]
	if days, old := strings.CutPrefix(calls[0], "@"); old {
		n, err := strconv.Atoi(days)
		ts.Check(err)
		noon, calls = time.Now().AddDate(0, 0, -n), calls[1:]
	}
	book, err := budget.Open(ctx, ts.MkAbs(args[0]), budget.Clock(func() time.Time { return noon }), budget.OnOrphan(budget.OrphanKeep))
	ts.Check(err)
	for _, call := range calls {
		key, rest, keyed := strings.Cut(call, "=")
		if !keyed {
			key, rest = "", call
		}
		kind, model, figures := split3(ts, rest)
		sum := figures[0] + figures[len(figures)-1]
		r, err := book.Reserve(ctx, budget.Request{Key: key, Model: model, Tokens: max(figures[0], sum*int64(len(figures)-1))})
		ts.Check(err)
		ts.Setenv("RID", r.RID())
		switch kind {
		case "settled":
			_, err = r.Settle(ctx, budget.Usage{Input: figures[0], Output: figures[1]})
		case "assumed":
			err = r.Close()
		case "refunded":
			_, err = r.Refund(ctx, budget.NotBilled, "timeout")
		case "open":
		default:
			ts.Fatalf("%q is no call", call)
		}
		ts.Check(err)
	}
	ts.Check(book.Close())
}

// split3 takes WORD:WORD:NUMBER[:NUMBER] apart.
func split3(ts *testscript.TestScript, text string) (first, second string, figures []int64) {
	parts := strings.Split(text, ":")
	if len(parts) < 3 {
		ts.Fatalf("%q has too few parts", text)
	}
	for _, part := range parts[2:] {
		n, err := strconv.ParseInt(part, 10, 64)
		ts.Check(err)
		figures = append(figures, n)
	}
	return parts[0], parts[1], figures
}

// report FILE LINE... writes a usage page of that day. A LINE is
// KIND:MODEL:INPUT:OUTPUT; an empty model is none.
func cmdReport(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: report FILE LINE...")
	}
	results := []any{}
	for _, line := range args[1:] {
		kind, model, figures := split3(ts, line)
		result := map[string]any{"object": "organization.usage." + kind + ".result", "input_tokens": figures[0], "output_tokens": figures[1], "num_model_requests": 1}
		if model != "" {
			result["model"] = model
		}
		results = append(results, result)
	}
	text, err := json.Marshal(map[string]any{"object": "page", "has_more": false, "data": []any{map[string]any{
		"object": "bucket", "start_time": theDay.Unix(), "end_time": theDay.AddDate(0, 0, 1).Unix(), "results": results}}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
}

// bill FILE writes what the provider at $SIM has billed up to now, as a table.
func cmdBill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: bill FILE")
	}
	resp, err := http.Get("http://" + ts.Getenv("SIM") + "/sim/bill")
	ts.Check(err)
	defer resp.Body.Close()
	var bill providertest.Bill
	ts.Check(json.NewDecoder(resp.Body).Decode(&bill))
	now := time.Now().UTC().Format(time.RFC3339Nano)
	table := fmt.Sprintf("start,end,input,output,requests\n%d,%s,%d,%d,%d\n", theDay.Unix(), now, bill.PromptTokens, bill.CompletionTokens, bill.Requests)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(table), 0o600))
}
