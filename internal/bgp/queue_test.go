package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bfd"
	"github.com/tabane/tabane/internal/vpn"
)

func TestQueueKeepsNewest(t *testing.T) {
	q := newQueue()
	p1, p2 := netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("2001:db8:2::/48")
	rd, err := vpn.Parse("65000:1")
	if err != nil {
		t.Fatal(err)
	}
	up, down := Session{Neighbor: "a", Up: true}, Session{Neighbor: "a"}
	for _, e := range []Event{
		up,
		Update{Neighbor: "a", Prefix: p1},
		UnicastPath{Prefix: p1},
		VPNPath{RD: rd, Prefix: p1},
		Update{Neighbor: "b", Prefix: p1},
		Update{Neighbor: "a", Prefix: p2},
		Update{Neighbor: "a", Prefix: p1, Withdrawn: true},
		UnicastPath{Prefix: p1, Withdrawn: true},
		down,
		EndOfRIB{Neighbor: "a", Family: VPNv6},
		up,
	} {
		q.put(e)
	}
	want := []Event{
		up,
		VPNPath{RD: rd, Prefix: p1},
		Update{Neighbor: "b", Prefix: p1},
		Update{Neighbor: "a", Prefix: p2},
		Update{Neighbor: "a", Prefix: p1, Withdrawn: true},
		UnicastPath{Prefix: p1, Withdrawn: true},
		down,
		EndOfRIB{Neighbor: "a", Family: VPNv6},
		up,
	}
	if got := fmt.Sprint(q.take()); got != fmt.Sprint(want) {
		t.Errorf("got  %s\nwant %s", got, fmt.Sprint(want))
	}
	if got := q.take(); got != nil {
		t.Errorf("an empty queue gave %v", got)
	}
}

func TestQueueIsBounded(t *testing.T) {
	q := newQueue()
	prefixes := make([]netip.Prefix, 100)
	for i := range prefixes {
		prefixes[i] = netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/48", i))
	}
	for i := range 100 * maxBatch {
		q.put(UnicastPath{Prefix: prefixes[i%len(prefixes)]})
	}
	if len(q.events) > 2*maxBatch {
		t.Errorf("%d events are kept about %d routes", len(q.events), len(prefixes))
	}
	if got := len(q.take()); got != len(prefixes) {
		t.Errorf("%d events came out about %d routes", got, len(prefixes))
	}
}

// TestQueueIsLastState: the events read so far always yield the newest state of each route, and are
// in order.
func TestQueueIsLastState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		want, got := map[netip.Prefix]uint32{}, map[netip.Prefix]uint32{}
		newest := uint32(0)
		take := func() {
			for _, e := range q.take() {
				u, ok := e.(UnicastPath)
				if !ok {
					t.Fatalf("got %v", e)
				}
				if u.MED <= newest {
					t.Fatalf("event %d comes after event %d", u.MED, newest)
				}
				newest = u.MED
				got[u.Prefix] = u.MED
			}
		}
		for i, n := range rapid.SliceOfN(rapid.IntRange(-1, 5), 0, 100).Draw(t, "steps") {
			if n < 0 {
				take()
				continue
			}
			p := netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/48", n))
			want[p] = uint32(i + 1)
			q.put(UnicastPath{Prefix: p, Attributes: Attributes{MED: uint32(i + 1)}})
			if rapid.Bool().Draw(t, "compact") {
				q.compact()
			}
		}
		take()
		if len(got) != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		for p, n := range want {
			if got[p] != n {
				t.Fatalf("route %s: got %d, want %d", p, got[p], n)
			}
		}
	})
}

func TestNeighborCheck(t *testing.T) {
	const own = 65000
	good := func() Neighbor {
		return Neighbor{Name: "n", Address: addr("fd00::1"), ASN: 65001, Families: []Family{IPv6Unicast}}
	}
	internal := func(n *Neighbor) { n.ASN = own }
	for name, change := range map[string]func(*Neighbor){
		"":           func(*Neighbor) {},
		"internal":   func(n *Neighbor) { internal(n); n.ReflectorClient, n.NextHopSelf = true, true },
		"link-local": func(n *Neighbor) { n.Address, n.Interface, n.LocalAddress = addr("fe80::1"), "eth0", addr("fe80::2") },
		"bfd":        func(n *Neighbor) { n.BFD = bfd.Config{Interval: 10 * time.Millisecond, Multiplier: 2} },
		"bfd alone":  func(n *Neighbor) { n.BFD = bfd.Config{Interval: 10 * time.Second} },
		"limits":     func(n *Neighbor) { n.HoldTime, n.ConnectRetry, n.Multihop = minHoldTime, minConnectRetry, 255 },
	} {
		n := good()
		change(&n)
		if err := n.check(own); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Neighbor){
		"name":                  func(n *Neighbor) { n.Name = "" },
		"no address":            func(n *Neighbor) { n.Address = netip.Addr{} },
		"ipv4":                  func(n *Neighbor) { n.Address = addr("192.0.2.1") },
		"zone":                  func(n *Neighbor) { n.Address = addr("fe80::1%eth0") },
		"link-local alone":      func(n *Neighbor) { n.Address = addr("fe80::1") },
		"needless interface":    func(n *Neighbor) { n.Interface = "eth0" },
		"local ipv4":            func(n *Neighbor) { n.LocalAddress = addr("192.0.2.1") },
		"local of another kind": func(n *Neighbor) { n.LocalAddress = addr("fe80::1") },
		"no as":                 func(n *Neighbor) { n.ASN = 0 },
		"no family":             func(n *Neighbor) { n.Families = nil },
		"unknown family":        func(n *Neighbor) { n.Families = []Family{9} },
		"family twice":          func(n *Neighbor) { n.Families = []Family{VPNv6, VPNv6} },
		"external client":       func(n *Neighbor) { n.ReflectorClient = true },
		"external self":         func(n *Neighbor) { n.NextHopSelf = true },
		"internal multihop":     func(n *Neighbor) { internal(n); n.Multihop = 2 },
		"long password":         func(n *Neighbor) { n.Password = string(make([]byte, 81)) },
		"short hold time":       func(n *Neighbor) { n.HoldTime = minHoldTime - 1 },
		"uneven hold time":      func(n *Neighbor) { n.HoldTime = minHoldTime + 1 },
		"long hold time":        func(n *Neighbor) { n.HoldTime = maxHoldTime * 2 },
		"short bfd":             func(n *Neighbor) { n.BFD = bfd.Config{Interval: 10*time.Millisecond - 1} },
		"long bfd":              func(n *Neighbor) { n.BFD = bfd.Config{Interval: 10*time.Second + time.Second} },
		"fine bfd":              func(n *Neighbor) { n.BFD = bfd.Config{Interval: 10*time.Millisecond + 1} },
		"bfd without interval":  func(n *Neighbor) { n.BFD = bfd.Config{Multiplier: 3} },
		"bfd for one packet":    func(n *Neighbor) { n.BFD = bfd.Config{Interval: time.Second, Multiplier: 1} },
		"bfd over hops":         func(n *Neighbor) { n.BFD, n.Multihop = bfd.Config{Interval: time.Second}, 2 },
		"short retry":           func(n *Neighbor) { n.ConnectRetry = 1 },
		"negative limit":        func(n *Neighbor) { n.Import.WarnPrefixes = -1 },
		"rejected ipv4":         func(n *Neighbor) { n.Import.Reject = Within("", prefix("192.0.2.0/24")) },
		"rejected host bits":    func(n *Neighbor) { n.Import.Reject = Within("", prefix("2001:db8::1/32")) },
	} {
		n := good()
		change(&n)
		if err := n.check(own); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOptionsCheck(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error for nothing")
	}
	for name, change := range map[string]func(*Options){
		"as":         func(o *Options) { o.ASN = 0 },
		"router":     func(o *Options) { o.RouterID = addr("fd00::1") },
		"log":        func(o *Options) { o.Log = nil },
		"listen":     func(o *Options) { o.Listen = []netip.Addr{addr("192.0.2.1")} },
		"zone":       func(o *Options) { o.Listen = []netip.Addr{addr("fe80::1%eth0")} },
		"listen off": func(o *Options) { o.Listen, o.NoListen = []netip.Addr{addr("fd00::1")}, true },
	} {
		o := Options{ASN: 65000, RouterID: addr("10.0.0.1"), Log: discard()}
		if _, err := New(o); err != nil {
			t.Fatal(err)
		}
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRouteChecks(t *testing.T) {
	rd, _ := vpn.Parse("65000:1")
	for name, r := range map[string]UnicastRoute{
		"none":      {},
		"ipv4":      {Prefix: prefix("192.0.2.0/24")},
		"host bits": {Prefix: prefix("2001:db8::1/32")},
		"next hop":  {Prefix: prefix("2001:db8::/32"), NextHop: addr("192.0.2.1")},
	} {
		if _, err := r.path(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	good := VPNRoute{RD: rd, Prefix: prefix("2a00::/32"), NextHop: addr("fd00::1"), RTs: []vpn.ID{rd}, SID: sidA, Structure: structure}
	if _, err := good.path(&sidMemo{}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*VPNRoute){
		"no rd":       func(r *VPNRoute) { r.RD = vpn.ID{} },
		"prefix":      func(r *VPNRoute) { r.Prefix = prefix("192.0.2.0/24") },
		"no next hop": func(r *VPNRoute) { r.NextHop = netip.Addr{} },
		"no rt":       func(r *VPNRoute) { r.RTs = nil },
		"empty rt":    func(r *VPNRoute) { r.RTs = []vpn.ID{{}} },
		"no sid":      func(r *VPNRoute) { r.SID = netip.Addr{} },
		"local sid":   func(r *VPNRoute) { r.SID = addr("fe80::1") },
		"structure":   func(r *VPNRoute) { r.Structure.TransposeLen = 99 },
		"sid bits":    func(r *VPNRoute) { r.SID = addr("fcbb:1:1:a::1") },
	} {
		r := good
		change(&r)
		if _, err := r.path(&sidMemo{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestIdentifiersOnWire: route distinguishers and targets are unchanged by encoding and decoding.
func TestIdentifiersOnWire(t *testing.T) {
	for _, s := range []string{"65000:101", "0:4294967295", "10.0.0.1:7", "4200000000:7", "64086.59904:65535", "0.65000:7", "70000:1"} {
		v, err := vpn.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		rd, err := distinguisher(v)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := vpn.Parse(rd.String()); err != nil || back != v {
			t.Errorf("route distinguisher %s came back as %s, %v", v, back, err)
		}
		rt, err := target(v)
		if err != nil {
			t.Fatal(err)
		}
		if back := readTargets(slices.Repeat([]extended{rt}, 2)); !slices.Equal(back, []vpn.ID{v}) {
			t.Errorf("route target %s came back as %v", v, back)
		}
	}
}
