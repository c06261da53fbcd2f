package edge

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

func TestCheckDelivery(t *testing.T) {
	network := func(prefix string, m Mode) Network { return Network{Prefix: netip.MustParsePrefix(prefix), Mode: m} }
	a := Mode{Single: "a"}
	for name, tt := range map[string]struct {
		delivery Delivery
		change   func(*Config)
		fault    string
	}{
		"all of them": {delivery: Delivery{Default: Mode{Spread: map[string]uint32{"a": 80, "b": 20}}, DryRun: true, Networks: []Network{
			network("2001:db8:100::/40", a), network("2001:db8:100::/48", Mode{best: true}), network("198.51.100.0/24", Mode{Single: "a-ipv4"}),
			{ASN: 64500, Mode: a}, {ASN: 64501, Mode: Mode{Spread: map[string]uint32{"a": 1, "b": 0}}},
		}}},
		"the same neighbor in IPv4": {delivery: Delivery{Networks: []Network{network("198.51.100.0/24", a)}}},
		"another neighbor in IPv4": {delivery: Delivery{Networks: []Network{network("198.51.100.0/24", a)}}, change: func(c *Config) { c.Peers[2].RT = id("65000:999") },
			fault: `delivery.networks[0].mode.single: "a" is an egress peer of ipv6, and none for ipv4 has its route target`},
		"unknown peer": {delivery: Delivery{Default: Mode{Single: "a-ipv5"}}, fault: `delivery.default.single: must be the name of an egress peer, got "a-ipv5", did you mean`},
		"unknown peer of many": {delivery: Delivery{Default: Mode{Spread: map[string]uint32{"a": 1, "c": 1}}},
			fault: `delivery.default.spread.c: must be the name of an egress peer, got "c"`},
		"weights of zero": {delivery: Delivery{Networks: []Network{network("2001:db8::/32", Mode{Spread: map[string]uint32{"a": 0, "b": 0}})}},
			fault: "delivery.networks[0].mode.spread: must have a weight that is not 0"},
		"no peers":           {delivery: Delivery{Default: Mode{Spread: map[string]uint32{}}}, fault: "delivery.default.spread: must have a weight"},
		"two modes":          {delivery: Delivery{Default: Mode{Single: "a", Spread: map[string]uint32{"b": 1}}}, fault: "delivery.default: must have one of single, spread and spray"},
		"three modes":        {delivery: Delivery{Default: Mode{Single: "a", Spray: []string{"b"}}}, fault: "delivery.default: must have one of single, spread and spray"},
		"spray":              {delivery: Delivery{Default: Mode{Spray: []string{"a", "b"}}}},
		"sprayed twice":      {delivery: Delivery{Default: Mode{Spray: []string{"a", "a"}}}, fault: `delivery.default.spray[1]: "a" is given twice`},
		"spray unknown":      {delivery: Delivery{Default: Mode{Spray: []string{"a", "c"}}}, fault: `delivery.default.spray[1]: must be the name of an egress peer, got "c"`},
		"spray over nothing": {delivery: Delivery{Default: Mode{Spray: []string{}}}, fault: "delivery.default.spray: must have 1 to 4 egress peers, got 0"},
		"no mode":            {delivery: Delivery{Networks: []Network{{ASN: 1}}}, fault: "delivery.networks[0].mode: must be best"},
		"two conditions":     {delivery: Delivery{Networks: []Network{{ASN: 1, Prefix: netip.MustParsePrefix("2001:db8::/32"), Mode: a}}}, fault: "delivery.networks[0]: must have either a prefix or an asn"},
		"no condition":       {delivery: Delivery{Networks: []Network{{Mode: a}}}, fault: "delivery.networks[0]: must have either a prefix or an asn"},
		"prefix given twice": {delivery: Delivery{Networks: []Network{network("2001:db8::/32", a), network("2001:db8::/32", a)}},
			fault: "delivery.networks[1].prefix: 2001:db8::/32 is already that of networks[0]"},
		"AS given twice": {delivery: Delivery{Networks: []Network{{ASN: 7, Mode: a}, {ASN: 7, Mode: a}}}, fault: "delivery.networks[1].asn: 7 is already that of networks[0]"},
		"host bits":      {delivery: Delivery{Networks: []Network{{Prefix: netip.MustParsePrefix("2001:db8::1/32"), Mode: a}}}, fault: "delivery.networks[0].prefix: "},
		"on the link":    {delivery: Delivery{Networks: []Network{network("2001:db8:1::/80", a)}}, fault: "delivery.networks[0].prefix: 2001:db8:1::/80 is inside our own 2001:db8:1::/64"},
		"of SIDs":        {delivery: Delivery{Networks: []Network{network("fc00:1::/32", a)}}, fault: "delivery.networks[0].prefix: fc00:1::/32 is inside locators[0] fc00::/16"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dualStack()
			c.Delivery = tt.delivery
			if tt.change != nil {
				tt.change(&c)
			}
			got := c.Check().Error()
			if !strings.HasPrefix(got, tt.fault) || got != "" && tt.fault == "" || strings.Contains(got, "\n") {
				t.Errorf("got %q, want %q", got, tt.fault)
			}
		})
	}
	c := Config{Routes: KernelRoutes, Delivery: Delivery{Default: a}}
	if got := c.Check().Error(); !strings.Contains(got, "delivery: needs the SIDs") {
		t.Error(got)
	}
}

// nexthops returns the text of what a route of the main table leads to: "fc00:1:1::" or, for a
// group, "fc00:1:1::*80 fc00:2:1::*20"; none without a route.
func (w wanted) delivered(prefix string) string {
	r, ok := w[(route.Route{Table: route.MainTable, Dst: netip.MustParsePrefix(prefix), Metric: overBestPath}).Key()].(route.Route)
	if !ok {
		return "none"
	}
	switch o := w[route.Nexthop{ID: r.NexthopID}.Key()].(type) {
	case route.Nexthop:
		return o.SID.String()
	case route.NexthopGroup:
		var parts []string
		for _, m := range o.List() {
			parts = append(parts, fmt.Sprintf("%s*%d", w[route.Nexthop{ID: m.ID}.Key()].(route.Nexthop).SID, m.Weight))
		}
		slices.Sort(parts)
		return strings.Join(parts, " ")
	}
	return "a route to nothing"
}

func TestDelivery(t *testing.T) {
	config := dualStack()
	config.Delivery = Delivery{Networks: []Network{
		{Prefix: netip.MustParsePrefix("2001:db8:100::/40"), Mode: Mode{Spread: map[string]uint32{"a": 80, "b": 20}}},
		{Prefix: netip.MustParsePrefix("2001:db8:100::/48"), Mode: Mode{best: true}},
		{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Mode: Mode{Single: "b"}},
		{ASN: 64500, Mode: Mode{Single: "a"}},
	}}
	if err := config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	e, w := newTestEgress(config)
	announce := func(peer int, prefix string, asns ...uint32) {
		p := vpnPath(fmt.Sprintf("10.0.0.%d:1", peer), fmt.Sprintf("fc00:%d:1::", peer), fmt.Sprint("65000:10", peer))
		p.Prefix, p.ASPath, p.Withdrawn = netip.MustParsePrefix(prefix), message.MakeASPath(asns...), asns == nil
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	withdraw := func(peer int, prefix string) { announce(peer, prefix) }
	check := func(when string, want map[string]string) {
		t.Helper()
		for prefix, through := range want {
			if got := w.delivered(prefix); got != through {
				t.Errorf("%s: %s through %s, want %s", when, prefix, got, through)
			}
		}
	}
	const a, b, both = "fc00:1:1::", "fc00:2:1::", "fc00:1:1::*80 fc00:2:1::*20"
	const network, inside, except, ipv4 = "2001:db8:100::/40", "2001:db8:180::/48", "2001:db8:100::/48", "198.51.100.0/24"

	check("without routes", map[string]string{network: "none", ipv4: "none"})
	announce(1, "2001:db8::/32", 1)
	check("covered by a", map[string]string{network: a, inside: "none", "2001:db8::/32": "none"})
	announce(2, inside, 2)
	check("b announces a part", map[string]string{network: a, inside: both})
	announce(2, "::/0", 2)
	check("b has a default route", map[string]string{network: both, inside: both, "::/0": "none"})
	announce(1, except, 1)
	check("an exception", map[string]string{except: "none", network: both})
	withdraw(1, "2001:db8::/32")
	check("a withdraws", map[string]string{network: b, inside: b})
	withdraw(2, "::/0")
	check("b withdraws", map[string]string{network: "none", inside: b})
	announce(1, network, 1)
	e.locator(locator("fc00:1::/32", true))
	e.locator(locator("fc00:1::/32", false))
	check("a's border router fails", map[string]string{network: "none", inside: b})
	e.locator(locator("fc00:1::/32", true))
	check("it is back", map[string]string{network: a, inside: both})

	draining := vpnPath("10.0.0.1:1", a, "65000:101")
	draining.Prefix, draining.Communities = netip.MustParsePrefix(network), []uint32{bgp.GracefulShutdown}
	if err := e.update(draining); err != nil {
		t.Fatal(err)
	}
	check("a's border router is drained", map[string]string{network: a, inside: b})
	announce(1, network, 1)
	check("it is back in service", map[string]string{network: a, inside: both})

	announce(1, "0.0.0.0/0", 1)
	check("not the peer of the mode", map[string]string{ipv4: "none"})
	announce(2, "198.51.0.0/16", 1)
	check("in IPv4", map[string]string{ipv4: b, "198.51.0.0/16": "none"})

	announce(2, "2001:db8:f::/48", 7, 64500)
	check("of an AS, not by the peer of the mode", map[string]string{"2001:db8:f::/48": "none"})
	announce(1, "2001:db8:f::/48", 7, 64500)
	check("of an AS", map[string]string{"2001:db8:f::/48": a})
	announce(1, "2001:db8:f::/48", 7, 64501)
	withdraw(2, "2001:db8:f::/48")
	check("now of another AS", map[string]string{"2001:db8:f::/48": "none"})

	if lines := w.lines("nhid"); !slices.ContainsFunc(lines, func(s string) bool {
		return strings.HasPrefix(s, network+" table main") && strings.HasSuffix(s, "metric 4095 mtu 1524")
	}) {
		t.Errorf("no MTU or metric:\n%s", strings.Join(lines, "\n"))
	}
	e.setMTU(9000)
	for _, line := range w.lines("metric 4095") {
		if !strings.HasSuffix(line, "mtu 9024") {
			t.Errorf("the old MTU: %s", line)
		}
	}

	d := Delivery{Default: Mode{Single: "b"}, DryRun: true}
	e.setDelivery(&d)
	if lines := w.lines("metric 4095"); len(lines) > 0 {
		t.Errorf("in a dry run:\n%s", strings.Join(lines, "\n"))
	}
	if n := e.networks(netip.MustParsePrefix(inside), 10); len(n.List) != 1 || n.List[0].State != "dry run" || n.List[0].Through[0] != "b" {
		t.Errorf("status of a dry run: %+v", n)
	}
	d.DryRun = false
	e.setDelivery(&d)
	check("another default", map[string]string{inside: b, network: "none", "198.51.0.0/16": b, ipv4: "none", "0.0.0.0/0": "none"})
	e.setDelivery(&Delivery{})
	withdraw(1, network)
	if lines := w.lines("metric 4095"); len(lines) > 0 || len(w.lines(" group ")) > 0 || e.delivery.networks.Size() > 0 || len(e.delivery.groups) > 0 {
		t.Errorf("left behind: %v, %+v", lines, e.networks(netip.Prefix{}, 10))
	}
}

// TestNoDeliveryAnyMore: routes that are withdrawn while the end of all deliveries is under way
// leave none behind.
func TestNoDeliveryAnyMore(t *testing.T) {
	config := testConfig()
	config.Delivery.Default = Mode{Single: "a"}
	e, w := newTestEgress(config)
	const networks = 2 * daemon.Step
	p := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	update := func(i int) {
		p.Prefix = netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/32", i))
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	for i := range networks {
		update(i)
	}
	if n := len(w.lines("metric 4095")); n != networks {
		t.Fatalf("%d deliveries, want %d", n, networks)
	}
	e.delivery.rules = compileDelivery(&Delivery{}) // before the first step of the walk
	p.Withdrawn = true
	update(networks - 1)
	e.startWalk(false)
	for e.step(daemon.Step) {
	}
	if n := len(w.lines("metric 4095")); n > 0 || e.delivery.networks.Size() > 0 {
		t.Errorf("%d deliveries are left, in %d networks", n, e.delivery.networks.Size())
	}
}

// recorder is a kernel with the deliveries, and the groups and SIDs that they lead to. After each
// operation it calls changed.
type recorder struct {
	groups  map[uint32]route.NexthopGroup
	objects map[uint32]route.Nexthop
	routes  map[netip.Prefix]uint32 // deliveries
	refused bool                    // changes of deliveries fail
	changed func(route.Object)
}

func (r *recorder) DumpEach(route.Protocol, func([]route.Object)) (bool, error) { return true, nil }

func (r *recorder) Apply(ops []route.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		switch o := op.Object.(type) {
		case route.Nexthop:
			r.objects[o.ID] = o
			if op.Delete {
				delete(r.objects, o.ID)
				r.lose(o.ID)
			}
		case route.NexthopGroup:
			r.groups[o.ID] = o
			if op.Delete {
				delete(r.groups, o.ID)
				r.lose(o.ID)
			}
		case route.Route:
			switch {
			case o.Table != route.MainTable || o.Metric != overBestPath:
			case r.refused:
				errs[i] = errors.New("refused")
			case op.Delete:
				delete(r.routes, o.Dst)
			default:
				r.routes[o.Dst] = o.NexthopID
			}
		}
		if r.changed != nil {
			r.changed(op.Object)
		}
	}
	return errs
}

// lose deletes the routes to an object.
func (r *recorder) lose(id uint32) {
	maps.DeleteFunc(r.routes, func(_ netip.Prefix, to uint32) bool { return to == id })
}

// through returns the SIDs that packets to a delivered network are encapsulated to, in order.
func (r *recorder) through(prefix netip.Prefix) (sids []string) {
	id, ok := r.routes[prefix]
	if !ok {
		return nil
	}
	if g, ok := r.groups[id]; ok {
		for _, m := range g.List() {
			sids = append(sids, r.objects[m.ID].SID.String())
		}
		slices.Sort(sids)
		return sids
	}
	return []string{r.objects[id].SID.String()}
}

// spreading is an egress that spreads flows over both peers, with the real reconciler.
type spreading struct {
	*egress
	t       *testing.T
	kernel  *recorder
	flushes *route.Reconciler
}

func newSpreading(t *testing.T) *spreading {
	return newSpreadingIn(t, Mode{Spread: map[string]uint32{"a": 2, "b": 1}})
}

func newSpreadingIn(t *testing.T, mode Mode) *spreading {
	k := &recorder{groups: map[uint32]route.NexthopGroup{}, objects: map[uint32]route.Nexthop{}, routes: map[netip.Prefix]uint32{}}
	s := &spreading{t: t, kernel: k, flushes: route.NewReconciler(k, route.Edge, slog.New(slog.DiscardHandler))}
	config := testConfig()
	config.Delivery.Default = mode
	s.egress = newEgress(&config, 1500, s.flushes)
	s.flushNow = func(routes int) { _, _ = s.flushes.FlushPart(routes) }
	return s
}

func (s *spreading) announce(peer, prefix string, there bool) {
	s.t.Helper()
	p := vpnPath("10.0.0."+peer+":1", "fc00:"+peer+":1::", "65000:10"+peer)
	p.Prefix, p.Withdrawn = netip.MustParsePrefix(prefix), !there
	if err := s.update(p); err != nil {
		s.t.Fatal(err)
	}
}

// settle does what the loop of the daemon does until there is nothing to do, or most times.
func (s *spreading) settle(most int) {
	for again := true; again && most > 0; most-- {
		busy, _ := s.flushes.FlushPart(daemon.Step)
		if again = busy; !busy {
			again = s.step(daemon.Step)
		}
	}
}

const (
	networkOfBoth = "2001:db8:c::/64"
	sidA, sidB    = "fc00:1:1::", "fc00:2:1::"
	manyNetworks  = 2*daemon.Step + 1
)

// many is the prefix of a network inside 2a00::/12.
func many(i int) string { return fmt.Sprintf("2a00:%x::/32", i) }

// announceMany has a announce many networks, b a route that covers them, and both one more.
func (s *spreading) announceMany() {
	s.announce("2", "2a00::/12", true)
	for i := range manyNetworks {
		s.announce("1", many(i), true)
	}
	s.announce("1", networkOfBoth, true)
	s.announce("2", networkOfBoth, true)
	s.settle(100)
}

// TestSuspend: a peer that withdraws a route to many networks leaves their group at once, and is
// back in it for the others only when the kernel has no route of the many to it, even if the group
// was not in use meanwhile.
func TestSuspend(t *testing.T) {
	for _, again := range []string{"in use", "in use again"} {
		t.Run(again, func(t *testing.T) {
			s := newSpreading(t)
			s.announceMany()
			both := netip.MustParsePrefix(networkOfBoth)
			if got := s.kernel.through(both); !slices.Equal(got, []string{sidA, sidB}) {
				t.Fatalf("through %q", got)
			}
			s.announce("2", "2a00::/12", false)
			meanwhile := func() {
				t.Helper()
				for i := range manyNetworks {
					if got := s.kernel.through(netip.MustParsePrefix(many(i))); slices.Contains(got, sidB) {
						t.Fatalf("%s through %q", many(i), got)
					}
				}
			}
			meanwhile()
			if len(s.delivery.due) != manyNetworks {
				t.Errorf("%d networks are due, want all of %d in steps", len(s.delivery.due), manyNetworks)
			}
			s.kernel.changed = func(o route.Object) {
				if _, ok := o.(route.NexthopGroup); ok {
					meanwhile()
				}
			}
			if s.kernel.refused = true; again == "in use again" {
				s.announce("2", networkOfBoth, false)
				for s.step(daemon.Step) {
				}
				if len(s.delivery.groups) != 1 {
					t.Errorf("%d groups, want that of a", len(s.delivery.groups))
				}
				s.announce("2", networkOfBoth, true)
			}
			s.settle(20)
			meanwhile()
			s.kernel.refused = false
			s.settle(20)
			meanwhile()
			if got := s.kernel.through(both); !slices.Equal(got, []string{sidA, sidB}) {
				t.Errorf("afterwards through %q", got)
			}
			if got := s.kernel.through(netip.MustParsePrefix(many(manyNetworks - 1))); !slices.Equal(got, []string{sidA}) {
				t.Errorf("a network that b left is through %q", got)
			}
			if n, groups := s.flushes.Pending(), len(s.kernel.groups); n > 0 || groups != 1 || s.delivery.suspended.active {
				t.Errorf("%d pending, %d groups, %+v", n, groups, s.delivery.suspended)
			}
			s.announce("1", networkOfBoth, false)
			s.announce("2", networkOfBoth, false)
			if s.settle(20); len(s.ids) != 2 || len(s.kernel.groups) != 0 { // those of a, for EPE Routes and for deliveries
				t.Errorf("IDs %v and %d groups are left", s.ids, len(s.kernel.groups))
			}
		})
	}
}

// TestNoSuspension: a peer stays in groups if it announces a route to many networks, changes one,
// or has another that covers them.
func TestNoSuspension(t *testing.T) {
	s := newSpreading(t)
	s.announceMany()
	s.kernel.changed = func(o route.Object) {
		if _, ok := o.(route.NexthopGroup); ok && !slices.Equal(s.kernel.through(netip.MustParsePrefix(networkOfBoth)), []string{sidA, sidB}) {
			t.Errorf("a group was changed: %v", o)
		}
	}
	s.announce("2", "2a00::/8", true)
	s.settle(20)
	draining := vpnPath("10.0.0.2:1", sidB, "65000:102")
	draining.Prefix, draining.Communities = netip.MustParsePrefix("2a00::/12"), []uint32{bgp.GracefulShutdown}
	if err := s.update(draining); err != nil {
		t.Fatal(err)
	}
	s.settle(20)
	s.announce("2", "2a00::/12", false)
	s.settle(20)
	if got := s.kernel.through(netip.MustParsePrefix(many(7))); !slices.Equal(got, []string{sidA, sidB}) {
		t.Errorf("through %q", got)
	}
}

// TestLostMember: groups are without an unreachable SID at once, and have it again only when it is
// reachable and the routes to the groups are as they should be.
func TestLostMember(t *testing.T) {
	s := newSpreading(t)
	s.egress.locator(locator("fc00:1::/32", true))
	s.egress.locator(locator("fc00:2::/32", true))
	s.announceMany()
	both, first := netip.MustParsePrefix(networkOfBoth), netip.MustParsePrefix(many(0))
	var discarded []string
	s.kernel.changed = func(o route.Object) {
		if r, ok := o.(route.Route); ok && r == discard(netip.MustParseAddr(sidB)) {
			discarded = s.kernel.through(both)
		}
	}
	s.egress.locator(locator("fc00:2::/32", false))
	if !slices.Equal(discarded, []string{sidA}) {
		t.Errorf("packets to b are discarded while flows leave through %q", discarded)
	}
	s.settle(100)
	if got := s.kernel.through(first); !slices.Equal(got, []string{sidA}) || len(s.kernel.groups) > 0 {
		t.Errorf("without b: through %q, %d groups", got, len(s.kernel.groups))
	}
	s.egress.locator(locator("fc00:2::/32", true))
	s.settle(100)
	for _, prefix := range []netip.Prefix{both, first} {
		if got := s.kernel.through(prefix); !slices.Equal(got, []string{sidA, sidB}) {
			t.Errorf("b is back: %v through %q", prefix, got)
		}
	}
	// Back before the routes have moved.
	s.egress.locator(locator("fc00:2::/32", false))
	s.egress.locator(locator("fc00:2::/32", true))
	s.settle(100)
	if got := s.kernel.through(both); !slices.Equal(got, []string{sidA, sidB}) || s.flushes.Pending() > 0 {
		t.Errorf("b was lost shortly: through %q", got)
	}
}

// TestLostSIDOfSingle: networks whose only egress peer is unreachable follow other routes at once,
// whatever waits to be applied, and are delivered again when it is back, even if they were not yet
// brought up to date.
func TestLostSIDOfSingle(t *testing.T) {
	s := newSpreadingIn(t, Mode{Single: "a"})
	s.egress.locator(locator("fc00:1::/32", true))
	s.announceMany()
	s.announce("1", "2a01::/32", true) // is not in the kernel yet
	discarded := false
	s.kernel.changed = func(o route.Object) {
		discarded = discarded || o == route.Object(discard(netip.MustParseAddr(sidA)))
		if _, ok := o.(route.Nexthop); ok && !discarded {
			t.Errorf("%v is deleted before packets to it are discarded", o)
		}
	}
	s.egress.locator(locator("fc00:1::/32", false))
	if !discarded || len(s.kernel.routes) > 0 {
		t.Errorf("discarded: %t, %d routes are left", discarded, len(s.kernel.routes))
	}
	s.kernel.changed = nil
	for _, steps := range []int{0, 1, 2, 100} {
		s.egress.locator(locator("fc00:1::/32", false))
		s.settle(steps)
		s.egress.locator(locator("fc00:1::/32", true))
		s.settle(100)
		if n := len(s.kernel.routes); n != manyNetworks+2 || s.flushes.Pending() > 0 {
			t.Errorf("back after %d steps: %d routes, %d pending", steps, n, s.flushes.Pending())
		}
	}
}

// TestDeliveryStatus: what a status says of each network.
func TestDeliveryStatus(t *testing.T) {
	config := testConfig()
	config.Delivery = Delivery{Networks: []Network{
		{Prefix: netip.MustParsePrefix("2001:db8::/32"), Mode: Mode{Spread: map[string]uint32{"a": 1, "b": 3}}},
		{Prefix: netip.MustParsePrefix("2001:db8:f::/48"), Mode: Mode{Single: "b"}},
	}}
	e, _ := newTestEgress(config)
	now := time.Unix(1000, 0)
	e.now = func() time.Time { return now }
	for i, peer := range []string{"1", "2"} {
		p := vpnPath("10.0.0."+peer+":1", "fc00:"+peer+":1::", "65000:10"+peer)
		if p.Prefix = netip.MustParsePrefix("2001:db8::/32"); i == 1 {
			p.Prefix = client
		}
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(90 * time.Second)
	n := e.networks(netip.Prefix{}, 100)
	want := []NetworkStatus{
		{Prefix: netip.MustParsePrefix("2001:db8::/32"), Mode: "spread", Through: []string{"a"}, State: "no route of b", Seconds: 90},
		{Prefix: client, Rule: "2001:db8::/32", Mode: "spread", Through: []string{"a 25 %", "b 75 %"}, State: "in use", Seconds: 90},
		{Prefix: netip.MustParsePrefix("2001:db8:f::/48"), Mode: "single", Through: []string{"best path"}, State: "no route of b"},
	}
	n.List[2].Seconds = 0 // since it was made, by another clock
	if fmt.Sprint(n.List) != fmt.Sprint(want) || n.Default != "best" || n.Networks != 3 {
		t.Errorf("got  %+v\nwant %+v", n, want)
	}
	for within, prefixes := range map[string]int{"2001:db8:c::1/128": 1, "2001:db8:f::/48": 1, "::/0": 3, "2001:db9::/32": 0, "2001:db8:c::/63": 2} {
		if n := e.networks(netip.MustParsePrefix(within), 100); len(n.List) != prefixes {
			t.Errorf("within %s: %+v", within, n.List)
		}
	}
	if n := e.networks(netip.Prefix{}, 2); len(n.List) != 2 {
		t.Errorf("limit of 2: %+v", n.List)
	}
}

// TestDeliverOnlyAnnounced: after each of many random changes, of routes, locators and rules, all
// packets from a default address to a network whose mode is not the best path are encapsulated to
// SIDs of peers of its mode, each of which has a route that covers the prefix, and to all such
// peers.
func TestDeliverOnlyAnnounced(t *testing.T) {
	prefixes := []netip.Prefix{
		bgp.IPv6.Anywhere(), netip.MustParsePrefix("2001:db8:100::/40"), netip.MustParsePrefix("2001:db8:100::/48"), client,
		bgp.IPv4.Anywhere(), netip.MustParsePrefix("198.51.0.0/16"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("fc00:1::/24"),
	}
	modes := []Mode{{best: true}, {Single: "a"}, {Single: "b"}, {Spread: map[string]uint32{"a": 1, "b": 2}}, {Spread: map[string]uint32{"a": 1000, "b": 1}}}
	sids := []string{"fc00:1:1::", "fc00:1:2::", "fc00:2:1::"}
	rapid.Check(t, func(t *rapid.T) {
		e, w := newTestEgress(dualStack())
		for _, sid := range sids { // reachable by BGP, whatever else is announced
			e.locator(locator(netip.PrefixFrom(netip.MustParseAddr(sid), 32).Masked().String(), true))
		}
		advertised := map[pathKey]bgp.VPNPath{}
		var d Delivery
		lost := map[netip.Prefix]bool{}
		reachable := func(sid netip.Addr) bool { return !lost[netip.PrefixFrom(sid, 32).Masked()] }
		// covers reports whether a peer has a route with this SID to all of a prefix; any SID if
		// not valid.
		covers := func(peer string, sid netip.Addr, prefix netip.Prefix) bool {
			rt := id(map[string]string{"a": "65000:101", "b": "65000:102"}[peer])
			return slices.ContainsFunc(slices.Collect(maps.Values(advertised)), func(p bgp.VPNPath) bool {
				return p.RTs[0] == rt && (p.SID == sid || !sid.IsValid()) && reachable(p.SID) && p.Prefix.Bits() <= prefix.Bits() && p.Prefix.Contains(prefix.Addr())
			})
		}
		// mode is that of a prefix, by the definition.
		mode := func(prefix netip.Prefix) Mode {
			m, bits, origin := d.Default, -1, uint32(0)
			announced := false
			for _, p := range advertised {
				if p.Prefix == prefix && reachable(p.SID) {
					announced, origin = true, p.ASPath.Origin()
				}
			}
			for _, n := range d.Networks {
				if n.ASN != 0 && n.ASN == origin && bits < 0 {
					m = n.Mode
				}
				if n.Prefix.IsValid() && n.Prefix.Bits() <= prefix.Bits() && n.Prefix.Contains(prefix.Addr()) && n.Prefix.Bits() > bits {
					m, bits = n.Mode, n.Prefix.Bits()
				}
				announced = announced || n.Prefix == prefix
			}
			if !announced || prefix.Bits() >= 16 && netip.MustParsePrefix("fc00::/16").Contains(prefix.Addr()) {
				return Mode{}
			}
			return m
		}
		verify := func() {
			for _, prefix := range prefixes {
				m := mode(prefix)
				names := slices.Sorted(maps.Keys(m.Spread))
				if m.Single != "" {
					names = []string{m.Single}
				}
				names = slices.DeleteFunc(names, func(name string) bool { return !covers(name, netip.Addr{}, prefix) })
				got := w.delivered(prefix.String())
				if len(names) == 0 {
					if got != "none" {
						t.Fatalf("mode %s of %v: through %s, although no peer covers it", &m, prefix, got)
					}
					continue
				}
				if got == "none" {
					t.Fatalf("mode %s of %v: no route, although %v cover it", &m, prefix, names)
				}
				for _, part := range strings.Fields(got) {
					text, _, _ := strings.Cut(part, "*")
					sid := netip.MustParseAddr(text)
					if !slices.ContainsFunc(names, func(name string) bool { return covers(name, sid, prefix) }) {
						t.Fatalf("mode %s of %v: through %s, which no peer of %v has a route with", &m, prefix, sid, names)
					}
				}
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				l := netip.PrefixFrom(netip.MustParseAddr(rapid.SampledFrom(sids).Draw(t, "locator")), 32).Masked()
				lost[l] = !lost[l]
				e.locator(locator(l.String(), !lost[l]))
			case 1:
				d = Delivery{Default: rapid.SampledFrom(modes).Draw(t, "default")}
				for i, prefix := range prefixes[:7] {
					if rapid.Bool().Draw(t, "has a rule") {
						d.Networks = append(d.Networks, Network{Prefix: prefix, Mode: modes[(i+len(d.Networks))%len(modes)]})
					}
				}
				e.setDelivery(&d)
			default:
				i := rapid.IntRange(0, len(sids)-1).Draw(t, "route")
				p := vpnPath(fmt.Sprint("10.0.0.1:", 1+i), sids[i], rapid.SampledFrom([]string{"65000:101", "65000:102"}).Draw(t, "rt"))
				p.Prefix = rapid.SampledFrom(prefixes).Draw(t, "prefix")
				p.Withdrawn = rapid.Bool().Draw(t, "withdrawn")
				if delete(advertised, pathKey{p.RD, p.Prefix}); !p.Withdrawn {
					advertised[pathKey{p.RD, p.Prefix}] = p
				}
				if err := e.update(p); err != nil {
					t.Fatal(err)
				}
			}
			verify()
		}
	})
}

// TestWeights: the weights of peers in the kernel, and that each gets a bucket of a group as the
// kernel shares them: up to the rounded share of all members so far.
func TestWeights(t *testing.T) {
	for _, tt := range []struct{ given, want []uint32 }{
		{[]uint32{80, 20}, []uint32{80, 20}},
		{[]uint32{1, 256, 256}, []uint32{3, 256, 256}},
		{[]uint32{1000, 1}, []uint32{256, 2}},
		{[]uint32{1, 0, 1 << 31, 1<<32 - 1}, []uint32{2, 128, 256}},
	} {
		m := Mode{Spread: map[string]uint32{}}
		for i, w := range tt.given {
			m.Spread[fmt.Sprint("p", i)] = w
		}
		var got []uint32
		for _, p := range newDeliveryRule("", m).peers {
			got = append(got, uint32(p.weight))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d: got %d, want %d", tt.given, got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := Mode{Spread: map[string]uint32{}}
		for i := range rapid.IntRange(1, route.MaxMembers).Draw(t, "peers") {
			m.Spread[fmt.Sprint("p", i)] = rapid.OneOf(rapid.Uint32Range(1, 3), rapid.Uint32Range(1, 1<<32-1)).Draw(t, "weight")
		}
		sum, soFar, before := 0, 0, 0
		peers := newDeliveryRule("", m).peers
		for _, p := range peers {
			sum += int(p.weight)
		}
		for _, p := range peers {
			soFar += int(p.weight)
			upper := (2*route.GroupBuckets*soFar + sum) / (2 * sum)
			if p.weight > route.MaxWeight || upper <= before {
				t.Fatalf("%v: %s gets no bucket", peers, p.peer)
			}
			before = upper
		}
	})
}

// TestDryRunChangesNothing: a dry run makes no group and does not have flows spread, and its end
// does.
func TestDryRunChangesNothing(t *testing.T) {
	config := testConfig()
	d := Delivery{Default: Mode{Spread: map[string]uint32{"a": 2, "b": 1}}, DryRun: true}
	config.Delivery = d
	e, w := newTestEgress(config)
	for _, peer := range []string{"1", "2"} {
		if err := e.update(vpnPath("10.0.0."+peer+":1", "fc00:"+peer+":1::", "65000:10"+peer)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dry := range []bool{true, false, true} {
		d := d
		d.DryRun = dry
		e.setDelivery(&d)
		if groups := len(w.lines(" group ")); (groups == 0) != dry || d.spreads() == dry {
			t.Errorf("dry run %v: %d groups, spreads: %v", dry, groups, d.spreads())
		}
	}
	for _, m := range []Mode{{best: true}, {Single: "a"}, {Spread: map[string]uint32{"a": 1, "b": 0}}} {
		if d := (Delivery{Default: m, Networks: []Network{{ASN: 1, Mode: m}}}); d.spreads() {
			t.Errorf("%s spreads", &m)
		}
	}
}

// TestHashPolicy: a policy that was 0 is 1 while flows are spread, and then 0 again unless it was
// changed meanwhile.
func TestHashPolicy(t *testing.T) {
	netnstest.Enter(t)
	var h hashing
	for _, tt := range [][3]string{{"0", "1", "0"}, {"0", "3", "3"}, {"2", "2", "2"}} {
		for i, step := range []func() error{h.set, h.restore} {
			for _, key := range hashPolicies {
				if i == 0 || tt[1] != "1" {
					if err := netns.Sysctl(key, tt[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := step(); err != nil {
				t.Fatal(err)
			}
			for _, key := range hashPolicies {
				want := tt[2]
				if i == 0 && tt[0] == "0" {
					want = "1"
				}
				if got, err := netns.ReadSysctl(key); err != nil || got != want {
					t.Errorf("%v, step %d: %s is %s, want %s, %v", tt, i, key, got, want, err)
				}
			}
		}
	}
}

// TestHashPolicyReload: an examination that began before a reload ended the spreading of flows leaves
// the policies alone.
func TestHashPolicyReload(t *testing.T) {
	netnstest.Enter(t)
	var h hashing
	examined := h.condition()
	if err := errors.Join(h.set(), h.restore()); err != nil {
		t.Fatal(err)
	}
	if problems, err := examined.Examine(); len(problems) > 0 || err != nil {
		t.Errorf("%+v, %v", problems, err)
	}
	if err := examined.Restore(); err != nil {
		t.Fatal(err)
	}
	for _, key := range hashPolicies {
		if got, err := netns.ReadSysctl(key); got != addressesOnly || err != nil {
			t.Errorf("%s is %s, %v", key, got, err)
		}
	}
}

// TestStepsOfADelivery: another delivery of all networks is applied in steps that leave the loop
// free in between, those that change networks and those that only examine them.
func TestStepsOfADelivery(t *testing.T) {
	const networks = 3 * daemon.Step
	config := testConfig()
	config.Delivery.Default = Mode{Single: "a"}
	e, w := newTestEgress(config)
	for i := range networks {
		for _, peer := range []string{"1", "2"} {
			p := vpnPath("10.0.0."+peer+":1", "fc00:"+peer+":1::", "65000:10"+peer)
			p.Prefix = netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/32", i))
			if err := e.update(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	object := func() (text string) { // of most deliveries
		count := map[string]int{}
		for _, line := range w.lines("metric 4095") {
			at := strings.Index(line, "nhid")
			if count[line[at:]]++; count[line[at:]] > count[text] {
				text = line[at:]
			}
		}
		return text
	}
	before := object()
	moved := func() int {
		return networks - len(w.lines(before))
	}
	e.setDelivery(&Delivery{Default: Mode{Single: "b"}})
	last := moved()
	if last > daemon.Step {
		t.Errorf("the first step changed %d networks, want at most %d", last, daemon.Step)
	}
	for e.step(daemon.Step) {
		n := moved()
		if n-last > daemon.Step {
			t.Errorf("a step changed %d networks, want at most %d", n-last, daemon.Step)
		}
		last = n
	}
	if last != networks {
		t.Errorf("%d networks changed, want all %d", last, networks)
	}
	// The same delivery once more: nothing changes, and all networks of both peers are visited.
	e.setDelivery(&Delivery{Default: Mode{Single: "b"}})
	steps := 1
	for e.step(daemon.Step) {
		steps++
	}
	if want := 2 * networks / daemon.Step; steps < want {
		t.Errorf("%d steps examined %d routes, want at least %d", steps, 2*networks, want)
	}
}
