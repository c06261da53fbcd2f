package udp

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func pair(t *testing.T, local string) (a, b *Socket) {
	t.Helper()
	for _, s := range []**Socket{&a, &b} {
		var err error
		if *s, err = Listen(Options{Local: netip.MustParseAddrPort(local)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*s).Close() })
	}
	return a, b
}

func buffers(n int) ([][]byte, []Received) {
	b := make([][]byte, n)
	for i := range b {
		b[i] = make([]byte, BufferLen)
	}
	return b, make([]Received, n)
}

// receive takes n datagrams.
func receive(t *testing.T, s *Socket, n int) (all [][]byte, classes []uint8, from netip.AddrPort) {
	t.Helper()
	timeout := time.AfterFunc(10*time.Second, func() { s.Close() })
	defer timeout.Stop()
	b, got := buffers(4)
	for len(all) < n {
		k, err := s.Receive(b, got)
		if err != nil {
			t.Fatalf("after %d of %d datagrams: %v", len(all), n, err)
		}
		for _, g := range got[:k] {
			for d := range chunks(g) {
				all, classes = append(all, bytes.Clone(d)), append(classes, g.Class)
			}
			from = g.From
		}
	}
	return all, classes, from
}

func chunks(g Received) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for d := g.Data; len(d) > 0; d = d[min(g.Size, len(d)):] {
			if !yield(d[:min(g.Size, len(d))]) {
				return
			}
		}
	}
}

func TestDatagramsArriveWholeAndInOrder(t *testing.T) {
	for _, local := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(local, func(t *testing.T) {
			netnstest.Enter(t)
			if _, err := netnstest.TryIP(t, "", "link set lo up"); err != nil {
				t.Fatal(err)
			}
			a, b := pair(t, local)
			var want []Datagram
			for i := range 700 {
				size := 1000
				switch {
				case i%100 == 99:
					size = 300 // ends a message
				case i > 400 && i < 500:
					size = 1000 + i // each larger than the one before
				}
				d := Datagram{Data: bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2), To: b.Local()}
				if i >= 600 {
					d.Class = 0xb8 | 2
				}
				want = append(want, d)
			}
			for i := 0; i < len(want); i += 100 {
				if failed, err := a.Send(want[i : i+100]); failed > 0 || err != nil {
					t.Fatal(failed, err)
				}
				all, classes, from := receive(t, b, 100)
				for j, d := range all {
					if w := want[i+j]; !bytes.Equal(d, w.Data) || classes[j] != w.Class {
						t.Fatalf("datagram %d: %d bytes, class %#x; want %d bytes, class %#x", i+j, len(d), classes[j], len(w.Data), w.Class)
					}
				}
				if from != a.Local() {
					t.Fatalf("from %v, want %v", from, a.Local())
				}
			}
		})
	}
}

// One refused datagram does not stop those behind it.
func TestSendGoesOnAfterAnError(t *testing.T) {
	netnstest.Enter(t)
	if _, err := netnstest.TryIP(t, "", "link set lo up"); err != nil {
		t.Fatal(err)
	}
	a, b := pair(t, "127.0.0.1:0")
	nowhere := netip.MustParseAddrPort("192.0.2.1:9")
	sent := []Datagram{{Data: []byte("one"), To: b.Local()}, {Data: []byte("lost"), To: nowhere}, {Data: []byte("two"), To: b.Local()}}
	failed, err := a.Send(sent)
	if failed != 1 || !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EINVAL) {
		t.Fatalf("%d failed: %v", failed, err)
	}
	for i, d := range sent {
		if d.Failed != (i == 1) {
			t.Errorf("datagram %d failed: %t", i, d.Failed)
		}
	}
	all, _, _ := receive(t, b, 2)
	if got := fmt.Sprintf("%s", all); got != "[one two]" {
		t.Fatal(got)
	}
}

func TestBothFamiliesOnOneSocket(t *testing.T) {
	netnstest.Enter(t)
	if _, err := netnstest.TryIP(t, "", "link set lo up"); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(Options{Interface: "lo"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, local := range []string{"127.0.0.1", "::1"} {
		a, err := Listen(Options{Local: netip.AddrPortFrom(netip.MustParseAddr(local), 0)})
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(a.Local().Addr(), s.Local().Port())
		if _, err := a.Send([]Datagram{{Data: []byte("hello"), To: to, Class: 0x28}}); err != nil {
			t.Fatal(err)
		}
		_, classes, from := receive(t, s, 1)
		if from != a.Local() || classes[0] != 0x28 {
			t.Errorf("from %v class %#x, want %v class 0x28", from, classes[0], a.Local())
		}
		// And back.
		if _, err := s.Send([]Datagram{{Data: []byte("hello"), To: from, Class: 0x28}}); err != nil {
			t.Fatal(err)
		}
		if _, classes, _ := receive(t, a, 1); classes[0] != 0x28 {
			t.Errorf("class %#x back, want 0x28", classes[0])
		}
		a.Close()
	}
}

func TestCloseEndsReceive(t *testing.T) {
	a, _ := pair(t, "127.0.0.1:0")
	time.AfterFunc(20*time.Millisecond, func() { a.Close() })
	b, got := buffers(1)
	if _, err := a.Receive(b, got); !errors.Is(err, fs.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := a.Send([]Datagram{{Data: []byte("x"), To: a.Local()}}); !errors.Is(err, fs.ErrClosed) {
		t.Fatal(err)
	}
}

func TestListenOnMissingInterface(t *testing.T) {
	netnstest.Need(t)
	if _, err := Listen(Options{Interface: "none0"}); !errors.Is(err, unix.ENODEV) {
		t.Fatal(err)
	}
}

// TestSource: the source is that of the interface, whatever route other sockets have.
func TestSource(t *testing.T) {
	ns := netnstest.New(t)
	for _, c := range []string{
		"ip link add name a type veth peer name a0", "ip link add name b type veth peer name b0",
		"ip link set dev a up", "ip link set dev b up", "ip link set a0 up", "ip link set b0 up",
		"ip -4 addr add 192.168.1.1/24 dev a", "ip -4 addr add 192.168.2.1/24 dev b", "ip -6 addr add 2001:db8:2::1/64 dev b nodad",
		"ip -4 route add default via 192.168.1.254 dev a", "ip -4 route add 198.51.100.0/24 via 192.168.2.254 dev b metric 9",
		"ip -6 route add 2001:db8::/64 via 2001:db8:2::9 dev b",
	} {
		if _, err := netnstest.TryIP(t, ns, c); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	for _, tt := range []struct{ name, to, want string }{
		{"a", "203.0.113.1:1", "192.168.1.1"}, {"b", "198.51.100.1:4790", "192.168.2.1"}, {"b", "[2001:db8::7]:1", "2001:db8:2::1"},
		{"", "203.0.113.1:1", "192.168.1.1"},
	} {
		netnstest.Do(t, ns, func() error {
			got, err := Source(Options{Interface: tt.name, Mark: 7}, netip.MustParseAddrPort(tt.to))
			if err != nil || got != netip.MustParseAddr(tt.want) {
				t.Errorf("%s on %q: %v, %v, want %s", tt.to, tt.name, got, err, tt.want)
			}
			return nil
		})
	}
	netnstest.Do(t, ns, func() error {
		if got, err := Source(Options{Interface: "c"}, netip.MustParseAddrPort("203.0.113.1:1")); !errors.Is(err, unix.ENODEV) {
			t.Errorf("on no interface: %v, %v", got, err)
		}
		return nil
	})
}

func TestProbe(t *testing.T) {
	segment, gro := Probe()
	for _, err := range []error{segment, gro} {
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := pair(t, "127.0.0.1:0")
	all := make([]Datagram, 16)
	for i := range all {
		all[i] = Datagram{Data: make([]byte, 1200), To: b.Local()}
	}
	bufs, got := buffers(8)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.Send(all); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(all); {
			k, err := b.Receive(bufs, got)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range got[:k] {
				n += (len(g.Data) + g.Size - 1) / g.Size
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations for each batch", n)
	}
}

func BenchmarkSendReceive(b *testing.B) {
	var s [2]*Socket
	for i := range s {
		var err error
		if s[i], err = Listen(Options{Local: netip.MustParseAddrPort("127.0.0.1:0")}); err != nil {
			b.Fatal(err)
		}
		defer s[i].Close()
	}
	all := make([]Datagram, 45)
	for i := range all {
		all[i] = Datagram{Data: make([]byte, 1400), To: s[1].Local()}
	}
	bufs, got := buffers(8)
	b.SetBytes(45 * 1400)
	b.ReportAllocs()
	for b.Loop() {
		s[0].Send(all)
		for n := 0; n < len(all); {
			k, err := s[1].Receive(bufs, got)
			if err != nil {
				b.Fatal(err)
			}
			for _, g := range got[:k] {
				n += (len(g.Data) + g.Size - 1) / g.Size
			}
		}
	}
}

// TestFrom: datagrams have the source that the caller gives them while it is one of this host, and
// the receiver's address is known, in each kind of socket.
func TestFrom(t *testing.T) {
	netnstest.Enter(t)
	for _, c := range []string{"link set lo up", "-6 addr add fd01::1/128 dev lo nodad", "-6 addr add fd01::2/128 dev lo nodad"} {
		if _, err := netnstest.TryIP(t, "", "ip "+c); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ local, to, from, gone string }{
		{"", "127.0.0.2", "127.0.0.9", "192.0.2.9"},
		{"0.0.0.0", "127.0.0.2", "127.0.0.9", "192.0.2.9"},
		{"", "fd01::2", "fd01::1", "fd01::9"},
		{"::", "fd01::2", "fd01::1", "fd01::9"},
	} {
		o := Options{Interface: "lo"}
		if tt.local != "" {
			o.Local = netip.AddrPortFrom(netip.MustParseAddr(tt.local), 0)
		}
		a, err := Listen(o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Listen(o)
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(tt.to), b.Local().Port())
		from, gone := netip.MustParseAddr(tt.from), netip.MustParseAddr(tt.gone)
		for _, d := range []Datagram{
			{From: from}, {From: from, Class: 0x28}, {From: gone}, {From: gone, Class: 0x28},
		} {
			d.To, d.Data = to, make([]byte, 100)
			sent := []Datagram{d, d, d}
			if failed, err := a.Send(sent); failed != 0 || err != nil {
				t.Fatalf("%v to %v: %d failed: %v", d.From, to, failed, err)
			}
			buffers, got := buffers(8)
			for n := 0; n < len(sent); {
				k, err := b.Receive(buffers, got)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range got[:k] {
					n += len(g.Data) / 100
					if d.From == from && g.From.Addr() != from || d.From == gone && g.From.Addr() == gone || g.To != to.Addr() || g.Class != d.Class {
						t.Errorf("%q: from %v class %#x to %v, sent from %v class %#x to %v", tt.local, g.From, g.Class, g.To, d.From, d.Class, to)
					}
				}
			}
		}
		a.Close()
		b.Close()
	}
}
