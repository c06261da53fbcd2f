package edge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
)

// plans is a fake of sprayer. The program of a plan has the number of the plan plus 100.
type plans map[uint32]spray.Plan

func (p plans) Set(number uint32, plan spray.Plan) error {
	if plan.Marks == [spray.MaxPaths]uint32{} {
		return errors.New("no path")
	}
	p[number] = plan
	return nil
}

func (p plans) Program(number uint32) (uint32, error) { return number + 100, nil }

func (p plans) Remove(number uint32) error {
	delete(p, number)
	return nil
}

func spraying(t *testing.T, networks ...Network) (*egress, wanted, plans) {
	t.Helper()
	config := dualStack()
	config.Delivery = Delivery{Networks: networks}
	if err := config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	e, w := newTestEgress(config)
	p := plans{}
	e.startSpraying(p, nil)
	return e, w, p
}

// announce has a peer announce a prefix, or withdraw it.
func (e *egress) announce(t testing.TB, peer int, prefix string, withdrawn bool) {
	t.Helper()
	p := vpnPath(fmt.Sprintf("10.0.0.%d:1", peer), fmt.Sprintf("fc00:%d:1::", peer), fmt.Sprint("65000:10", peer))
	p.Prefix, p.Withdrawn = netip.MustParsePrefix(prefix), withdrawn
	if err := e.update(p); err != nil {
		t.Fatal(err)
	}
}

func TestSpray(t *testing.T) {
	both := Mode{Spray: []string{"b", "a"}}
	e, w, p := spraying(t, Network{Prefix: netip.MustParsePrefix("2001:db8:c::/48"), Mode: both}, Network{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Mode: both})
	check := func(contains string, want ...string) {
		t.Helper()
		if got := w.lines(contains); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", contains, got, want)
		}
	}
	check("fwmark",
		"priority 10 from 0.0.0.0/0 fwmark 0x7ab50003 unreachable",
		"priority 3 from all fwmark 0x7ab50000 table 101", "priority 4 from all fwmark 0x7ab50000 unreachable",
		"priority 5 from all fwmark 0x7ab50001 table 102", "priority 6 from all fwmark 0x7ab50001 unreachable",
		"priority 7 from 0.0.0.0/0 fwmark 0x7ab50002 table 101", "priority 8 from 0.0.0.0/0 fwmark 0x7ab50002 unreachable",
		"priority 9 from 0.0.0.0/0 fwmark 0x7ab50003 table 102")
	if m := e.marked(); !slices.Equal(m.Marks, []uint32{0x7ab50000, 0x7ab50001, 0x7ab50002, 0x7ab50003}) || m.Before != 9 {
		t.Errorf("marked packets %+v", m)
	}
	check("to fc00", "priority 1 from all to fc00::/16 table main")

	// Packets pass the program with one peer too, so that what it carries is counted.
	marks := func(prefix string) [spray.MaxPaths]uint32 {
		t.Helper()
		r, _ := w[route.Route{Table: route.MainTable, Dst: netip.MustParsePrefix(prefix), Metric: 4095}.Key()].(route.Route)
		if r.Program == 0 {
			t.Fatalf("%s: %s has no program", prefix, r)
		}
		return p[r.Program-100].Marks
	}
	e.announce(t, 1, "2001:db8::/32", false)
	if got := marks("2001:db8:c::/48"); got != [spray.MaxPaths]uint32{0, 0x7ab50000} {
		t.Errorf("with one peer: marks %x", got)
	}
	e.announce(t, 2, "2001:db8:c::/48", false)
	check("metric 4095", "2001:db8:c::/48 table main encap bpf xmit tabane-program-101 dev lan metric 4095 mtu 1460")
	if got := marks("2001:db8:c::/48"); got != [spray.MaxPaths]uint32{0x7ab50001, 0x7ab50000} {
		t.Errorf("marks %x", got)
	}
	if got := e.networks(netip.Prefix{}, 9).List[1]; got.Mode != "spray" || !slices.Equal(got.Through, []string{"b", "a"}) || got.State != "in use" {
		t.Errorf("%+v", got)
	}
	list := e.networks(netip.Prefix{}, 9).List
	of := netip.MustParsePrefix("2001:db8:c::/48")
	e.addSprayed(list, []spray.Known{
		{Network: of, Mark: 0x7ab50001, TCP: 5, UDP: 7, Rate: 80_000, MinRTT: 2500 * time.Microsecond, Age: 3 * time.Second}, {Network: of, Mark: 0x7ab50000, UDP: 9},
		{Network: netip.MustParsePrefix("2001:db8:d::/48"), Mark: 0x7ab50000, UDP: 99}, {Network: of, Mark: 0x7ab50077, UDP: 99},
	})
	if want := []SprayedPath{{Peer: "a", UDPBytes: 9}, {Peer: "b", TCPBytes: 5, UDPBytes: 7, RateBPS: 80_000, MinRTT: 2.5, MeasuredSeconds: 3}}; list[0].Sprayed != nil || !slices.Equal(list[1].Sprayed, want) {
		t.Errorf("paths %+v and %+v, want %+v", list[0].Sprayed, list[1].Sprayed, want)
	}
	if got := e.sprayedUDP(map[uint32]uint64{0x7ab50001: 5, 0x7ab50077: 6}); !maps.Equal(got, map[string]uint64{"b": 5}) {
		t.Errorf("volumes %v", got)
	}
	e.announce(t, 1, "198.51.0.0/16", false)
	e.announce(t, 2, "198.51.0.0/16", false)
	if got := marks("198.51.100.0/24"); got != [spray.MaxPaths]uint32{0x7ab50003, 0x7ab50002} {
		t.Errorf("marks of IPv4 %x", got)
	}
	e.announce(t, 2, "2001:db8:c::/48", true)
	if got := marks("2001:db8:c::/48"); got != [spray.MaxPaths]uint32{0, 0x7ab50000} || len(p) != 2 {
		t.Errorf("after a withdrawal: marks %x, plans %v", got, p)
	}
	e.announce(t, 1, "2001:db8::/32", true)
	if lines := w.lines("2001:db8:c::/48 table main"); len(lines) != 0 || len(p) != 1 {
		t.Errorf("without peers: %q, plans %v", lines, p)
	}

	// What this host cannot do is said, and the first peer carries all.
	e, w, _ = spraying(t, Network{Prefix: netip.MustParsePrefix("2001:db8:c::/48"), Mode: both})
	e.sprayer = nil
	e.startSpraying(nil, errors.New("no programs"))
	for peer := range 2 {
		e.announce(t, peer+1, "2001:db8:c::/48", false)
	}
	if got := w.delivered("2001:db8:c::/48"); got != "fc00:2:1::" {
		t.Errorf("without programs: %s", got)
	}
	if got := e.networks(netip.Prefix{}, 9).List[0]; got.State != "not sprayed: no programs" || !slices.Equal(got.Through, []string{"b"}) {
		t.Errorf("%+v", got)
	}
}

// TestStopSpraying: after a reload to another mode, or to a dry run, rules of marks stay until the
// kernel has no route with a program, and then nothing is left; a reload back sets them again.
func TestStopSpraying(t *testing.T) {
	network := func(m Mode) Delivery {
		return Delivery{Networks: []Network{{Prefix: netip.MustParsePrefix("2001:db8:c::/48"), Mode: m}}}
	}
	dry := network(Mode{Spray: []string{"b", "a"}})
	dry.DryRun = true
	for name, other := range map[string]Delivery{
		"best": network(Mode{best: true}), "single": network(Mode{Single: "a"}), "dry run": dry,
		"dry run of a default": {Default: Mode{Spray: []string{"b", "a"}}, DryRun: true},
	} {
		e, w, p := spraying(t, network(Mode{Spray: []string{"b", "a"}}).Networks...)
		for peer := range 2 {
			e.announce(t, peer+1, "2001:db8:c::/48", false)
		}
		before := len(w.lines("fwmark"))
		if e.stopSpraying() || len(p) != 1 {
			t.Fatalf("%s: stopped while it sprays, %v", name, p)
		}
		outdated := outdatedKernel{w, true}
		e.kernel = &outdated
		e.config.Delivery = other
		e.setDelivery(&e.config.Delivery)
		for e.step(100) {
		}
		if e.stopSpraying() || len(w.lines("fwmark")) != before || len(p) != 0 {
			t.Errorf("%s: rules were removed before routes: %q, %v", name, w.lines("fwmark"), p)
		}
		outdated.outdated = false
		if !e.stopSpraying() || e.stopSpraying() {
			t.Errorf("%s: not stopped once", name)
		}
		if left := append(w.lines("fwmark"), append(w.lines("program"), w.lines("priority 1 from")...)...); len(left) > 0 {
			t.Errorf("%s: left behind: %q", name, left)
		}
		if other.DryRun {
			if got := e.networks(netip.Prefix{}, 9).List[0]; got.State != "dry run" || !slices.Equal(got.Through, []string{"b", "a"}) {
				t.Errorf("%s: status is %+v", name, got)
			}
		}
		e.config.Delivery = network(Mode{Spray: []string{"b", "a"}})
		e.startSpraying(p, nil)
		e.setDelivery(&e.config.Delivery)
		for e.step(100) {
		}
		if len(w.lines("fwmark")) != before || len(w.lines("program")) != 1 || len(p) != 1 {
			t.Errorf("%s: after a reload back: %q", name, w.lines("fwmark"))
		}
	}
}

// outdatedKernel is a kernel in which all that differs from the desired state does so still, or
// nothing.
type outdatedKernel struct {
	wanted
	outdated bool
}

func (k *outdatedKernel) Outdated(route.Key) bool { return k.outdated }

// loads is a sprayer that a function is called before the program of a plan is loaded in.
type loads struct {
	plans
	before func()
}

func (l loads) Program(number uint32) (uint32, error) {
	l.before()
	return l.plans.Program(number)
}

// TestWithdrawalBeforeProgram: when a peer withdraws its route and those left need a program, the
// kernel no longer has the route, nor the program in use the peer's mark, when that is loaded.
func TestWithdrawalBeforeProgram(t *testing.T) {
	config := testConfig()
	config.Peers = append(config.Peers, Peer{Name: "c", RT: id("65000:103"), Address: netip.MustParseAddr("2001:db8:1::c"), Table: 103})
	config.Delivery = Delivery{Default: Mode{Spray: []string{"a", "b", "c"}}}
	e, w := newTestEgress(config)
	kernel := maps.Clone(w) // as of the last flush
	e.flushNow = func(int) { kernel = maps.Clone(w) }
	p, loaded, withdrawn := plans{}, 0, false
	e.startSpraying(loads{p, func() {
		loaded++
		if !withdrawn {
			return
		}
		if lines := kernel.lines("2001:db8:c::/48 table 102"); len(lines) > 0 {
			t.Errorf("a program is loaded while the kernel has %q", lines)
		}
		for number, plan := range p {
			if slices.Contains(plan.Marks[:], e.peers[1].mark()) {
				t.Errorf("a program is loaded while plan %d sends through the peer: %x", number, plan.Marks)
			}
		}
	}}, nil)
	for peer := range 3 {
		e.announce(t, peer+1, "2001:db8:c::/48", false)
	}
	e.flushNow(0)
	if lines := kernel.lines("2001:db8:c::/48 table 102"); len(lines) != 1 || loaded != 3 {
		t.Fatalf("%q, %d programs", lines, loaded)
	}
	withdrawn = true
	e.announce(t, 2, "2001:db8:c::/48", true)
	if loaded != 4 {
		t.Errorf("%d programs were loaded", loaded)
	}
	e.step(100)
	if e.delivery.suspended.active {
		t.Error("members stay suspended")
	}
}

// TestNoSprayedPacketLeavesUnannounced: after each of many random changes, with any one of the
// rules and routes deleted, a packet with the mark of a peer, whatever a program chose it for, is
// dropped or encapsulated to a SID of a route of that peer to the destination, or comes back to a
// program, which drops it.
func TestNoSprayedPacketLeavesUnannounced(t *testing.T) {
	prefixes := []string{"2001:db8:c::/48", "2001:db8:c::/64", "2001:db8::/32", "198.51.0.0/16", "198.51.100.0/24"}
	addresses := []netip.Addr{netip.MustParseAddr("2001:db8:c::1"), netip.MustParseAddr("2001:db8:c:1::1"), netip.MustParseAddr("198.51.100.1")}
	config := dualStack()
	config.Delivery = Delivery{Default: Mode{Spray: []string{"a", "b"}}}
	rapid.Check(t, func(t *rapid.T) {
		e, w := newTestEgress(config)
		p := plans{}
		e.startSpraying(p, nil)
		announced := map[string]bool{}
		verify := func(without route.Key) {
			kernel := func(yield func(route.Object) bool) {
				for k, o := range w {
					if k != without && !yield(o) {
						return
					}
				}
			}
			for _, peer := range e.peers {
				for _, dst := range addresses {
					if dst.Is4() != peer.Address.Is4() {
						continue
					}
					src := netip.MustParseAddr("2001:db8:1::10")
					if dst.Is4() {
						src = netip.MustParseAddr("192.0.2.20")
					}
					r, ok := routetest.Lookup(kernel, routetest.Packet{Src: src, Dst: dst, Mark: peer.mark()})
					if !ok || r.Program != 0 {
						continue
					}
					number := 1 + peer.index%2
					covered := slices.ContainsFunc(prefixes, func(prefix string) bool {
						return announced[fmt.Sprint(number, prefix)] && netip.MustParsePrefix(prefix).Contains(dst)
					})
					object, _ := w[route.Nexthop{ID: r.NexthopID}.Key()].(route.Nexthop)
					if !covered || object.SID != netip.MustParseAddr(fmt.Sprintf("fc00:%d:1::", number)) {
						t.Fatalf("without %s: a packet with the mark of %s to %s takes %s", without, peer.Name, dst, r)
					}
				}
			}
			// A route has a program only for peers that cover all of it, and its plan names
			// no other.
			for _, o := range w {
				r, ok := o.(route.Route)
				if !ok || r.Program == 0 {
					continue
				}
				for _, mark := range p[r.Program-100].Marks {
					if mark != 0 && !e.covering(e.byIndex[int(mark&0xffff)], r.Dst).sid.IsValid() {
						t.Fatalf("%s names the mark %x of a peer without a route", r, mark)
					}
				}
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			prefix, number := rapid.SampledFrom(prefixes).Draw(t, "prefix"), rapid.IntRange(1, 2).Draw(t, "peer")
			path := vpnPath(fmt.Sprintf("10.0.0.%d:1", number), fmt.Sprintf("fc00:%d:1::", number), fmt.Sprint("65000:10", number))
			path.Prefix, path.Withdrawn = netip.MustParsePrefix(prefix), announced[fmt.Sprint(number, prefix)]
			announced[fmt.Sprint(number, prefix)] = !path.Withdrawn
			if err := e.update(path); err != nil {
				t.Fatal(err)
			}
			verify(route.Key{})
		}
		for k := range maps.Clone(w) {
			if k.Class() == route.ClassRule || k.Class() == route.ClassRoute {
				verify(k)
			}
		}
	})
}

// TestMarking: packets that are led to an egress peer get its mark, by one nexthop object for each
// peer and SID, and those of groups; the routes have the MTU of what is encapsulated later. When no
// mode leads any more, the rules stay until the kernel has no such object.
func TestMarking(t *testing.T) {
	const network, ipv4, other = "2001:db8:c::/48", "198.51.100.0/24", "2001:db8:d::/48"
	config := dualStack()
	config.Delivery = Delivery{Networks: []Network{
		{Prefix: netip.MustParsePrefix(network), Mode: Mode{Spread: map[string]uint32{"a": 1, "b": 3}}},
		{Prefix: netip.MustParsePrefix(ipv4), Mode: Mode{Single: "b"}}, {Prefix: netip.MustParsePrefix(other), Mode: Mode{Single: "b"}},
	}}
	w := leaving{wanted{}, map[route.Key]bool{}}
	e := newEgress(&config, 1500, w)
	e.startMarking()
	e.announce(t, 1, network, false)
	e.announce(t, 2, network, false)
	e.announce(t, 2, ipv4, false)
	shared := vpnPath("10.0.0.3:1", "fc00:1:1::", "65000:101", "65000:102") // both peers, the SID of a
	shared.Prefix = netip.MustParsePrefix(other)
	if err := e.update(shared); err != nil {
		t.Fatal(err)
	}
	ids := map[string]uint32{}
	for to, d := range e.delivering {
		ids[fmt.Sprintf("%x %s", to.mark, e.sids.Value(to.sid))] = d.ID
		if n := (route.Nexthop{ID: d.ID, Link: "lan", Mark: to.mark}); w.wanted[n.Key()] != route.Object(n) {
			t.Errorf("%v is not wanted", n)
		}
	}
	if want := []string{"7ab50000 fc00:1:1::", "7ab50001 fc00:1:1::", "7ab50001 fc00:2:1::", "7ab50003 fc00:2:1::"}; !slices.Equal(slices.Sorted(maps.Keys(ids)), want) {
		t.Errorf("nexthop objects %v, want %v", ids, want)
	}
	if n := len(w.lines("fwmark")); n != 8 {
		t.Errorf("rules: %q", w.lines("fwmark"))
	}
	for _, prefix := range []string{network, ipv4, other} {
		r := w.wanted[e.deliveredRoute(netip.MustParsePrefix(prefix), nil).Key()].(route.Route)
		if r.MTU != 1460 || prefix == other && r.NexthopID != ids["7ab50001 fc00:1:1::"] || prefix == ipv4 && r.NexthopID != ids["7ab50003 fc00:2:1::"] {
			t.Errorf("%v, of %v", r, ids)
		}
	}
	if g := w.lines("group"); len(g) != 1 || !strings.Contains(g[0], fmt.Sprint(ids["7ab50000 fc00:1:1::"], ",1")) || !strings.Contains(g[0], fmt.Sprint(ids["7ab50001 fc00:2:1::"], ",3")) {
		t.Errorf("groups %q of %v", g, ids)
	}
	// When a peer is left, the others with its SIDs are not.
	e.after = func(time.Duration, func()) {}
	e.withoutBypass(e.peers[0])
	if n := len(w.lines("tabane-mark-7ab5")); n != 3 || len(w.lines("tabane-mark-7ab50000")) > 0 {
		t.Errorf("without a: %q", w.lines("tabane-mark"))
	}
	for _, n := range ids {
		w.left[route.Nexthop{ID: n}.Key()] = true
	}
	config.Delivery = Delivery{}
	e.setDelivery(&config.Delivery)
	for e.step(100) {
	}
	if got := w.lines("tabane-mark"); len(got) > 0 || e.stopMarking() || len(w.lines("fwmark")) != 8 {
		t.Errorf("without modes: %q, rules %q", got, w.lines("fwmark"))
	}
	clear(w.left)
	if !e.stopMarking() || e.stopMarking() || len(w.lines("fwmark"))+len(w.lines("priority 1 from")) > 0 {
		t.Errorf("the rules stay: %q", w.lines("fwmark"))
	}
}

// leaving is a wanted whose kernel still has some objects.
type leaving struct {
	wanted
	left map[route.Key]bool
}

func (l leaving) Outdated(k route.Key) bool { return l.left[k] }
