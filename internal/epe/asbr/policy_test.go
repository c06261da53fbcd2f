package asbr

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/policy"
)

func TestCheckPolicy(t *testing.T) {
	c := testConfig()
	c.RPKI = &RPKI{Invalid: "drop"}
	p := c.Peers[0]
	p.Name, p.ID, p.Table, p.RT = "b", 2, 102, id("65000:102")
	p.Address, p.Behavior, p.Multihop = netip.MustParseAddr("fe80::1"), EndDX6, 2
	c.Peers = append(c.Peers, p)
	p.Name, p.ID, p.Table, p.RT = "c", 3, 103, id("65000:103")
	p.Interface, p.Behavior, p.Multihop = "wan2", EndDT6, 0 // the same address on another link
	c.Peers = append(c.Peers, p)
	p.Name, p.ID, p.Table, p.RT = "d", 4, 104, id("65000:104")
	c.Peers = append(c.Peers, p)
	got := strings.Split(c.Check().Error(), "\n")
	want := []string{
		"rpki.caches: must name at least one cache",
		`rpki.invalid: must be "reject" or "accept", got "drop"`,
		"peers[1].multihop: fe80::1 is link-local, so the neighbor is on the link",
		"peers[1].multihop: needs third_party: true",
		"peers[1].behavior: end.dx6 needs a global address of the peer",
		"peers[3].address: fe80::1%wan2 is already peers[2].address",
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestWarnings: what no rule of any peer uses, and what no route reaches.
func TestWarnings(t *testing.T) {
	c := testConfig()
	all := policy.Entry{Accept: true, Prefix: netip.MustParsePrefix("::/0"), Max: 128}
	c.PrefixLists = map[string]policy.List{"used": {all, all}, "unused": {all}}
	c.Peers[0].ExportRules = []policy.Rule{{Name: "rest", PrefixList: "used", Action: policy.Reject}, {Name: "late", PrefixList: "used", Action: policy.Accept}}
	want := `peers[0].export_rules[1]: rule "late" is never reached: rule "rest" decides about all of its routes
prefix_lists.unused: is used by no rule
prefix_lists.used[1]: "accept ::/0 le 128" has no effect: entry [0] "accept ::/0 le 128" matches all of it`
	if got := c.Warnings().Error(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
