package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/bgp/message"
)

func role(r Role) func(*Neighbor) { return func(n *Neighbor) { n.Role = r } }

// TestRoles: routes of a provider and of a peer go to customers only, also where the neighbor that
// they came from has no role of its own; those of a customer go to all (RFC 9234 section 5).
func TestRoles(t *testing.T) {
	provider, peer, customer := newRouter(t, 1, 65001), newRouter(t, 2, 65002), newRouter(t, 3, 65003)
	own, below, beside := newRouter(t, 4, 65000), newRouter(t, 5, 65005), newRouter(t, 6, 65006)
	own.peer(provider, role(message.RoleCustomer))
	provider.peer(own, passive)
	own.peer(peer, role(message.RolePeer))
	peer.peer(own, passive, role(message.RolePeer))
	own.peer(customer, role(message.RoleProvider))
	customer.peer(own, passive, role(message.RoleCustomer))
	customer.peer(below, role(message.RoleProvider))
	below.peer(customer, passive)
	customer.peer(beside, role(message.RolePeer))
	beside.peer(customer, passive, role(message.RolePeer))
	routes := map[*router]netip.Prefix{
		provider: prefix("2a00:1::/32"), peer: prefix("2a00:2::/32"), customer: prefix("2a00:3::/32"), own: prefix("2a00:4::/32"),
	}
	for r, p := range routes {
		r.must(r.Originate(UnicastRoute{Prefix: p}))
	}
	for _, tt := range []struct {
		at, from *router
		want     []*router
	}{
		{below, customer, []*router{provider, peer, customer, own}},
		{beside, customer, []*router{customer}},
		{customer, own, []*router{provider, peer, own}},
		{peer, own, []*router{customer, own}},
		{provider, own, []*router{customer, own}},
	} {
		want := map[netip.Prefix]bool{}
		for _, r := range tt.want {
			want[routes[r]] = true
		}
		name := fmt.Sprint("r", tt.from.n)
		tt.at.wait("routes of "+name, func() bool {
			got := map[netip.Prefix]bool{}
			for p := range tt.at.adjIn[name] {
				got[p] = true
			}
			return maps.Equal(got, want)
		})
	}
}

// TestLeak: a route that was to go to customers only is rejected from a customer, and from a peer
// unless that has sent it so.
func TestLeak(t *testing.T) {
	for _, tt := range []struct {
		role Role
		by   []byte
		want bool
	}{
		{"", []byte{0, 0, 0xfd, 0xea}, true},
		{message.RoleCustomer, []byte{0, 0, 0xfd, 0xea}, true},
		{message.RoleRSClient, []byte{0, 0, 0xfd, 0xea}, true},
		{message.RoleProvider, []byte{0, 0, 0xfd, 0xea}, false},
		{message.RoleRS, []byte{0, 0, 0xfd, 0xea}, false},
		{message.RolePeer, []byte{0, 0, 0xfd, 0xea}, false},
		{message.RolePeer, []byte{0, 0, 0xfd, 0xe9}, true}, // 65001
	} {
		t.Run(string(tt.role), func(t *testing.T) {
			r := newRouter(t, 25, 65000)
			r.must(r.AddNeighbor(Neighbor{
				Name: "peer", Address: address(26), LocalAddress: address(25), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true, Role: tt.role,
			}))
			p := dialRaw(t, r, 26, 65001)
			path := rawPath(segment(2, 65001, 64999))
			p.update(rawOrigin, path, attr(0xc0, 35, tt.by), unicastReach(prefix("2a00:1::/32"), address(26)))
			p.update(rawOrigin, path, unicastReach(prefix("2a00:2::/32"), address(26)))
			// It is not a number of an AS: the route is treated as withdrawn, and the session stays up.
			p.update(rawOrigin, path, attr(0xc0, 35, []byte{1, 2, 3}), unicastReach(prefix("2a00:2:3::/48"), address(26)))
			p.update(rawOrigin, path, unicastReach(prefix("2a00:3::/32"), address(26)))
			r.wait("the last route", func() bool { _, ok := r.adjIn["peer"][prefix("2a00:3::/32")]; return ok })
			r.mu.Lock()
			defer r.mu.Unlock()
			want := []netip.Prefix{prefix("2a00:2::/32"), prefix("2a00:3::/32")}
			if tt.want {
				want = append([]netip.Prefix{prefix("2a00:1::/32")}, want...)
			}
			got := slices.SortedFunc(maps.Keys(r.adjIn["peer"]), netip.Prefix.Compare)
			if !slices.Equal(got, want) || !tt.want && r.reasons[prefix("2a00:1::/32")] != RejectLeak {
				t.Errorf("accepted %v, want %v; reasons %v", got, want, r.reasons)
			}
		})
	}
}

// TestRoleMismatch: a neighbor whose role does not fit is refused, one without is not (RFC 9234
// section 4.2).
func TestRoleMismatch(t *testing.T) {
	for name, tt := range map[string]struct {
		own   Role
		roles []byte
		why   string
	}{
		"fits":          {message.RoleCustomer, []byte{0}, ""},
		"twice":         {message.RoleCustomer, []byte{0, 0}, ""},
		"none":          {message.RoleCustomer, nil, ""},
		"not ours":      {"", []byte{0, 3}, ""},
		"mismatch":      {message.RoleCustomer, []byte{4}, "this router has the role customer, and the neighbor the role peer"},
		"contradictory": {message.RoleCustomer, []byte{0, 4}, "the role contradictory"},
		"unknown":       {message.RolePeer, []byte{9}, "the role unknown (9)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouter(t, 25, 65000)
			r.must(r.AddNeighbor(Neighbor{
				Name: "peer", Address: address(26), LocalAddress: address(25), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true, Role: tt.own,
			}))
			var more []gobgp.ParameterCapabilityInterface
			for _, n := range tt.roles {
				more = append(more, gobgp.NewCapUnknown(9, []byte{n}))
			}
			dialRaw(t, r, 26, 65001, more...)
			if tt.why == "" {
				r.wait("the session", func() bool { return r.up["peer"] })
				return
			}
			problem := func() string { return r.Sessions()[0].Problem() }
			for end := time.Now().Add(15 * time.Second); !strings.Contains(problem(), tt.why); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("problem %q, want %q", problem(), tt.why)
				}
			}
			if !strings.Contains(problem(), "Role Mismatch (2/11)") {
				t.Error(problem())
			}
		})
	}
}
