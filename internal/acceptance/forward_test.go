package acceptance

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// open restarts both gateways with a discipline and a key of their peer that needs the program.
func (l *lab) open(discipline, key, value string) (daemons map[string]*exec.Cmd) {
	l.t.Helper()
	daemons = map[string]*exec.Cmd{}
	for _, node := range []string{"site1", "site2"} {
		l.edit(node, "gateway", func(s section) {
			s["policy"] = []any{map[string]any{"discipline": discipline}}
			s["peers"].([]any)[0].(map[string]any)[key] = value
		})
		l.refused(node, "gateway", "a restart is needed")
		l.end(node, "gateway", syscall.SIGTERM)
		daemons[node] = l.start(node, "gateway")
	}
	for _, node := range []string{"site1", "site2"} {
		// The kernel verifies the programs, which takes seconds on a busy machine.
		l.eventually("the session is up", 20*time.Second, l.paths(node, "up", "up"))
	}
	return daemons
}

// TestGatewayPlain: with mode plain, packets of unchanged hosts are sent as they are, over both
// paths; when a path dies the other one is used at once, and while none is known they are sealed.
func TestGatewayPlain(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	daemons := l.open("dq", "mode", "plain")
	clear := l.clear(t)
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Mode != "plain" {
		t.Errorf("the mode is %q", s.Peers[0].Mode)
	}
	// Packets of 1500 bytes, in both directions: nearly all are as the hosts sent them.
	if n := clear.Load(); n < size/1500 {
		t.Errorf("%d packets in clear\n%s", n, text)
	}

	wait := l.streamed(2)
	time.Sleep(500 * time.Millisecond)
	l.ip("site1", "link set path1 down")
	wait()
	if s, text := l.gateway("site2"); !strings.Contains(s.Reason, "path1") {
		t.Errorf("site2 does not notice:\n%s", text)
	}
	const programs = "CapEff:\t0000008000003000\n" // CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW
	if got := l.capabilities(daemons["site1"].Process.Pid); got != programs {
		t.Errorf("the daemon has capabilities %q", got)
	}
	if err := daemons["site1"].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := daemons["site1"].Wait(); err != nil {
		t.Error(err)
	}
	if e, err := netnstest.Echo(l.namespace("server"), netip.MustParseAddr("2001:db8:2::1"), 2, 56); err != nil || e.Received != 0 {
		t.Errorf("packets are sent after a clean stop: %+v, %v", e, err)
	}
}

// TestOpenPathsAreFollowed: when the path in use becomes longer, dq sends on the other one within
// half a second: of packets every 10 ms in each direction at most 50 follow on the old one, where
// the programs send and only probes measure.
func TestOpenPathsAreFollowed(t *testing.T) {
	for _, mode := range []string{"plain", "nat"} {
		t.Run(mode, func(t *testing.T) { testPathsAreFollowed(t, mode) })
	}
}

func testPathsAreFollowed(t *testing.T, mode string) {
	l := gateways(t)
	l.open("dq", "mode", mode)
	var echoes [2]atomic.Int64
	for i := range echoes {
		l.each(t, "site2", fmt.Sprint("path", i+1), func(p afpacket.Packet) {
			const icmpv6, request, reply = 58, 128, 129
			if b := p.Data; len(b) > 40 && b[0]>>4 == 6 && b[6] == icmpv6 && (b[40] == request || b[40] == reply) {
				echoes[i].Add(1)
			}
		})
	}
	l.echoed(50)
	used := 0
	if echoes[1].Load() > echoes[0].Load() {
		used = 1
	}
	l.must("client", program, "lab", "set", "--lab", l.name, fmt.Sprint("path", used+1), "delay=150ms")
	before := [2]int64{echoes[0].Load(), echoes[1].Load()}
	if _, err := netnstest.Echo(l.namespace("client"), contentServer, 200, 56); err != nil {
		t.Fatal(err)
	}
	old, other := echoes[used].Load()-before[used], echoes[1-used].Load()-before[1-used]
	t.Logf("%d packets on the path that has become longer, %d on the other one", old, other)
	if old > 2*50 || other < 300-old {
		_, text := l.gateway("site2")
		t.Errorf("%d packets on the path that has become longer, %d on the other one\n%s", old, other, text)
	}
}

// TestGatewayPlainLosses: packets as hosts made them have no numbers, and yet each gateway counts
// what is lost of them on the way to it: those of the gateways' own messages besides, which are
// few.
func TestGatewayPlainLosses(t *testing.T) {
	l := gateways(t)
	l.open("dq", "mode", "plain")
	var requests atomic.Int64
	l.each(t, "server", "lan", func(p afpacket.Packet) {
		const icmpv6, request = 58, 128
		if b := p.Data; !p.Sent && len(b) > 40 && b[6] == icmpv6 && b[40] == request {
			requests.Add(1)
		}
	})
	missed := func() (n [2]int64, text string) {
		for i, node := range []string{"site1", "site2"} {
			s, more := l.gateway(node)
			text += more
			for _, p := range s.Paths {
				n[i] += int64(p.Missed)
			}
		}
		return n, text
	}
	lossy := func(share string) {
		for _, path := range []string{"path1", "path2"} {
			l.must("client", program, "lab", "set", "--lab", l.name, path, "loss="+share)
		}
	}
	l.echoed(50)
	time.Sleep(time.Second) // messages that say how many were sent
	before, _ := missed()
	requests.Store(0)
	lossy("5%")
	const n = 600
	start := time.Now()
	e, err := netnstest.Echo(l.namespace("client"), contentServer, n, 1200)
	if err != nil {
		t.Fatal(err)
	}
	lossy("0%")
	// Of the gateways' own messages, twice 5 % of 120 per second each way.
	messages := 30 + int64(time.Since(start).Seconds()*12)
	// lost has the requests to site1 and the answers to site2.
	lost := [2]int64{n - requests.Load(), requests.Load() - int64(e.Received)}
	l.eventually("both gateways know what was lost", 5*time.Second, func() (bool, string) {
		now, text := missed()
		ok := true
		for i := range lost {
			counted := now[i] - before[i]
			ok = ok && lost[i] > 5 && counted >= lost[i] && counted <= lost[i]+messages
		}
		return ok, fmt.Sprintf("%d are lost, counted are %d after %d\n%s", lost, now, before, text)
	})
}

// TestGatewayNAT: with mode nat, TCP and echoes of unchanged hosts are sent over both paths with
// the paths' addresses and arrive with the hosts' own. A gateway that restarts without its sessions
// is sent no packets of them once it has reset them.
func TestGatewayNAT(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	daemons := l.open("dq", "mode", "nat")
	from := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[8:24])) }
	to := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[24:40])) }
	ours := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("2001:db8:1::1") || a == netip.MustParseAddr("2001:db8:2::1")
	}
	clear := l.onPaths(t, func(b []byte) bool { return b[0]>>4 == 6 && ours(from(b)) })
	translated := l.onPaths(t, func(b []byte) bool { return b[0]>>4 == 6 && !ours(from(b)) && ours(to(b)) })
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Sending < 2 || s.Peers[0].Receiving < 2 {
		t.Errorf("the sessions:\n%s", text)
	}
	if n := translated.Load(); n < size/1500 {
		t.Errorf("%d packets are translated\n%s", n, text)
	}
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets with the source of a host", n)
	}
	wait := l.streamed(1)
	time.Sleep(300 * time.Millisecond)
	if err := daemons["site1"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemons["site1"].Wait()
	l.start("site1", "gateway")
	wait()
}

// behindRouter puts a router into the first path of gateway-pair, and lets no path lose time.
var behindRouter = []string{
	"nodes:\n", `nodes:
  router:
    forwarding: true
    routes: [{dst: "2001:db8:1::/64", via: "2001:db8:f1::1"}, {dst: "2001:db8:2::/64", via: "2001:db8:f3::2"}]
`,
	"site1:\n    forwarding: true\n", `site1:
    forwarding: true
    routes: [{dst: "2001:db8:f3::/64", via: "2001:db8:f1::fe"}]
`,
	"site2:\n    forwarding: true\n", `site2:
    forwarding: true
    routes: [{dst: "2001:db8:f1::/64", via: "2001:db8:f3::fe"}]
`,
	`peers: [{name: site2, prefixes: ["2001:db8:2::/64"]}]`,
	`peers: [{name: site2, prefixes: ["2001:db8:2::/64"], endpoints: ["[2001:db8:f3::2]:4790", "[2001:db8:f2::2]:4790"]}]`,
	`peers: [{name: site1, prefixes: ["2001:db8:1::/64"]}]`,
	`peers: [{name: site1, prefixes: ["2001:db8:1::/64"], endpoints: ["[2001:db8:f1::1]:4790", "[2001:db8:f2::1]:4790"]}]`,
	`      - {node: site2, interface: path1, addresses: ["2001:db8:f1::2/64"]}
`, `      - {node: router, interface: one, addresses: ["2001:db8:f1::fe/64"]}
  far1:
    rate: 20Mbit/s
    ends:
      - {node: router, interface: two, addresses: ["2001:db8:f3::fe/64"]}
      - {node: site2, interface: path1, addresses: ["2001:db8:f3::2/64"]}
`,
}

// TestForeignSoftwareOverNAT: programs that know nothing of gateways exchange data over NAT
// sessions, of which each path carries its part, and a router on the way reaches the host with its
// errors.
func TestForeignSoftwareOverNAT(t *testing.T) {
	programs.Need(t, "curl", "iperf3", "ping", "traceroute")
	l := up(t, variant(t, "gateway-pair", behindRouter...), "site1.gateway.log", "site2.gateway.log")
	l.open("dq", "mode", "nat")
	ours := netip.MustParsePrefix("2001:db8::/46")
	clear := l.onPaths(t, func(b []byte) bool { return b[0]>>4 == 6 && ours.Contains(netip.AddrFrom16([16]byte(b[8:24]))) })
	client := func(argv ...string) string { t.Helper(); return l.must("client", argv...) }

	if out := client("ping", "-q", "-c", "30", "-i", "0.02", "-s", "1200", contentServer.String()); !strings.Contains(out, "30 received") {
		t.Errorf("ping: %s", out)
	}
	const size = 6_000_000
	out := client("curl", "-sS", "-g", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", fmt.Sprintf("http://[%v]/bytes/%d", contentServer, size))
	if out != fmt.Sprint("200 ", size) {
		t.Errorf("curl: %s", out)
	}
	server := l.command("server", "iperf3", "-s", "-p", "5201")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	for name, options := range map[string][]string{
		"TCP": nil, "TCP of the server": {"-R"}, "UDP": {"-u", "-b", "30M", "-l", "1200"}, "UDP of the server": {"-u", "-b", "30M", "-l", "1200", "-R"},
	} {
		// A path that is emulated on a busy machine can be silent for so long that the gateways
		// leave it for a moment, and the other one has no room for all of it.
		const tries = 3
		var fault string
		for range tries {
			if fault = l.iperfOverBoth(name, options); fault == "" {
				break
			}
		}
		if fault != "" {
			t.Errorf("%s, %d times: %s", name, tries, fault)
		}
	}

	// The second packet of an echo's session and those after it are sent with NAT: the hop limit
	// ends at the router on the first path.
	l.ip("site2", "link set path2 down")
	l.eventually("the router's errors reach the host", 20*time.Second, func() (bool, string) {
		out, _ := l.try("client", "ping", "-c", "5", "-i", "0.1", "-t", "2", contentServer.String())
		return strings.Contains(out, "From 2001:db8:f3::fe icmp_seq="), out
	})
	out = client("traceroute", "-6", "-n", "-I", "-q", "2", "-w", "2", contentServer.String())
	if !strings.Contains(out, "  "+contentServer.String()) {
		t.Errorf("traceroute: %s", out)
	}
	t.Log(out)
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets with the source of a host on the paths", n)
	}
}

// iperfOverBoth has the client exchange 2 MB with iperf3 on the server, and says what was wrong
// with what arrived, or that a path carried too little of it.
func (l *lab) iperfOverBoth(name string, options []string) (fault string) {
	l.t.Helper()
	before, _ := l.gateway("site1")
	var r struct {
		Error string
		End   struct {
			Sent     struct{ Bytes uint64 } `json:"sum_sent"`
			Received struct{ Bytes uint64 } `json:"sum_received"`
			Sum      struct {
				Bytes uint64
				Lost  float64 `json:"lost_percent"`
			}
		}
	}
	var text string
	l.eventually(name+": iperf3 runs", 20*time.Second, func() (bool, string) {
		text, _ = l.try("client", append([]string{"iperf3", "-J", "-n", "2M", "-c", contentServer.String()}, options...)...)
		r.Error = ""
		return json.Unmarshal([]byte(text), &r) == nil && r.Error == "", text // the server may not listen yet
	})
	// What is received of TCP when the sender ends is less than what was sent.
	if sent := max(r.End.Sent.Bytes, r.End.Sum.Bytes); sent < 2_000_000 || r.End.Received.Bytes == 0 || r.End.Sum.Lost > 5 {
		return fmt.Sprintf("iperf3 sent %d bytes, %.1f %% are lost:\n%s", sent, r.End.Sum.Lost, text)
	}
	after, text := l.gateway("site1")
	carried := uint64(0)
	for i := range after.Paths {
		each := after.Paths[i].SentBytes + after.Paths[i].ReceivedBytes - before.Paths[i].SentBytes - before.Paths[i].ReceivedBytes
		carried += each
		if each < 200_000 {
			return fmt.Sprintf("path %s carried %d bytes:\n%s", after.Paths[i].Path, each, text)
		}
	}
	if carried < 1_000_000 {
		return fmt.Sprintf("the paths carried %d bytes:\n%s", carried, text)
	}
	return ""
}

// isOpenMessage reports whether a packet is a message of the tunnel that does not encrypt.
func isOpenMessage(b []byte) bool {
	at := 20
	if b[0]>>4 == 6 {
		at = 40
	}
	const udp, messageType = 8, 6
	return len(b) > at+udp && b[at+udp] == messageType
}

// TestGatewayUnsealed: with seal none, packets of unchanged hosts are sent by the program in
// messages that are not encrypted, over both paths, and each arrives once where all are copied.
func TestGatewayUnsealed(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	l.open("dq", "seal", "none")
	clear, open := l.clear(t), l.onPaths(t, isOpenMessage)
	l.echoed(20)
	const size = 6_000_000
	s, text := l.carried(size)
	if s.Peers[0].Mode != "tunnel, seal none" {
		t.Errorf("the mode is %q", s.Peers[0].Mode)
	}
	if n := open.Load(); n < size/1500 {
		t.Errorf("%d open messages\n%s", n, text)
	}
	if n := clear.Load(); n > 0 {
		t.Errorf("%d packets without a tunnel", n)
	}

	for _, node := range []string{"site1", "site2"} {
		l.edit(node, "gateway", func(s section) { s["policy"] = []any{map[string]any{"discipline": "redundant"}} })
		l.reloaded(node, "gateway", "policy replaced")
	}
	before := open.Load()
	l.echoed(20)
	l.eventually("each echo and answer is sent twice and delivered once", 5*time.Second, func() (bool, string) {
		s, text := l.gateway("site1")
		return open.Load()-before >= 80 && s.Dropped["duplicate"] >= 20, fmt.Sprint(open.Load()-before, " ", text)
	})
}
