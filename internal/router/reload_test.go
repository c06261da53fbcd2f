package router

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func base() Config {
	return Config{
		ASN: 65003, RouterID: netip.MustParseAddr("10.3.0.1"), Networks: prefixes("2001:db8:c::/64"),
		Neighbors: []Neighbor{
			{Name: "a", ASN: 65001, Address: netip.MustParseAddr("2001:db8:ca::1"), Interface: "link-a", LocalPref: 200},
			{Name: "b", ASN: 65002, Address: netip.MustParseAddr("2001:db8:cb::1"), Interface: "link-b"},
		},
	}
}

func TestDifference(t *testing.T) {
	c := Neighbor{Name: "c", ASN: 65004, Address: netip.MustParseAddr("2001:db8:cc::1"), Interface: "link-c"}
	denied := base().Neighbors[0]
	denied.Deny = prefixes("2001:db8:c::/64")
	preferred := base().Neighbors[1]
	preferred.LocalPref, preferred.Deny = 300, prefixes("::/0")
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   changes
		faults string
	}{
		{"nothing", func(*Config) {}, changes{}, ""},
		{"networks", func(c *Config) { c.Networks = prefixes("2001:db8:c:1::/64") },
			changes{originate: prefixes("2001:db8:c:1::/64"), withdraw: prefixes("2001:db8:c::/64")}, ""},
		{"policy alone keeps the session", func(c *Config) { c.Neighbors[0] = denied }, changes{policy: []Neighbor{denied}}, ""},
		{"order means nothing", func(c *Config) { c.Neighbors[0], c.Neighbors[1] = c.Neighbors[1], c.Neighbors[0] }, changes{}, ""},
		{"more than policy begins a new session", func(c *Config) { c.Neighbors[1] = preferred },
			changes{remove: []string{"b"}, add: []Neighbor{preferred}}, ""},
		{"one comes, one goes", func(s *Config) { s.Neighbors[1] = c }, changes{remove: []string{"b"}, add: []Neighbor{c}}, ""},
		{"what only a restart changes", func(c *Config) {
			c.ASN, c.RouterID, c.Status = 65009, netip.MustParseAddr("10.3.0.2"), netip.MustParseAddrPort("[::1]:1")
		}, changes{}, `asn: cannot change while the router runs, from 65003 to 65009
router_id: cannot change while the router runs, from 10.3.0.1 to 10.3.0.2
status: cannot change while the router runs`},
		{"address under another name", func(s *Config) {
			s.Neighbors[1].Name = "d"
		}, changes{}, `neighbors[1].name: "d" takes the address of "b", whose session has to end first: reload once without it`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := base()
			tt.change(&now)
			if err := now.Check().Err(); err != nil {
				t.Fatal(err)
			}
			got, faults := difference(base(), now)
			if strings.TrimSpace(faults.Error()) != tt.faults {
				t.Errorf("faults %q, want %q", faults.Error(), tt.faults)
			}
			if len(faults) == 0 && !same(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if back, faults := difference(now, base()); len(faults) == 0 && back.none() != tt.want.none() {
				t.Errorf("there is a way there but none back: %+v", back)
			}
		})
	}
}

// same compares what is done: no list and an empty one do the same.
func same(a, b changes) bool {
	list := func(c changes) []any { return []any{c.originate, c.withdraw, c.remove, c.add, c.policy} }
	x, y := list(a), list(b)
	for i := range x {
		v, w := reflect.ValueOf(x[i]), reflect.ValueOf(y[i])
		if v.Len() != w.Len() || v.Len() > 0 && !reflect.DeepEqual(x[i], y[i]) {
			return false
		}
	}
	return true
}

func TestCheckDeny(t *testing.T) {
	c := base()
	c.Neighbors[1].Deny = []netip.Prefix{netip.MustParsePrefix("2001:db8::1/32"), netip.MustParsePrefix("10.0.0.0/8"), {}}
	want := `neighbors[1].deny[0]: must be an IPv6 prefix without host bits, got 2001:db8::1/32
neighbors[1].deny[1]: must be an IPv6 prefix without host bits, got 10.0.0.0/8
neighbors[1].deny[2]: must be an IPv6 prefix without host bits, got invalid Prefix`
	if got := c.Check().Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
