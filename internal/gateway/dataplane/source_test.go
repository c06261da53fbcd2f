package dataplane

import (
	"net/netip"
	"testing"

	"github.com/gaissmai/bart"
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// TestOwners: a peer speaks only for its own side, also with a default route, or a prefix around
// the LAN's.
func TestOwners(t *testing.T) {
	s := State{
		LAN:   LAN{Prefixes: prefixes("10.1.0.0/16", "2001:db8:1::/48")},
		Local: prefixes("192.0.2.1/32", "192.168.7.0/24", "192.168.7.1/32", "10.9.9.9/32", "10.3.0.0/16", "2001:db8:77::1/128"),
		Peers: []Peer{{Prefixes: prefixes("0.0.0.0/0", "::/0")}, {Prefixes: prefixes("10.0.0.0/8", "10.3.0.0/16", "240.1.0.0/16", "2001:db8::/32")}},
	}
	var table bart.Table[int]
	for p, owner := range s.Owners() {
		table.Insert(p, owner)
	}
	for a, want := range map[string]int{
		"198.51.100.1": 0, "203.0.113.1": 0, "2600::1": 0, "64:ff9b::1": 0, "100.64.0.1": 0, "172.16.0.1": 0, "192.168.8.1": 0, "fd00::1": 0, "1.0.0.0": 0, "223.255.255.255": 0,
		"10.2.0.1": 1, "2001:db8:2::1": 1, "10.3.0.1": 1, "240.1.0.1": 1,
		"10.1.2.3": Nobody, "2001:db8:1::5": Nobody, "192.0.2.1": Nobody, "192.168.7.9": Nobody, "10.9.9.9": Nobody, "2001:db8:77::1": Nobody,
		"127.0.0.1": Nobody, "127.255.255.254": Nobody, "0.0.0.0": Nobody, "0.1.2.3": Nobody, "169.254.169.254": Nobody, "224.0.0.5": Nobody, "239.1.1.1": Nobody,
		"255.255.255.255": Nobody, "240.2.0.1": Nobody, "::": Nobody, "::1": Nobody, "::7f00:1": Nobody, "::ffff:10.2.0.1": Nobody, "fe80::1": Nobody, "febf::1": Nobody, "ff02::1": Nobody,
	} {
		if got, ok := table.Lookup(netip.MustParseAddr(a)); !ok || got != want {
			t.Errorf("%s is of %d, %t, want %d", a, got, ok, want)
		}
	}
}

// TestReach: a peer reaches everything, or what is allowed, but what no router forwards.
func TestReach(t *testing.T) {
	for _, tt := range []struct {
		allow   []netip.Prefix
		yes, no []string
	}{
		{nil, []string{"10.1.0.1", "192.0.2.1", "2001:db8::1", "1.0.0.1", "64:ff9b::1"}, []string{"127.0.0.1", "0.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::1", "::ffff:10.1.0.1", "fe80::1", "ff02::1"}},
		{prefixes("10.1.0.0/24", "240.1.0.0/16"), []string{"10.1.0.1", "240.1.0.1"}, []string{"10.1.1.1", "2001:db8::1", "240.2.0.1", "127.0.0.1"}},
		{prefixes("0.0.0.0/0"), []string{"10.1.0.1"}, []string{"2001:db8::1", "127.0.0.1"}},
	} {
		var table bart.Table[bool]
		for p, ok := range (&Peer{Allow: tt.allow}).Reach() {
			table.Insert(p, ok)
		}
		for want, list := range map[bool][]string{true: tt.yes, false: tt.no} {
			for _, a := range list {
				if got, _ := table.Lookup(netip.MustParseAddr(a)); got != want {
					t.Errorf("allow %v: %s is reached: %t", tt.allow, a, got)
				}
			}
		}
	}
}
