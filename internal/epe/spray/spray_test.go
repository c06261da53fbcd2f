package spray

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestRoute: a route with the program of a plan can be added, is as it was when it is read again,
// and the program of another plan is another one.
func TestRoute(t *testing.T) {
	netnstest.Need(t)
	netnstest.IP(t, netnstest.Enter(t), "link set lo up")
	s, err := New([]string{"lo"})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
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

// segment is a frame with a segment between a server and a client, with timestamps.
func segment(sent bool, sequence, ack uint32, stamp, echo uint32, payload int) []byte {
	local, remote := netip.MustParseAddr("2001:db8:1::10"), sprayed.Addr().Next()
	ports := [2]uint16{80, 40000}
	if !sent {
		local, remote, ports = remote, local, [2]uint16{40000, 80}
	}
	f := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(32+payload))
	f = append(append(append(f, unix.IPPROTO_TCP, 64), local.AsSlice()...), remote.AsSlice()...)
	f = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(f, ports[0]), ports[1])
	f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(f, sequence), ack)
	f = append(f, 8<<4, 0x10, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10)
	f = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(f, stamp), echo)
	return append(f, make([]byte, payload)...)
}

// TestSentElsewhere: a connection whose packets pass the program from some time on, as after a
// reload, retransmits what was sent before. That the first one of these arrives is no round trip of
// what was sent again.
func TestSentElsewhere(t *testing.T) {
	const size, stamp = 1000, 5000
	for _, c := range []struct {
		name  string
		gap   uint32 // sent elsewhere after the first segment
		echo  uint32
		known bool
	}{
		{"all is seen", 0, stamp, true},
		{"the first ones were sent before", 0, stamp - 1, false},
		{"so were some later", 9 * size, stamp, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newBench(t)
			run := func(p *ebpf.Program, frame []byte) {
				t.Helper()
				if _, err := p.Run(&ebpf.RunOptions{Data: frame}); err != nil {
					t.Fatal(err)
				}
			}
			sequence, last := uint32(100), uint32(stamp)
			run(n.sprayer.objects.Send, segment(true, sequence, 1, last, 0, size))
			sequence += size + c.gap
			last += c.gap
			for range 200 { // of which 128 are remembered
				run(n.sprayer.objects.Send, segment(true, sequence, 1, last, 0, size))
				sequence += size
				run(n.sprayer.objects.Receive, segment(false, 1, sequence, 1, c.echo, 0))
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
