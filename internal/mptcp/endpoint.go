package mptcp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Endpoint is an address that the kernel's path manager uses for additional subflows: it announces
// the address to the peer (Signal), or opens subflows from it (Subflow).
type Endpoint struct {
	// ID is the kernel's number for the endpoint, 1 to 255. It is also the address ID on the
	// wire (RFC 8684 section 3.4.1). If it is 0 in Add, the kernel assigns a free one.
	ID uint8
	// Address is the address, without zone. IPv4 addresses are not IPv4-mapped.
	Address netip.Addr
	// Port is the port on which the kernel listens for subflows to a Signal endpoint; 0 means
	// the port of the connection.
	Port uint16
	// Link binds subflows from this endpoint to a network interface; if empty, routing selects
	// the interface. An interface that no longer exists is returned as "#" and its index.
	Link string

	// Signal announces the address to the peer of every connection (ADD_ADDR).
	Signal bool
	// Subflow opens a subflow from the address on every connection.
	Subflow bool
	// Backup requests the peer to send on these subflows only if no other subflow is usable
	// (RFC 8684 section 3.3.8).
	Backup bool
	// Fullmesh opens a subflow from the address to each address of the peer instead of one.
	Fullmesh bool
	// Implicit marks an endpoint that the kernel created because a subflow uses its address. It
	// must not be set in Add; adding the same address replaces the implicit endpoint.
	Implicit bool
}

// Limits are the limits of the path manager per connection. The kernel rejects values above 8.
type Limits struct {
	// Subflows is the maximum number of additional subflows.
	Subflows uint32
	// AddAddrAccepted is the maximum number of accepted ADD_ADDRs of the peer; 0 in a new
	// namespace.
	AddAddrAccepted uint32
}

// Commands, attributes and flags of the family, from include/uapi/linux/mptcp_pm.h.
const (
	cmdAddAddr   = 1
	cmdDelAddr   = 2
	cmdGetAddr   = 3
	cmdSetLimits = 5
	cmdGetLimits = 6
	cmdSetFlags  = 7

	attrAddr        = 1
	attrRcvAddAddrs = 2
	attrSubflows    = 3

	addrFamily  = 1
	addrID      = 2
	addrAddr4   = 3
	addrAddr6   = 4
	addrPort    = 5
	addrFlags   = 6
	addrIfIndex = 7

	flagSignal   = 1 << 0
	flagSubflow  = 1 << 1
	flagBackup   = 1 << 2
	flagFullmesh = 1 << 3
	flagImplicit = 1 << 4
)

// check validates an endpoint, because the kernel reports some errors unclearly or not at all.
func (e Endpoint) check() error {
	switch a := e.Address; {
	case !a.IsValid():
		return errors.New("no address")
	case a.Zone() != "":
		return errors.New("address has a zone; name the link instead")
	case a.Is4In6():
		return fmt.Errorf("address is IPv4 mapped into IPv6; write %s", a.Unmap())
	case a.IsUnspecified() || a.IsMulticast():
		return errors.New("address is not that of a host")
	case e.Implicit:
		return errors.New("only the kernel makes implicit endpoints")
	}
	return nil
}

func (e Endpoint) flags() uint32 {
	var f uint32
	for _, b := range []struct {
		set  bool
		flag uint32
	}{
		{e.Signal, flagSignal}, {e.Subflow, flagSubflow}, {e.Backup, flagBackup}, {e.Fullmesh, flagFullmesh}, {e.Implicit, flagImplicit},
	} {
		if b.set {
			f |= b.flag
		}
	}
	return f
}

// encodeEndpoint returns the attributes that describe e, on the link with the index (0 for none).
func encodeEndpoint(e Endpoint, index uint32) ([]byte, error) {
	return encodeAddr(func(ae *netlink.AttributeEncoder) {
		if e.ID != 0 {
			ae.Uint8(addrID, e.ID)
		}
		if e.Address.Is4() {
			ae.Uint16(addrFamily, unix.AF_INET)
			ae.Bytes(addrAddr4, e.Address.AsSlice())
		} else {
			ae.Uint16(addrFamily, unix.AF_INET6)
			ae.Bytes(addrAddr6, e.Address.AsSlice())
		}
		if e.Port != 0 {
			ae.Uint16(addrPort, e.Port)
		}
		if index != 0 {
			ae.Uint32(addrIfIndex, index)
		}
		ae.Uint32(addrFlags, e.flags())
	})
}

// encodeID returns the attributes of the endpoint with the ID, with flags if given.
func encodeID(id uint8, flags ...uint32) ([]byte, error) {
	return encodeAddr(func(ae *netlink.AttributeEncoder) {
		ae.Uint8(addrID, id)
		for _, f := range flags {
			ae.Uint32(addrFlags, f)
		}
	})
}

func encodeAddr(fill func(ae *netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Nested(attrAddr, func(nae *netlink.AttributeEncoder) error {
		fill(nae)
		return nil
	})
	return ae.Encode()
}

// decodeEndpoint decodes the attributes of one endpoint and the index of its link (0 for none). The
// endpoint's Link stays empty.
func decodeEndpoint(b []byte) (Endpoint, uint32, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return Endpoint{}, 0, err
	}
	var (
		e      Endpoint
		index  uint32
		family uint16
		found  bool
	)
	for ad.Next() {
		if ad.Type() != attrAddr {
			continue
		}
		found = true
		ad.Nested(func(nad *netlink.AttributeDecoder) error {
			for nad.Next() {
				switch nad.Type() {
				case addrFamily:
					family = nad.Uint16()
				case addrID:
					e.ID = nad.Uint8()
				case addrAddr4:
					nad.Do(address(&e.Address, 4))
				case addrAddr6:
					nad.Do(address(&e.Address, 16))
				case addrPort:
					e.Port = nad.Uint16()
				case addrFlags:
					f := nad.Uint32()
					e.Signal, e.Subflow = f&flagSignal != 0, f&flagSubflow != 0
					e.Backup, e.Fullmesh = f&flagBackup != 0, f&flagFullmesh != 0
					e.Implicit = f&flagImplicit != 0
				case addrIfIndex:
					index = nad.Uint32()
				}
			}
			return nad.Err()
		})
	}
	switch err := ad.Err(); {
	case err != nil:
		return Endpoint{}, 0, err
	case !found:
		return Endpoint{}, 0, errors.New("no address attribute")
	case family == unix.AF_INET && e.Address.Is4():
	case family == unix.AF_INET6 && e.Address.Is6():
	default:
		return Endpoint{}, 0, fmt.Errorf("address %s does not belong to family %d", e.Address, family)
	}
	return e, index, nil
}

func address(a *netip.Addr, size int) func([]byte) error {
	return func(b []byte) error {
		if len(b) != size {
			return fmt.Errorf("address has %d bytes, want %d", len(b), size)
		}
		*a, _ = netip.AddrFromSlice(b)
		return nil
	}
}

func encodeLimits(l Limits) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(attrRcvAddAddrs, l.AddAddrAccepted)
	ae.Uint32(attrSubflows, l.Subflows)
	return ae.Encode()
}

// decodeLimits decodes both limits; a missing limit is an error, not 0.
func decodeLimits(b []byte) (Limits, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return Limits{}, err
	}
	var (
		l    Limits
		seen = map[uint16]bool{}
	)
	for ad.Next() {
		seen[ad.Type()] = true
		switch ad.Type() {
		case attrRcvAddAddrs:
			l.AddAddrAccepted = ad.Uint32()
		case attrSubflows:
			l.Subflows = ad.Uint32()
		}
	}
	if err := ad.Err(); err != nil {
		return Limits{}, err
	}
	if !seen[attrRcvAddAddrs] || !seen[attrSubflows] {
		return Limits{}, errors.New("limit attribute missing")
	}
	return l, nil
}
