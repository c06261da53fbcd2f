package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/router"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/traffic"
)

// These tell the tabane program that this test binary plays what to do.
const (
	fakeRouter = "TABANE_LAB_TEST_ROUTER" // "never" is not ready, "exit" ends, "" is ready
	fakeFetch  = "TABANE_LAB_TEST_FETCH"  // "fail" fails over MPTCP, "hang" does not end, "garbage" is not JSON
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if play, ok := verbs[os.Args[1]]; ok {
			if err := play(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			os.Exit(0)
		}
		if !strings.HasPrefix(os.Args[1], "-") {
			// Whoever calls the program so must not get all tests again, in a lab's namespace.
			fmt.Fprintf(os.Stderr, "there is no verb %q\n", os.Args[1])
			os.Exit(2)
		}
	}
	before, links := openFiles(), hostLinks()
	code := m.Run()
	left, err := netns.List(prefix + testPrefix())
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	labs, err := List()
	for _, l := range labs {
		if strings.HasPrefix(l.Name, testPrefix()) {
			fmt.Fprintf(os.Stderr, "lab left behind: %+v\n", l)
			code = 1
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if after := hostLinks(); after != links {
		fmt.Fprintf(os.Stderr, "links of the host: %s before, %s after\n", links, after)
		code = 1
	}
	// The runtime's poller opens files of its own at first use.
	if after := openFiles(); after > before+4 {
		fmt.Fprintf(os.Stderr, "files left open: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

// verbs are those of the tabane program that a lab calls.
var verbs = map[string]func(args []string) error{
	Verb:        Enter,
	RelayVerb:   playRelay,
	role.Router: playRouter,
	role.Serve:  playServe,
	"fetch":     playFetch,
	"hold":      playHold,
	"headless":  playHeadless,
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == "headless" {
		runtime.LockOSThread() // main on the first thread
	}
}

// playHeadless ends its first thread alone.
func playHeadless([]string) error {
	go func() { select {} }()
	fmt.Println("headless")
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	select {}
}

func playRouter(args []string) error {
	fmt.Println("router starts with", args)
	how := os.Getenv(fakeRouter)
	if how == "exit" {
		return errors.New("router refuses to run")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"ready": how != "never", "reason": "session with nobody is idle"})
	})
	router, _ := role.Named(role.Router)
	return http.ListenAndServe(router.DefaultStatus().String(), mux)
}

func playServe(args []string) error {
	b, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var c role.Sections
	if err := yaml.Unmarshal(b, &c); err != nil {
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

func playRelay(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Relay(ctx, args[0], slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

func playFetch(args []string) error {
	o := traffic.FetchOptions{URL: args[len(args)-1], Transport: traffic.TCP, Interval: interval}
	for i, a := range args {
		switch a {
		case "--mptcp":
			o.Transport = traffic.MPTCP
		case "--limit":
			var err error
			if o.Limit, err = time.ParseDuration(args[i+1]); err != nil {
				return err
			}
		}
	}
	switch how := os.Getenv(fakeFetch); {
	case how == "garbage":
		fmt.Println("not JSON")
		return nil
	case how == "hang":
		select {}
	case how == "fail" && o.Transport == traffic.MPTCP:
		return errors.New("the fetch fails as it is told to")
	}
	lines := json.NewEncoder(os.Stdout)
	o.Progress = func(s traffic.Sample) { lines.Encode(FetchLine{Sample: &s}) }
	r, err := traffic.Fetch(context.Background(), o)
	if err != nil {
		return err
	}
	return lines.Encode(FetchLine{Report: &r})
}

// playHold makes a lab and stays until it is killed.
func playHold(args []string) error {
	if _, err := Up(context.Background(), Options{Name: args[0], Spec: routed()}); err != nil {
		return err
	}
	fmt.Println("up")
	select {}
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

func testPrefix() string { return fmt.Sprintf("test-lab%d-", os.Getpid()) }

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
}

func needMPTCP(t testing.TB) {
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

// options are those of a lab of this test.
func options(t *testing.T, name string, spec *scenario.Spec) Options {
	t.Helper()
	needRoot(t)
	return Options{Name: testPrefix() + name, Spec: spec, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// start makes a lab that ends with the test.
func start(t *testing.T, o Options) *Lab {
	t.Helper()
	l, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		nothingLeft(t, o.Name)
	})
	return l
}

// nothingLeft checks that a lab left no trace.
func nothingLeft(t *testing.T, name string) {
	t.Helper()
	if left, err := netns.List(prefix + name + "-"); err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v %v", left, err)
	}
	if _, err := os.Stat(dirOf(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state left: %v", err)
	}
}

func end6(node, iface, addresses string) scenario.End {
	e := scenario.End{Node: node, Interface: iface}
	for _, a := range strings.Fields(addresses) {
		e.Addresses = append(e.Addresses, netip.MustParsePrefix(a))
	}
	return e
}

// plain is a network without a daemon: a and b on a wire, and both with c on a switch.
func plain() *scenario.Spec {
	return &scenario.Spec{
		Name: "plain",
		Nodes: map[string]*scenario.Node{
			"a": {Sysctls: map[string]string{"net.ipv6.conf.wire.hop_limit": "77", "net.ipv4.tcp_congestion_control": "reno"}},
			"b": {Forwarding: true},
			"c": {Routes: []scenario.StaticRoute{{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("2001:db8:2::b")}}},
		},
		Links: map[string]*scenario.Link{
			"lan": {Ends: []scenario.End{
				end6("a", "lan", "2001:db8:2::a/64 192.0.2.1/24"), end6("b", "lan", "2001:db8:2::b/64 192.0.2.2/24"), end6("c", "lan", "2001:db8:2::c/64"),
			}},
			"wire": {
				Shape: scenario.Shape{Rate: 10e6}, MTU: 1400,
				Ends: []scenario.End{end6("a", "wire", "2001:db8:1::a/64"), end6("b", "wire", "2001:db8:1::b/64")},
			},
		},
	}
}

// routed is a network with one daemon, on node b.
func routed() *scenario.Spec {
	s := plain()
	s.Nodes["b"].Router = &router.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.1"), Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8:2::/64")},
		Neighbors: []router.Neighbor{{Name: "a", ASN: 65002, Address: netip.MustParseAddr("2001:db8:1::a"), Interface: "wire"}},
	}
	return s
}

// experiment is a network with an experiment: b serves a over the wire.
func experiment() *scenario.Spec {
	s := plain()
	s.Nodes["b"].Address = netip.MustParseAddr("2001:db8:1::b")
	s.Nodes["b"].Serve = &traffic.Config{Port: 8080}
	zero, one := 0.0, 1.0
	s.Experiment = &scenario.Experiment{
		Server: "b", Client: "a", Trials: 2, Baseline: "tcp",
		Cases: []scenario.Case{
			{Name: "slow", Links: map[string]scenario.Shape{"wire": {Rate: 10e6}}},
			{Name: "fast", Links: map[string]scenario.Shape{"wire": {Rate: 40e6}}},
		},
		Traffic: map[string]*scenario.Traffic{
			"bulk": {Bytes: 300_000, Quick: 200 * time.Millisecond},
			"cbr":  {Rate: 2e6, Duration: 300 * time.Millisecond, Quick: 200 * time.Millisecond},
		},
		Transports: map[string]*scenario.Transport{
			"tcp":   {Links: []string{"wire"}},
			"mptcp": {Links: []string{"wire"}, MPTCP: true},
		},
		Expect: []scenario.Expectation{{Name: "delivers", Metric: result.Bytes, AtLeast: &one}, {Name: "fast enough", Metric: result.EmptyIntervals, AtLeast: &zero}},
	}
	return s
}

// readLine returns the first line of a process's output.
func readLine(t *testing.T, f *os.File) string {
	t.Helper()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
