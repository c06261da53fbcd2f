package bgp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func id(t testing.TB, s string) vpn.ID {
	t.Helper()
	v, err := vpn.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func address(n int) netip.Addr { return addr(fmt.Sprintf("fd00::%x", n)) }

// router is a speaker and the state that results from its events.
type router struct {
	*Speaker
	t  testing.TB
	n  int
	as uint32

	mu      sync.Mutex
	changed chan struct{}
	up      map[string]bool
	downs   map[string]string
	adjIn   map[string]map[netip.Prefix]Update
	reasons map[netip.Prefix]RejectReason // of updates
	unicast map[netip.Prefix]UnicastPath
	vpn     map[VPNKey]VPNPath
	refused map[VPNKey]error
	ended   map[EndOfRIB]int
	log     []string // session and route events of neighbors, in order
}

func newRouter(t testing.TB, n int, as uint32) *router {
	t.Helper()
	return newRouterWith(t, n, as, func(o *Options) { o.Report = ReportBest | ReportAdjIn })
}

func newRouterWith(t testing.TB, n int, as uint32, change func(*Options)) *router {
	t.Helper()
	netnstest.NeedIsolation(t)
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("BGP_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("router", n)
	}
	opt := Options{ASN: as, RouterID: addr(fmt.Sprintf("10.0.0.%d", n)), Listen: []netip.Addr{address(n)}, Log: logger}
	change(&opt)
	s, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	r := &router{
		Speaker: s, t: t, n: n, as: as, changed: make(chan struct{}, 1),
		up: map[string]bool{}, downs: map[string]string{}, adjIn: map[string]map[netip.Prefix]Update{}, reasons: map[netip.Prefix]RejectReason{},
		unicast: map[netip.Prefix]UnicastPath{}, vpn: map[VPNKey]VPNPath{}, refused: map[VPNKey]error{},
		ended: map[EndOfRIB]int{},
	}
	var wg sync.WaitGroup
	wg.Go(r.collect)
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return r
}

func (r *router) collect() {
	for batch := range r.Events() {
		r.mu.Lock()
		for _, e := range batch {
			switch e := e.(type) {
			case Session:
				r.up[e.Neighbor] = e.Up
				r.log = append(r.log, fmt.Sprintf("%s up=%t", e.Neighbor, e.Up))
				if !e.Up {
					r.downs[e.Neighbor] = e.Reason
				}
			case Update:
				if r.adjIn[e.Neighbor] == nil {
					r.adjIn[e.Neighbor] = map[netip.Prefix]Update{}
				}
				r.log = append(r.log, fmt.Sprintf("%s %s withdrawn=%t", e.Neighbor, e.Prefix, e.Withdrawn))
				delete(r.reasons, e.Prefix)
				if rejected := (*RejectedError)(nil); errors.As(e.Rejected, &rejected) {
					r.reasons[e.Prefix] = rejected.Reason
				}
				if e.Withdrawn || e.Rejected != nil {
					delete(r.adjIn[e.Neighbor], e.Prefix)
				} else {
					r.adjIn[e.Neighbor][e.Prefix] = e
				}
			case UnicastPath:
				if e.Withdrawn || e.Rejected != nil {
					delete(r.unicast, e.Prefix)
				} else {
					r.unicast[e.Prefix] = e
				}
			case VPNPath:
				key := VPNKey{e.RD, e.Prefix}
				delete(r.vpn, key)
				delete(r.refused, key)
				if e.Rejected != nil {
					r.refused[key] = e.Rejected
				} else if !e.Withdrawn {
					r.vpn[key] = e
				}
			case EndOfRIB:
				r.ended[e]++
			}
		}
		r.mu.Unlock()
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// wait blocks until the condition holds. Only a failing test reaches the deadline.
func (r *router) wait(what string, condition func() bool) {
	r.t.Helper()
	deadline := time.After(15 * time.Second)
	for {
		r.mu.Lock()
		ok := condition()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.changed:
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("router %d: never saw: %s\nup %v\nunicast %v\nvpn %v\nrefused %v\nlog %s", r.n, what, r.up, r.unicast, r.vpn, r.refused,
				strings.Join(r.log, "\n"))
		}
	}
}

// peer adds a neighbor; change adjusts it.
func (r *router) peer(other *router, change ...func(*Neighbor)) {
	r.t.Helper()
	n := Neighbor{
		Name: fmt.Sprint("r", other.n), Address: address(other.n), LocalAddress: address(r.n), ASN: other.as,
		Families: []Family{IPv6Unicast},
	}
	if r.as == other.as {
		n.Families = []Family{VPNv6, IPv6Unicast}
	}
	for _, f := range change {
		f(&n)
	}
	if err := r.AddNeighbor(n); err != nil {
		r.t.Fatal(err)
	}
}

func (r *router) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func passive(n *Neighbor) { n.Passive = true }
func client(n *Neighbor)  { n.Passive, n.ReflectorClient = true, true }

var (
	ownSpace  = prefix("2001:db8::/32")
	structure = srv6.Structure{Block: 32, Node: 16, Function: 16}
	sidA      = addr("fcbb:1:1:a::")
	sidB      = addr("fcbb:1:1:b::")
)

// TestNetwork runs the speakers of paper A, Fig. 7: two transits, one ASBR, the reflector and one
// server.
func TestNetwork(t *testing.T) {
	asbr, rr, server := newRouter(t, 1, 65000), newRouter(t, 2, 65000), newRouter(t, 3, 65000)
	a, b := newRouter(t, 4, 65001), newRouter(t, 5, 4200000002)
	began := time.Now()

	a.peer(asbr, passive)
	b.peer(asbr, passive)
	upstream := func(pref uint32) func(*Neighbor) {
		return func(n *Neighbor) {
			n.LocalPref = pref
			n.ExportLocalOnly = true
			n.Import.Reject = Within(RejectMartian, ownSpace)
		}
	}
	asbr.peer(a, upstream(200))
	asbr.peer(b, upstream(100))
	asbr.peer(rr, func(n *Neighbor) { n.NextHopSelf = true })
	rr.peer(asbr, client)
	rr.peer(server, client)
	server.peer(rr)

	net1, net2 := prefix("2a00:1::/32"), prefix("2a00:2::/32")
	asbr.must(asbr.Originate(
		UnicastRoute{Prefix: prefix("2001:db8:8000::/33"), NextHop: address(30)},
		UnicastRoute{Prefix: prefix("fcbb:1:1::/48"), NextHop: address(1), Attributes: Attributes{Communities: []uint32{NoExport}}},
	))
	a.must(a.Originate(UnicastRoute{Prefix: net1}, UnicastRoute{Prefix: net2},
		UnicastRoute{Prefix: prefix("2001:db8:1::/48")}, UnicastRoute{Prefix: ownSpace},
		UnicastRoute{Prefix: prefix("fe80:1::/32")}))
	b.must(b.Originate(UnicastRoute{Prefix: net1, Attributes: Attributes{MED: 7, HasMED: true, Communities: []uint32{65000<<16 | 1, 65009<<16 | 1}}}))

	rdA, rdB := id(t, "65000:1"), id(t, "10.0.0.1:2")
	rt, rt4 := id(t, "65000:101"), id(t, "4200000000:7")
	transposed, err := structure.Transposed()
	asbr.must(err)
	asbr.must(asbr.OriginateVPN([]VPNRoute{
		{RD: rdA, Prefix: net1, NextHop: address(1), RTs: []vpn.ID{rt}, SID: sidA, Structure: transposed, Behavior: 18,
			Attributes: Attributes{ASPath: message.MakeASPath(65001, 64999), MED: 5, HasMED: true, LocalPref: 200, Communities: []uint32{1}}},
		{RD: rdB, Prefix: net1, NextHop: address(1), RTs: []vpn.ID{rt, rt4}, SID: sidB, Structure: structure, Behavior: 18},
	}))

	for _, r := range []*router{asbr, rr, server, a, b} {
		for _, st := range r.Neighbors() {
			r.wait("session "+st.Name, func() bool { return r.up[st.Name] })
		}
	}
	t.Logf("all sessions up after %v", time.Since(began))

	// The routes of each transit, without our own prefix, martians and our communities.
	asbr.wait("adj-rib-in", func() bool { return len(asbr.adjIn["r4"]) == 2 && len(asbr.adjIn["r5"]) == 1 })
	asbr.mu.Lock()
	u := asbr.adjIn["r5"][net1]
	asbr.mu.Unlock()
	if u.NextHop != address(5) || u.ASPath != message.MakeASPath(4200000002) || !u.HasMED || u.MED != 7 ||
		u.LocalPref != 100 || !slices.Equal(u.Communities, []uint32{65009<<16 | 1}) {
		t.Errorf("update from r5: %+v", u)
	}

	// The server receives the best path through the ASBR, and both VPN routes with their SIDs.
	server.wait("unicast routes", func() bool { return len(server.unicast) == 4 })
	server.wait("vpn routes", func() bool { return len(server.vpn) == 2 })
	server.wait("end of rib", func() bool {
		return server.ended[EndOfRIB{"r2", IPv6Unicast}] == 1 && server.ended[EndOfRIB{"r2", VPNv6}] == 1
	})
	server.mu.Lock()
	best, va, vb := server.unicast[net1], server.vpn[VPNKey{rdA, net1}], server.vpn[VPNKey{rdB, net1}]
	own := server.unicast[prefix("2001:db8:8000::/33")]
	server.mu.Unlock()
	if best.NextHop != address(1) || best.LocalPref != 200 || best.Neighbor != "r2" || best.Local || best.ASPath != message.MakeASPath(65001) {
		t.Errorf("best path at the server: %+v", best)
	}
	if own.NextHop != address(30) {
		t.Errorf("own route at the server keeps its next hop, got %+v", own)
	}
	if va.SID != sidA || va.Structure != transposed || va.NextHop != address(1) || va.Behavior != 18 || !slices.Equal(va.RTs, []vpn.ID{rt}) ||
		va.ASPath != message.MakeASPath(65001, 64999) || va.MED != 5 || va.LocalPref != 200 {
		t.Errorf("transposed vpn route: %+v", va)
	}
	if vb.SID != sidB || vb.Structure != structure || !slices.Equal(vb.RTs, []vpn.ID{rt, rt4}) || vb.LocalPref != 100 {
		t.Errorf("vpn route: %+v", vb)
	}

	// A change of the transposed bits alone must be reported.
	asbr.must(asbr.OriginateVPN([]VPNRoute{{RD: rdA, Prefix: net1, NextHop: address(1), RTs: []vpn.ID{rt}, SID: sidB, Structure: transposed, Behavior: 18,
		Attributes: Attributes{ASPath: message.MakeASPath(65001, 64999), MED: 5, HasMED: true, LocalPref: 200, Communities: []uint32{1}}}}))
	server.wait("new sid", func() bool { return server.vpn[VPNKey{rdA, net1}].SID == sidB })

	// No transit: each upstream receives only our own prefix with our address as next hop.
	for _, r := range []*router{a, b} {
		r.wait("our prefix", func() bool { return len(r.adjIn["r1"]) > 0 })
		r.mu.Lock()
		got := r.adjIn["r1"]
		if u, ok := got[prefix("2001:db8:8000::/33")]; len(got) != 1 || !ok || u.NextHop != address(1) || u.ASPath != message.MakeASPath(65000) {
			t.Errorf("router %d received %v", r.n, got)
		}
		r.mu.Unlock()
	}

	// One route is withdrawn, then a whole session ends; the best path moves to the other
	// transit.
	a.must(a.Withdraw(net2, prefix("2a00:ffff::/32")))
	asbr.wait("withdrawal", func() bool { return len(asbr.adjIn["r4"]) == 1 })
	server.wait("withdrawal", func() bool { _, ok := server.unicast[net2]; return !ok })
	asbr.must(asbr.WithdrawVPN([]VPNKey{{rdB, net1}}))
	server.wait("vpn withdrawal", func() bool { return len(server.vpn) == 1 })
	a.must(a.Disable("r1"))
	a.must(a.Disable("r1"))
	asbr.wait("session end", func() bool { return !asbr.up["r4"] && asbr.downs["r4"] != "" })
	server.wait("other path", func() bool { return server.unicast[net1].ASPath == message.MakeASPath(4200000002) })
	a.wait("our own session end", func() bool { return !a.up["r1"] })
	if st := a.Neighbors()[0]; st.Up || !st.Disabled || st.Reason != "disabled" {
		t.Errorf("state of a disabled neighbor: %+v", st)
	}
	began = time.Now()
	a.must(a.Enable("r1"))
	a.must(a.Enable("r1"))
	asbr.wait("session again", func() bool { return asbr.up["r4"] && len(asbr.adjIn["r4"]) == 1 })
	t.Logf("session back %v after enabling", time.Since(began))

	// The withdrawals precede the end of the session.
	asbr.mu.Lock()
	w, d := slices.Index(asbr.log, "r4 2a00:1::/32 withdrawn=true"), slices.Index(asbr.log, "r4 up=false")
	asbr.mu.Unlock()
	if w < 0 || w > d {
		t.Errorf("withdrawal at %d, session end at %d", w, d)
	}

	// A reset from our side.
	asbr.mu.Lock()
	asbr.log = nil
	asbr.mu.Unlock()
	began = time.Now()
	asbr.must(asbr.Reset("r4"))
	asbr.wait("down", func() bool { return slices.Contains(asbr.log, "r4 up=false") })
	asbr.wait("session again", func() bool { return asbr.up["r4"] && len(asbr.adjIn["r4"]) == 1 })
	t.Logf("session back %v after a reset", time.Since(began))
	if got := asbr.downs["r4"]; got != "reset" {
		t.Errorf("reason %q", got)
	}

	// The reflector stops: all routes received from it are withdrawn.
	rr.Stop()
	server.wait("reflector gone", func() bool { return !server.up["r2"] && len(server.unicast) == 0 && len(server.vpn) == 0 })
	asbr.wait("transit stays", func() bool { return asbr.up["r4"] && asbr.up["r5"] })

	asbr.must(asbr.DeleteNeighbor("r5"))
	asbr.wait("neighbor deleted", func() bool { return !asbr.up["r5"] && len(asbr.adjIn["r5"]) == 0 })
	if n := len(asbr.Neighbors()); n != 2 {
		t.Errorf("%d neighbors are left", n)
	}
}

// TestReplacedNeighborEnds: the end of a deleted neighbor's session is reported even if a neighbor
// with the same address is added at once.
func TestReplacedNeighborEnds(t *testing.T) {
	a, b := newRouter(t, 28, 65000), newRouter(t, 29, 65000)
	b.peer(a, passive)
	a.peer(b)
	const name = "r29"
	a.wait("session", func() bool { return a.up[name] })
	a.must(a.DeleteNeighbor(name))
	a.peer(b)
	a.wait("the old session's end", func() bool { return slices.Contains(a.log, name+" up=false") })
	a.wait("the new session", func() bool { return a.up[name] })
}

// TestKindsOfSession opens sessions of all kinds in parallel, because each takes two seconds.
func TestKindsOfSession(t *testing.T) {
	md5, md5Peer := newRouter(t, 8, 65000), newRouter(t, 9, 65000)
	both, bothPeer := newRouter(t, 10, 65000), newRouter(t, 11, 65000)
	local := newRouterWith(t, 18, 65000, func(o *Options) { o.Listen, o.Port, o.Report = nil, 1179, ReportBest|ReportAdjIn })
	localPeer := newRouterWith(t, 19, 65001, func(o *Options) { o.Listen, o.NoListen = nil, true })

	secret := func(n *Neighbor) { n.Password = "s3cret" }
	md5Peer.peer(md5, passive, secret)
	md5.peer(md5Peer, secret)

	bothPeer.peer(both)
	both.peer(bothPeer)

	between := func(from, to string) func(*Neighbor) {
		return func(n *Neighbor) { n.LocalAddress, n.Address, n.Interface, n.Port = addr(from), addr(to), "lo", 1179 }
	}
	local.peer(localPeer, between("fe80::1", "fe80::2"), passive)
	localPeer.peer(local, between("fe80::2", "fe80::1"))
	p := prefix("2a00:1::/32")
	localPeer.must(localPeer.Originate(UnicastRoute{Prefix: p}))

	md5.wait("session with password", func() bool { return md5.up["r9"] })
	both.wait("session that both open", func() bool { return both.up["r11"] })
	bothPeer.wait("session that both open", func() bool { return bothPeer.up["r10"] })
	// A link-local next hop includes its zone.
	local.wait("route", func() bool { return local.adjIn["r19"][p].NextHop == addr("fe80::2%lo") })
	local.wait("best path", func() bool { return local.unicast[p].NextHop == addr("fe80::2%lo") })
}

func TestRestartedNeighbor(t *testing.T) {
	r, other := newRouter(t, 12, 65000), newRouter(t, 13, 65000)
	r.peer(other, passive)
	other.peer(r)
	r.wait("session", func() bool { return r.up["r13"] })
	other.Stop()
	r.wait("down", func() bool { return !r.up["r13"] })
	began := time.Now()
	again := newRouter(t, 13, 65000)
	again.peer(r)
	r.wait("session", func() bool { return r.up["r13"] })
	t.Logf("session with a restarted neighbor after %v", time.Since(began))
}

func TestPortInUse(t *testing.T) {
	r := newRouter(t, 14, 65000)
	opt := r.opt
	s, err := New(opt)
	r.must(err)
	err = s.Start()
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"start bgp speaker", "fd00::e", "179", "another BGP speaker"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	s.Stop()
	if err := s.Originate(UnicastRoute{Prefix: prefix("2001:db8::/32")}); err == nil {
		t.Error("a speaker that never ran originates a route")
	}
}

func TestStopTwice(t *testing.T) {
	r := newRouter(t, 15, 65000)
	r.Stop()
	r.Stop()
	if err := r.Start(); err == nil {
		t.Error("a stopped speaker starts again")
	}
	if err := r.AddNeighbor(Neighbor{}); err == nil {
		t.Error("a stopped speaker takes a neighbor")
	}
}
