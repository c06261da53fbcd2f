package sealed

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// spoofed is a gateway that is sent authentic messages whose sources an attacker chooses, as a peer
// may, or who forwards the peer's messages.
type spoofed struct {
	t       *testing.T
	r       *peer
	k       *keys
	line    *line
	b       *batch
	now     time.Duration
	counter uint64
}

// somebody is a host that receives what the gateway sends there.
type somebody struct {
	*net.UDPConn
	at              netip.AddrPort
	messages, bytes int // with headers
	records         []tunnel.Record
	others          int // messages that are neither probes nor answers
}

func newSomebody(t *testing.T) *somebody {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &somebody{UDPConn: c, at: c.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func newSpoofed(t *testing.T, a dataplane.Alliance) *spoofed {
	t.Helper()
	r, k := ally(t, a, 1)
	r.plane.keys[0] = k
	s := &spoofed{t: t, r: r, k: k, line: r.links[0].line, b: newBatch(r.plane, 1<<16), now: time.Second}
	return s
}

// message delivers a message of the peer, with records or a packet, and returns its length with
// headers.
func (s *spoofed) message(from netip.AddrPort, kind tunnel.Type, body []byte) int {
	m := s.seal(kind, body)
	s.deliver(from, m)
	return len(m) + inet.UDP4Len
}

// seal seals a message of the peer. Both directions have one key.
func (s *spoofed) seal(kind tunnel.Type, body []byte) []byte {
	buf := make([]byte, tunnel.Offset+len(body), tunnel.Overhead+len(body))
	copy(buf[tunnel.Offset:], body)
	m := s.k.send.Seal(buf, tunnel.Header{Type: kind, Counter: s.counter}, tunnel.Stamp{})
	s.counter++
	return m
}

func (s *spoofed) deliver(from netip.AddrPort, m []byte) {
	// It is opened in place.
	data := append(make([]byte, 0, len(m)), m...)
	s.r.plane.open(s.line, &udp.Received{Data: data, From: from, Size: len(data)}, &buffer{}, nil, s.b)
	s.b.flush()
}

// pass lets time pass, and sends what is due.
func (s *spoofed) pass(length time.Duration) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for end := s.now + length; s.now < end; s.now += granularity {
		s.r.proving.probe(s.b, s.k, 0, s.now)
		s.b.flush()
	}
}

// read reads what the gateway has sent to a host.
func (s *spoofed) read(h *somebody) {
	s.t.Helper()
	raw, err := h.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	h.records = nil
	for buf := make([]byte, 2000); ; {
		n := -1
		if err := raw.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return true
		}); err != nil {
			s.t.Fatal(err)
		}
		if n < 0 {
			return
		}
		h.messages++
		h.bytes += n + inet.UDP4Len
		_, body, err := s.k.send.Open(buf[:n])
		if err != nil || tunnel.Type(buf[0]) != tunnel.Control {
			h.others++
			continue
		}
		for len(body) > 0 {
			record, _, rest, err := tunnel.NextRecord(body)
			if err != nil || record == nil {
				break
			}
			switch record.(type) {
			case tunnel.Probe, tunnel.Answer:
			default:
				h.others++
			}
			h.records = append(h.records, record)
			body = rest
		}
	}
}

// answer has the peer answer all probes that a host has received, from an address.
func (s *spoofed) answer(h *somebody, from netip.AddrPort) {
	s.read(h)
	for _, v := range h.records {
		if p, ok := v.(tunnel.Probe); ok {
			s.message(from, tunnel.Control, tunnel.AppendRecord(nil, tunnel.Answer{ID: p.ID}))
		}
	}
}

// attacks are messages of all kinds that come from the address of somebody else.
var attacks = map[string]struct {
	kind tunnel.Type
	body []byte
}{
	"data":    {tunnel.Data, make([]byte, 100)},
	"empty":   {tunnel.Control, nil},
	"probe":   {tunnel.Control, tunnel.AppendRecord(nil, tunnel.Probe{ID: 1})},
	"long":    {tunnel.Control, append(tunnel.AppendRecord(nil, tunnel.Probe{ID: 1}), make([]byte, 1300)...)},
	"answer":  {tunnel.Control, tunnel.AppendRecord(nil, tunnel.Answer{ID: 1})},
	"report":  {tunnel.Control, tunnel.AppendRecord(nil, tunnel.Report{Next: 100, Bytes: 100})},
	"request": {tunnel.Control, tunnel.AppendRecord(nil, tunnel.Request{Attempt: 1, Counters: []uint64{1, 2, 3}})},
	"many probes": {tunnel.Control, func() (b []byte) {
		for i := range uint64(80) {
			b = tunnel.AppendRecord(b, tunnel.Probe{ID: i})
		}
		return b
	}()},
	"path add": {tunnel.Control, tunnel.AppendNumbered(nil, 0, tunnel.PathAdd{Up: 1, Down: 1, Name: "x"})},
	"hello":    {tunnel.Control, tunnel.AppendNumbered(nil, 0, tunnel.Hello{})},
	"register": {tunnel.Control, tunnel.AppendNumbered(nil, 0, tunnel.Register{HomeAgent: netip.AddrPortFrom(netip.IPv6Unspecified(), 0), Lifetime: time.Hour, Up: 1, Down: 1})},
}

// TestSpoofedSource: authentic messages of all kinds with the source of somebody else: packets stay
// where they were, and the victim gets nothing but probes and answers to probes, of at most three
// times the bytes in its name.
func TestSpoofedSource(t *testing.T) {
	for name, a := range attacks {
		for _, proved := range []bool{true, false} {
			s := newSpoofed(t, dataplane.Alliance{Role: dataplane.Registrant, CareOf: 4})
			l := &s.r.links[0]
			if !proved {
				l.address.remote = netip.AddrPort{}
			} else {
				l.probing.alive.Answered()
			}
			before, victim, spent := l.address.remote, newSomebody(t), 0
			for n := range 20 {
				spent += s.message(victim.at, a.kind, a.body)
				s.pass(time.Duration(n) * 100 * time.Millisecond)
			}
			s.pass(time.Minute)
			if s.read(victim); victim.bytes > maxAmplification*spent || victim.others > 0 {
				t.Errorf("%s, proved %v: %d bytes in %d messages to the victim, %d of them no probes, after %d bytes in its name", name, proved, victim.bytes, victim.messages, victim.others, spent)
			}
			if victim.messages == 0 {
				t.Errorf("%s, proved %v: the new address was not probed", name, proved)
			}
			if l.address.remote != before {
				t.Errorf("%s, proved %v: packets are sent to %v, which has answered nothing", name, proved, l.address.remote)
			}
			s.r.mu.Lock()
			s.r.scheduling.refresh()
			if !proved && s.r.scheduling.paths[0].Usable {
				t.Errorf("%s: a path without a proved address is used", name)
			}
			s.r.mu.Unlock()
		}
	}
}

// TestAddressIsProved: packets follow the peer as soon as it answers there, and back. An answer
// proves the address that its probe was sent to, not the one that it comes from.
func TestAddressIsProved(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{})
	l := &s.r.links[0]
	old, next, victim := newSomebody(t), newSomebody(t), newSomebody(t)
	l.address.remote = old.at
	l.probing.alive.Answered()
	for _, at := range []*somebody{next, old, next} {
		s.message(at.at, tunnel.Control, nil)
		s.pass(2 * provePause)
		if l.address.remote == at.at {
			t.Fatal("packets follow before an answer")
		}
		s.answer(at, victim.at)
		if l.address.remote != at.at {
			t.Fatalf("packets are sent to %v, the peer has answered at %v", l.address.remote, at.at)
		}
	}
	// The last answer came from the victim: it is only probed.
	s.pass(time.Minute)
	if s.read(victim); l.address.remote != next.at || victim.others > 0 {
		t.Errorf("packets are sent to %v, the peer has answered at %v", l.address.remote, next.at)
	}
}

// TestForgedAnswers: answers with numbers that were not sent there, or that were answered, prove
// nothing, and recorded messages are not taken.
func TestForgedAnswers(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{})
	l := &s.r.links[0]
	real, victim := newSomebody(t), newSomebody(t)
	l.address.remote = real.at
	l.probing.alive.Answered()
	seen := []uint64{0, 1, 2, 1<<64 - 1}
	s.r.mu.Lock()
	for range 100 {
		s.r.prober.sendBare(s.b, s.k, 0, l.place(), true, s.now)
	}
	s.b.flush()
	s.r.mu.Unlock()
	s.read(real)
	for _, v := range real.records {
		seen = append(seen, v.(tunnel.Probe).ID)
	}
	answered := s.seal(tunnel.Control, tunnel.AppendRecord(nil, tunnel.Answer{ID: seen[10]}))
	s.deliver(real.at, answered)
	dropped := s.r.plane.counts.dropped[dropReplayed].Load()
	s.deliver(victim.at, answered)
	if s.r.plane.counts.dropped[dropReplayed].Load() != dropped+1 || l.address.unproved.line != nil {
		t.Error("a recorded message was taken")
	}
	s.message(victim.at, tunnel.Control, nil)
	s.pass(time.Second)
	for _, id := range seen {
		for _, near := range []uint64{id - 1, id, id + 1, id + 2} {
			s.message(victim.at, tunnel.Control, tunnel.AppendRecord(nil, tunnel.Answer{ID: near}))
		}
	}
	if l.address.remote != real.at {
		t.Errorf("packets are sent to %v, which has answered nothing", l.address.remote)
	}
	distinct := map[uint64]bool{}
	for _, id := range seen {
		distinct[id] = true
		if id>>32 == 0 && id > 2 {
			t.Errorf("the number %d of a probe can be guessed", id)
		}
	}
	if len(distinct) != len(seen) {
		t.Errorf("%d different numbers in %d probes", len(distinct), len(seen))
	}
}

// TestManyNewAddresses: a flood of addresses costs a bounded number of probes and no memory, and
// the path stays where it is.
func TestManyNewAddresses(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{})
	l := &s.r.links[0]
	before := l.address.remote
	l.probing.alive.Answered()
	var memory [2]runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory[0])
	const count, each = 50_000, 100 * time.Microsecond
	sent := l.sent.value().Packets
	for i := range count {
		s.r.learn(s.k, 0, s.line, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 9), netip.Addr{})
		s.k.replay[0].at, s.k.replay[0].bytes = l.address.unproved.place, 1000
		s.r.mu.Lock()
		s.now += each
		l.address.unproved.due = min(l.address.unproved.due, max(s.now, l.address.probed+provePause)) // in this time
		s.r.proving.probe(s.b, s.k, 0, s.now)
		s.b.flush()
		s.r.mu.Unlock()
	}
	if n, most := l.sent.value().Packets-sent, uint64(count*each/provePause+1); n > most || n < most/2 {
		t.Errorf("%d probes to new addresses, want at most %d", n, most)
	}
	runtime.GC()
	runtime.ReadMemStats(&memory[1])
	if more := int(memory[1].HeapAlloc) - int(memory[0].HeapAlloc); more > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", more)
	}
	if l.address.remote != before {
		t.Errorf("packets are sent to %v", l.address.remote)
	}
}

// TestRegistrationWaitsForProof: a registration that comes before its address is proved is answered
// afterwards, with that address.
func TestRegistrationWaitsForProof(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{Role: dataplane.Registrant, CareOf: 4})
	l := &s.r.links[0]
	l.address.remote = netip.AddrPort{}
	at := newSomebody(t)
	s.message(at.at, attacks["register"].kind, attacks["register"].body)
	if l.registration.until != 0 {
		t.Fatal("an address that is not proved is registered")
	}
	s.pass(granularity)
	s.answer(at, at.at)
	if l.address.remote != at.at || l.registration.until == 0 {
		t.Errorf("registered until %v at %v, want %v", l.registration.until, l.address.remote, at.at)
	}
}

// TestRegistrationWithdrawnBeforeProof: a path is not registered once its address is proved if the
// leader has withdrawn its request meanwhile.
func TestRegistrationWithdrawnBeforeProof(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{Role: dataplane.Registrant, CareOf: 4})
	l := &s.r.links[0]
	l.address.remote = netip.AddrPort{}
	at := newSomebody(t)
	s.message(at.at, attacks["register"].kind, attacks["register"].body)
	if l.address.waiting == nil {
		t.Fatal("the request does not wait")
	}
	s.message(at.at, tunnel.Control, tunnel.AppendNumbered(nil, 1, tunnel.Register{HomeAgent: netip.AddrPortFrom(netip.IPv6Unspecified(), 0)}))
	s.pass(granularity)
	s.answer(at, at.at)
	if l.address.remote != at.at || l.registration.until != 0 {
		t.Errorf("registered until %v at %v after it was withdrawn", l.registration.until, l.address.remote)
	}
}

// TestResponseFromElsewhere: a response shows that the peer has the initiation, not where it is.
func TestResponseFromElsewhere(t *testing.T) {
	s := newSpoofed(t, dataplane.Alliance{})
	l := &s.r.links[0]
	l.address.remote = netip.AddrPort{}
	victim := newSomebody(t)
	s.r.mu.Lock()
	s.r.proving.respondedFrom(s.k, place{s.line, victim.at}, 121, s.now)
	s.r.mu.Unlock()
	s.pass(time.Minute)
	if s.read(victim); victim.bytes > maxAmplification*121 || victim.messages == 0 || victim.others > 0 || l.address.remote.IsValid() {
		t.Errorf("%d bytes in %d messages to the source of a response, packets to %v", victim.bytes, victim.messages, l.address.remote)
	}
	s.answer(victim, victim.at)
}

// TestResponseCountsOnce: the bytes of a response are those of one path, of the paths of a line:
// the one that knows its source, or the first one that does not answer. A path that is where it
// came from needs no other.
func TestResponseCountsOnce(t *testing.T) {
	const paths, bytes = 4, 121
	for _, tt := range []struct {
		name  string
		setup func(s *spoofed, victim netip.AddrPort)
		want  int // path, -1 for none
	}{
		{"nothing known", func(*spoofed, netip.AddrPort) {}, 0},
		{"first one alive", func(s *spoofed, _ netip.AddrPort) {
			s.r.links[0].address.remote = netip.MustParseAddrPort("127.0.0.1:9")
			s.r.links[0].probing.alive.Answered()
		}, 1},
		{"configured", func(s *spoofed, victim netip.AddrPort) {
			s.r.links[2].address.candidates = []netip.AddrPort{victim}
		}, 2},
		{"a path is there", func(s *spoofed, victim netip.AddrPort) {
			s.r.links[3].address.remote = victim
		}, -1},
	} {
		s := newSpoofed(t, dataplane.Alliance{})
		for i := range paths {
			l := &s.r.links[i]
			l.line, l.address.remote = s.line, netip.AddrPort{}
		}
		victim := newSomebody(t)
		tt.setup(s, victim.at)
		s.r.mu.Lock()
		s.r.proving.respondedFrom(s.k, place{s.line, victim.at}, bytes, s.now)
		for end := s.now + time.Minute; s.now < end; s.now += granularity {
			for i := range paths {
				s.r.proving.probe(s.b, s.k, i, s.now)
			}
			s.b.flush()
		}
		s.r.mu.Unlock()
		if s.read(victim); victim.bytes > maxAmplification*bytes || (victim.messages > 0) != (tt.want >= 0) {
			t.Errorf("%s: %d bytes in %d messages after a response of %d", tt.name, victim.bytes, victim.messages, bytes)
		}
		for i := range paths {
			if got := s.r.links[i].address.unproved.from == victim.at; got != (i == tt.want) {
				t.Errorf("%s: path %d: suspected %v, want path %d", tt.name, i, got, tt.want)
			}
		}
	}
}

// followed is an open plane that records where the paths to a peer lead.
type followed struct{ paths []dataplane.Measured }

func (f *followed) Measured(_ string, paths []dataplane.Measured, _ uint64)    { f.paths = paths }
func (f *followed) Accept(string, []uint64) error                              { return nil }
func (f *followed) Arrived(string) (all [dataplane.MaxPaths]dataplane.Arrived) { return all }
func (f *followed) Sent(string, int) uint64                                    { return 0 }
func (f *followed) Marked(string, int, uint64)                                 {}
func (f *followed) NATSession(string, tunnel.NATSession)                       {}
func (f *followed) Wait(string, int) time.Duration                             { return 0 }

// TestKernelFollowsProvedAddresses: packets that the kernel carries, and relays, stay where the
// peer was until it has answered elsewhere.
func TestKernelFollowsProvedAddresses(t *testing.T) {
	home := netip.MustParseAddrPort("192.0.2.9:9")
	for _, mode := range []dataplane.Mode{dataplane.Unsealed, dataplane.NAT, dataplane.Plain} {
		s := newSpoofed(t, dataplane.Alliance{Role: dataplane.Leader, HomeAgents: []netip.AddrPort{home}})
		r, l, kernel := s.r, &s.r.links[0], &followed{}
		r.plane.opened, r.conf.Mode = kernel, mode
		old, next := newSomebody(t), newSomebody(t)
		l.address.remote = old.at
		l.probing.alive.Answered()
		r.mu.Lock()
		r.registering.answer(tunnel.Register{HomeAgent: home, Lifetime: time.Minute, Up: 1, Down: 1}, s.now)
		r.mu.Unlock()
		check := func(when string, want netip.AddrPort) {
			t.Helper()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.scheduling.refresh()
			r.relaying.check(r.plane.now())
			if got := kernel.paths[0].Remote; got != want {
				t.Errorf("%v, %s: the kernel sends to %v, want %v", mode, when, got, want)
			}
			if got := r.relaying.current.to.Load().from; got != want || r.plane.relayOf(s.line, want) != r.relaying.current && s.line.conf.Load().Short {
				t.Errorf("%v, %s: messages are relayed to %v, want %v", mode, when, got, want)
			}
		}
		check("before", old.at)
		s.message(next.at, tunnel.Control, nil)
		s.pass(2 * provePause)
		check("after a message from elsewhere", old.at)
		s.answer(next, next.at)
		check("after an answer", next.at)
	}
}

// rewrite has a gateway's messages on link 0 changed by nftables, as a NAT or an attacker on the
// path does.
func (g *gateway) rewrite(rules string) {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("table ip path\ndelete table ip path\ntable ip path {\n"+rules+"}\n"), 0o600); err != nil {
		g.t.Fatal(err)
	}
	g.nft("-f", file)
}

func (g *gateway) nft(args ...string) string {
	g.t.Helper()
	nft := programs.Need(g.t, "nft")
	var out []byte
	if err := netns.Do(g.namespace, func() (err error) {
		out, err = exec.Command(nft, args...).CombinedOutput()
		return err
	}); err != nil {
		g.t.Fatalf("nft %v: %v: %s", args, err, out)
	}
	return string(out)
}

const (
	outgoingChain = "chain out { type filter hook output priority -300; oifname p0 udp sport 4790 %s; }\n"
	incomingChain = "chain in { type filter hook prerouting priority -300; iifname p0 %s; }\n"
)

// TestRewrittenSource: somebody on the path gives all messages of a gateway the address of somebody
// else. Packets to it go on where they went, and the victim gets probes.
func TestRewrittenSource(t *testing.T) {
	const victim = "192.168.0.99"
	a, b := pair(t, 1)
	a.run()
	b.run()
	a.up(1)
	b.up(1)
	// What is sent to the victim comes by, to be counted.
	var mac net.HardwareAddr
	if err := netns.Do(a.namespace, func() error {
		l, err := netlink.LinkByName("p0")
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ip(t, b.namespace, "ip neighbor replace %s lladdr %s dev p0", victim, mac)
	s := b.stream(a, 1000)
	time.Sleep(200 * time.Millisecond)
	from := s.sent.Load()
	a.rewrite(fmt.Sprintf(outgoingChain, "ip saddr set "+victim) + fmt.Sprintf(incomingChain, "ip daddr "+victim+" counter drop"))
	time.Sleep(3 * time.Second)
	a.up(1)
	b.up(1)
	if lasted, lost := s.outage(from); lost > 0 {
		t.Errorf("%d datagrams were lost, the last after %v", lost, lasted)
	}
	if got := b.plane.Status().Peers[0].Links[0].Endpoint.String(); got != "192.168.0.1:4790" {
		t.Errorf("packets are sent to %s", got)
	}
	var packets, bytes int
	if m := regexp.MustCompile(`packets (\d+) bytes (\d+)`).FindStringSubmatch(a.nft("list", "table", "ip", "path")); m != nil {
		packets, _ = strconv.Atoi(m[1])
		bytes, _ = strconv.Atoi(m[2])
	}
	t.Logf("%d bytes in %d messages to the victim, of a stream of 1 MB/s", bytes, packets)
	if packets == 0 || bytes > 100*(bareProbeLen+bareAnswerLen) {
		t.Errorf("%d bytes in %d messages to the victim", bytes, packets)
	}
}

// BenchmarkRebinding measures for how long packets are lost when the only path's NAT maps it to
// another port, over a path with a round trip of 50 ms.
func BenchmarkRebinding(b *testing.B) {
	for b.Loop() {
		one, two := pair(b, 1)
		emulate(b, one, two, linkmodel.Profile{Rate: 20 * unit.MbitPerSecond, Delay: 25 * time.Millisecond})
		mapped := func(port int) {
			one.rewrite(fmt.Sprintf(outgoingChain, fmt.Sprintf("udp sport set %d", port)) + fmt.Sprintf(incomingChain, fmt.Sprintf("udp dport 4790 drop; iifname p0 udp dport %d udp dport set 4790", port)))
		}
		mapped(40001)
		one.run()
		two.run()
		one.up(1)
		two.up(1)
		up, down := one.stream(two, 100), two.stream(one, 100)
		time.Sleep(time.Second)
		from := [2]uint32{up.sent.Load(), down.sent.Load()}
		mapped(40002)
		time.Sleep(2 * time.Second)
		lasted, lost := up.outage(from[0])
		b.ReportMetric(float64(lasted.Milliseconds()), "ms-up")
		b.ReportMetric(float64(lost), "lost-up")
		lasted, lost = down.outage(from[1])
		b.ReportMetric(float64(lasted.Milliseconds()), "ms-down")
		b.ReportMetric(float64(lost), "lost-down")
		b.ReportMetric(0, "ns/op")
	}
}
