package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestBFDPacket compares with what RFC 5880 section 4.1 draws.
func TestBFDPacket(t *testing.T) {
	p := bfdPacket{
		diag: bfdSignaled, state: bfdUp, poll: true, multiplier: 3, my: 0x01020304, your: 0x05060708,
		desiredTx: 50 * time.Millisecond, requiredRx: 60 * time.Millisecond,
	}
	wire := []byte{0x23, 0xe0, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0xc3, 0x50, 0, 0, 0xea, 0x60, 0, 0, 0, 0}
	if got := p.encode(); !slices.Equal(got, wire) {
		t.Errorf("got  %x\nwant %x", got, wire)
	}
	if got, err := decodeBFD(append(wire, 0xff)); err != nil || got != p {
		t.Errorf("got %+v, %v", got, err)
	}
	p.poll, p.final = false, true
	if got, err := decodeBFD(p.encode()); err != nil || got != p {
		t.Errorf("got %+v, %v", got, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":            func(b []byte) []byte { return b[:23] },
		"version":          func(b []byte) []byte { b[0] = 0x43; return b },
		"length":           func(b []byte) []byte { b[3] = 25; return b },
		"short length":     func(b []byte) []byte { b[3] = 23; return b },
		"authentication":   func(b []byte) []byte { b[1] |= 4; return b },
		"multipoint":       func(b []byte) []byte { b[1] |= 1; return b },
		"multiplier":       func(b []byte) []byte { b[2] = 0; return b },
		"no discriminator": func(b []byte) []byte { clear(b[4:8]); return b },
		"up without ours":  func(b []byte) []byte { clear(b[8:12]); return b },
	} {
		if _, err := decodeBFD(change(slices.Clone(wire))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecodeBFD(f *testing.F) {
	f.Add(bfdPacket{state: bfdUp, multiplier: 3, my: 1, your: 2, desiredTx: time.Second, requiredRx: time.Second}.encode())
	f.Add([]byte{0x20, 0x40, 3, 24})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeBFD(b)
		if err != nil {
			return
		}
		if again, err := decodeBFD(p.encode()); err != nil || again != p {
			t.Errorf("%+v came back as %+v, %v", p, again, err)
		}
		s := newBFDSession(BFD{Interval: time.Second}, p.your|1, func() float64 { return 0.5 })
		now := time.Unix(0, 0)
		s.receive(now, p)
		s.receive(now, s.packet(now, p.poll))
		if d := s.deadline(); !d.IsZero() && d.Before(now) {
			t.Errorf("the deadline %v is in the past", d)
		}
	})
}

// wire joins two sessions in made-up time: a packet is lost when drop says so, the others take the given delay.
type wire struct {
	now    time.Time
	ends   [2]*bfdSession
	flying [2][]flight // to each end
	lost   [2]int      // how often each end lost the other
	drop   func(to int) bool
	delay  time.Duration
}

type flight struct {
	at time.Time
	p  bfdPacket
}

func newWire(a, b BFD) *wire {
	half := func() float64 { return 0.5 }
	return &wire{
		now: time.Unix(1000, 0), ends: [2]*bfdSession{newBFDSession(a, 1, half), newBFDSession(b, 2, half)},
		drop: func(int) bool { return false }, delay: time.Millisecond,
	}
}

func (w *wire) send(from int, p bfdPacket) {
	to := 1 - from
	if decoded, err := decodeBFD(p.encode()); err == nil && !w.drop(to) {
		w.flying[to] = append(w.flying[to], flight{w.now.Add(w.delay), decoded})
	}
}

// run lets time pass in steps of a millisecond.
func (w *wire) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Millisecond) {
		for i, s := range w.ends {
			note := func(c bfdChange) {
				if c == bfdLost {
					w.lost[i]++
				}
			}
			for len(w.flying[i]) > 0 && !w.now.Before(w.flying[i][0].at) {
				p := w.flying[i][0].p
				w.flying[i] = w.flying[i][1:]
				c, answer := s.receive(w.now, p)
				note(c)
				if answer {
					w.send(i, s.packet(w.now, p.poll))
				}
			}
			note(s.expire(w.now))
			if due := s.due(); !due.IsZero() && !w.now.Before(due) {
				w.send(i, s.packet(w.now, false))
			}
		}
	}
}

func (w *wire) up() bool { return w.ends[0].state == bfdUp && w.ends[1].state == bfdUp }

func TestBFDFindsSilence(t *testing.T) {
	w := newWire(BFD{Interval: 50 * time.Millisecond}, BFD{Interval: 50 * time.Millisecond, Multiplier: 5})
	w.run(1200 * time.Millisecond)
	if !w.up() || w.ends[0].polling || w.ends[1].polling {
		t.Fatalf("not up: %+v, %+v", w.ends[0], w.ends[1])
	}
	// The neighbor's multiplier counts: 5 packets of 50 ms.
	w.drop = func(to int) bool { return to == 0 }
	w.run(190 * time.Millisecond)
	if !w.up() {
		t.Error("down too early")
	}
	w.run(70 * time.Millisecond)
	if w.ends[0].state == bfdUp || w.ends[0].diag != bfdExpired || w.lost[0] != 1 {
		t.Errorf("one end hears nothing: %+v", w.ends[0])
	}
	w.run(10 * time.Millisecond)
	if w.ends[1].state == bfdUp || w.ends[1].diag != bfdSignaled || w.lost[1] != 1 {
		t.Errorf("the other is told: %+v", w.ends[1])
	}
	w.drop = func(int) bool { return false }
	w.run(3 * time.Second)
	if !w.up() || w.lost != [2]int{1, 1} {
		t.Errorf("not up again: %+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
}

func TestBFDSlowerSideDecides(t *testing.T) {
	w := newWire(BFD{Interval: 20 * time.Millisecond}, BFD{Interval: 400 * time.Millisecond})
	w.run(5 * time.Second)
	if !w.up() || w.lost != [2]int{} {
		t.Fatalf("%+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
	for i, s := range w.ends {
		if got := s.detection(); got != 1200*time.Millisecond {
			t.Errorf("end %d detects after %s", i, got)
		}
	}
}

// TestBFDLossIsNoSilence: fewer losses in a row than the multiplier never end a session.
func TestBFDLossIsNoSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mult := rapid.Uint8Range(2, 6).Draw(t, "multiplier")
		b := BFD{Interval: time.Duration(rapid.IntRange(10, 200).Draw(t, "interval")) * time.Millisecond, Multiplier: mult}
		w := newWire(b, b)
		w.delay = time.Duration(rapid.IntRange(0, 5).Draw(t, "delay")) * time.Millisecond
		w.run(3 * time.Second)
		if !w.up() {
			t.Fatal("not up")
		}
		var row [2]int
		w.drop = func(to int) bool {
			// One less than the multiplier, and one interval for delay and jitter.
			if row[to] < int(mult)-2 && rapid.Bool().Draw(t, "lose") {
				row[to]++
				return true
			}
			row[to] = 0
			return false
		}
		w.run(20 * b.Interval)
		if w.lost != [2]int{} {
			t.Fatalf("lost %v", w.lost)
		}
	})
}

func TestBFDOwnStandstillIsNoSilence(t *testing.T) {
	w := newWire(BFD{Interval: 50 * time.Millisecond}, BFD{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	w.now = w.now.Add(10 * time.Second)
	for i := range w.ends {
		w.flying[i] = nil
		w.ends[i].missed(w.now)
	}
	w.run(time.Second)
	if !w.up() || w.lost != [2]int{} {
		t.Errorf("%+v, %+v, lost %v", w.ends[0], w.ends[1], w.lost)
	}
}

func TestBFDSwitchedOffIsNoFailure(t *testing.T) {
	w := newWire(BFD{Interval: 50 * time.Millisecond}, BFD{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	c, _ := w.ends[1].receive(w.now, w.ends[0].farewell(w.now))
	if c != bfdLeft || w.ends[1].state != bfdDown {
		t.Errorf("change %d, state %s", c, w.ends[1].state)
	}
	if c, _ := w.ends[1].receive(w.now, w.ends[0].packet(w.now, false)); c != bfdSame {
		t.Errorf("and again: change %d", c)
	}
}

func TestBFDForeignPacketsAreIgnored(t *testing.T) {
	w := newWire(BFD{Interval: 50 * time.Millisecond}, BFD{Interval: 50 * time.Millisecond})
	w.run(1200 * time.Millisecond)
	for _, p := range []bfdPacket{
		{state: bfdDown, multiplier: 3, my: 1, your: 77},
		{state: bfdDown, multiplier: 3, my: 77},
		{state: bfdAdminDown, multiplier: 3, my: 77},
	} {
		if c, answer := w.ends[1].receive(w.now, p); c != bfdSame || answer || w.ends[1].state != bfdUp {
			t.Errorf("%+v: change %d, state %s", p, c, w.ends[1].state)
		}
	}
}

// TestBFDEndsSessions: real speakers. What is sent to an address that nobody has any more is gone without a word.
func TestBFDEndsSessions(t *testing.T) {
	a, b := newRouter(t, 23, 65000), newRouter(t, 24, 65000)
	bfd := func(n *Neighbor) { n.BFD = BFD{Interval: 50 * time.Millisecond} }
	a.peer(b, bfd, passive)
	b.peer(a, bfd)
	p := prefix("2a00:1::/32")
	b.must(b.Originate(UnicastRoute{Prefix: p, NextHop: address(24)}))
	a.wait("route", func() bool { return len(a.unicast) == 1 })
	watching := func(r *router) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); r.Sessions()[0].BFD != "up"; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never watched: %+v", r.Sessions())
			}
		}
	}
	watching(a)
	watching(b)

	began := time.Now()
	moveAddress(t, address(24), false)
	a.wait("the end of the session", func() bool { return !a.up["r24"] && len(a.unicast) == 0 })
	t.Logf("found after %v", time.Since(began))
	b.wait("the end of the session", func() bool { return !b.up["r23"] })
	if a.downs["r24"] != bfdReason && b.downs["r23"] != bfdReason {
		t.Errorf("reasons %q and %q", a.downs["r24"], b.downs["r23"])
	}
	moveAddress(t, address(24), true)
	a.wait("the session again", func() bool { return a.up["r24"] && len(a.unicast) == 1 })
	watching(a)

	// A neighbor that stops in order, or is disabled, is no silent one.
	b.must(b.Disable(t.Context(), "r23"))
	a.wait("the end of the session", func() bool { return !a.up["r24"] })
	if a.downs["r24"] == bfdReason {
		t.Error("a session that was ended in order was ended by BFD")
	}
	b.must(b.Enable(t.Context(), "r23"))
	a.wait("the session again", func() bool { return a.up["r24"] })
	watching(a)
	a.must(a.DeleteNeighbor(t.Context(), "r24"))
	b.wait("the end of the session", func() bool { return !b.up["r23"] })
}

// TestALostLocatorIsToldFirst: when a neighbor is silent, its locator is announced as lost, and withdrawn with the rest.
func TestALostLocatorIsToldFirst(t *testing.T) {
	asbr, rr := newRouter(t, 25, 65000), newRouter(t, 26, 65000)
	server := newRouterWith(t, 27, 65000, func(o *Options) { o.Report = ReportBest })
	l := prefix("fc00:1::/32")
	bfd := BFD{Interval: 50 * time.Millisecond}
	rr.peer(asbr, client, func(n *Neighbor) { n.BFD, n.Locators = bfd, []netip.Prefix{l} })
	rr.peer(server, client)
	asbr.peer(rr, func(n *Neighbor) { n.BFD = bfd })
	server.peer(rr)
	routes := []UnicastRoute{{Prefix: l, NextHop: address(25)}}
	for i := range 2000 {
		routes = append(routes, UnicastRoute{Prefix: prefix(fmt.Sprintf("2a00:%x::/32", i)), NextHop: address(25)})
	}
	asbr.must(asbr.Originate(routes...))
	server.wait("routes", func() bool { return len(server.unicast) == len(routes) })
	for end := time.Now().Add(10 * time.Second); rr.Sessions()[0].BFD != "up"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never watched: %+v", rr.Sessions())
		}
	}
	told := make(chan int, 1) // how many routes there were when the locator was lost
	go func() {
		server.wait("word of the locator", func() bool {
			u, there := server.unicast[l]
			return !there || slices.Contains(u.Communities, Blackhole)
		})
		server.mu.Lock()
		defer server.mu.Unlock()
		told <- len(server.unicast)
	}()
	moveAddress(t, address(25), false)
	t.Logf("%d of %d routes were there when the locator was lost", <-told, len(routes))
	server.wait("the rest goes, the locator too", func() bool { return len(server.unicast) == 0 })
	moveAddress(t, address(25), true)
	server.wait("all of it again", func() bool {
		return len(server.unicast) == len(routes) && server.unicast[l].NextHop == address(25)
	})
}

// TestEndIsToldFirst: when a neighbor of another AS ends the session, what is lost with it is told by the speaker itself, which
// needs GoBGP to log the end; and not when we end it.
func TestEndIsToldFirst(t *testing.T) {
	border, rr, peer := newRouter(t, 28, 65000), newRouterWith(t, 29, 65000, func(o *Options) { o.Report = ReportBest }), newRouter(t, 30, 65001)
	sid := prefix("fc00:1:1::/128")
	rr.peer(border, client)
	border.peer(rr)
	border.peer(peer, func(n *Neighbor) { n.Locators = []netip.Prefix{sid} })
	peer.peer(border)
	peer.must(peer.Originate(UnicastRoute{Prefix: prefix("2a00::/32"), NextHop: address(30)}))
	rr.wait("routes", func() bool { return len(rr.unicast) == 1 })
	// Nobody else tells: a session that we end is told by whoever ended it.
	border.must(border.Disable(t.Context(), "r30"))
	rr.wait("no routes", func() bool { return len(rr.unicast) == 0 })
	border.must(border.Enable(t.Context(), "r30"))
	border.wait("the session", func() bool { return border.up["r30"] })
	rr.wait("routes again", func() bool { return len(rr.unicast) == 1 })

	peer.must(peer.Disable(t.Context(), "r28"))
	rr.wait("word of what is lost", func() bool { return slices.Contains(rr.unicast[sid].Communities, Blackhole) })
	border.wait("the end of the session", func() bool { return !border.up["r30"] })
	peer.must(peer.Enable(t.Context(), "r28"))
	border.wait("the session", func() bool { return border.up["r30"] })
	border.must(border.SetLost(false, sid))
	rr.wait("all as before", func() bool { return len(rr.unicast) == 1 })
}

// moveAddress takes an address from the loopback interface, or gives it back.
func moveAddress(t *testing.T, a netip.Addr, there bool) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(fmt.Sprintf("%s/128", a))
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD
	change := netlink.AddrDel
	if there {
		change = netlink.AddrAdd
	}
	if err := change(lo, addr); err != nil {
		t.Fatal(err)
	}
}
