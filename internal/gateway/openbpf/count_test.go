package openbpf

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// TestCount: of what arrives on the interface of a path, packets of the peer's hosts are marked and
// counted, and no others. ICMP errors about packets to the peer are marked.
func TestCount(t *testing.T) {
	const loopback, peer, path, port = 1, 3, 2, 4790
	p := load(t, Options{})
	gateway := netip.MustParseAddr("10.2.0.254")
	if err := p.SetRoutes(map[netip.Prefix]int{
		netip.MustParsePrefix("10.1.0.0/16"): peer, netip.MustParsePrefix("2001:db8:1::/48"): peer,
		netip.MustParsePrefix("10.2.0.0/16"): Kernel, netip.PrefixFrom(gateway, 32): Own,
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Listen(port); err != nil {
		t.Fatal(err)
	}
	packet := func(from, to string, port uint16) message {
		return message{hops: 9, payload: 80, Packet: dataplane.Packet{
			Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to), Protocol: unix.IPPROTO_UDP, SrcPort: 4790, DstPort: port,
		}}
	}
	line := map[Line]int{{loopback, peer}: path}
	fragment := packet("10.1.0.1", "10.2.0.1", 99)
	fragment.fragment = 1
	for _, tt := range []struct {
		name  string
		lines map[Line]int
		message
		counted, marked bool
	}{
		{"no line", map[Line]int{}, packet("10.1.0.1", "10.2.0.1", 99), false, false},
		{"another interface", map[Line]int{{loopback + 1, peer}: path}, packet("10.1.0.1", "10.2.0.1", 99), false, false},
		{"another peer's line", map[Line]int{{loopback, peer + 1}: path}, packet("10.1.0.1", "10.2.0.1", 99), false, false},
		{"IPv4", line, packet("10.1.0.1", "10.2.0.1", 99), true, true},
		{"IPv6", line, packet("2001:db8:1::1", "2001:db8:2::1", 99), true, true},
		{"fragment", line, fragment, true, true},
		{"to the gateway", line, packet("10.1.0.1", gateway.String(), 99), true, true},
		{"of the gateway", line, packet("10.1.0.1", gateway.String(), port), false, false},
		{"to a host's port of that number", line, packet("10.1.0.1", "10.2.0.1", port), true, true},
		{"on a line of several paths", map[Line]int{{loopback, peer}: MaxPaths}, packet("10.1.0.1", "10.2.0.1", 99), false, true},
		{"another source", line, packet("10.3.0.1", "10.2.0.1", 99), false, false},
		{"no line any more", map[Line]int{}, packet("10.1.0.1", "10.2.0.1", 99), false, false},
	} {
		lines := map[Line]int{}
		for l, i := range tt.lines {
			lines[l] = i
		}
		before, err := p.Counted(peer)
		if err == nil {
			err = p.SetLines(lines)
		}
		frame := tt.frame()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		verdict, out, marked := received(t, p.objects.Count, frame)
		if verdict != next || !bytes.Equal(out, frame) || marked != tt.marked {
			t.Errorf("%s: verdict %d, marked %v, %x", tt.name, int32(verdict), marked, out)
		}
		after, err := p.Counted(peer)
		if err != nil {
			t.Fatal(err)
		}
		want := before
		if tt.counted {
			want[path].Packets++
			want[path].Bytes += uint64(len(frame) - 14)
		}
		if after != want {
			t.Errorf("%s: counted %+v, want %+v", tt.name, after[path], want[path])
		}
	}
	if err := p.SetLines(map[Line]int{{loopback, peer}: path}); err != nil {
		t.Fatal(err)
	}
	// What the peer may reach is a part of the LAN, and what neighbors need.
	if err := p.SetAllowed(map[int][]netip.Prefix{peer: {netip.MustParsePrefix("10.2.0.0/24")}}); err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]uint32{"10.2.0.1": next, "10.2.1.1": drop, "10.9.0.1": drop, gateway.String(): next, "224.0.0.1": next, "255.255.255.255": next} {
		m := packet("10.1.0.1", to, 99)
		if verdict, _, _ := received(t, p.objects.Count, m.frame()); verdict != want {
			t.Errorf("to %s: verdict %d, want %d", to, int32(verdict), int32(want))
		}
	}
	for to, want := range map[string]uint32{"2001:db8:2::1": drop, "ff02::1:ff00:1": next, "fe80::1": next} {
		m := packet("2001:db8:1::1", to, 99)
		if verdict, _, _ := received(t, p.objects.Count, m.frame()); verdict != want {
			t.Errorf("to %s: verdict %d, want %d", to, int32(verdict), int32(want))
		}
	}
	if err := p.SetAllowed(nil); err != nil {
		t.Fatal(err)
	}
	for _, router := range []string{"203.0.113.1", "2001:db8:ffff::1"} {
		r := netip.MustParseAddr(router)
		near, far, kind, destination := "10.2.0.1", "10.1.0.1", byte(3), 33
		if r.Is6() {
			near, far, kind, destination = "2001:db8:2::1", "2001:db8:1::1", 2, 53
		}
		to, stranger, reply := packet(near, far, 99), packet(near, router, 99), icmpError(r, (&message{hops: 9, Packet: dataplane.Packet{
			Src: netip.MustParseAddr(near), Dst: netip.MustParseAddr(far), Protocol: unix.IPPROTO_UDP,
		}}).frame(), 200)
		misdirected := icmpError(r, to.frame(), kind)
		misdirected[destination]++
		for what, tt := range map[string]struct {
			frame []byte
			want  bool
		}{
			"about a packet to the peer": {icmpError(r, to.frame(), kind), true}, "about another": {icmpError(r, stranger.frame(), kind), false},
			"that is none": {reply, false}, "to another host": {misdirected, false},
		} {
			if verdict, out, marked := received(t, p.objects.Count, tt.frame); verdict != next || !bytes.Equal(out, tt.frame) || marked != tt.want {
				t.Errorf("error from %v %s: verdict %d, marked %v", r, what, int32(verdict), marked)
			}
		}
	}
}
