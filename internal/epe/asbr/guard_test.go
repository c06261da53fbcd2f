package asbr

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
)

func TestGuards(t *testing.T) {
	c := testConfig()
	second := c.Peers[0]
	second.Name, second.ID, second.Table = "transit-b", 2, 102 // at the same exchange
	c.Peers = append(c.Peers, second)
	var got []string
	for _, o := range c.guards(nil) {
		if err := o.Check(); err != nil {
			t.Errorf("%s: %v", o, err)
		}
		got = append(got, o.String())
	}
	check(t, got,
		"unreachable fc00:1::/32 table main metric 4294967295",
		"unreachable fc00::/16 table main metric 4294967295",
		"unreachable 2001:db8:1::/64 table main metric 4294967295",
		"unreachable default table 101 metric 4294967295",
		"unreachable fc00::/16 table 101 metric 4294967295",
		"unreachable 2001:db8:1::/64 table 101 metric 4294967295",
		"unreachable default table 102 metric 4294967295",
		"unreachable fc00::/16 table 102 metric 4294967295",
		"unreachable 2001:db8:1::/64 table 102 metric 4294967295",
		"priority 900 from all to 2001:db8:1::/64 iif wan table main",
		"priority 901 from all iif wan unreachable")
}

// TestRetired: an interface without peers since a reload stays filtered, in the IP versions that it
// was filtered in, until a peer is on it again.
func TestRetired(t *testing.T) {
	both := testConfig()
	both.Prefixes = append(both.Prefixes, netip.MustParsePrefix("192.0.2.0/24"))
	second := both.Peers[0]
	second.Name, second.ID, second.Table, second.Interface, second.Family = "transit-b", 2, 102, "wan2", bgp.IPv4
	both.Peers = append(both.Peers, second)
	one, moved := both, both
	one.Peers = both.Peers[:1]
	moved.Peers = slices.Clone(both.Peers)
	moved.Peers[1].Interface = "wan3"
	rules := func(c Config, retired []filter) (list []string) {
		for _, o := range c.guards(retired) {
			if r, ok := o.(route.Rule); ok && r.Iif != "" {
				list = append(list, r.String())
			}
		}
		return list
	}
	retired := one.retired(both.filters())
	check(t, rules(one, retired),
		"priority 900 from all to 2001:db8:1::/64 iif wan table main",
		"priority 900 from 0.0.0.0/0 to 192.0.2.0/24 iif wan table main",
		"priority 901 from all iif wan unreachable",
		"priority 900 from all to 2001:db8:1::/64 iif wan2 table main",
		"priority 900 from 0.0.0.0/0 to 192.0.2.0/24 iif wan2 table main",
		"priority 901 from all iif wan2 unreachable",
		"priority 901 from 0.0.0.0/0 iif wan2 unreachable")
	if again := both.retired(slices.Concat(retired, one.filters())); len(again) != 0 {
		t.Errorf("with the peer again: %v", again)
	}
	if left := moved.retired(both.filters()); len(left) != 1 || left[0].link != "wan2" {
		t.Errorf("after the peer has moved to another interface: %v", left)
	}
	// At an exchange, another peer is left.
	both.Peers[1].Interface = "wan"
	if left := one.retired(both.filters()); len(left) != 0 {
		t.Errorf("with another peer on the interface: %v", left)
	}
}

// With IPv4 routes, what arrives from a peer is guarded in both families.
func TestGuardsIPv4(t *testing.T) {
	c := testConfig()
	c.Prefixes = append(c.Prefixes, netip.MustParsePrefix("192.0.2.0/24"))
	c.Peers[0].Family = bgp.IPv4
	var got []string
	for _, o := range c.guards(nil) {
		if err := o.Check(); err != nil {
			t.Errorf("%s: %v", o, err)
		}
		got = append(got, o.String())
	}
	check(t, got,
		"unreachable fc00:1::/32 table main metric 4294967295",
		"unreachable fc00::/16 table main metric 4294967295",
		"unreachable 2001:db8:1::/64 table main metric 4294967295",
		"unreachable 192.0.2.0/24 table main metric 4294967295",
		"unreachable 0.0.0.0/0 table 101 metric 4294967295",
		"unreachable 192.0.2.0/24 table 101 metric 4294967295",
		"unreachable 240.0.0.1/32 table main metric 4294967295",
		"priority 899 from 0.0.0.0/0 fwmark 0xe4000001 table 101",
		"priority 900 from all to 2001:db8:1::/64 iif wan table main",
		"priority 900 from 0.0.0.0/0 to 192.0.2.0/24 iif wan table main",
		"priority 901 from all iif wan unreachable",
		"priority 901 from 0.0.0.0/0 iif wan unreachable")
	if m := c.marked(); !slices.Equal(m.Marks, []uint32{0xe4000001}) || m.Before != 899 {
		t.Errorf("marked packets %+v", m)
	}
}

// reasonFor is what the first matching filter says.
func reasonFor(policy bgp.ImportPolicy, prefix string) bgp.RejectReason {
	p := netip.MustParsePrefix(prefix)
	for _, f := range policy.Reject {
		if f.Prefix.Contains(p.Addr()) && p.Bits() >= f.Min && p.Bits() <= f.Max {
			return f.Reason
		}
	}
	if p.Bits() > policy.MaxLength {
		return bgp.RejectTooLong
	}
	return ""
}

func TestImportPolicy(t *testing.T) {
	c := testConfig()
	c.Import.Deny = []netip.Prefix{netip.MustParsePrefix("2a00:f::/32")}
	on := networks{
		connected: []netip.Prefix{netip.MustParsePrefix("2a00:a::/64")},
		byLink:    map[string][]netip.Prefix{"wan": {netip.MustParsePrefix("2a00:a::/64")}},
		own:       []netip.Addr{netip.MustParseAddr("2a00:a::1")},
	}
	policy := c.importPolicy(&c.Peers[0], on)
	for prefix, want := range map[string]bgp.RejectReason{
		"::/0":               "",
		"2a00::/12":          "",
		"2a00:1::/48":        "",
		"2002::/16":          "",
		"2a00:1::/49":        bgp.RejectTooLong,
		"fc00::/16":          RejectSRv6,
		"fc00:2:1::/128":     RejectSRv6, // a SID of another ASBR
		"2001:db8:1::/64":    bgp.RejectOwnPrefix,
		"2001:db8:1::10/128": bgp.RejectOwnPrefix,
		"2a00:a::/64":        bgp.RejectConnected,
		"2a00:a::/65":        bgp.RejectConnected,
		"2001:db8:a::2/128":  RejectSession,
		"2a00:f:1::/48":      RejectDenied,
		"2001:db8::/32":      RejectBogon,
		"::/1":               RejectBogon,
		"8000::/1":           RejectBogon,
		"fd00::/8":           RejectBogon,
		"fec0::/10":          RejectBogon,
		"100::/64":           RejectBogon,
		"5f00::/16":          RejectBogon,
		"2002:c000:201::/48": RejectBogon,
		"3fff::/20":          RejectBogon,
	} {
		if got := reasonFor(policy, prefix); got != want {
			t.Errorf("%s: rejected as %q, want %q", prefix, got, want)
		}
	}
	if !policy.EnforceFirstAS || !slices.Equal(policy.NextHops, []netip.Prefix{host(c.Peers[0].Address)}) || !slices.Equal(policy.OwnAddresses, on.own) {
		t.Errorf("%+v", policy)
	}

	c.Peers[0].Family = bgp.IPv4
	on.connected = append(on.connected, netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("8.8.8.0/24"))
	c.Prefixes = append(c.Prefixes, netip.MustParsePrefix("9.9.9.0/24"))
	policy = c.importPolicy(&c.Peers[0], on)
	for prefix, want := range map[string]bgp.RejectReason{
		"0.0.0.0/0":        "",
		"16.0.0.0/8":       "",
		"1.1.1.0/24":       "",
		"1.1.1.0/25":       bgp.RejectTooLong,
		"128.0.0.0/1":      RejectBogon,
		"10.1.0.0/16":      RejectBogon,
		"100.64.0.0/10":    RejectBogon,
		"127.0.0.0/8":      RejectBogon,
		"169.254.0.0/16":   RejectBogon,
		"172.31.0.0/16":    RejectBogon,
		"192.168.1.0/24":   RejectBogon,
		"203.0.113.0/24":   RejectBogon,
		"224.0.0.0/4":      RejectBogon,
		"240.0.0.0/8":      RejectBogon,
		"9.9.9.0/24":       bgp.RejectOwnPrefix,
		"8.8.8.128/25":     bgp.RejectConnected,
		"198.18.0.0/15":    bgp.RejectConnected,
		"192.88.98.0/24":   "",
		"198.51.101.0/24":  "",
		"198.51.100.64/26": RejectBogon,
	} {
		if got := reasonFor(policy, prefix); got != want {
			t.Errorf("%s: rejected as %q, want %q", prefix, got, want)
		}
	}
	c.Peers[0].Family, c.Prefixes = "", c.Prefixes[:1]

	c.Import = Import{MaxLength: 64, AllowBogons: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}
	c.Peers[0].ThirdParty = true
	policy = c.importPolicy(&c.Peers[0], on)
	if got := reasonFor(policy, "2001:db8:c::/64"); got != "" {
		t.Errorf("documentation prefix rejected as %q", got)
	}
	if policy.EnforceFirstAS || !slices.Equal(policy.NextHops, []netip.Prefix{host(c.Peers[0].Address), linkLocal, netip.MustParsePrefix("2a00:a::/64")}) {
		t.Errorf("route server: %+v", policy)
	}
}

func TestCoreReachable(t *testing.T) {
	r1, r2 := netip.MustParseAddr("2001:db8:1::fe"), netip.MustParseAddr("2001:db8:2::fe")
	c := core{peers: []string{"wan"}, links: map[string]bool{}, via: map[netip.Addr]string{r1: "", r2: ""}}
	links := map[netip.Addr]string{r1: "lan"}
	resolve := func(err error) {
		c.resolve(func(a netip.Addr) (netip.Addr, string, error) {
			if l, ok := links[a]; ok {
				return netip.Addr{}, l, nil
			}
			return netip.Addr{}, "", err
		})
	}
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"nothing is known", func() {}, false},
		{"a route over a link of unknown state", func() { resolve(route.ErrNoRoute) }, false},
		{"the link is up", func() { c.links["lan"] = true }, true},
		{"the link is down", func() { c.links["lan"] = false }, false},
		{"the other reflector has another link", func() { links[r2] = "lan2"; c.links["lan2"] = true; resolve(route.ErrNoRoute) }, true},
		{"the kernel does not answer", func() { delete(links, r2); resolve(errors.New("interrupted")) }, true},
		{"no route", func() { resolve(route.ErrNoRoute) }, false},
		{"a route over the peer", func() { links[r2] = "wan"; c.links["wan"] = true; resolve(route.ErrNoRoute) }, false},
	} {
		if step.do(); c.reachable() != step.want {
			t.Errorf("%s: reachable %t, want %t", step.name, c.reachable(), step.want)
		}
	}
}
