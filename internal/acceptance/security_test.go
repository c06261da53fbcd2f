package acceptance

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/netns"
)

// TestRejectsForeignRoutes: an egress peer advertises what is not its own. Each route is
// rejected and counted, and nothing changes inside.
func TestRejectsForeignRoutes(t *testing.T) {
	t.Parallel()
	const good = "2001:db8:d::/64" // sent after all others
	l := epe(t, "      router_id: 10.1.0.1\n", "      router_id: 10.1.0.1\n      networks: [\"fc00:2:1::/128\", \"fc00:2::/32\", \"2001:db8:1::fe/128\", \"2001:db8:a::/64\", "+
		"\"2001:db8:a::1/128\", \"2001:db8:b::2/128\", \"fd00::/16\", \"2001:db8:f::/65\", \""+good+"\"]\n",
		// A network connected to asbr1 is not connected to asbr2, which receives the route
		// from transit-b, so asbr2 needs import.deny.
		"      router_id: 10.0.0.2\n", "      router_id: 10.0.0.2\n      import: {max_length: 64, allow_bogons: [\"2001:db8::/32\"], deny: [\"2001:db8:a::/64\"]}\n")
	l.eventually("the good route arrives", 10*time.Second, l.shows(true, good, "server", "route show table 101"))
	want := map[string]int{"bogon": 1, "connected": 2, "own-prefix": 1, "srv6-block": 2, "too-long": 2}
	l.eventually(fmt.Sprint(want, " are counted"), 10*time.Second, func() (bool, string) {
		out, err := l.try("asbr1", program, "status", "--json", "asbr")
		var s struct {
			Peers []struct{ Rejected map[string]int }
		}
		if e := json.Unmarshal([]byte(out), &s); e != nil || len(s.Peers) != 1 {
			return false, fmt.Sprint(out, err)
		}
		// Until asbr1 advertises the AS's own prefix to transit-a, transit-a's best path to it is
		// that of transit-b, and advertised to asbr1.
		delete(s.Peers[0].Rejected, "as-loop")
		return maps.Equal(s.Peers[0].Rejected, want), out
	})
	for _, table := range []string{"main", "101", "102"} {
		routes := l.ip("server", "route show table "+table)
		for _, bad := range []string{"fc00:2:1::", "2001:db8:a::", "2001:db8:b::2", "fd00::", "2001:db8:f::"} {
			if strings.Contains("\n"+routes, "\n"+bad) {
				t.Errorf("the server's table %s has %s:\n%s", table, bad, routes)
			}
		}
	}
	l.ip("server", "route get 2001:db8:c::10 from 2001:db8:1::b") // through transit-b's SID
}

// TestNoTransitBetweenPeers: SRv6 packets and plain packets that arrive from one egress peer
// never leave to another one. With the guard rules deleted they do, so the test would see them.
func TestNoTransitBetweenPeers(t *testing.T) {
	t.Parallel()
	l := epe(t)
	l.eventually("the EPE Route of transit-b", 10*time.Second,
		l.shows(true, "2001:db8:c::/64", "server", "route show table 102"))
	client, stranger := netip.MustParseAddr("2001:db8:c::10"), netip.MustParseAddr("2001:db8:a::2")
	for _, c := range []struct {
		name         string
		attack       []byte
		from, border string // node that sends, and the border router that it sends to
		to           string // node that must not receive
	}{
		{"SRv6 to a SID of another border router", ip6(stranger, netip.MustParseAddr("fc00:2:1::"), unix.IPPROTO_IPV6, marked(stranger, client)),
			"transit-a", "asbr1", "transit-b"},
		{"plain transit", marked(netip.MustParseAddr("2001:db8:b::2"), client), "transit-b", "asbr2", "transit-a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := l.watch(t, c.to, "csp")
			l.inject(t, c.from, "csp", c.border, "wan", c.attack)
			time.Sleep(time.Second) // nothing must come: there is nothing to wait for
			if n := seen.Load(); n > 0 {
				t.Errorf("%d packets came through", n)
			}
			for end := time.Now().Add(10 * time.Second); seen.Load() == 0; {
				if time.Now().After(end) {
					t.Fatal("not seen without the guard rules either: the test shows nothing")
				}
				l.deleteGuards(t, c.border) // the daemon restores them
				l.inject(t, c.from, "csp", c.border, "wan", c.attack)
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

// TestPeerDefaultRouteExcludesOwnPrefixes: traffic within our network stays inside although
// an egress peer advertises a default route, which everything else follows.
func TestPeerDefaultRouteExcludesOwnPrefixes(t *testing.T) {
	t.Parallel()
	l := epe(t, "      router_id: 10.1.0.1\n", "      router_id: 10.1.0.1\n      networks: [\"::/0\"]\n")
	l.eventually("the default route arrives", 10*time.Second,
		l.shows(true, "default nhid", "server", "route show table 101"))
	epeAddress, neighbor := netip.MustParseAddr("2001:db8:1::a"), netip.MustParseAddr("2001:db8:1::fe")
	outside := netip.MustParseAddr("2001:db8:eeee::1")
	received, leaked := l.watch(t, "reflector", "lan"), l.watch(t, "transit-a", "csp")
	send := func(to netip.Addr) {
		t.Helper()
		l.in(t, "server", func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: epeAddress.AsSlice()}, &net.UDPAddr{IP: to.AsSlice(), Port: 9})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(marker)
			return err
		})
	}
	send(neighbor)
	l.eventually("a packet from the EPE address to a host on the link", 5*time.Second, func() (bool, string) {
		return received.Load() > 0, l.ip("server", "rule; route get 2001:db8:1::fe from 2001:db8:1::a")
	})
	// The ASBR drops what arrives at the SID for our own space or for another SID.
	for _, to := range []string{"2001:db8:1::77", "fc00:2:1::"} {
		l.inject(t, "server", "lan", "asbr1", "lan",
			ip6(netip.MustParseAddr("2001:db8:1::10"), netip.MustParseAddr("fc00:1:1::"), unix.IPPROTO_IPV6,
				marked(epeAddress, netip.MustParseAddr(to))))
	}
	time.Sleep(200 * time.Millisecond) // nothing must come: there is nothing to wait for
	if n := leaked.Load(); n > 0 {
		t.Errorf("%d packets for our own space left to the peer", n)
	}
	send(outside)
	l.eventually("a packet to anything else leaves through the peer", 5*time.Second, func() (bool, string) {
		return leaked.Load() == 1, ""
	})
}

// TestWithdrawWithoutCore: without its core link an ASBR withdraws our prefixes from
// its egress peer although the session with that peer stays up.
func TestWithdrawWithoutCore(t *testing.T) {
	t.Parallel()
	l := epe(t)
	const ours = "2001:db8:1::/64"
	l.eventually("transit-b has our prefix", 10*time.Second, l.shows(true, ours, "transit-b", "route"))
	l.link(t, "asbr2", "lan", false)
	l.eventually("our prefix is withdrawn", 2*time.Second, l.shows(false, ours+" via 2001:db8:b::1", "transit-b", "route"))
	l.eventually("the status says why", 2*time.Second, l.contains(true, `"core":false`, "asbr2", program, "status", "--json", "asbr"))
	l.link(t, "asbr2", "lan", true)
	l.eventually("our prefix is back", 15*time.Second, l.shows(true, ours+" via 2001:db8:b::1", "transit-b", "route"))
}

// marker is the payload of the packets of attacks.
var marker = []byte("tabane-attack-marker")

// marked is a packet with the marker and no upper layer.
func marked(src, dst netip.Addr) []byte { return bare(src, dst, marker) }

// bare is an IPv4 or IPv6 packet without upper layer.
func bare(src, dst netip.Addr, payload []byte) []byte {
	if dst.Is4() {
		return ip4(src, dst, unix.IPPROTO_NONE, payload)
	}
	return ip6(src, dst, unix.IPPROTO_NONE, payload)
}

// inIP6 is an IPv4 or IPv6 packet in an IPv6 packet.
func inIP6(src, dst netip.Addr, inner []byte) []byte {
	next := byte(unix.IPPROTO_IPV6)
	if inner[0]>>4 == 4 {
		next = unix.IPPROTO_IPIP
	}
	return ip6(src, dst, next, inner)
}

func ip4(src, dst netip.Addr, next byte, payload []byte) []byte {
	b := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0, 0, 60, next, 0, 0}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], checksum.Of(b))
	return append(b, payload...)
}

func ip6(src, dst netip.Addr, next byte, payload []byte) []byte {
	b := make([]byte, 0, 40+len(payload))
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, next, 60)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	return append(b, payload...)
}

// in runs f in the network namespace of a node.
func (l *lab) in(t *testing.T, node string, f func() error) {
	t.Helper()
	if err := netns.Do("tabane-"+l.name+"-"+node, f); err != nil {
		t.Fatal(err)
	}
}

// link sets an interface up or down, with its addresses.
func (l *lab) link(t *testing.T, node, name string, up bool) {
	t.Helper()
	l.in(t, node, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, unix.AF_INET6)
		if err != nil {
			return err
		}
		key := node + ":" + name
		if !up {
			if l.lowered == nil {
				l.lowered = map[string][]netlink.Addr{}
			}
			l.lowered[key] = addresses
			return netlink.LinkSetDown(link)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		// A kernel short of memory drops an address whose route it cannot add again ("Failed to add
		// prefix route"), so keep_addr_on_down is no promise. What configures interfaces restores
		// it.
		if addresses, err = netlink.AddrList(link, unix.AF_INET6); err != nil {
			return err
		}
		for _, a := range l.lowered[key] {
			if a.IP.IsGlobalUnicast() && !slices.ContainsFunc(addresses, a.Equal) {
				t.Logf("%s: %s: the kernel dropped %s, restoring it", node, name, a.IPNet)
				err = errors.Join(err, netlink.AddrAdd(link, &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}))
			}
		}
		return err
	})
}

// watch counts the marked packets that arrive at an interface until the test ends.
func (l *lab) watch(t *testing.T, node, name string) *atomic.Int64 {
	t.Helper()
	seen := &atomic.Int64{}
	l.each(t, node, name, func(p afpacket.Packet) {
		if !p.Sent && bytes.Contains(p.Data, marker) {
			seen.Add(1)
		}
	})
	return seen
}

// each calls f for the packets of an interface, from the IP header on, until the test ends.
func (l *lab) each(t *testing.T, node, name string, f func(afpacket.Packet)) {
	t.Helper()
	var socket *afpacket.Socket
	l.in(t, node, func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		socket, err = afpacket.Open(afpacket.Options{Interface: link.Index, Cooked: true})
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- socket.Run(ctx, afpacket.Handler{Packet: func(p afpacket.Packet) error { f(p); return nil }})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	})
}

// inject sends an IP packet from a node's interface to the link-layer address of another node's.
func (l *lab) inject(t *testing.T, node, name, to, toName string, b []byte) {
	t.Helper()
	var mac net.HardwareAddr
	l.in(t, to, func() error {
		link, err := net.InterfaceByName(toName)
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	})
	l.in(t, node, func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		etherType := []byte{0x86, 0xdd}
		if b[0]>>4 == 4 {
			etherType = []byte{0x08, 0x00}
		}
		at := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(etherType), Ifindex: link.Index, Halen: 6}
		copy(at.Addr[:], mac)
		return unix.Sendto(fd, b, 0, at)
	})
}

// deleteGuards deletes the policy rules of a border router for packets from its egress peers, as
// another program would.
func (l *lab) deleteGuards(t *testing.T, node string) {
	t.Helper()
	l.in(t, node, func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.IifName != "" {
				if err := netlink.RuleDel(&r); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
