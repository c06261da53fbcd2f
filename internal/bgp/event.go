package bgp

import (
	"net/netip"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Event is one of Session, Update, UnicastPath, VPNPath and EndOfRIB.
type Event interface{ event() }

// Session reports that a session went up or down.
type Session struct {
	Neighbor string
	Up       bool
	Reason   string // why the session went down
}

// Attributes are the path attributes of a route other than next hop and SID.
type Attributes struct {
	LocalPref   uint32 // 0: absent
	MED         uint32
	HasMED      bool
	ASPath      message.ASPath
	Origin      message.Origin
	Communities []uint32
}

// Update is a change in the Adj-RIB-In of an external neighbor after the import policy: a new,
// changed or withdrawn unicast route. When the session ends, each route is withdrawn.
type Update struct {
	Neighbor string
	Prefix   netip.Prefix
	NextHop  netip.Addr // with zone if link-local
	Attributes
	// Withdrawn: only Neighbor and Prefix are set.
	Withdrawn bool
	// Rejected, a *RejectedError, is why the route is not accepted; the route then counts as
	// withdrawn.
	Rejected error
}

// UnicastPath reports that the best path to a prefix changed.
type UnicastPath struct {
	Prefix netip.Prefix
	// Number is a small number of the prefix in its family, for arrays. After the path is
	// withdrawn, it may be that of another prefix.
	Number  uint32
	NextHop netip.Addr // with zone if link-local; unspecified for local routes without one
	Attributes
	Neighbor string // the sender; empty for local routes
	Local    bool   // originated by this speaker
	// Withdrawn: there is no path; only Prefix and Number are set.
	Withdrawn bool
	// Rejected, a *RejectedError, is why the best path cannot be used; the path then counts as
	// withdrawn.
	Rejected error
}

// VPNPath reports that the best path to a VPN destination, an RD and a prefix, changed.
type VPNPath struct {
	RD      vpn.ID
	Prefix  netip.Prefix
	NextHop netip.Addr
	RTs     []vpn.ID
	// SID is complete, even if it was received transposed (RFC 9252 section 4).
	SID       netip.Addr
	Structure srv6.Structure // zero if absent
	Behavior  uint16         // as received; some reflectors change it, so nothing depends on it
	// Load is that of the link behind the SID, if the route is for it.
	Load Load
	Attributes
	Neighbor string // the sender; empty for local routes
	Local    bool   // originated by this speaker
	// Withdrawn: there is no path; only RD and Prefix are set.
	Withdrawn bool
	// Rejected, a *RejectedError, is why the best path cannot be used; the path then counts as
	// withdrawn.
	Rejected error
}

// EndOfRIB reports that the neighbor completed its initial update. Internal neighbors that support
// RFC 4724 send it, including all speakers of this package. A reflector that has just started sends
// it before its clients' sessions are established.
type EndOfRIB struct {
	Neighbor string
	Family   Family
}

// WithdrawalOf returns the event that withdraws the route of e; ok is false if e is about none.
func WithdrawalOf(e Event) (withdrawal Event, ok bool) {
	switch e := e.(type) {
	case Update:
		return Update{Neighbor: e.Neighbor, Prefix: e.Prefix, Withdrawn: true}, true
	case UnicastPath:
		return UnicastPath{Prefix: e.Prefix, Number: e.Number, Withdrawn: true}, true
	case VPNPath:
		return VPNPath{RD: e.RD, Prefix: e.Prefix, Withdrawn: true}, true
	}
	return nil, false
}

func (Session) event()     {}
func (Update) event()      {}
func (UnicastPath) event() {}
func (VPNPath) event()     {}
func (EndOfRIB) event()    {}
