// Tollbook runs batches of LLM calls under a hard token budget and keeps the
// books: every call is reserved before it leaves and closed once, in a journal
// that anyone can replay.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func main() { os.Exit(tollbook(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// tollbook runs one command line and returns its exit code.
func tollbook(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// net/http quotes answers to the standard logger; what is to be said of a
	// call, the guard says.
	log.SetOutput(io.Discard)
	ui := newUI(stdout, stderr)
	root, started := newRoot(ui)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(ui.out)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if err != nil && !*started {
		// Cobra refused the command line itself.
		err = &exitError{Code: exitUsage, Err: err, Hint: "see tollbook --help"}
	}
	ui.failure(err)
	if ui.out.err != nil {
		ui.say("cannot print: %v", ui.out.err)
		return worst(exitCode(err), exitFailed)
	}
	return exitCode(err)
}

// newRoot builds the command tree. started turns true once a command line was
// accepted and its command begins.
func newRoot(ui *ui) (root *cobra.Command, started *bool) {
	started = new(bool)
	root = &cobra.Command{
		Use:   "tollbook",
		Short: "Hard token budgets for batches of LLM calls, with books that anyone can replay",
		Long: `Tollbook runs a batch of LLM calls under a hard token budget. Every call is
reserved in a journal before it leaves and closed once afterwards, so the
budget holds under concurrency, retries and crashes, and the journal proves it.

Data goes to stdout, everything for people to stderr.

Exit codes:
  0    done
  1    failed
  2    refused before anything happened: the command line, the input file, or
       a state directory that belongs to another input
  3    paused: run the same command again; raise --budget if that was the reason
  4    done, but some items failed, or some rows of a report were not applied
  5    the book breaks an invariant or is damaged
  130  interrupted: run the same command again to go on`,
		Example: `  tollbook run --sim requests.jsonl
  tollbook run --budget 2M requests.jsonl
  tollbook status requests.state
  tollbook replay requests.state`,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { *started = true },
	}
	root.AddCommand(newRun(ui), newStatus(ui), newShow(ui), newReplay(ui), newVerify(ui), newRepair(ui), newPrune(ui), newLimit(ui), newReclaim(ui), newAdjust(ui), newReconcile(ui), newSim(ui))
	return root, started
}

// version is the module's version as the build recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
