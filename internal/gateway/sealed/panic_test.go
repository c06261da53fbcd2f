package sealed

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// TestPanicCostsTheSession: wherever a gateway panics, before or behind authentication, at a frame
// of the LAN or at a timer, packets to and from the peer arrive again.
func TestPanicCostsTheSession(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	there, back := a.datagrams(b), b.datagrams(a)
	there.until(t, 1, 10*time.Second)
	back.until(t, 1, 10*time.Second)
	from := uint32(100_000)
	marker := []byte{0xfe, 0xed, 0xbe, 0xef}
	for name, at := range map[string]func(b contain.Boundary, message []byte) bool{
		"message": func(b contain.Boundary, m []byte) bool { return b == contain.GatewayMessage && len(m) > 0 },
		"packet": func(b contain.Boundary, m []byte) bool {
			return b == contain.GatewayMessage && bytes.Contains(m, marker)
		},
		"frame": func(b contain.Boundary, m []byte) bool {
			return b == contain.GatewayPacket && bytes.Contains(m, marker)
		},
		"timer": func(b contain.Boundary, _ []byte) bool { return b == contain.GatewayTimer },
	} {
		t.Run(name, func(t *testing.T) {
			var panicked atomic.Bool
			stop := contain.Inject(func(b contain.Boundary, message []byte) {
				if at(b, message) && panicked.CompareAndSwap(false, true) {
					panic("BUG: injected")
				}
			})
			defer stop()
			for deadline := time.Now().Add(10 * time.Second); !panicked.Load() && time.Now().Before(deadline); {
				there.out.Write(append([]byte{0, 0, 0, 0}, marker...))
				time.Sleep(time.Millisecond)
			}
			if !panicked.Load() {
				t.Fatal("no panic")
			}
			from += 100_000
			there.until(t, from, 20*time.Second)
			back.until(t, from, 20*time.Second)
		})
	}
}

// TestRenewOut: after a panic nothing is left to be sent, in the same batch, since others compare
// it without its mutex.
func TestRenewOut(t *testing.T) {
	r, _ := ally(t, dataplane.Alliance{}, 1)
	p, l := r.plane, r.links[0].line
	b := p.out
	b.add(l, udp.Datagram{Data: b.slot(100)})
	b.queued = append(b.queued, &queued{})
	p.unsent.Store(true)
	p.renewOut()
	if p.out != b {
		t.Error("the batch is another one")
	}
	if !b.empty() || p.unsent.Load() || b.out[0].line != nil || len(b.out[0].all) > 0 {
		t.Errorf("%d bytes and %d packets are left, unsent %t, %+v", b.next, len(b.queued), p.unsent.Load(), b.out[0])
	}
}
