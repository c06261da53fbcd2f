package sealed

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/blake2s"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// addressed returns an initiation or response with the first hash for a gateway, as who knows its
// public key can make it without any exchange of keys, and a second hash of zero.
func addressed(to handshake.PublicKey, body []byte) []byte {
	key := blake2s.Sum256(append([]byte("first hash"), to[:]...))
	h, err := blake2s.New128(key[:])
	if err != nil {
		panic("BUG: " + err.Error())
	}
	h.Write(body)
	return append(h.Sum(body), make([]byte, 16)...)
}

func inNamespace(g *gateway, f func() error) error { return netns.Do(g.namespace, f) }

// spoofer sends datagrams with forged sources to a gateway, from the other one's end of the first
// link.
type spoofer struct {
	target, other *gateway
	socket        int
	sent          atomic.Uint64
}

// next returns message n of a flood, and whether it has the source of the peer.
type flooding func(s *spoofer, n int) (message []byte, ofPeer bool)

// random returns a message that begins as given, of a length, with random bytes.
func randomly(length int, begin ...byte) []byte {
	m := make([]byte, length)
	rand.Read(m)
	copy(m, begin)
	return m
}

// index returns an index that the target has given, as who sees its messages knows it: of an
// initiation that waits for the response, or of a session.
func (s *spoofer) index(pending bool) []byte {
	p := s.target.plane
	var b [4]byte
	if p == nil {
		return b[:]
	}
	p.keysMu.RLock()
	defer p.keysMu.RUnlock()
	if pending {
		for i := range p.pending {
			binary.BigEndian.PutUint32(b[:], i)
		}
	} else {
		for i := range p.keys {
			binary.BigEndian.PutUint32(b[:], i)
		}
	}
	return b[:]
}

// allFloods are floods of each kind of message, with what somebody off the path can know, and with
// what somebody sees who is on it.
var allFloods = []struct {
	name string
	next func() flooding
}{
	{"initiations", func() flooding {
		return func(s *spoofer, n int) ([]byte, bool) {
			return addressed(s.target.key.Public(), randomly(handshake.InitiationLen-32, 1, 0, 0, 0)), n%2 == 0
		}
	}},
	{"recorded initiations of the peer", func() flooding {
		var recorded [][]byte
		return func(s *spoofer, n int) ([]byte, bool) {
			if len(recorded) < 300 {
				_, m, err := handshake.Initiate(s.other.key, handshake.Peer{Public: s.target.key.Public()}, uint32(n), handshake.TimestampOf(time.Now().Add(-time.Hour)), 3, random{})
				if err != nil {
					panic("BUG: " + err.Error())
				}
				recorded = append(recorded, m)
			}
			return recorded[n%len(recorded)], n%2 == 0
		}
	}},
	{"responses", func() flooding {
		return func(s *spoofer, n int) ([]byte, bool) {
			return addressed(s.target.key.Public(), randomly(handshake.ResponseLen-32, 2, 0, 0, 0)), n%2 == 0
		}
	}},
	{"responses to its initiation", func() flooding {
		return func(s *spoofer, n int) ([]byte, bool) {
			m := randomly(handshake.ResponseLen-32, 2, 0, 0, 0)
			copy(m[8:], s.index(true))
			return addressed(s.target.key.Public(), m), n%2 == 0
		}
	}},
	{"cookies", func() flooding {
		return func(_ *spoofer, n int) ([]byte, bool) { return randomly(handshake.CookieLen, 3, 0, 0, 0), n%2 == 0 }
	}},
	{"cookies to its initiation", func() flooding {
		return func(s *spoofer, n int) ([]byte, bool) {
			m := randomly(handshake.CookieLen, 3, 0, 0, 0)
			copy(m[4:], s.index(true))
			return m, n%2 == 0
		}
	}},
	{"data", func() flooding {
		return func(_ *spoofer, n int) ([]byte, bool) { return randomly(150, byte(tunnel.Data), 0, 0, 0), n%2 == 0 }
	}},
	{"data and control messages of its session", func() flooding {
		return func(s *spoofer, n int) ([]byte, bool) {
			m := randomly(150, byte(tunnel.Data)+byte(n%2), 0, 0, 0)
			copy(m[4:], s.index(false))
			copy(m[8:], make([]byte, 4))
			return m, n%2 == 0
		}
	}},
	{"compatible probes, open data", func() flooding {
		return func(_ *spoofer, n int) ([]byte, bool) { return randomly(64, byte(n%2*6)), n%4 < 2 }
	}},
	{"random bytes", func() flooding {
		return func(_ *spoofer, n int) ([]byte, bool) { return randomly(1 + n%200), n%2 == 0 }
	}},
}

// newSpoofer opens a raw socket in the namespace of the other gateway.
func newSpoofer(t testing.TB, target, other *gateway) *spoofer {
	s := &spoofer{target: target, other: other}
	// The target answers forged sources over the link, as over a default route.
	ip(t, target.namespace, "ip -4 route add 198.18.0.0/15 via 192.168.0.%d", other.number)
	if err := netns.Do(target.namespace, func() error { return netns.Sysctl("net.ipv4.conf.all.rp_filter", "0") }); err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(other.namespace, func() (err error) {
		s.socket, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.IPPROTO_RAW)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(s.socket) })
	return s
}

// send sends a message with a source of the benchmark networks (RFC 2544), or that of the peer.
func (s *spoofer) send(m []byte, ofPeer bool) {
	b := make([]byte, 28, 28+len(m))
	b[0], b[8], b[9] = 0x45, 64, syscall.IPPROTO_UDP
	source := [4]byte{198, 18}
	rand.Read(source[2:])
	binary.BigEndian.PutUint16(b[20:], binary.BigEndian.Uint16(source[2:])|1)
	if ofPeer {
		source = [4]byte{192, 168, 0, byte(s.other.number)}
		binary.BigEndian.PutUint16(b[20:], 4790)
	}
	to := [4]byte{192, 168, 0, byte(s.target.number)}
	copy(b[12:], source[:])
	copy(b[16:], to[:])
	binary.BigEndian.PutUint16(b[22:], 4790)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(m)))
	if syscall.Sendto(s.socket, append(b, m...), 0, &syscall.SockaddrInet4{Addr: to}) == nil {
		s.sent.Add(1)
	}
}

// flood sends messages at a rate until the returned function is called.
func (s *spoofer) flood(next flooding, rate int) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n, start := 0, time.Now(); ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for due := int(time.Since(start).Seconds() * float64(rate)); n < due; n++ {
				s.send(next(s, n))
			}
		}
	})
	return func() { close(done); running.Wait() }
}

// attacked are the gateways that a flood is sent to.
var attacked = []string{"initiator", "responder"}

// underFlood returns how long two gateways take for a session while a flood is sent to one of them,
// and for the next keys.
func underFlood(t testing.TB, role string, next flooding, rate int) (up, rekeyed time.Duration) {
	a, b := pair(t, 1)
	target, other := a, b
	if role == "responder" {
		target, other = b, a
	}
	s := newSpoofer(t, target, other)
	target.run()
	stop := s.flood(next, rate)
	defer stop()
	for s.sent.Load() < uint64(rate)/4 {
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	other.run()
	wait := func(what string, ok func() bool) time.Duration {
		for !ok() {
			if time.Since(start) > 30*time.Second {
				t.Fatalf("no %s within 30 s under a flood at the %s: %v, %v", what, role, a.plane.Status().Dropped, b.plane.Status().Dropped)
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(start)
	}
	up = wait("session", func() bool { return a.ready(1) && b.ready(1) })
	epochs := [2]uint32{a.plane.Status().Peers[0].Epoch, b.plane.Status().Peers[0].Epoch}
	start = time.Now()
	a.plane.mu.Lock()
	r := a.plane.peers[b.key.Public()]
	a.plane.mu.Unlock()
	r.mu.Lock()
	r.session.assoc.Exhaust()
	r.wakeControlLocked()
	r.mu.Unlock()
	rekeyed = wait("next keys", func() bool {
		return a.plane.Status().Peers[0].Epoch > epochs[0] && b.plane.Status().Peers[0].Epoch > epochs[1]
	})
	if !a.ready(1) || !b.ready(1) {
		t.Errorf("the path is not up after new keys: %+v", a.plane.Status().Peers)
	}
	return up, rekeyed
}

// floodRate is that of the floods, in messages per second: 5 times what kept gateways from a
// session once.
const floodRate = 25_000

// TestFloods: whatever is sent to either gateway, from whatever sources, the two have a session and
// get new keys.
func TestFloods(t *testing.T) {
	for _, f := range allFloods {
		for _, role := range attacked {
			t.Run(f.name+"/"+role, func(t *testing.T) {
				up, rekeyed := underFlood(t, role, f.next(), 5000)
				t.Logf("up after %v, new keys after %v", up.Round(time.Millisecond), rekeyed.Round(time.Millisecond))
			})
		}
	}
}

// BenchmarkFloods measures how long a session and new keys take under floods.
func BenchmarkFloods(b *testing.B) {
	var rows [][]string
	runs := 0
	for _, f := range append([]struct {
		name string
		next func() flooding
	}{{"none", nil}}, allFloods...) {
		row := []string{f.name}
		for _, role := range attacked {
			b.Run(f.name+"/"+role, func(b *testing.B) {
				r := readings{}
				for b.Loop() {
					rate, next := floodRate, flooding(func(*spoofer, int) ([]byte, bool) { return nil, false })
					if f.next == nil {
						rate = 1
					} else {
						next = f.next()
					}
					up, rekeyed := underFlood(b, role, next, rate)
					r.add(b, milliseconds(up), "ms-up")
					r.add(b, milliseconds(rekeyed), "ms-rekeyed")
				}
				b.ReportMetric(0, "ns/op")
				row, runs = append(row, fmt.Sprintf("%.0f", r.median("ms-up")), fmt.Sprintf("%.0f", r.median("ms-rekeyed"))), b.N
			})
		}
		rows = append(rows, row)
	}
	publish(b, "floods", runs, time.Second, []string{"25,000 messages in a second of", "at the initiator: session up, ms", "new keys, ms", "at the responder: session up, ms", "new keys, ms"}, rows)
}
