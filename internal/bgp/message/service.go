package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tabane/tabane/internal/srv6"
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

// errNoPrefixSID is shared by all routes without the attribute.
var errNoPrefixSID = Reject(RejectNoPrefixSID, "no usable Prefix-SID attribute")

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

// tlvs iterates over TLVs with a length of two octets. It stops with an error at one that is longer
// than what is left.
func tlvs(b string, f func(kind uint8, value string) error) error {
	for len(b) > 0 {
		if len(b) < tlvHeaderLen {
			return errors.New("a TLV is cut off")
		}
		end := tlvHeaderLen + (int(b[1])<<8 | int(b[2]))
		if end > len(b) {
			return fmt.Errorf("TLV %d is longer than what contains it", b[0])
		}
		if err := f(b[0], b[tlvHeaderLen:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// parsePrefixSID decodes the value of a Prefix-SID attribute. The first of several services, SIDs
// or structures is used. The endpoint behavior is not checked: some reflectors change it. An error
// says that the attribute is malformed and must be discarded (RFC 8669 section 6, RFC 9252 section
// 7); a well-formed attribute that cannot be used has a Service with an error.
func parsePrefixSID(b string) (*Service, error) {
	s := &Service{err: Reject(RejectNoL3Service, "no SRv6 L3 Service TLV")}
	seen := false
	err := tlvs(b, func(kind uint8, value string) error {
		if kind != tlvL3Service && kind != tlvL2Service {
			return nil
		}
		if len(value) < 1 {
			return fmt.Errorf("TLV %d has no reserved octet", kind)
		}
		service, err := parseService(value[1:])
		if kind == tlvL3Service && !seen {
			s, seen = service, true
		}
		return err
	})
	return s, err
}

// parseService decodes the sub-TLVs of an SRv6 service TLV.
func parseService(b string) (*Service, error) {
	s := &Service{err: Reject(RejectNoL3Service, "no SRv6 SID Information Sub-TLV")}
	seen := false
	err := tlvs(b, func(kind uint8, value string) error {
		if kind != subTLVSID {
			return nil
		}
		if len(value) < subTLVSIDLen {
			return fmt.Errorf("SRv6 SID Information Sub-TLV of %d bytes", len(value))
		}
		structure, err := parseStructure(value[subTLVSIDLen:])
		if err != nil || seen {
			return err
		}
		seen = true
		*s = Service{
			stripped:  netip.AddrFrom16([16]byte([]byte(value[1:17]))),
			Structure: structure,
			Behavior:  binary.BigEndian.Uint16([]byte(value[18:20])),
		}
		s.err = s.check()
		return nil
	})
	return s, err
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

func parseStructure(b string) (s srv6.Structure, err error) {
	seen := false
	err = tlvs(b, func(kind uint8, value string) error {
		if kind != subSubStructure || seen {
			return nil
		}
		if len(value) != structureLen {
			return fmt.Errorf("SRv6 SID Structure Sub-Sub-TLV of %d bytes", len(value))
		}
		seen = true
		s = srv6.Structure{
			Block: value[0], Node: value[1], Function: value[2], Argument: value[3],
			TransposeLen: value[4], TransposeOffset: value[5],
		}
		return nil
	})
	return s, err
}
