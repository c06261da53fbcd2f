package files

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/scenarios"
)

// The scenarios of deliveries run in every family, by one line of the file.
func TestFamily(t *testing.T) {
	for _, name := range []string{"epe-steady", "epe-change", "epe-failure"} {
		text, err := scenarios.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		for family, want := range map[string]string{"ipv6": "2001:db8:1::10", "ipv4": "10.1.0.16", "dual": "2001:db8:1::10"} {
			f, err := Parse(name, append(slices.Clone(text), "\nfamily: "+family+"\n"...))
			if err != nil {
				t.Errorf("%s: %v", family, err)
				continue
			}
			s := f.Scenario
			if got := s.AddressOf(s.Experiment.Server); got != netip.MustParseAddr(want) {
				t.Errorf("%s: server has the address %s", family, got)
			}
			for _, p := range s.Nodes["server"].Edge.Peers {
				if family != "dual" && p.Address.Is4() != (family == "ipv4") {
					t.Errorf("%s: peer %s has the address %s", family, p.Name, p.Address)
				}
			}
			// What the lab stores is the translated scenario.
			b, err := Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(name, b)
			if err != nil {
				t.Errorf("%s: written and read again: %v", family, err)
			} else if got, want := len(again.Scenario.Nodes["server"].Edge.Peers), len(s.Nodes["server"].Edge.Peers); got != want {
				t.Errorf("%s: written and read again: %d peers, want %d", family, got, want)
			}
		}
	}
}
