package mptcpify

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/seccomp"
	"github.com/tabane/tabane/internal/mptcp"
)

// played is the name of what this test binary plays instead of running tests: "exec" runs its
// arguments with Exec, others are programs that tests run so. It is static and does not know MPTCP.
const played = "TABANE_TEST_MPTCPIFY"

func init() {
	if os.Getenv(played) == "exec" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	Process()
	switch name := os.Getenv(played); {
	case name == "":
		os.Exit(netnstest.Isolate(m))
	case name == "exec":
		os.Setenv(played, os.Args[1])
		args := os.Args[1:]
		program := "/proc/self/exe"
		if roles[args[0]] == nil {
			program = args[0]
		}
		err := Exec(Options{How: How(os.Getenv(howKey)), Rings: os.Getenv(ringsKey) != "", Program: program, Args: args, Env: os.Environ()})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	default:
		if err := roles[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// howKey is the environment variable with Options.How.
const howKey = "TABANE_TEST_HOW"

// ringsKey is the environment variable that sets Options.Rings.
const ringsKey = "TABANE_TEST_RINGS"

// need skips the test where this host has no MPTCP or no seccomp user notification, or fails it
// with TABANE_LAB=require.
func need(t testing.TB) {
	t.Helper()
	netnstest.NeedIsolation(t)
	if err := errors.Join(mptcp.Supported(), seccomp.Supported()); err != nil {
		if os.Getenv("TABANE_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// command returns the command that executes a program with Exec.
func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{program}, args...)...)
	cmd.Env = append(os.Environ(), played+"=exec", howKey+"="+string(Seccomp))
	return cmd
}

// output runs the command and decodes what it prints.
func output[T any](t testing.TB, cmd *exec.Cmd) (result T) {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, stderr.String())
	}
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v printed %q: %v", cmd.Args, out, err)
	}
	return result
}
