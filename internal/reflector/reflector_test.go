package reflector

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bfd"
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
	got := strings.Split(bad.Check().Err().Error(), "\n")
	for _, path := range []string{
		"clients[1].locator", "clients[2].locator", "clients[3].locator",
		"asn", "router_id", "address", "clients[0].bfd.interval", "clients[1].name", "clients[1].password", "clients[1].address",
	} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, path+": ") }) {
			t.Errorf("no fault at %s in:\n%s", path, strings.Join(got, "\n"))
		}
	}
	if got := (&Config{}).Check().Err().Error(); !strings.Contains(got, "clients: must name") {
		t.Errorf("got %q", got)
	}
}
