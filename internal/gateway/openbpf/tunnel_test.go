package openbpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

const drop = 2 // TC_ACT_SHOT

var (
	local4, remote4 = netip.MustParseAddrPort("192.0.2.9:4790"), netip.MustParseAddrPort("198.51.100.7:5000")
	local6, remote6 = netip.MustParseAddrPort("[2001:db8:9::1]:4790"), netip.MustParseAddrPort("[2001:db8:9::2]:5000")
)

// ends are programs at the two ends of a tunnel: packets to peer 0 of the first one are packets
// from peer 3 of the second.
type ends struct {
	near, far *Program
}

func newEnds(t testing.TB, discipline string, paths int, local, remote netip.AddrPort) ends {
	t.Helper()
	e := ends{load(t, Options{}), load(t, Options{})}
	e.near.routes4and6(t)
	ways := make([]Way, paths)
	for i := range ways {
		ways[i] = Way{Interface: 1, IPv4: remote4.Addr(), IPv6: remote6.Addr(), Local: local, Remote: remote}
	}
	e.near.plans(t, dataplane.Policy{{}}, discipline, 1500, paths, ways...)
	if err := e.far.SetRoutes(map[netip.Prefix]int{
		netip.MustParsePrefix("10.1.0.0/16"): 3, netip.MustParsePrefix("2001:db8:1::/48"): 3, netip.MustParsePrefix("10.4.0.0/16"): 4,
		netip.PrefixFrom(remote.Addr(), remote.Addr().BitLen()): Own,
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.far.Listen(remote.Port()); err != nil {
		t.Fatal(err)
	}
	if err := e.far.Accept(cookieOf(0), 3); err != nil {
		t.Fatal(err)
	}
	return e
}

// received runs one of the programs of lines on a frame, which has a mark of another program. It
// reports whether the packet has the mark of peers after that, and fails the test unless the rest
// of the mark is as it was.
func received(t testing.TB, program *ebpf.Program, frame []byte) (verdict uint32, out []byte, marked bool) {
	t.Helper()
	const other uint32 = 0xabcd0042
	var context [192]byte // struct __sk_buff
	binary.NativeEndian.PutUint32(context[8:], other)
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+128), Context: context, ContextOut: &context, Repeat: 1}
	verdict, err := program.Run(&o)
	if err != nil {
		t.Fatal(err)
	}
	mark := binary.NativeEndian.Uint32(context[8:])
	marked = mark == other&^MarkBits|Mark
	if !marked && mark != other {
		t.Fatalf("a packet with the mark %#x gets %#x", other, mark)
	}
	return verdict, o.DataOut, marked
}

// marked runs one of the programs on a frame, and fails the test unless it marks what it changes,
// and that alone.
func marked(t testing.TB, program *ebpf.Program, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	verdict, out, marked := received(t, program, frame)
	if want := verdict == next && !bytes.Equal(out, frame); marked != want {
		t.Fatalf("verdict %d, marked %v\n%x", int32(verdict), marked, frame)
	}
	return verdict, out
}

// take runs join on a frame.
func (p *Program) take(t testing.TB, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	return marked(t, p.objects.Join, frame)
}

// fromNear runs split on a message, which must be sent.
func (e ends) fromNear(t testing.TB, m message) []byte {
	t.Helper()
	verdict, out := e.near.run(t, m.frame())
	if verdict != redirect {
		t.Fatalf("%+v: verdict %d", m, int32(verdict))
	}
	return out
}

// TestTunnel: packets of any kind arrive as they were but for one hop, over IPv4 and IPv6, in
// messages of the format of docs/wire.md.
func TestTunnel(t *testing.T) {
	for name, end := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		e := newEnds(t, "ratio", 2, end[0], end[1])
		r := rand.New(rand.NewPCG(12, 4))
		var want [2]dataplane.Count
		for i := range 400 {
			m := draw(r)
			out := e.fromNear(t, m)
			m.hops--
			inner := m.frame()
			overhead := OverheadIPv4
			if end[0].Addr().Is6() {
				overhead = OverheadIPv6
			}
			checkOuter(t, out, inner, end[0], end[1], i%2, i/2)
			if len(out) != len(inner)+overhead {
				t.Fatalf("%s: %d bytes for %d", name, len(out), len(inner))
			}
			verdict, got := e.far.take(t, out)
			if verdict != next || string(got) != string(inner) {
				t.Fatalf("%s: %+v: verdict %d\n%x, want\n%x", name, m, int32(verdict), got, inner)
			}
			want[i%2].Packets++
			want[i%2].Bytes += uint64(len(out) - 14)
		}
		arrived, err := e.far.Arrived(cookieOf(0))
		if err != nil {
			t.Fatal(err)
		}
		traffic, err := e.near.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if arrived[i] != (dataplane.Arrived{Count: want[i]}) || traffic.Paths[i] != want[i] {
				t.Errorf("%s: path %d: arrived %+v, sent %+v, want %+v", name, i, arrived[i], traffic.Paths[i], want[i])
			}
		}
	}
}

// TestTunnelMarks: a packet whose message was marked on the way arrives marked (RFC 6040), and
// otherwise as it was.
func TestTunnelMarks(t *testing.T) {
	mark := func(ip []byte) {
		if ip[0]>>4 == 6 {
			ip[1] |= 3 << 4
			return
		}
		ip[1] |= 3
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], checksum.Of(ip[:20]))
	}
	for name, end := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		e := newEnds(t, "ratio", 2, end[0], end[1])
		r := rand.New(rand.NewPCG(12, 6))
		for range 400 {
			m := draw(r)
			out := e.fromNear(t, m)
			mark(out[14:])
			m.hops--
			want := m.frame()
			mark(want[14:])
			if verdict, got := e.far.take(t, out); verdict != next || string(got) != string(want) {
				t.Fatalf("%s: %+v: verdict %d\n%x, want\n%x", name, m, int32(verdict), got, want)
			}
		}
	}
}

// checkOuter checks the headers around a packet.
func checkOuter(t *testing.T, out, inner []byte, local, remote netip.AddrPort, path, count int) {
	t.Helper()
	ip := out[14:]
	class := inner[15]
	if inner[12] == 0x86 {
		class = uint8(binary.BigEndian.Uint16(inner[14:]) >> 4)
	}
	var udp []byte
	var from, to netip.Addr
	if local.Addr().Is4() {
		if out[12] != 8 || ip[0] != 0x45 || ip[1] != class || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || ip[6] != 0x40 || ip[8] != 64 || ip[9] != 17 || checksum.Of(ip[:20]) != 0 {
			t.Fatalf("IPv4 header %x", ip[:20])
		}
		from, to, udp = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[20:]
	} else {
		if out[12] != 0x86 || ip[0]>>4 != 6 || uint8(binary.BigEndian.Uint16(ip)>>4) != class || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-40 || ip[6] != 17 || ip[7] != 64 {
			t.Fatalf("IPv6 header %x", ip[:40])
		}
		from, to, udp = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[40:]
	}
	ports := [2]uint16{binary.BigEndian.Uint16(udp), binary.BigEndian.Uint16(udp[2:])}
	if netip.AddrPortFrom(from, ports[0]) != local || netip.AddrPortFrom(to, ports[1]) != remote || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) || udp[6]|udp[7] != 0 {
		t.Fatalf("from %v to %v, UDP %x", from, to, udp[:8])
	}
	h := udp[8:]
	if h[0] != 6 || int(h[1]) != path || binary.BigEndian.Uint16(h[2:]) != 0 || binary.BigEndian.Uint32(h[4:]) != 0 || binary.BigEndian.Uint64(h[8:]) != cookieOf(0) ||
		int(binary.BigEndian.Uint32(h[16:])) != count || binary.BigEndian.Uint32(h[20:]) != 0 {
		t.Fatalf("header %x of packet %d on path %d", h[:24], count, path)
	}
}

// TestTunnelRefuses: what a stranger sends, or was changed, goes nowhere and is counted; what is
// not for this gateway is left to the kernel.
func TestTunnelRefuses(t *testing.T) {
	e := newEnds(t, "ratio", 1, local4, remote4)
	udp := func(src string) []byte {
		m := message{Packet: dataplane.Packet{Src: netip.MustParseAddr(src), Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 100}
		return e.fromNear(t, m)
	}
	// to sends a message, whose packet has another destination then.
	to := func(dst string) []byte {
		b := udp("10.1.0.1")
		a := netip.MustParseAddr(dst).As4()
		copy(b[14+OverheadIPv4+16:], a[:])
		return b
	}
	const ip, header, inner = 14, 14 + 28, 14 + OverheadIPv4
	change := func(at int, to byte) []byte {
		b := udp("10.1.0.1")
		b[at] = to
		return b
	}
	ce := change(ip+1, 3)
	ce[inner+1] = 0
	for name, tt := range map[string]struct {
		frame   []byte
		verdict uint32
		why     string
	}{
		"cookie":                  {change(header+15, 0), drop, "forged cookie"},
		"cookie 0":                {append(append(udp("10.1.0.1")[:header+8:header+8], make([]byte, 8)...), udp("10.1.0.1")[header+16:]...), drop, "forged cookie"},
		"cookie, to another host": {func() []byte { b := change(header+15, 0); b[ip+19] = 200; return b }(), next, ""},
		"cookie, to another port": {func() []byte { b := change(header+15, 0); b[ip+23] = 1; return b }(), next, ""},
		"another port":            {change(ip+23, 1), next, "taken"}, // as a path over a member has
		"another type":            {change(header, 5), next, ""},
		"a fragment":              {change(ip+7, 1), next, ""},
		"options outside":         {change(ip, 0x46), next, ""},
		"another protocol":        {change(ip+9, 6), next, ""},
		"another host's frame":    {change(0, 2), next, ""},
		"source of another peer":  {udp("10.4.0.1"), drop, "source not of peer"},
		"source of nobody":        {udp("10.5.0.1"), drop, "source not of peer"},
		"source is this gateway":  {udp("198.51.100.7"), drop, "source not of peer"},
		"to loopback":             {to("127.0.0.1"), drop, "destination not allowed"},
		"to this network":         {to("0.0.0.0"), drop, "destination not allowed"},
		"to a link-local address": {to("169.254.169.254"), drop, "destination not allowed"},
		"to a group":              {to("224.0.0.5"), drop, "destination not allowed"},
		"to all":                  {to("255.255.255.255"), drop, "destination not allowed"},
		"version inside":          {change(inner, 0x55), drop, "malformed"},
		"options inside":          {change(inner, 0x46), drop, "malformed"},
		"longer inside":           {change(inner+3, 255), drop, "malformed"},
		"cut off":                 {udp("10.1.0.1")[:inner+30], drop, "malformed"},
		"nothing inside":          {udp("10.1.0.1")[:inner+20], drop, "malformed"},
		"congestion, without ECN": {ce, drop, "congestion mark not possible"},
		"good":                    {udp("10.1.0.1"), next, "taken"},
	} {
		before, err := e.far.Refused()
		if err != nil {
			t.Fatal(err)
		}
		verdict, out := e.far.take(t, tt.frame)
		after, err := e.far.Refused()
		if err != nil {
			t.Fatal(err)
		}
		if verdict != tt.verdict || tt.why != "taken" && string(out) != string(tt.frame) {
			t.Errorf("%s: verdict %d, packet\n%x, was\n%x", name, int32(verdict), out, tt.frame)
		}
		counted(t, name, refusalNames, before, after, tt.why)
	}
	if err := e.far.Refuse(cookieOf(0)); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := e.far.take(t, udp("10.1.0.1")); verdict != drop {
		t.Errorf("verdict %d after the end of the session", int32(verdict))
	}
}

// TestAllowed: packets of a peer go to the destinations that it may reach, and to no others; those
// of another peer are not limited by that.
func TestAllowed(t *testing.T) {
	for _, local := range []netip.AddrPort{local4, local6} {
		remote, to, from, elsewhere := remote4, to4, "10.1.0.1", "10.99.0.0/16"
		if local.Addr().Is6() {
			remote, to, from, elsewhere = remote6, to6, "2001:db8:1::1", "2001:db8:99::/48"
		}
		e := newEnds(t, "ratio", 1, local, remote)
		m := message{Packet: dataplane.Packet{Src: netip.MustParseAddr(from), Dst: to, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 100}
		outside := netip.MustParsePrefix(elsewhere)
		inside := netip.PrefixFrom(to, to.BitLen()-8).Masked()
		for i, tt := range []struct {
			allow map[int][]netip.Prefix
			why   string
		}{
			{nil, "taken"}, {map[int][]netip.Prefix{3: {outside}}, "destination not allowed"}, {map[int][]netip.Prefix{3: {outside, inside}}, "taken"},
			{map[int][]netip.Prefix{3: {outside}, 4: {inside}}, "destination not allowed"}, {map[int][]netip.Prefix{4: {outside}}, "taken"},
			{map[int][]netip.Prefix{3: {netip.PrefixFrom(to, 0).Masked()}}, "taken"}, {map[int][]netip.Prefix{3: {netip.PrefixFrom(to, to.BitLen())}}, "taken"}, {map[int][]netip.Prefix{3: nil}, "taken"},
		} {
			if err := e.far.SetAllowed(tt.allow); err != nil {
				t.Fatal(err)
			}
			before, err := e.far.Refused()
			if err != nil {
				t.Fatal(err)
			}
			want := uint32(next)
			if tt.why != "taken" {
				want = drop
			}
			if verdict, _ := e.far.take(t, e.fromNear(t, m)); verdict != want {
				t.Errorf("%v, allow %d: verdict %d, want %d", to, i, int32(verdict), int32(want))
			}
			after, err := e.far.Refused()
			if err != nil {
				t.Fatal(err)
			}
			counted(t, "allow", refusalNames, before, after, tt.why)
		}
	}
}

// TestTunnelAtRandom: of messages that are lost, repeated, late, changed in any bit or made up, at
// most one copy of each packet is delivered, and only as it was sent but for its payload.
func TestTunnelAtRandom(t *testing.T) {
	e := newEnds(t, "redundant", 1, local6, remote6)
	r := rand.New(rand.NewPCG(12, 5))
	type sent struct{ frame, inner []byte }
	var all []sent
	delivered := map[string]int{}
	forged, refused := 0, 0
	for i := range 4000 {
		m := draw(r)
		m.payload = 100 + i%900
		if len(all) == 0 || r.IntN(2) == 0 {
			out := e.fromNear(t, m)
			m.hops--
			all = append(all, sent{out, m.frame()})
		}
		s := all[max(0, len(all)-1-r.IntN(20))]
		frame := append([]byte(nil), s.frame...)
		at := -1
		if r.IntN(3) == 0 {
			// From the header of the tunnel to the addresses inside.
			at = 14 + 48 + r.IntN(24+20)
			frame[at] ^= 1 << r.IntN(8)
			forged++
		}
		verdict, out := e.far.take(t, frame)
		switch {
		case verdict == drop:
			refused++
		case verdict == next && string(out) == string(frame):
		case verdict == next && at < 0:
			delivered[string(frame)]++
			if string(out) != string(s.inner) {
				t.Fatalf("delivered\n%x, want\n%x", out, s.inner)
			}
		case verdict == next:
			// The change was in a field that nothing is decided by, or in the packet, which is not
			// authenticated.
			src := out[26:30]
			if out[12] == 0x86 {
				src = out[22:38]
			}
			a, _ := netip.AddrFromSlice(src)
			if !netip.MustParsePrefix("10.1.0.0/16").Contains(a) && !netip.MustParsePrefix("2001:db8:1::/48").Contains(a) {
				t.Fatalf("delivered from %v, byte %d changed", a, at)
			}
			if at >= 14+48+8 && at < 14+48+16 {
				t.Fatalf("delivered with byte %d of the cookie changed", at-14-48-8)
			}
		default:
			t.Fatalf("verdict %d", int32(verdict))
		}
	}
	for _, n := range delivered {
		if n > 1 {
			t.Fatalf("a message was delivered %d times", n)
		}
	}
	if len(delivered) < 500 || forged < 1000 || refused < 500 {
		t.Errorf("%d delivered, %d forged, %d refused: the test tests little", len(delivered), forged, refused)
	}
}

// TestTunnelCopies: of a packet that is sent over several paths one is delivered, also when others
// were before; what has not arrived over a path is counted.
func TestTunnelCopies(t *testing.T) {
	e := newEnds(t, "redundant", 3, local4, remote4)
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 64, payload: 10}
	over := func(frame []byte, path int) []byte {
		b := append([]byte(nil), frame...)
		b[14+28+1] = 0x80 | byte(path)
		return b
	}
	var frames [][]byte
	for range 100 {
		frames = append(frames, e.fromNear(t, m))
	}
	got := 0
	for i := range frames {
		// Path 1 is 10 packets late, path 2 loses every fifth one.
		for path, at := range [3]int{i, i - 10, i} {
			if at < 0 || path == 2 && at%5 == 3 {
				continue
			}
			if verdict, _ := e.far.take(t, over(frames[at], path)); verdict == next {
				got++
			}
		}
	}
	if got != len(frames) {
		t.Errorf("%d of %d packets were delivered", got, len(frames))
	}
	arrived, err := e.far.Arrived(cookieOf(0))
	if err != nil {
		t.Fatal(err)
	}
	// The last one that was lost is not missed yet.
	for path, want := range [3][2]uint64{{100, 0}, {90, 0}, {80, 19}} {
		if arrived[path].Packets != want[0] || arrived[path].Lost < want[1] || arrived[path].Lost > want[1]+1 {
			t.Errorf("path %d: %+v, want %v", path, arrived[path], want)
		}
	}
}

// TestTunnelTCP: frames and super-packets of TCP are carried, the latter whole and segmented
// between the gateways, and as copies, without a segment lost, but by the kernel, or missing in the
// counts.
func TestTunnelTCP(t *testing.T) {
	for name, lan := range map[string]carried{"super-packets": superPackets, "frames": frames} {
		for _, discipline := range []string{"ratio", "redundant"} {
			t.Run(name+"/"+discipline, func(t *testing.T) { tunnelTCP(t, lan, discipline) })
		}
	}
}

func tunnelTCP(t *testing.T, lan carried, discipline string) {
	n := newNetwork(t, lan)
	// One link segments, the other one carries super-packets.
	for g := range 2 {
		netnstest.Do(t, n.gate[g], func() error { return offload.Prepare("p1") })
	}
	list := n.tunnelOf(2, discipline)
	l, err := netnstest.TCP(n.hosts[0], n.hosts[1], netip.AddrPortFrom(hostAddress(1), 80), 300*time.Millisecond)
	if err != nil || l.Bytes < 1_000_000 {
		t.Errorf("%d bytes, %v", l.Bytes, err)
	}
	for g := range 2 {
		sent, err := list[g].Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		arrived, err := list[1-g].Arrived(cookieOf(0))
		if err != nil {
			t.Fatal(err)
		}
		packets := uint64(0)
		for i := range arrived {
			packets += sent.Paths[i].Packets
			dropped := uint64(0)
			if arrived[i].Lost > 0 { // on a busy machine, where the kernel's queue behind the interface is full
				netnstest.Do(t, n.gate[g], func() error {
					p, err := netlink.LinkByName(fmt.Sprintf("p%d", i))
					if err == nil {
						dropped = p.Attrs().Statistics.TxDropped
					}
					return err
				})
			}
			if arrived[i].Packets+arrived[i].Lost != sent.Paths[i].Packets || arrived[i].Lost > dropped {
				t.Errorf("from gateway %d, path %d: sent %d, arrived %+v, dropped %d", g, i, sent.Paths[i].Packets, arrived[i], dropped)
			}
		}
		refused, err := list[1-g].Refused()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("from gateway %d: %d packets, refused %v", g, packets, refused)
		if discipline == "redundant" && refused["duplicate"] == 0 || discipline != "redundant" && len(refused) > 0 {
			t.Errorf("refused %v", refused)
		}
	}
	if left, err := list[0].Left(); err != nil || left["SYN"] == 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
