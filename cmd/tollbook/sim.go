package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tollbook/tollbook/middleware/providertest"
)

// simOptions are the simulator's flags, which run has too, with a prefix.
type simOptions struct {
	seed    uint64
	faults  string
	latency time.Duration
}

func (o *simOptions) flags(set *pflag.FlagSet, prefix string) {
	set.Uint64Var(&o.seed, prefix+"seed", 1, "the same seed gives the same answers and faults")
	set.StringVar(&o.faults, prefix+"faults", "", "comma-separated `kind=probability`; kinds: 429, quota, 500, 500billed, stall, cut, lost, nousage, badusage, errbody, overrun")
	set.DurationVar(&o.latency, prefix+"latency", 0, "time before the first byte of an answer")
}

func (o *simOptions) provider() (*providertest.Provider, error) {
	if o.latency < 0 {
		return nil, usageError("", "the latency is %v, expected none or a time above 0", o.latency)
	}
	faults, err := providertest.ParseFaults(o.faults)
	if err != nil {
		return nil, usageError("for example 429=0.1,cut=0.02", "%w", err)
	}
	return providertest.New(providertest.Options{Seed: o.seed, Faults: faults, Latency: o.latency}), nil
}

func newSim(ui *ui) *cobra.Command {
	var options simOptions
	var addr string
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Serve a simulated provider, with faults and a true bill",
		Long: `Serve a simulated OpenAI-compatible provider under /v1: chat completions, text
completions and embeddings, JSON and streams, deterministic from a seed.

  GET /v1/organization/usage/completions   its usage report
  GET /sim/bill                            its true bill, also for what was lost
                                           on the way back

With port 0 the first line on stdout is the address it listens on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := net.ResolveTCPAddr("tcp", addr); err != nil {
				return usageError("for example 127.0.0.1:4010", "--addr %s: %w", quote(addr), err)
			}
			provider, err := options.provider()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return serveSim(ctx, ui, provider, addr)
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "127.0.0.1:0", "`address` to listen on; port 0 picks a free one")
	options.flags(cmd.Flags(), "")
	return cmd
}

// serveSim serves until ctx is done.
func serveSim(ctx context.Context, ui *ui, provider *providertest.Provider, addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(addr); port == "0" {
		ui.line("%s", listener.Addr())
	}
	ui.say("serving http://%s/v1, its bill at /sim/bill; stop it with ctrl-c", listener.Addr())
	server := &http.Server{Handler: provider, ReadHeaderTimeout: time.Minute}
	stopped := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		provider.Close() // ends its waits, which Shutdown would sit out
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(grace)
	})()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
