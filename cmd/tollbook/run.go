package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/budget/price"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/middleware/tokens"
)

// runOptions are the flags of run as they were given.
type runOptions struct {
	input, out, errors, state string

	budgets         []string
	maxOutput       amountFlag
	capOutput       amountFlag
	rpm, tpm        amountFlag
	shards, workers int
	attempts        int
	prices          string
	retryDead       bool
	orphans         orphanFlag
	timeout         time.Duration
	baseURL, keyEnv string
	keyNamed        bool // --api-key-env was given
	sim             bool
	simOptions      simOptions
	dryRun, asJSON  bool

	locks []io.Closer // of the outputs
}

const (
	openAI        = "https://api.openai.com/v1"
	defaultKeyEnv = "OPENAI_API_KEY"
)

func newRun(ui *ui) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run INPUT.jsonl",
		Short: "Run a batch of LLM calls under a hard token budget",
		Long: `Run the requests of an OpenAI Batch file against an OpenAI-compatible server,
under a hard token budget. Answers go to the output file in Batch output format,
one line for each custom_id, as they come; refusals too, unless --errors names a
file for them. An item that gives up after all its attempts has no line, it is
dead: why stands in STATE/shards/marks.jsonl, and --retry-dead sends it again.

The state directory keeps the books and how far the run is: stopped, paused or
killed, the same command goes on, and finished items are not sent again.

The budget is the total of the state directory, over all its runs. The input and
the provider belong to a state directory for ever.

A request with "stream":true is sent as a stream; its output line holds the
whole answer.`,
		Example: `  tollbook run --sim requests.jsonl
  tollbook run --budget 2M requests.jsonl
  tollbook run --budget 500k --base-url http://localhost:8000/v1 requests.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.input, o.keyNamed = args[0], cmd.Flags().Changed("api-key-env")
			return o.run(cmd.Context(), ui)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "`file` for the answers (default INPUT.out.jsonl)")
	f.StringVar(&o.errors, "errors", "", "`file` for the lines of failed items (default: with the answers)")
	f.StringVar(&o.state, "state", "", "state `directory` (default INPUT.state)")
	f.StringArrayVar(&o.budgets, "budget", nil, "cap on all runs of the state: `amount` such as 500k, 2M, 12.50usd or unlimited; both in tokens and in money if given twice; required unless --sim")
	f.StringVar(&o.prices, "prices", "", "`file` with prices of your own, which go before the built-in ones")
	f.Var(&o.maxOutput, "max-output", "`tokens` of output reserved where a request names no cap (default: the model's own maximum)")
	f.Var(&o.capOutput, "cap-output", "write output caps into requests: what is reserved where they name none, and less where the budget has less left, down to these `tokens` an answer")
	f.IntVar(&o.shards, "shards", 4, "into how many parts a new state splits the items")
	f.IntVar(&o.workers, "workers", 16, "calls at a time")
	f.Var(&o.rpm, "rpm", "`requests` a minute at most (default unlimited)")
	f.Var(&o.tpm, "tpm", "`tokens` a minute at most, as reserved (default unlimited)")
	f.IntVar(&o.attempts, "attempts", 4, "attempts a call, the first included")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "longest wait for an answer to begin, and for each further part of it")
	f.StringVar(&o.baseURL, "base-url", openAI, "`URL` that takes the place of a request's /v1, as SDKs take it")
	f.StringVar(&o.keyEnv, "api-key-env", defaultKeyEnv, "`name` of the environment variable that holds the API key")
	f.BoolVar(&o.sim, "sim", false, "use the built-in simulated provider: no key, no network")
	o.simOptions.flags(f, "sim-")
	f.BoolVar(&o.retryDead, "retry-dead", false, "send items again that gave up after all their attempts")
	f.Var(&o.orphans, "orphans", "`policy` for calls that were in flight when an earlier run was killed: assume charges what they hold; keep leaves them open, and their items wait; refund gives the hold back, which gives up that the book never shows less than the bill")
	f.BoolVar(&o.dryRun, "dry-run", false, "send nothing: say what the batch would cost at most")
	f.BoolVar(&o.asJSON, "json", false, "print the summary as JSON on stdout")
	return cmd
}

// amountFlag is a flag that counts, as people write it: 90k.
type amountFlag int64

func (a *amountFlag) String() string { return "" }
func (a *amountFlag) Type() string   { return "amount" }

func (a *amountFlag) Set(text string) error {
	n, err := parseTokens(strings.ToLower(text))
	if err == nil && n == 0 {
		err = fmt.Errorf("it must be above 0; leave the flag out for no limit of its own")
	}
	*a = amountFlag(n)
	return err
}

// orphanFlag is a policy for calls whose run was killed.
type orphanFlag budget.OrphanPolicy

func (p *orphanFlag) String() string { return budget.OrphanPolicy(*p).String() }
func (p *orphanFlag) Type() string   { return "policy" }

func (p *orphanFlag) Set(text string) error {
	for _, policy := range [...]budget.OrphanPolicy{budget.OrphanAssume, budget.OrphanKeep, budget.OrphanRefund} {
		if policy.String() == text {
			*p = orphanFlag(policy)
			return nil
		}
	}
	return errors.New("expected assume, keep or refund")
}

// defaults fills in the names that follow from INPUT.
func (o *runOptions) defaults() error {
	stem := strings.TrimSuffix(o.input, ".jsonl")
	if o.out == "" {
		o.out = stem + ".out.jsonl"
	}
	if o.state == "" {
		o.state = stem + ".state"
	}
	for _, f := range [...]struct {
		name string
		n    int
		most int
	}{{"shards", o.shards, 1000}, {"workers", o.workers, 100_000}, {"attempts", o.attempts, 1000}} {
		if f.n < 1 || f.n > f.most {
			return usageError("", "--%s is %d, expected 1 to %d", f.name, f.n, f.most)
		}
	}
	if o.timeout <= 0 {
		return usageError("for example --timeout 90s", "--timeout is %v, expected a time above 0", o.timeout)
	}
	switch stat, err := os.Stat(o.state); {
	case err == nil && !stat.IsDir():
		return usageError("", "--state %s: it is a file", o.state)
	case o.errors == "":
		return checkOutput("--out", o.out)
	case filepath.Base(o.errors) == filepath.Base(o.out):
		return usageError("", "--out %s and --errors %s must have different names", o.out, o.errors)
	}
	return cmp.Or(checkOutput("--out", o.out), checkOutput("--errors", o.errors))
}

// limits reads the budgets.
func (o *runOptions) limits() ([]budget.Limit, error) {
	var limits []budget.Limit
	given := map[budget.Unit]string{}
	for _, text := range o.budgets {
		l, err := parseLimit(text)
		if err != nil {
			return nil, usageError("", "--budget: %w", err)
		}
		if before, twice := given[l.Unit]; twice {
			return nil, usageError("", "--budget %s and --budget %s are both for %s", before, text, l.Unit)
		}
		given[l.Unit] = text
		limits = append(limits, l)
	}
	if len(limits) > 0 || o.sim || o.dryRun {
		return limits, nil
	}
	report, err := checkBook(o.state)
	if err != nil {
		return nil, openError(o.state, err)
	}
	if slices.ContainsFunc(inForce(nil, report), func(l budget.Limit) bool { return l.Scope == "" }) {
		return nil, nil
	}
	return nil, usageError("for example --budget 2M; --budget unlimited runs without a cap", "no --budget: a run that costs money needs a cap")
}

// inForce are the limits that were given, and those of the book that they leave.
func inForce(given []budget.Limit, book *budget.Report) []budget.Limit {
	limits := slices.Clone(given)
	if book == nil {
		return limits
	}
	for _, l := range book.Limits {
		if l.Scope != "" || !slices.ContainsFunc(given, func(g budget.Limit) bool { return g.Unit == l.Unit }) {
			limits = append(limits, l.Limit)
		}
	}
	return limits
}

// provider is where the calls go.
type provider struct {
	name    string // what the state is pinned to
	base    string // takes the place of /v1
	key     string
	connect http.RoundTripper
	close   func()
}

func (o *runOptions) provider() (*provider, error) {
	if o.sim {
		sim, err := o.simOptions.provider()
		if err != nil {
			return nil, err
		}
		return &provider{name: "sim", base: "http://sim/v1", connect: sim.RoundTripper(), close: sim.Close}, nil
	}
	base, err := o.base()
	if err != nil {
		return nil, err
	}
	key := os.Getenv(o.keyEnv)
	if key == "" && (base == openAI || o.keyNamed) {
		return nil, usageError("export it, or try the run with --sim", "no API key: the environment variable %s is not set", o.keyEnv)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = o.workers
	transport.MaxIdleConns = 0
	return &provider{name: base, base: base, key: key, connect: transport, close: transport.CloseIdleConnections}, nil
}

// base checks the base URL.
func (o *runOptions) base() (string, error) {
	u, err := url.Parse(o.baseURL)
	if err != nil {
		return "", usageError("for example http://localhost:8000/v1", "--base-url is no URL")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", usageError("for example http://localhost:8000/v1", "--base-url %s is not an http or https address", quote(u.Redacted()))
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", usageError("give the key in the variable that --api-key-env names", "--base-url %s has more than a host and a path", quote(u.Redacted()))
	case strings.Trim(u.Path, "/") == "":
		return "", usageError(fmt.Sprintf("did you mean %s/v1?", strings.TrimRight(o.baseURL, "/")), "--base-url %s has no path", quote(o.baseURL))
	}
	return strings.TrimRight(o.baseURL, "/"), nil
}

// run does what the flags say.
func (o *runOptions) run(ctx context.Context, ui *ui) error {
	if err := o.defaults(); err != nil {
		return err
	}
	limits, err := o.limits()
	if err != nil {
		return err
	}
	in, err := openInput(o.input)
	if err != nil {
		return &exitError{Code: exitUsage, Err: err}
	}
	defer in.Close()
	prices, err := priceTable(o.prices)
	if err != nil {
		return err
	}
	if o.dryRun {
		return o.estimate(ui, in, limits, prices)
	}
	provider, err := o.provider()
	if err != nil {
		return err
	}
	defer provider.close()
	// What the guard would refuse is refused before any call. Counting bytes
	// does for that, and is quicker than counting tokens.
	e, err := estimateInput(in, meter.Options{DefaultOutput: int64(o.maxOutput)}, int64(o.capOutput), prices)
	if err != nil {
		return err
	}
	pin, err := o.pin(in, provider)
	if err != nil {
		return err
	}
	if err := pin.check(o.state); err != nil {
		return err
	}
	report, err := checkBook(o.state)
	if err != nil {
		return openError(o.state, err)
	}
	if err := e.payable(inForce(limits, report), prices); err != nil {
		return err
	}
	return o.execute(ctx, ui, in, provider, pin, append(limitOptions(limits), budget.Prices(prices), budget.OnOrphan(budget.OrphanPolicy(o.orphans))))
}

// priceTable is what calls are priced by, where --prices names a file or none.
func priceTable(file string) (*price.Table, error) {
	if file == "" {
		return price.Default(), nil
	}
	own, err := price.ReadFile(file)
	if err != nil {
		return nil, usageError("", "--prices: %w", err)
	}
	return own.Over(price.Default()), nil
}

// payable refuses a budget of money for a model whose price nobody knows.
func (e *estimate) payable(limits []budget.Limit, prices *price.Table) error {
	model, unknown := e.unpriced()
	if !unknown || !slices.ContainsFunc(limits, func(l budget.Limit) bool { return l.Unit == budget.CostUnit }) {
		return nil
	}
	return usageError("give its price with --prices FILE", "a budget of money, and the price table of %s does not know model %s", prices.Table(), quote(model))
}

func limitOptions(limits []budget.Limit) (options []budget.Option) {
	for _, l := range limits {
		options = append(options, l)
	}
	return options
}

// checkBook checks the book of a state that was begun, before anything opens
// it: opening mends, and goes on from what is there. Of a state that was not it
// returns nil.
func checkBook(state string) (*budget.Report, error) {
	have, err := readPin(state)
	if have == nil {
		return nil, err
	}
	report, err := foldBook(state)
	if err != nil {
		return nil, err
	}
	return &report, have.witness(state, &report)
}

// pin is what the state directory of this run is to be pinned to.
func (o *runOptions) pin(in *input, p *provider) (*pin, error) {
	pinned := &pin{Version: pinVersion, Input: in.Fingerprint, Items: in.Len(), Provider: p.name}
	for _, f := range [...]struct {
		path string
		to   *string
	}{{o.out, &pinned.Out}, {o.errors, &pinned.Errors}} {
		if f.path == "" {
			continue
		}
		relative, err := toState(o.state, f.path)
		if err != nil {
			return nil, err
		}
		*f.to = relative
	}
	return pinned, nil
}

// estimate prints what the batch would cost at most, and whether that fits.
func (o *runOptions) estimate(ui *ui, in *input, limits []budget.Limit, prices *price.Table) error {
	e, err := estimateInput(in, o.bounds(), int64(o.capOutput), prices)
	if err != nil {
		return err
	}
	if err := e.payable(limits, prices); err != nil {
		return err
	}
	ui.estimate(e, limits, o.asJSON)
	return nil
}

// bounds is how requests are bounded.
func (o *runOptions) bounds() meter.Options {
	return meter.Options{Counter: tokens.Counter{}, DefaultOutput: int64(o.maxOutput)}
}
