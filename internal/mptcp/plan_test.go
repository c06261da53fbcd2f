package mptcp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var ownedPrefix = netip.MustParsePrefix("2001:db8:1::/64")

func TestPlan(t *testing.T) {
	ours, other, foreign := netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("2001:db8:2::1")
	for _, tt := range []struct {
		name       string
		want, have []Endpoint
		changes    Changes
	}{
		{name: "nothing"},
		{
			name:    "all is new",
			want:    []Endpoint{{Address: ours, Signal: true}, {Address: other, Signal: true}},
			changes: Changes{Add: []Endpoint{{Address: ours, Signal: true}, {Address: other, Signal: true}}},
		},
		{
			name: "all is there, whatever the IDs",
			want: []Endpoint{{Address: ours, Signal: true}, {Address: other, Signal: true}},
			have: []Endpoint{{ID: 9, Address: other, Signal: true}, {ID: 3, Address: ours, Signal: true}},
		},
		{
			name:    "one goes, the foreign one stays",
			have:    []Endpoint{{ID: 1, Address: ours, Signal: true}, {ID: 2, Address: foreign, Signal: true}},
			changes: Changes{Remove: []uint8{1}},
		},
		{
			name:    "port makes another endpoint",
			want:    []Endpoint{{Address: ours, Port: 80, Signal: true}},
			have:    []Endpoint{{ID: 1, Address: ours, Signal: true}},
			changes: Changes{Remove: []uint8{1}, Add: []Endpoint{{Address: ours, Port: 80, Signal: true}}},
		},
		{
			name:    "backup changes in place",
			want:    []Endpoint{{Address: ours, Signal: true, Backup: true}},
			have:    []Endpoint{{ID: 5, Address: ours, Signal: true}},
			changes: Changes{Flags: []Endpoint{{ID: 5, Address: ours, Signal: true, Backup: true}}},
		},
		{
			name:    "signal and link do not",
			want:    []Endpoint{{Address: ours, Subflow: true}, {Address: other, Signal: true, Link: "eth1"}},
			have:    []Endpoint{{ID: 5, Address: ours, Signal: true}, {ID: 6, Address: other, Signal: true}},
			changes: Changes{Remove: []uint8{5, 6}, Add: []Endpoint{{Address: ours, Subflow: true}, {Address: other, Signal: true, Link: "eth1"}}},
		},
		{
			name: "implicit does not count",
			want: []Endpoint{{Address: ours, Signal: true}},
			have: []Endpoint{{ID: 1, Address: ours, Implicit: true}, {ID: 2, Address: other, Implicit: true}},
			changes: Changes{
				Add: []Endpoint{{Address: ours, Signal: true}},
			},
		},
		{
			name: "a foreign endpoint that is as wanted will do",
			want: []Endpoint{{Address: foreign, Signal: true}},
			have: []Endpoint{{ID: 1, Address: foreign, Signal: true}},
		},
		{
			name:    "a foreign endpoint that is not as wanted is for the kernel to refuse",
			want:    []Endpoint{{Address: foreign, Signal: true}},
			have:    []Endpoint{{ID: 1, Address: foreign, Signal: true, Backup: true}},
			changes: Changes{Add: []Endpoint{{Address: foreign, Signal: true}}},
		},
		{
			name:    "wanted twice",
			want:    []Endpoint{{Address: ours, Signal: true}, {Address: ours, Subflow: true}},
			changes: Changes{Add: []Endpoint{{Address: ours, Signal: true}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Plan(tt.want, tt.have, ownedPrefix.Contains)
			if diff := cmp.Diff(tt.changes, got, compareAddrs); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// applied returns the endpoints of the kernel after the changes; the kernel allows one endpoint per
// address and port.
func applied(have []Endpoint, c Changes) ([]Endpoint, error) {
	after := slices.Clone(have)
	for _, id := range c.Remove {
		after = slices.DeleteFunc(after, func(e Endpoint) bool { return e.ID == id })
	}
	for _, f := range c.Flags {
		i := slices.IndexFunc(after, func(e Endpoint) bool { return e.ID == f.ID })
		if i < 0 {
			return nil, fmt.Errorf("flags of %d, which is not there", f.ID)
		}
		after[i].Backup, after[i].Fullmesh = f.Backup, f.Fullmesh
	}
	for _, a := range c.Add {
		after = slices.DeleteFunc(after, func(e Endpoint) bool { return e.Implicit && e.key() == a.key() })
		if slices.ContainsFunc(after, func(e Endpoint) bool { return e.key() == a.key() }) {
			return nil, fmt.Errorf("add %s, which is there", a.Address)
		}
		for a.ID = 1; slices.ContainsFunc(after, func(e Endpoint) bool { return e.ID == a.ID }); a.ID++ {
		}
		after = append(after, a)
	}
	return after, nil
}

func TestPropertyPlanConverges(t *testing.T) {
	endpoint := rapid.Custom(func(t *rapid.T) Endpoint {
		return Endpoint{
			Address:  netip.MustParseAddr(rapid.SampledFrom([]string{"2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"}).Draw(t, "address")),
			Port:     rapid.SampledFrom([]uint16{0, 80}).Draw(t, "port"),
			Link:     rapid.SampledFrom([]string{"", "eth0"}).Draw(t, "link"),
			Signal:   rapid.Bool().Draw(t, "signal"),
			Backup:   rapid.Bool().Draw(t, "backup"),
			Fullmesh: rapid.Bool().Draw(t, "fullmesh"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(endpoint, 0, 6).Draw(t, "want")
		have := rapid.SliceOfNDistinct(endpoint, 0, 6, Endpoint.key).Draw(t, "have")
		for i := range have {
			have[i].ID = uint8(20 - i)
			have[i].Implicit = rapid.IntRange(0, 4).Draw(t, "implicit") == 0
			if rapid.IntRange(0, 3).Draw(t, "foreign") == 0 {
				have[i].Address = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 2, 15: byte(i)})
			}
		}
		c := Plan(want, have, ownedPrefix.Contains)
		after, err := applied(have, c)
		if err != nil {
			t.Fatal(err)
		}
		if again := Plan(want, after, ownedPrefix.Contains); !again.Empty() {
			t.Fatalf("applied once, and still to do: %+v", again)
		}
		for _, h := range have {
			if !ownedPrefix.Contains(h.Address) && !slices.Contains(after, h) {
				t.Fatalf("foreign %+v is gone", h)
			}
		}
		for _, w := range want {
			if !slices.ContainsFunc(after, func(e Endpoint) bool { return e.key() == w.key() && !e.Implicit }) {
				t.Fatalf("wanted %s is not there", w.Address)
			}
		}
	})
}
