// Package linkstate exports the SIDs of a border router's egress peers to controllers in BGP-LS
// (RFC 9552), as BGP peer segments for SRv6 (RFC 9086, RFC 9514 sections 5 and 7).
//
// Its sessions are its own: they carry nothing else, and it learns nothing from controllers.
package linkstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/session"
	"github.com/tabane/tabane/internal/bgp/srv6"
)

// Segment is the SID of an egress peer.
type Segment struct {
	SID       netip.Addr
	Structure srv6.Structure
	// Behavior is the codepoint of the SID's endpoint behavior (RFC 8986 section 10.2).
	Behavior uint16
	// PeerASN and PeerID are the AS number and the BGP identifier of the peer.
	PeerASN uint32
	PeerID  netip.Addr
}

// The numbers of RFC 9552, RFC 9086 and RFC 9514.
const (
	nlriSRv6SID = 6
	protocolBGP = 7

	tlvLocalNode   = 256
	tlvASN         = 512
	tlvRouterID    = 516
	tlvSIDInfo     = 518
	tlvBehavior    = 1250
	tlvPeerNodeSID = 1251
	tlvStructure   = 1252

	attrOrigin, attrASPath, attrLocalPref, attrReach, attrUnreach, attrAS4Path, attrLinkState = 1, 2, 5, 14, 15, 17, 29

	flagTransitive, flagOptional, flagExtended = 0x40, 0x80, 0x10

	asSequence       = 2
	defaultLocalPref = 100
)

// speaker is this end of a session.
type speaker struct {
	asn, peerASN uint32
	id           netip.Addr
	nextHop      netip.Addr
	twoOctets    bool // the session has AS numbers of two octets
}

// attribute appends a path attribute with an extended length, whose value f appends.
func attribute(b []byte, flags, kind byte, f func([]byte) []byte) []byte {
	b = append(b, flags|flagExtended, kind, 0, 0)
	start := len(b)
	b = f(b)
	binary.BigEndian.PutUint16(b[start-2:], uint16(len(b)-start))
	return b
}

// tlv appends a TLV, whose value f appends.
func tlv(b []byte, kind uint16, f func([]byte) []byte) []byte {
	b = append(binary.BigEndian.AppendUint16(b, kind), 0, 0)
	start := len(b)
	b = f(b)
	binary.BigEndian.PutUint16(b[start-2:], uint16(len(b)-start))
	return b
}

// nlri appends the SRv6 SID NLRI of a SID (RFC 9514 section 6) with the family before.
func (s *speaker) nlri(b []byte, sid netip.Addr) []byte {
	return tlv(b, nlriSRv6SID, func(b []byte) []byte {
		b = append(b, protocolBGP)
		b = binary.BigEndian.AppendUint64(b, 0) // the only instance
		b = tlv(b, tlvLocalNode, func(b []byte) []byte {
			b = tlv(b, tlvASN, func(b []byte) []byte { return binary.BigEndian.AppendUint32(b, s.asn) })
			return tlv(b, tlvRouterID, func(b []byte) []byte { return append(b, s.id.AsSlice()...) })
		})
		return tlv(b, tlvSIDInfo, func(b []byte) []byte { return append(b, sid.AsSlice()...) })
	})
}

func family(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, message.LinkState.AFI()), message.LinkState.SAFI())
}

// announce appends the UPDATE of a segment.
func (s *speaker) announce(b []byte, g Segment) []byte {
	return message.AppendUpdate(b, func(b []byte) []byte {
		b = append(b, flagTransitive, attrOrigin, 1, byte(message.OriginIGP))
		b = append(b, flagTransitive, attrASPath)
		if s.asn == s.peerASN {
			b = append(b, 0, flagTransitive, attrLocalPref, 4)
			b = binary.BigEndian.AppendUint32(b, defaultLocalPref)
		} else {
			b = s.asPath(b)
		}
		b = attribute(b, flagOptional, attrReach, func(b []byte) []byte {
			hop := s.nextHop.AsSlice()
			b = append(append(append(family(b), byte(len(hop))), hop...), 0)
			return s.nlri(b, g.SID)
		})
		return attribute(b, flagOptional, attrLinkState, func(b []byte) []byte {
			b = tlv(b, tlvBehavior, func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(b, g.Behavior), 0, 0) })
			b = tlv(b, tlvPeerNodeSID, func(b []byte) []byte {
				b = append(b, 0, 0, 0, 0) // flags, weight, reserved
				b = binary.BigEndian.AppendUint32(b, g.PeerASN)
				id := g.PeerID
				if !id.Is4() {
					id = netip.IPv4Unspecified()
				}
				return append(b, id.AsSlice()...)
			})
			return tlv(b, tlvStructure, func(b []byte) []byte {
				return append(b, g.Structure.Block, g.Structure.Node, g.Structure.Function, g.Structure.Argument)
			})
		})
	})
}

// asPath appends the value of AS_PATH with its length and, to a speaker of two octets that the AS
// number does not fit into, AS4_PATH (RFC 6793 section 4.2.2).
func (s *speaker) asPath(b []byte) []byte {
	four := func(b []byte) []byte { return binary.BigEndian.AppendUint32(append(b, 6, asSequence, 1), s.asn) }
	switch {
	case !s.twoOctets:
		return four(b)
	case s.asn <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 4, asSequence, 1), uint16(s.asn))
	}
	b = binary.BigEndian.AppendUint16(append(b, 4, asSequence, 1), message.ASTrans)
	return four(append(b, flagOptional|flagTransitive, attrAS4Path))
}

// withdraw appends the UPDATE that withdraws a SID.
func (s *speaker) withdraw(b []byte, sid netip.Addr) []byte {
	return message.AppendUpdate(b, func(b []byte) []byte {
		return attribute(b, flagOptional, attrUnreach, func(b []byte) []byte { return s.nlri(family(b), sid) })
	})
}

// Exporter has sessions with controllers, which get the present segments. It is safe for concurrent
// use.
type Exporter struct {
	mu       sync.Mutex
	segments map[netip.Addr]Segment
	sessions []*controller
}

// controller is a session.
type controller struct {
	*session.Session
	exporter *Exporter
	remote   netip.Addr
	speaker  speaker
	up       bool
	sent     map[netip.Addr]Segment
}

// New returns an exporter with a session for each configuration, whose capabilities it sets. Start
// begins to connect.
func New(configs []session.Config) (*Exporter, error) {
	e := &Exporter{segments: map[netip.Addr]Segment{}}
	for _, conf := range configs {
		conf.Capabilities = message.Capabilities{Families: message.Families(message.LinkState), FourOctetAS: true}
		c := &controller{exporter: e, remote: conf.Remote.Addr(), speaker: speaker{asn: conf.LocalASN, peerASN: conf.RemoteASN, id: conf.RouterID}}
		s, err := session.New(conf, session.Handler{
			Up:      c.established,
			Update:  func([]byte) error { return nil }, // nothing is learned
			Refresh: func(message.Refresh) error { return nil },
			Fill:    c.fill,
			Down:    func(session.Reason) { c.set(false, netip.Addr{}) },
		})
		if err != nil {
			return nil, err
		}
		c.Session = s
		e.sessions = append(e.sessions, c)
	}
	return e, nil
}

// Start connects to the controllers, and again whenever a session ends.
func (e *Exporter) Start() error {
	var errs []error
	for _, c := range e.sessions {
		errs = append(errs, c.Start())
	}
	return errors.Join(errs...)
}

// Stop ends all sessions.
func (e *Exporter) Stop() {
	for _, c := range e.sessions {
		c.Session.Stop(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeDeconfigured}, "stopped")
	}
}

// Set replaces the segments.
func (e *Exporter) Set(list []Segment) {
	e.mu.Lock()
	now := make(map[netip.Addr]Segment, len(list))
	changed := len(list) != len(e.segments)
	for _, g := range list {
		now[g.SID] = g
		changed = changed || e.segments[g.SID] != g
	}
	e.segments = now
	e.mu.Unlock()
	if changed {
		for _, c := range e.sessions {
			c.Wake()
		}
	}
}

// Status is a session with a controller.
type Status struct {
	Address  netip.Addr `json:"address"`
	Up       bool       `json:"up"`
	Segments int        `json:"segments"`
}

// Status returns the state of all sessions.
func (e *Exporter) Status() (list []Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.sessions {
		list = append(list, Status{c.remote, c.up, len(c.sent)})
	}
	return list
}

func (c *controller) established(s session.Established) {
	c.speaker.twoOctets = !s.FourOctetAS
	c.set(true, s.Local.Addr().WithZone(""))
	c.Wake()
}

func (c *controller) set(up bool, nextHop netip.Addr) {
	c.exporter.mu.Lock()
	defer c.exporter.mu.Unlock()
	c.up, c.speaker.nextHop, c.sent = up, nextHop, map[netip.Addr]Segment{}
}

// fill appends what the controller does not have yet.
func (c *controller) fill(b []byte) []byte {
	c.exporter.mu.Lock()
	defer c.exporter.mu.Unlock()
	if !c.up {
		return b
	}
	// In the order of the SIDs, so that the same changes give the same messages.
	for _, sid := range sorted(c.sent) {
		if _, there := c.exporter.segments[sid]; !there && len(b) < cap(b)-message.MaxLen {
			b = c.speaker.withdraw(b, sid)
			delete(c.sent, sid)
		}
	}
	for _, sid := range sorted(c.exporter.segments) {
		if g := c.exporter.segments[sid]; c.sent[sid] != g && len(b) < cap(b)-message.MaxLen {
			b = c.speaker.announce(b, g)
			c.sent[sid] = g
		}
	}
	return b
}

func sorted(of map[netip.Addr]Segment) []netip.Addr {
	return slices.SortedFunc(maps.Keys(of), netip.Addr.Compare)
}

// String is the segment in a log.
func (g Segment) String() string { return fmt.Sprintf("%s to AS %d (%s)", g.SID, g.PeerASN, g.PeerID) }
