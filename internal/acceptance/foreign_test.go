package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// frrScript starts FRR in the foreground with all its files in the node's directory: zebra, and a
// bgpd for each configuration. These are read when the daemons run, as by Debian's service.
const frrScript = `for dir in /usr/lib/frr /usr/libexec/frr /usr/sbin; do [ -x $dir/bgpd ] && break; done
options="--config_file $PWD/none.conf --socket $PWD/zserv.api --vty_port 0 --log stdout"
touch none.conf
$dir/zebra --pid_file $PWD/zebra.pid $options --vty_socket $PWD --user root --group frrvty &
until [ -S zserv.api ]; do sleep 0.05; done
[ $# = 1 ] || options="$options --bgp_port 0"
instance=0
for conf; do
	at=$PWD/$((instance += 1))
	mkdir $at
	ln -s $PWD/zebra.vty $at
	$dir/bgpd --int_num $instance --pid_file $at/bgpd.pid $options --vty_socket $at --skip_runas &
	until [ -S $at/bgpd.vty ]; do sleep 0.05; done
	vtysh --vty_socket $at -f $conf
done
wait
`

// interop is the text of a file of docs/interop.md.
func interop(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../examples/interop", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// another returns the lines by which a node of a scenario runs another program with these files.
func another(t *testing.T, names ...string) string {
	t.Helper()
	files := map[string]string{}
	for _, name := range names {
		files[name] = interop(t, name)
	}
	var run string
	switch program, _, _ := strings.Cut(names[0], "-"); program {
	case "bird":
		run = "bird -f -c " + names[0] + " -s bird.ctl"
	case "gobgpd":
		run = "gobgpd -f " + names[0]
	case "frr":
		run, files["frr.sh"] = "sh frr.sh "+strings.Join(names, " "), frrScript
		if names[0] == "frr-pe.conf" {
			files["frr.sh"] = interop(t, "frr-pe.sh") + frrScript
		}
	default:
		t.Fatalf("no program runs %s", names[0])
	}
	return runs(run, files)
}

// runs returns the lines by which a node of a scenario runs a command with these files.
func runs(command string, files map[string]string) string {
	lines := "    exec: " + command + "\n    files:\n"
	for name, text := range files {
		lines += "      " + name + ": |\n" + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "        $1")
	}
	return lines
}

// TestInteropPage: docs/interop.md names all files, and only lines that are in them.
func TestInteropPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/interop.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../examples/interop/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if !strings.Contains(string(b), filepath.Base(f)) {
			t.Errorf("the page has no %s", filepath.Base(f))
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|").FindAllStringSubmatch(string(b), -1)
	if len(rows) == 0 {
		t.Error("the page has no lines of files")
	}
	for _, row := range rows {
		if !strings.Contains(interop(t, row[1]), row[2]) {
			t.Errorf("%s has no %q", row[1], row[2])
		}
	}
}

// nodeOf returns a node's part of epe-steady.
func nodeOf(t *testing.T, node string) string {
	t.Helper()
	b, err := os.ReadFile("../../scenarios/epe-steady/scenario.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^  ` + node + `:\n(    .*\n)+`).FindString(string(b))
	if text == "" {
		t.Fatalf("the scenario has no node %q", node)
	}
	return text
}

// replaced are the arguments of epe that replace the daemons of a node by another program.
func replaced(t *testing.T, node string, files ...string) []string {
	t.Helper()
	return []string{nodeOf(t, node), "  " + node + ":\n    forwarding: true\n" + another(t, files...)}
}

// foreignLab is epe-steady with programs of others in it.
type foreignLab struct {
	*lab
	// ipv4 are the tables with IPv4 routes to the client.
	ipv4 []string
	// border are the border routers that are ours.
	border []string
	// traces are what the edge must not leave on the server, besides what it always has.
	traces []string
	// last is a node and its link that go down to withdraw the route through transit-b.
	last [2]string
}

// Links that go down to withdraw the route through transit-b.
var (
	access = [2]string{"client-isp", "access"}
	linkB  = [2]string{"transit-b", "link-b"}
)

var clients = map[string]string{"-6": "2001:db8:c::/64", "-4": "10.12.0.0/24"}

// deliver checks that content is delivered through both egress peers, that a withdrawal is
// followed, and that our daemons leave nothing behind.
func (l *foreignLab) deliver(t *testing.T) {
	t.Helper()
	routes := func(want bool, table string) {
		t.Helper()
		for family, client := range clients {
			if family == "-4" && !slices.Contains(l.ipv4, table) {
				continue
			}
			// Not "unreachable PREFIX", as BIRD installs a route without a next hop.
			route := regexp.MustCompile("(?m)^" + client + " ")
			l.eventually(fmt.Sprintf("a route to %s in table %s: %t", client, table, want), 15*time.Second, func() (bool, string) {
				out, err := netnstest.TryIP(t, l.namespace("server"), family+" route show table "+table)
				return err == nil && route.MatchString(out) == want, fmt.Sprint(out, err)
			})
		}
	}
	fetch := func(what string) {
		t.Helper()
		urls := []string{"http://server/bytes/1000000", "http://10.1.0.16/bytes/1000000"}
		for _, url := range urls[:min(2, 1+len(l.ipv4))] {
			l.eventually(what+": "+url, 10*time.Second, func() (bool, string) {
				out, err := l.try("client", program, "fetch", "--mptcp", "--limit", "3s", url)
				return err == nil && strings.HasPrefix(out, "1000000 bytes"), fmt.Sprint(out, err)
			})
		}
	}
	routes(true, "101")
	routes(true, "102")
	fetch("at first")
	sent := l.directed(t, "2001:db8:1::a", "2001:db8:1::b")
	l.carries(t, "http://server/bytes/100000000")
	sent.check(t)
	if len(l.ipv4) == 2 {
		sent := l.directed(t, "10.1.0.10", "10.1.0.11")
		l.carries(t, "http://10.1.0.16/bytes/100000000")
		sent.check(t)
	}

	l.link(t, "transit-a", "link-a", false)
	routes(false, "101")
	routes(true, "102")
	if out, err := netnstest.TryIP(t, l.namespace("server"), "route get 2001:db8:c::10 from 2001:db8:1::a"); err == nil {
		t.Errorf("a packet from the EPE address of transit-a would go: %s", out)
	}
	fetch("through transit-b alone")
	l.link(t, l.last[0], l.last[1], false)
	routes(false, "102")

	l.end("server", "edge", syscall.SIGTERM)
	state := l.ip("server", kernelState)
	for _, trace := range append(l.traces, "lookup 101", "2001:db8:1::a", "2001:db8:1::b", "signal", "117") {
		if strings.Contains(state, trace) {
			t.Errorf("%q is left in:\n%s", trace, state)
		}
	}
	for _, border := range l.border {
		l.end(border, "asbr", syscall.SIGTERM)
		if routes := l.ip(border, "route show table all proto 116; -4 route show table all proto 116"); routes != "" {
			t.Errorf("left on %s:\n%s", border, routes)
		}
	}
}

// foreign brings epe-steady up with pieces of it replaced, and shows the logs when the test fails.
func foreign(t *testing.T, scenario string) *lab {
	t.Helper()
	return up(t, scenario, "server.edge.log", "asbr1.asbr.log", "asbr2.asbr.log", "reflector.reflector.log",
		"server.exec.log", "asbr1.exec.log", "reflector.exec.log", "transit-a.exec.log", "client-isp.exec.log")
}

// TestForeignRouters: content leaves over both egress paths in IPv6 and IPv4 where egress peers,
// the reflector and the client's provider are other implementations. One SID is transposed.
func TestForeignRouters(t *testing.T) {
	t.Parallel()
	const transposed = `locator: {prefix: "fc00:2::/32", block: 16}`
	for _, c := range []struct {
		name  string
		nodes map[string]string
		last  [2]string
	}{
		{"BIRDTransitFRRISPGoBGPReflector", map[string]string{"transit-a": "bird-transit.conf", "client-isp": "frr-isp.conf", "reflector": "gobgpd-reflector.toml"}, access},
		{"FRRTransitBIRDISPBIRDReflector", map[string]string{"transit-a": "frr-transit.conf", "client-isp": "bird-isp.conf", "reflector": "bird-reflector.conf"}, access},
		{"FRRReflector", map[string]string{"reflector": "frr-reflector.conf"}, linkB},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			programs.Need(t, "bird", "vtysh", "gobgpd")
			pieces := []string{"name: epe-steady", "name: epe-steady\nfamily: dual", transposed, transposed + "\n      sid_format: transposed"}
			for node, file := range c.nodes {
				pieces = append(pieces, replaced(t, node, file)...)
			}
			l := foreignLab{lab: foreign(t, variant(t, "epe-steady", pieces...)), ipv4: []string{"101", "102"}, border: []string{"asbr1", "asbr2"}, traces: []string{"nhid", "seg6"}, last: c.last}
			for _, router := range []string{"2001:db8:1::1", "2001:db8:1::2"} { // through the reflector
				l.eventually("the load of the link of "+router, 20*time.Second, l.contains(true, "at "+router+`","capacity_bps":`, "server", program, "status", "edge", "--json"))
			}
			l.deliver(t)
		})
	}
}

// TestFRRAsPE: FRR is one of the border routers, and allocates the SIDs that our edge uses. Not
// parallel: beside other labs, FRR has been seen to allocate only one of its two.
func TestFRRAsPE(t *testing.T) {
	programs.Need(t, "vtysh", "ip")
	l := foreignLab{lab: foreign(t, variant(t, "epe-steady", append(replaced(t, "asbr1", "frr-pe.conf"), "name: epe-steady", "name: epe-steady\nfamily: dual")...)), ipv4: []string{"101", "102"}, border: []string{"asbr2"}, traces: []string{"nhid", "seg6"}, last: linkB}
	for _, sid := range []string{"fc00:1:0:1:100::", "fc00:1:0:1:200::"} {
		l.eventually("SID "+sid+" of FRR", 15*time.Second, l.shows(true, "segs 1 [ "+sid+" ]", "server", "nexthop"))
	}
	l.deliver(t)
}

// TestTablesOfFRR: FRR fills the tables of the egress peers, one bgpd each, with the SIDs of our
// border routers.
func TestTablesOfFRR(t *testing.T) {
	t.Parallel()
	programs.Need(t, "vtysh")
	// The default address uses transit-a. The second bgpd has its own address and session.
	const main = `    routes:
      - {dst: "2001:db8:c::/64", via: "2001:db8:1::1"}
`
	const client, address = `        - {name: server, address: "2001:db8:1::10"}` + "\n", `addresses: ["2001:db8:1::10/64"`
	file := kernelRoutes(t, main+another(t, "frr-server-a.conf", "frr-server-b.conf"),
		"name: epe-steady", "name: epe-steady\nfamily: dual",
		client, client+strings.NewReplacer("server", "server-b", "10", "11").Replace(client), address, address+`, "2001:db8:1::11/64"`)
	l := foreignLab{lab: foreign(t, file), ipv4: []string{"101", "102"}, border: []string{"asbr1", "asbr2"}, last: linkB}
	l.ip("server", "route add fc00:1::/32 via 2001:db8:1::1 dev lan; route add fc00:2::/32 via 2001:db8:1::2 dev lan")
	for _, sid := range []string{"fc00:1:1::", "fc00:1:101::", "fc00:2:1::", "fc00:2:101::"} {
		l.eventually("the SID "+sid, 15*time.Second, l.shows(true, "segs 1 [ "+sid+" ]", "server", "nexthop"))
	}
	l.deliver(t)
}

// TestTablesOfBIRD: BIRD fills the tables of the egress peers without SRv6, with the best routes of
// each border router.
func TestTablesOfBIRD(t *testing.T) {
	t.Parallel()
	programs.Need(t, "bird")
	const reflectors = "      reflectors:\n        - address: 2001:db8:1::"
	borders := []string{"name: epe-steady", "name: epe-steady\nfamily: dual", nodeOf(t, "reflector"), "  reflector: {}\n"}
	for _, border := range []string{"asbr1", "asbr2"} {
		node := nodeOf(t, border)
		borders = append(borders, node, strings.Replace(node, reflectors+"fe", reflectors+"10", 1))
	}
	l := foreignLab{lab: foreign(t, kernelRoutes(t, another(t, "bird-server.conf"), borders...)), ipv4: []string{"101", "102"}, border: []string{"asbr1", "asbr2"}, last: linkB}
	l.deliver(t)
}
