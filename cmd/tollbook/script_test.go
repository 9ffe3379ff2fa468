package main

// The command as people use it: each script in testdata/script runs the real
// binary, and says what must not happen as well as what must.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tollbook/tollbook/journal"
)

func TestMain(m *testing.M) {
	// Built with the race detector, each of the many processes that the tests
	// start would sleep for a second at its end.
	if race := os.Getenv("GORACE"); !strings.Contains(race, "atexit_sleep_ms") {
		os.Setenv("GORACE", strings.TrimSpace(race+" atexit_sleep_ms=0"))
	}
	testscript.Main(m, map[string]func(){"tollbook": main, "tollwriter": writerMain})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			data, err := filepath.Abs("testdata")
			env.Setenv("DATA", data)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits,
			"sim":   cmdSim,
			"get":   cmdGet,
			"chop":  cmdChop,
			"caps":  cmdCaps,
			"rid":   cmdRID,

			// for late corrections
			"book":   cmdBook,
			"report": cmdReport,
			"bill":   cmdBill,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// exits CODE PROGRAM [ARG...] runs a program that must exit with CODE.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// sim [FLAG...] starts a simulated provider for the rest of the script; $SIM
// is its address.
func cmdSim(ts *testscript.TestScript, neg bool, args []string) {
	self, err := os.Executable()
	ts.Check(err)
	cmd := exec.Command(self, append([]string{"sim", "--addr", "127.0.0.1:0"}, args...)...)
	cmd.Args[0] = "tollbook" // this test binary is all commands
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		cmd.Process.Signal(os.Interrupt)
		io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			ts.Fatalf("sim: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	ts.Check(err)
	ts.Setenv("SIM", strings.TrimSpace(line))
}

// get URL puts the body at an address on stdout.
func cmdGet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: get URL")
	}
	resp, err := http.Get("http://" + args[0])
	ts.Check(err)
	defer resp.Body.Close()
	_, err = io.Copy(ts.Stdout(), resp.Body)
	ts.Check(err)
}

// chop FILE cuts the last newline of a file.
func cmdChop(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: chop FILE")
	}
	text := strings.TrimSuffix(ts.ReadFile(args[0]), "\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// rid STATE ITEM makes $RID the last reservation of an item.
func cmdRID(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rid STATE ITEM")
	}
	lives, err := findLives(journal.Dir{Path: bookOf(ts.MkAbs(args[0]))}, args[1])
	ts.Check(err)
	ts.Setenv("RID", lives[len(lives)-1].rid)
}

// caps STATE prints every limit entry of the whole history, without what later
// segments repeat.
func cmdCaps(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: caps STATE")
	}
	for e, err := range (journal.Dir{Path: bookOf(ts.MkAbs(args[0]))}).History() {
		ts.Check(err)
		if e.Kind == journal.Limit && !e.Carried {
			fmt.Fprintf(ts.Stdout(), "%s %d\n", e.Cap.Kind, e.Cap.Max)
		}
	}
}
