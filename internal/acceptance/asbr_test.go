package acceptance

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// watched are the pieces of the scenario that put BFD on the sessions between the ASBRs and the
// reflector, and on that with transit-a.
var watched = []string{
	`{name: asbr1, address: "2001:db8:1::1"}`, `{name: asbr1, address: "2001:db8:1::1", bfd: {interval: 50ms, multiplier: 4}}`,
	"        - address: 2001:db8:1::fe\n      peers:\n        - name: transit-a\n",
	"        - address: 2001:db8:1::fe\n          bfd: {interval: 50ms}\n      peers:\n        - name: transit-a\n          bfd: {interval: 50ms, multiplier: 4}\n",
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp}`,
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp, bfd: {interval: 50ms, multiplier: 4}}`,
}

// TestBFDDetectsASBRLoss takes the ASBR's end of the segment down; the reflector's stays
// up, and no session is closed. The hold time is 9 s: only BFD detects it this fast.
func TestBFDDetectsASBRLoss(t *testing.T) {
	l := epe(t, watched...)
	watching := func(node, role, neighbor string) func() (bool, string) {
		return l.contains(true, `"neighbor":"`+neighbor+`","up":true,"bfd":"up"`, node, program, "status", "--json", role)
	}
	l.eventually("the reflector watches asbr1", 10*time.Second, watching("reflector", "reflector", "asbr1"))
	l.eventually("transit-a watches asbr1", 10*time.Second, watching("transit-a", "router", "asbr1"))
	l.ip("asbr1", "link set lan down")
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.shows(false, "2001:db8:c::/64", "server", "route show table 101"))
	l.eventually("the SID's nexthop object goes", 4*time.Second, l.shows(false, "fc00:1:1::", "server", "nexthop"))
	l.eventually("the best path moves to transit-b", 4*time.Second,
		l.shows(true, "2001:db8:c::/64 via 2001:db8:1::2", "server", "route"))
	l.eventually("the reflector reports BFD as the reason", 4*time.Second,
		l.contains(true, `"reason":"bfd down"`, "reflector", program, "status", "--json", "reflector"))
	l.ip("asbr1", "link set lan up")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 101"))
	l.eventually("the reflector watches asbr1 again", 10*time.Second, watching("reflector", "reflector", "asbr1"))
}

// TestBFDDetectsTransitBlackhole: the link stays up, but no packet crosses it.
func TestBFDDetectsTransitBlackhole(t *testing.T) {
	l := epe(t, watched...)
	l.eventually("asbr1 watches transit-a", 10*time.Second,
		l.contains(true, `"neighbor":"transit-a","up":true,"bfd":"up"`, "asbr1", program, "status", "--json", "asbr"))
	// With a wrong link-layer address, frames are dropped by the neighbor's NIC.
	l.ip("asbr1", "neighbor replace 2001:db8:a::2 lladdr 02:00:00:00:00:01 dev wan nud permanent")
	l.ip("transit-a", "neighbor replace 2001:db8:a::1 lladdr 02:00:00:00:00:02 dev csp nud permanent")
	l.eventually("the SID goes", 4*time.Second, l.shows(false, "fc00:1:1::", "asbr1", "route"))
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.shows(false, "2001:db8:c::/64", "server", "route show table 101"))
	l.ip("asbr1", "neighbor del 2001:db8:a::2 dev wan")
	l.ip("transit-a", "neighbor del 2001:db8:a::1 dev csp")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 101"))
}

// TestDrain takes an ASBR out of service in the middle of a stream, and stops
// it.
func TestDrain(t *testing.T) {
	t.Parallel()
	l := epe(t, "path_manager: kernel", "path_manager: user")
	stream := l.command("client", program, "fetch", "--mptcp", "--json", "http://server/cbr?rate=15Mbit/s&duration=6s")
	out := &strings.Builder{}
	stream.Stdout = out
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address, 5*time.Second,
			l.socket("server", netnstest.Established, "["+address+"]:80"))
	}
	text := l.must("asbr1", program, "asbr", "drain", "--wait", "1s")
	if stages := regexp.MustCompile(`(?m)^\w+`).FindAllString(text, -1); !slices.Equal(stages, []string{"moving", "withdrawn", "drained"}) {
		t.Errorf("drain said %q", text)
	}
	if routes := l.ip("asbr1", "route"); strings.Contains(routes, "seg6local") {
		t.Errorf("left on asbr1:\n%s", routes)
	}
	if routes := l.ip("asbr1", "route show table 101"); strings.Contains(routes, "via") {
		t.Errorf("left in the table of transit-a:\n%s", routes)
	}
	if nexthops := l.ip("server", "nexthop"); strings.Contains(nexthops, "fc00:1:1::") {
		t.Errorf("left on the server:\n%s", nexthops)
	}
	if _, err := l.try("asbr1", program, "asbr", "drain"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second drain: %v", err)
	}
	l.end("asbr1", "asbr", syscall.SIGTERM)
	if err := stream.Wait(); err != nil {
		t.Fatal(err)
	}
	var r struct {
		Bytes     int64 `json:"bytes"`
		UsedMPTCP bool  `json:"used_mptcp"`
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil || !r.UsedMPTCP || r.Bytes != 15e6/8*6 {
		t.Errorf("the stream: %+v, %v", r, err)
	}
	l.start("asbr1", "asbr")
	l.eventually("it is back", 15*time.Second, l.contains(true, `"ready":true,"degraded":false`, "asbr1", program, "status", "--json", "asbr"))
}

func TestDrainUndo(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.must("asbr1", program, "asbr", "drain", "--wait", "0s")
	l.eventually("the EPE Route goes", 4*time.Second,
		l.shows(false, "2001:db8:c::/64", "server", "route show table 101"))
	if routes := l.ip("transit-a", "route show 2001:db8:1::/64"); strings.Contains(routes, "2001:db8:a::1") {
		t.Errorf("transit-a still sends to asbr1: %s", routes)
	}
	if text := l.must("asbr1", program, "asbr", "drain", "--undo"); text != "in service\n" {
		t.Errorf("undo said %q", text)
	}
	l.eventually("the EPE Route is back", 4*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 101"))
	l.eventually("the best path is back", 4*time.Second,
		l.shows(true, "2001:db8:c::/64 via 2001:db8:1::1", "server", "route"))
	l.eventually("transit-a sends to asbr1", 4*time.Second,
		l.shows(true, "2001:db8:a::1", "transit-a", "route show 2001:db8:1::/64"))
	if _, err := l.try("asbr1", program, "asbr", "drain", "--undo"); err == nil || !strings.Contains(err.Error(), "in service") {
		t.Errorf("a second undo: %v", err)
	}
}

// TestRoutesRetainedWithoutReflector kills or stops the only reflector: the routes that it
// advertised are retained.
func TestRoutesRetainedWithoutReflector(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := epe(t)
			before := l.ip("server", kernelState+"; route show proto 117")
			transfer := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/40000000")
			if err := transfer.Start(); err != nil {
				t.Fatal(err)
			}
			seen := l.monitor("server")
			l.end("reflector", "reflector", sig)
			l.eventually("the server retains the routes", 5*time.Second, l.contains(true, `"retained":`, "server", program, "status", "--json", "edge"))
			l.start("reflector", "reflector")
			l.eventually("the session is up again", 15*time.Second, func() (bool, string) {
				out, _ := l.try("server", program, "status", "--json", "edge") // fails while degraded
				return strings.Contains(out, `"ready":true,"degraded":false`) && !strings.Contains(out, `"retained":`), out
			})
			if after := l.ip("server", kernelState+"; route show proto 117"); after != before {
				t.Errorf("the server's kernel has changed:\n%s\nwas:\n%s", after, before)
			}
			// The ASBRs come back one after the other, and the best path may follow;
			// nothing goes meanwhile.
			if text := seen(); regexp.MustCompile(`(?m)^Deleted.*proto 117|table 10[12].*proto 117`).MatchString(text) {
				t.Errorf("kernel state has changed:\n%s", text)
			}
			if err := transfer.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestASBRRestartAfterKill: the routes of an ASBR are withdrawn when its sessions go down, but
// packets that still arrive at it are forwarded, and its next instance changes nothing in the
// kernel.
func TestASBRRestartAfterKill(t *testing.T) {
	t.Parallel()
	l := epe(t)
	const state = "rule; route show table 101; route show proto 116"
	before := l.ip("asbr1", state)
	transfer := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/40000000")
	if err := transfer.Start(); err != nil {
		t.Fatal(err)
	}
	seen := l.monitor("asbr1")
	l.end("asbr1", "asbr", syscall.SIGKILL)
	l.eventually("the server turns away from it", 4*time.Second, l.shows(false, "fc00:1:1::", "server", "nexthop"))
	if after := l.ip("asbr1", state); after != before {
		t.Errorf("the kernel changed with the kill:\n%s\nwas:\n%s", after, before)
	}
	l.start("asbr1", "asbr")
	l.eventually("the new instance is ready", 15*time.Second, l.contains(true, `"ready":true,"degraded":false`, "asbr1", program, "status", "--json", "asbr"))
	l.eventually("the server comes back", 5*time.Second, l.shows(true, "fc00:1:1::", "server", "nexthop"))
	if after := l.ip("asbr1", state); after != before {
		t.Errorf("the new instance changed:\n%s\nwas:\n%s", after, before)
	}
	if text := seen(); strings.Contains(text, "seg6local") || strings.Contains(text, "table 101") {
		t.Errorf("kernel state has changed:\n%s", text)
	}
	if err := transfer.Wait(); err != nil {
		t.Error(err)
	}
}

// TestRestartWithChangedConfiguration: what the next instance does not want is removed, once it
// knows all that it wants.
func TestRestartWithChangedConfiguration(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.end("asbr1", "asbr", syscall.SIGKILL)
	l.end("server", "edge", syscall.SIGKILL)
	l.change("asbr1", `"table": 101`, `"table": 111`, `"id": 1`, `"id": 7`)
	l.change("server", `"table": 101`, `"table": 111`, `"2001:db8:1::b"`, `"2001:db8:1::bb"`)
	l.start("asbr1", "asbr")
	l.start("server", "edge")
	l.eventually("the new SID", 15*time.Second, l.shows(true, "fc00:1:7::", "asbr1", "route"))
	l.eventually("the new table", 15*time.Second, l.shows(true, "2001:db8:c::/64", "server", "route show table 111"))
	// All sessions are up; everything that is wanted is known 10 s later.
	l.eventually("the old SID goes", 30*time.Second, l.shows(false, "fc00:1:1::", "asbr1", "route"))
	l.eventually("the old table goes", 30*time.Second, l.shows(false, "101", "asbr1", "route show table all proto 116"))
	l.eventually("the old address goes", 30*time.Second, l.shows(false, "2001:db8:1::b/", "server", "addr"))
	l.eventually("the server's old table goes", 30*time.Second,
		l.shows(false, "table 101", "server", "route show table all proto 117"))
	if rules := l.ip("server", "rule"); strings.Contains(rules, "lookup 101") || !strings.Contains(rules, "from 2001:db8:1::bb lookup 102") {
		t.Errorf("rules:\n%s", rules)
	}
}

// monitor watches the routes, rules and nexthop objects of a node; the function that it returns
// ends that and returns what changed.
func (l *lab) monitor(node string) func() string {
	l.t.Helper()
	return netnstest.Monitor(l.t, l.namespace(node))
}

// change replaces pieces of a node's configuration file, each of which must be there.
func (l *lab) change(node string, replace ...string) {
	l.t.Helper()
	file := filepath.Join("/run/tabane/lab", l.name, node+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	for pair := range slices.Chunk(replace, 2) {
		if !bytes.Contains(b, []byte(pair[0])) {
			l.t.Fatalf("%s has no %q:\n%s", file, pair[0], b)
		}
		b = bytes.Replace(b, []byte(pair[0]), []byte(pair[1]), 1)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// ownWay are the pieces of the scenario that give each egress peer a prefix of its own, so that
// answers come back the way that the content went.
var ownWay = []string{
	`address: "2001:db8:1::a", table: 101}`, `address: "2001:db8:1:a::10", prefix: "2001:db8:1:a::/64", table: 101}`,
	`address: "2001:db8:1::b", table: 102}`, `address: "2001:db8:1:b::10", prefix: "2001:db8:1:b::/64", table: 102}`,
	"prefixes: [2001:db8:1::/64]", "prefixes: [2001:db8:1::/48]",
	"prefixes: [2001:db8:1::/64]", "prefixes: [2001:db8:1::/48]",
	`rt: "65000:101"` + "\n          local_pref", `rt: "65000:101"` + "\n          prefixes: [\"2001:db8:1:a::/64\"]\n          local_pref",
	`rt: "65000:102"` + "\n\n", `rt: "65000:102"` + "\n          prefixes: [\"2001:db8:1:b::/64\"]\n\n",
	`["2001:db8:1::1/64"]`, `["2001:db8:1::1/64", "2001:db8:1:a::1/64", "2001:db8:1:b::1/64"]`,
	`["2001:db8:1::2/64"]`, `["2001:db8:1::2/64", "2001:db8:1:a::2/64", "2001:db8:1:b::2/64"]`,
}

func TestReturnTrafficTakesEgressPath(t *testing.T) {
	t.Parallel()
	l := epe(t, ownWay...)
	for prefix, way := range map[string]string{
		"2001:db8:1::/48": "2001:db8:ca::1", "2001:db8:1:a::/64": "2001:db8:ca::1", "2001:db8:1:b::/64": "2001:db8:cb::1",
	} {
		l.eventually(prefix+" is reached through "+way, 5*time.Second,
			l.shows(true, "via "+way, "client-isp", "route show "+prefix))
	}
	answers := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(l.must("transit-b", "cat", "/sys/class/net/csp/statistics/tx_packets")))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := answers()
	if r := l.fetch("--mptcp", "http://server/bytes/10000000"); r.Bytes != 1e7 || !r.UsedMPTCP {
		t.Errorf("fetched %+v", r)
	}
	// 5 MB are 3,500 packets; the way over transit-a alone would leave a handful of routing
	// messages here.
	if n := answers() - before; n < 500 {
		t.Errorf("transit-b carried %d packets to the server", n)
	}
	// When the ASBR of a peer is gone, its addresses are reached by the common prefix.
	l.end("asbr2", "asbr", syscall.SIGTERM)
	l.eventually("the common prefix covers", 5*time.Second,
		l.shows(true, "via 2001:db8:ca::1", "client-isp", "route get 2001:db8:1:b::10"))
}
