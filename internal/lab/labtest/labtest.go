// Package labtest gives tests of labs their scenarios, plays the programs that a lab starts, and
// fails a test run that leaves anything behind. It makes no lab itself.
package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

// FakeRouter is the environment variable that selects PlayRouter's behavior: "never" is never
// ready, "exit" exits.
const FakeRouter = "TABANE_LAB_TEST_ROUTER"

// pollerFiles is how many files the runtime's poller opens at its first use and keeps.
const pollerFiles = 4

// Main runs a package's tests, or one of the verbs of the tabane program that a lab starts the test
// binary with. labs lists the labs of this machine. A lab, namespace, link or file that the tests
// leave behind fails the run.
func Main(m *testing.M, verbs map[string]func(args []string) error, labs func() ([]string, error)) {
	if len(os.Args) > 1 {
		if play, ok := verbs[os.Args[1]]; ok {
			if err := play(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			os.Exit(0)
		}
		if !strings.HasPrefix(os.Args[1], "-") {
			// The tests must not run again, in a lab's namespace.
			fmt.Fprintf(os.Stderr, "there is no verb %q\n", os.Args[1])
			os.Exit(2)
		}
	}
	before, links := openFiles(), hostLinks()
	code := m.Run()
	left, err := netns.List("tabane-" + Prefix())
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	names, err := labs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	for _, l := range names {
		if strings.HasPrefix(l, Prefix()) {
			fmt.Fprintf(os.Stderr, "lab left behind: %s\n", l)
			code = 1
		}
	}
	if after := hostLinks(); after != links {
		fmt.Fprintf(os.Stderr, "links of the host: %s before, %s after\n", links, after)
		code = 1
	}
	if after := openFiles(); after > before+pollerFiles {
		fmt.Fprintf(os.Stderr, "files left open: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

// PlayRouter answers on a status port as a router does. On SIGHUP it logs its configuration file,
// which is JSON, on one line.
func PlayRouter(args []string) error {
	fmt.Println("router starts with", args)
	how := os.Getenv(FakeRouter)
	if how == "exit" {
		return errors.New("router refuses to run")
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	go func() {
		for range reload {
			b, err := os.ReadFile(args[1])
			fmt.Println("router loads", strings.Join(strings.Fields(string(b)), ""), err)
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"ready": how != "never", "reason": "session with nobody is idle"})
	})
	router, _ := role.Named(role.Router)
	return http.ListenAndServe(router.DefaultStatus().String(), mux)
}

// PlayServe serves content as tabane serve does.
func PlayServe(args []string) error {
	b, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var c struct{ Serve traffic.Config } // the lab writes JSON
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	s, err := traffic.New(traffic.Options{Listen: c.Serve.Listen(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

func hostLinks() string {
	all, err := net.Interfaces()
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

// Prefix starts the names of this test run's labs.
func Prefix() string { return fmt.Sprintf("test-lab%d-", os.Getpid()) }

// NeedRoot skips the test without root; where TABANE_LAB=require it fails instead.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
}

// NeedMPTCP skips the test where the kernel has no MPTCP; where TABANE_LAB=require it fails
// instead.
func NeedMPTCP(t testing.TB) {
	t.Helper()
	if err := mptcp.Supported(); err != nil {
		skip(t, err.Error())
	}
}

func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("TABANE_LAB") == "require" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// NothingLeft checks that a lab left no namespace and no state behind.
func NothingLeft(t testing.TB, name string) {
	t.Helper()
	if left, err := netns.List("tabane-" + name + "-"); err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v %v", left, err)
	}
	if _, err := os.Stat("/run/tabane/lab/" + name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state left: %v", err)
	}
}

// Lab is what Run needs of a lab.
type Lab interface {
	Command(ctx context.Context, node string, argv []string) (*exec.Cmd, error)
}

// Run runs a shell script on a node and returns its output.
func Run(t *testing.T, l Lab, node, script string) string {
	t.Helper()
	cmd, err := l.Command(t.Context(), node, []string{"sh", "-c", script})
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// IP runs commands of ip(8) on a node of a lab and returns what they show.
func IP(t *testing.T, lab, node, commands string) string {
	t.Helper()
	out, err := netnstest.TryIP(t, "tabane-"+lab+"-"+node, commands)
	if err != nil {
		t.Fatalf("on %s: %v", node, err)
	}
	return strings.TrimSpace(out)
}

// Rate returns what the token bucket of an interface lets through, zero when there is none.
func Rate(t *testing.T, lab, node, iface string) (rate unit.Bandwidth) {
	t.Helper()
	err := netns.Do("tabane-"+lab+"-"+node, func() error {
		s, err := tc.Stats(iface)
		if errors.Is(err, tc.ErrNotShaped) {
			return nil
		}
		rate = s.Rate.Rate
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rate
}

// Echo sends echo requests from a node of a lab, each with payload bytes, and reports what
// returned.
func Echo(t *testing.T, lab, node, to string, n, payload int) netnstest.Echoes {
	t.Helper()
	e, err := netnstest.Echo("tabane-"+lab+"-"+node, netip.MustParseAddr(to), n, payload)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Reach sends a datagram from one node of a lab to another and back.
func Reach(lab, from, to, address string) error {
	var server net.PacketConn
	err := netns.Do("tabane-"+lab+"-"+to, func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(address, "0"))
		return err
	})
	if err != nil {
		return err
	}
	defer server.Close()
	var client net.Conn
	err = netns.Do("tabane-"+lab+"-"+from, func() (err error) {
		client, err = net.Dial("udp", server.LocalAddr().String())
		return err
	})
	if err != nil {
		return err
	}
	defer client.Close()
	deadline := time.Now().Add(10 * time.Second)
	client.SetDeadline(deadline)
	server.SetDeadline(deadline)
	if _, err := client.Write([]byte("hello")); err != nil {
		return err
	}
	b := make([]byte, 64)
	n, peer, err := server.ReadFrom(b)
	if err != nil {
		return err
	}
	if _, err := server.WriteTo(b[:n], peer); err != nil {
		return err
	}
	if n, err = client.Read(b); err != nil || string(b[:n]) != "hello" {
		return fmt.Errorf("got %q, %w", b[:n], err)
	}
	return nil
}
