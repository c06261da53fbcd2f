package router

import (
	"net/netip"
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
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
		faults string
	}{
		{"nothing", func(*Config) {}, "", ""},
		{"networks", func(c *Config) { c.Networks = prefixes("2001:db8:c:1::/64") },
			"network 2001:db8:c::/64 removed\nnetwork 2001:db8:c:1::/64 added", ""},
		{"leaks", func(c *Config) {
			c.Networks, c.Leaks = nil, []Leak{{netip.MustParsePrefix("2001:db8:c::/64"), []uint32{65009, 65010}}}
		}, "network 2001:db8:c::/64 removed\nleak 2001:db8:c::/64 added", ""},
		{"policy alone keeps the session", func(c *Config) { c.Neighbors[0].Deny = prefixes("2001:db8:c::/64") },
			`policy of session "a" changed`, ""},
		{"order has no meaning", func(c *Config) { c.Neighbors[0], c.Neighbors[1] = c.Neighbors[1], c.Neighbors[0] }, "", ""},
		{"more than policy resets the session", func(c *Config) { c.Neighbors[1].LocalPref, c.Neighbors[1].Deny = 300, prefixes("::/0") },
			`session "b" reset`, ""},
		{"one added, one removed", func(s *Config) { s.Neighbors[1] = c }, "session \"b\" removed\nsession \"c\" added", ""},
		{"what only a restart changes", func(c *Config) {
			c.ASN, c.RouterID, c.Status = 65009, netip.MustParseAddr("10.3.0.2"), netip.MustParseAddrPort("[::1]:1")
			c.Control = "/run/other.sock"
		}, "", `asn: cannot change from 65003 to 65009 while the daemon runs; a restart is needed
router_id: cannot change from 10.3.0.1 to 10.3.0.2 while the daemon runs; a restart is needed
control: cannot change from  to /run/other.sock while the daemon runs; a restart is needed
status: cannot change from invalid AddrPort to [::1]:1 while the daemon runs; a restart is needed`},
		{"address under another name", func(s *Config) {
			s.Neighbors[1].Name = "d"
		}, "", `neighbors[1].name: "d" takes the address of "b", whose session has to close first: reload once without it`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := base()
			tt.change(&now)
			if err := now.Check().Err(); err != nil {
				t.Fatal(err)
			}
			got, faults := difference(base(), now)
			if text := strings.TrimSpace(faults.Error()); text != tt.faults {
				t.Errorf("faults %q, want %q", text, tt.faults)
			}
			if lines := strings.Join(got.lines(), "\n"); len(faults) == 0 && lines != tt.want {
				t.Errorf("got %q, want %q", lines, tt.want)
			}
			if back, faults := difference(now, base()); len(faults) == 0 && (len(back.lines()) == 0) != (tt.want == "") {
				t.Errorf("there is a way there but none back: %+v", back)
			}
		})
	}
}

func TestCheckLeaks(t *testing.T) {
	c := base()
	c.Leaks = []Leak{
		{c.Networks[0], []uint32{65009}}, {netip.MustParsePrefix("2001:db8::1/32"), []uint32{65009}}, {netip.MustParsePrefix("::/0"), nil},
		{netip.MustParsePrefix("2001:db8:d::/64"), []uint32{65009, 0}},
	}
	want := `leaks[0].prefix: 2001:db8:c::/64 is originated already
leaks[1].prefix: must be an IP prefix without host bits, got 2001:db8::1/32
leaks[2].as_path: must be at least one AS number > 0, got []
leaks[3].as_path: must be at least one AS number > 0, got [65009 0]`
	if got := strings.TrimSpace(c.Check().Error()); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestCheckDeny(t *testing.T) {
	c := base()
	c.Neighbors[1].Deny = []netip.Prefix{netip.MustParsePrefix("2001:db8::1/32"), netip.MustParsePrefix("10.0.0.1/8"), {}}
	want := `neighbors[1].deny[0]: must be an IP prefix without host bits, got 2001:db8::1/32
neighbors[1].deny[1]: must be an IP prefix without host bits, got 10.0.0.1/8
neighbors[1].deny[2]: must be given: an IP prefix without host bits`
	if got := c.Check().Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
