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

// TestRepairCounts: a lost message that is sent again counts as what the path carries that it
// arrives over, because its sender has counted it there: else a path that loses packets in a full
// queue would seem to carry half.
func TestRepairCounts(t *testing.T) {
	for over := range 2 {
		r, k := ally(t, dataplane.Alliance{}, 1)
		p := r.plane
		p.keys[0] = k
		lines := [2]*line{r.links[0].line, {plane: p, name: "other"}}
		lines[1].conf.Store(new(dataplane.Path))
		x := &r.rx
		arrive := func(now time.Duration, path, counter, over int) {
			buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
			h := tunnel.Header{Type: tunnel.Data, Path: uint8(path), Counter: uint64(counter)}
			m := k.send.Seal(buf, h, tunnel.Stamp{})
			from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(over+1))
			for _, o := range p.open(lines[over], &udp.Received{Data: m, Size: len(m), From: from}, new(buffer), nil, p.out) {
				x.measureLocked(&o, now)
			}
		}
		arrive(0, 0, 0, 0)
		arrive(0, 1, 0, 1)
		arrive(0, 0, 2, 0) // message 1 is missing
		x.links[0].gaps.Due(0, time.Second, nil)
		before := [2]receivedLink{x.links[0], x.links[1]}
		arrive(time.Millisecond, 0, 1, over)
		for i := range before {
			want := uint64(0)
			if i == over {
				want = 1000 + tunnel.Overhead + ipUDP4
			}
			if got := x.links[i].bytes - before[i].bytes; got != want {
				t.Errorf("sent again over path %d: %d bytes more have arrived over path %d, want %d", over, got, i, want)
			}
		}
		if l := &x.links[0]; l.lost != 1 || l.next != 3 {
			t.Errorf("%d of %d messages are lost, want 1 of 3", l.lost, l.next)
		}
	}
}
