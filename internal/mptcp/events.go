package mptcp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Event is one of Created, Established, Closed, Announced, Removed, SubEstablished, SubClosed,
// SubPriority, ListenerCreated, ListenerClosed and Overrun. Local and remote addresses are from the
// point of view of this host; IPv4 addresses are never IPv4-mapped.
type Event interface{ event() }

// Created means that the initial subflow of a connection has completed its handshake
// (MPTCP_EVENT_CREATED). No subflow can join yet.
type Created struct {
	// Token is the local token of the connection (RFC 8684 section 3.2).
	Token         uint32
	Local, Remote netip.AddrPort
	// ServerSide reports that the peer opened the connection.
	ServerSide bool
	// DenyJoinID0 reports that the peer accepts no additional subflows to its address of the
	// initial subflow (flag C, RFC 8684 section 3.1).
	DenyJoinID0 bool
}

// Established means that a connection is fully established (MPTCP_EVENT_ESTABLISHED); addresses may
// be announced and subflows opened.
type Established Created

// Closed means that a connection was closed (MPTCP_EVENT_CLOSED).
type Closed struct{ Token uint32 }

// Announced means that the peer announced an address (ADD_ADDR).
type Announced struct {
	Token uint32
	ID    uint8
	// The port of Address is 0 if it is the port of the connection.
	Address netip.AddrPort
}

// Removed means that the peer withdrew an address (REMOVE_ADDR).
type Removed struct {
	Token uint32
	ID    uint8
}

// SubflowEvent has the fields that events about a subflow share.
type SubflowEvent struct {
	Token             uint32
	Local, Remote     netip.AddrPort
	LocalID, RemoteID uint8
	// Backup reports that the subflow has backup priority.
	Backup bool
	// Error is the errno of the subflow's socket, 0 for none.
	Error unix.Errno
	// ResetReason and ResetFlags are those of an MP_TCPRST (RFC 8684 section 3.6), valid if
	// WasReset is set.
	ResetReason, ResetFlags uint32
	WasReset                bool
	// Interface is the index of the interface that the subflow is bound to, 0 for none.
	Interface int32
}

// SubEstablished means that a subflow has joined a connection (MP_JOIN).
type SubEstablished SubflowEvent

// SubClosed means that a subflow was closed; the connection may continue without it.
type SubClosed SubflowEvent

// SubPriority means that the peer changed the priority of a subflow (MP_PRIO).
type SubPriority SubflowEvent

// ListenerCreated means that an MPTCP socket started to listen.
type ListenerCreated struct{ Address netip.AddrPort }

// ListenerClosed means that a listening MPTCP socket was closed.
type ListenerClosed struct{ Address netip.AddrPort }

// Overrun means that events were lost; state that is derived from events must be read again.
type Overrun struct{ Reason error }

func (Created) event()         {}
func (Established) event()     {}
func (Closed) event()          {}
func (Announced) event()       {}
func (Removed) event()         {}
func (SubEstablished) event()  {}
func (SubClosed) event()       {}
func (SubPriority) event()     {}
func (ListenerCreated) event() {}
func (ListenerClosed) event()  {}
func (Overrun) event()         {}

// Events of the family's multicast group and their attributes (enum mptcp_event_type and
// mptcp_event_attr in include/uapi/linux/mptcp_pm.h).
const (
	eventGroup = "mptcp_pm_events"

	eventCreated         = 1
	eventEstablished     = 2
	eventClosed          = 3
	eventAnnounced       = 6
	eventRemoved         = 7
	eventSubEstablished  = 10
	eventSubClosed       = 11
	eventSubPriority     = 13
	eventListenerCreated = 15
	eventListenerClosed  = 16

	eventAttrToken       = 1
	eventAttrLocalID     = 3
	eventAttrRemoteID    = 4
	eventAttrSource4     = 5
	eventAttrSource6     = 6
	eventAttrDest4       = 7
	eventAttrDest6       = 8
	eventAttrSourcePort  = 9
	eventAttrDestPort    = 10
	eventAttrBackup      = 11
	eventAttrError       = 12
	eventAttrFlags       = 13
	eventAttrInterface   = 15
	eventAttrResetReason = 16
	eventAttrResetFlags  = 17
	eventAttrServerSide  = 18

	eventFlagDenyJoinID0 = 1 << 0
	eventFlagServerSide  = 1 << 1
)

const (
	// eventBuffer is the receive buffer in bytes: enough for some thousand events, each of which
	// the kernel accounts with 4 KiB.
	eventBuffer = 32 << 20
	// eventDatagram is the largest datagram in bytes that is read: several times what one event
	// has, with an address of each end.
	eventDatagram = 4096
	// eventsAtOnce is how many datagrams Receive reads at most, so that it returns however fast
	// they arrive.
	eventsAtOnce = 256
)

// Events receives the MPTCP events of a network namespace. The kernel accepts MP_JOINs on
// connections of the user-space path manager only while an Events is open.
type Events struct {
	genl   *genetlink.Conn
	raw    syscall.RawConn
	id     uint16
	closed atomic.Bool // the error of a closed file has no name
	// datagram is what Receive reads into.
	datagram [eventDatagram]byte
}

// Subscribe receives events of the network namespace that the calling thread is in. Close it. It
// returns a *feature.Error if the kernel does not support MPTCP events.
func Subscribe() (_ *Events, err error) {
	genl, family, err := dialFamily()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = genl.Close()
		}
	}()
	group := uint32(0)
	for _, g := range family.Groups {
		if g.Name == eventGroup {
			group = g.ID
		}
	}
	if group == 0 {
		return nil, missing("this kernel sends no events", "use Linux 5.12 or newer")
	}
	if err := forceReadBuffer(genl, eventBuffer); err != nil {
		return nil, fmt.Errorf("enlarge buffer for mptcp events: %w", err)
	}
	if err := genl.JoinGroup(group); err != nil {
		return nil, fmt.Errorf("join netlink group %q: %w", eventGroup, err)
	}
	raw, err := genl.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read mptcp events: %w", err)
	}
	return &Events{genl: genl, raw: raw, id: family.ID}, nil
}

// forceReadBuffer sets the receive buffer, beyond net.core.rmem_max if the caller has the
// privilege.
func forceReadBuffer(genl *genetlink.Conn, bytes int) error {
	raw, err := genl.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
	}); err != nil {
		return err
	}
	if errors.Is(set, unix.EPERM) {
		return genl.SetReadBuffer(bytes)
	}
	return set
}

// Receive blocks until events arrive, and returns those that wait, in order. Unknown events are
// skipped, so the result may be empty. After Close it returns an error that matches os.ErrClosed.
func (e *Events) Receive() ([]Event, error) {
	var events []Event
	var failed error
	err := e.raw.Read(func(fd uintptr) bool {
		for read := range eventsAtOnce {
			n, _, err := unix.Recvfrom(int(fd), e.datagram[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			switch {
			case err == nil:
				events = e.decode(events, n)
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return read > 0
			default:
				failed = err
				return true
			}
		}
		return true
	})
	switch err := cmp.Or(failed, err); {
	case errors.Is(err, unix.ENOBUFS):
		return append(events, Overrun{Reason: err}), e.drain()
	case err != nil && e.closed.Load():
		return nil, fmt.Errorf("receive mptcp events: %w", os.ErrClosed)
	case err != nil:
		return nil, fmt.Errorf("receive mptcp events: %w", err)
	}
	return events, nil
}

// decode appends the events of a datagram of n bytes. What cannot be decoded is lost, as in an
// overrun.
func (e *Events) decode(events []Event, n int) []Event {
	if n > len(e.datagram) {
		return append(events, Overrun{Reason: fmt.Errorf("mptcp event of %d bytes", n)})
	}
	messages, err := syscall.ParseNetlinkMessage(e.datagram[:n])
	if err != nil {
		return append(events, Overrun{Reason: fmt.Errorf("decode mptcp events: %w", err)})
	}
	for _, m := range messages {
		if m.Header.Type != e.id {
			continue
		}
		command, attributes := uint8(0), []byte(nil)
		if len(m.Data) >= unix.GENL_HDRLEN {
			command, attributes = m.Data[0], m.Data[unix.GENL_HDRLEN:]
		}
		event, err := decodeEvent(command, attributes)
		if err != nil {
			event = Overrun{Reason: fmt.Errorf("decode mptcp event %d: %w", command, err)}
		}
		if event != nil {
			events = append(events, event)
		}
	}
	return events
}

// drain discards all queued messages. After an overrun the kernel silently drops events until the
// receive queue is empty, so state must be read again only after drain.
func (e *Events) drain() error {
	var failed error
	err := e.raw.Read(func(fd uintptr) bool {
		for {
			_, _, err := unix.Recvfrom(int(fd), e.datagram[:1], unix.MSG_DONTWAIT)
			switch {
			case err == nil, errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return true
			default:
				failed = fmt.Errorf("drain mptcp events: %w", err)
				return true
			}
		}
	})
	return errors.Join(err, failed)
}

// Close ends the subscription and wakes Receive.
func (e *Events) Close() error {
	e.closed.Store(true)
	return e.genl.Close()
}

// eventAttrs are all attributes that an event may have.
type eventAttrs struct {
	SubflowEvent
	flags      uint16
	serverSide bool
	has        uint32 // bit mask of the attributes present
}

func (a *eventAttrs) need(attrs ...int) error {
	for _, t := range attrs {
		if a.has&(1<<t) == 0 {
			return fmt.Errorf("attribute %d missing", t)
		}
	}
	return nil
}

// address sets one end; the attribute that is present determines the address family.
func (a *eventAttrs) address(p *netip.AddrPort, addr4, addr6 int) error {
	if a.has&(1<<addr4|1<<addr6) == 0 {
		return errors.New("address missing")
	}
	*p = netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	return nil
}

// decodeEvent decodes one event; it returns nil if the command is unknown.
func decodeEvent(command uint8, b []byte) (Event, error) {
	switch command {
	case eventCreated, eventEstablished, eventClosed, eventAnnounced, eventRemoved, eventSubEstablished, eventSubClosed,
		eventSubPriority, eventListenerCreated, eventListenerClosed:
	default:
		return nil, nil
	}
	var a eventAttrs
	if err := a.decode(b); err != nil {
		return nil, err
	}
	local := func() error { return a.address(&a.Local, eventAttrSource4, eventAttrSource6) }
	remote := func() error { return a.address(&a.Remote, eventAttrDest4, eventAttrDest6) }
	if command == eventListenerCreated || command == eventListenerClosed {
		if err := errors.Join(a.need(eventAttrSourcePort), local()); err != nil {
			return nil, err
		}
		if command == eventListenerCreated {
			return ListenerCreated{a.Local}, nil
		}
		return ListenerClosed{a.Local}, nil
	}
	if err := a.need(eventAttrToken); err != nil {
		return nil, err
	}
	switch command {
	case eventClosed:
		return Closed{a.Token}, nil
	case eventRemoved:
		return Removed{a.Token, a.RemoteID}, a.need(eventAttrRemoteID)
	case eventAnnounced:
		err := errors.Join(a.need(eventAttrRemoteID), remote())
		return Announced{a.Token, a.RemoteID, a.Remote}, err
	}
	if err := errors.Join(a.need(eventAttrSourcePort, eventAttrDestPort), local(), remote()); err != nil {
		return nil, err
	}
	created := Created{
		Token: a.Token, Local: a.Local, Remote: a.Remote, ServerSide: a.serverSide || a.flags&eventFlagServerSide != 0,
		DenyJoinID0: a.flags&eventFlagDenyJoinID0 != 0,
	}
	switch command {
	case eventCreated:
		return created, nil
	case eventEstablished:
		return Established(created), nil
	case eventSubEstablished:
		return SubEstablished(a.SubflowEvent), nil
	case eventSubClosed:
		return SubClosed(a.SubflowEvent), nil
	}
	return SubPriority(a.SubflowEvent), nil
}

func (a *eventAttrs) decode(b []byte) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		if ad.Type() < 32 {
			a.has |= 1 << ad.Type()
		}
		switch ad.Type() {
		case eventAttrToken:
			a.Token = ad.Uint32()
		case eventAttrLocalID:
			a.LocalID = ad.Uint8()
		case eventAttrRemoteID:
			a.RemoteID = ad.Uint8()
		case eventAttrSource4:
			ad.Do(host(&a.Local, 4))
		case eventAttrSource6:
			ad.Do(host(&a.Local, 16))
		case eventAttrDest4:
			ad.Do(host(&a.Remote, 4))
		case eventAttrDest6:
			ad.Do(host(&a.Remote, 16))
		case eventAttrSourcePort:
			ad.Do(port(&a.Local))
		case eventAttrDestPort:
			ad.Do(port(&a.Remote))
		case eventAttrBackup:
			a.Backup = ad.Uint8() != 0
		case eventAttrError:
			a.Error = unix.Errno(ad.Uint8())
		case eventAttrFlags:
			a.flags = ad.Uint16()
		case eventAttrInterface:
			a.Interface = ad.Int32()
		case eventAttrResetReason:
			a.ResetReason, a.WasReset = ad.Uint32(), true
		case eventAttrResetFlags:
			a.ResetFlags = ad.Uint32()
		case eventAttrServerSide:
			a.serverSide = ad.Uint8() != 0
		}
	}
	return ad.Err()
}

func host(p *netip.AddrPort, size int) func([]byte) error {
	return func(b []byte) error {
		var a netip.Addr
		err := address(&a, size)(b)
		*p = netip.AddrPortFrom(a, p.Port())
		return err
	}
}

// port decodes a port in network byte order, as in events; requests use host byte order.
func port(p *netip.AddrPort) func([]byte) error {
	return func(b []byte) error {
		if len(b) != 2 {
			return fmt.Errorf("port has %d bytes, want 2", len(b))
		}
		*p = netip.AddrPortFrom(p.Addr(), binary.BigEndian.Uint16(b))
		return nil
	}
}
