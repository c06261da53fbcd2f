package sealed

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
	"github.com/tabane/tabane/internal/unit"
)

// TestRescue: when a path dies, the packet that is under way on it and the one that waits in front of it are
// sent over the other path, with counters of that one.
func TestRescue(t *testing.T) {
	key, err := tunnel.NewKey(tunnel.AES256GCM, [tunnel.KeyLen]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	p := withoutDevice(Options{}, nil)
	r := newPeer(p, session.PrivateKey{9}, plane.Peer{})
	k := &keys{Session: &session.Session{}, peer: r, send: key}
	r.sending = k
	for i := range 2 {
		l := &r.links[i]
		l.line = &line{plane: p, name: []string{"a", "b"}[i]}
		l.line.conf.Store(new(plane.Path))
		l.line.socket.Store(new(udp.Socket)) // nothing is flushed
		l.remote = netip.MustParseAddrPort("192.0.2.1:4790")
		l.shaped, l.queue = true, newShaper(p, nil)
		l.queue.Set(100 * unit.KbitPerSecond)
		r.paths[i].Usable, r.paths[i].Rate = true, 100*unit.KbitPerSecond
	}
	var packets [2][]byte
	for i := range packets {
		packets[i] = bytes.Repeat([]byte{byte(i + 1)}, 1000)
		buf := make([]byte, tunnel.Offset+1000, tunnel.Offset+1000+tunnel.TagLen)
		copy(buf[tunnel.Offset:], packets[i])
		seq := k.number.Assign(1)
		r.enqueue(p.out, 0, &queued{keys: k, lane: 1, seq: seq, repair: true}, buf, time.Second)
	}
	if n := r.links[0].queue.Len(); n != 1 || k.counters[0] != 1 {
		t.Fatalf("%d packets wait in front of the path and %d were sent, want one of each", n, k.counters[0])
	}
	r.paths[0].Usable = false
	r.rescue(p.out, 0, time.Second+10*time.Millisecond)
	r.drain(p.out, 1, 2*time.Second)
	o := &p.out.out[1]
	if o.line != r.links[1].line || len(o.all) != 2 || r.links[0].queue.Len() != 0 {
		t.Fatalf("%d packets are sent over the other path and %d wait, want 2 and 0", len(o.all), r.links[0].queue.Len())
	}
	for i, d := range o.all {
		h, err := tunnel.ParseHeader(d.Data)
		if err != nil || h.Path != 1 || h.Counter != uint64(i) {
			t.Errorf("message %d: %+v, %v", i, h, err)
		}
		if stamp, packet, err := key.Open(bytes.Clone(d.Data)); err != nil || !bytes.Equal(packet, packets[i]) || int(stamp.Seq) != i {
			t.Errorf("message %d: %+v, %v, not the packet that was on the dead path", i, stamp, err)
		}
	}
}
