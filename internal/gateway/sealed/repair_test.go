package sealed

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// paced returns a peer with two paths of 100 kbit/s, and its keys. Nothing is flushed.
func paced(t *testing.T) (*Plane, *peer, *keys) {
	t.Helper()
	key, err := tunnel.NewKey(tunnel.AES256GCM, [tunnel.KeyLen]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	p := withoutDevice(Options{}, nil)
	r := newPeer(p, handshake.PrivateKey{9}, dataplane.Peer{})
	k := &keys{Session: &handshake.Session{}, peer: r, send: key}
	r.session.sending = k
	for i := range 2 {
		l := &r.links[i]
		l.line = &line{plane: p, name: []string{"a", "b"}[i]}
		l.line.conf.Store(new(dataplane.Path))
		l.line.socket.Store(new(udp.Socket)) // nothing is flushed
		l.address.remote = netip.MustParseAddrPort("192.0.2.1:4790")
		l.shaped, l.queue = true, newShaper(p, nil)
		l.queue.Set(100 * unit.KbitPerSecond)
		r.scheduling.paths[i].Usable, r.scheduling.paths[i].Rate = true, 100*unit.KbitPerSecond
	}
	return p, r, k
}

// TestProgressOfQueuedLanes: a path has passed no number of a lane while packets of it wait in
// front of the path.
func TestProgressOfQueuedLanes(t *testing.T) {
	const now = time.Second
	p, r, k := paced(t)
	for range 2 { // the first is sent
		buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
		r.pacing.enqueue(p.out, 0, &queued{keys: k, lane: 1, seq: k.number.Assign(1)}, buf, now)
	}
	k.lanes.used[1] = now
	if all := r.messages.lanesFor(k, 0, now); len(all) != 0 {
		t.Errorf("%+v, though a packet waits", all)
	}
	want := tunnel.Progress{{Lane: 1, Next: 2}}
	if all := r.messages.lanesFor(k, 1, now); !slices.Equal(all, want) {
		t.Errorf("%+v of the other path, want %+v", all, want)
	}
	r.pacing.drain(p.out, 0, now+time.Second)
	if all := r.messages.lanesFor(k, 0, now); !slices.Equal(all, want) {
		t.Errorf("%+v, want %+v", all, want)
	}
}

// TestRescue: when a path dies, the packet that is under way on it and the one that waits in front
// of it are sent over the other path, with counters of that one.
func TestRescue(t *testing.T) {
	p, r, k := paced(t)
	var packets [2][]byte
	for i := range packets {
		packets[i] = bytes.Repeat([]byte{byte(i + 1)}, 1000)
		buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
		copy(buf[tunnel.Offset:], packets[i])
		seq := k.number.Assign(1)
		r.pacing.enqueue(p.out, 0, &queued{keys: k, lane: 1, seq: seq, repair: true}, buf, time.Second)
	}
	if n := r.links[0].queue.Len(); n != 1 || k.counters[0] != 1 {
		t.Fatalf("%d packets wait in front of the path and %d were sent, want one of each", n, k.counters[0])
	}
	r.scheduling.paths[0].Usable = false
	r.rescueLocked(p.out, 0, time.Second+10*time.Millisecond)
	r.pacing.drain(p.out, 1, 2*time.Second)
	o := &p.out.out[1]
	if o.line != r.links[1].line || len(o.all) != 2 || r.links[0].queue.Len() != 0 {
		t.Fatalf("%d packets are sent over the other path and %d wait, want 2 and 0", len(o.all), r.links[0].queue.Len())
	}
	for i, d := range o.all {
		h, err := tunnel.ParseHeader(d.Data)
		if err != nil || h.Path != 1 || h.Counter != uint64(i) {
			t.Errorf("message %d: %+v, %v", i, h, err)
		}
		if stamp, packet, err := k.send.Open(bytes.Clone(d.Data)); err != nil || !bytes.Equal(packet, packets[i]) || int(stamp.Seq) != i {
			t.Errorf("message %d: %+v, %v, not the packet that was on the dead path", i, stamp, err)
		}
	}
}

// TestRetransmission: a lost packet is sent again under a counter of the path that it is sent over,
// with the path and the counter of the message that was lost, and its stamp but for the time.
func TestRetransmission(t *testing.T) {
	p, r, k := paced(t)
	packet := bytes.Repeat([]byte{7}, 1000)
	buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
	copy(buf[tunnel.Offset:], packet)
	k.number.Assign(1)
	r.pacing.enqueue(p.out, 0, &queued{keys: k, lane: 1, seq: k.number.Assign(1), repair: true, copied: true}, buf, time.Second)
	k.counters[1] = 5
	r.scheduling.paths[0].Delay = 10 * time.Millisecond // so that the other one is first
	for range 2 {                                       // a request comes over two paths
		r.retransmitLocked(k, tunnel.Request{Path: 0, Attempt: 1, Counters: []uint64{0}}, time.Second, p.out)
	}
	all := p.out.out[1].all
	if p.out.out[1].line != r.links[1].line || len(all) != 1 {
		t.Fatalf("%d messages are sent over the other path, want 1", len(all))
	}
	h, err := tunnel.ParseHeader(all[0].Data)
	if err != nil || h.Type != tunnel.Retransmission || h.Path != 1 || h.Counter != 5 {
		t.Errorf("%+v, %v", h, err)
	}
	stamp, got, err := k.send.Open(all[0].Data)
	if want := (tunnel.Stamp{Lane: 1, Seq: 1, Origin: tunnel.Origin{Path: 0, Counter: 0}}); err != nil || stamp != want || !bytes.Equal(got, packet) {
		t.Errorf("%+v, %v, want %+v and the packet", stamp, err, want)
	}
}

// TestLateIsNotLost: a message that comes after it was requested is no lost one, however long a
// round trip takes, and whether it was retransmitted or not. What is retransmitted counts as what
// the path carries that it arrives over.
func TestLateIsNotLost(t *testing.T) {
	for _, tt := range []struct {
		name                string
		retransmitted, late bool
		lost                uint64
	}{{"late", false, true, 0}, {"both arrive", true, true, 0}, {"lost", true, false, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			r, k := ally(t, dataplane.Alliance{}, 1)
			p := r.plane
			p.keys[0] = k
			lines := [2]*line{r.links[0].line, {plane: p, name: "other"}}
			lines[1].conf.Store(new(dataplane.Path))
			x := &r.rx
			arrive := func(now time.Duration, h tunnel.Header, stamp tunnel.Stamp) {
				buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
				m := k.send.Seal(buf, h, stamp)
				from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(h.Path+1))
				for _, o := range p.open(lines[h.Path], &udp.Received{Data: m, Size: len(m), From: from}, new(buffer), nil, p.out) {
					x.measureLocked(&o, now)
				}
			}
			data := func(path uint8, counter uint64) tunnel.Header {
				return tunnel.Header{Type: tunnel.Data, Path: path, Counter: counter}
			}
			arrive(0, data(0, 0), tunnel.Stamp{})
			arrive(0, data(1, 0), tunnel.Stamp{})
			arrive(0, data(0, 2), tunnel.Stamp{}) // message 1 is missing
			x.links[0].gaps.Due(0, time.Second, nil)
			before := x.links[1].bytes
			if tt.retransmitted {
				arrive(90*time.Millisecond, tunnel.Header{Type: tunnel.Retransmission, Path: 1, Counter: 1}, tunnel.Stamp{Origin: tunnel.Origin{Path: 0, Counter: 1}})
				if got := x.links[1].bytes - before; got != 1000+tunnel.Overhead+inet.UDP4Len || x.links[1].next != 2 {
					t.Errorf("%d bytes more and %d messages in all have arrived over the other path", got, x.links[1].next)
				}
				if _, missing := x.links[0].gaps.Next(time.Second); missing {
					t.Error("what was retransmitted is requested again")
				}
			}
			if tt.late {
				arrive(100*time.Millisecond, data(0, 1), tunnel.Stamp{})
			}
			if l := &x.links[0]; l.lost != tt.lost || l.next != 3 {
				t.Errorf("%d of %d messages are lost, want %d of 3", l.lost, l.next, tt.lost)
			}
		})
	}
}
