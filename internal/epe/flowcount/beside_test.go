package flowcount

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// accept attaches a program that accepts all packets at the head of both lists of eth0.
func accept(t *testing.T, ns string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	inside(t, ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			a, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: p, Attach: at, Anchor: link.Head()})
			if err != nil {
				return err
			}
			t.Cleanup(func() { a.Close() })
		}
		return nil
	})
}

// TestBesideOthers: packets are counted although another program accepts them, whichever was
// attached first, and on an interface that was made again.
func TestBesideOthers(t *testing.T) {
	p := newPair(t)
	p.connect(t, "encap")
	counted := func(f *Counter, want bool, when string) {
		t.Helper()
		before := map[bool]uint64{}
		f.Each(func(_ int, k *Key, c Count) { before[k.Sent()] += c.Packets })
		p.transfer(t, netip.MustParseAddrPort("[2001:db8:1::a]:8000"), netip.MustParseAddr("2001:db8:c::2"), 100_000)
		for _, sent := range []bool{false, true} {
			n := uint64(0)
			f.Each(func(_ int, k *Key, c Count) {
				if k.Sent() == sent {
					n += c.Packets
				}
			})
			if (n > before[sent]) != want {
				t.Errorf("%s: %d packets of direction sent=%v, %d before; counted should be %v", when, n, sent, before[sent], want)
			}
		}
	}
	renew := func(f *Counter, want bool) {
		t.Helper()
		inside(t, p.server, func() error {
			changed, err := f.Renew("eth0")
			if changed != want {
				t.Errorf("renewed: %v, want %v", changed, want)
			}
			return err
		})
	}
	accept(t, p.server)
	f := counter(t, p.server, Options{})
	counted(f, true, "behind another")
	renew(f, false)
	accept(t, p.server)
	counted(f, false, "another came before it")
	renew(f, true)
	counted(f, true, "renewed")
	inside(t, p.server, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	renew(f, true)
	renew(f, false)
	ip(t, p.server, `link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:02 netns `+p.client)
	renew(f, true)
	if f.Index("eth0") == 0 {
		t.Error("the interface made again has no index")
	}
}
