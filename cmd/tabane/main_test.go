package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp/mptcpify"
)

// labName is the lab of the script that makes one; it is made of the process id, so that no other
// lab is touched.
var labName = fmt.Sprintf("test-script-%d", os.Getpid())

// patience bounds every wait for another process.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	mptcpify.Process() // the supervisor of a script's program
	testscript.Main(m, played)
}

// TestScripts runs the program as its users do. Scripts that need root do nothing without, unless
// TABANE_LAB=require.
func TestScripts(t *testing.T) {
	root := os.Geteuid() == 0
	if !root && os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("TABANE_LAB=require, and this is not root")
	}
	before := namespaces(t)
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The scripts run in parallel; this returns when the last has ended.
	t.Run("script", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir:                 "testdata/script",
			RequireExplicitExec: true,
			RequireUniqueNames:  true,
			Setup: func(e *testscript.Env) error {
				e.Setenv("CHECKOUT", checkout)
				e.Setenv("LAB", labName)
				if filepath.Base(e.WorkDir) == "script-lab" && root {
					// Also when the script fails half-way; that the lab is gone already is no
					// error.
					e.Defer(func() {
						if err := lab.Down(context.Background(), labName); err != nil {
							t.Error(err)
						}
					})
				}
				if filepath.Base(e.WorkDir) == "script-cc" && root {
					unlock, err := bpftest.LockNames()
					if err != nil {
						return err
					}
					e.Defer(unlock)
				}
				e.Setenv("NETNS", fmt.Sprintf("tabane-test-%d-%s", os.Getpid(), strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")))
				return nil
			},
			Condition: func(cond string) (bool, error) {
				switch cond {
				case "root":
					return root, nil
				case "drops":
					// With cgo there are threads whose capabilities Go cannot drop (package
					// privilege).
					_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_GETPID, 0, 0, 0)
					return errno != syscall.ENOTSUP, nil
				}
				return false, fmt.Errorf("there is no condition %q", cond)
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"exits": exits, "lines": lines, "freeport": freePort, "listening": listening, "eventually": eventually, "netns": makeNamespace,
				"gunzip": gunzip, "sysctl": setSysctl,
			},
		})
	})
	if after := namespaces(t); after != before {
		t.Errorf("namespaces are left behind: before %q, after %q", before, after)
	}
}

func namespaces(t *testing.T) string {
	t.Helper()
	own, err := netns.List(fmt.Sprintf("tabane-test-%d-", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	labs, err := netns.List("tabane-" + labName)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(own, labs...), " ")
}

// exits CODE PROGRAM ARGS... runs a program that must end with that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var e *exec.ExitError
	if errors.As(err, &e) {
		got = e.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d; stdout:\n%sstderr:\n%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// lines stdout|stderr N checks how many lines there are.
func lines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: lines stdout|stderr N")
	}
	text := ts.ReadFile(args[0])
	if got := strings.Count(text, "\n"); strconv.Itoa(got) != args[1] || text != "" && !strings.HasSuffix(text, "\n") {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[0], got, args[1], text)
	}
}

// freeport NAME sets a variable to a port of the loopback that nobody listens on.
func freePort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: freeport NAME")
	}
	l, err := net.Listen("tcp", "[::1]:0")
	ts.Check(err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(errors.Join(err, l.Close()))
	ts.Setenv(args[0], port)
}

// listening ADDRESS waits until somebody listens there.
func listening(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listening ADDRESS")
	}
	within(ts, func() error {
		c, err := net.Dial("tcp", args[0])
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// eventually PROGRAM ARGS... runs a program again and again until it succeeds.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually PROGRAM ARGS...")
	}
	within(ts, func() error { return ts.Exec(args[0], args[1:]...) })
}

func within(ts *testscript.TestScript, f func() error) {
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not after %s: %v", patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// netns makes the network namespace $NETNS, or $NETNS-NAME with an argument, with its loopback up,
// and removes it at the end of the script.
func makeNamespace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: netns [NAME]")
	}
	name := strings.Join(append([]string{ts.Getenv("NETNS")}, args...), "-")
	ts.Check(netns.Create(name))
	ts.Defer(func() { ts.Check(netns.Delete(name)) })
	ts.Check(netns.Do(name, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
}
