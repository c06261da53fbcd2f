package scenario

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/scenarios"
)

// own is a scenario of two paths with the least that a file needs.
func own() *Spec {
	between := func(order int, rate unit.Bandwidth, a, b string) *Link {
		l := &Link{Ends: []End{{Node: a}, {Node: b}}, order: order}
		l.Rate = rate
		return l
	}
	return &Spec{
		Name: "own", Title: "own",
		Nodes: map[string]*Node{"server": {}, "r1": {Forwarding: true}, "r2": {Forwarding: true}, "client": {}},
		Links: map[string]*Link{
			"up1": between(1, 0, "server", "r1"), "down1": between(2, 10*unit.MbitPerSecond, "r1", "client"),
			"up2": between(3, 5*unit.MbitPerSecond, "server", "r2"), "down2": between(4, 20*unit.MbitPerSecond, "r2", "client"),
		},
		Experiment: &Experiment{
			Server: "server", Client: "client", Cases: []Case{{Name: "one"}},
			Traffic:    map[string]*Traffic{"bulk": {Bytes: unit.MB}},
			Transports: map[string]*Transport{"tcp": {}, "mptcp": {MPTCP: true}},
		},
	}
}

func TestComplete(t *testing.T) {
	s := own()
	s.Complete()
	for link, want := range map[string]string{"up1": "2001:db8:ff:1::1/64 2001:db8:ff:1::2/64", "down2": "2001:db8:ff:4::1/64 2001:db8:ff:4::2/64"} {
		ends := s.Links[link].Ends
		if got := ends[0].Addresses[0].String() + " " + ends[1].Addresses[0].String(); got != want || ends[0].Interface != link {
			t.Errorf("%s: %s at %s, want %s", link, got, ends[0].Interface, want)
		}
	}
	route := func(dst, via string) StaticRoute { return StaticRoute{Dst: prefix(dst), Via: netip.MustParseAddr(via)} }
	if got, want := s.Nodes["server"].Routes, []StaticRoute{route("2001:db8:ff:2::/64", "2001:db8:ff:1::2"), route("2001:db8:ff:4::/64", "2001:db8:ff:3::2")}; !reflect.DeepEqual(got, want) {
		t.Errorf("routes of the server: %v, want %v", got, want)
	}
	if got := s.Experiment.Transports; strings.Join(got["tcp"].Links, " ") != "down1" || strings.Join(got["mptcp"].Links, " ") != "down1 up2" {
		t.Errorf("links of tcp %v, of mptcp %v", got["tcp"].Links, got["mptcp"].Links)
	}
	if got := s.Nodes["server"].MPTCP; got == nil || len(got.Announce) != 1 || got.Announce[0].String() != "2001:db8:ff:3::1" {
		t.Errorf("the server advertises %+v", got)
	}
	if e := s.Experiment; e.Trials != 1 || e.Traffic["bulk"].Quick != defaultQuick {
		t.Errorf("%d trials, quick %s", e.Trials, e.Traffic["bulk"].Quick)
	}
	if faults := s.Crossing(); len(faults) > 0 {
		t.Error(faults.Error())
	}
}

// TestCompleteChangesNothingThatIsThere: the scenarios that come with the program are complete.
func TestCompleteChangesNothingThatIsThere(t *testing.T) {
	for _, name := range scenarios.Names() {
		s, want := read(t, name), read(t, name)
		s.Complete()
		if !reflect.DeepEqual(s, want) {
			t.Errorf("%s is changed", name)
		}
		if faults := s.Crossing(); len(faults) > 0 {
			t.Errorf("%s: %s", name, faults.Error())
		}
	}
}

func TestCrossing(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Spec)
		want   string
	}{
		"no route":      {func(s *Spec) { s.Nodes["client"].Routes = nil }, "nodes.client: has no route to 2001:db8:ff:1::1, where packets from client go: give it one in routes"},
		"no route back": {func(s *Spec) { s.Nodes["server"].Routes = nil }, "nodes.server: has no route to 2001:db8:ff:2::2"},
		"no forwarding": {func(s *Spec) { s.Nodes["r1"].Forwarding = false }, "nodes.r1: drops packets from client to 2001:db8:ff:1::1: it needs forwarding: true"},
		"no address": {func(s *Spec) {
			for _, l := range []string{"up1", "up2"} {
				s.Links[l].Ends[0].Addresses = nil
			}
		}, "nodes.server: has no address"},
		"a loop": {func(s *Spec) {
			s.Links["up1"].Ends[1].Addresses = nil
			s.Nodes["r1"].Routes = []StaticRoute{{Dst: prefix("2001:db8:ff:1::/64"), Via: s.Links["down1"].Ends[1].Addresses[0].Addr()}}
			s.Nodes["client"].Forwarding = true
		}, "in a loop"},
	} {
		t.Run(name, func(t *testing.T) {
			s := own()
			s.Complete()
			tt.change(s)
			if faults := s.Crossing(); len(faults) != 1 || !strings.Contains(faults.Error(), tt.want) {
				t.Errorf("got %q, want %q", faults.Error(), tt.want)
			}
		})
	}
}
