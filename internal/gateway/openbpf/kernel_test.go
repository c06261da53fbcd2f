package openbpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// site is a host and its gateway, and the far host that two links lead to.
type site struct {
	t               testing.TB
	host, gate, far string
	index           [2]int // of the links
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, host: netnstest.New(t), gate: netnstest.New(t), far: netnstest.New(t)}
	for _, ns := range []string{s.host, s.gate, s.far} {
		s.ip(ns, "ip link set lo up")
	}
	s.ip(s.gate, "ip link add lan type veth peer name lan netns %s", s.host)
	s.up(s.host, "lan", "10.1.0.1/24", "fd00:1::1/64")
	s.up(s.gate, "lan", "10.1.0.254/24", "fd00:1::fe/64")
	s.ip(s.host, "ip -4 route add 10.2.0.0/16 via 10.1.0.254")
	s.ip(s.host, "ip -6 route add fd00:2::/64 via fd00:1::fe")
	for i := range s.index {
		name := fmt.Sprintf("p%d", i)
		s.ip(s.gate, "ip link add %s type veth peer name %s netns %s", name, name, s.far)
		s.up(s.gate, name, fmt.Sprintf("192.168.%d.1/24", i), fmt.Sprintf("fd00:f%d::1/64", i))
		s.up(s.far, name, fmt.Sprintf("192.168.%d.2/24", i), fmt.Sprintf("fd00:f%d::2/64", i))
		netnstest.Do(t, s.gate, func() error {
			l, err := net.InterfaceByName(name)
			if err == nil {
				s.index[i] = l.Index
			}
			return err
		})
	}
	s.up(s.far, "lo", "10.2.0.1/32", "fd00:2::1/128")
	return s
}

func (s *site) ip(ns, command string, args ...any) {
	s.t.Helper()
	if _, err := netnstest.TryIP(s.t, ns, fmt.Sprintf(command, args...)); err != nil {
		s.t.Fatalf(command+": %v", append(args, err)...)
	}
}

func (s *site) up(ns, link, ipv4, ipv6 string) {
	s.t.Helper()
	s.ip(ns, "ip link set %s up", link)
	s.ip(ns, "ip -4 addr add %s dev %s", ipv4, link)
	s.ip(ns, "ip -6 addr add %s dev %s nodad", ipv6, link)
}

// ways are those of the links, to the far host.
func (s *site) ways() []Way {
	var list []Way
	for i, index := range s.index {
		list = append(list, Way{Interface: index, IPv4: netip.AddrFrom4([4]byte{192, 168, byte(i), 2}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:f%d::2", i))})
	}
	return list
}

// exchange sends datagrams to the far host and returns how many of them arrive, copies included.
func (s *site) exchange(to string, n int) (received int) {
	s.t.Helper()
	var listener, sender net.Conn
	netnstest.Do(s.t, s.far, func() (err error) {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 9)))
		listener = c
		return err
	})
	defer listener.Close()
	netnstest.Do(s.t, s.host, func() (err error) {
		sender, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9).String())
		return err
	})
	defer sender.Close()
	b := make([]byte, 1500)
	for i := range n {
		if _, err := sender.Write([]byte{byte(i)}); err != nil {
			s.t.Fatal(err)
		}
		// One after the other: neighbors are resolved first, whose queues are short.
		wait := 2 * time.Second
		for {
			if err := listener.SetReadDeadline(time.Now().Add(wait)); err != nil {
				s.t.Fatal(err)
			}
			if _, err := listener.Read(b); err != nil {
				break
			}
			received++
			wait = 20 * time.Millisecond // for a copy
		}
	}
	return received
}

// TestPacketsGoOverBothLinks: with tcx and with cls_bpf, packets of IPv4 and IPv6 that the kernel
// does not forward here arrive, as many over each link as the discipline says, until the program is
// detached.
func TestPacketsGoOverBothLinks(t *testing.T) {
	s := newSite(t)
	// As every gateway has it, and as probes of the paths bring it about: neighbors are known.
	netnstest.Do(t, s.gate, func() error {
		errs := []error{netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1")}
		for _, w := range s.ways() {
			for _, a := range []netip.Addr{w.IPv4, w.IPv6} {
				c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
				if err == nil {
					_, err = c.Write([]byte{1})
					err = errors.Join(err, c.Close())
				}
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	for _, legacy := range []bool{false, true} {
		p := load(t, Options{Legacy: legacy})
		if err := p.SetRoutes(map[netip.Prefix]int{netip.MustParsePrefix("10.2.0.0/16"): 0, netip.MustParsePrefix("fd00:2::/64"): 0}); err != nil {
			t.Fatal(err)
		}
		var detach func() error
		netnstest.Do(t, s.gate, func() error {
			a, err := p.Attach("lan")
			if err == nil {
				detach = func() error { return netns.Do(s.gate, a.Detach) }
			}
			return err
		})
		for _, to := range []string{"10.2.0.1", "fd00:2::1"} {
			// The first one waits until the neighbors are resolved; copies do not.
			for i, discipline := range []string{"ratio", "redundant"} {
				copies := i + 1
				if err := p.Reset(0); err != nil {
					t.Fatal(err)
				}
				p.plans(t, dataplane.Policy{{}}, discipline, 1500, 2, s.ways()...)
				const n = 6
				got := s.exchange(to, n)
				traffic, err := p.Traffic(0)
				if err != nil {
					t.Fatal(err)
				}
				if got != n*copies {
					t.Errorf("legacy %v, %s, %s: %d packets arrive", legacy, to, discipline, got)
				}
				for i, c := range traffic.Paths[:2] {
					if c.Packets != uint64(n*copies/2) {
						t.Errorf("legacy %v, %s, %s: %d packets on path %d", legacy, to, discipline, c.Packets, i)
					}
				}
			}
		}
		if err := detach(); err != nil {
			t.Error(err)
		}
		before, _ := p.Traffic(0)
		netnstest.Do(t, s.host, func() error {
			c, err := net.Dial("udp", "10.2.0.1:9")
			if err != nil {
				return err
			}
			_, err = c.Write([]byte{1})
			return errors.Join(err, c.Close())
		})
		if after, err := p.Traffic(0); err != nil || after != before {
			t.Errorf("legacy %v: packets are sent without the program: %v", legacy, err)
		}
	}
}
