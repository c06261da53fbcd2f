package forward

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/plane"
)

// TestCount: of what arrives on the interface of a path, packets of the peer's hosts are counted, and no others.
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
		return message{hops: 9, payload: 80, Packet: plane.Packet{
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
		counted bool
	}{
		{"no line", map[Line]int{}, packet("10.1.0.1", "10.2.0.1", 99), false},
		{"another interface", map[Line]int{{loopback + 1, peer}: path}, packet("10.1.0.1", "10.2.0.1", 99), false},
		{"another peer's line", map[Line]int{{loopback, peer + 1}: path}, packet("10.1.0.1", "10.2.0.1", 99), false},
		{"IPv4", line, packet("10.1.0.1", "10.2.0.1", 99), true},
		{"IPv6", line, packet("2001:db8:1::1", "2001:db8:2::1", 99), true},
		{"fragment", line, fragment, true},
		{"to the gateway", line, packet("10.1.0.1", gateway.String(), 99), true},
		{"of the gateway", line, packet("10.1.0.1", gateway.String(), port), false},
		{"to a host's port of that number", line, packet("10.1.0.1", "10.2.0.1", port), true},
		{"another source", line, packet("10.3.0.1", "10.2.0.1", 99), false},
		{"no line any more", map[Line]int{}, packet("10.1.0.1", "10.2.0.1", 99), false},
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
		var verdict uint32
		if err == nil {
			verdict, err = p.objects.Count.Run(&ebpf.RunOptions{Data: frame, Repeat: 1})
		}
		if err != nil || verdict != next {
			t.Fatalf("%s: verdict %d, %v", tt.name, int32(verdict), err)
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
}
