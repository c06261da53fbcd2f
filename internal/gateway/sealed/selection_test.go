package sealed

import (
	"encoding/binary"
	"log/slog"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// TestHarmfulPathRests: two paths together bring a tenth of what the first one brings alone. The
// second rests within 5 s, for auto only, and what was copied does not count.
func TestHarmfulPathRests(t *testing.T) {
	r := &peer{plane: &Plane{}, log: slog.New(slog.DiscardHandler), scheduling: scheduling{paths: make([]sched.Path, tunnel.MaxPaths)[:2]}}
	r.connectParts()
	for i := range r.scheduling.paths {
		r.scheduling.paths[i] = sched.Path{Usable: true, Room: math.MaxInt, Rate: 20 * unit.MbitPerSecond, Delay: time.Duration(i) * time.Millisecond}
	}
	const look = 50 * time.Millisecond
	rested := time.Duration(0)
	for now := look; now < 10*time.Second; now += look {
		bytes := uint64(20_000_000 / 8 / 20) // in 50 ms
		if !r.scheduling.paths[1].Resting {
			bytes /= 10
			r.selection.lost++
			r.selection.elastic++
		} else if rested == 0 {
			rested = now
		}
		r.links[0].reports.last.Bytes += 2 * bytes
		r.selection.copied += bytes
		r.selection.update(now)
	}
	if rested == 0 || rested > 5*time.Second {
		t.Fatalf("the second path rests after %v", rested)
	}
	if r.scheduling.paths[0].Resting {
		t.Error("the first path rests, too")
	}
	if d := r.selection.decision; d.Reason != pathset.Better || d.Against > 3*unit.MbitPerSecond || d.Rate < 19*unit.MbitPerSecond || d.Rate > 21*unit.MbitPerSecond {
		t.Errorf("%+v: %s", d, d.Explain(nil))
	}
	for _, name := range []string{dataplane.Auto, "dq"} {
		u, err := newScheduler(dataplane.Discipline{Name: name}, &r.scheduling.queues)
		if err != nil {
			t.Fatal(err)
		}
		var used sched.Set
		for range 100 {
			used |= u.Next(r.scheduling.paths, sched.Segment{Now: time.Minute, Size: 1400, Kind: sched.Bulk, Version: r.selection.version})
		}
		if alone := used == sched.One(0); alone != (name == dataplane.Auto) {
			t.Errorf("%s sends over %b", name, used)
		}
		r.scheduling.queues = sched.Queues{}
	}
}

// TestEstimatedRate: the rate of a path without a configured one follows what arrives.
func TestEstimatedRate(t *testing.T) {
	r := &peer{plane: &Plane{}, log: slog.New(slog.DiscardHandler), scheduling: scheduling{paths: make([]sched.Path, tunnel.MaxPaths)}}
	r.connectParts()
	l := &r.links[0]
	l.rates.up = dataplane.Rate{Estimated: true}
	first := l.upRate()
	for now := 50 * time.Millisecond; now < 5*time.Second; now += 50 * time.Millisecond {
		n := uint64(50_000_000 / 8 / 20)
		l.sent.add(1, int(n))
		l.reports.last.Bytes += n
		l.reports.at = now
		r.selection.sample(0, now)
	}
	if got := l.upRate(); got < 48*unit.MbitPerSecond || got > 52*unit.MbitPerSecond {
		t.Errorf("50 Mbit/s arrive, and the rate went from %v to %v", first, got)
	}
}

// TestProbeWithoutReports: the control loop ends a probe of more than the configured rate that no
// report comes of.
func TestProbeWithoutReports(t *testing.T) {
	const look = 50 * time.Millisecond
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	p := a.plane
	p.mu.Lock()
	r := p.peers[b.key.Public()]
	p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	l, now, bytes := &r.links[0], p.now(), uint64(0)
	rate := l.configuredRate()
	l.rates.limit, l.rates.capacity = rate, quality.CapacityMeter{Capacity: quality.LimitCapacity(rate)}
	for end := now + 5*time.Second; l.upRate() == rate && now < end; now += look {
		bytes += uint64((rate * 9 / 10).SizeIn(look))
		l.rates.capacity.AddReport(now, now, bytes, bytes, true, quality.Delays{RTT: 20 * time.Millisecond})
	}
	if l.upRate() <= rate {
		t.Fatal("no higher rate is tried")
	}
	r.scheduling.refresh()
	r.advanceLocked(now+time.Second, newBatch(p, 1<<16))
	if got := r.scheduling.paths[0].Rate; got != rate || l.upRate() != rate {
		t.Errorf("packets are sent at %v, and the estimate is %v", got, l.upRate())
	}
}

// TestBeginsOnAllPaths: before the rates of two lines are known, a flow fills both, although what
// it has sent waits on one of them. Once the rates are known, the delays that were measured count.
func TestBeginsOnAllPaths(t *testing.T) {
	t.Parallel()
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		for i := range g.state.Paths {
			g.state.Paths[i].Up, g.state.Paths[i].Down = dataplane.Rate{Estimated: true}, dataplane.Rate{Estimated: true}
		}
		g.run()
	}
	a.up(2)
	eventually(t, "the delays of both paths", func() bool { return a.plane.Status().Peers[0].Links[1].RTT > 0 })
	r := a.plane.routing.Load().peers[0]
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range []bool{false, true} {
		for i := range 2 {
			l := &r.links[i]
			l.reports.received, l.reports.last.Base, l.reports.last.Delay, l.reports.last.Jitter = true, time.Second, time.Second, 0
			if known {
				l.rates.limit = 20 * unit.MbitPerSecond
				l.beginRate()
				l.rates.limit = 0
			}
		}
		r.links[0].reports.last.Delay += 40 * time.Millisecond // of its own queue
		r.scheduling.refresh()
		s, err := newScheduler(dataplane.Discipline{Name: dataplane.Auto}, &r.scheduling.queues)
		if err != nil {
			t.Fatal(err)
		}
		var sent [2]int
		for n := range 100 {
			now := time.Minute + time.Duration(n)*600*time.Microsecond
			for i := range 2 {
				if l := &r.links[i]; l.paced {
					r.scheduling.queues.Set(i, now, 0)
				}
			}
			sent[s.Next(r.scheduling.paths, sched.Segment{Now: now, Size: 1400, Kind: sched.Bulk, Version: uint64(n)}).First()]++
		}
		if both := min(sent[0], sent[1]) > 30; both == known {
			t.Errorf("with rates that are known (%t), %v packets were sent over the paths", known, sent)
		}
	}
}

// TestReorderingIsNotLoss: packets that a path reorders are missing for a while, each time others.
func TestReorderingIsNotLoss(t *testing.T) {
	k := &keys{}
	r := &peer{plane: &Plane{}, scheduling: scheduling{paths: make([]sched.Path, tunnel.MaxPaths)}, session: sessionState{sending: k}}
	r.connectParts()
	for i := range 1000 {
		missing := uint64(i % 3 * 5)
		k.counters[0] += 100
		m := controlMessage{peer: r, keys: k, now: time.Duration(i) * time.Millisecond, sent: uint32(i)}
		m.report(tunnel.Report{Next: uint64(100 * (i + 1)), Lost: missing})
	}
	if l := &r.links[0]; r.selection.lost != 5 || l.reports.loss.Lost != 5 || l.reports.loss.Sent != 99_800 {
		t.Errorf("of %d packets %d were lost, and %d for the selection; want 5: as many as two reports have", l.reports.loss.Sent, l.reports.loss.Lost, r.selection.lost)
	}
}

// TestOrderOfCounters: packets from the device that are sealed are sent before others are sealed,
// because a path on which packets overtake others looks as if it lost some.
func TestOrderOfCounters(t *testing.T) {
	key, err := tunnel.NewKey(tunnel.AES256GCM, [tunnel.KeyLen]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	p := withoutDevice(Options{}, nil)
	r := newPeer(p, handshake.PrivateKey{9}, dataplane.Peer{})
	r.links[0].line = &line{plane: p} // without a socket: what is sent is dropped
	k := &keys{Session: &handshake.Session{}, peer: r, send: key}
	seal := func(b *batch) { r.sealLocked(b, k, 0, b.slot(100), tunnel.Data, tunnel.Stamp{}, 0, 0) }
	sent := func() uint64 { return p.counts.dropped[dropNoPath].Load() }
	seal(p.out)
	p.unsent.Store(true)
	other := newBatch(p, 1<<16)
	seal(other)
	if got := sent(); got != 1 || !p.out.empty() {
		t.Errorf("%d messages were sent before the second was sealed, want 1", got)
	}
	if other.flush(); sent() != 2 {
		t.Errorf("%d messages were sent, want 2", sent())
	}
}

const ack, syn = 1 << 4, 1 << 1

// packet returns a packet of IPv4 with a TCP header.
func packet(protocol uint8, port uint16, seq uint32, flags byte, payload int) []byte {
	b := make([]byte, inet.V4Len+inet.TCPLen+payload)
	b[0], b[9] = 0x45, protocol
	binary.BigEndian.PutUint16(b[inet.V4Len:], port)
	binary.BigEndian.PutUint32(b[inet.V4Len+4:], seq)
	b[inet.V4Len+12], b[inet.V4Len+13] = 5<<4, flags
	return b
}

// TestElastic: retransmitted segments and full datagrams show a sender that reacts to losses.
// Echoes, acknowledgments, first transmissions and small datagrams do not.
func TestElastic(t *testing.T) {
	first := uint32(math.MaxUint32 - 2000) // the numbers wrap
	var w selection
	for _, tt := range []struct {
		name string
		b    []byte
		n    int // packets of the frame
		want uint64
	}{
		{"echo", packet(unix.IPPROTO_ICMP, 0, 0, 0, 1200), 1, 0},
		{"small datagram", packet(unix.IPPROTO_UDP, 53, 0, 0, 500), 1, 0},
		{"full datagrams", packet(unix.IPPROTO_UDP, 443, 0, 0, 3*1300), 3, 3},
		{"SYN", packet(unix.IPPROTO_TCP, 80, first-1, syn, 0), 1, 0},
		{"data", packet(unix.IPPROTO_TCP, 80, first, ack, 3000), 2, 0},
		{"acknowledgment", packet(unix.IPPROTO_TCP, 80, first+3000, ack, 0), 1, 0},
		{"more data", packet(unix.IPPROTO_TCP, 80, first+3000, ack, 1000), 1, 0},
		{"another connection", packet(unix.IPPROTO_TCP, 81, 5, ack, 1000), 1, 0},
		{"retransmission", packet(unix.IPPROTO_TCP, 80, first+1000, ack, 1000), 1, 1},
		{"keepalive", packet(unix.IPPROTO_TCP, 80, first+3999, ack, 0), 1, 0},
		{"a new connection with the same ports", packet(unix.IPPROTO_TCP, 80, 7, syn, 0), 1, 0},
		{"its data", packet(unix.IPPROTO_TCP, 80, 8, ack, 1000), 1, 0},
	} {
		var h inet.Header
		if !h.Parse(tt.b) {
			t.Fatalf("%s is no packet", tt.name)
		}
		before := w.elastic
		if w.sent(&h, tt.b, tt.n, len(tt.b)); w.elastic-before != tt.want {
			t.Errorf("%s: %d elastic packets, want %d", tt.name, w.elastic-before, tt.want)
		}
	}
}

// TestKind: data of TCP and full datagrams may be much. What opens a connection or only
// acknowledges, small datagrams, echoes, and what asks for low delay are to arrive first.
func TestKind(t *testing.T) {
	classed := func(dscp byte, b []byte) []byte { b[1] = dscp << 2; return b }
	for _, tt := range []struct {
		name string
		b    []byte
		want sched.Kind
	}{
		{"echo", packet(unix.IPPROTO_ICMP, 0, 0, 0, 1400), sched.Prompt},
		{"small datagram", packet(unix.IPPROTO_UDP, 443, 0, 0, 1000), sched.Prompt},
		{"full datagram", packet(unix.IPPROTO_UDP, 443, 0, 0, 1300), sched.Bulk},
		{"request for a connection", packet(unix.IPPROTO_TCP, 80, 0, syn, 0), sched.Prompt},
		{"its acceptance", packet(unix.IPPROTO_TCP, 80, 0, syn|ack, 0), sched.Bulk},
		{"acknowledgment", packet(unix.IPPROTO_TCP, 80, 0, ack, 0), sched.Acks},
		{"data", packet(unix.IPPROTO_TCP, 80, 0, ack, 10), sched.Bulk},
		{"data, AF11", classed(10, packet(unix.IPPROTO_TCP, 80, 0, ack, 10)), sched.Bulk},
		{"data of a terminal, AF21", classed(18, packet(unix.IPPROTO_TCP, 22, 0, ack, 10)), sched.Prompt},
		{"video, EF", classed(46, packet(unix.IPPROTO_UDP, 9, 0, 0, 1300)), sched.Prompt},
	} {
		binary.BigEndian.PutUint16(tt.b[2:], uint16(len(tt.b)))
		var h inet.Header
		if !h.Parse(tt.b) {
			t.Fatalf("%s is no packet", tt.name)
		}
		if got := kindOf(&h, tt.b, inet.IsAcknowledgment(tt.b), 1, len(tt.b)); got != tt.want {
			t.Errorf("%s: kind %d, want %d", tt.name, got, tt.want)
		}
	}
}
