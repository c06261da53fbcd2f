package mptcp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrUnknownConnection means that no connection has the token, or that the kernel's path
	// manager has it: it ended, or began before the path manager was in user space.
	ErrUnknownConnection = errors.New("no such mptcp connection that is left to user space")
	// ErrUnknownSubflow means that the connection has no such subflow. For SetBackup, kernels
	// before 6.14 do not report it from an unknown connection.
	ErrUnknownSubflow = errors.New("no such mptcp subflow")
	// ErrUnknownAddress means that the connection has no address with the ID to remove.
	ErrUnknownAddress = errors.New("no such mptcp address")
)

// Request is what a path manager in user space may ask for one connection: Announce, RemoveAddress,
// CreateSubflow, DestroySubflow or SetBackup. The connection must have been created while the path
// manager was UserManager.
type Request interface {
	encode() (command uint8, data []byte, err error)
	fmt.Stringer
}

// Announce announces an address of this host to the peer (ADD_ADDR, RFC 8684 section 3.4.1).
// Announcing it again under the same ID repeats it: a peer that has a subflow to it already may
// open one more.
type Announce struct {
	Token uint32
	// ID is 1 to 255; within a connection it belongs to one address. A subflow that the peer opens
	// to an address that was not announced, or is not any more, gives the address an ID of the
	// kernel's choice.
	ID      uint8
	Address netip.Addr
	// Port is where the peer connects to; 0 means the port of the connection.
	Port uint16
}

// RemoveAddress withdraws an address from the peer (REMOVE_ADDR, RFC 8684 section 3.4.2), which
// then closes its subflows to it. This host's ends of them stay, see DestroySubflow; after that the
// kernel has forgotten the ID.
type RemoveAddress struct {
	Token uint32
	// ID is what the address was announced with, or 0 for the address of the first subflow.
	ID uint8
}

// CreateSubflow opens a subflow from an address of this host.
type CreateSubflow struct {
	Token uint32
	// ID is that of the local address.
	ID     uint8
	Local  netip.Addr
	Remote netip.AddrPort
	Backup bool
}

// DestroySubflow closes a subflow. What was sent on it and is not acknowledged is sent on the
// others at once.
type DestroySubflow struct {
	Token         uint32
	Local, Remote netip.AddrPort
}

// SetBackup has a subflow used by both ends only when no other works, or undoes that (MP_PRIO, RFC
// 8684 section 3.3.8).
type SetBackup struct {
	Token         uint32
	Local, Remote netip.AddrPort
	Backup        bool
}

func (r Announce) String() string {
	return fmt.Sprintf("announce %v as address %d on connection %08x", netip.AddrPortFrom(r.Address, r.Port), r.ID, r.Token)
}

func (r RemoveAddress) String() string {
	return fmt.Sprintf("remove address %d from connection %08x", r.ID, r.Token)
}

func (r CreateSubflow) String() string {
	return fmt.Sprintf("create subflow %v to %v on connection %08x", r.Local, r.Remote, r.Token)
}

func (r DestroySubflow) String() string {
	return fmt.Sprintf("destroy subflow %v to %v of connection %08x", r.Local, r.Remote, r.Token)
}

func (r SetBackup) String() string {
	return fmt.Sprintf("set backup %t on subflow %v to %v of connection %08x", r.Backup, r.Local, r.Remote, r.Token)
}

// Commands and attributes of requests, from include/uapi/linux/mptcp_pm.h.
const (
	cmdAnnounce       = 8
	cmdRemove         = 9
	cmdSubflowCreate  = 10
	cmdSubflowDestroy = 11

	attrToken      = 4
	attrLocalID    = 5
	attrAddrRemote = 6
)

// Request asks the kernel. Errors wrap ErrUnknownConnection, ErrUnknownSubflow or ErrUnknownAddress
// where the object has gone, which happens: connections end whenever they like.
func (c *Conn) Request(r Request) error {
	err := c.request(r)
	if errors.Is(err, ErrUnknownSubflow) {
		// A socket of both families has IPv4 peers under mapped addresses.
		if mapped := asMapped(r); mapped != nil {
			err = c.request(mapped)
		}
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	return nil
}

func (c *Conn) request(r Request) error {
	command, data, err := r.encode()
	if err != nil {
		return err
	}
	_, err = c.execute(command, data, netlink.Acknowledge)
	return refused(command, err)
}

// refused maps the kernel's refusal to an error. The kernel returns EINVAL for nearly everything
// and distinguishes them in words alone.
func refused(command uint8, err error) error {
	if err == nil {
		return nil
	}
	says := err.Error()
	switch {
	case strings.Contains(says, "invalid token"), strings.Contains(says, "PM not selected"):
		return fmt.Errorf("%w: %w", ErrUnknownConnection, err)
	case command == cmdRemove && strings.Contains(says, "not found"):
		return fmt.Errorf("%w: %w", ErrUnknownAddress, err)
	case command == cmdSubflowDestroy && errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", ErrUnknownSubflow, err)
	case command == cmdSetFlags && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", ErrUnknownSubflow, err)
	}
	return err
}

// asMapped returns the request with IPv4 addresses mapped into IPv6, nil when it has none.
func asMapped(r Request) Request {
	var ok bool
	mapped := func(p netip.AddrPort) netip.AddrPort {
		ok = p.Addr().Is4()
		return netip.AddrPortFrom(netip.AddrFrom16(p.Addr().As16()), p.Port())
	}
	switch s := r.(type) {
	case DestroySubflow:
		s.Local, s.Remote = mapped(s.Local), mapped(s.Remote)
		r = s
	case SetBackup:
		s.Local, s.Remote = mapped(s.Local), mapped(s.Remote)
		r = s
	}
	if !ok {
		return nil
	}
	return r
}

func (r Announce) encode() (uint8, []byte, error) {
	if r.ID == 0 {
		return 0, nil, errors.New("an announced address needs an ID other than 0")
	}
	if err := (Endpoint{Address: r.Address}).check(); err != nil {
		return 0, nil, err
	}
	data, err := encodeRequest(r.Token, func(ae *netlink.AttributeEncoder) {
		ae.Nested(attrAddr, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(addrID, r.ID)
			return encodeAt(ae, netip.AddrPortFrom(r.Address, r.Port), flagSignal)
		})
	})
	return cmdAnnounce, data, err
}

func (r RemoveAddress) encode() (uint8, []byte, error) {
	data, err := encodeRequest(r.Token, func(ae *netlink.AttributeEncoder) { ae.Uint8(attrLocalID, r.ID) })
	return cmdRemove, data, err
}

func (r CreateSubflow) encode() (uint8, []byte, error) {
	flags := uint32(flagSubflow)
	if r.Backup {
		flags |= flagBackup
	}
	data, err := encodeRequest(r.Token, func(ae *netlink.AttributeEncoder) {
		ae.Nested(attrAddr, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(addrID, r.ID)
			return encodeAt(ae, netip.AddrPortFrom(r.Local, 0), flags)
		})
		encodeRemote(ae, r.Remote)
	})
	return cmdSubflowCreate, data, err
}

func (r DestroySubflow) encode() (uint8, []byte, error) {
	data, err := encodeEnds(r.Token, r.Local, r.Remote, 0)
	return cmdSubflowDestroy, data, err
}

func (r SetBackup) encode() (uint8, []byte, error) {
	var flags uint32
	if r.Backup {
		flags = flagBackup
	}
	data, err := encodeEnds(r.Token, r.Local, r.Remote, flags)
	return cmdSetFlags, data, err
}

func encodeEnds(token uint32, local, remote netip.AddrPort, flags uint32) ([]byte, error) {
	return encodeRequest(token, func(ae *netlink.AttributeEncoder) {
		ae.Nested(attrAddr, func(ae *netlink.AttributeEncoder) error { return encodeAt(ae, local, flags) })
		encodeRemote(ae, remote)
	})
}

func encodeRemote(ae *netlink.AttributeEncoder, remote netip.AddrPort) {
	ae.Nested(attrAddrRemote, func(ae *netlink.AttributeEncoder) error { return encodeAt(ae, remote, 0) })
}

func encodeRequest(token uint32, fill func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(attrToken, token)
	fill(ae)
	b, err := ae.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b, nil
}

// encodeAt writes an address, its port in the host's order, and its flags.
func encodeAt(ae *netlink.AttributeEncoder, at netip.AddrPort, flags uint32) error {
	switch a := at.Addr(); {
	case !a.IsValid():
		return errors.New("no address")
	case a.Is4():
		ae.Uint16(addrFamily, unix.AF_INET)
		ae.Bytes(addrAddr4, a.AsSlice())
	default:
		ae.Uint16(addrFamily, unix.AF_INET6)
		ae.Bytes(addrAddr6, a.AsSlice())
	}
	if at.Port() != 0 {
		ae.Uint16(addrPort, at.Port())
	}
	ae.Uint32(addrFlags, flags)
	return nil
}
