package afpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
)

const (
	// arpLen is the length of an ARP packet of IPv4 over Ethernet in bytes (RFC 826).
	arpLen = 28
	// solicitationLen is that of a neighbor solicitation without options, with its IPv6 header (RFC
	// 4861 section 4.3).
	solicitationLen = 40 + 24

	solicitation, advertisement = 135, 136
)

// claimFilter passes ARP packets and neighbor advertisements only (classic BPF): on a busy
// interface, copies of everything else would cost a processor, and take the room of the answers.
var claimFilter = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: skfAdOff + skfAdProtocol},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 5, K: unix.ETH_P_ARP},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 5, K: unix.ETH_P_IPV6},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.IPPROTO_ICMPV6},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 40},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: advertisement},
	{Code: unix.BPF_RET | unix.BPF_K, K: 128},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// Where a filter reads the Ethernet protocol of a packet: SKF_AD_OFF and SKF_AD_PROTOCOL of
// linux/filter.h.
const (
	skfAdOff      = 0xfffff000
	skfAdProtocol = 0
)

// Claim is another host's use of an address.
type Claim struct {
	Address netip.Addr
	// MAC is where the claim came from.
	MAC net.HardwareAddr
}

// Claims probes on an interface whether another host has one of its addresses, as ARP probes (RFC
// 5227 section 2.1.1) and duplicate address detection (RFC 4862 section 5.4.2) do, and returns the
// claims that arrive in time. Those from an address of own are of this host. It needs CAP_NET_RAW,
// and an Ethernet interface.
func Claims(at *net.Interface, addresses []netip.Addr, own []net.HardwareAddr, wait time.Duration) ([]Claim, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(claimFilter)), Filter: &claimFilter[0]})
	if err != nil {
		return nil, fmt.Errorf("filter packets on interface %q: %w", at.Name, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: at.Index}); err != nil {
		return nil, fmt.Errorf("probe addresses on interface %q: %w", at.Name, err)
	}
	probed := map[netip.Addr]bool{}
	for _, a := range addresses {
		probed[a] = true
		b, to := probe(a, at.HardwareAddr)
		if err := unix.Sendto(fd, b, 0, to.on(at.Index)); err != nil {
			return nil, fmt.Errorf("probe address %v on interface %q: %w", a, at.Name, err)
		}
	}
	var claims []Claim
	seen := map[netip.Addr]bool{}
	b := make([]byte, 128)
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return claims, nil
		}
		timeout := unix.NsecToTimeval(max(left, time.Microsecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return nil, fmt.Errorf("probe addresses on interface %q: %w", at.Name, err)
		}
		n, from, err := unix.Recvfrom(fd, b, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("probe addresses on interface %q: %w", at.Name, err)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING || ll.Halen != 6 {
			continue
		}
		a, mac := claimed(ll.Protocol, b[:n]), net.HardwareAddr(bytes.Clone(ll.Addr[:6]))
		if probed[a] && !seen[a] && !contains(own, mac) {
			seen[a] = true
			claims = append(claims, Claim{a, mac})
		}
	}
}

func contains(list []net.HardwareAddr, mac net.HardwareAddr) bool {
	return slices.ContainsFunc(list, func(m net.HardwareAddr) bool { return bytes.Equal(m, mac) })
}

// destination is an Ethernet protocol in host byte order, and an address.
type destination struct {
	protocol uint16
	mac      [6]byte
}

func (d destination) on(index int) *unix.SockaddrLinklayer {
	sa := &unix.SockaddrLinklayer{Protocol: d.protocol<<8 | d.protocol>>8, Ifindex: index, Halen: 6}
	copy(sa.Addr[:], d.mac[:])
	return sa
}

// probe returns the question whether another host has an address, and where it is sent. The sender
// has no address yet.
func probe(a netip.Addr, mac net.HardwareAddr) ([]byte, destination) {
	be := binary.BigEndian
	if a.Is4() {
		b := make([]byte, arpLen)
		be.PutUint16(b, 1) // Ethernet
		be.PutUint16(b[2:], unix.ETH_P_IP)
		b[4], b[5], b[7] = 6, 4, 1 // a request
		copy(b[8:], mac)
		copy(b[24:], a.AsSlice())
		return b, destination{unix.ETH_P_ARP, [6]byte{255, 255, 255, 255, 255, 255}}
	}
	b := make([]byte, solicitationLen)
	target := a.As16()
	b[0], b[5], b[6], b[7] = 6<<4, 24, unix.IPPROTO_ICMPV6, 255
	// The solicited-node multicast address (RFC 4291 section 2.7.1).
	copy(b[24:], []byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, target[13], target[14], target[15]})
	b[40] = solicitation
	copy(b[48:], target[:])
	sum := checksum.Pseudo(b, unix.IPPROTO_ICMPV6, len(b)-40)
	be.PutUint16(b[42:], ^checksum.Fold(checksum.Sum(b[40:], sum)))
	return b, destination{unix.ETH_P_IPV6, [6]byte{0x33, 0x33, 0xff, target[13], target[14], target[15]}}
}

// claimed returns the address that the sender of a packet uses, by ARP or a neighbor advertisement;
// invalid if it is none of these. protocol is that of the frame in network byte order.
func claimed(protocol uint16, b []byte) (a netip.Addr) {
	switch protocol<<8 | protocol>>8 {
	case unix.ETH_P_ARP:
		if len(b) >= arpLen && binary.BigEndian.Uint16(b[2:]) == unix.ETH_P_IP && b[5] == 4 {
			a, _ = netip.AddrFromSlice(b[14:18])
		}
	case unix.ETH_P_IPV6:
		if len(b) >= solicitationLen && b[6] == unix.IPPROTO_ICMPV6 && b[7] == 255 && b[40] == advertisement {
			a, _ = netip.AddrFromSlice(b[48:64])
		}
	}
	return a
}
