package acceptance

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/testkit/programs"
)

// noticed is within which a change of the host is restored or reported.
const noticed = 10 * time.Second

// flip is a change of a host by another program. Without a problem, it is restored; else the status
// and doctor report it, until the command of the problem has been run.
type flip struct {
	node, daemon string
	change       []string
	problem      string
	// remedy is what mends it, and command what is reported, unless it is the same.
	remedy   []string
	command  string
	restored func() (bool, string)
}

// flips makes each change and waits for what follows.
func (l *lab) flips(list []flip) {
	l.t.Helper()
	for _, f := range list {
		l.t.Logf("%s: %s", f.node, strings.Join(f.change, " "))
		l.must(f.node, f.change...)
		what := fmt.Sprint(f.node, ": ", strings.Join(f.change, " "))
		if f.problem == "" {
			l.eventually(what+" is restored", noticed, f.restored)
			continue
		}
		command := cmp.Or(f.command, strings.Join(f.remedy, " "))
		l.eventually(what+" is reported", noticed, l.contains(true, f.problem+": "+command, f.node, program, "status", f.daemon))
		out, _ := l.try(f.node, program, "doctor")
		if text := strings.Join(strings.Fields(out), " "); !strings.Contains(text, "is degraded: ") || !strings.Contains(text, f.problem) || !strings.Contains(text, command) {
			l.t.Errorf("%s: doctor does not report %q:\n%s", what, f.problem, out)
		}
		l.must(f.node, f.remedy...)
		l.eventually(what+" is mended", noticed, l.contains(false, f.problem, f.node, program, "status", f.daemon))
	}
}

func sysctl(key, value string) []string { return []string{"sysctl", "-w", key + "=" + value} }

// value is an eventually condition on a parameter.
func (l *lab) value(node, key, want string) func() (bool, string) {
	return func() (bool, string) {
		got, err := l.try(node, "sysctl", "-n", key)
		return strings.TrimSpace(got) == want, fmt.Sprint(got, err)
	}
}

// TestHostsAreWatched: what other programs change on the host of a border router, a server, and a
// router.
func TestHostsAreWatched(t *testing.T) {
	t.Parallel()
	l := epe(t)
	const routes = "-6 route show table 101"
	l.eventually("routes are there", 30*time.Second, l.shows(true, "mtu 1524", "server", routes))
	manager := "net.mptcp.pm_type"
	ip6tables := programs.Need(t, "ip6tables-legacy")
	l.flips([]flip{
		{
			node: "asbr1", daemon: "asbr", change: sysctl("net.ipv6.conf.all.forwarding", "0"),
			problem: "this host does not forward IPv6, as a router must", remedy: sysctl("net.ipv6.conf.all.forwarding", "1"),
		},
		{
			node: "transit-a", daemon: "router", change: sysctl("net.ipv6.conf.all.forwarding", "0"),
			problem: "this host does not forward IPv6, as a router must", remedy: sysctl("net.ipv6.conf.all.forwarding", "1"),
		},
		{
			node: "asbr1", daemon: "asbr", change: []string{ip6tables, "-P", "FORWARD", "DROP"},
			problem: `chain "ip6tables-legacy filter FORWARD" drops the packets that this host forwards`,
			command: "ip6tables-legacy -t filter -I FORWARD -i lan -j ACCEPT; ip6tables-legacy -t filter -I FORWARD -i wan -j ACCEPT",
			remedy:  []string{ip6tables, "-P", "FORWARD", "ACCEPT"},
		},
		{
			node: "server", daemon: "edge", change: sysctl("net.mptcp.enabled", "0"),
			problem: "new connections are TCP, because MPTCP is switched off on this host", remedy: sysctl("net.mptcp.enabled", "1"),
		},
		{node: "server", daemon: "edge", change: sysctl(manager, "0"), restored: l.value("server", manager, "1")},
	})
	for _, mtu := range []int{1400, 1500} {
		l.ip("server", fmt.Sprintf("link set lan mtu %d", mtu))
		text := fmt.Sprintf("mtu %d", mtu+24)
		l.eventually(fmt.Sprintf("routes have the MTU of an interface of %d", mtu), noticed, l.shows(true, text, "server", routes))
		l.must("client", programs.Need(t, "curl"), "-s", "-f", "-m", "20", "-o", "/dev/null", "http://server/bytes/1000000")
	}
}

// TestEndpointsAreWatched: the endpoints and limits of the kernel's path manager are the server's
// own.
func TestEndpointsAreWatched(t *testing.T) {
	t.Parallel()
	l := epe(t, "    serve:\n      port: 80", "      mptcp: {path_manager: kernel}\n    serve:\n      port: 80")
	endpoints := func(want bool) func() (bool, string) {
		return l.contains(want, "2001:db8:1::b", "server", programs.Need(t, "ip"), "mptcp", "endpoint")
	}
	l.eventually("endpoints are there", 30*time.Second, endpoints(true))
	l.flips([]flip{
		{node: "server", change: []string{programs.Need(t, "ip"), "mptcp", "endpoint", "flush"}, restored: endpoints(true)},
		{
			node: "server", change: []string{programs.Need(t, "ip"), "mptcp", "limits", "set", "subflows", "0", "add_addr_accepted", "0"},
			restored: l.contains(true, "subflows 8", "server", programs.Need(t, "ip"), "mptcp", "limits"),
		},
		{node: "server", change: sysctl("net.mptcp.pm_type", "1"), restored: l.value("server", "net.mptcp.pm_type", "0")},
	})
}

// TestGatewayHostIsWatched: what other programs change on the host of a gateway; the hosts' packets
// get through again.
func TestGatewayHostIsWatched(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	l.eventually("paths are up", 30*time.Second, l.paths("site1", "up", "up"))
	through := func() (bool, string) {
		out, err := l.try("client", programs.Need(t, "curl"), "-s", "-f", "-m", "2", "-o", "/dev/null", "http://server/bytes/1000")
		return err == nil, out
	}
	l.flips([]flip{
		{node: "site1", change: []string{programs.Need(t, "ip"), "link", "set", "tabane0", "down"}, restored: through},
		{node: "site1", change: []string{programs.Need(t, "ip"), "link", "set", "tabane0", "mtu", "1000"}, restored: through},
		{node: "site1", change: []string{programs.Need(t, "ip"), "addr", "flush", "dev", "tabane0"}, restored: through},
		{
			node: "site1", daemon: "gateway", change: sysctl("net.ipv6.conf.all.forwarding", "0"),
			problem: "this host does not forward IPv6, as a router must", remedy: sysctl("net.ipv6.conf.all.forwarding", "1"),
		},
	})
}

// TestOpenGatewayHostIsWatched: what other programs change on the host of a gateway with peers that
// are not sealed.
func TestOpenGatewayHostIsWatched(t *testing.T) {
	t.Parallel()
	l := gateways(t)
	l.open("dq", "mode", "plain")
	ip, nft := programs.Need(t, "ip"), programs.Need(t, "nft")
	mtu := func() (bool, string) {
		out, err := l.try("site1", ip, "link", "show", "tabane-seg1")
		return err == nil && strings.Contains(out, "mtu 65535") && strings.Contains(out, ",UP"), out
	}
	l.flips([]flip{
		{node: "site1", change: []string{ip, "link", "set", "tabane-seg1", "mtu", "1400"}, restored: mtu},
		{node: "site1", change: []string{ip, "link", "set", "tabane-seg0", "down"}, restored: mtu},
		{node: "site1", change: sysctl("net.ipv4.conf.tabane-seg1.rp_filter", "1"), restored: l.value("site1", "net.ipv4.conf.tabane-seg1.rp_filter", "0")},
		{
			node: "site1", daemon: "gateway", change: []string{ip, "rule", "add", "fwmark", "0x1/0x1", "table", "7", "priority", "100"},
			problem: "ip -4 rule priority 100 fwmark 0x1/0x1 also routes packets of the gateway with mark 4791 (0x12b7)",
			command: "use marks above the lower 16 bits, such as 0x10000/0x10000", remedy: []string{ip, "rule", "del", "priority", "100"},
		},
		{
			node: "site1", daemon: "gateway", change: []string{nft, "add table inet t; add chain inet t c { type filter hook forward priority 0; policy drop; }; add rule inet t c ct state established accept"},
			problem: "inet t c may drop packets of peers that are not sealed, or replace their mark: they arrive from the lines, and packets to the peers bypass connection tracking",
			command: "nft insert rule inet t c meta mark and 0xffff == 4791 accept", remedy: []string{nft, "delete table inet t"},
		},
	})
}

// TestTunnelRemoved: a gateway whose tunnel another program removes ends with that reason, for the
// service manager to start it again, and leaves nothing; the next start carries packets again.
func TestTunnelRemoved(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tunnel", "plain"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := gateways(t)
			var daemon *exec.Cmd
			if mode == "tunnel" {
				l.end("site1", "gateway", syscall.SIGTERM)
				daemon = l.start("site1", "gateway")
				l.eventually("the session is up", 20*time.Second, l.contains(true, "site2", "site1", program, "status", "gateway"))
			} else {
				daemon = l.open("dq", "mode", mode)["site1"]
			}
			ip := programs.Need(t, "ip")
			l.must("site1", ip, "link", "del", "tabane0")
			if err := daemon.Wait(); err == nil {
				t.Error("the gateway ends without an error")
			}
			log, err := os.ReadFile(filepath.Join("/run/tabane/lab", l.name, "site1.gateway.log"))
			if err != nil || !strings.Contains(string(log), `another program removed the tunnel's interface "tabane0"`) {
				t.Errorf("the reason is missing (%v):\n%s", err, log)
			}
			for _, what := range [][]string{{"link"}, {"-6", "rule"}, {"-4", "rule"}, {"-6", "route", "show", "table", "all"}} {
				out := l.must("site1", append([]string{ip}, what...)...)
				if strings.Contains(out, "tabane0") || strings.Contains(out, "proto 115") {
					t.Errorf("%v: left behind:\n%s", what, out)
				}
			}
			l.start("site1", "gateway")
			l.eventually("packets get through", 30*time.Second, func() (bool, string) {
				out, err := l.try("client", programs.Need(t, "curl"), "-s", "-f", "-m", "2", "-o", "/dev/null", "http://server/bytes/1000")
				return err == nil, out
			})
		})
	}
}
