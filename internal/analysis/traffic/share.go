package traffic

import "fmt"

// Lengths of headers and options in bytes.
const (
	// ethernetHeader is counted by shapers on Ethernet and veth in addition to the IP packet:
	// two addresses and a type.
	ethernetHeader = 14
	// ipv6Header is the fixed header (RFC 8200 section 3), ipv4Header that without options (RFC 791
	// section 3.1).
	ipv6Header = 40
	ipv4Header = 20
	// tcpHeader is the header without options (RFC 9293 section 3.1).
	tcpHeader = 20
	// tcpTimestamps is the timestamps option of every segment, 10 bytes (RFC 7323 section 3.2), and
	// two NOPs.
	tcpTimestamps = 12
	// udpHeader is the header of UDP (RFC 768).
	udpHeader = 8
	// mptcpDSS is the DSS option of every segment (RFC 8684 section 3.3.1): 4 bytes of kind,
	// length, subtype and flags, a Data ACK and a data sequence number of 8 bytes each, a subflow
	// sequence number of 4, a data-level length of 2, and two NOPs; no checksum.
	mptcpDSS = 28
	// ipv6MinMTU is the minimum MTU of an IPv6 link (RFC 8200 section 5).
	ipv6MinMTU = 1280
	// maxMTU is the largest IPv6 packet without jumbo payload (RFC 8200 section 3).
	maxMTU = ipv6Header + 65535
)

// Overhead describes the overhead of a bulk data segment on the bottleneck in addition to TCP over
// IPv6 with timestamps.
type Overhead struct {
	// IPv4 is TCP over IPv4.
	IPv4 bool
	// MPTCP adds the DSS option.
	MPTCP bool
	// Encap is the length of an IPv6 encapsulation that is removed before the bottleneck: it
	// reduces the size of the inner packet, but does not use the link's capacity. It is 40 for
	// encap.red without an SRH (RFC 8986 section 5.2), and 64 with an SRH of one SID (RFC 8754
	// section 2).
	Encap int
	// Tunnel is the length of an encapsulation that remains on the bottleneck: it reduces the size
	// of the inner packet, and uses the link's capacity.
	Tunnel int
	// UDP is UDP instead of TCP.
	UDP bool
}

// PayloadShare returns the share of payload in the bytes that a shaper on an Ethernet or veth link
// counts, if all segments are full and every link of the path has this MTU. ACKs in the other
// direction are not counted.
func PayloadShare(mtu int, o Overhead) (float64, error) {
	inner := mtu - o.Encap - o.Tunnel
	switch {
	case mtu > maxMTU:
		return 0, fmt.Errorf("compute payload share: mtu must be at most %d, got %d", maxMTU, mtu)
	case o.Encap < 0:
		return 0, fmt.Errorf("compute payload share: encapsulation must be >= 0 bytes, got %d", o.Encap)
	case o.Tunnel < 0:
		return 0, fmt.Errorf("compute payload share: tunnel must be >= 0 bytes, got %d", o.Tunnel)
	case inner < ipv6MinMTU:
		return 0, fmt.Errorf("compute payload share: mtu %d less %d bytes of encapsulation must be at least %d", mtu, o.Encap+o.Tunnel, ipv6MinMTU)
	}
	outer := mtu - o.Encap + ethernetHeader
	return float64(outer-o.Headers()) / float64(outer), nil
}

// Headers returns the number of header bytes of a segment, as a shaper counts them.
func (o Overhead) Headers() int {
	n := ethernetHeader + ipv6Header + tcpHeader + tcpTimestamps + o.Tunnel
	if o.UDP {
		n += udpHeader - tcpHeader - tcpTimestamps
	}
	if o.IPv4 {
		n += ipv4Header - ipv6Header
	}
	if o.MPTCP {
		n += mptcpDSS
	}
	return n
}

// MaxSegment returns the payload of a full segment in bytes if all links have this MTU.
func (o Overhead) MaxSegment(mtu int) int { return mtu - o.Encap + ethernetHeader - o.Headers() }
