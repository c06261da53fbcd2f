package netnstest

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inOwnNamespace is set in the child process, which has its own network namespace.
const inOwnNamespace = "TABANE_TEST_OWN_NETNS"

// Isolate runs a package's tests in an unnamed network namespace that exists as long as the
// process, so that they can use any port and address in all goroutines. Its loopback interface is
// up and has these addresses. A socket that the tests leave open fails the run. Where there can be
// no namespace the tests run without it: see NeedIsolation.
func Isolate(m *testing.M, loopback ...string) (code int) {
	flag.Parse()
	if fuzzing() {
		return m.Run()
	}
	if os.Getenv(inOwnNamespace) == "" {
		err := runInNamespace()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode()
		}
		if err == nil {
			return 0
		}
		fmt.Fprintln(os.Stderr, "no network namespace:", err)
		return m.Run()
	}
	if err := setUpLoopback(loopback); err != nil {
		fmt.Fprintln(os.Stderr, "set up loopback:", err)
		return 1
	}
	before := openSockets()
	if code = m.Run(); code != 0 {
		return code
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after := openSockets()
		if after <= before {
			return 0
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "sockets left open: %d before the tests, %d after\n", before, after)
			return 1
		}
	}
}

// runInNamespace runs this program again in a new network namespace.
func runInNamespace() error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inOwnNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return cmd.Run()
}

func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return true
		}
	}
	return false
}

// openSockets returns the number of open sockets of the process.
func openSockets() (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func setUpLoopback(addresses []string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
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
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a)
		if err != nil {
			return err
		}
		if err := awaitLocal(prefix.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// AwaitLocal waits until packets to addresses of a namespace are delivered there, or in that of the
// calling thread if it has no name. The kernel adds the local route to an IPv6 address a moment
// later than the address, and a UDP socket that is connected before that, over the route to the
// prefix, keeps a route that discards all that it sends.
func AwaitLocal(t testing.TB, namespace string, addresses ...netip.Addr) {
	t.Helper()
	for _, a := range addresses {
		f := func() error { return awaitLocal(a) }
		if namespace == "" {
			if err := f(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		Do(t, namespace, f)
	}
}

func awaitLocal(a netip.Addr) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("no local route to %v: %v, %w", a, routes, err)
		}
	}
}

// NeedIsolation skips a test that needs the namespace of Isolate and does not have it, or fails it
// when TABANE_LAB=require is set.
func NeedIsolation(t testing.TB) {
	t.Helper()
	if os.Getenv(inOwnNamespace) != "" {
		return
	}
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal("needs a network namespace")
	}
	t.Skip("needs a network namespace")
}
