package spray

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// newSprayer returns a sprayer that is closed at the end of the test, and skips the test where the
// host has none.
func newSprayer(t testing.TB, link string) *Sprayer {
	t.Helper()
	s, err := New([]string{link})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestRoute: a route with the program of a plan can be added, is as it was when it is read again,
// and the program of another plan is another one.
func TestRoute(t *testing.T) {
	netnstest.Need(t)
	netnstest.IP(t, netnstest.Enter(t), "link set lo up")
	s := newSprayer(t, "lo")
	if err := s.Set(1, Plan{}); err == nil {
		t.Error("a plan without paths is accepted")
	}
	if err := s.Set(1, Plan{Marks: [MaxPaths]uint32{1, 2}}); err != nil {
		t.Fatal(err)
	}
	first, err := s.Program(1)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Program(1); err != nil || again != first {
		t.Errorf("the program of the plan is %d, and then %d: %v", first, again, err)
	}
	if other, err := s.Program(2); err != nil || other == first {
		t.Errorf("the programs of two plans are %d and %d: %v", first, other, err)
	}
	c, err := route.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, dst := range []string{"2001:db8:c::/64", "198.51.100.0/24"} {
		want := route.Route{Table: 77, Dst: netip.MustParsePrefix(dst), Metric: 4095, Link: "lo", Program: first, MTU: 1460}
		if err := errors.Join(c.Apply([]route.Op{{Protocol: route.Edge, Object: want}})...); err != nil {
			t.Fatal(err)
		}
		routes, err := c.Unicast(func(table uint32) bool { return table == 77 })
		if err != nil || routes[len(routes)-1] != want {
			t.Errorf("%v, %v, want %v", routes, err, want)
		}
		if err := errors.Join(c.Apply([]route.Op{{Protocol: route.Edge, Object: want, Delete: true}})...); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(1); err != nil {
		t.Error(err)
	}
	late := route.Route{Table: 77, Dst: netip.MustParsePrefix("2001:db8::/64"), Link: "lo", Program: first}
	if err := errors.Join(c.Apply([]route.Op{{Protocol: route.Edge, Object: late}})...); err == nil {
		t.Error("a route has the program of a plan that was removed")
	}
}

// TestVolumes: what a flow of UDP carried is counted for its network and its path.
func TestVolumes(t *testing.T) {
	n := newBench(t)
	const batch = 128 // datagrams of a flow that are counted at once
	to := netip.AddrPortFrom(sprayed.Addr().Next(), 9).String()
	netnstest.Do(t, n.router, func() error {
		l, err := net.ListenPacket("udp", to)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	netnstest.Do(t, n.server, func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		for range batch + 1 {
			if _, err := c.Write(make([]byte, 1000)); err != nil {
				return err
			}
		}
		return nil
	})
	const bytes = batch * 1000
	udp, err := n.sprayer.UDP()
	if err != nil || len(udp) != 1 || udp[0x7ab50000] != bytes {
		t.Errorf("%v, %v", udp, err)
	}
	known, err := n.sprayer.Known()
	if want := []Known{{Network: netip.MustParsePrefix("2001:db8:d::/48"), Mark: 0x7ab50000, UDP: bytes}}; err != nil || !slices.Equal(known, want) {
		t.Errorf("%+v, %v, want %+v", known, err, want)
	}
}

// packet is a frame with a packet between a server and a client, up to the ports, and length bytes.
func packet(sent bool, protocol byte, length int) []byte {
	local, remote := netip.MustParseAddr("2001:db8:1::10"), sprayed.Addr().Next()
	ports := [2]uint16{80, 40000}
	if !sent {
		local, remote, ports = remote, local, [2]uint16{40000, 80}
	}
	f := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(length))
	f = append(append(append(f, protocol, 64), local.AsSlice()...), remote.AsSlice()...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(f, ports[0]), ports[1])
}

// datagram is a frame with a datagram between them.
func datagram(sent bool, payload int) []byte {
	f := packet(sent, unix.IPPROTO_UDP, 8+payload)
	f = binary.BigEndian.AppendUint16(f, uint16(8+payload))
	return append(f, make([]byte, 2+payload)...)
}

// segment is a frame with a segment between them, with timestamps.
func segment(sent bool, sequence, ack uint32, stamp, echo uint32, payload int) []byte {
	f := packet(sent, unix.IPPROTO_TCP, 32+payload)
	f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(f, sequence), ack)
	f = append(f, 8<<4, 0x10, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10)
	f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(f, stamp), echo)
	return append(f, make([]byte, payload)...)
}

// path runs the program of routes on a frame, and returns the path by its mark.
func (n *bench) path(t *testing.T, frame []byte) uint32 {
	t.Helper()
	const length, mark = 192, 8 // of struct __sk_buff, and where it has the mark
	out := make([]byte, length)
	if _, err := n.sprayer.objects.Send.Run(&ebpf.RunOptions{Data: frame, ContextOut: out}); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint32(out[mark:]) - 0x7ab50000
}

// receive runs the program at ingress on a frame.
func (n *bench) receive(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := n.sprayer.objects.Receive.Run(&ebpf.RunOptions{Data: frame}); err != nil {
		t.Fatal(err)
	}
}

// TestSentElsewhere: a connection whose packets pass the program from some time on, as after a
// reload, retransmits what was sent before. That the first one of these arrives is no round trip of
// what was sent again. Nor is a rate known of one that sends a segment at a time.
func TestSentElsewhere(t *testing.T) {
	const size, stamp = 1000, 5000
	for _, c := range []struct {
		name  string
		gap   uint32 // sent elsewhere after the first segment
		echo  uint32
		waits bool // the application sends a segment when the one before was acknowledged
		known bool
	}{
		{"all is seen", 0, stamp, false, true},
		{"the first ones were sent before", 0, stamp - 1, false, false},
		{"so were some later", 9 * size, stamp, false, false},
		{"the application pauses", 0, stamp, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newBench(t)
			sequence, last := uint32(100), uint32(stamp)
			n.path(t, segment(true, sequence, 1, last, 0, size))
			sequence += size + c.gap
			last += c.gap
			for range 200 { // of which 128 are remembered
				n.path(t, segment(true, sequence, 1, last, 0, size))
				sequence += size
				ack := sequence
				if !c.waits {
					ack -= 2 * size
				}
				n.receive(t, segment(false, 1, ack, 1, c.echo, 0))
			}
			known, err := n.sprayer.Known()
			if err != nil || len(known) != 1 || known[0].TCP == 0 {
				t.Fatalf("%+v, %v", known, err)
			}
			if got := known[0].MinRTT > 0; got != c.known {
				t.Errorf("a round trip of %v, with a rate of %v", known[0].MinRTT, known[0].Rate)
			}
		})
	}
}

// TestVerified: the programs stay far from the 1,000,000 instructions that the verifier looks at:
// other kernels look at more of the same program, and loading takes their time.
func TestVerified(t *testing.T) {
	netnstest.Need(t)
	netnstest.Enter(t)
	s, err := New(nil)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Program(1); err != nil {
		t.Fatal(err)
	}
	for most, p := range map[uint32]*ebpf.Program{100_000: s.objects.Send, 50_000: s.objects.Receive, 100: s.programs[1]} {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := info.VerifiedInstructions(); ok && n > most {
			t.Errorf("%s: the verifier looked at %d instructions, want at most %d", info.Name, n, most)
		}
	}
}

// TestPortsReused: a connection with the addresses and ports of one that failed a moment ago, and
// with lower sequence numbers, is a new one: it stays on the first path, and what it learns is known.
func TestPortsReused(t *testing.T) {
	n := newBench(t)
	const size = 1000
	connection := func(sequence uint32) {
		t.Helper()
		syn := segment(true, sequence-1, 1, 0, 0, 0)
		syn[14+40+13] = 0x12
		n.path(t, syn)
		for i := range uint32(200) {
			if path := n.path(t, segment(true, sequence, 1, 1, 0, size)); path != 0 {
				t.Fatalf("segment %d takes path %d", i, path)
			}
			sequence += size
			n.receive(t, segment(false, 1, sequence, 1, 1, 0))
		}
		n.path(t, segment(true, sequence, 1, 1, 0, size)) // and nothing more of the client
	}
	tcp := func() uint64 {
		known, err := n.sprayer.Known()
		if err != nil || len(known) != 1 {
			t.Fatalf("%+v, %v", known, err)
		}
		return known[0].TCP
	}
	connection(1 << 30)
	before := tcp()
	time.Sleep(400 * time.Millisecond) // in which the last segment is overdue
	connection(1 << 29)
	if after := tcp(); after != 2*before {
		t.Errorf("connections carried %d and then %d bytes", before, after-before)
	}
}

// TestSlowResponse: a server of QUIC acknowledges a request at once, and responds later. That the
// client is silent meanwhile says nothing of the first path.
func TestSlowResponse(t *testing.T) {
	n := newBench(t)
	const acknowledgment, data = 40, 1200
	n.path(t, datagram(true, data)) // of the handshake
	n.receive(t, datagram(false, data))
	n.path(t, datagram(true, acknowledgment))
	time.Sleep(400 * time.Millisecond)
	for range 10 {
		if path := n.path(t, datagram(true, data)); path != 0 {
			t.Fatalf("the response takes path %d", path)
		}
	}
	time.Sleep(400 * time.Millisecond)
	if path := n.path(t, datagram(true, data)); path != 1 {
		t.Errorf("what is sent when nothing of the response was answered takes path %d", path)
	}
}

// TestIdle: places of connections and flows that ended long ago are used again, whatever the state of
// clocks of 32 bits.
func TestIdle(t *testing.T) {
	const learned = 128          // packets after which what is known is remembered
	const used, counted = 36, 40 // offsets of struct connection, and of struct datagrams
	for _, ago := range []time.Duration{3 * time.Second, 20 * time.Minute, 40 * time.Minute, 70 * time.Minute, 10 * time.Hour} {
		t.Run(ago.String(), func(t *testing.T) {
			n := newBench(t)
			for _, m := range []*ebpf.Map{n.sprayer.objects.Connections, n.sprayer.objects.Flows} {
				old := make([]byte, m.ValueSize())
				old[0] = 1 // another address
				binary.NativeEndian.PutUint32(old[used:], uint32((clock.Monotonic() - ago).Microseconds()))
				binary.NativeEndian.PutUint32(old[counted:], 1)
				for i := range m.MaxEntries() {
					if err := m.Put(i, old); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range uint32(learned + 1) {
				n.path(t, segment(true, 1+i*1000, 1, 1, 0, 1000))
				n.receive(t, segment(false, 1, 1001+i*1000, 1, 1, 0))
				n.path(t, datagram(true, 1000))
			}
			known, err := n.sprayer.Known()
			if err != nil || len(known) != 1 || known[0].TCP == 0 || known[0].UDP == 0 {
				t.Errorf("%+v, %v", known, err)
			}
		})
	}
}

// TestClumsyClient: whatever a client acknowledges, of what was never sent, in blocks that are
// reversed, overlap or repeat, with timestamps that jump, packets take the paths that the plan has
// then, and nothing is known of other networks.
func TestClumsyClient(t *testing.T) {
	n := newBench(t)
	r := rand.New(rand.NewPCG(1, 2))
	sequence, plan := uint32(1<<32-100_000), []uint32{0, 1}
	near := func() uint32 {
		if r.IntN(8) == 0 {
			return r.Uint32()
		}
		return sequence - uint32(r.IntN(60_000)) + 2000
	}
	for i := range 3000 {
		if i%500 == 499 {
			plan = [][]uint32{{0, 1}, {1}, {0}}[r.IntN(3)]
			p := Plan{Rule: 1}
			for _, path := range plan {
				p.Marks[path] = 0x7ab50000 + path
			}
			if err := n.sprayer.Set(0, p); err != nil {
				t.Fatal(err)
			}
		}
		at := sequence
		switch r.IntN(20) {
		case 0:
			at = near()
		case 1:
			sequence += r.Uint32N(5000) // sent elsewhere
		}
		if path := n.path(t, segment(true, at, 1, uint32(i), 0, 1000)); !slices.Contains(plan, path) {
			t.Fatalf("segment %d takes path %d of %d", i, path, plan)
		}
		if at == sequence {
			sequence += 1000
		}
		// The timestamps are in front; 2 blocks follow.
		f := segment(false, 1, near(), r.Uint32(), uint32(i)-uint32(r.IntN(3)), 20)
		tcp := f[14+40:]
		tcp[12] = 13 << 4
		copy(tcp[32:], []byte{1, 1, 5, []byte{18, 10, 2, 0, 255}[r.IntN(5)]})
		for at := 36; at < 52; at += 4 {
			binary.BigEndian.PutUint32(tcp[at:], near())
		}
		n.receive(t, f)
	}
	known, err := n.sprayer.Known()
	if err != nil || len(known) == 0 {
		t.Fatalf("%+v, %v", known, err)
	}
	for _, k := range known {
		if k.Network != netip.MustParsePrefix("2001:db8:d::/48") {
			t.Errorf("%+v is known", k)
		}
	}
}

// TestTrialEnds: a trial of a path ends with a retransmission, when the peer that was the first one
// before has no route any more.
func TestTrialEnds(t *testing.T) {
	n := newBench(t)
	now := uint64(clock.Monotonic())
	for mark, m := range map[uint32]programMemory{
		0x7ab50000: {Seen: now, Learned: now, Rate: 1000, Shortest: 10_000},
		0x7ab50001: {Seen: now},
	} {
		key := programNetwork{Prefix: [8]uint8{0x20, 0x01, 0x0d, 0xb8, 0, 0x0d}, Mark: mark, Family: 6}
		if err := n.sprayer.objects.Networks.Put(key, m); err != nil {
			t.Fatal(err)
		}
	}
	s := segment(true, 1, 1, 1, 0, 1000)
	if path := n.path(t, s); path != 1 {
		t.Fatalf("path %d is tried", path)
	}
	if err := n.sprayer.Set(0, Plan{Rule: 1, Marks: [MaxPaths]uint32{0, 0x7ab50001}}); err != nil {
		t.Fatal(err)
	}
	if path := n.path(t, s); path != 1 {
		t.Errorf("the retransmission takes path %d", path)
	}
}

// TestFlowsOfAClient: two flows of datagrams that fill the first path together, and not alone, take
// the other one as well.
func TestFlowsOfAClient(t *testing.T) {
	n := newBench(t)
	const size, rate = 1200, 10_000 // bytes, and bytes per millisecond
	now := uint64(clock.Monotonic())
	for mark, m := range map[uint32]programMemory{
		0x7ab50000: {Learned: now, Rate: rate, Shortest: 10_000},
		0x7ab50001: {Learned: now, Rate: rate, Shortest: 20_000},
		0:          {Learned: now, Rate: rate}, // spraying gained
	} {
		key := programNetwork{Prefix: [8]uint8{0x20, 0x01, 0x0d, 0xb8, 0, 0x0d}, Mark: mark, Family: 6}
		if err := n.sprayer.objects.Networks.Put(key, m); err != nil {
			t.Fatal(err)
		}
	}
	var flows [2][]byte
	for i := range flows {
		flows[i] = datagram(true, size)
		binary.BigEndian.PutUint16(flows[i][14+40+2:], uint16(40000+i))
	}
	others := 0
	for began, sent := time.Now(), 0; sent < 10_000_000; sent += len(flows) * size {
		// Each has 0.6 of the first path's rate.
		time.Sleep(time.Until(began.Add(time.Duration(sent) * 5 / 6 * time.Millisecond / rate)))
		for _, f := range flows {
			if n.path(t, f) == 1 {
				others += size
			}
		}
	}
	if others < 1_000_000 {
		t.Errorf("%d of 10 MB take the other path", others)
	}
}

// TestFullRecords: what home carries counts although more is in flight than a connection has records.
func TestFullRecords(t *testing.T) {
	n := newBench(t)
	const size, sent = 1000, 700
	for i := range uint32(sent + 1) {
		n.path(t, segment(true, 1+i*size, 1, 1, 0, size))
	}
	known, err := n.sprayer.Known()
	if err != nil || len(known) != 1 || known[0].TCP != sent*size {
		t.Errorf("%+v, %v, want %d bytes", known, err, sent*size)
	}
}

// TestSilentClient: a flow whose client is not heard over any path, as while the uplink is down, begins
// again where it was before.
func TestSilentClient(t *testing.T) {
	n := newBench(t)
	send := func() uint32 { return n.path(t, datagram(true, 1200)) }
	heard := func() { n.receive(t, datagram(false, 100)) }
	send()
	heard()
	path := uint32(0)
	for moved, until := 0, time.Now().Add(time.Minute); moved < 3; time.Sleep(5 * time.Millisecond) {
		if now := send(); now != path {
			path = now
			moved++
		}
		if time.Now().After(until) {
			t.Fatalf("the flow moves %d times", moved)
		}
	}
	heard()
	if got := send(); path != 1 || got != 0 {
		t.Errorf("the flow takes path %d, and once its client is heard %d", path, got)
	}
}

// TestProbes: a flow whose sender gets no acknowledgments takes another path although its client is
// heard, which probes as well while only the way to it is interrupted.
func TestProbes(t *testing.T) {
	n := newBench(t)
	send := func() uint32 { return n.path(t, datagram(true, 1200)) }
	heard := func() { n.receive(t, datagram(false, 29)) }
	for range 100 {
		send()
		heard()
	}
	last, until := time.Now(), time.Now().Add(time.Minute)
	for moved := false; !moved; {
		// On a busy machine a pause may be longer than wanted, and the next one not twice as long: then
		// from the start.
		gap := time.Duration(0)
		for i := range 3 {
			gap = max(2*gap, 50*time.Millisecond)
			time.Sleep(gap * 3 / 4)
			heard()
			n.path(t, datagram(true, 40))
			time.Sleep(time.Until(last.Add(gap)))
			now := time.Now()
			gap, last = now.Sub(last), now
			send()
			if moved = send() == 1; moved && i < 2 {
				t.Fatalf("probe %d takes another path", i+1)
			}
		}
		if time.Now().After(until) {
			t.Fatal("the flow stays on its path")
		}
	}
}

// TestRoundTripAfterOutage: of a path that carried nothing for some time, and was left, round trips
// of what it had in flight then are not remembered.
func TestRoundTripAfterOutage(t *testing.T) {
	const size, outage = 1000, 400 * time.Millisecond
	n := newBench(t)
	sequence := uint32(1)
	send := func() uint32 {
		sequence += size
		return n.path(t, segment(true, sequence-size, 1, 1, 0, size))
	}
	acknowledge := func() { n.receive(t, segment(false, 1, sequence, 1, 1, 0)) }
	for range 200 {
		send()
		acknowledge()
	}
	lost := sequence
	for range 20 {
		send()
	}
	time.Sleep(outage)
	if path := n.path(t, segment(true, lost, 1, 1, 0, size)); path != 1 {
		t.Fatalf("what is sent again takes path %d", path)
	}
	for range 300 {
		acknowledge()
		send()
	}
	known, err := n.sprayer.Known()
	if err != nil || len(known) == 0 {
		t.Fatalf("%+v, %v", known, err)
	}
	for _, k := range known {
		if k.MinRTT >= outage {
			t.Errorf("%+v is remembered", k)
		}
	}
}

// TestLossyFirstPath: where the first path loses without a queue, a connection tries another one,
// although nothing ever arrived over that.
func TestLossyFirstPath(t *testing.T) {
	for loses, want := range []uint32{0, 1} {
		n := newBench(t)
		m := programMemory{Learned: uint64(clock.Monotonic()), Rate: 1000, Shortest: 10_000, Loses: uint64(loses)}
		key := programNetwork{Prefix: [8]uint8{0x20, 0x01, 0x0d, 0xb8, 0, 0x0d}, Mark: 0x7ab50000, Family: 6}
		if err := n.sprayer.objects.Networks.Put(key, m); err != nil {
			t.Fatal(err)
		}
		for i, want := range []uint32{want, 0} { // once
			s := segment(true, 1, 1, 1, 0, 1000)
			s[14+40+3] += byte(i)
			if path := n.path(t, s); path != want {
				t.Errorf("losses %d: connection %d begins on path %d, want %d", loses, i, path, want)
			}
		}
	}
}

// TestReadAgain: acknowledgments are read again on an interface that was made again.
func TestReadAgain(t *testing.T) {
	netnstest.Need(t)
	namespace := netnstest.Enter(t)
	const lan = "link add lan type veth peer name far"
	netnstest.IP(t, namespace, lan)
	s := newSprayer(t, "lan")
	unread := func(when string, want ...string) {
		t.Helper()
		if links, err := s.Unread(); err != nil || !slices.Equal(links, want) {
			t.Errorf("%s: not read on %v, %v, want %v", when, links, err, want)
		}
	}
	unread("at the start")
	netnstest.IP(t, namespace, "link delete lan")
	unread("without the interface")
	netnstest.IP(t, namespace, lan)
	unread("made again", "lan")
	if err := s.Read(false); err != nil {
		t.Error(err)
	}
	unread("read again")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	unread("closed")
}

// TestUnheard: connections whose acknowledgments are not seen are counted, and the filter is put
// before a program of others that accepts them.
func TestUnheard(t *testing.T) {
	const size, packets = 1000, 130
	n := newBench(t)
	unheard := func() uint64 {
		t.Helper()
		count, err := n.sprayer.Unheard()
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	send := func(from uint32, acknowledged bool) {
		t.Helper()
		n.path(t, syn(from-1))
		for i := range uint32(packets) {
			n.path(t, segment(true, from+i*size, 1, 1, 0, size))
			if acknowledged {
				n.receive(t, segment(false, 1, from+(i+1)*size, 1, 1, 0))
			}
		}
	}
	if send(1, true); unheard() != 0 {
		t.Error("a connection that is acknowledged counts")
	}
	if send(1<<20, false); unheard() != 1 {
		t.Errorf("%d connections of 1 count", unheard())
	}

	accept, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer accept.Close()
	netnstest.Do(t, n.server, func() error {
		lan, err := net.InterfaceByName("lan")
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: lan.Index, Program: accept, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if errors.Is(err, ebpf.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			return err
		}
		defer l.Close()
		for _, first := range []bool{false, true} {
			place, err := bpf.PlaceOf(n.sprayer.attached["lan"])
			if err != nil || place != bpf.Behind {
				t.Errorf("place %d, %v", place, err)
			}
			if err := n.sprayer.Read(first); err != nil {
				return err
			}
		}
		place, err := bpf.PlaceOf(n.sprayer.attached["lan"])
		if place != bpf.Placed {
			t.Errorf("read again: place %d", place)
		}
		return err
	})
}

// syn is a SYN-ACK of the connection of segments.
func syn(sequence uint32) []byte {
	f := segment(true, sequence, 1, 1, 0, 0)
	f[14+40+13] |= 2
	return f
}
