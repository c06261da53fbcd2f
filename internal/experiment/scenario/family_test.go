package scenario

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCounterpart(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"2001:db8:1::10/128", "10.1.0.16/32"},
		{"2001:db8:1:a::10/64", "10.1.10.16/24"},
		{"2001:db8:1:8000::/49", "10.1.128.0/17"},
		{"2001:db8:ca::/48", "10.202.0.0/16"},
		{"2001:db8::/32", "10.0.0.0/8"},
		{"2001:db8:1:2::ff/120", "10.1.2.255/24"},
		{"::/0", "0.0.0.0/0"},
		{"fc00:1::/32", ""},
		{"2001:db9:1::/48", ""},
		{"2001:db8:100::/48", ""},    // X is not a byte
		{"2001:db8:1:101::/64", ""},  // Y is not a byte
		{"2001:db8:1::1:1/64", ""},   // Z is not a byte
		{"2001:db8:1::/60", ""},      // between two bytes
		{"2001:db8::/31", ""},        // larger than the prefix
		{"2001:db8:1:a:1::/128", ""}, // more than Z
	} {
		p := netip.MustParsePrefix(test.in)
		got, ok := counterpartOf(p)
		if ok != (test.want != "") || ok && got.String() != test.want {
			t.Errorf("%s: %s, %t, want %q", test.in, got, ok, test.want)
		}
	}
}

func TestTranslateRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Spec)
		want   string
	}{
		{"unknown family", func(s *Spec) { s.Family = "ipx" }, `family: must be one of [ipv6 ipv4 dual], got "ipx"`},
		{"routes", func(s *Spec) { s.Experiment = &Experiment{Kind: KindRoutes} }, `family: must be ipv6 with an experiment of kind routes, got "ipv4"`},
		{"address", func(s *Spec) { s.Links["l"].Ends[0].Addresses[0] = netip.MustParsePrefix("2001:db8:1::1:1/64") },
			"links.l.ends[0].addresses[0]: 2001:db8:1::1:1/64 has no IPv4 counterpart: it is not of the form 2001:db8:X:Y::Z with X, Z <= ff and one byte in Y"},
	} {
		s := &Spec{Family: FamilyIPv4, Nodes: map[string]*Node{"a": {}, "b": {}}, Links: map[string]*Link{"l": {Ends: []End{
			{Node: "a", Interface: "x", Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::1/64")}},
			{Node: "b", Interface: "x", Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::2/64")}},
		}}}}
		test.change(s)
		if got := strings.TrimSpace(s.Translate().Error()); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}
