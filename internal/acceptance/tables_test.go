package acceptance

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// kernelRoutes is epe-steady with an edge whose tables another program fills, and with pieces of it
// replaced. The lab does not wait for the edge, which is ready when there are routes.
func kernelRoutes(t *testing.T, server string, replace ...string) string {
	t.Helper()
	file := variant(t, "epe-steady", append([]string{
		"  server:\n", "  server:\n    ready: false\n" + server,
		"      reflectors:\n        - address: 2001:db8:1::fe\n      locators: [fc00::/16]\n", "      routes: kernel\n",
	}, replace...)...)
	network, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	network, _, _ = bytes.Cut(network, []byte("\nexperiment:"))
	if err := os.WriteFile(file, network, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRoutesOfAnotherProgram: another program fills the tables of the egress peers. The edge uses
// what is in them, and a deleted route ends its subflow at once, while the connection stays.
func TestRoutesOfAnotherProgram(t *testing.T) {
	t.Parallel()
	file := kernelRoutes(t, "    routes: [{dst: \"2001:db8:c::/64\", via: \"2001:db8:1::1\"}]\n",
		"        - {name: server, address: \"2001:db8:1::10\"}\n", "")
	l := up(t, file, "server.edge.log")
	const a, b = "2001:db8:c::/64 encap seg6 mode encap segs fc00:1:1:: dev lan table 101", "2001:db8:c::/64 encap seg6 mode encap segs fc00:2:1:: dev lan table 102"
	status := func(want string) {
		t.Helper()
		l.eventually(want, 5*time.Second, l.contains(true, want, "server", program, "status", "--json", "edge"))
	}
	status(`"ready":false`)
	status(`"best_paths":"leave"`)
	l.ip("server", "route add fc00:1::/32 via 2001:db8:1::1 dev lan; route add fc00:2::/32 via 2001:db8:1::2 dev lan; route add "+a+"; route add "+b)
	status(`"ready":true,"degraded":false`)
	wait := l.stream("8s", 8)
	for _, address := range []string{"2001:db8:1::a", "2001:db8:1::b"} {
		l.eventually("a subflow from "+address, 5*time.Second, l.subflow(address))
	}
	l.ip("server", "route del 2001:db8:c::/64 table 101")
	withdrawn := time.Now()
	l.eventually("the subflow ends", 2*time.Second, func() (bool, string) {
		there, sockets := l.subflow("2001:db8:1::a")()
		return !there, sockets
	})
	t.Logf("the subflow ended after %s", time.Since(withdrawn).Round(time.Millisecond))
	status(`egress peer transit-a has no EPE Route: add one to table 101`)
	if out, err := netnstest.TryIP(t, l.namespace("server"), "route get 2001:db8:c::10 from 2001:db8:1::a"); err == nil {
		t.Errorf("a packet from the EPE address of transit-a would go: %s", out)
	}
	l.ip("server", "route add "+a)
	l.eventually("the subflow is back", 5*time.Second, l.subflow("2001:db8:1::a"))
	wait()
}
