package setup

import (
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestSharedLines: an interface with several routers is one line, and those that are not used are
// named.
func TestSharedLines(t *testing.T) {
	netnstest.Enter(t)
	for _, c := range []string{
		"link set lo up", "link add wan type veth peer name far", "link set wan up", "link set far up", "link add lte type veth peer name cell",
		"link set lte up", "link set cell up", "-4 addr add 192.168.1.11/24 dev wan", "-4 addr add 192.168.2.11/24 dev lte",
		"-4 route add default via 192.168.1.1 dev wan metric 100", "-4 route add default via 192.168.1.254 dev wan metric 200",
		"-4 route add default via 192.168.1.1 dev wan metric 300", "-4 route add default via 192.168.2.1 dev lte metric 150",
	} {
		if _, err := netnstest.TryIP(t, "", "ip "+c); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	h, err := Find(Choice{NoIPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"(wan is one line, over the router 192.168.1.1; its other routers [192.168.1.254] are not used: docs/gateway.md, two routers on one network)"}
	if got := h.SharedLines(); !slices.Equal(got, want) || len(h.Lines) != 2 {
		t.Errorf("%v: %q", h.Lines, got)
	}
}
