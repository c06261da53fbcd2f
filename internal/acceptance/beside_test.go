package acceptance

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// beside is the text of a file of docs/beside-frr.md.
func beside(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../examples/beside", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBesideFRRPage: docs/beside-frr.md shows the files as they are.
func TestBesideFRRPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/beside-frr.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"border1.sh", "border2.sh", "server.sh", "edge.yaml"} {
		if !strings.Contains(string(page), beside(t, name)) {
			t.Errorf("the page does not have %s as it is", name)
		}
	}
}

// TestBesideFRR does what docs/beside-frr.md says: FRR keeps port 179 and all sessions, one server
// delivers over both peers, and the server's other traffic keeps to its routes. A killed edge costs
// no connection, and a clean stop leaves nothing.
func TestBesideFRR(t *testing.T) {
	t.Parallel()
	programs.Need(t, "vtysh", "ip")
	frr := func(conf string) string {
		return runs("sh frr.sh "+conf, map[string]string{"frr.sh": frrScript, conf: beside(t, conf)})
	}
	edge := "    " + strings.ReplaceAll(strings.TrimSpace(beside(t, "edge.yaml")), "\n", "\n    ") + "\n"
	sysctls, _, _ := strings.Cut(strings.TrimPrefix(nodeOf(t, "server"), "  server:\n"), "    edge:\n")
	server := "  server:\n" + sysctls + "    ready: false\n    routes: [{dst: \"::/0\", via: \"2001:db8:1::1\"}]\n    serve: {port: 80}\n" + edge
	file := variant(t, "epe-steady", nodeOf(t, "server"), server, nodeOf(t, "reflector"), "  reflector: {}\n",
		nodeOf(t, "asbr1"), "  asbr1:\n    forwarding: true\n"+frr("frr-border1.conf"),
		nodeOf(t, "asbr2"), "  asbr2:\n    forwarding: true\n"+frr("frr-border2.conf"))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	network, _, _ := strings.Cut(string(b), "\nexperiment:")
	if err := os.WriteFile(file, []byte(network), 0o600); err != nil {
		t.Fatal(err)
	}
	l := up(t, file, "server.edge.log", "asbr1.exec.log", "asbr2.exec.log")
	mainTable := l.ip("server", "route show table main")

	for node, peer := range map[string]string{"asbr1": "2001:db8:a::2", "asbr2": "2001:db8:b::2"} {
		l.eventually(node+" has the peer's route", 30*time.Second, func() (bool, string) {
			out, err := netnstest.TryIP(t, l.namespace(node), "-6 route show table main")
			return err == nil && strings.Contains(out, "2001:db8:c::/64"), out
		})
		l.eventually("FRR holds the session with "+peer, 5*time.Second, func() (bool, string) {
			sockets, text := l.sockets(node, netnstest.Established)
			for _, s := range sockets {
				if s.Remote.Addr().String() == peer {
					return true, text
				}
			}
			return false, text
		})
	}
	for node, script := range map[string]string{"asbr1": "border1.sh", "asbr2": "border2.sh", "server": "server.sh"} {
		l.must(node, "sh", "-e", "-c", beside(t, script))
	}
	l.eventually("edge is ready", 30*time.Second, l.contains(true, `"ready":true,"degraded":false`, "server", program, "status", "--json", "edge"))
	sent := l.directed(t, "2001:db8:1::a", "2001:db8:1::b")
	l.carries(t, "http://server/bytes/100000000")
	sent.check(t)
	if now := l.ip("server", "route show table main"); withoutSIDs(now) != withoutSIDs(mainTable) {
		t.Errorf("the main table of the server was\n%s\nand is\n%s", mainTable, now)
	}

	wait := l.stream("8s", 8)
	l.eventually("a subflow through transit-b", 10*time.Second, l.subflow("2001:db8:1::b"))
	l.end("server", "edge", syscall.SIGKILL)
	l.start("server", "edge")
	wait()
	l.eventually("edge has taken over", 30*time.Second, l.contains(true, `"ready":true,"degraded":false`, "server", program, "status", "--json", "edge"))
}

// withoutSIDs are the routes but those to SIDs, which the operator adds.
func withoutSIDs(routes string) string {
	var kept []string
	for line := range strings.Lines(routes) {
		if !strings.HasPrefix(line, "fc00:") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestPortBesideFRR: asbr and reflector listen on a port of their own on hosts where FRR has 179.
func TestPortBesideFRR(t *testing.T) {
	t.Parallel()
	programs.Need(t, "vtysh")
	const dial, port = "        - address: 2001:db8:1::fe\n", "          port: 1790\n"
	idle := func(id string) string {
		return runs("sh frr.sh idle.conf", map[string]string{"frr.sh": frrScript, "idle.conf": "router bgp 65000\n bgp router-id " + id + "\nexit\n"})
	}
	var pieces []string
	for node, id := range map[string]string{"reflector": "10.0.9.1", "asbr1": "10.0.9.2"} {
		text := nodeOf(t, node)
		text = strings.Replace(text, "      asn: 65000\n", "      asn: 65000\n      port: 1790\n", 1)
		pieces = append(pieces, nodeOf(t, node), strings.ReplaceAll(text, dial, dial+port)+idle(id))
	}
	for _, node := range []string{"server", "asbr2"} {
		pieces = append(pieces, nodeOf(t, node), strings.ReplaceAll(nodeOf(t, node), dial, dial+port))
	}
	l := up(t, variant(t, "epe-steady", pieces...), "reflector.reflector.log", "asbr1.asbr.log", "reflector.exec.log", "asbr1.exec.log")
	for _, node := range []string{"reflector", "asbr1"} {
		for _, local := range []string{":179", ":1790"} {
			l.eventually(node+" listens on "+local, 20*time.Second, l.socket(node, netnstest.Listening, local))
		}
	}
	l.carries(t, "http://server/bytes/100000000")
}
