package condition

import (
	"net"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// TestClaimedAddresses: an address that another host answers for is reported with its MAC address,
// in both IP versions and also if it was added with nodad; what only this host has is not, on
// whichever of its interfaces.
func TestClaimedAddresses(t *testing.T) {
	netnstest.Need(t)
	here, other := netnstest.New(t), netnstest.New(t)
	ip := func(ns, commands string) {
		t.Helper()
		if _, err := netnstest.TryIP(t, ns, commands); err != nil {
			t.Fatal(err)
		}
	}
	ip(here, "ip link set lo up; ip link add lan type veth peer name far netns "+other)
	ip(here, "ip link set lan up; ip -4 addr add 192.0.2.1/24 dev lan; ip -4 addr add 192.0.2.2/24 dev lan; ip -6 addr add 2001:db8::1/64 dev lan nodad; ip -6 addr add 2001:db8::2/64 dev lan nodad")
	ip(other, "ip link set far up")
	var mac net.HardwareAddr
	netnstest.Do(t, other, func() error {
		far, err := net.InterfaceByName("far")
		if err == nil {
			mac = far.HardwareAddr
		}
		return err
	})
	examine := func() (texts []string) {
		t.Helper()
		netnstest.Do(t, here, func() error {
			x := Examine([]Condition{Unclaimed("lan", "lo", "missing")})
			for _, err := range x.Unknown {
				t.Error(err)
			}
			for _, p := range x.Problems {
				texts = append(texts, p.Text)
			}
			return nil
		})
		return texts
	}
	if got := examine(); len(got) > 0 {
		t.Errorf("no other host has one: %q", got)
	}
	ip(other, "ip -4 addr add 192.0.2.2/24 dev far; ip -6 addr add 2001:db8::2/64 dev far nodad")
	// An interface that has just come up answers in IPv6 a moment later.
	got := ""
	for range 50 {
		if got = strings.Join(examine(), "; "); strings.Count(got, "another host") == 2 {
			break
		}
	}
	for _, want := range []string{"192.0.2.2", "2001:db8::2"} {
		if text := `another host on interface "lan", with MAC address ` + mac.String() + ", has the address " + want + ", too"; !strings.Contains(got, text) {
			t.Errorf("%q lacks %q", got, text)
		}
	}
	if strings.Count(got, "another host") != 2 {
		t.Errorf("more than two: %q", got)
	}
	ip(other, "ip -4 addr del 192.0.2.2/24 dev far; ip -6 addr del 2001:db8::2/64 dev far")
	if got := examine(); len(got) > 0 {
		t.Errorf("the other host has none any more: %q", got)
	}
}
