package bgp

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// inNamespace is set in the child process, which has its own network namespace.
const inNamespace = "TABANE_TEST_BGP_NETNS"

// TestMain runs the tests in an unnamed network namespace that exists as long as the process, so
// that speakers can use any port and address. Goroutines of the BGP server cannot be moved into a
// namespace.
func TestMain(m *testing.M) {
	flag.Parse()
	if half := os.Getenv(dialler); half != "" {
		fmt.Fprintln(os.Stderr, dial(half))
		os.Exit(1)
	}
	if os.Getenv(inNamespace) == "" && !fuzzing() {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Geteuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		if err == nil {
			os.Exit(0)
		}
		// Without a namespace, the tests that need one are skipped.
		fmt.Fprintln(os.Stderr, "no network namespace:", err)
	}
	if os.Getenv(inNamespace) != "" {
		if err := setUpLoopback(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	before := sockets()
	code := m.Run()
	if code == 0 && os.Getenv(inNamespace) != "" {
		code = checkSockets(before)
	}
	os.Exit(code)
}

func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return true
		}
	}
	return false
}

// sockets returns the number of open sockets of the process.
func sockets() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func checkSockets(before int) int {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after := sockets()
		if after <= before {
			return 0
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "sockets left open: %d before the tests, %d after\n", before, after)
			return 1
		}
	}
}

// setUpLoopback adds the addresses fd00::1 to fd00::1f, fe80::1 and fe80::2 in the namespace.
func setUpLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addresses := []string{"fe80::1/128", "fe80::2/128"}
	for i := 1; i < 32; i++ {
		addresses = append(addresses, fmt.Sprintf("fd00::%x/128", i))
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return err
		}
	}
	return nil
}

func needNamespace(t testing.TB) {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("needs a network namespace")
	}
	t.Skip("needs a network namespace")
}
