package reflector

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/bfd"
)

func TestCheckFindsEveryFault(t *testing.T) {
	good := Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.254"), Address: netip.MustParseAddr("2001:db8:1::fe"),
		Clients: []Client{{Name: "server", Address: netip.MustParseAddr("2001:db8:1::10")}},
	}
	if err := good.Check().Err(); err != nil {
		t.Error(err)
	}
	bad := Config{Clients: []Client{
		{Name: "a", Address: good.Address, BFD: bfd.Config{Multiplier: 3}},
		{Address: good.Address, Password: strings.Repeat("x", 81), Locator: netip.MustParsePrefix("fc00::1/32")},
		{Name: "c", Locator: netip.MustParsePrefix("fc00:1::/32")},
		{Name: "d", Locator: netip.MustParsePrefix("fc00:1::/48"), BFD: bfd.Config{Interval: time.Second}},
	}}
	bad.Listen = []Listen{
		{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Limit: -1},
		{Name: "b", Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Password: strings.Repeat("x", 81)},
		{Name: "b", Prefix: netip.MustParsePrefix("2001:db8:1::/64")},
	}
	got := strings.Split(bad.Check().Err().Error(), "\n")
	for _, path := range []string{
		"clients[1].locator", "clients[2].locator", "clients[3].locator",
		"asn", "router_id", "address", "clients[0].bfd.interval", "clients[1].name", "clients[1].password", "clients[1].address",
		"listen[0].name", "listen[0].prefix", "listen[0].limit", "listen[1].password", "listen[2].name", "listen[2].prefix",
	} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, path+": ") }) {
			t.Errorf("no fault at %s in:\n%s", path, strings.Join(got, "\n"))
		}
	}
	good.Clients, good.Listen = nil, []Listen{{Name: "servers", Prefix: netip.MustParsePrefix("2001:db8:1::/64")}}
	if err := good.Check().Err(); err != nil {
		t.Error(err)
	}
	good.Listen[0].Prefix = netip.MustParsePrefix("10.0.0.0/8")
	if err := good.Check().Err(); err == nil || !strings.Contains(err.Error(), "same address family") {
		t.Errorf("got %v", err)
	}
	if got := (&Config{}).Check().Err().Error(); !strings.Contains(got, "clients: must name") {
		t.Errorf("got %q", got)
	}
}
