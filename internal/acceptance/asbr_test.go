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
)

// watched are the pieces of the scenario that put BFD on the sessions between the ASBRs and the reflector, and on that
// with transit-a.
var watched = []string{
	`{name: asbr1, address: "2001:db8:1::1"}`, `{name: asbr1, address: "2001:db8:1::1", bfd: {interval: 50ms, multiplier: 4}}`,
	"        - address: 2001:db8:1::fe\n      peers:\n        - name: transit-a\n",
	"        - address: 2001:db8:1::fe\n          bfd: {interval: 50ms}\n      peers:\n        - name: transit-a\n          bfd: {interval: 50ms, multiplier: 4}\n",
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp}`,
	`{name: asbr1, asn: 65000, address: "2001:db8:a::1", interface: csp, bfd: {interval: 50ms, multiplier: 4}}`,
}

// TestAnASBRThatDiesSilentlyIsFound cuts an ASBR off without a word to anybody: its own end of the segment goes, the
// reflector's stays up. The hold time is 9 s: only BFD can be as fast as this.
func TestAnASBRThatDiesSilentlyIsFound(t *testing.T) {
	l := epe(t, watched...)
	watching := func(node, role, neighbor string) func() (bool, string) {
		return l.contains(true, `"neighbor":"`+neighbor+`","up":true,"bfd":"up"`, node, program, "status", "--json", role)
	}
	l.eventually("the reflector watches asbr1", 10*time.Second, watching("reflector", "reflector", "asbr1"))
	l.eventually("transit-a watches asbr1", 10*time.Second, watching("transit-a", "router", "asbr1"))
	l.must("asbr1", "ip", "link", "set", "lan", "down")
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.contains(false, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.eventually("the SID's nexthop object goes", 4*time.Second, l.contains(false, "fc00:1:1::", "server", "ip", "nexthop"))
	l.eventually("the best path moves to transit-b", 4*time.Second,
		l.contains(true, "2001:db8:c::/64 via 2001:db8:1::2", "server", "ip", "-6", "route"))
	l.eventually("the reflector says why", 4*time.Second,
		l.contains(true, `"reason":"bfd down"`, "reflector", program, "status", "--json", "reflector"))
	l.must("asbr1", "ip", "link", "set", "lan", "up")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.eventually("the reflector watches asbr1 again", 10*time.Second, watching("reflector", "reflector", "asbr1"))
}

// TestATransitThatLosesEveryPacketIsFound: the link stays up, nothing comes over it any more.
func TestATransitThatLosesEveryPacketIsFound(t *testing.T) {
	l := epe(t, watched...)
	l.eventually("asbr1 watches transit-a", 10*time.Second,
		l.contains(true, `"neighbor":"transit-a","up":true,"bfd":"up"`, "asbr1", program, "status", "--json", "asbr"))
	// A neighbor that is not who it was: frames to it are dropped by its NIC.
	l.must("asbr1", "ip", "-6", "neigh", "replace", "2001:db8:a::2", "lladdr", "02:00:00:00:00:01", "dev", "wan", "nud", "permanent")
	l.must("transit-a", "ip", "-6", "neigh", "replace", "2001:db8:a::1", "lladdr", "02:00:00:00:00:02", "dev", "csp", "nud", "permanent")
	l.eventually("the SID goes", 4*time.Second, l.contains(false, "fc00:1:1::", "asbr1", "ip", "-6", "route"))
	l.eventually("the server's EPE Route goes", 4*time.Second,
		l.contains(false, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.must("asbr1", "ip", "-6", "neigh", "del", "2001:db8:a::2", "dev", "wan")
	l.must("transit-a", "ip", "-6", "neigh", "del", "2001:db8:a::1", "dev", "csp")
	l.eventually("the EPE Route is back", 20*time.Second,
		l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
}

// TestADrainedASBRLosesNothing takes an ASBR out of service in the middle of a stream, and stops it.
func TestADrainedASBRLosesNothing(t *testing.T) {
	l := epe(t, "path_manager: kernel", "path_manager: user")
	stream := l.command("client", program, "fetch", "--mptcp", "--json", "http://server/cbr?rate=15Mbit/s&duration=6s")
	out := &strings.Builder{}
	stream.Stdout = out
	if err := stream.Start(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address, 5*time.Second,
			l.contains(true, "["+address+"]:80", "server", "ss", "-Htn", "state", "established", "sport", "=", ":80"))
	}
	text := l.must("asbr1", program, "asbr", "drain", "--wait", "1s")
	if stages := regexp.MustCompile(`(?m)^\w+`).FindAllString(text, -1); !slices.Equal(stages, []string{"moving", "withdrawn", "drained"}) {
		t.Errorf("drain said %q", text)
	}
	if routes := l.must("asbr1", "ip", "-6", "route"); strings.Contains(routes, "seg6local") {
		t.Errorf("left on asbr1:\n%s", routes)
	}
	if routes := l.must("asbr1", "ip", "-6", "route", "show", "table", "101"); strings.Contains(routes, "via") {
		t.Errorf("left in the table of transit-a:\n%s", routes)
	}
	if nexthops := l.must("server", "ip", "nexthop"); strings.Contains(nexthops, "fc00:1:1::") {
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
	l.eventually("it is back", 15*time.Second, l.contains(true, `"ready":true`, "asbr1", program, "status", "--json", "asbr"))
}

func TestADrainCanBeUndone(t *testing.T) {
	l := epe(t)
	l.must("asbr1", program, "asbr", "drain", "--wait", "0s")
	l.eventually("the EPE Route goes", 4*time.Second,
		l.contains(false, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	if routes := l.must("transit-a", "ip", "-6", "route", "show", "2001:db8:1::/64"); strings.Contains(routes, "2001:db8:a::1") {
		t.Errorf("transit-a still sends to asbr1: %s", routes)
	}
	if text := l.must("asbr1", program, "asbr", "drain", "--undo"); text != "in service\n" {
		t.Errorf("undo said %q", text)
	}
	l.eventually("the EPE Route is back", 4*time.Second,
		l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "101"))
	l.eventually("the best path is back", 4*time.Second,
		l.contains(true, "2001:db8:c::/64 via 2001:db8:1::1", "server", "ip", "-6", "route"))
	l.eventually("transit-a sends to asbr1", 4*time.Second,
		l.contains(true, "2001:db8:a::1", "transit-a", "ip", "-6", "route", "show", "2001:db8:1::/64"))
	if _, err := l.try("asbr1", program, "asbr", "drain", "--undo"); err == nil || !strings.Contains(err.Error(), "in service") {
		t.Errorf("a second undo: %v", err)
	}
}

// TestADeadReflectorTakesNoRouteAlong kills the only reflector: what it told still holds.
func TestADeadReflectorTakesNoRouteAlong(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			l := epe(t)
			before := l.must("server", "sh", "-c", kernelState+"; ip -6 route show proto 117")
			transfer := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/40000000")
			if err := transfer.Start(); err != nil {
				t.Fatal(err)
			}
			seen := l.monitor("server")
			l.end("reflector", "reflector", sig)
			l.eventually("the server has noticed", 5*time.Second, l.contains(true, `"retained":`, "server", program, "status", "--json", "edge"))
			l.start("reflector", "reflector")
			l.eventually("the server hears it again", 15*time.Second, func() (bool, string) {
				out := l.must("server", program, "status", "--json", "edge")
				return strings.Contains(out, `"ready":true`) && !strings.Contains(out, `"retained":`), out
			})
			if after := l.must("server", "sh", "-c", kernelState+"; ip -6 route show proto 117"); after != before {
				t.Errorf("the server's kernel has changed:\n%s\nwas:\n%s", after, before)
			}
			// The ASBRs come back one after the other, and the best path may follow; nothing goes meanwhile.
			if text := seen(); regexp.MustCompile(`(?m)^Deleted.*proto 117|table 10[12].*proto 117`).MatchString(text) {
				t.Errorf("the kernel was told:\n%s", text)
			}
			if err := transfer.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAKilledASBRIsTakenOver: what an ASBR had told is withdrawn with its sessions, because nobody vouches for it any
// more, but what is on its way to it is delivered, and its next life changes nothing in the kernel.
func TestAKilledASBRIsTakenOver(t *testing.T) {
	l := epe(t)
	const state = "ip -6 rule; ip -6 route show table 101; ip -6 route show proto 116"
	before := l.must("asbr1", "sh", "-c", state)
	transfer := l.command("client", program, "fetch", "--mptcp", "http://server/bytes/40000000")
	if err := transfer.Start(); err != nil {
		t.Fatal(err)
	}
	seen := l.monitor("asbr1")
	l.end("asbr1", "asbr", syscall.SIGKILL)
	l.eventually("the server turns away from it", 4*time.Second, l.contains(false, "fc00:1:1::", "server", "ip", "nexthop"))
	if after := l.must("asbr1", "sh", "-c", state); after != before {
		t.Errorf("the kernel changed with the kill:\n%s\nwas:\n%s", after, before)
	}
	l.start("asbr1", "asbr")
	l.eventually("the new life is ready", 15*time.Second, l.contains(true, `"ready":true`, "asbr1", program, "status", "--json", "asbr"))
	l.eventually("the server comes back", 5*time.Second, l.contains(true, "fc00:1:1::", "server", "ip", "nexthop"))
	if after := l.must("asbr1", "sh", "-c", state); after != before {
		t.Errorf("the new life changed:\n%s\nwas:\n%s", after, before)
	}
	if text := seen(); strings.Contains(text, "seg6local") || strings.Contains(text, "table 101") {
		t.Errorf("the kernel was told:\n%s", text)
	}
	if err := transfer.Wait(); err != nil {
		t.Error(err)
	}
}

// TestAChangedConfigurationIsCleanedUp: what the next life does not want goes, once it knows everything that it wants.
func TestAChangedConfigurationIsCleanedUp(t *testing.T) {
	l := epe(t)
	l.end("asbr1", "asbr", syscall.SIGKILL)
	l.end("server", "edge", syscall.SIGKILL)
	l.change("asbr1", `"table": 101`, `"table": 111`, `"id": 1`, `"id": 7`)
	l.change("server", `"table": 101`, `"table": 111`, `"2001:db8:1::b"`, `"2001:db8:1::bb"`)
	l.start("asbr1", "asbr")
	l.start("server", "edge")
	l.eventually("the new SID", 15*time.Second, l.contains(true, "fc00:1:7::", "asbr1", "ip", "-6", "route"))
	l.eventually("the new table", 15*time.Second, l.contains(true, "2001:db8:c::/64", "server", "ip", "-6", "route", "show", "table", "111"))
	// All sessions are up; everything that is wanted is known 10 s later.
	l.eventually("the old SID goes", 30*time.Second, l.contains(false, "fc00:1:1::", "asbr1", "ip", "-6", "route"))
	l.eventually("the old table goes", 30*time.Second, l.contains(false, "101", "asbr1", "ip", "-6", "route", "show", "table", "all", "proto", "116"))
	l.eventually("the old address goes", 30*time.Second, l.contains(false, "2001:db8:1::b/", "server", "ip", "-6", "addr"))
	l.eventually("the server's old table goes", 30*time.Second,
		l.contains(false, "table 101", "server", "ip", "-6", "route", "show", "table", "all", "proto", "117"))
	if rules := l.must("server", "ip", "-6", "rule"); strings.Contains(rules, "lookup 101") || !strings.Contains(rules, "from 2001:db8:1::bb lookup 102") {
		t.Errorf("rules:\n%s", rules)
	}
}

// monitor watches the routes, rules and nexthop objects of a node; the function that it returns ends that and tells.
func (l *lab) monitor(node string) func() string {
	l.t.Helper()
	cmd := l.command(node, "ip", "-6", "monitor", "route", "nexthop", "rule")
	text := &strings.Builder{}
	cmd.Stdout = text
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	return func() string {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			l.t.Error(err)
		}
		_ = cmd.Wait() // ends by the signal
		return text.String()
	}
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

// ownWay are the pieces of the scenario that give each egress peer a prefix of its own, so that answers come back the way
// that the content went.
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

func TestAnswersComeBackTheWayThatTheContentWent(t *testing.T) {
	l := epe(t, ownWay...)
	for prefix, way := range map[string]string{
		"2001:db8:1::/48": "2001:db8:ca::1", "2001:db8:1:a::/64": "2001:db8:ca::1", "2001:db8:1:b::/64": "2001:db8:cb::1",
	} {
		l.eventually(prefix+" is reached through "+way, 5*time.Second,
			l.contains(true, "via "+way, "client-isp", "ip", "-6", "route", "show", prefix))
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
	// 5 MB are 3,500 packets; the way over transit-a alone would leave a handful of routing messages here.
	if n := answers() - before; n < 500 {
		t.Errorf("transit-b carried %d packets to the server", n)
	}
	// When the ASBR of a peer is gone, its addresses are reached by the common prefix.
	l.end("asbr2", "asbr", syscall.SIGTERM)
	l.eventually("the common prefix covers", 5*time.Second,
		l.contains(true, "via 2001:db8:ca::1", "client-isp", "ip", "-6", "route", "get", "2001:db8:1:b::10"))
}
