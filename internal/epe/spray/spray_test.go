package spray

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

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
