package openbpf

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func load(t testing.TB, o Options) *Program {
	t.Helper()
	netnstest.Need(t)
	p, err := Load(o)
	return closed(t, p, err)
}

// loadBefore62 loads the program as a kernel before Linux 6.2 does, which lacks
// bpf_cast_to_kern_ctx.
func loadBefore62(t testing.TB) *Program {
	t.Helper()
	netnstest.Need(t)
	spec, err := loadProgram()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			switch ins := &p.Instructions[i]; {
			case ins.IsKfuncCall():
				*ins = asm.FnKtimeGetNs.Call() // never run, or the verifier refuses what follows
				calls++
			case ins.Reference() == "bpf_cast_to_kern_ctx":
				*ins = asm.LoadImm(ins.Dst, 0, asm.DWord)
			}
		}
	}
	if calls == 0 {
		t.Fatal("the program calls nothing that kernels before Linux 6.2 lack")
	}
	p, err := loadSpec(spec, Options{})
	return closed(t, p, err)
}

// closed has a program closed when the test ends.
func closed(t testing.TB, p *Program, err error) *Program {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// message is a packet to be built, and what rules know of it.
type message struct {
	dataplane.Packet
	hops     uint8
	fragment uint16 // the field of IPv4, or of the fragment header
	options  []byte // of IPv4, or extension headers, the first of type extension
	first    uint8
	payload  int
}

// frame builds the packet with an Ethernet header for the loopback interface.
func (m *message) frame() []byte {
	upper := make([]byte, 20+m.payload)
	binary.BigEndian.PutUint16(upper, m.SrcPort)
	binary.BigEndian.PutUint16(upper[2:], m.DstPort)
	upper[12] = 5 << 4
	b := make([]byte, 14)
	if m.Src.Is4() {
		b[12] = 8
		h := make([]byte, 20, 60)
		h = append(h, m.options...)
		h[0], h[1], h[8], h[9] = 4<<4|uint8(len(h)/4), m.DSCP<<2|1, m.hops, m.Protocol
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(upper)))
		binary.BigEndian.PutUint16(h[6:], m.fragment)
		src, dst := m.Src.As4(), m.Dst.As4()
		copy(h[12:], src[:])
		copy(h[16:], dst[:])
		binary.BigEndian.PutUint16(h[10:], checksum.Of(h))
		return append(append(b, h...), upper...)
	}
	b[12], b[13] = 0x86, 0xdd
	h := make([]byte, 40)
	binary.BigEndian.PutUint32(h, 6<<28|uint32(m.DSCP)<<22|1<<20)
	binary.BigEndian.PutUint16(h[4:], uint16(len(m.options)+len(upper)))
	h[6], h[7] = m.Protocol, m.hops
	if len(m.options) > 0 {
		h[6] = m.first
	}
	src, dst := m.Src.As16(), m.Dst.As16()
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	return append(append(append(b, h...), m.options...), upper...)
}

const next, redirect = ^uint32(0), 7 // TC_NEXT, TC_ACT_REDIRECT

// counted checks that a reason is counted once more than before, none if it is empty, and no other
// one.
func counted(t testing.TB, name string, reasons []string, before, after map[string]uint64, reason string) {
	t.Helper()
	for _, r := range reasons {
		want := uint64(0)
		if r == reason {
			want = 1
		}
		if n := after[r] - before[r]; n != want {
			t.Errorf("%s: %q is counted %d times", name, r, n)
		}
	}
}

// run runs the program on a frame and returns what becomes of it.
func (p *Program) run(t testing.TB, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	return p.runMarked(t, frame, 0)
}

// runMarked does the same with a packet that has a mark.
func (p *Program) runMarked(t testing.TB, frame []byte, mark uint32) (verdict uint32, out []byte) {
	t.Helper()
	var context [192]byte // struct __sk_buff
	binary.NativeEndian.PutUint32(context[8:], mark)
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+128), Context: context, Repeat: 1}
	verdict, err := p.objects.Split.Run(&o)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, o.DataOut
}

// plans sets a plan for each rule of a policy to peer 0: paths of the same rate.
func (p *Program) plans(t testing.TB, policy dataplane.Policy, discipline string, mtu, paths int, ways ...Way) {
	t.Helper()
	planner, err := sched.NewPlanner(discipline, sched.Options{Size: 1500, Tie: sched.Tie})
	if err != nil {
		t.Fatal(err)
	}
	list := make([]sched.Path, paths)
	for i := range list {
		list[i] = sched.Path{Usable: true, Room: math.MaxInt32, Rate: 1 << 40, Ratio: 1}
	}
	for len(ways) < paths {
		ways = append(ways, Way{Interface: 1, IPv4: netip.MustParseAddr("192.0.2.1"), IPv6: netip.MustParseAddr("2001:db8::1")})
	}
	tunnel := len(ways) > 0 && ways[0].Remote.IsValid()
	nat := len(ways) > 0 && ways[0].Local.IsValid() && !tunnel
	for i := range policy {
		if err := p.SetPlan(Key{Generation: 1, Rule: i}, Plan{
			Choice: planner.Plan(list), MTU: mtu, Table: NoTable, Ways: ways, NAT: nat, Tunnel: tunnel, Cookie: cookieOf(0),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.SetPolicy(1, policy); err != nil {
		t.Fatal(err)
	}
}

// cookieOf is that of a peer.
func cookieOf(peer int) uint64 { return 0x0123456789abcdef + uint64(peer) }

func (p *Program) routes4and6(t testing.TB) {
	t.Helper()
	if err := p.SetRoutes(map[netip.Prefix]int{
		netip.MustParsePrefix("10.2.0.0/16"): 0, netip.MustParsePrefix("2001:db8:2::/48"): 0,
		netip.MustParsePrefix("10.2.9.0/24"): -1, netip.MustParsePrefix("2001:db8:2:9::/64"): -1,
	}); err != nil {
		t.Fatal(err)
	}
}

var (
	from4, to4 = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1")
	from6, to6 = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")
)

// draw draws a message that the program sends.
func draw(r *rand.Rand) message {
	protocols := []uint8{1, 6, 17, 33, 47, 50, 58, 132, 136}
	m := message{hops: uint8(2 + r.IntN(254)), payload: r.IntN(1000)}
	m.Protocol, m.DSCP = protocols[r.IntN(len(protocols))], uint8(r.IntN(4))*10
	m.Src, m.Dst = from4, to4
	if r.IntN(2) == 0 {
		m.Src, m.Dst = from6, to6
	}
	later := false
	switch field := []uint16{0, 0x2000, 0x2010, 0x0010}[r.IntN(4)]; {
	case m.Src.Is4():
		m.fragment, later = field|0x4000*uint16(r.IntN(2)), field&0x1fff != 0
	case r.IntN(2) == 0: // a fragment header
		later = field&0x1fff != 0
		m.first = 44
		m.options = []byte{m.Protocol, 0, uint8(field << 3 >> 8), uint8(field << 3), 0, 0, 0, 1}
	case r.IntN(2) == 0: // a destination option
		m.first = 60
		m.options = []byte{m.Protocol, 0, 1, 4, 0, 0, 0, 0}
	}
	switch m.Protocol {
	case 6, 17, 33, 132, 136:
		m.SrcPort, m.DstPort = uint16(1+r.IntN(4)), uint16(1+r.IntN(4))
	}
	if later {
		m.SrcPort, m.DstPort = 0, 0
	}
	m.Mark, m.HasMark = uint32(r.IntN(4))<<4|uint32(r.IntN(2)), true
	return m
}

// drawRules draws a policy whose last rule matches all packets.
func drawRules(r *rand.Rand) dataplane.Policy {
	prefixes := []netip.Prefix{{}, {}, {}, {}}
	for _, s := range []string{"10.1.0.0/16", "10.2.0.1/32", "0.0.0.0/0", "10.128.0.0/9", "2001:db8:2::/47", "2001:db8:1::1/128", "::/1"} {
		prefixes = append(prefixes, netip.MustParsePrefix(s))
	}
	policy := make(dataplane.Policy, 1+r.IntN(MaxRules))
	for i := range policy[:len(policy)-1] {
		m := &policy[i].Match
		m.Protocols = [][]uint8{nil, {6}, {17}, {1, 58}, {50}}[r.IntN(5)]
		if r.IntN(2) == 0 {
			m.Port = uint16(1 + r.IntN(6))
		}
		if m.HasDSCP = r.IntN(2) == 0; m.HasDSCP {
			m.DSCP = uint8(r.IntN(4)) * 10
		}
		m.Prefix = prefixes[r.IntN(len(prefixes))]
		if r.IntN(3) == 0 {
			m.MarkMask = []uint32{0xf0, 0x0f, 0xffffffff}[r.IntN(3)]
			m.Mark = (uint32(r.IntN(4))<<4 | uint32(r.IntN(2))) & m.MarkMask
		}
	}
	return policy
}

// TestRuleIsThePolicys: the program finds the rule that dataplane.Policy does, for random rules and
// packets, sends the packet as it is but for the TTL, and counts it.
func TestRuleIsThePolicys(t *testing.T) {
	p := load(t, Options{})
	p.routes4and6(t)
	r := rand.New(rand.NewPCG(12, 2))
	hit := map[int]int{}
	for range 40 {
		policy := drawRules(r)
		p.plans(t, policy, "best", 1500, 1)
		if err := p.Reset(0); err != nil {
			t.Fatal(err)
		}
		var want [MaxRules]dataplane.Count
		for range 40 {
			m := draw(r)
			frame := m.frame()
			rule := policy.First(&m.Packet)
			hit[min(rule, 3)]++
			want[rule].Packets++
			want[rule].Bytes += uint64(len(frame) - 14)
			verdict, out := p.runMarked(t, frame, m.Mark)
			if verdict != redirect {
				t.Fatalf("%+v: verdict %d", m, int32(verdict))
			}
			// The packet with one hop less is what the program has made of it.
			m.hops--
			if string(out) != string(m.frame()) {
				t.Fatalf("%+v:\n%x, want\n%x", m, out, m.frame())
			}
		}
		got, err := p.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got.Rules[i].Sent != want[i] {
				t.Fatalf("rule %d of %+v has sent %v, want %v", i, policy, got.Rules[i].Sent, want[i])
			}
		}
	}
	if len(hit) < 4 {
		t.Errorf("few rules were hit: %v", hit)
	}
}

// TestLeft: what the program must not send is left to the kernel unchanged, and counted.
func TestLeft(t *testing.T) {
	p := load(t, Options{})
	p.routes4and6(t)
	policy := dataplane.Policy{{}}
	p.plans(t, policy, "dq", 1000, 2)
	udp := func(src, dst string, change func(m *message)) []byte {
		m := message{Packet: dataplane.Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 100}
		if change != nil {
			change(&m)
		}
		return m.frame()
	}
	big := func(m *message) { m.payload = 1000 }
	ends := func(m *message) { m.hops = 1 }
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	other := udp("10.1.0.1", "10.2.0.1", nil)
	other[0] = 2 // to another host
	truncated := udp("2001:db8:1::1", "2001:db8:2::1", func(m *message) { m.first, m.options = 60, []byte{17, 200, 1, 4, 0, 0, 0, 0} })
	for name, tt := range map[string]struct {
		frame []byte
		want  string
	}{
		"another prefix":          {udp("10.1.0.1", "10.3.0.1", nil), ""},
		"another prefix, IPv6":    {udp("2001:db8:1::1", "2001:db8:3::1", nil), ""},
		"an address of this host": {udp("10.1.0.1", "10.2.9.1", nil), ""},
		"the LAN's, IPv6":         {udp("2001:db8:1::1", "2001:db8:2:9::1", nil), ""},
		"ARP":                     {arp, ""},
		"another host's frame":    {other, ""},
		"options":                 {udp("10.1.0.1", "10.2.0.1", func(m *message) { m.options = []byte{1, 1, 1, 0} }), "options"},
		"hop-by-hop options":      {udp("2001:db8:1::1", "2001:db8:2::1", func(m *message) { m.options = []byte{17, 0, 5, 2, 0, 0, 1, 0} }), "options"},
		"loopback source":         {udp("127.0.0.1", "10.2.0.1", nil), "source of no host"},
		"multicast source":        {udp("224.0.0.1", "10.2.0.1", nil), "source of no host"},
		"link-local source":       {udp("fe80::1", "2001:db8:2::1", nil), "source of no host"},
		"unspecified source":      {udp("::", "2001:db8:2::1", nil), "source of no host"},
		"last hop":                {udp("10.1.0.1", "10.2.0.1", ends), "hop limit"},
		"last hop, IPv6":          {udp("2001:db8:1::1", "2001:db8:2::1", ends), "hop limit"},
		"too big":                 {udp("10.1.0.1", "10.2.0.1", big), "too big"},
		"too big, IPv6":           {udp("2001:db8:1::1", "2001:db8:2::1", big), "too big"},
		"cut extension header":    {truncated, "malformed"},
	} {
		before, err := p.Left()
		if err != nil {
			t.Fatal(err)
		}
		verdict, out := p.run(t, tt.frame)
		after, err := p.Left()
		if err != nil {
			t.Fatal(err)
		}
		if verdict != next || string(out) != string(tt.frame) {
			t.Errorf("%s: verdict %d, packet\n%x, was\n%x", name, int32(verdict), out, tt.frame)
		}
		counted(t, name, leftNames, before, after, tt.want)
	}
	if traffic, err := p.Traffic(0); err != nil || traffic.Paths[0].Packets+traffic.Paths[1].Packets != 0 {
		t.Errorf("sent %+v, %v", traffic.Paths, err)
	}

	// Without paths, and without a plan or policy of this generation.
	frame := udp("10.1.0.1", "10.2.0.1", nil)
	if verdict, _ := p.run(t, frame); verdict != redirect {
		t.Errorf("verdict %d", int32(verdict))
	}
	if err := p.SetPolicy(2, policy); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := p.run(t, frame); verdict != next {
		t.Errorf("verdict %d with a plan of another generation", int32(verdict))
	}
	p.plans(t, policy, "dq", 1500, 0)
	if verdict, _ := p.run(t, frame); verdict != next {
		t.Errorf("verdict %d without paths", int32(verdict))
	}
	if left, err := p.Left(); err != nil || left["no path"] != 2 {
		t.Errorf("left %v, %v", left, err)
	}
}

// BenchmarkSplit measures the program per packet, the test harness of the kernel included, which
// "other" is hardly more than.
func BenchmarkSplit(b *testing.B) {
	for _, bb := range []struct {
		name, discipline string
		paths            int
		to               netip.Addr
	}{
		{"other", "dq", 2, netip.MustParseAddr("10.3.0.1")},
		{"dq-2", "dq", 2, to4},
		{"dq-16", "dq", 16, to4},
		{"dq-2-ipv6", "dq", 2, to6},
		{"ratio-2", "ratio", 2, to4},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := load(b, Options{})
			p.routes4and6(b)
			p.plans(b, dataplane.Policy{{}}, bb.discipline, 1500, bb.paths)
			m := message{Packet: dataplane.Packet{Src: from4, Dst: bb.to, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 255, payload: 960}
			if bb.to.Is6() {
				m.Src = from6
			}
			frame := m.frame()
			var total time.Duration
			n := 0
			for b.Loop() {
				// The packet loses a hop each time.
				const repeat = 200
				_, d, err := p.objects.Split.Benchmark(frame, repeat, nil)
				if err != nil {
					b.Fatal(err)
				}
				total += d
				n++
			}
			b.ReportMetric(float64(total.Nanoseconds())/float64(n), "ns/packet")
		})
	}
}

// TestOwnersAreCurrent: after prefixes, origins or the policy have changed, no packet is sent,
// restored or left by those of before, which the program remembers.
func TestOwnersAreCurrent(t *testing.T) {
	local := netip.MustParseAddr("192.0.2.9")
	s := newSites(t, local)
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1000, DstPort: 2000}, hops: 9}
	f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(from4, 1000), Destination: netip.AddrPortFrom(to4, 2000)}
	if err := errors.Join(s.near.SetSession(This, f, true), s.far.SetSession(3, f, true)); err != nil {
		t.Fatal(err)
	}
	frame := m.frame()
	setChecksum(frame)
	peer, lan := netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")
	for round := range 3 {
		for owner, want := range map[int]uint32{0: redirect, Kernel: next, Own: next} {
			if err := s.near.SetRoutes(map[netip.Prefix]int{peer: owner, lan: Kernel}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if verdict, _ := s.near.run(t, frame); verdict != want {
					t.Fatalf("round %d: the prefix is %d's, verdict %d", round, owner, int32(verdict))
				}
			}
		}
		if err := s.near.SetRoutes(map[netip.Prefix]int{peer: 0, lan: Kernel}); err != nil {
			t.Fatal(err)
		}
		_, out := s.near.run(t, frame)
		for _, origins := range []map[netip.Addr]Origin{{local: {Peer: 3}}, {}, {local: {Peer: 4}}} {
			want := uint32(drop)
			switch origins[local].Peer {
			case 3:
				want = next
			case 0:
				want = next // of no peer: the kernel's, as it is
			}
			if err := s.far.SetOrigins(origins, func(int) bool { return false }); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				verdict, back := s.far.restored(t, out)
				if restored := string(back) != string(out); verdict != want || restored != (origins[local].Peer == 3) {
					t.Fatalf("round %d: origins are %v, verdict %d, restored: %v", round, origins, int32(verdict), restored)
				}
			}
		}
	}
}
