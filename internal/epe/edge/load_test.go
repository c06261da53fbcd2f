package edge

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/epe/pathmanager"
)

// loadEgress is an egress whose links report loads.
type loadEgress struct {
	*autoEgress
	sample uint32
	best   map[netip.Prefix]capacity.Link
}

func newLoadEgress(t testing.TB, delivery Delivery) *loadEgress {
	a := newAutoEgress(t, false)
	a.config.Delivery = delivery
	if err := a.config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	a.setDelivery(&delivery)
	return &loadEgress{autoEgress: a, best: map[netip.Prefix]capacity.Link{}}
}

// loadPath is the report of the link to a peer.
func (l *loadEgress) loadPath(peer int, all, used float64) bgp.VPNPath {
	l.sample++
	p := vpnPath(fmt.Sprintf("10.0.0.%d:1", peer), fmt.Sprintf("fc00:%d:1::", peer), "1:1")
	p.Prefix, p.RTs, p.NextHop = bgp.LoadPrefix(p.SID), []vpn.ID{bgp.LoadTarget(65000)}, netip.MustParseAddr(fmt.Sprint("2001:db8:1::", peer))
	p.Load = bgp.Load{Link: uint16(peer), Sample: l.sample, Capacity: float32(all), Used: float32(used)}
	p.ASPath = message.MakeASPath(65000 + uint32(peer))
	return p
}

func (l *loadEgress) reports(peer int, used float64) {
	l.t.Helper()
	p := l.loadPath(peer, 1000, used)
	l.updateLoad(p)
	if err := l.update(p); err != nil {
		l.t.Fatal(err)
	}
}

func link(peer int) capacity.Link {
	return capacity.Link{Router: netip.MustParseAddr(fmt.Sprint("2001:db8:1::", peer)), Number: uint16(peer)}
}

// carry has connections of networks carry something until the next decision.
func (l *loadEgress) carry(rates map[string]float64) {
	l.t.Helper()
	l.clock = l.clock.Add(2 * capacity.Every)
	if !l.balances() {
		return
	}
	flows := map[flowEnds]float64{}
	for prefix, rate := range rates {
		flows[flowEnds{netip.MustParseAddr("2001:db8:1::10"), netip.MustParsePrefix(prefix).Addr().Next()}] = rate
	}
	l.balance(l.networkUses(flows), l.best)
}

// TestFullLink: networks with auto, and then those of named peers, leave a full link for what
// brings them most, and return.
func TestFullLink(t *testing.T) {
	const auto, single, spread = autoNetwork, otherNetwork, "2001:db8:e::/64"
	l := newLoadEgress(t, Delivery{Default: Mode{named: modeAuto}, Explore: "50%", Networks: []Network{
		{Prefix: netip.MustParsePrefix(single), Mode: Mode{Single: "a"}},
		{Prefix: netip.MustParsePrefix(spread), Mode: Mode{Spread: map[string]uint32{"a": 1, "b": 1}}},
	}})
	l.announce(1, spread, true)
	l.announce(2, spread, true)
	now := func() string {
		return fmt.Sprintf("%s | %s | %s", l.delivered(auto), l.delivered(single), l.delivered(spread))
	}
	// The network with auto measured that a is best.
	for range 30 {
		l.trial(auto, map[string]uint64{"none": 1e6, sidA: 3e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 2e6})
	}
	both := sidA + "*1 " + sidB + "*1"
	before := sidA + " | " + sidA + " | " + both
	if now() != before {
		t.Fatalf("at the start: %s", now())
	}
	l.best[netip.MustParsePrefix(single)] = link(2)
	rates := map[string]float64{auto: 60, single: 300, spread: 400}
	l.reports(1, 890)
	l.reports(2, 200)
	if l.carry(rates); now() != before {
		t.Fatalf("no link is full: %s", now())
	}
	l.reports(1, 920) // 70 are too much, of which these are three fifths
	if l.carry(rates); now() != sidB+" | "+sidA+" | "+both {
		t.Errorf("a little too much: %s", now())
	}
	if s := l.status(auto); s.Mode != "auto: single" || !strings.HasPrefix(s.Why, "avoids the link to a at 2001:db8:1::1, which is or was full; ") {
		t.Errorf("%+v", s)
	}
	for range 20 { // much too much
		l.reports(1, 1000)
		l.reports(2, 200)
		l.carry(rates)
	}
	if now() != sidB+" | none | "+sidB {
		t.Errorf("much too much: %s", now())
	}
	if s := l.linkStatus(&health.Report{}); len(s) != 2 || s[0].Name != "a at 2001:db8:1::1" || s[0].Capacity != 8000 || s[0].Used != 8000 || s[0].Avoiding != 3 || s[1].Avoiding != 0 {
		t.Errorf("%+v", s)
	}
	if s := l.status(single); s.Why == "" || s.Through[0] != "best path" {
		t.Errorf("%+v", s)
	}
	if l.try(l.clock, netip.MustParsePrefix(auto), mustDelivered(l, auto), l.report(0, auto, 1<<30)); len(l.auto.trials) > 0 {
		t.Error("modes are compared meanwhile")
	}
	for range 1000 {
		l.reports(1, 100)
		l.reports(2, 300)
		l.carry(rates)
	}
	if now() != before {
		t.Errorf("the load fell: %s", now())
	}
	// The border router is lost, or what it reports.
	for name, lose := range map[string]func(){
		"withdrawn":  func() { p := l.loadPath(1, 1, 1); p.Withdrawn = true; l.updateLoad(p) },
		"no report":  func() { p := l.loadPath(1, 1, 1); p.Load = bgp.Load{}; l.updateLoad(p) },
		"aged":       func() { l.clock = l.clock.Add(time.Hour) },
		"only again": func() { l.clock = l.clock.Add(time.Hour); l.sample--; l.updateLoad(l.loadPath(1, 1000, 1000)) },
	} {
		for range 20 {
			l.reports(1, 1000)
			l.reports(2, 200)
			l.carry(rates)
		}
		if now() == before {
			t.Fatalf("%s: none left", name)
		}
		l.reports(1, 1000)
		lose()
		l.reports(2, 200)
		if l.carry(rates); now() != before {
			t.Errorf("%s: %s", name, now())
		}
	}
}

func mustDelivered(l *loadEgress, prefix string) *delivered {
	n, ok := l.delivery.networks.Get(netip.MustParsePrefix(prefix))
	if !ok {
		l.t.Fatal("no delivery to " + prefix)
	}
	return n
}

// TestFullLinkOfSubflows: the subflows of MPTCP clients leave a full link too.
func TestFullLinkOfSubflows(t *testing.T) {
	l := newLoadEgress(t, Delivery{Default: Mode{named: modeAuto}})
	prefix := netip.MustParsePrefix(autoNetwork)
	l.best[prefix] = link(2)
	for range 30 { // with a part of the load, it is drawn whether the network leaves
		l.reports(1, 1000)
		l.reports(2, 100)
		l.clock = l.clock.Add(2 * capacity.Every)
		l.balance(l.networkUses(map[flowEnds]float64{{l.peers[0].Address, prefix.Addr().Next()}: 400, {l.peers[1].Address, prefix.Addr().Next()}: 400}), l.best)
	}
	if l.states[peerPrefix{0, prefix}] != pathmanager.RouteDraining || l.states[peerPrefix{1, prefix}] != pathmanager.RoutePresent {
		t.Errorf("%v", l.states)
	}
	if s := l.status(autoNetwork); s.Mode != "auto: multipath" {
		t.Errorf("%+v", s)
	}
}

// TestNoTrialOverAFullLink: a mode is compared with others only while its links have room.
func TestNoTrialOverAFullLink(t *testing.T) {
	l := newLoadEgress(t, Delivery{Default: Mode{named: modeAuto}, Explore: "50%"})
	tries := func(used float64) map[string]bool {
		tried := map[string]bool{}
		for range 40 {
			l.reports(2, used)
			tried[l.trial(autoNetwork, map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 1e6, sidA + "*1 " + sidB + "*1": 1e6})] = true
		}
		return tried
	}
	both := sidA + "*1 " + sidB + "*1"
	if tried := tries(950); tried[sidB] || tried[both] || !tried[sidA] {
		t.Errorf("tried while b is full: %v", tried)
	}
	if tried := tries(100); !tried[sidB] || !tried[both] {
		t.Errorf("tried while b has room: %v", tried)
	}
}

// TestNoLoad: what is no report of a load, or not one of a border router, is none.
func TestNoLoad(t *testing.T) {
	for name, change := range map[string]func(*bgp.VPNPath){
		"no communities":   func(p *bgp.VPNPath) { p.Load = bgp.Load{} },
		"no target":        func(p *bgp.VPNPath) { p.RTs = []vpn.ID{id("65000:101")} },
		"target of others": func(p *bgp.VPNPath) { p.RTs = []vpn.ID{bgp.LoadTarget(65001)} },
		"another prefix":   func(p *bgp.VPNPath) { p.Prefix = netip.MustParsePrefix("fc00:1:2::/128") },
		"foreign SID":      func(p *bgp.VPNPath) { p.SID = netip.MustParseAddr("fd00::1"); p.Prefix = bgp.LoadPrefix(p.SID) },
		"rejected":         func(p *bgp.VPNPath) { p.Rejected = message.Reject("sid", "no") },
		"capacity 0":       func(p *bgp.VPNPath) { p.Load.Capacity = 0 },
		"capacity -1":      func(p *bgp.VPNPath) { p.Load.Capacity = -1 },
		"capacity NaN":     func(p *bgp.VPNPath) { p.Load.Capacity = float32(math.NaN()) },
		"capacity +Inf":    func(p *bgp.VPNPath) { p.Load.Capacity = float32(math.Inf(1)) },
		"used NaN":         func(p *bgp.VPNPath) { p.Load.Used = float32(math.NaN()) },
		"used +Inf":        func(p *bgp.VPNPath) { p.Load.Used = float32(math.Inf(1)) },
		"used -1":          func(p *bgp.VPNPath) { p.Load.Used = -1 },
	} {
		l := newLoadEgress(t, Delivery{Default: Mode{Single: "a"}})
		for _, had := range []bool{false, true} {
			if had {
				l.reports(1, 1000)
			}
			p := l.loadPath(1, 1000, 1000)
			change(&p)
			l.updateLoad(p)
			if _, ok := l.loads.balancer.Known(l.clock, link(1)); ok != (had && strings.Contains("another prefix, foreign SID", name)) {
				t.Errorf("%s: the load is known: %v", name, ok)
			}
		}
		if l.balance(nil, nil); l.delivered(autoNetwork) != sidA {
			t.Errorf("%s: through %s", name, l.delivered(autoNetwork))
		}
	}
	l := newLoadEgress(t, Delivery{Default: Mode{Single: "a"}})
	for i := range 2 * maxReports {
		p := l.loadPath(1, 1000, 1000)
		p.SID = netip.AddrFrom16([16]byte{0xfc, 0, 1, 14: byte(i >> 8), 15: byte(i)})
		p.Prefix, p.Load.Link = bgp.LoadPrefix(p.SID), uint16(i)
		l.updateLoad(p)
	}
	if len(l.loads.reports) > maxReports || len(l.loads.links) > maxReports {
		t.Errorf("%d reports", len(l.loads.reports))
	}
}

// TestLoadsOnlyAnnounced: whatever is reported, packets leave only through peers that have a route
// to their network.
func TestLoadsOnlyAnnounced(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := newLoadEgress(t, Delivery{Default: Mode{named: modeAuto}, Networks: []Network{{Prefix: netip.MustParsePrefix(otherNetwork), Mode: Mode{Spread: map[string]uint32{"a": 1, "b": 1}}}}})
		networks := []string{autoNetwork, otherNetwork}
		there := map[string]bool{}
		for range 60 {
			peer := rapid.IntRange(1, 2).Draw(r, "peer")
			network := rapid.SampledFrom(networks).Draw(r, "network")
			switch rapid.IntRange(0, 4).Draw(r, "event") {
			case 0:
				on := rapid.Bool().Draw(r, "there")
				l.announce(peer, network, on)
				there[network+[]string{sidA, sidB}[peer-1]] = !on // gone
			case 1:
				l.reports(peer, rapid.Float64Range(0, 1500).Draw(r, "used"))
			case 2:
				l.best[netip.MustParsePrefix(network)] = rapid.SampledFrom([]capacity.Link{{}, link(1), link(2)}).Draw(r, "best")
				l.carry(map[string]float64{autoNetwork: rapid.Float64Range(0, 800).Draw(r, "rate"), otherNetwork: rapid.Float64Range(0, 800).Draw(r, "rate")})
			case 3:
				l.clock = l.clock.Add(time.Duration(rapid.IntRange(-100, 100).Draw(r, "s")) * time.Second)
			case 4:
				_ = l.auto.table.Learn(l.clock, netip.MustParsePrefix(network), belief.Pair{Challenger: "single b", Incumbent: belief.Best, Ratio: 2, Bytes: 1})
				l.deliver(netip.MustParsePrefix(network))
			}
			for _, network := range networks {
				for _, sid := range []string{sidA, sidB} {
					if there[network+sid] && strings.Contains(l.delivered(network), sid) {
						r.Fatalf("%s through %s, and %s has no route", network, l.delivered(network), sid)
					}
				}
			}
		}
	})
}

// TestBestLink: the link of a best path is the only one of its router to a peer of its first AS.
func TestBestLink(t *testing.T) {
	l := newLoadEgress(t, Delivery{Default: Mode{Single: "a"}})
	l.reports(1, 0)
	l.reports(2, 0)
	at := link(1).Router
	if l.bestLink(at, 65001) != link(1) || l.bestLink(at, 65002) != (capacity.Link{}) || l.bestLink(link(2).Router, 65001) != (capacity.Link{}) {
		t.Error("not the link of router and AS")
	}
	p := l.loadPath(1, 1000, 0)
	p.SID = p.SID.Next()
	p.Prefix = bgp.LoadPrefix(p.SID)
	if l.updateLoad(p); l.bestLink(at, 65001) != link(1) {
		t.Error("two peers of an AS behind one link are two links")
	}
	p.SID = p.SID.Next()
	p.Prefix, p.Load.Link = bgp.LoadPrefix(p.SID), 9
	if l.updateLoad(p); l.bestLink(at, 65001) != (capacity.Link{}) {
		t.Error("one of two links to an AS")
	}
}

// BenchmarkBalance decides for 10,000 networks with 10 connections each, while the link of all of
// them is full.
func BenchmarkBalance(b *testing.B) {
	const networks, each = 10_000, 10
	l := newLoadEgress(b, Delivery{Default: Mode{named: modeAuto}})
	flows := map[flowEnds]float64{}
	for n := range networks {
		prefix := netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, 0, byte(n >> 8), byte(n)}), 48)
		l.announce(1, prefix.String(), true)
		l.announce(2, prefix.String(), true)
		l.best[prefix] = link(1)
		client := prefix.Addr()
		for range each {
			client = client.Next()
			flows[flowEnds{netip.MustParseAddr("2001:db8:1::10"), client}] = 1000. / networks / each
		}
	}
	moved := 0
	for b.Loop() {
		l.reports(1, 1000)
		l.reports(2, 100)
		l.clock = l.clock.Add(2 * capacity.Every)
		l.balance(l.networkUses(flows), l.best)
		moved += l.loads.balancer.Moved(link(1))
		for _, prefix := range []string{"fc00:1:1::", "fc00:2:1::"} { // all return
			p := l.loadPath(1, 1, 1)
			p.Prefix, p.Withdrawn = bgp.LoadPrefix(netip.MustParseAddr(prefix)), true
			l.updateLoad(p)
		}
		l.balance(nil, l.best)
	}
	b.ReportMetric(float64(moved)/float64(b.N), "moved")
}
