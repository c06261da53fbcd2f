package labrun

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
)

var (
	here  = netip.MustParseAddr("2001:db8:1::a")
	there = netip.MustParseAddr("2001:db8:c::10")
)

// ipv6 returns an IPv6 packet.
func ipv6(next byte, from, to netip.Addr, payload []byte) []byte {
	b := make([]byte, ipv6Header, ipv6Header+len(payload))
	b[0], b[6] = 0x60, next
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	return append(b, payload...)
}

// segmentOf returns a TCP segment with this number of bytes of options.
func segmentOf(from, to uint16, options int, payload []byte) []byte {
	b := make([]byte, tcpHeader+options, tcpHeader+options+len(payload))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b[12] = byte((tcpHeader + options) / 4 << 4)
	return append(b, payload...)
}

// routing returns a segment routing header with one segment, followed by a payload.
func routing(payload []byte) []byte {
	b := make([]byte, 24, 24+len(payload))
	b[0], b[1], b[2] = unix.IPPROTO_IPV6, 2, 4
	return append(b, payload...)
}

// message returns a BGP message.
func message(typ byte, body []byte) []byte {
	b := append(slices.Clone(bgpMarker), 0, 0, typ)
	binary.BigEndian.PutUint16(b[16:], uint16(bgpHeader+len(body)))
	return append(b, body...)
}

// attribute returns a path attribute of an UPDATE, optionally with extended length.
func attribute(typ byte, long bool, value ...byte) []byte {
	if long {
		return append([]byte{0x80 | extendedLength, typ, byte(len(value) >> 8), byte(len(value))}, value...)
	}
	return append([]byte{0x80, typ, byte(len(value))}, value...)
}

func updating(attributes ...[]byte) []byte {
	all := bytes.Join(attributes, nil)
	return message(bgpUpdate, append([]byte{0, 0, byte(len(all) >> 8), byte(len(all))}, all...))
}

func TestChanged(t *testing.T) {
	origin := attribute(1, false, 0)
	reach := func(safi byte) []byte { return attribute(mpReach, true, 0, afiIPv6, safi, 1, 2, 3) }
	unreach := func(safi byte) []byte { return attribute(mpUnreach, false, 0, afiIPv6, safi, 64, 1) }
	keepalive := message(4, nil)
	for _, tt := range []struct {
		name         string
		payload      []byte
		unicast, vpn bool
	}{
		{"nothing", nil, false, false},
		{"keepalive", keepalive, false, false},
		{"unicast", updating(origin, reach(safiUnicast)), true, false},
		{"vpn", updating(origin, reach(safiVPN)), false, true},
		{"withdrawals", slices.Concat(updating(unreach(safiUnicast)), updating(unreach(safiVPN))), true, true},
		{"both in one", updating(reach(safiVPN), unreach(safiUnicast)), true, true},
		{"behind others", slices.Concat(keepalive, keepalive, updating(reach(safiVPN))), false, true},
		{"behind the rest of another", slices.Concat([]byte{1, 2, 3}, updating(reach(safiVPN))), false, true},
		{"end of table", updating(attribute(mpUnreach, false, 0, afiIPv6, safiVPN)), false, false},
		{"other family", updating(attribute(mpReach, true, 0, 1, safiVPN, 1)), false, false},
		{"other attribute", updating(attribute(8, false, 0, afiIPv6, safiVPN, 1)), false, false},
		{"cut", updating(reach(safiVPN))[:30], false, false},
		{"not an update", message(1, updating(reach(safiVPN))[bgpHeader:]), false, false},
	} {
		if unicast, vpn := changed(tt.payload); unicast != tt.unicast || vpn != tt.vpn {
			t.Errorf("%s: got unicast %t, vpn %t", tt.name, unicast, vpn)
		}
	}
}

func FuzzPackets(f *testing.F) {
	update := updating(attribute(mpReach, true, 0, afiIPv6, safiVPN, 1), attribute(mpUnreach, false, 0, afiIPv6, safiUnicast, 1))
	f.Add(ipv6(unix.IPPROTO_TCP, here, there, segmentOf(179, 40000, 12, update)))
	inner := ipv6(unix.IPPROTO_TCP, here, there, segmentOf(80, 40000, 0, nil))
	f.Add(ipv6(unix.IPPROTO_IPV6, there, here, inner))
	f.Add(ipv6(unix.IPPROTO_ROUTING, there, here, routing(inner)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := parseSegment(b); ok {
			changed(s.payload)
		}
		if _, ok := parseCarried(b); ok && len(b) < 2*ipv6Header+tcpHeader {
			t.Errorf("a segment in %d bytes", len(b))
		}
	})
}

func TestParseSegment(t *testing.T) {
	packet := ipv6(unix.IPPROTO_TCP, here, there, segmentOf(179, 40000, 12, []byte("payload")))
	s, ok := parseSegment(append(packet, "padding"...))
	if !ok || s.from != here || s.to != there || string(s.payload) != "payload" {
		t.Errorf("got %v %v %q, %t", s.from, s.to, s.payload, ok)
	}
	large := slices.Clone(packet)
	large[4], large[5] = 0, 0
	if s, ok := parseSegment(large); !ok || string(s.payload) != "payload" {
		t.Errorf("large packet: %q, %t", s.payload, ok)
	}
	for name, b := range map[string][]byte{
		"udp": ipv6(unix.IPPROTO_UDP, here, there, segmentOf(179, 1, 0, nil)), "cut": packet[:50], "offset": ipv6(unix.IPPROTO_TCP, here, there, segmentOf(1, 2, 40, nil)[:tcpHeader]),
	} {
		if s, ok := parseSegment(b); ok {
			t.Errorf("%s is taken for a segment: %v", name, s)
		}
	}
}

func TestParseCarried(t *testing.T) {
	inner := ipv6(unix.IPPROTO_TCP, here, there, segmentOf(80, 40000, 0, nil))
	begins := slices.Clone(inner)
	begins[ipv6Header+13] |= flagSYN
	for _, tt := range []struct {
		name   string
		packet []byte
		want   carried
	}{
		{"without routing header", ipv6(unix.IPPROTO_IPV6, there, here, inner), carried{here, 40000, false}},
		{"with routing header", ipv6(unix.IPPROTO_ROUTING, there, here, routing(inner)), carried{here, 40000, false}},
		{"the first one", ipv6(unix.IPPROTO_ROUTING, there, here, routing(begins)), carried{here, 40000, true}},
	} {
		if c, ok := parseCarried(tt.packet); !ok || c != tt.want {
			t.Errorf("%s: got %v, %t", tt.name, c, ok)
		}
	}
	for name, b := range map[string][]byte{
		"plain": inner, "nothing": nil, "cut": ipv6(unix.IPPROTO_IPV6, there, here, inner[:50]),
		"cut routing header": ipv6(unix.IPPROTO_ROUTING, there, here, routing(nil)[:20]),
		"udp inside":         ipv6(unix.IPPROTO_IPV6, there, here, ipv6(unix.IPPROTO_UDP, here, there, make([]byte, 30))),
	} {
		if c, ok := parseCarried(b); ok {
			t.Errorf("%s is taken for an encapsulated segment: %v", name, c)
		}
	}
}

// at returns a time in a trial, in milliseconds from its change.
func at(ms float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(ms * float64(time.Millisecond)))
}

func TestMeasure(t *testing.T) {
	for _, tt := range []struct {
		name, change string
		seen         []observation
		subflow      [2]time.Time
		want         map[string]float64
		missing      string
	}{
		{"announcement", scenario.ChangeAnnounce, []observation{
			{asbrReceived, at(10)}, {asbrSet, at(11)}, {asbrSent, at(12)}, {serverReceived, at(20)}, {epeSet, at(21)}, {bestSet, at(22)},
			// Later consequences of the change.
			{asbrReceived, at(40)}, {serverReceived, at(50)},
		}, [2]time.Time{at(30), at(90)}, map[string]float64{
			"asbr_received_s": 0.010, "asbr_route_s": 0.011, "asbr_part_s": 0.002, "reflector_part_s": 0.008, "edge_part_s": 0.001, "own_part_s": 0.003,
			"epe_route_s": 0.021, "best_path_s": 0.022, "subflow_s": 0.030,
		}, ""},
		{"withdrawal, with no route in between", scenario.ChangeWithdraw, []observation{
			{bestDeleted, at(5)}, {asbrReceived, at(1)}, {asbrSent, at(2)}, {asbrDeleted, at(3)}, {serverReceived, at(4)}, {epeDeleted, at(6)},
			{bestSet, at(60)}, {bestSet, at(110)},
		}, [2]time.Time{at(0.5), at(7)}, map[string]float64{
			"asbr_received_s": 0.001, "asbr_route_s": 0.003, "asbr_part_s": 0.001, "reflector_part_s": 0.002, "edge_part_s": 0.002, "own_part_s": 0.003,
			"epe_route_s": 0.006, "best_path_s": 0.110, "subflow_s": 0.007,
		}, ""},
		{"the kernel is read before the packet", scenario.ChangeAnnounce, []observation{
			{asbrReceived, at(1)}, {asbrSent, at(2)}, {serverReceived, at(4)}, {epeSet, at(3.9)}, {bestSet, at(5)},
		}, [2]time.Time{}, map[string]float64{
			"asbr_received_s": 0.001, "asbr_part_s": 0.001, "reflector_part_s": 0.002, "edge_part_s": 0, "own_part_s": 0.001, "epe_route_s": 0.0039, "best_path_s": 0.005,
		}, ""},
		{"half way", scenario.ChangeWithdraw, []observation{{asbrReceived, at(1)}, {epeDeleted, at(3)}, {bestDeleted, at(3)}}, [2]time.Time{},
			map[string]float64{"asbr_received_s": 0.001, "epe_route_s": 0.003, "subflow_s": 0}, "there is no other best path on the server"},
		{"the other way round", scenario.ChangeWithdraw, []observation{{epeSet, at(3)}, {bestSet, at(3)}}, [2]time.Time{},
			map[string]float64{"best_path_s": 0.003, "subflow_s": 0}, "the EPE Route has not changed on the server"},
	} {
		got := measure(tt.change, at(0), tt.seen, tt.subflow)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(tt.want))) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
		for name, want := range tt.want {
			if d := got[name] - want; d > 1e-9 || d < -1e-9 {
				t.Errorf("%s: %s is %v, want %v", tt.name, name, got[name], want)
			}
		}
		if text := missing(tt.change, tt.seen); text != tt.missing {
			t.Errorf("%s: missing %q, want %q", tt.name, text, tt.missing)
		}
	}
}

// TestWatchSubflow: retransmissions of an earlier connection do not count as packets of the new
// one.
func TestWatchSubflow(t *testing.T) {
	w := &watch{ports: map[uint16]bool{}}
	w.follow()
	w.onSubflow(1, true, at(-5))
	w.follow()
	t0 := w.begin()
	w.onSubflow(1, false, t0.Add(time.Millisecond))
	if _, _, subflow, _ := w.snapshot(); !subflow[0].IsZero() || !w.lastPacket().IsZero() {
		t.Errorf("an old connection's packet counts: %v", subflow)
	}
	w.onSubflow(2, false, t0.Add(-time.Millisecond))
	w.onSubflow(2, false, t0.Add(2*time.Millisecond))
	w.onSubflow(2, false, t0.Add(3*time.Millisecond))
	if _, _, subflow, _ := w.snapshot(); subflow != [2]time.Time{t0.Add(2 * time.Millisecond), t0.Add(3 * time.Millisecond)} {
		t.Errorf("got %v", subflow)
	}
	w.onSubflow(1, true, t0.Add(4*time.Millisecond))
	if _, _, subflow, _ := w.snapshot(); subflow[1] != t0.Add(4*time.Millisecond) {
		t.Errorf("a subflow that begins on an old one's port does not count: %v", subflow)
	}
	w.see(epeSet, t0.Add(-time.Millisecond))
	w.lost()
	if seen, _, _, err := w.snapshot(); len(seen) > 0 || err == nil {
		t.Errorf("saw %v of before, error %v", seen, err)
	}
}

func TestRoutesJobs(t *testing.T) {
	spec := &scenario.Spec{Experiment: &scenario.Experiment{
		Kind:    scenario.KindRoutes,
		Cases:   []scenario.Case{{Name: "3.1", Change: scenario.ChangeAnnounce}, {Name: "3.2", Change: scenario.ChangeWithdraw}},
		Traffic: map[string]*scenario.Traffic{"cbr": {}}, Transports: map[string]*scenario.Transport{"embedded": {}, "frr": {}},
	}}
	r, err := newRoutesRunner(RunOptions{Spec: spec, Trials: 2, Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range r.left[0] {
		got = append(got, fmt.Sprint(j.CellKey, j.trial))
	}
	want := []string{
		"3.2 cbr embedded 0", "3.1 cbr embedded 0", "3.2 cbr embedded 1", "3.1 cbr embedded 1",
		"3.2 cbr frr 0", "3.1 cbr frr 0", "3.2 cbr frr 1", "3.1 cbr frr 1",
	}
	if !slices.Equal(got, want) || r.total != 8 {
		t.Errorf("got %q, total %d", got, r.total)
	}
}

// TestTap sends packets through a namespace's loopback: the filter lets those pass that are of
// interest.
func TestTap(t *testing.T) {
	labtest.NeedRoot(t)
	name := "tabane-" + labtest.Prefix() + "tap"
	if err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Error(err)
		}
	})
	var tp *afpacket.Socket
	err := netns.Do(name, func() (err error) {
		tp, err = afpacket.Open(bgpOrEncapsulated)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	inner := ipv6(unix.IPPROTO_TCP, here, there, segmentOf(80, 40000, 0, make([]byte, 600)))
	packets := [][]byte{
		ipv6(unix.IPPROTO_TCP, here, there, segmentOf(443, 40000, 0, nil)),
		ipv6(unix.IPPROTO_UDP, here, there, segmentOf(179, 179, 0, nil)),
		ipv6(unix.IPPROTO_TCP, here, there, segmentOf(179, 40000, 0, make([]byte, 600))),
		ipv6(unix.IPPROTO_TCP, here, there, segmentOf(40000, 179, 0, nil)),
		ipv6(unix.IPPROTO_IPV6, here, there, inner),
		ipv6(unix.IPPROTO_ROUTING, here, there, routing(inner)),
	}
	err = netns.Do(name, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		for _, p := range packets {
			to := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0x86, 0xdd}), Ifindex: 1}
			if err := unix.Sendto(fd, p, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var lengths []int
	err = tp.Run(ctx, afpacket.Handler{Packet: func(p afpacket.Packet) error {
		if !p.Sent {
			return nil // the loopback shows each packet in both directions
		}
		if d := time.Since(p.At); d < 0 || d > time.Minute {
			t.Errorf("packet is from %s ago", d)
		}
		if lengths = append(lengths, len(p.Data)); len(lengths) == 4 {
			cancel()
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := tp.Close(); err != nil {
		t.Error(err)
	}
	if want := []int{ipv6Header + tcpHeader + 600, ipv6Header + tcpHeader, maxEncapsulated, maxEncapsulated}; !slices.Equal(lengths, want) {
		t.Errorf("got packets of %v bytes, want %v", lengths, want)
	}
}
