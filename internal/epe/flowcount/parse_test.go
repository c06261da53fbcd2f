package flowcount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var (
	client = netip.MustParseAddr("2001:db8:c::2")
	server = netip.MustParseAddr("2001:db8:1::a")
	sid    = netip.MustParseAddr("fc00:1:1::")
	router = netip.MustParseAddr("2001:db8:1::10")
	v4from = netip.MustParseAddr("192.0.2.1")
	v4to   = netip.MustParseAddr("198.51.100.2")
)

// The builders return a packet from their header on.

func ethernet(ethertype uint16, rest []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, ethertype), rest...)
}

func vlan(id, ethertype uint16, rest []byte) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, id), ethertype), rest...)
}

func ipv6(next byte, from, to netip.Addr, rest []byte) []byte {
	h := []byte{0x60, 0, 0, 0, byte(len(rest) >> 8), byte(len(rest)), next, 64}
	return slices.Concat(h, from.AsSlice(), to.AsSlice(), rest)
}

func ipv4(proto byte, options int, from, to netip.Addr, rest []byte) []byte {
	n := 20 + options
	h := []byte{0x40 | byte(n/4), 0, byte((n + len(rest)) >> 8), byte(n + len(rest)), 0, 0, 0, 0, 64, proto, 0, 0}
	return slices.Concat(h, from.AsSlice(), to.AsSlice(), make([]byte, options), rest)
}

// extension is an extension header of 8 bytes and units more of 8 each.
func extension(next byte, units int, rest []byte) []byte {
	h := make([]byte, 8+8*units)
	h[0], h[1] = next, byte(units)
	return append(h, rest...)
}

// segments is a segment routing header (RFC 8754) with its last segment active.
func segments(next byte, list []netip.Addr, rest []byte) []byte {
	h := []byte{next, byte(2 * len(list)), 4, 0, byte(len(list) - 1), 0, 0, 0}
	for _, s := range list {
		h = append(h, s.AsSlice()...)
	}
	return append(h, rest...)
}

func tcp(from, to uint16, options, payload int) []byte {
	h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	h = append(h, make([]byte, 16+options+payload)...)
	h[12] = byte(20+options) / 4 << 4
	return h
}

func udp(from, to uint16, payload int) []byte {
	h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	return append(h, make([]byte, 4+payload)...)
}

type vector struct {
	name    string
	packet  []byte
	reason  Reason
	headers int
	// The flow, when it is counted.
	from, to netip.AddrPort
	sid      netip.Addr
	proto    byte
}

func flow6(from, to uint16) (netip.AddrPort, netip.AddrPort) {
	return netip.AddrPortFrom(server, from), netip.AddrPortFrom(client, to)
}

func vectors() []vector {
	t := tcp(80, 40000, 12, 100)
	inner := ipv6(6, server, client, t)
	inner4 := ipv4(6, 0, v4from, v4to, t)
	var all []vector
	counted := func(name string, headers int, proto byte, sid netip.Addr, packet []byte) {
		v := vector{name: name, packet: packet, headers: headers, proto: proto, sid: sid}
		v.from, v.to = flow6(80, 40000)
		all = append(all, v)
	}
	counted4 := func(name string, headers int, proto byte, sid netip.Addr, packet []byte) {
		all = append(all, vector{name: name, packet: packet, headers: headers, proto: proto, sid: sid,
			from: netip.AddrPortFrom(v4from, 80), to: netip.AddrPortFrom(v4to, 40000)})
	}
	not := func(name string, reason Reason, packet []byte) {
		all = append(all, vector{name: name, packet: packet, reason: reason})
	}
	none := netip.Addr{}

	counted("plain tcp", 14+40+32, 6, none, ethernet(0x86dd, inner))
	counted("plain udp", 14+40+8, 17, none, ethernet(0x86dd, ipv6(17, server, client, udp(80, 40000, 9))))
	counted("without srh", 14+40+40+32, 6, sid, ethernet(0x86dd, ipv6(41, router, sid, inner)))
	counted("with srh", 14+40+24+40+32, 6, sid, ethernet(0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid}, inner))))
	counted("segments left", 14+40+40+40+32, 6, sid,
		ethernet(0x86dd, ipv6(43, router, sid, mutate(segments(41, []netip.Addr{sid, router}, inner), 3, 1))))
	counted("srh inserted", 14+40+24+32, 6, none, ethernet(0x86dd, ipv6(43, server, client, segments(6, []netip.Addr{sid}, t))))
	counted("no payload", 14+40+32, 6, none, ethernet(0x86dd, ipv6(6, server, client, tcp(80, 40000, 12, 0))))
	counted("no payload, without srh", 14+40+40+32, 6, sid, ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, client, tcp(80, 40000, 12, 0)))))
	counted("header longer than the packet", 14+40+60, 6, none, ethernet(0x86dd, ipv6(6, server, client, mutate(tcp(80, 40000, 0, 0), 12, 0xf0))))
	counted("srh of three", 14+40+56+40+32, 6, sid, ethernet(0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid, router, client}, inner))))
	counted("hop-by-hop before srh", 14+40+8+24+40+32, 6, sid,
		ethernet(0x86dd, ipv6(0, router, sid, extension(43, 0, segments(41, []netip.Addr{sid}, inner)))))
	counted("extensions inside", 14+40+40+16+8+32, 6, sid,
		ethernet(0x86dd, ipv6(41, router, sid, ipv6(60, server, client, extension(0, 1, extension(6, 0, t))))))
	counted("authentication header", 14+40+12+32, 6, none,
		ethernet(0x86dd, ipv6(51, server, client, append([]byte{6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, t...))))
	counted("first fragment", 14+40+8+32, 6, none, ethernet(0x86dd, ipv6(44, server, client, append([]byte{6, 0, 0, 1, 0, 0, 0, 7}, t...))))
	counted("vlan", 18+40+32, 6, none, ethernet(0x8100, vlan(7, 0x86dd, inner)))
	counted("two vlans, with srh", 22+40+24+40+32, 6, sid,
		ethernet(0x88a8, vlan(7, 0x8100, vlan(8, 0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid}, inner))))))
	counted4("plain ipv4", 14+20+32, 6, none, ethernet(0x0800, inner4))
	counted4("ipv4 with options", 14+60+8, 17, none, ethernet(0x0800, ipv4(17, 40, v4from, v4to, udp(80, 40000, 0))))
	counted4("ipv4 inside, without srh", 14+40+20+32, 6, sid, ethernet(0x86dd, ipv6(4, router, sid, inner4)))
	counted4("ipv4 inside, with srh", 14+40+24+20+32, 6, sid, ethernet(0x86dd, ipv6(43, router, sid, segments(4, []netip.Addr{sid}, inner4))))
	counted4("vlan, ipv4", 18+20+32, 6, none, ethernet(0x8100, vlan(7, 0x0800, inner4)))
	eight := t
	next := byte(6)
	for range 8 {
		eight, next = extension(next, 0, eight), 60
	}
	counted("as many extensions as are followed", 14+40+64+32, 6, none, ethernet(0x86dd, ipv6(60, server, client, eight)))

	not("arp", NotIP, ethernet(0x0806, make([]byte, 28)))
	not("three vlans", NotIP, ethernet(0x88a8, vlan(7, 0x8100, vlan(8, 0x8100, vlan(9, 0x86dd, inner)))))
	not("vlan without rest", Truncated, ethernet(0x8100, []byte{0, 7, 0x86}))
	not("icmp", Protocol, ethernet(0x86dd, ipv6(58, server, client, make([]byte, 8))))
	not("icmp for ipv4", Protocol, ethernet(0x0800, ipv4(1, 0, v4from, v4to, make([]byte, 8))))
	not("esp", Protocol, ethernet(0x86dd, ipv6(50, server, client, make([]byte, 40))))
	not("nothing follows", Protocol, ethernet(0x86dd, ipv6(59, server, client, nil)))
	not("ipv6 in ipv4", Protocol, ethernet(0x0800, ipv4(41, 0, v4from, v4to, inner)))
	not("later fragment", Fragment, ethernet(0x86dd, ipv6(44, server, client, append([]byte{6, 0, 0, 8, 0, 0, 0, 7}, t...))))
	not("later fragment of ipv4", Fragment, ethernet(0x0800, mutate(inner4, 7, 1)))
	not("later fragment of ipv4, far", Fragment, ethernet(0x0800, mutate(inner4, 6, 0x10)))
	not("one extension too many", Extensions, ethernet(0x86dd, ipv6(60, server, client, extension(60, 0, eight))))
	not("encapsulated twice", Nested, ethernet(0x86dd, ipv6(41, router, sid, ipv6(41, router, sid, inner))))
	not("encapsulated twice, ipv4", Nested, ethernet(0x86dd, ipv6(41, router, sid, ipv6(4, router, sid, inner4))))
	not("ipv6 of version 5", Malformed, ethernet(0x86dd, mutate(inner, 0, 0x50)))
	not("inner of version 4", Malformed, ethernet(0x86dd, ipv6(41, router, sid, inner4)))
	not("ipv4 of version 6", Malformed, ethernet(0x0800, inner))
	not("short header of ipv4", Malformed, ethernet(0x0800, mutate(inner4, 0, 0x44)))
	not("extension longer than the packet", Truncated, ethernet(0x86dd, ipv6(60, server, client, mutate(extension(6, 0, t), 1, 255))))
	not("srh longer than the packet", Truncated,
		ethernet(0x86dd, ipv6(43, router, sid, mutate(segments(41, []netip.Addr{sid}, inner), 1, 200))))
	not("options of ipv4 longer than the packet", Truncated, ethernet(0x0800, ipv4(6, 0, v4from, v4to, nil)[:20]))
	// Cut everywhere: as long as the ports are not complete, nothing may be counted.
	full := ethernet(0x86dd, ipv6(43, router, sid, segments(41, []netip.Addr{sid}, ipv6(6, server, client, tcp(80, 40000, 0, 0)))))
	for n := 55; n < len(full); n++ {
		not("cut", Truncated, full[:n])
	}
	return all
}

// mutate returns b with one byte changed.
func mutate(b []byte, at int, to byte) []byte {
	b = bytes.Clone(b)
	b[at] = to
	return b
}

func TestReference(t *testing.T) {
	for _, v := range vectors() {
		key, headers, reason := referenceFlow(v.packet)
		if reason != v.reason {
			t.Errorf("%s (%d bytes): reason %v, want %v", v.name, len(v.packet), reason, v.reason)
		}
		if reason != Counted {
			continue
		}
		if key.Src() != v.from || key.Dst() != v.to || key.SID() != v.sid || key.Protocol != v.proto || headers != v.headers {
			t.Errorf("%s: %v to %v, sid %v, protocol %d, %d bytes of headers; want %v to %v, %v, %d, %d",
				v.name, key.Src(), key.Dst(), key.SID(), key.Protocol, headers, v.from, v.to, v.sid, v.proto, v.headers)
		}
	}
}

// skbContext is the context that a program is run with, a struct __sk_buff of which only some
// members may be set.
func skbContext(wireLen, gsoSegs, gsoSize uint32) []byte {
	c := make([]byte, 184)
	binary.NativeEndian.PutUint32(c[160:], wireLen)
	binary.NativeEndian.PutUint32(c[164:], gsoSegs)
	binary.NativeEndian.PutUint32(c[176:], gsoSize)
	return c
}

// run gives the packet to the program and compares what it counts with the reference. It skips what
// the kernel refuses to make a packet of.
func run(t *testing.T, f *Counter, program *ebpf.Program, direction uint8, packet, context []byte, want Count) {
	t.Helper()
	key, _, reason := referenceFlow(packet)
	key.Ifindex, key.Direction = 1, direction
	before, err := f.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	// The second time its flow has a slot, and the packet may be recognized.
	const times = 2
	for range times {
		options := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: context, Repeat: 1}
		verdict, err := program.Run(options)
		if errors.Is(err, unix.EINVAL) {
			t.Skipf("the kernel makes no packet of %d bytes", len(packet))
		}
		if err != nil {
			t.Fatal(err)
		}
		if int32(verdict) != -1 {
			t.Errorf("verdict %d on %x, want -1", int32(verdict), packet)
		}
		if !bytes.Equal(options.DataOut, packet) {
			t.Errorf("%x became %x", packet, options.DataOut)
		}
	}
	want.Packets *= times
	want.Bytes *= times
	after, err := f.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	for r := range after {
		got := Count{after[r].Packets - before[r].Packets, after[r].Bytes - before[r].Bytes}
		if there := Reason(r) == reason && reason != Counted; there && got != want || !there && got != (Count{}) {
			t.Errorf("%v: %+v, want %+v under %v, of %x", Reason(r), got, want, reason, packet)
		}
	}
	found := false
	f.Each(func(slot int, k *Key, c Count) {
		if found || reason != Counted || *k != key || c != want {
			t.Errorf("flow %+v: %+v; want %+v, %v of %x", k, c, want, reason, packet)
		}
		found = true
		if err := errors.Join(f.Remove(slot), f.Reuse(slot)); err != nil {
			t.Error(err)
		}
	})
	if found != (reason == Counted) {
		t.Errorf("flow %v to %v: %v; want %v of %x", key.Src(), key.Dst(), found, reason, packet)
	}
}

func TestProgramsParse(t *testing.T) {
	f := newCounter(t, Options{})
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			want := Count{1, uint64(len(v.packet))}
			run(t, f, f.objects.Sent, 1, v.packet, skbContext(0, 0, 0), want)
			run(t, f, f.objects.Received, 0, v.packet, skbContext(0, 0, 0), want)
		})
	}
}

// TestSegments checks what is counted when the kernel handles several packets as one.
func TestSegments(t *testing.T) {
	f := newCounter(t, Options{})
	packet := ethernet(0x86dd, ipv6(41, router, sid, ipv6(6, server, client, tcp(80, 40000, 12, 1000))))
	const headers = 14 + 40 + 40 + 32
	for _, tt := range []struct {
		name          string
		program       *ebpf.Program
		direction     uint8
		context       []byte
		packets, size uint64
	}{
		{"one sent", f.objects.Sent, 1, skbContext(0, 0, 0), 1, headers + 1000},
		{"sent", f.objects.Sent, 1, skbContext(headers*5+1000, 5, 200), 5, headers*5 + 1000},
		{"received", f.objects.Received, 0, skbContext(0, 5, 200), 5, headers*5 + 1000},
		{"received, last one short", f.objects.Received, 0, skbContext(0, 3, 400), 3, headers*3 + 1000},
		{"received, number left out", f.objects.Received, 0, skbContext(0, 0, 300), 4, headers*4 + 1000},
		{"received, number left out, exact", f.objects.Received, 0, skbContext(0, 0, 500), 2, headers*2 + 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, f, tt.program, tt.direction, packet, tt.context, Count{tt.packets, tt.size})
		})
	}
}

// FuzzKnown has flows of all kinds, and holds the program to counting any packet in the one that is
// its own, if there is one.
func FuzzKnown(f *testing.F) {
	flows, err := New(Options{MaxFlows: 1 << 16})
	if errors.Is(err, errors.ErrUnsupported) {
		f.Skip(err)
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := flows.Close(); err != nil {
			f.Error(err)
		}
	})
	for _, v := range vectors() {
		f.Add(v.packet)
		if v.reason != Counted {
			continue
		}
		if _, err := flows.objects.Received.Run(newRun(v.packet, nil)); err != nil {
			f.Fatal(err)
		}
	}
	counts := func() map[Key]uint64 {
		all := map[Key]uint64{}
		flows.Each(func(_ int, k *Key, c Count) { all[*k] += c.Packets })
		return all
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) <= 14 || len(packet) >= 3000 {
			return
		}
		want := counts()
		key, _, reason := referenceFlow(packet)
		key.Ifindex = 1
		if _, err := flows.objects.Received.Run(newRun(packet, nil)); errors.Is(err, unix.EINVAL) {
			t.Skipf("the kernel makes no packet of %d bytes", len(packet))
		} else if err != nil {
			t.Fatal(err)
		}
		if reason == Counted {
			want[key]++
		}
		got := counts()
		if !maps.Equal(got, want) {
			t.Errorf("%v, want one more in %+v (%v), of %x", got, key, reason, packet)
		}
		// Flows that the fuzzer made go again.
		var made []int
		flows.Each(func(slot int, k *Key, _ Count) {
			if *k == key && want[key] == 1 {
				made = append(made, slot)
			}
		})
		for _, slot := range made {
			if err := errors.Join(flows.Remove(slot), flows.Reuse(slot)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzParse holds the reference to giving an answer for any packet and, where programs can be
// loaded, the program to giving the same.
func FuzzParse(f *testing.F) {
	for _, v := range vectors() {
		f.Add(v.packet)
	}
	flows, unsupported := New(Options{})
	if unsupported == nil {
		f.Cleanup(func() {
			if err := flows.Close(); err != nil {
				f.Error(err)
			}
		})
	} else if !errors.Is(unsupported, errors.ErrUnsupported) {
		f.Fatal(unsupported)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		key, headers, reason := referenceFlow(packet)
		accessor.Call(t, key, reason)
		if reason == Counted && (headers < 14+20+8 && key.Protocol == 17 || key.Family != 4 && key.Family != 6) {
			t.Errorf("%x: %d bytes of headers, family %d", packet, headers, key.Family)
		}
		// What the kernel takes in one piece.
		if unsupported == nil && len(packet) > 14 && len(packet) < 3000 {
			run(t, flows, flows.objects.Sent, 1, packet, skbContext(0, 0, 0), Count{1, uint64(len(packet))})
		}
	})
}
