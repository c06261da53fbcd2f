package mptcp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Endpoint is an address that the kernel's path manager uses for further subflows: announced to the
// peer (Signal), or used to open subflows to it (Subflow).
type Endpoint struct {
	// ID is the kernel's number for the endpoint, 1 to 255. It is also the address ID on the wire
	// (RFC 8684 section 3.4.1). Leave it 0 when adding, and the kernel picks a free one.
	ID uint8
	// Address is the address, without zone. An IPv4 address is given as such, not mapped into IPv6.
	Address netip.Addr
	// Port is where the kernel listens for subflows to a Signal endpoint; 0 means the port of the
	// connection.
	Port uint16
	// Link binds subflows from this endpoint to a network interface; empty leaves it to routing. An
	// interface that is gone is read back as "#" and its index.
	Link string

	// Signal announces the address to the peer of every connection (ADD_ADDR).
	Signal bool
	// Subflow opens a subflow from the address on every connection.
	Subflow bool
	// Backup asks the peer to send on these subflows only when no other works (RFC 8684 section
	// 3.3.8).
	Backup bool
	// Fullmesh opens a subflow from the address to each address of the peer, not to one only.
	Fullmesh bool
	// Implicit marks an endpoint that the kernel made for itself because a subflow uses its
	// address. It is never set when adding; adding the same address replaces the implicit one.
	Implicit bool
}

// Limits bound what the path manager does per connection. The kernel refuses more than it has room
// for (8).
type Limits struct {
	// Subflows is how many subflows may be added to the first.
	Subflows uint32
	// AddAddrAccepted is how many announced addresses of the peer are taken up; a new namespace
	// takes up none.
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

// check returns why the kernel could not take the endpoint, where it would say so unclearly or not
// at all.
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

// encodeID returns the attributes that name the endpoint with the ID, and its flags when they are
// given.
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

// decodeEndpoint reads the attributes of one endpoint and the index of its link (0 for none). The
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

// decodeLimits reads both limits; one that is missing is an error, not 0.
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
