package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/price"
	"github.com/tollbook/tollbook/budget/reconcile"
	"github.com/tollbook/tollbook/journal"
)

// reconcileOptions are the flags of reconcile as they were given.
type reconcileOptions struct {
	state      string
	usage      []string
	aliases    []string
	prices     string
	finalAfter time.Duration
	skew, lag  time.Duration
	whole      bool
	overrun    bool
	apply      bool
	asJSON     bool
}

func newReconcile(ui *ui) *cobra.Command {
	var o reconcileOptions
	cmd := &cobra.Command{
		Use:   "reconcile STATE --usage FILE [--apply]",
		Short: "Hold the book against the provider's usage report",
		Long: `Hold a book against the provider's own usage report: for each span of time and
model, the bill beside what the book has confirmed, assumed and holds open. A bill
that is above the net or below what is confirmed is said plainly, and exits 1:
something else uses the key, or the report is of another key, or lags.

A report is the answer of OpenAI's /v1/organization/usage/completions and
/embeddings or of Anthropic's usage reports, as JSON, or a table in CSV whose
first line names its columns: start, end (Unix seconds or RFC 3339), model,
input, output (tokens), and if there are such cached, cache_write, requests,
cost (dollars). Ask for it grouped by model, for one key or project per book.
Several pages stand in one file or in several, in order. Reports of cost are
compared in money.

Buckets that a call lies on both sides of are one row. So are names of models
that a report may use for one another: gpt-4o and gpt-4o-2024-08-06.

With --apply, assumed figures are replaced by what the bill leaves for them, so
that what was never billed is free again. A row is left as it is where its span
is not final yet, a reservation in it is open, its history is pruned, the bill
lies outside, or the report does not speak of its model; then it exits 4. Twice
changes nothing. It needs the book for itself; without --apply it only reads, also
while a run is on.`,
		Example: `  tollbook reconcile requests.state --usage usage.json
  tollbook reconcile requests.state --usage completions.json --usage embeddings.json --apply
  curl … "https://api.openai.com/v1/organization/usage/completions?start_time=1730419200&bucket_width=1h&group_by=model" | tollbook reconcile requests.state --usage -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.state = args[0]
			return o.run(cmd.Context(), ui, cmd.InOrStdin())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.usage, "usage", nil, "`file` with a report, or a page of one; - is stdin; may be given several times")
	f.BoolVar(&o.apply, "apply", false, "book the difference in place of assumed figures")
	f.DurationVar(&o.finalAfter, "final-after", time.Hour, "how long after its end a span of the report is final")
	f.DurationVar(&o.skew, "skew", 10*time.Second, "by how much the provider's clock may differ")
	f.DurationVar(&o.lag, "lag", 10*time.Minute, "how long after a call was given up the provider may still bill it")
	f.StringArrayVar(&o.aliases, "alias", nil, "`REPORT=BOOK`: a model's name in the report and in the book; may be given several times")
	f.BoolVar(&o.whole, "whole", false, "the report is of all calls of the key, of every kind: a model it does not name was not billed")
	f.BoolVar(&o.overrun, "overrun", false, "with --apply, book also what a bill has above the net, on an assumed call, as an overrun")
	f.StringVar(&o.prices, "prices", "", "with --apply, `file` with prices of your own, as run takes it")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *reconcileOptions) run(ctx context.Context, ui *ui, stdin io.Reader) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	report, err := o.read(stdin)
	if err != nil {
		return err
	}
	if o.apply && !report.Counts(budget.TokenUnit) {
		return usageError("give a report of usage", "--apply: a report of money does not say which tokens were used")
	}
	if !o.apply {
		pin, pinErr := readPin(o.state)
		balance, err := foldBook(o.state)
		if err != nil {
			return err
		}
		result, err := o.compare(report, options)
		if err != nil {
			return err
		}
		return errors.Join(ui.reconciled(&result, nil, o), pinErr, pin.witness(o.state, &balance))
	}
	prices, err := priceTable(o.prices)
	if err != nil {
		return err
	}
	result, applied, err := o.book(ctx, ui, report, options, prices)
	if err != nil {
		return err
	}
	return ui.reconciled(&result, &applied, o)
}

// options are the flags as package reconcile takes them.
func (o *reconcileOptions) options() (reconcile.Options, error) {
	options := reconcile.Options{FinalAfter: orNone(o.finalAfter), Skew: orNone(o.skew), Lag: orNone(o.lag), Whole: o.whole, Overrun: o.overrun, Aliases: map[string]string{}}
	switch {
	case len(o.usage) == 0:
		return options, usageError("for example --usage usage.json; - reads stdin", "no --usage")
	case min(o.finalAfter, o.skew, o.lag) < 0:
		return options, usageError("", "--final-after is %v, --skew %v, --lag %v, expected times from 0 on", o.finalAfter, o.skew, o.lag)
	case (o.overrun || o.prices != "") && !o.apply:
		return options, usageError("", "--overrun and --prices go with --apply")
	}
	for _, text := range o.aliases {
		reported, booked, ok := strings.Cut(text, "=")
		if _, twice := options.Aliases[reported]; !ok || twice || reported == "" {
			return options, usageError("for example --alias gpt-4o-2024-08-06=gpt-4o, each name of the report once", "--alias %s is none", quote(text))
		}
		options.Aliases[reported] = booked
	}
	return options, nil
}

// orNone is a time as package reconcile takes it, where zero is the usual one.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// read reads the report from all files.
func (o *reconcileOptions) read(stdin io.Reader) (reconcile.Report, error) {
	var readers []io.Reader
	for _, name := range o.usage {
		if name == "-" {
			readers = append(readers, namedReader{stdin, "stdin"})
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return reconcile.Report{}, usageError("", "--usage: %w", err)
		}
		defer file.Close()
		readers = append(readers, file)
	}
	report, err := reconcile.Read(readers...)
	if err != nil {
		return report, usageError("", "--usage: %w", err)
	}
	return report, nil
}

// namedReader is a reader that errors can name.
type namedReader struct {
	io.Reader
	name string
}

func (r namedReader) Name() string { return r.name }

// compare holds the book, as it stands on disk, against the report.
func (o *reconcileOptions) compare(report reconcile.Report, options reconcile.Options) (reconcile.Result, error) {
	result, err := reconcile.Compare(report, journal.Dir{Path: bookOf(o.state)}.History(), options)
	switch {
	case errors.Is(err, budget.ErrInvalid), errors.Is(err, reconcile.ErrFormat):
		return result, usageError("", "%w", err)
	case err != nil:
		return result, notBook(o.state, err)
	}
	return result, nil
}

// book applies the report, and compares again.
func (o *reconcileOptions) book(ctx context.Context, ui *ui, report reconcile.Report, options reconcile.Options, prices *price.Table) (result reconcile.Result, applied reconcile.Applied, err error) {
	err = ui.alter(ctx, o.state, func(book *budget.Book) (err error) {
		if result, err = o.compare(report, options); err != nil {
			return err
		}
		if applied, err = reconcile.Apply(ctx, book, result); err != nil {
			return &exitError{Code: exitCode(err), Err: err, Hint: "run the same command again; what is booked stays, and the rest gets the same figures"}
		}
		result, err = o.compare(report, options)
		return err
	}, budget.Prices(prices))
	return result, applied, err
}
