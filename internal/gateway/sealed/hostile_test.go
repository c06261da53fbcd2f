package sealed

import (
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// TestFloodOfRecords: whatever role a peer has, and whatever authentic records it floods a gateway
// with, it gets no more messages than are answered on each path in that time, causes few messages
// in the log, and leaves a state that is bounded and sane.
func TestFloodOfRecords(t *testing.T) {
	const huge = 1<<63 - 1
	home := netip.MustParseAddrPort("127.0.0.1:9")
	for _, role := range roles {
		t.Run(role.String(), func(t *testing.T) {
			r, k := ally(t, dataplane.Alliance{Role: role, CareOf: 4, HomeAgents: []netip.AddrPort{home}}, tunnel.MaxPaths)
			log := &logged{count: map[string]int{}}
			r.log = slog.New(&limitedLog{Handler: log, now: r.plane.now})
			for i := range k.counters {
				k.counters[i] = 1000
			}
			number := uint32(0)
			reliable := func(b []byte, v tunnel.Record) []byte {
				b = tunnel.AppendNumbered(b, number, v)
				number++
				return b
			}
			b := newBatch(r.plane, 1<<16)
			line := r.links[0].line
			start := time.Now()
			for i := range 5000 {
				path := uint8(i % tunnel.MaxPaths)
				var body []byte
				for n := range 50 {
					body = tunnel.AppendRecord(body, tunnel.Probe{ID: uint64(i + n)})
				}
				far := time.Duration(1<<33) * time.Microsecond
				body = tunnel.AppendRecord(body, tunnel.Report{Path: path, Next: huge << 1, Lost: huge, Bytes: huge << 1, Base: -far, Delay: far * time.Duration(1-2*(i%2)), Jitter: far, Spread: far, Standing: far, Late: huge})
				body = tunnel.AppendRecord(body, tunnel.Answer{ID: uint64(i), Held: far})
				body = tunnel.AppendRecord(body, tunnel.Request{Path: path, Attempt: 255, Counters: make([]uint64, 1000)})
				body = tunnel.AppendRecord(body, tunnel.Progress(make([]tunnel.Lane, 1000)))
				body = tunnel.AppendRecord(body, tunnel.Ack{Number: uint32(i * 7919)})
				body = reliable(body, tunnel.PathAdd{Path: path, Up: tunnel.MaxRate, Down: tunnel.MaxRate, Cost: 1<<30 - 1, Name: strings.Repeat("n", 64)})
				body = reliable(body, tunnel.NAT{Path: path, Seen: home})
				for _, life := range []time.Duration{time.Hour, 0, time.Hour} {
					body = reliable(body, tunnel.Register{Path: path, HomeAgent: netip.AddrPortFrom(netip.IPv6Unspecified(), 0), Lifetime: life, Up: 1, Down: 1})
					body = reliable(body, tunnel.Register{Path: path, HomeAgent: home, Lifetime: life, Up: 1, Down: 1})
				}
				for code := range 3 {
					body = reliable(body, tunnel.Registered{Path: path, Code: tunnel.Code(uint8(i+code) % 140), Lifetime: time.Hour})
				}
				body = tunnel.AppendNumbered(body, number+1000, tunnel.PathRemove{Path: path})
				r.records(k, &opened{keys: k, path: path}, r.links[path].place(), body, len(body), b)
				r.learn(k, int(path), line, netip.AddrPortFrom(home.Addr(), uint16(i)|1), netip.Addr{})
				r.mu.Lock()
				r.due = 0
				r.mu.Unlock()
			}
			took := time.Since(start)
			if n, most := line.sent.value(), tunnel.MaxPaths*uint64((took+answerBurst)/answerPause)+100; n.Packets > most {
				t.Errorf("%d messages were sent in %v, want at most %d", n.Packets, took, most)
			}
			total := 0
			for _, n := range log.count {
				total += n
			}
			if total > maxLogged {
				t.Errorf("%d messages were logged: %v", total, log.count)
			}
			if r.plane.counts.dropped[dropUnexpected].Load() < 5000*50 {
				t.Errorf("counted: %v", r.plane.Status().Dropped)
			}
			s, _ := r.status(r.plane.now())
			seen := map[string]bool{}
			for _, l := range s.Links {
				if seen[l.Path] {
					t.Errorf("two paths are named %q", l.Path)
				}
				seen[l.Path] = true
				if l.Loss < 0 || l.Loss > 1 || l.Rate < 0 || l.Rate > tunnel.MaxRate || l.Delay < 0 {
					t.Errorf("path %s: %+v", l.Path, l)
				}
			}
			if len(r.plane.relays) > 1 {
				t.Errorf("%d relays", len(r.plane.relays))
			}
		})
	}
}

// TestReportsThatLie: a report of more than was sent is no evidence of a rate.
func TestReportsThatLie(t *testing.T) {
	r, k := ally(t, dataplane.Alliance{}, 1)
	l := &r.links[0]
	l.rates.up = dataplane.Rate{Estimated: true}
	l.probing.alive.Answered()
	report := func(now time.Duration, v tunnel.Report) {
		r.mu.Lock()
		defer r.mu.Unlock()
		(&controlMessage{peer: r, keys: k, now: now, sent: uint32(now / time.Microsecond)}).report(v)
		r.selection.update(now)
	}
	for i := range 200 {
		now := time.Duration(i+1) * 50 * time.Millisecond
		k.counters[0] += 10
		l.sent.add(10, 10*1000) // 1.6 Mbit/s
		report(now, tunnel.Report{Path: 0, Next: 1<<64 - 1, Lost: 1 << 63, Bytes: uint64(i+1) << 50})
	}
	if got := l.upRate(); got > 20*unit.MbitPerSecond {
		t.Errorf("the rate of a path that carries 1.6 Mbit/s is taken for %v", got)
	}
	if l.reports.last.Next != k.counters[0] || l.reports.loss.Share < 0 || l.reports.loss.Share > 1 {
		t.Errorf("next %d, loss %v", l.reports.last.Next, l.reports.loss.Share)
	}
	// What it reports later is believed.
	k.counters[0] += 10
	report(time.Minute, tunnel.Report{Path: 0, Next: k.counters[0], Bytes: 1 << 60})
	if l.reports.last.Next != k.counters[0] {
		t.Errorf("next %d, want %d", l.reports.last.Next, k.counters[0])
	}
}

// TestClockStops: a host that was suspended, or is set to another clock, has the same paths
// afterwards: within a second its peer knows again which of them is how much later.
func TestClockStops(t *testing.T) {
	for _, jump := range []time.Duration{4 * time.Second, time.Minute, 5 * time.Hour, -4 * time.Second, -5 * time.Hour, 40 * time.Minute} {
		x := new(receiving)
		k := new(keys)
		k.Session = new(handshake.Session)
		clock := time.Duration(0) // of the sender, less that of the receiver
		delays := [2]time.Duration{10 * time.Millisecond, 30 * time.Millisecond}
		var counters [2]uint64
		now := time.Duration(0)
		carry := func(lasts time.Duration) {
			for end := now + lasts; now < end; now += time.Millisecond {
				for i, d := range delays {
					if i == 1 && now%(50*time.Millisecond) != 0 {
						continue // probes alone
					}
					counters[i]++
					sent := now - d + clock
					x.measureLocked(&opened{keys: k, path: uint8(i), counter: counters[i], wire: 1000, stamp: tunnel.Stamp{Sent: uint32(sent / time.Microsecond)}}, now)
				}
			}
		}
		carry(30 * time.Second)
		clock -= jump
		carry(time.Second)
		var got [2]time.Duration
		for i := range delays {
			v, ok := x.links[i].delay.Value()
			if got[i] = v.Delay; !ok || v.Jitter > 5*time.Millisecond || v.Standing > 5*time.Millisecond || v.Spread > 5*time.Millisecond {
				t.Errorf("after %v, path %d: %+v", jump, i, v)
			}
		}
		if d := got[1] - got[0]; d < 18*time.Millisecond || d > 22*time.Millisecond {
			t.Errorf("after %v, one path is taken to be %v later, want 20 ms", jump, d)
		}
	}
}

// TestFloodBesideTraffic: packets of others go on while a peer floods the gateway with records.
func TestFloodBesideTraffic(t *testing.T) {
	hub, other := pair(t, dataplane.MaxPaths)
	attacker := hub.spokes(other, 1)[0]
	hub.run()
	other.run()
	attacker.open("tun1", attacker.state)
	eventually(t, "all paths", func() bool { return other.ready(dataplane.MaxPaths) && attacker.ready(dataplane.MaxPaths) })
	streams := []*stream{hub.stream(other, 100), other.stream(hub, 100)}
	time.Sleep(500 * time.Millisecond)

	p := attacker.plane
	p.mu.Lock()
	r := p.peers[hub.key.Public()]
	p.mu.Unlock()
	from := streams[0].sent.Load()
	before := hub.plane.Status()
	var memory [2]runtime.MemStats
	runtime.ReadMemStats(&memory[0])
	b := newBatch(p, 1<<16)
	sent, start := 0, time.Now()
	for number := uint32(0); time.Since(start) < floodTime; {
		r.mu.Lock()
		k := r.session.sending
		for i := range dataplane.MaxPaths {
			var body []byte
			body = tunnel.AppendRecord(body, tunnel.Probe{ID: uint64(number)})
			body = tunnel.AppendRecord(body, tunnel.Report{Path: uint8(i), Next: 1<<64 - 1, Bytes: 1 << 60, Jitter: time.Hour})
			body = tunnel.AppendNumbered(body, number, tunnel.PathAdd{Path: uint8(i), Down: 1, Name: strings.Repeat("n", 64)})
			body = tunnel.AppendNumbered(body, number+1, tunnel.Register{Path: uint8(i), Lifetime: time.Hour, Down: 1})
			number += 2
			if r.links[i].ready() {
				r.messages.sendRecords(b, k, i, body, 0, p.now())
				sent++
			}
		}
		b.flush()
		r.mu.Unlock()
	}
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&memory[1])
	s := hub.plane.Status()
	arrived := uint64(0)
	for i := range s.Paths {
		arrived += s.Paths[i].Received.Packets - before.Paths[i].Received.Packets
	}
	t.Logf("%.0f thousand messages were sent per second, %.0f arrived; heap %d kB more; dropped %v", float64(sent)/took.Seconds()/1e3, float64(arrived)/took.Seconds()/1e3, (int(memory[1].HeapAlloc)-int(memory[0].HeapAlloc))>>10, s.Dropped)
	for i, c := range streams {
		time.Sleep(300 * time.Millisecond)
		lasted, lost := c.outage(from)
		t.Logf("stream %d: %d of %d datagrams lost, the last after %v", i, lost, c.sent.Load()-from, lasted)
	}
	if s.Dropped[reasonNames[dropUnexpected]] == before.Dropped[reasonNames[dropUnexpected]] {
		t.Errorf("nothing was counted: %v", s.Dropped)
	}
	if more := int(memory[1].HeapAlloc) - int(memory[0].HeapAlloc); more > 64<<20 {
		t.Errorf("the heap has grown by %d MB", more>>20)
	}
	// And afterwards all paths are up.
	eventually(t, "all paths after the flood", func() bool { return other.ready(dataplane.MaxPaths) })
	last := streams[0].sent.Load()
	time.Sleep(time.Second)
	if lasted, lost := streams[0].outage(last); lost > 0 {
		t.Errorf("after the flood %d datagrams were lost, the last after %v", lost, lasted)
	}
}

const floodTime = time.Second

// TestPeerSpeaksForItsOwnSide: packets of a peer with a default route have sources of no other
// peer, of no network and address of this site, and of no special-purpose space, and destinations
// that it may reach. Others are dropped and counted.
func TestPeerSpeaksForItsOwnSide(t *testing.T) {
	a, b := pair(t, 1)
	a.state.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	a.spokes(b, 1)
	a.state.Peers[1].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16")}
	a.state.LAN.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/64")}
	a.state.Local = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("192.168.5.0/24")}
	a.run()
	b.run()
	a.up(1)
	p := a.plane
	r := p.peers[b.key.Public()]
	r.mu.Lock()
	k := r.session.sending
	r.mu.Unlock()
	number := uint64(0)
	send := func(from, to string, want reason) {
		t.Helper()
		source, destination := netip.MustParseAddr(from), netip.MustParseAddr(to)
		var b []byte
		if source.Is4() {
			b = make([]byte, 28)
			b[0], b[3], b[8], b[9] = 0x45, 28, 9, 17
			copy(b[12:], source.AsSlice())
			copy(b[16:], destination.AsSlice())
		} else {
			b = make([]byte, 48)
			b[0], b[5], b[6], b[7] = 0x60, 8, 17, 9
			copy(b[8:], source.AsSlice())
			copy(b[24:], destination.AsSlice())
		}
		delivered, dropped := p.counts.delivered.value().Packets, uint64(0)
		if want != reasons {
			dropped = a.dropped(want)
		}
		number++
		in := &buffer{data: make([]byte, smallBufferLen)}
		in.refs.Store(2)
		r.receivePackets([]opened{{keys: k, path: 0, packet: b, stamp: tunnel.Stamp{Lane: 200, Seq: tunnel.Seq(number)}, buffer: in, merged: 1}}, p.now())
		if got := p.counts.delivered.value().Packets > delivered; got != (want == reasons) || want != reasons && a.dropped(want) != dropped+1 {
			t.Errorf("from %s to %s: delivered %t, dropped %v", from, to, got, p.Status().Dropped)
		}
	}
	const host, host6 = "10.1.0.5", "fd00:1::5"
	for _, from := range []string{"10.1.0.6", "127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.7", "192.168.5.9", "10.3.0.1"} {
		send(from, host, dropSource)
	}
	for _, from := range []string{"fd00:1::6", "::1", "::", "fe80::1", "ff02::1", "::ffff:10.2.0.1"} {
		send(from, host6, dropSource)
	}
	send("10.2.0.1", host, reasons)
	send("2001:db8::1", host6, reasons)
	send("10.2.0.1", "10.9.0.1", reasons)
	for _, to := range []string{"127.0.0.1", "224.0.0.5", "255.255.255.255", "169.254.169.254", "0.0.0.0"} {
		send("10.2.0.1", to, dropDestination)
	}
	for _, to := range []string{"::1", "fe80::1", "ff02::1"} {
		send("2001:db8::1", to, dropDestination)
	}
	a.state.Peers[0].Allow = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	if err := p.Apply(a.state); err != nil {
		t.Fatal(err)
	}
	send("10.2.0.1", host, reasons)
	send("10.2.0.1", "10.1.1.5", dropDestination)
	send("2001:db8::1", host6, dropDestination)
	// The host has another address now.
	a.state.Local = append(a.state.Local, netip.MustParsePrefix("10.2.0.1/32"))
	if err := p.Apply(a.state); err != nil {
		t.Fatal(err)
	}
	send("10.2.0.1", host, dropSource)
}
