package openplane

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gaissmai/bart"
	program "github.com/tabane/tabane/internal/gateway/openbpf"

	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/testkit/heap"
)

// kernel is the sessions of a program.
type kernel struct {
	t        *testing.T
	now      func() time.Duration
	sessions map[natFlow]program.Session
	used     map[natFlow]time.Duration
	reads    int // of all sessions
}

func newKernel(t *testing.T, now func() time.Duration) *kernel {
	return &kernel{t: t, now: now, sessions: map[natFlow]program.Session{}, used: map[natFlow]time.Duration{}}
}

func (k *kernel) SetSession(peer int, f tunnel.Flow, open bool) error {
	k.sessions[natKey(peer, f)] = program.Session{Flow: f, Peer: peer, Open: open}
	k.used[natKey(peer, f)] = k.now()
	return nil
}

func (k *kernel) DeleteSession(peer int, f tunnel.Flow) error {
	delete(k.sessions, natKey(peer, f))
	return nil
}

func (k *kernel) Sessions(do func(program.Session)) {
	k.reads++
	for key, s := range maps.Clone(k.sessions) {
		s.Idle = k.now() - k.used[key]
		do(s)
	}
}

// gateways are two that agree on sessions, with a channel that loses what is in it at a change of
// keys.
type gateways struct {
	t       *testing.T
	now     time.Duration
	kernels [2]*kernel
	nats    [2]*nat
	pipes   [2][]tunnel.NATSession // to gateway i
	down    bool
}

var (
	prefixes = [2]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	names    = [2]string{"one", "two"}
)

const peerNumber = 5 // of either at the other

func newGateways(t *testing.T) *gateways {
	g := &gateways{t: t, now: time.Hour}
	for i := range g.nats {
		g.kernels[i] = newKernel(t, func() time.Duration { return g.now })
		g.start(i)
	}
	return g
}

// start starts the daemon of a gateway with what its kernel has.
func (g *gateways) start(i int) {
	n := newNAT(g.kernels[i], slog.New(slog.DiscardHandler))
	n.clock = func() time.Duration { return g.now }
	n.send = func(peer string, r tunnel.NATSession) bool {
		if peer != names[1-i] || g.down || len(g.pipes[1-i]) > 50 {
			return false
		}
		r.Flows = slices.Clone(r.Flows)
		g.pipes[1-i] = append(g.pipes[1-i], r)
		return true
	}
	peers := map[string]natPeer{names[1-i]: {number: peerNumber, prefixes: []netip.Prefix{prefixes[1-i]}}}
	if err := n.configure(peers, ownersOf(peers), []netip.Prefix{prefixes[i]}); err != nil {
		g.t.Fatal(err)
	}
	if err := n.takeOver(); err != nil {
		g.t.Fatal(err)
	}
	g.nats[i] = n
	n.up(names[1-i])
}

// ownersOf returns whose the peers' prefixes are; addresses of nobody are without.
func ownersOf(peers map[string]natPeer, nobody ...netip.Prefix) *bart.Table[string] {
	owners := new(bart.Table[string])
	for name, p := range peers {
		for _, prefix := range p.prefixes {
			owners.Insert(prefix, name)
		}
	}
	for _, prefix := range nobody {
		owners.Insert(prefix, "")
	}
	return owners
}

// TestNATSources: a peer whose prefix is around the LAN's gets no sessions of flows from the LAN,
// from special-purpose space, or to what it may not reach; sessions that a new configuration does
// not permit end.
func TestNATSources(t *testing.T) {
	now := time.Hour
	k := newKernel(t, func() time.Duration { return now })
	n := newNAT(k, slog.New(slog.DiscardHandler))
	n.clock, n.send = func() time.Duration { return now }, func(string, tunnel.NATSession) bool { return true }
	lan := netip.MustParsePrefix("10.1.0.0/16")
	configure := func(allow ...netip.Prefix) {
		t.Helper()
		peers := map[string]natPeer{"hub": {number: 1, prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, allow: allow}}
		if err := n.configure(peers, ownersOf(peers, lan, netip.MustParsePrefix("127.0.0.0/8")), []netip.Prefix{lan}); err != nil {
			t.Fatal(err)
		}
	}
	granted := func(from, to string) bool {
		t.Helper()
		f := tunnel.Flow{Protocol: 17, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to)}
		if err := n.take("hub", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
			t.Fatal(err)
		}
		s := n.sessions[natKey(1, f)]
		return s != nil && s.source() == f.Source.Addr()
	}
	configure()
	for from, want := range map[string]bool{"10.2.0.1:1": true, "203.0.113.1:2": true, "10.1.0.9:3": false, "127.0.0.1:4": false} {
		if got := granted(from, "10.1.0.1:53"); got != want {
			t.Errorf("a session of a flow from %s: %t", from, got)
		}
	}
	if !granted("10.2.0.1:1", "10.1.7.1:53") {
		t.Error("no session with another host")
	}
	before := n.count()["hub"].Receiving
	configure(netip.MustParsePrefix("10.1.0.0/24"))
	if got := n.count()["hub"].Receiving; got != before-1 {
		t.Errorf("%d sessions of %d are left", got, before)
	}
	if granted("10.2.0.1:2", "10.1.7.1:53") || !granted("10.2.0.1:2", "10.1.0.7:53") {
		t.Error("sessions are not granted as allowed")
	}
}

// deliver has a gateway take what has arrived.
func (g *gateways) deliver(i int) {
	for len(g.pipes[i]) > 0 {
		r := g.pipes[i][0]
		g.pipes[i] = g.pipes[i][1:]
		if err := g.nats[i].take(names[1-i], r); err != nil {
			g.t.Fatal(err)
		}
	}
	g.nats[i].flush()
}

// settle delivers everything.
func (g *gateways) settle() {
	for range 8 {
		for i := range g.nats {
			g.nats[i].flush()
			g.deliver(i)
		}
	}
}

// packet is one of a flow from a host of gateway i. It returns the source that the far host sees,
// invalid if the packet is sealed or dropped.
func (g *gateways) packet(i int, f tunnel.Flow) netip.Addr {
	key := natKey(program.This, f)
	s, ok := g.kernels[i].sessions[key]
	if !ok {
		g.nats[i].want(peerNumber, f)
		return netip.Addr{}
	}
	if !s.Open || s.Flow.Source != f.Source {
		return netip.Addr{}
	}
	g.kernels[i].used[key] = g.now
	far := natKey(peerNumber, f)
	r, ok := g.kernels[1-i].sessions[far]
	if !ok || !r.Open {
		return netip.Addr{}
	}
	g.kernels[1-i].used[far] = g.now
	return r.Flow.Source.Addr()
}

func flowFrom(i int, host, port byte) tunnel.Flow {
	from, to := prefixes[i].Addr().As4(), prefixes[1-i].Addr().As4()
	from[3], to[3] = host, 1
	return tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(netip.AddrFrom4(from), uint16(port)), Destination: netip.AddrPortFrom(netip.AddrFrom4(to), 53)}
}

// TestNATSession: NAT, OK, packets in both directions, FIN after 3 minutes, and nothing is left.
func TestNATSession(t *testing.T) {
	g := newGateways(t)
	f, other := flowFrom(0, 1, 1), flowFrom(0, 2, 1)
	g.settle()
	if a := g.packet(0, f); a.IsValid() {
		t.Error("the first packet has a session")
	}
	g.packet(0, f) // asks only once
	g.settle()
	if a := g.packet(0, f); a != f.Source.Addr() {
		t.Errorf("the peer restores %v", a)
	}
	if a := g.packet(0, other); a.IsValid() {
		t.Errorf("a flow that differs in the source alone is translated to %v", a)
	}
	if n := g.nats[0].count()["two"]; n.Sending != 1 || n.Receiving != 0 {
		t.Errorf("%+v", n)
	}
	g.now += natSilence + time.Second
	if err := g.nats[0].scan(); err != nil {
		t.Fatal(err)
	}
	if a := g.packet(0, f); a.IsValid() {
		t.Error("a session that ends has packets")
	}
	g.settle()
	for i, k := range g.kernels {
		if len(k.sessions)+len(g.nats[i].sessions) > 0 || g.nats[i].sending != 0 {
			t.Errorf("gateway %d keeps %v", i, k.sessions)
		}
	}
	// The place is free.
	g.packet(0, other)
	g.settle()
	if a := g.packet(0, other); a != other.Source.Addr() {
		t.Errorf("the peer restores %v", a)
	}
}

// TestNATRefuses: sessions for flows that are not the peer's, or collide, are refused, and records
// about flows of others change nothing.
func TestNATRefuses(t *testing.T) {
	g := newGateways(t)
	g.settle()
	mine, far := flowFrom(0, 1, 1), flowFrom(1, 1, 1)
	g.packet(0, mine)
	g.settle()
	colliding := mine
	colliding.Source = netip.AddrPortFrom(mine.Source.Addr().Next(), mine.Source.Port())
	stranger, elsewhere := mine, mine
	stranger.Source = netip.MustParseAddrPort("10.9.0.1:1")
	elsewhere.Destination = netip.MustParseAddrPort("10.9.0.1:1")
	before := len(g.kernels[1].sessions)
	for _, f := range []tunnel.Flow{colliding, stranger, elsewhere, far} {
		if err := g.nats[1].take("one", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []tunnel.Command{tunnel.CommandOK, tunnel.CommandFIN, tunnel.CommandFINOK, tunnel.CommandRefused, 99} {
		for _, f := range []tunnel.Flow{colliding, stranger, elsewhere, far} {
			if err := g.nats[1].take("one", tunnel.NATSession{Command: c, Flows: []tunnel.Flow{f}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(g.kernels[1].sessions) != before {
		t.Errorf("sessions: %v", g.kernels[1].sessions)
	}
	g.pipes[0] = nil
	if a := g.packet(0, mine); a != mine.Source.Addr() {
		t.Errorf("the peer restores %v", a)
	}
}

// TestNATIsBounded: there are never more sessions than the program has room for; those that are
// idle for longest end.
func TestNATIsBounded(t *testing.T) {
	g := newGateways(t)
	const most = 3000
	for _, n := range g.nats {
		n.maxSessions = most
	}
	g.settle()
	flow := func(n int) tunnel.Flow {
		f := flowFrom(0, byte(n>>16)+1, 0)
		f.Source = netip.AddrPortFrom(f.Source.Addr(), uint16(n))
		f.Destination = netip.AddrPortFrom(f.Destination.Addr(), uint16(n>>16)+1)
		return f
	}
	for n := range most {
		g.packet(0, flow(n))
		if n%1000 == 0 {
			g.now += time.Millisecond
			g.settle()
		}
	}
	g.settle()
	if got := g.nats[0].count()["two"].Sending; got != most {
		t.Fatalf("%d sessions", got)
	}
	g.now += time.Second
	g.packet(0, flow(0)) // used again
	g.packet(0, flow(most))
	g.settle()
	g.packet(0, flow(most))
	g.settle()
	if a := g.packet(0, flow(most)); !a.IsValid() {
		t.Error("a new flow has no session")
	}
	if a := g.packet(0, flow(0)); !a.IsValid() {
		t.Error("the session used last has ended")
	}
	for i, n := range g.nats {
		if len(g.kernels[i].sessions) > most || n.sending > most {
			t.Errorf("gateway %d has %d sessions", i, len(g.kernels[i].sessions))
		}
	}
}

// TestNATEvicts: where there is no room, new flows end a 64th of the sessions at a time, and those
// that were asked for in vain, however many flows there are and whatever the peer answers.
func TestNATEvicts(t *testing.T) {
	const most = 6400
	flow := func(n int) tunnel.Flow {
		f := flowFrom(0, 1, 0)
		f.Source = netip.AddrPortFrom(f.Source.Addr(), uint16(n))
		return f
	}
	for _, answers := range []bool{true, false} {
		g := newGateways(t)
		for _, n := range g.nats {
			n.maxSessions = most
		}
		g.settle()
		for n := range most {
			g.packet(0, flow(n))
			if answers && n%1000 == 0 {
				g.settle()
			}
		}
		if answers {
			g.settle()
		}
		g.kernels[0].reads = 0
		for n := range 20_000 {
			g.packet(0, flow(most+n%1000))
		}
		if reads := g.kernels[0].reads; reads > 20_000*64/most {
			t.Errorf("the peer answers: %v: packets of 1000 flows without room read all sessions %d times", answers, reads)
		}
		if !answers {
			continue
		}
		if n := g.nats[0].count()["two"].Sending; n != most-most/64 {
			t.Errorf("%d sessions are left of %d", n, most)
		}
		g.settle()
		g.packet(0, flow(most))
		g.settle()
		if a := g.packet(0, flow(most)); !a.IsValid() {
			t.Error("a new flow has no session")
		}
		if n := g.nats[0]; n.evicting != 0 || n.sending != most-most/64+1 {
			t.Errorf("%d sessions, %d of them end", n.sending, n.evicting)
		}
	}
}

// TestNATLyingPeer: a peer that sends more records than are taken, and takes no answer, occupies
// bounded room, and the sessions of other flows stay.
func TestNATLyingPeer(t *testing.T) {
	g := newGateways(t)
	g.settle()
	mine, far := flowFrom(0, 1, 1), flowFrom(1, 1, 1)
	g.packet(0, mine)
	g.settle()
	n := g.nats[0]
	g.down = true
	for range 20 * natArrived {
		n.receive("two", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{far}})
		n.receive("two", tunnel.NATSession{Command: tunnel.CommandFIN, Flows: []tunnel.Flow{far}})
	}
	if held := len(n.arrived["two"]); held != natArrived {
		t.Errorf("%d records are held", held)
	}
	for range 3 * natWaiting / natArrived {
		for range natArrived / 2 {
			n.receive("two", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{far}})
			n.receive("two", tunnel.NATSession{Command: tunnel.CommandFIN, Flows: []tunnel.Flow{far}})
		}
		n.takeArrived()
	}
	if held := len(n.waiting["two"]); held != natWaiting {
		t.Errorf("%d answers are held", held)
	}
	if a := g.packet(0, mine); a != mine.Source.Addr() {
		t.Errorf("the peer restores %v", a)
	}
	// A reset is never dropped, and ends what was before it.
	for range 2 * natArrived {
		n.receive("two", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{far}})
	}
	n.receive("two", tunnel.NATSession{Command: tunnel.CommandReset})
	if n.takeArrived(); len(n.sessions) > 0 || len(n.of) > 0 || n.sending != 0 {
		t.Errorf("after a reset there are %v", n.sessions)
	}
	for g.down = false; len(n.waiting) > 0; {
		g.settle()
	}
	g.packet(0, mine)
	g.settle()
	if a := g.packet(0, mine); a != mine.Source.Addr() {
		t.Errorf("the peer restores %v in the end", a)
	}
}

// TestNATAtRandom: after losses, and restarts of either gateway with or without its state, no
// packet reaches a host with the source of another one, and in the end each flow has a session.
func TestNATAtRandom(t *testing.T) {
	g := newGateways(t)
	r := rand.New(rand.NewPCG(12, 8))
	arrived := 0
	for range 100000 {
		i := r.IntN(2)
		switch r.IntN(40) {
		default:
			f := flowFrom(i, byte(1+r.IntN(3)), byte(r.IntN(4)))
			switch a := g.packet(i, f); {
			case a == f.Source.Addr():
				arrived++
			case a.IsValid():
				t.Fatalf("a packet of %v arrives as one of %v", f, a)
			}
		case 0, 1, 2, 3, 4, 5, 6, 7:
			g.deliver(i)
		case 8, 9, 10:
			g.now += time.Duration(r.Int64N(int64(10 * time.Second)))
			if err := g.nats[i].scan(); err != nil {
				t.Fatal(err)
			}
			g.nats[i].flush()
		case 11: // new keys
			if r.IntN(4) == 0 {
				g.pipes = [2][]tunnel.NATSession{}
			}
		case 12: // killed
			if r.IntN(10) == 0 {
				g.pipes = [2][]tunnel.NATSession{}
				g.start(i)
			}
		case 13: // stopped
			if r.IntN(10) == 0 {
				g.pipes = [2][]tunnel.NATSession{}
				g.kernels[i].sessions = map[natFlow]program.Session{}
				g.start(i)
			}
		case 14:
			if r.IntN(10) == 0 {
				g.now += natSilence
			}
		case 15:
			g.down = r.IntN(10) == 0
		}
	}
	if arrived < 1000 {
		t.Errorf("%d packets arrived", arrived)
	}
	g.down = false
	for range 200 {
		g.now += natForget / 50
		for i := range g.nats {
			if err := g.nats[i].scan(); err != nil {
				t.Fatal(err)
			}
		}
		g.settle()
	}
	for i := range g.nats {
		for port := range byte(4) {
			f := flowFrom(i, 1, port)
			g.packet(i, f)
			g.settle()
			if a := g.packet(i, f); a != f.Source.Addr() {
				t.Errorf("%v has no session in the end", f)
			}
		}
	}
}

// TestNATShares: a peer that asks for as many sessions as there are gets what others leave, and
// each of the others its share, in whatever order they ask. Sessions in use stay longest.
func TestNATShares(t *testing.T) {
	const most, peers = 6400, 4
	now := time.Hour
	k := newKernel(t, func() time.Duration { return now })
	n := newNAT(k, slog.New(slog.DiscardHandler))
	n.maxSessions, n.clock = most, func() time.Duration { return now }
	n.send = func(string, tunnel.NATSession) bool { return true }
	lan := netip.MustParsePrefix("10.9.0.0/16")
	all := map[string]natPeer{}
	for i := range peers {
		all[string(rune('a'+i))] = natPeer{number: i, prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)}}
	}
	if err := n.configure(all, ownersOf(all), []netip.Prefix{lan}); err != nil {
		t.Fatal(err)
	}
	ask := func(peer, flow int) bool {
		f := tunnel.Flow{
			Protocol: 17, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(peer), 0, 1}), uint16(flow)),
			Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, 1}), 53),
		}
		now += time.Millisecond
		if err := n.take(string(rune('a'+peer)), tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
			t.Fatal(err)
		}
		n.flush()
		_, ok := k.sessions[natKey(peer, f)]
		return ok
	}
	for i := range 2 * most {
		if got := ask(0, i); got != (i < most) {
			t.Fatalf("request %d of the only peer: %v", i, got)
		}
	}
	const share = most / peers
	for i := range share {
		for peer := 1; peer < peers; peer++ {
			if !ask(peer, i) {
				t.Fatalf("request %d of peer %d, with fewer than its share, is refused", i, peer)
			}
			ask(0, 2*most+i*peers+peer) // the first one goes on asking
		}
	}
	if k.reads > 200 {
		t.Errorf("all sessions were read %d times", k.reads)
	}
	for peer := range peers {
		if got := n.receiving[string(rune('a'+peer))]; got != share {
			t.Errorf("peer %d has %d sessions, its share is %d", peer, got, share)
		}
		if ask(peer, 60_000) {
			t.Errorf("peer %d gets more than its share while all are in use", peer)
		}
	}
	if !ask(1, share-1) || ask(0, 1) {
		t.Error("sessions that have been idle for longest are kept, others are not")
	}
	if c := n.count()["a"]; c.Evicted < most-share || c.Declined == 0 || c.Receiving != share {
		t.Errorf("counts of the peer that asks for all: %+v", c)
	}
	if len(k.sessions) > most || len(n.sessions) != len(k.sessions) {
		t.Errorf("%d sessions, the program has %d", len(n.sessions), len(k.sessions))
	}
}

// TestNATHosts: a host that asks for as many sessions as there are keeps no other host of its side
// from one, in either direction; what has no room is counted.
func TestNATHosts(t *testing.T) {
	const most = 6400
	now := time.Hour
	k := newKernel(t, func() time.Duration { return now })
	n := newNAT(k, slog.New(slog.DiscardHandler))
	n.maxSessions, n.clock = most, func() time.Duration { return now }
	n.send = func(string, tunnel.NATSession) bool { return true }
	lan, far := netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")
	peers := map[string]natPeer{"far": {number: 3, prefixes: []netip.Prefix{far}}}
	if err := n.configure(peers, ownersOf(peers), []netip.Prefix{lan}); err != nil {
		t.Fatal(err)
	}
	flow := func(from, to netip.Prefix, host, number int) tunnel.Flow {
		address := func(p netip.Prefix, host int) netip.Addr {
			b := p.Addr().As4()
			b[2], b[3] = byte(host>>8), byte(host)
			return netip.AddrFrom4(b)
		}
		return tunnel.Flow{
			Protocol: 17, Source: netip.AddrPortFrom(address(from, host), uint16(number)),
			Destination: netip.AddrPortFrom(address(to, 1+number>>16), uint16(host)),
		}
	}
	for _, sends := range []struct {
		name     string
		repeated int // most asks that need a repetition: until the sessions of an eviction have ended
		ask      func(host, number int) bool
	}{
		{"from the peer", 0, func(host, number int) bool {
			f := flow(far, lan, host, number)
			if err := n.take("far", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
				t.Fatal(err)
			}
			s := n.sessions[natKey(3, f)]
			return s != nil && s.source() == f.Source.Addr()
		}},
		{"to the peer", (200 + most/64 - 1) / (most / 64), func(host, number int) bool {
			f := flow(lan, far, host, number)
			n.want(3, f)
			for k, s := range maps.Clone(n.sessions) { // the peer agrees to all
				c := tunnel.CommandOK
				switch {
				case k.peer != program.This || s.state == natOpen:
					continue
				case s.state == natEnding:
					c = tunnel.CommandFINOK
				}
				if err := n.take("far", tunnel.NATSession{Command: c, Flows: []tunnel.Flow{k.from(s.source())}}); err != nil {
					t.Fatal(err)
				}
			}
			return n.sessions[natKey(program.This, f)] != nil
		}},
	} {
		t.Run(sends.name, func(t *testing.T) {
			for number := range most + 64 {
				now += time.Millisecond
				if sends.name == "to the peer" && number < most {
					n.want(3, flow(lan, far, 1, number)) // the peer agrees to all later
				} else {
					sends.ask(1, number)
				}
			}
			repeated := 0
			for host := range 200 {
				now += time.Millisecond
				if sends.ask(2+host, 1) {
					continue
				}
				repeated++
				if !sends.ask(2+host, 1) {
					t.Errorf("host %d has no session", host)
				}
			}
			if repeated > sends.repeated {
				t.Errorf("%d hosts got a session only the second time, more than %d", repeated, sends.repeated)
			}
			for host := range 200 {
				now += time.Millisecond
				sends.ask(1, 10000+host)
				if !sends.ask(2+host, 1) {
					t.Fatalf("host %d has lost its session", host)
				}
			}
			if c := n.count()["far"]; c.Evicted == 0 || c.Receiving > most || c.Sending > most {
				t.Errorf("%+v", c)
			}
		})
	}
	if n.count()["far"].Full == 0 {
		t.Error("nothing without room is counted")
	}
	for k := range maps.Clone(n.sessions) {
		if err := n.drop(k); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.hosts)+len(n.of)+n.sending+len(n.receiving) > 0 {
		t.Errorf("without sessions there are hosts %v, peers %v", n.hosts, n.of)
	}
}

// noKernel has no sessions.
type noKernel struct{}

func (noKernel) SetSession(int, tunnel.Flow, bool) error { return nil }
func (noKernel) DeleteSession(int, tunnel.Flow) error    { return nil }
func (noKernel) Sessions(func(program.Session))          {}

// natBytes bounds the memory of a session beside its slot of the program's table, with the room
// that maps have to grow.
const natBytes = 320

// TestNATMemory: sessions take no more memory than documented.
func TestNATMemory(t *testing.T) {
	const sessions = 60_000
	n := newNAT(noKernel{}, slog.New(slog.DiscardHandler))
	n.send = func(string, tunnel.NATSession) bool { return true }
	peers := map[string]natPeer{"far": {number: 3, prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	if err := n.configure(peers, ownersOf(peers), []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	before := heap.InUse()
	for i := range sessions {
		f := tunnel.Flow{
			Protocol: 17, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(i)),
			Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, 1}), uint16(i>>16)),
		}
		if err := n.take("far", tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
			t.Fatal(err)
		}
		n.flush()
	}
	took := int(heap.InUse()-before) / sessions
	t.Logf("%d bytes for each session", took)
	if took > natBytes || len(n.sessions) != sessions {
		t.Errorf("%d sessions take %d bytes each, more than %d", len(n.sessions), took, natBytes)
	}
	runtime.KeepAlive(n)
}

// TestNATRefusesBeforeRoom: requests for flows that a peer may not send end no session of others,
// and are not counted as without room.
func TestNATRefusesBeforeRoom(t *testing.T) {
	const most = 128
	now := time.Hour
	k := newKernel(t, func() time.Duration { return now })
	n := newNAT(k, slog.New(slog.DiscardHandler))
	n.maxSessions, n.clock = most, func() time.Duration { return now }
	n.send = func(string, tunnel.NATSession) bool { return true }
	peers := map[string]natPeer{
		"one": {number: 1, prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		"two": {number: 2, prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
	}
	if err := n.configure(peers, ownersOf(peers), []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	ask := func(peer, from, to string, port int) {
		t.Helper()
		f := tunnel.Flow{
			Protocol: 17, Source: netip.AddrPortFrom(netip.MustParseAddr(from), uint16(port)),
			Destination: netip.AddrPortFrom(netip.MustParseAddr(to), 53),
		}
		now += time.Millisecond
		if err := n.take(peer, tunnel.NATSession{Command: tunnel.CommandNAT, Flows: []tunnel.Flow{f}}); err != nil {
			t.Fatal(err)
		}
		n.flush()
	}
	for port := range most {
		ask("one", "10.1.0.1", "10.9.0.1", 1+port)
	}
	for port := range most {
		ask("two", "10.1.0.2", "10.9.0.1", 1000+port) // the source is of the other peer
		ask("two", "10.2.0.2", "10.8.0.1", 1000+port) // the destination is not of the LAN
	}
	if c := n.count(); c["one"].Receiving != most || c["one"].Evicted != 0 || c["two"].Declined != 2*most || c["two"].Full != 0 {
		t.Errorf("after requests that are not permitted: %+v", c)
	}
	ask("two", "10.2.0.2", "10.9.0.1", 1)
	if c := n.count(); c["two"].Receiving != 1 || c["one"].Evicted == 0 {
		t.Errorf("after one that is: %+v", c)
	}
}
