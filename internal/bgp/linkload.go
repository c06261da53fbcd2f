package bgp

import (
	"math"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Load is what an egress link of a border router carries. It is advertised to servers in a VPN
// route of its own for the SID of each egress peer, with a route target that no service has:
// speakers that do not know of it neither import nor install it. The zero Load is none.
type Load struct {
	// Link is the number of the link on its router: peers behind one interface share it.
	Link uint16
	// Sample differs from that of the report before, even if nothing else does.
	Sample uint32
	// Capacity and Used are in bytes/s, as received.
	Capacity, Used float32
}

// The extended communities of a Load, all of which are non-transitive: speakers of another AS do
// not get them (RFC 4360 section 6). That of the capacity is draft-ietf-idr-link-bandwidth's, those
// of the type for experiments have the link and what it carries, and the sample.
const (
	linkBandwidth = 0x4004
	linkUsed      = 0xc04c
	linkSample    = 0xc04d
)

// loadNumber is the number of the route target: that of the TLV for utilized bandwidth in BGP-LS
// (RFC 8571).
const loadNumber = 1120

// LoadTarget is the route target of the loads of an AS. No egress peer may have it.
func LoadTarget(asn uint32) vpn.ID { return vpn.FromASN(asn, loadNumber) }

// LoadPrefix is the prefix of the route with the load of the link of an egress peer with this SID.
func LoadPrefix(sid netip.Addr) netip.Prefix { return netip.PrefixFrom(sid, sid.BitLen()) }

// communities are those of a Load of an AS.
func (l Load) communities(asn uint32) []uint64 {
	if asn > math.MaxUint16 {
		asn = message.ASTrans
	}
	return []uint64{
		linkBandwidth<<48 | uint64(asn)<<32 | uint64(math.Float32bits(l.Capacity)),
		linkUsed<<48 | uint64(l.Link)<<32 | uint64(math.Float32bits(l.Used)),
		linkSample<<48 | uint64(l.Sample),
	}
}

// loadOf returns the Load among extended communities; the zero one unless all of it is there.
func loadOf(communities []uint64) (l Load) {
	found := 0
	for _, c := range communities {
		value := math.Float32frombits(uint32(c))
		switch c >> 48 {
		case linkBandwidth:
			l.Capacity = value
		case linkUsed:
			l.Link, l.Used = uint16(c>>32), value
		case linkSample:
			l.Sample = uint32(c)
		default:
			continue
		}
		found++
	}
	if found != 3 {
		return Load{}
	}
	return l
}
