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
	// ErrUnknownConnection means that no connection has the token, or that the in-kernel path
	// manager manages it: the connection was closed, or was created before the user-space path
	// manager was selected.
	ErrUnknownConnection = errors.New("no such mptcp connection that is left to user space")
	// ErrUnknownSubflow means that the connection has no such subflow. For SetBackup, kernels
	// before 6.14 do not report it from an unknown connection.
	ErrUnknownSubflow = errors.New("no such mptcp subflow")
	// ErrUnknownAddress means that the connection has no address with the ID to remove.
	ErrUnknownAddress = errors.New("no such mptcp address")
	// ErrAddressTaken means that the connection has the address with another ID, or another address
	// with the ID: the peer has just begun to open a subflow to an address that was not announced.
	ErrAddressTaken = errors.New("mptcp address or address id is taken")
)

// Request is a command of a user-space path manager for one connection: Announce, RemoveAddress,
// CreateSubflow, DestroySubflow or SetBackup. The connection must have been created while the path
// manager was UserManager.
type Request interface {
	encode() (command uint8, data []byte, err error)
	fmt.Stringer
}

// Announce announces an address of this host to the peer (ADD_ADDR, RFC 8684 section 3.4.1).
// Announcing it again with the same ID repeats the ADD_ADDR: a peer that already has a subflow to
// the address may open another.
type Announce struct {
	Token uint32
	// ID is the address ID, 1 to 255, unique within a connection. If the peer opens a subflow
	// to an address that is not announced, the kernel assigns an ID to the address.
	ID      uint8
	Address netip.Addr
	// Port is the port that the peer connects to; 0 means the port of the connection.
	Port uint16
	// Backup makes the subflows to it backups from the start, where the kernel knows that.
	Backup bool
}

// RemoveAddress withdraws an address from the peer (REMOVE_ADDR, RFC 8684 section 3.4.2), which
// then closes its subflows to it. The local sockets of these subflows remain until DestroySubflow,
// after which the kernel no longer has the ID.
type RemoveAddress struct {
	Token uint32
	// ID is the address ID of the announcement, or 0 for the address of the initial subflow.
	ID uint8
}

// CreateSubflow opens a subflow from an address of this host.
type CreateSubflow struct {
	Token uint32
	// ID is the address ID of the local address.
	ID     uint8
	Local  netip.Addr
	Remote netip.AddrPort
	Backup bool
}

// DestroySubflow closes a subflow. Its unacknowledged data is reinjected on the other subflows at
// once.
type DestroySubflow struct {
	Token         uint32
	Local, Remote netip.AddrPort
}

// SetBackup sets or clears the backup priority of a subflow at both ends (MP_PRIO, RFC 8684 section
// 3.3.8).
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

// Request sends a request to the kernel. Errors wrap ErrUnknownConnection, ErrUnknownSubflow or
// ErrUnknownAddress if the object no longer exists, since connections may be closed at any time, or
// ErrAddressTaken.
func (c *Conn) Request(r Request) error {
	err := c.request(r)
	if errors.Is(err, ErrUnknownSubflow) {
		// A dual-stack socket has IPv4-mapped addresses for IPv4 peers.
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

// refused converts an error of the kernel. The kernel returns EINVAL for most errors, which only
// the extended ack message distinguishes.
func refused(command uint8, err error) error {
	if err == nil {
		return nil
	}
	says := err.Error()
	switch {
	case strings.Contains(says, "invalid token"), strings.Contains(says, "PM not selected"):
		return fmt.Errorf("%w: %w", ErrUnknownConnection, err)
	case command == cmdAnnounce && strings.Contains(says, "did not match address and id"):
		return fmt.Errorf("%w: %w", ErrAddressTaken, err)
	case command == cmdRemove && strings.Contains(says, "not found"):
		return fmt.Errorf("%w: %w", ErrUnknownAddress, err)
	case command == cmdSubflowDestroy && errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", ErrUnknownSubflow, err)
	case command == cmdSetFlags && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", ErrUnknownSubflow, err)
	}
	return err
}

// asMapped returns the request with IPv4-mapped addresses, or nil if it has no IPv4 addresses.
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
			flags := uint32(flagSignal)
			if r.Backup {
				flags |= flagBackup
			}
			return encodeAt(ae, netip.AddrPortFrom(r.Address, r.Port), flags)
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

// encodeAt encodes an address, its port in host byte order, and its flags.
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
