package asbr

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rtr"
)

func TestDifference(t *testing.T) {
	added := func(c *Config) {
		p := c.Peers[0]
		p.Name, p.Address, p.ID, p.Table = "added", netip.MustParseAddr("2001:db8:99::2"), 99, 199
		p.RT = id("65000:199")
		c.Peers = append(c.Peers, p)
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string // each a prefix of a line
		faults string
	}{
		"nothing":    {func(*Config) {}, "", ""},
		"peer added": {added, `egress peer "added" added`, ""},
		"peer removed": {func(c *Config) { added(c); c.Peers[1].Interface = "wan9"; c.Peers = c.Peers[1:] },
			"egress peer \"NAME\" removed\negress peer \"added\" added\ninterface \"wan\" stays filtered until a restart", ""},
		"order":      {func(c *Config) { slices.Reverse(c.Peers) }, "", ""},
		"table":      {func(c *Config) { c.Peers[0].Table = 222 }, `egress peer "NAME" replaced`, ""},
		"preference": {func(c *Config) { c.Peers[0].LocalPref = 222 }, `egress peer "NAME" replaced`, ""},
		"policy":     {func(c *Config) { c.Peers[0].MaxPrefixes.Limit = 5 }, `policy of session "NAME" changed`, ""},
		"rules": {func(c *Config) {
			c.PrefixLists = map[string]policy.List{"all": {{Accept: true, Prefix: netip.MustParsePrefix("::/0"), Max: 128}}}
			c.Peers[0].ImportRules = []policy.Rule{{Name: "all", PrefixList: "all", Action: policy.Accept}}
			c.Peers[0].ExportRules = []policy.Rule{{Name: "longer", Set: policy.Changes{Prepend: 1}}}
		}, `policy of session "NAME" changed`, ""},
		"hold time": {func(c *Config) { c.Peers[0].HoldTime = 30 * time.Second }, `egress peer "NAME" replaced`, ""},
		"rpki": {func(c *Config) {
			c.RPKI = &RPKI{Config: rtr.Config{Caches: []rtr.Cache{{Address: netip.MustParseAddrPort("[::1]:323")}}}}
		}, "rpki changed\npolicy of session \"NAME\" changed", ""},
		"import":        {func(c *Config) { c.Import.MaxLength = 40 }, `policy of session "NAME" changed`, ""},
		"reflector":     {func(c *Config) { c.Reflectors[0].Password = "secret" }, `session "reflector `, ""},
		"default block": {func(c *Config) { c.Locator.Block = c.Locator.srv6().Block }, "", ""},
		"prefix": {func(c *Config) { c.Prefixes = append(c.Prefixes, netip.MustParsePrefix("2001:db8:77::/48")) },
			"prefix 2001:db8:77::/48 added\npolicy of session \"reflector ", ""},
		"as number": {func(c *Config) { c.ASN = 65099 }, "", "asn: cannot change from "},
		"locator":   {func(c *Config) { c.Locator.Prefix = netip.MustParsePrefix("fc00:9::/32") }, "", "locator.prefix: cannot change from "},
		"controller": {func(c *Config) {
			c.Controllers = []Controller{{Address: netip.MustParseAddr("2001:db8:1::cc"), Password: "hidden"}}
		}, "", "controllers: cannot change while the daemon runs, from those at [] to those at [2001:db8:1::cc]"},
		"renamed": {func(c *Config) { c.Peers[0].Name = "other" }, "", `peers[0].name: "other" takes the address of "NAME"`},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := testConfig(), testConfig()
			if len(old.Peers) != 1 || len(old.Reflectors) == 0 {
				t.Fatalf("the test needs one peer and a reflector: %+v", old)
			}
			tt.change(&now)
			if err := now.Check().Err(); err != nil {
				t.Fatal(err)
			}
			c, faults := difference(&old, &now, networks{}, nil)
			if strings.Contains(faults.Error(), "hidden") {
				t.Errorf("a fault has a password: %v", faults)
			}
			want := func(text string) string { return strings.ReplaceAll(text, "NAME", old.Peers[0].Name) }
			if got := faults.Error(); !strings.HasPrefix(got, want(tt.faults)) || got != "" && tt.faults == "" {
				t.Errorf("faults %q, want %q", got, want(tt.faults))
			}
			if got := strings.Join(c.lines(), "\n"); !strings.HasPrefix(got, want(tt.want)) || got != "" && tt.want == "" {
				t.Errorf("got %q, want %q", got, want(tt.want))
			}
			back, faults := difference(&now, &old, networks{}, nil)
			if len(faults) == 0 && (len(back.lines()) == 0) != (tt.want == "") {
				t.Errorf("back: %q", back.lines())
			}
		})
	}
}
