package edge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestAPeersOwnPrefixIsChecked(t *testing.T) {
	good := func() Config {
		c := testConfig()
		for i, p := range []string{"2001:db8:1:a::/64", "2001:db8:1:b::/64"} {
			c.Peers[i].Prefix = netip.MustParsePrefix(p)
			c.Peers[i].Address = c.Peers[i].Prefix.Addr().Next()
		}
		return c
	}
	c := good()
	if err := c.Check().Err(); err != nil {
		t.Error(err)
	}
	if got := c.onLink(); len(got) != 3 {
		t.Errorf("on the link: %v", got)
	}
	for name, change := range map[string]func(*Config){
		"peers[0].address": func(c *Config) { c.Peers[0].Prefix = netip.Prefix{} },
		"peers[1].prefix: 2001:db8:1:b::/64 does not hold":     func(c *Config) { c.Peers[1].Address = c.Peers[0].Address.Next() },
		"peers[1].prefix: 2001:db8:1:a::/64 overlaps peers[0]": func(c *Config) { c.Peers[1].Prefix, c.Peers[1].Address = c.Peers[0].Prefix, c.Peers[0].Address.Next() },
		"peers[0].prefix: must be an IPv6 prefix":              func(c *Config) { c.Peers[0].Prefix = netip.PrefixFrom(c.Peers[0].Address, 64) },
		"peers[0].prefix: 2001:db8:1::/64 holds the default address": func(c *Config) {
			c.Peers[0].Prefix, c.Peers[0].Address = c.Prefix, netip.MustParseAddr("2001:db8:1::a")
		},
		"peers[0].prefix: fc00:7::/64 overlaps locators[0]": func(c *Config) {
			c.Peers[0].Prefix, c.Peers[0].Address = netip.MustParsePrefix("fc00:7::/64"), netip.MustParseAddr("fc00:7::a")
		},
	} {
		c := good()
		change(&c)
		err := c.Check().Err()
		if err == nil || !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(l string) bool { return strings.HasPrefix(l, name) }) {
			t.Errorf("want %q, got %v", name, err)
		}
	}
}
