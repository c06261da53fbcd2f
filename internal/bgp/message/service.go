package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp/srv6"
)

// RejectReason is the reason why a route was rejected, as a label for counters.
type RejectReason string

// Reasons that are in the path attributes.
const (
	RejectNextHop     RejectReason = "next-hop"      // missing, or not a unicast address
	RejectNoPrefixSID RejectReason = "no-prefix-sid" // absent, or malformed and discarded
	RejectNoL3Service RejectReason = "no-l3-service" // Prefix-SID without an SRv6 L3 Service TLV or SID in it
	RejectStructure   RejectReason = "sid-structure" // impossible lengths or transposition
	RejectSID         RejectReason = "sid"           // no unicast address, or bits outside its structure
	RejectNoTarget    RejectReason = "no-rt"         // VPN route without a route target
)

// RejectedError is the error of a received route that is not accepted.
type RejectedError struct {
	Reason RejectReason
	Detail string
}

func (e *RejectedError) Error() string { return string(e.Reason) + ": " + e.Detail }

// Reject returns a *RejectedError.
func Reject(reason RejectReason, format string, args ...any) error {
	return &RejectedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// Types of TLVs in the Prefix-SID attribute and their lengths (RFC 9252 sections 2, 3.1, 3.2.1).
const (
	tlvL3Service    = 5
	tlvL2Service    = 6
	subTLVSID       = 1
	subTLVSIDLen    = 21 // without sub-sub-TLVs
	subSubStructure = 1
	structureLen    = 6
	tlvHeaderLen    = 3
)

// ImplicitNull is the label of a route whose SID is not transposed (RFC 9252 section 4).
const ImplicitNull = 3

// Service is the SRv6 L3 service of VPN routes (RFC 9252).
type Service struct {
	stripped  netip.Addr // without the transposed bits
	Structure srv6.Structure
	Behavior  uint16 // endpoint behavior (RFC 8986 section 10.2)
	err       error
}

// Errors of routes without a usable SID are shared: there can be many.
var (
	errNoPrefixSID = Reject(RejectNoPrefixSID, "no usable Prefix-SID attribute")
	errNoL3Service = Reject(RejectNoL3Service, "no SRv6 L3 Service TLV")
	errNoSID       = Reject(RejectNoL3Service, "no SRv6 SID Information Sub-TLV")
)

// noService is the Service of attributes without Prefix-SID.
var noService = &Service{err: errNoPrefixSID}

// NewService returns the service of a SID and the label of its routes.
func NewService(sid netip.Addr, s srv6.Structure, behavior uint16) (Service, uint32, error) {
	if !sid.Is6() || sid.Is4In6() || sid.Zone() != "" || !sid.IsGlobalUnicast() {
		return Service{}, 0, fmt.Errorf("sid %s is not a global unicast address", sid)
	}
	stripped, label, err := srv6.Transpose(sid, s)
	if err != nil {
		return Service{}, 0, err
	}
	if s.TransposeLen == 0 {
		label, s.TransposeOffset = ImplicitNull, 0
	}
	return Service{stripped: stripped, Structure: s, Behavior: behavior}, label, nil
}

// SID returns the SID of a route with this label (RFC 9252 section 4). The error is a
// *RejectedError.
func (s *Service) SID(label uint32) (netip.Addr, error) {
	if s.err != nil {
		return netip.Addr{}, s.err
	}
	sid := s.stripped
	if s.Structure.TransposeLen > 0 {
		var err error
		if sid, err = srv6.Restore(sid, label, s.Structure); err != nil {
			return netip.Addr{}, Reject(RejectSID, "%s", err)
		}
	}
	if sid.Is4In6() || !sid.IsGlobalUnicast() {
		return netip.Addr{}, Reject(RejectSID, "%s is not a global unicast address", sid)
	}
	return sid, nil
}

// PrefixSID is the value of the Prefix-SID attribute with this service alone. The service must be
// of NewService.
func (s *Service) PrefixSID() string {
	sid, st := s.stripped.As16(), s.Structure
	var b []byte
	const subTLVs = tlvHeaderLen + structureLen
	b = append(b, tlvL3Service, 0, 1+tlvHeaderLen+subTLVSIDLen+subTLVs, 0)
	b = append(b, subTLVSID, 0, subTLVSIDLen+subTLVs, 0)
	b = append(append(b, sid[:]...), 0, byte(s.Behavior>>8), byte(s.Behavior), 0)
	return string(append(b, subSubStructure, 0, structureLen, st.Block, st.Node, st.Function, st.Argument, st.TransposeLen, st.TransposeOffset))
}

// cutTLV cuts b into the first TLV, whose length has two octets, and the rest.
func cutTLV(b []byte) (kind uint8, value, rest []byte, err error) {
	if len(b) < tlvHeaderLen {
		return 0, nil, nil, errors.New("a TLV is cut off")
	}
	end := tlvHeaderLen + int(binary.BigEndian.Uint16(b[1:]))
	if end > len(b) {
		return 0, nil, nil, fmt.Errorf("TLV %d is longer than what contains it", b[0])
	}
	return b[0], b[tlvHeaderLen:end], b[end:], nil
}

// parsePrefixSID decodes the value of a Prefix-SID attribute. The first of several services, SIDs
// or structures is used. The endpoint behavior is not checked: some reflectors change it. An error
// says that the attribute is malformed and must be discarded (RFC 8669 section 6, RFC 9252 section
// 7); a well-formed attribute that cannot be used has a Service with an error.
func parsePrefixSID(b []byte) (Service, error) {
	first, seen := Service{err: errNoL3Service}, false
	for len(b) > 0 {
		kind, value, rest, err := cutTLV(b)
		if err != nil {
			return first, err
		}
		b = rest
		if kind != tlvL3Service && kind != tlvL2Service {
			continue
		}
		if len(value) < 1 {
			return first, fmt.Errorf("TLV %d has no reserved octet", kind)
		}
		s, err := parseService(value[1:])
		if err != nil {
			return first, err
		}
		if kind == tlvL3Service && !seen {
			first, seen = s, true
		}
	}
	return first, nil
}

// parseService decodes the sub-TLVs of an SRv6 service TLV.
func parseService(b []byte) (Service, error) {
	first, seen := Service{err: errNoSID}, false
	for len(b) > 0 {
		kind, value, rest, err := cutTLV(b)
		if err != nil {
			return first, err
		}
		b = rest
		if kind != subTLVSID {
			continue
		}
		if len(value) < subTLVSIDLen {
			return first, fmt.Errorf("SRv6 SID Information Sub-TLV of %d bytes", len(value))
		}
		structure, err := parseStructure(value[subTLVSIDLen:])
		if err != nil {
			return first, err
		}
		if !seen {
			seen = true
			first = Service{
				stripped:  netip.AddrFrom16([16]byte(value[1:])),
				Structure: structure,
				Behavior:  binary.BigEndian.Uint16(value[18:]),
			}
			first.err = first.check()
		}
	}
	return first, nil
}

// parseStructure decodes the sub-sub-TLVs of a SID.
func parseStructure(b []byte) (srv6.Structure, error) {
	var first srv6.Structure
	seen := false
	for len(b) > 0 {
		kind, value, rest, err := cutTLV(b)
		if err != nil {
			return first, err
		}
		b = rest
		if kind != subSubStructure {
			continue
		}
		if len(value) != structureLen {
			return first, fmt.Errorf("SRv6 SID Structure Sub-Sub-TLV of %d bytes", len(value))
		}
		if !seen {
			seen = true
			first = srv6.Structure{
				Block: value[0], Node: value[1], Function: value[2], Argument: value[3],
				TransposeLen: value[4], TransposeOffset: value[5],
			}
		}
	}
	return first, nil
}

// check returns why the service cannot be used with any label.
func (s *Service) check() error {
	if err := s.Structure.Check(); err != nil {
		return Reject(RejectStructure, "%s", err)
	}
	if err := s.Structure.CheckSID(s.stripped); err != nil {
		return Reject(RejectSID, "%s", err)
	}
	return nil
}
