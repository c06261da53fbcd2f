package gateway

import (
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestExplainRoutes: a path without an answer whose interface has no route to the peer says so, and
// what to do; one whose interface has a route to any endpoint says what else the line may lack.
func TestExplainRoutes(t *testing.T) {
	c := &Config{Peers: []Peer{{Name: "hq", Endpoints: []Endpoint{"192.0.2.1:4790", "hq.example:4790"}}, {Name: "phone"}}}
	addresses := map[string][]netip.Addr{"hq.example": {netip.MustParseAddr("2001:db8::1")}}
	routed := func(dst netip.Addr, link string, mark uint32) (bool, error) {
		return link == "eth1" && dst.Is6() && mark == SocketMark, nil
	}
	s := Status{
		Lines: []Line{{Name: "fiber", Interface: "eth1", Up: true}, {Name: "lte", Interface: "wwan0", Up: true}},
		Peers: []PeerStatus{{Name: "hq", Up: true}},
		Paths: []PathStatus{
			{Peer: "hq", Path: "fiber", Line: "fiber", State: stateUnproven}, {Peer: "hq", Path: "lte", Line: "lte", State: stateUnproven},
			{Peer: "hq", Path: "lte", Line: "lte", State: stateUp}, {Peer: "phone", Path: "lte", Line: "lte", State: stateUnproven},
		},
	}
	s.explainRoutes(c, addresses, routed)
	const missing = "no route through \"wwan0\": add a default route with a metric, or `via`"
	const silent = "the peer has not answered over it yet: the line has to let UDP to [2001:db8::1]:4790 pass"
	for i, want := range []string{silent, missing, "", ""} {
		if got := s.Paths[i].Reason; got != want {
			t.Errorf("path %d: %q, want %q", i, got, want)
		}
	}
	s.Paths = s.Paths[1:2]
	if h, want := s.health(nil, nil), `peer "hq" answers over no path; path "lte" to peer "hq" is unproven: `+missing; h.Reason != want {
		t.Errorf("%q, want %q", h.Reason, want)
	}
}

// TestExplainNAT64: a line without IPv4 does not need a route of it, but an endpoint of IPv6.
func TestExplainNAT64(t *testing.T) {
	only6 := func(dst netip.Addr, _ string, _ uint32) (bool, error) { return dst.Is6(), nil }
	for endpoint, want := range map[Endpoint]string{
		"192.0.2.1:4790":     `"wwan0" has a route of IPv6 only, and the peer no endpoint of IPv6: if the line has NAT64, add the endpoint "[64:ff9b::c000:201]:4790"`,
		"10.0.0.1:4790":      "no route through \"wwan0\": add a default route with a metric, or `via`",
		"[2001:db8::1]:4790": "the peer has not answered over it yet: the line has to let UDP to [2001:db8::1]:4790 pass",
	} {
		s := Status{Lines: []Line{{Name: "lte", Interface: "wwan0"}}, Paths: []PathStatus{{Peer: "hq", Path: "lte", Line: "lte", State: stateUnproven}}}
		s.explainRoutes(&Config{Peers: []Peer{{Name: "hq", Endpoints: []Endpoint{endpoint}}}}, nil, only6)
		if got := s.Paths[0].Reason; got != want {
			t.Errorf("%s: %q, want %q", endpoint, got, want)
		}
	}
}

// TestNothingToShow: what a gateway outside of an alliance and a line in use all the time have not
// is empty, so that it takes no column of a table.
func TestNothingToShow(t *testing.T) {
	for backup, want := range map[Backup]string{NoBackup: "", BackupDown: "true", BackupFull: "full"} {
		if l := lineOf(&Path{Name: "lte", Interface: "wwan0", Backup: backup}); l != (Line{Name: "lte", Interface: "wwan0", Backup: want}) {
			t.Errorf("%+v, want backup %q", l, want)
		}
	}
	for role, want := range map[dataplane.Role]string{dataplane.NoRole: "", dataplane.Leader: "leader"} {
		var s Status
		if s.fill(dataplane.Status{Peers: []dataplane.PeerStatus{{Role: role}}}); s.Peers[0].Role != want {
			t.Errorf("role %q, want %q", s.Peers[0].Role, want)
		}
	}
}
