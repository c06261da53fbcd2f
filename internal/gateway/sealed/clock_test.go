package sealed

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// A gateway that was started again with its clock set back and at another address is answered,
// although its initiations look recorded.
func TestClockSetBack(t *testing.T) {
	a, b := pair(t, 1)
	address := 1
	for _, years := range []int{0, 20, -30} { // as it is, in the future, before the last two
		a.prepare = func(p *Plane) { p.wall = func() time.Time { return time.Now().AddDate(years, 0, 0) } }
		a.run()
		if b.plane == nil {
			b.run()
		} else {
			ip(t, a.namespace, "ip -4 addr del 192.168.0.%d/24 dev p0", address)
			address += 100
			ip(t, a.namespace, "ip -4 addr add 192.168.0.%d/24 dev p0", address)
		}
		a.up(1)
		b.up(1)
		a.datagrams(b).until(t, 0, 5*time.Second)
		a.crash()
	}
}

// While gateways run, a clock that jumps changes nothing: the next handshake has a later time
// still.
func TestClockJumps(t *testing.T) {
	a, b := pair(t, 1)
	var offset time.Duration
	var mu sync.Mutex
	a.prepare = func(p *Plane) {
		p.wall = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(offset) }
	}
	a.run()
	b.run()
	a.up(1)
	s := a.stream(b, 100)
	for _, jump := range []time.Duration{1000 * time.Hour, -2000 * time.Hour, 0} {
		mu.Lock()
		offset = jump
		mu.Unlock()
		again(t, a, b)
	}
	time.Sleep(500 * time.Millisecond)
	if lasted, lost := s.outage(100); lost > 0 {
		t.Errorf("%d datagrams were lost, the last after %v", lost, lasted)
	}
}

// The times in messages have 32 bits: after 71 minutes they begin again.
func TestTimesWrap(t *testing.T) {
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		g.prepare = func(p *Plane) { p.start = p.start.Add(1500*time.Millisecond - 1<<32*time.Microsecond) }
		g.run()
	}
	a.up(2)
	b.up(2)
	s := a.stream(b, 100)
	time.Sleep(3 * time.Second)
	if now := a.plane.now(); now < 1<<32*time.Microsecond {
		t.Fatalf("the times do not wrap yet: %v", now)
	}
	if lasted, lost := s.outage(500); lost > 0 {
		t.Errorf("%d datagrams were lost, the last after %v", lost, lasted)
	}
	for _, l := range a.up(2).Links {
		// A busy machine delays packets by parts of a second, the wrap by 71 minutes.
		if most := time.Minute; l.Delay > most || l.Jitter > most || l.RTT > most {
			t.Errorf("path %s: %+v", l.Path, l)
		}
	}
}

// Keys are replaced before their messages are too many, without loss, and the numbers of lanes
// wrap.
func TestCountersNearTheirEnd(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	s := a.stream(b, 100)
	r := a.plane.peers[b.key.Public()]
	for end := tunnel.Seq(1 << 21); end <= 1<<24; end += 1 << 21 {
		time.Sleep(30 * time.Millisecond)
		r.mu.Lock()
		for lane, used := range r.session.sending.lanes.used {
			for used != 0 && r.session.sending.number.Peek(uint8(lane)) < end-300 {
				r.session.sending.number.Assign(uint8(lane))
			}
		}
		r.mu.Unlock()
	}
	time.Sleep(time.Second)
	r.mu.Lock()
	epoch := r.session.epoch
	r.session.assoc.Sent(1<<28 - 100)
	r.mu.Unlock()
	time.Sleep(time.Second)
	if n := a.plane.Status().Peers[0].Epoch; n != epoch+1 {
		t.Errorf("keys number %d, want %d", n, epoch+1)
	}
	if lasted, lost := s.outage(100); lost > 0 {
		t.Errorf("%d datagrams were lost, the last after %v", lost, lasted)
	}
}

// The counters of a path run out: the keys are replaced before, and no counter is used twice, or
// beyond the last.
func TestCountersRunOut(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	r := a.plane.peers[b.key.Public()]
	for _, left := range []uint64{counterReserve, 2} {
		r.mu.Lock()
		epoch := r.session.epoch
		r.session.sending.counters[0] = tunnel.MaxCounter - left
		r.mu.Unlock()
		eventually(t, "new keys", func() bool { return a.plane.Status().Peers[0].Epoch > epoch })
		a.datagrams(b).until(t, 0, 5*time.Second)
	}
	// Without new keys, nothing is sent over the path.
	r.mu.Lock()
	k := r.session.sending
	k.counters[0] = tunnel.MaxCounter - 1
	sent := newBatch(a.plane, 1<<16)
	for range 3 {
		r.messages.send(sent, k, 0, a.plane.now(), 0, tunnel.Probe{ID: 1})
	}
	used := k.counters[0]
	r.mu.Unlock()
	if dropped := a.plane.Status().Dropped[reasonNames[dropExhausted]]; used != tunnel.MaxCounter || dropped < 2 {
		t.Errorf("counter %#x, %d messages dropped", used, dropped)
	}
}

// AES is used only if the CPUs of both gateways are fast at it, whichever begins.
func TestSuites(t *testing.T) {
	const aes, chacha = tunnel.AES256GCM, tunnel.ChaCha20Poly1305
	for _, tt := range []struct{ a, b, want tunnel.Suite }{
		{aes, aes, aes}, {aes, chacha, chacha}, {chacha, aes, chacha}, {chacha, chacha, chacha},
	} {
		a, b := pair(t, 1)
		a.prepare = func(p *Plane) { p.fastest = tt.a }
		b.prepare = func(p *Plane) { p.fastest = tt.b }
		a.run()
		b.run()
		a.up(1)
		b.up(1)
		a.datagrams(b).until(t, 0, 5*time.Second)
		for _, g := range []*gateway{a, b} {
			if got := g.plane.Status().Peers[0].Suite; got != tt.want.String() {
				t.Errorf("%v and %v use %s", tt.a, tt.b, got)
			}
		}
	}
	// An earlier version offered both, whatever its CPU.
	p := &Plane{fastest: chacha}
	if got := p.choose(1<<(aes-1) | 1<<(chacha-1)); got != uint8(chacha) {
		t.Errorf("chosen: %d", got)
	}
	if got := p.choose(1 << (aes - 1)); got != uint8(aes) {
		t.Errorf("chosen: %d", got)
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// logged counts messages of a log.
type logged struct {
	slog.Handler
	mu    sync.Mutex
	count map[string]int
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[r.Message]++
	return nil
}

// What fails again and again is logged once, while a path has no route to any address of the peer,
// and not at all where one of several addresses works.
func TestLogsStateChanges(t *testing.T) {
	far := netip.MustParseAddrPort("[2001:db8::2]:4790")
	for _, tt := range []struct {
		endpoints []netip.AddrPort
		up, want  int
	}{
		{[]netip.AddrPort{far, netip.MustParseAddrPort("192.168.0.2:4790")}, 1, 0},
		{[]netip.AddrPort{far}, 0, 1},
	} {
		a, b := pair(t, 1)
		log := &logged{count: map[string]int{}}
		a.log = log
		a.state.Peers[0].Endpoints = tt.endpoints
		a.run()
		b.run()
		if tt.up > 0 {
			a.up(tt.up)
		}
		time.Sleep(1500 * time.Millisecond)
		eventually(t, "the status of the path", func() bool { return (a.plane.Status().Paths[0].Error != "") == (tt.want > 0) })
		time.Sleep(time.Second)
		log.mu.Lock()
		if n := log.count["path has an error"]; n != tt.want {
			t.Errorf("%v: logged %d times: %v", tt.endpoints, n, log.count)
		}
		log.mu.Unlock()
	}
}

// dialFrom opens a socket of another process at a gateway.
func dialFrom(t testing.TB, g *gateway, to string) (c *net.UDPConn) {
	t.Helper()
	if err := netns.Do(g.namespace, func() (err error) {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Who knows the public key but is no peer, and what was recorded or comes back, gets no session and
// no answer longer than the message.
func TestHostileHandshakes(t *testing.T) {
	a, b := pair(t, 1)
	a.run()
	b.run()
	a.up(1)
	b.up(1)
	initiation := func(own handshake.PrivateKey, to handshake.PublicKey) []byte {
		_, m, err := handshake.Initiate(own, handshake.Peer{Public: to}, 77, handshake.TimestampOf(time.Now().Add(-time.Hour)), 3, random{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var other handshake.PrivateKey
	other[5] = 1
	recorded := initiation(a.key, b.key.Public())
	refused := reasonNames[dropHandshake]
	stranger := reasonNames[dropStranger]
	response := make([]byte, handshake.ResponseLen)
	response[0] = 2
	for _, m := range []struct {
		name    string
		message []byte
		reason  string
	}{
		{"of a gateway that is no peer", initiation(other, b.key.Public()), refused},
		{"recorded", recorded, refused},
		{"recorded, again", recorded, refused},
		{"reflected", initiation(b.key, a.key.Public()), stranger},
		{"as if from itself", initiation(b.key, b.key.Public()), refused},
		{"longer", append(initiation(a.key, b.key.Public()), 0), stranger},
		{"shorter", recorded[:len(recorded)-1], stranger},
		{"of the largest size", append([]byte{99}, make([]byte, 65000)...), reasonNames[dropTruncated]},
		{"response to nothing", response, stranger},
	} {
		before := b.plane.Status()
		c := dialFrom(t, a, "192.168.0.2:4790")
		if _, err := c.Write(m.message); err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		eventually(t, m.name, func() bool { return b.plane.Status().Dropped[m.reason] > before.Dropped[m.reason] })
		c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		if n, err := c.Read(make([]byte, 2000)); err == nil {
			t.Errorf("%s: answered by %d bytes", m.name, n)
		}
		if s := b.plane.Status().Peers[0]; s.Epoch != before.Peers[0].Epoch || s.Links[0].Endpoint != before.Peers[0].Links[0].Endpoint {
			t.Errorf("%s: %+v", m.name, s)
		}
	}
	a.datagrams(b).until(t, 0, time.Second)
}
