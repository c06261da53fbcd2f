package acceptance

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// kernelState is everything that the edge has in its kernel.
const kernelState = "rule; nexthop; route show table all proto 117; addr show dev lan scope global; mptcp endpoint"

func TestContentOverEveryEgressPath(t *testing.T) {
	t.Parallel()
	l := epe(t)
	cmd := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/20000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address, 5*time.Second,
			l.socket("server", netnstest.Established, "["+address+"]:80"))
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	// The limited links carried it together: neither alone took less than a quarter.
	for _, node := range []string{"transit-a", "transit-b"} {
		dev := "link-" + node[len(node)-1:]
		n, err := strconv.Atoi(strings.TrimSpace(l.must(node, "cat", "/sys/class/net/"+dev+"/statistics/tx_bytes")))
		if err != nil || n < 5e6 {
			t.Errorf("%s sent %d bytes of 20 MB, %v", node, n, err)
		}
	}
	if r := l.fetch("http://server/bytes/1000000"); r.Bytes != 1e6 || r.UsedMPTCP {
		t.Errorf("over TCP: %+v", r)
	}
}

// TestRouteMTU asks the running kernel what it makes of an EPE Route's MTU:
// docs/adr/0003-route-mtu.md. The 64 bytes that it reserves for an encapsulation of 40 leave 1460
// of 1524, which with the 40 fill the link's 1500.
func TestRouteMTU(t *testing.T) {
	t.Parallel()
	l := epe(t)
	cmd := l.command("client", program, "fetch", "--mptcp", "--limit", "20s", "http://server/bytes/1000000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for address, pmtu := range map[string]uint32{"2001:db8:1::10": 1500, "2001:db8:1::a": 1460, "2001:db8:1::b": 1460} {
		l.eventually(fmt.Sprintf("a path MTU of %d on %s", pmtu, address), 5*time.Second, func() (bool, string) {
			sockets, text := l.sockets("server", netnstest.Established)
			return slices.ContainsFunc(sockets, func(s netnstest.Socket) bool {
				return s.Local.String() == "["+address+"]:80" && s.PathMTU == pmtu
			}), text
		})
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // ends by the signal
}

// TestEncapModes: a segment routing header, a transposed SID, and a peer reached without a
// look into its table. None needs net.ipv6.conf.*.seg6_enabled, which is for segments that end at a
// local address; an SID is a route.
func TestEncapModes(t *testing.T) {
	t.Parallel()
	l := epe(t,
		"locators: [fc00::/16]", "locators: [fc00::/16]\n      encap: encap",
		`locator: {prefix: "fc00:1::/32", block: 16}`, "locator: {prefix: \"fc00:1::/32\", block: 16}\n      sid_format: transposed",
		`rt: "65000:102"`+"\n\n", `rt: "65000:102"`+"\n          behavior: end.dx6\n\n")
	if nexthops := l.ip("server", "nexthop"); strings.Count(nexthops, "mode encap segs") != 2 ||
		!strings.Contains(nexthops, "fc00:1:1::") {
		t.Errorf("nexthops:\n%s", nexthops)
	}
	if routes := l.ip("asbr2", "route"); !strings.Contains(routes, "End.DX6 nh6 2001:db8:b::2") {
		t.Errorf("asbr2:\n%s", routes)
	}
	for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
		// The server's own port would be taken for the initial subflow; any connection from
		// the address will do.
		server := l.command("server", program, "serve", "--listen", "["+address+"]:8080")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		l.eventually("the server listens", 5*time.Second, l.socket("server", netnstest.Listening, "["+address+"]:8080"))
		if r := l.fetch("http://[" + address + "]:8080/bytes/300000"); r.Bytes != 300000 {
			t.Errorf("%s delivered %d bytes", address, r.Bytes)
		}
		if err := server.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestRealClients(t *testing.T) {
	t.Parallel()
	programs.Need(t, "curl", "iperf3", "mptcpize")
	l := epe(t)
	const get = "curl -s -o /dev/null -w %{size_download} http://server/bytes/1000000"
	for _, wrap := range []string{"", "mptcpize run "} {
		if got := l.must("client", "sh", "-c", wrap+get); got != "1000000" {
			t.Errorf("%scurl got %q bytes", wrap, got)
		}
	}
	if n := l.counter("server", "MPTcpExt:", "MPCapableACKRX"); n == 0 {
		t.Error("mptcpize run curl did not come over MPTCP")
	}
	server := l.command("server", "mptcpize", "run", "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	l.eventually("iperf3 listens", 5*time.Second, l.socket("server", netnstest.Listening, ":5201"))
	if out := l.must("client", "mptcpize", "run", "iperf3", "-c", "server", "-R", "-t", "1"); !strings.Contains(out, "receiver") {
		t.Errorf("iperf3: %s", out)
	}
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}

// TestNoRouteLeakToPeers: egress peers receive our prefix alone.
func TestNoRouteLeakToPeers(t *testing.T) {
	t.Parallel()
	l := epe(t)
	if routes := l.ip("transit-b", "route show proto 118"); strings.Contains(routes, "fc00:") ||
		!strings.Contains(routes, "2001:db8:1::/64") {
		t.Errorf("transit-b has:\n%s", routes)
	}
	// Without its own way to the client, transit-b must not learn one through us.
	l.ip("transit-b", "link set link-b down")
	l.eventually("transit-b loses the client", 5*time.Second, l.shows(false, "2001:db8:c::/64", "transit-b", "route"))
	l.eventually("the server's EPE Route of transit-b goes", 5*time.Second,
		l.shows(false, "2001:db8:c::/64", "server", "route show table 102"))
	if routes := l.ip("transit-b", "route"); strings.Contains(routes, "2001:db8:c::/64") {
		t.Errorf("traffic between peers would go through us:\n%s", routes)
	}
	// The address of transit-b must not fall through to the best path.
	if out, err := netnstest.TryIP(t, l.namespace("server"), "route get 2001:db8:c::10 from 2001:db8:1::b"); err == nil {
		t.Errorf("a packet from the EPE address of transit-b would go: %s", out)
	}
	l.ip("server", "route get 2001:db8:c::10 from 2001:db8:1::a")
}

func TestLinkDownWithdrawsPeer(t *testing.T) {
	t.Parallel()
	l := epe(t)
	const sid = "fc00:1:1::"
	l.ip("transit-a", "link set csp down")
	// The hold time is 9 s: only the link event can be as fast as this.
	l.eventually("the SID goes", 4*time.Second, l.shows(false, sid, "asbr1", "route"))
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.shows(false, "2001:db8:c::/64", "server", "route show table 101"))
	l.eventually("the best path moves to transit-b", 4*time.Second,
		l.shows(true, "2001:db8:c::/64 via 2001:db8:1::2", "server", "route"))
	// The client's ISP prefers transit-a for the way back and learns of the loss from there.
	l.eventually("content is delivered again", 10*time.Second, func() (bool, string) {
		out, err := l.try("client", program, "fetch", "--limit", "2s", "http://server/bytes/100000")
		return err == nil && strings.HasPrefix(out, "100000 bytes"), out
	})
	l.ip("transit-a", "link set csp up")
	l.eventually("the SID is back, the same", 15*time.Second, l.shows(true, sid, "asbr1", "route"))
	l.eventually("the EPE Route is back", 15*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 101"))
}

func TestEdgeRestartAfterKill(t *testing.T) {
	t.Parallel()
	l := epe(t)
	before := l.ip("server", kernelState)
	transfer := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/30000000")
	out := &strings.Builder{}
	transfer.Stdout = out
	if err := transfer.Start(); err != nil {
		t.Fatal(err)
	}
	l.end("server", "edge", syscall.SIGKILL)
	if after := l.ip("server", kernelState); after != before {
		t.Errorf("the kernel changed with the kill:\n%s\nwas:\n%s", after, before)
	}
	seen := l.monitor("server")
	l.start("server", "edge")
	l.eventually("the new edge is ready", 15*time.Second, l.contains(true, `"ready":true,"degraded":false`, "server", program, "status", "--json", "edge"))
	if after := l.ip("server", kernelState); after != before {
		t.Errorf("the new edge changed:\n%s\nwas:\n%s", after, before)
	}
	if err := transfer.Wait(); err != nil || !strings.HasPrefix(out.String(), "30000000 bytes") {
		t.Errorf("the transfer ended with %v, %s", err, out)
	}
	if text := seen(); strings.Contains(text, "proto 117") {
		t.Errorf("the new edge changed the kernel:\n%s", text)
	}
}

func TestStopRemovesKernelState(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.end("server", "edge", syscall.SIGTERM)
	state := l.ip("server", kernelState)
	for _, trace := range []string{"lookup 101", "nhid", "seg6", "2001:db8:1::a", "2001:db8:1::b", "signal", "117"} {
		if strings.Contains(state, trace) {
			t.Errorf("%q is left in:\n%s", trace, state)
		}
	}
	if !strings.Contains(state, "2001:db8:1::10/64") {
		t.Errorf("the default address, which was there before, is gone:\n%s", state)
	}
	l.end("asbr1", "asbr", syscall.SIGTERM)
	if routes := l.ip("asbr1", "route show table all proto 116"); routes != "" {
		t.Errorf("left on asbr1:\n%s", routes)
	}
}

func TestForeignChangeIsReverted(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.ip("server", "route del 2001:db8:c::/64 table 101")
	l.ip("server", "rule del pref 1000")
	l.eventually("the table is back", 5*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 101"))
	l.eventually("the rule is back", 5*time.Second, l.shows(true, "lookup 101", "server", "rule"))
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	needLab(t)
	name := labPrefix() + "int"
	scenario := variant(t, "epe-steady", "name: epe-steady", "name: "+name)
	cmd := exec.Command(program, "lab", "run", scenario, "--quick", "--jobs", "1", "--out", filepath.Join(t.TempDir(), "out"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, name: name}
	l.eventually("the lab starts", 20*time.Second, func() (bool, string) { return len(leftovers()) >= 8, "" })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("exit: %v", err)
	}
	if left := leftovers(); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, ", "))
	}
}
