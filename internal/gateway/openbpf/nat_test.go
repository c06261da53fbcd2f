package openbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// setChecksum sets the checksum of the transport of a frame without extension headers.
func setChecksum(frame []byte) {
	packet := frame[14:]
	at, protocol := 20, packet[9]
	if packet[0]>>4 == 6 {
		at, protocol = 40, packet[6]
	}
	field := map[byte]int{6: 16, 17: 6, 1: 2, 58: 2}[protocol]
	if field == 0 {
		return
	}
	upper, pseudo := packet[at:], uint64(0)
	if protocol != 1 {
		pseudo = checksum.Pseudo(packet, protocol, len(upper))
	}
	binary.BigEndian.PutUint16(upper[field:], 0)
	binary.BigEndian.PutUint16(upper[field:], ^checksum.Fold(checksum.Sum(upper, pseudo)))
}

// sites are two gateways with NAT: near sends packets of 10.1.0.0/16 to peer 0, which are those of
// peer 3 for far.
type sites struct {
	near, far *Program
	paths     []netip.Addr // of near, by IP version
}

func newSites(t testing.TB, local ...netip.Addr) sites {
	t.Helper()
	return sitesOf(t, load(t, Options{}), load(t, Options{}), local...)
}

func sitesOf(t testing.TB, near, far *Program, local ...netip.Addr) sites {
	t.Helper()
	s := sites{near, far, local}
	s.near.routes4and6(t)
	for _, a := range local {
		s.near.own(t, a)
	}
	planNAT(t, s.near, local)
	if err := s.far.SetRoutes(map[netip.Prefix]int{
		netip.MustParsePrefix("10.1.0.0/16"): 3, netip.MustParsePrefix("2001:db8:1::/48"): 3,
		netip.MustParsePrefix("10.2.0.0/16"): Kernel, netip.MustParsePrefix("2001:db8:2::/48"): Kernel,
	}); err != nil {
		t.Fatal(err)
	}
	origins := map[netip.Addr]Origin{}
	for i, a := range local {
		origins[a] = Origin{Peer: 3, Path: i}
	}
	if err := s.far.SetOrigins(origins, func(int) bool { return false }); err != nil {
		t.Fatal(err)
	}
	return s
}

// own adds an address of this host.
func (p *Program) own(t testing.TB, a netip.Addr) {
	t.Helper()
	key := routeOf(netip.PrefixFrom(a, a.BitLen()))
	if err := errors.Join(p.objects.Routes.Put(&key, ^uint32(0)), p.forgetOwners()); err != nil {
		t.Fatal(err)
	}
}

// planNAT has all packets sent in turn over paths with these addresses.
func planNAT(t testing.TB, p *Program, local []netip.Addr) {
	t.Helper()
	ways := make([]Way, len(local))
	for i, a := range local {
		ways[i] = Way{Interface: 1, IPv4: remote4.Addr(), IPv6: remote6.Addr(), Local: netip.AddrPortFrom(a, 4790)}
	}
	p.plans(t, dataplane.Policy{{}}, "ratio", 1500, len(local), ways...)
}

// restored runs restore on a frame.
func (p *Program) restored(t testing.TB, frame []byte) (verdict uint32, out []byte) {
	t.Helper()
	return marked(t, p.objects.Restore, frame)
}

// reference is what gateways agree on about flows, as a map. It is the judge of the programs.
type reference map[tunnel.Flow]netip.Addr // the source, by the flow without it

func withoutSource(f tunnel.Flow) tunnel.Flow {
	f.Source = netip.AddrPortFrom(netip.Addr{}, f.Source.Port())
	return f
}

// drawFlow draws one of few flows, so that many collide: a packet of it, and what it is left for
// besides sessions.
func drawFlow(r *rand.Rand, ipv6 bool) (m message, f tunnel.Flow, left string) {
	m = message{hops: uint8(2 + r.IntN(200)), payload: r.IntN(200)}
	m.Src, m.Dst = netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + r.IntN(3))}), netip.AddrFrom4([4]byte{10, 2, 0, byte(1 + r.IntN(2))})
	if ipv6 {
		m.Src, m.Dst = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")
		for range r.IntN(3) {
			m.Src = m.Src.Next()
		}
	}
	m.Protocol = []uint8{6, 6, 17, 17, 1, 47, 132}[r.IntN(7)]
	m.SrcPort, m.DstPort = uint16(1+r.IntN(3)), uint16(1+r.IntN(2))
	switch m.Protocol {
	case 1: // an echo, whose type is in the upper half of the first field
		types := []byte{8, 0, 13}
		if ipv6 {
			m.Protocol, types = 58, []byte{128, 129, 135}
		}
		kind := types[r.IntN(3)]
		if kind != types[0] && kind != types[1] {
			left = "protocol"
		}
		m.SrcPort, m.DstPort = uint16(kind)<<8, 0
		f = tunnel.Flow{Protocol: m.Protocol, Source: netip.AddrPortFrom(m.Src, 0), Destination: netip.AddrPortFrom(m.Dst, uint16(kind))}
	case 6, 17:
		f = tunnel.Flow{Protocol: m.Protocol, Source: netip.AddrPortFrom(m.Src, m.SrcPort), Destination: netip.AddrPortFrom(m.Dst, m.DstPort)}
	default:
		left = "protocol"
	}
	if r.IntN(10) == 0 {
		left = "fragment"
		if field := []uint16{0x2000, 0x2010, 0x0010}[r.IntN(3)]; ipv6 {
			m.first, m.options = 44, []byte{m.Protocol, 0, uint8(field << 3 >> 8), uint8(field<<3) | uint8(field>>13), 0, 0, 0, 1}
		} else {
			m.fragment = field
		}
	} else if ipv6 && r.IntN(10) == 0 {
		left = "options"
		m.first, m.options = 60, []byte{m.Protocol, 0, 1, 4, 0, 0, 0, 0}
	}
	return m, f, left
}

// TestNATAtRandom: over random traces of packets, of sessions that begin and end at either gateway,
// a packet is sent with the source of a path only if its flow has a session, arrives as it was but
// for a hop, checksums included, or does not arrive. All else is left, or dropped, for the reason
// that the reference has.
func TestNATAtRandom(t *testing.T) {
	for name, local := range map[string][]netip.Addr{
		"IPv4":                   {netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("198.51.100.77")},
		"IPv6":                   {local6.Addr(), netip.MustParseAddr("2001:db8:99::ffff:1234")},
		"IPv4, before Linux 6.2": {netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("198.51.100.77")},
		"IPv6, before Linux 6.2": {local6.Addr(), netip.MustParseAddr("2001:db8:99::ffff:1234")},
	} {
		ipv6 := local[0].Is6()
		s := newSites(t, local...)
		if strings.Contains(name, "before") {
			s = sitesOf(t, loadBefore62(t), loadBefore62(t), local...)
		}
		r := rand.New(rand.NewPCG(12, 7))
		sends, restores := reference{}, reference{}
		seen := map[string]int{}
		for range 2500 {
			m, f, left := drawFlow(r, ipv6)
			key := withoutSource(f)
			if left == "" {
				switch source := f.Source.Addr(); r.IntN(12) {
				case 0, 1, 2:
					sends[key] = source
					restores[key] = source
					if err := s.far.SetSession(3, f, true); err != nil {
						t.Fatal(err)
					}
					if err := s.near.SetSession(This, f, true); err != nil {
						t.Fatal(err)
					}
				case 3:
					delete(sends, key)
					if err := s.near.DeleteSession(This, f); err != nil {
						t.Fatal(err)
					}
				case 4:
					delete(restores, key)
					if err := s.far.DeleteSession(3, f); err != nil {
						t.Fatal(err)
					}
				}
				switch source, ok := sends[key]; {
				case !ok:
					left = "no NAT session"
				case source != f.Source.Addr():
					left = "NAT collision"
				}
			}
			frame := m.frame()
			if len(m.options) == 0 {
				setChecksum(frame)
			}
			before, err := s.near.Left()
			if err != nil {
				t.Fatal(err)
			}
			verdict, out := s.near.run(t, frame)
			after, err := s.near.Left()
			if err != nil {
				t.Fatal(err)
			}
			counted(t, name, leftNames, before, after, left)
			seen[left]++
			if left != "" {
				if verdict != next || !bytes.Equal(out, frame) {
					t.Fatalf("%s: %+v is changed, verdict %d", name, m, int32(verdict))
				}
				continue
			}
			if verdict != redirect {
				t.Fatalf("%s: %+v: verdict %d", name, m, int32(verdict))
			}
			checked := bytes.Clone(out)
			if setChecksum(checked); !bytes.Equal(checked, out) {
				t.Fatalf("%s: %+v: wrong checksum\n%x\n%x", name, m, out, checked)
			}
			if !ipv6 && checksum.Of(out[14:34]) != 0 {
				t.Fatalf("%s: %+v: wrong checksum of the header\n%x", name, m, out)
			}
			gone, err := s.far.Refused()
			if err != nil {
				t.Fatal(err)
			}
			verdict, back := s.far.restored(t, out)
			now, err := s.far.Refused()
			if err != nil {
				t.Fatal(err)
			}
			source, ok := restores[key]
			if !ok {
				counted(t, name, refusalNames, gone, now, "no NAT session")
				if verdict != drop {
					t.Fatalf("%s: %+v without session: verdict %d", name, m, int32(verdict))
				}
				seen["dropped"]++
				continue
			}
			counted(t, name, refusalNames, gone, now, "")
			m.hops--
			m.Src = source // that of the session, which the near gateway has too
			want := m.frame()
			if setChecksum(want); verdict != next || !bytes.Equal(back, want) {
				t.Fatalf("%s: %+v, verdict %d:\n%x, want\n%x", name, m, int32(verdict), back, want)
			}
			seen["arrived"]++
		}
		for _, reason := range []string{"", "no NAT session", "NAT collision", "fragment", "protocol", "dropped", "arrived"} {
			if seen[reason] < 20 {
				t.Errorf("%s: %q was seen %d times: %v", name, reason, seen[reason], seen)
			}
		}
	}
}

// icmpError is an ICMP error from a router about a frame.
func icmpError(router netip.Addr, about []byte, kind byte) []byte {
	quoted := about[14:min(len(about), 14+100)]
	body := append([]byte{kind, 1, 0, 0, 0, 0, 0, 0}, quoted...)
	if about[12] == 8 {
		frame := (&message{Packet: dataplane.Packet{Src: router, Dst: netip.AddrFrom4([4]byte(about[26:30])), Protocol: 1}, hops: 60}).frame()[:34]
		frame = append(frame, body...)
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
		binary.BigEndian.PutUint16(frame[24:], 0)
		binary.BigEndian.PutUint16(frame[24:], checksum.Of(frame[14:34]))
		setChecksum(frame)
		return frame
	}
	frame := (&message{Packet: dataplane.Packet{Src: router, Dst: netip.AddrFrom16([16]byte(about[22:38])), Protocol: 58}, hops: 60}).frame()[:54]
	frame = append(frame, body...)
	binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
	setChecksum(frame)
	return frame
}

// TestNATErrors: an ICMP error about a packet of a session goes to the host that sent the packet,
// as if it were about what the host had sent. Others are not changed.
func TestNATErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to, local, router netip.Addr
		kinds                   []byte
		echo                    byte
	}{
		"IPv4": {from4, to4, netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("203.0.113.1"), []byte{3, 11, 12}, 8},
		"IPv6": {from6, to6, local6.Addr(), netip.MustParseAddr("2001:db8:ffff::1"), []byte{1, 2, 3, 4}, 128},
	} {
		s := newSites(t, tt.local)
		for i, protocol := range []uint8{6, 17, 1, 17} {
			m := message{Packet: dataplane.Packet{Src: tt.from, Dst: tt.to, Protocol: protocol, SrcPort: 1000, DstPort: 2000}, hops: 9, payload: 30}
			f := tunnel.Flow{Protocol: protocol, Source: netip.AddrPortFrom(tt.from, 1000), Destination: netip.AddrPortFrom(tt.to, 2000)}
			if protocol == 1 {
				m.SrcPort, m.DstPort = uint16(tt.echo)<<8, 0
				if tt.echo == 128 {
					m.Protocol, f.Protocol = 58, 58
				}
				f.Source, f.Destination = netip.AddrPortFrom(tt.from, 0), netip.AddrPortFrom(tt.to, uint16(tt.echo))
			}
			// The last is UDP without a checksum, which IPv4 has.
			sum := setChecksum
			if i == 3 {
				sum = func([]byte) {}
			}
			frame := m.frame()
			sum(frame)
			if err := s.near.SetSession(This, f, true); err != nil {
				t.Fatal(err)
			}
			verdict, out := s.near.run(t, frame)
			if verdict != redirect {
				t.Fatalf("%s, protocol %d: verdict %d", name, protocol, int32(verdict))
			}
			m.hops--
			sent := m.frame()
			sum(sent)
			for n, kind := range tt.kinds {
				// Routers quote 8 bytes of the transport at least (RFC 792), or as much as fits.
				header := 14 + 20
				if tt.from.Is6() {
					header = 14 + 40
				}
				quote := []int{header + 8, header + 16, header + 18, len(out)}[(n+i)%4]
				got, back := s.near.restored(t, icmpError(tt.router, out[:quote], kind))
				want := icmpError(tt.router, sent[:quote], kind)
				if got != next || !bytes.Equal(back, want) {
					t.Errorf("%s, protocol %d, type %d: verdict %d\n%x, want\n%x", name, protocol, kind, int32(got), back, want)
				}
			}
			// Of a dead flow, of another packet, to another host: the kernel's.
			for what, frame := range map[string][]byte{
				"another type": icmpError(tt.router, out, 200), "of a packet with the host's source": icmpError(tt.router, sent, tt.kinds[0]),
			} {
				if got, back := s.near.restored(t, frame); got != next || !bytes.Equal(back, frame) {
					t.Errorf("%s, protocol %d: an error %s is changed, verdict %d", name, protocol, what, int32(got))
				}
			}
			if err := s.near.DeleteSession(This, f); err != nil {
				t.Fatal(err)
			}
			dead := icmpError(tt.router, out, tt.kinds[0])
			if got, back := s.near.restored(t, dead); got != next || !bytes.Equal(back, dead) {
				t.Errorf("%s, protocol %d: an error of a dead flow is changed, verdict %d", name, protocol, int32(got))
			}
		}
	}
}
