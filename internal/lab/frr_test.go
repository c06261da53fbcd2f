package lab

import (
	"errors"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/epe/reflector"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}

func transit() *router.Config {
	return &router.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("10.1.0.1"),
		Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8:c::/64"), netip.MustParsePrefix("2001:db8:d::1/128")},
		Leaks:    []router.Leak{{Prefix: netip.MustParsePrefix("2001:db8:e::/64"), ASPath: []uint32{65009, 65010}}},
		Neighbors: []router.Neighbor{
			{Name: "asbr1", ASN: 65000, Address: netip.MustParseAddr("2001:db8:a::1"), Interface: "csp", Password: "a secret"},
			{Name: "client-isp", ASN: 4200000003, Address: netip.MustParseAddr("2001:db8:ca::2"), Interface: "link-a", LocalPref: 200,
				Deny: []netip.Prefix{netip.MustParsePrefix("2001:db8:d::1/128"), netip.MustParsePrefix("2001:db8:c::/64")}},
		},
	}
}

func reflecting() *reflector.Config {
	return &reflector.Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.254"), Address: netip.MustParseAddr("2001:db8:1::fe"),
		Clients: []reflector.Client{
			{Name: "server", Address: netip.MustParseAddr("2001:db8:1::10")},
			{Name: "asbr1", Address: netip.MustParseAddr("2001:db8:1::1"), Password: "secret", BFD: bfd.Config{Interval: 100 * time.Millisecond}},
		},
	}
}

func TestFRRConfiguration(t *testing.T) {
	got, err := frrRouter("transit-a", transit())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "frr-router.conf", got)
	c := transit()
	c.Networks, c.Leaks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, nil
	for i := range c.Neighbors {
		c.Neighbors[i].Address, c.Neighbors[i].Deny = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	}
	c.Neighbors[0].Address, c.Neighbors[0].Family = netip.MustParseAddr("2001:db8:ca::1"), bgp.IPv4
	if got, err = frrRouter("transit-a", c); err != nil {
		t.Fatal(err)
	}
	golden(t, "frr-router-ipv4.conf", got)
	if got, err = frrReflector("reflector", reflecting()); err != nil {
		t.Fatal(err)
	}
	golden(t, "frr-reflector.conf", got)
}

func TestFRRConfigurationRefuses(t *testing.T) {
	c := transit()
	c.Neighbors[0].Password = "one\ntwo"
	if got, err := frrRouter("x", c); err == nil {
		t.Errorf("a password of two lines was written:\n%s", got)
	}
	c = transit()
	c.Neighbors[0].GTSM = true
	if _, err := frrRouter("x", c); err == nil || !strings.Contains(err.Error(), "only the embedded router") {
		t.Errorf("gtsm: %v", err)
	}
	r := reflecting()
	r.Listen = []reflector.Listen{{Name: "servers"}}
	if _, err := frrReflector("x", r); err == nil || !strings.Contains(err.Error(), "only the embedded reflector") {
		t.Errorf("listen: %v", err)
	}
	r = reflecting()
	r.Clients[0].Name = "server\n no router bgp"
	if got, err := frrReflector("x", r); err == nil {
		t.Errorf("a name of two lines was written:\n%s", got)
	}
	r = reflecting()
	r.Clients[1].BFD = bfd.Config{Interval: 20 * time.Millisecond}
	if _, err := frrReflector("x", r); err == nil || !strings.Contains(err.Error(), "from 50 ms, got 20ms") {
		t.Errorf("bfd: %v", err)
	}
}

func TestFRRChange(t *testing.T) {
	neighbor := netip.MustParseAddr("2001:db8:ca::1")
	one, other := netip.MustParsePrefix("2001:db8:c::/64"), netip.MustParsePrefix("2001:db8:d::/64")
	const (
		list  = "ipv6 prefix-list out-2001:db8:ca::1 seq "
		clear = "clear bgp ipv6 unicast 2001:db8:ca::1 soft out"
	)
	for _, tt := range []struct {
		old, now []netip.Prefix
		want     []string
	}{
		{nil, []netip.Prefix{one}, []string{list + "1 deny 2001:db8:c::/64 le 128"}},
		{[]netip.Prefix{one}, nil, []string{"no " + list + "1"}},
		{[]netip.Prefix{one, other}, []netip.Prefix{other}, []string{"no " + list + "2", list + "1 deny 2001:db8:d::/64 le 128"}},
	} {
		want := slices.Concat([]string{"configure terminal"}, tt.want, []string{"end", clear})
		if got := frrChange(neighbor, bgp.IPv6, tt.old, tt.now); !slices.Equal(got, want) {
			t.Errorf("from %v to %v: got %q, want %q", tt.old, tt.now, got, want)
		}
	}
}

func TestFRRReadiness(t *testing.T) {
	a, b := netip.MustParseAddr("2001:db8::a"), netip.MustParseAddr("2001:db8::b")
	for _, tt := range []struct{ summary, want string }{
		{`{"peers":{"2001:db8::a":{"state":"Established"},"2001:db8::b":{"state":"Established"}}}`, ""},
		{`{"peers":{"2001:db8::a":{"state":"Established"},"2001:db8::b":{"state":"Active"}}}`, `session with 2001:db8::b is "Active"`},
		{`{}`, `session with 2001:db8::a is ""`},
		{`% no BGP`, "not understood"},
		{`{"peers":{"nobody":{}}}`, "not understood"},
	} {
		err := frrReadiness([]byte(tt.summary), []netip.Addr{a, b})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.summary, err, tt.want)
		}
	}
}

// TestVTY connects to a fake FRR daemon that sends its responses in several writes.
func TestVTY(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bgpd.vty")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	commands := make(chan string, 8)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 256)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			command := string(b[:n])
			commands <- command
			switch {
			case strings.HasPrefix(command, "bogus"):
				c.Write([]byte("% Unknown command\n\x00\x00\x00\x02"))
			case strings.HasPrefix(command, "end"):
				return
			default:
				c.Write([]byte("one\n"))
				c.Write([]byte("two\n\x00\x00"))
				c.Write([]byte{0, 0})
			}
		}
	}()
	v, err := dialVTY(path)
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	if text, err := v.do("show version"); err != nil || text != "one\ntwo\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if _, err := v.do("bogus"); err == nil || !strings.Contains(err.Error(), "% Unknown command") {
		t.Errorf("got %v", err)
	}
	if _, err := v.do("end"); err == nil {
		t.Error("no answer is no error")
	}
	for _, want := range []string{"enable\x00", "show version\x00", "bogus\x00", "end\x00"} {
		if got := <-commands; got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
}

func TestUseFRR(t *testing.T) {
	p, err := newPlan("x", labtest.Routed())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.useFRR("/dir", "/z", "/b"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range p.daemons() {
		got = append(got, d.String()+" "+d.program+" "+strings.Join(d.arguments("/dir")[:2], " "))
	}
	want := []string{"b (zebra) /z --config_file /dir/b.frr/zebra.conf", "b (bgpd) /b --config_file /dir/b.frr/bgpd.conf"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := p.useFRR("/dir", "", ""); err != nil {
		t.Errorf("twice: %v", err)
	}

	if p, err = newPlan("x", labtest.Routed()); err != nil {
		t.Fatal(err)
	}
	if err := p.useFRR("/"+strings.Repeat("d", 100), "/z", "/b"); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("long path: %v", err)
	}
	both := labtest.Routed()
	both.Nodes["b"].Reflector = &reflector.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.9"), Address: netip.MustParseAddr("2001:db8:1::b"),
		Clients: []reflector.Client{{Name: "c", Address: netip.MustParseAddr("2001:db8:2::c")}},
	}
	if p, err = newPlan("x", both); err != nil {
		t.Fatal(err)
	}
	if err := p.useFRR("/dir", "/z", "/b"); err == nil {
		t.Error("a node that is router and reflector was taken")
	}
}

func needFRR(t *testing.T) {
	t.Helper()
	programs.Need(t, "vtysh")
	if err := FRRInstalled(); err != nil {
		t.Fatal(err)
	}
}

// TestFRRLab runs two FRR routers that each advertise a prefix to the other.
func TestFRRLab(t *testing.T) {
	needFRR(t)
	s := labtest.Plain()
	for node, neighbor := range map[string]string{"a": "b", "b": "a"} {
		asn := map[string]uint32{"a": 65001, "b": 65002}
		s.Nodes[node].Forwarding = true
		s.Nodes[node].Router = &router.Config{
			ASN: asn[node], RouterID: netip.MustParseAddr("10.0.0." + map[string]string{"a": "1", "b": "2"}[node]),
			Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8:" + map[string]string{"a": "aa", "b": "bb"}[node] + "::/48")},
			Neighbors: []router.Neighbor{{
				Name: neighbor, ASN: asn[neighbor], Address: netip.MustParseAddr("2001:db8:1::" + neighbor), Interface: "wire", Password: "pass word",
				BFD: bfd.Config{Interval: 200 * time.Millisecond, Multiplier: 5},
			}},
		}
	}
	o := options(t, "frr", s)
	o.Routers = RoutersFRR
	l := start(t, o)
	if l, err := Open(l.Name()); err != nil || l.routers != RoutersFRR {
		t.Errorf("opened lab has routers %q, %v", l.routers, err)
	}
	knows := func(prefix string, want bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(look) {
			got := strings.Contains(labtest.IP(t, l.Name(), "a", "route show"), prefix)
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("a has a route to %s: %t, want %t\n%s", prefix, got, want, lastLines(logFile(dirOf(l.name), daemon{node: "b", role: RoleBGPD}), 20))
			}
		}
	}
	knows("2001:db8:bb::/48", true)
	for _, on := range []bool{false, true} {
		change, err := l.PrepareAdvertise("b", "a", netip.MustParsePrefix("2001:db8:bb::/48"), on)
		if err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		knows("2001:db8:bb::/48", on)
	}
	leak := scenario.Advertise{Node: "b", Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:cc::/48")}}
	for _, path := range [][]uint32{nil, {65009, 65010}, {65001}} {
		leak.ASPath = path
		for _, on := range []bool{true, true, false, false} {
			if err := l.Originate(leak, on); err != nil {
				t.Fatalf("AS path %v: %v", path, err)
			}
			knows("2001:db8:cc::/48", on && !slices.Contains(path, 65001)) // a rejects routes with its own AS number
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(look) {
		v, err := dialVTY(frrSocket(dirOf(l.name), "a", RoleBFDD+".vty"))
		if err != nil {
			t.Fatal(err)
		}
		peers, err := v.do("show bfd peers json")
		if err := errors.Join(err, v.close()); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(peers, `"peer":"2001:db8:1::b"`) && strings.Contains(peers, `"status":"up"`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("bfd is not up: %s", peers)
		}
	}
}

func TestNoFRR(t *testing.T) {
	dirs := frrDirs
	defer func() { frrDirs = dirs }()
	frrDirs = []string{t.TempDir()}
	if err := FRRInstalled(); !errors.Is(err, ErrNoFRR) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	if _, err := Up(t.Context(), Options{Name: labtest.Prefix() + "none", Spec: &scenario.Spec{Name: "x", Nodes: labtest.Plain().Nodes, Links: labtest.Plain().Links}, Routers: RoutersFRR}); !errors.Is(err, ErrNoFRR) {
		t.Errorf("lab: %v", err)
	}
}
