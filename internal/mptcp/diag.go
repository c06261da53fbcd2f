package mptcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a TCP socket. If it is not a subflow, Token is 0 and only the TCP fields of Subflow are
// set.
type Socket struct {
	Subflow
	State State
	// Congestion is the name of the congestion control algorithm.
	Congestion string
	// DeliveryRate is the latest measured goodput in bytes per second.
	DeliveryRate uint64
	// Retransmitted counts retransmitted segments. It wraps around.
	Retransmitted uint32
	// Reordering is the reordering distance that TCP tolerates, in segments; Reordered counts
	// reordering events and wraps around.
	Reordering, Reordered uint32
	// PacingRate is in bytes per second, the maximum of the type for none.
	PacingRate uint64
	// AppLimited is whether DeliveryRate was measured while the application had no more data.
	AppLimited bool
	// WindowLimited is the part of Busy that was limited by the peer's window, BufferLimited by the
	// send buffer.
	WindowLimited, BufferLimited time.Duration
}

// State is the state of a TCP socket (RFC 9293 section 3.3.2), as numbered by the kernel.
type State uint8

var stateNames = [...]string{1: "established", "syn-sent", "syn-received", "fin-wait-1", "fin-wait-2", "time-wait", "closed", "close-wait", "last-ack", "listen", "closing"}

// Listening is the state of a socket that accepts connections.
const Listening State = 10

func (s State) String() string {
	if s > 0 && int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// connected is the set of states in which a socket has a peer and send counters: ESTABLISHED,
// FIN-WAIT-1, FIN-WAIT-2, CLOSE-WAIT, LAST-ACK and CLOSING.
const connected = 1<<1 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11

// listening is the set of the state LISTEN, requested that of SYN-RECEIVED.
const (
	listening = 1 << Listening
	requested = 1 << 3
)

// Further attributes and offsets of sock_diag.
const (
	diagAttrProtocol   = 3 // of requests
	diagAttrCongestion = 4
	diagExtCongestion  = 1 << (diagAttrCongestion - 1)

	// INET_DIAG_SKMEMINFO (include/uapi/linux/sock_diag.h): the offsets of SK_MEMINFO_SNDBUF and
	// SK_MEMINFO_WMEM_QUEUED, and the length up to and including the latter.
	diagAttrMemory                            = 7
	diagExtMemory                             = 1 << (diagAttrMemory - 1)
	memorySendBuffer, memoryQueued, memoryLen = 12, 20, 24

	diagAttrRequestStorages = 2 // of requests
	diagAttrStorages        = 20
	storageMap              = 2 // SK_DIAG_BPF_STORAGE_MAP_ID
	storageValue            = 3 // SK_DIAG_BPF_STORAGE_MAP_VALUE

	diagOffsetState, diagOffsetRetransmitted = 1, 3
)

// Sockets calls f for each TCP socket of the family that has a peer, whether it is a subflow or
// not. The Socket is valid only during the call. Sockets does one dump without allocations. Sockets
// that are opened or closed during the dump may be missing.
func (d *Diag) Sockets(family Family, f func(*Socket)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := map[string]string{}
	err := d.dump(family, unix.IPPROTO_TCP, diagExtInfo|diagExtCongestion, connected, nil, func(body []byte) error {
		s, err := decodeSocket(body, names)
		if errors.Is(err, errTimeWait) {
			return nil
		}
		if err != nil {
			return err
		}
		f(&s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list tcp sockets: %w", err)
	}
	return nil
}

// Pending is a TCP connection that a peer has requested, and that is not established: the SYN-ACK
// was not acknowledged yet, and was sent again so often.
type Pending struct {
	Ends
	Retransmitted uint8
}

// Pending calls f for each such connection of the family. Those that are requested or established
// during the dump may be missing.
func (d *Diag) Pending(family Family, f func(Pending)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.dump(family, unix.IPPROTO_TCP, 0, requested, nil, func(body []byte) error {
		if len(body) < diagMessageLen {
			return fmt.Errorf("socket of %d bytes, want %d", len(body), diagMessageLen)
		}
		f(Pending{Ends{socketAddress(body, body[4:6], body[8:24]), socketAddress(body, body[6:8], body[24:40])}, body[diagOffsetRetransmitted]})
		return nil
	})
	if err != nil {
		return fmt.Errorf("list requested tcp connections: %w", err)
	}
	return nil
}

// Storage is a value that eBPF programs keep in a socket (BPF_MAP_TYPE_SK_STORAGE).
type Storage struct {
	Map   uint32 // ID
	Value []byte
}

// Storages calls f for each TCP socket of the family that has a peer or listens, with what eBPF
// programs keep in it, which the kernel reports only to processes with CAP_BPF. The arguments are
// valid only during the call. Sockets that are opened or closed during the dump may be missing.
func (d *Diag) Storages(family Family, f func(*Socket, []Storage)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := map[string]string{}
	// Without the maps that are asked for: all of them.
	request := []byte{0: unix.SizeofNlAttr, 3: 0}
	binary.NativeEndian.PutUint16(request[2:], diagAttrRequestStorages|unix.NLA_F_NESTED)
	var storages []Storage
	err := d.dump(family, unix.IPPROTO_TCP, diagExtInfo|diagExtCongestion, connected|listening, request, func(body []byte) error {
		s, err := decodeSocket(body, names)
		if errors.Is(err, errTimeWait) {
			return nil
		}
		if err == nil {
			storages, err = decodeStorages(body[diagMessageLen:], storages[:0])
		}
		if err != nil {
			return err
		}
		f(&s, storages)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list tcp sockets: %w", err)
	}
	return nil
}

// decodeStorages appends the values in the attributes of a socket to storages.
func decodeStorages(b []byte, storages []Storage) ([]Storage, error) {
	err := eachAttr(b, func(kind uint16, v []byte) error {
		if kind != diagAttrStorages {
			return nil
		}
		return eachAttr(v, func(_ uint16, v []byte) error {
			var s Storage
			err := eachAttr(v, func(kind uint16, v []byte) error {
				switch kind {
				case storageMap:
					if len(v) < 4 {
						return fmt.Errorf("map ID of %d bytes, want 4", len(v))
					}
					s.Map = binary.NativeEndian.Uint32(v)
				case storageValue:
					s.Value = v
				}
				return nil
			})
			storages = append(storages, s)
			return err
		})
	})
	return storages, err
}

// dump requests the sockets of a protocol in the given states with the given extensions, both bit
// masks, and further attributes, and calls f with the answer for each socket.
func (d *Diag) dump(family Family, protocol uint32, extensions uint8, states uint32, attributes []byte, f func(body []byte) error) error {
	d.seq++
	request := make([]byte, diagRequestLen+8, diagRequestLen+8+unix.SizeofNlAttr)
	request = append(request, attributes...)
	d.head(request, family, protocol, extensions, unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(request[unix.NLMSG_HDRLEN+4:], states)
	if err := unix.Sendto(d.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, from, err := unix.Recvfrom(d.fd, d.buffer, unix.MSG_TRUNC)
		switch sender, _ := from.(*unix.SockaddrNetlink); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n > len(d.buffer):
			return fmt.Errorf("answer of %d bytes, want at most %d", n, len(d.buffer))
		case sender == nil || sender.Pid != 0:
			continue // not from the kernel
		}
		if done, err := eachMessage(d.buffer[:n], d.seq, f); done || err != nil {
			return err
		}
	}
}

// head writes the header of a request, and the attribute with the protocol after it: numbers above
// 255 do not fit into the header's field.
func (d *Diag) head(request []byte, family Family, protocol uint32, extensions uint8, flags uint16) {
	native := binary.NativeEndian
	native.PutUint32(request[0:], uint32(len(request)))
	native.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST|flags)
	native.PutUint32(request[8:], d.seq)
	body := request[unix.NLMSG_HDRLEN:]
	body[0], body[1], body[2] = byte(family), unix.IPPROTO_TCP, extensions
	attr := request[diagRequestLen:][:8]
	native.PutUint16(attr, uint16(len(attr)))
	native.PutUint16(attr[2:], diagAttrProtocol)
	native.PutUint32(attr[4:], protocol)
}

// eachMessage calls f for each socket in one datagram; done is true at the end of the dump.
// Messages of an earlier dump that ended with an error are skipped.
func eachMessage(b []byte, seq uint32, f func(body []byte) error) (done bool, err error) {
	native := binary.NativeEndian
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return false, fmt.Errorf("message of %d bytes", len(b))
		}
		size := int(native.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return false, fmt.Errorf("message says it has %d bytes, there are %d", size, len(b))
		}
		kind, number, body := native.Uint16(b[4:]), native.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]
		b = b[min(len(b), (size+3)&^3):]
		if number != seq {
			continue
		}
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("message of an error is cut short")
			}
			if code := int32(native.Uint32(body)); code < 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		case unix.SOCK_DIAG_BY_FAMILY:
			if err := f(body); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// Connection is an MPTCP connection of this host (struct mptcp_info in include/uapi/linux/mptcp.h).
type Connection struct {
	Token uint32
	// Subflows counts the subflows besides the initial one.
	Subflows uint8
	// Announced counts the addresses that this host has announced, including repetitions by a
	// user-space path manager; Accepted counts the addresses of the peer that it has accepted.
	Announced, Accepted uint8
	// Counted is whether the kernel counts bytes (Linux 6.5): Acked are those that the peer
	// acknowledged at the MPTCP level, Outstanding those that were sent and are not, Reinjected
	// those that the connection's timer reinjected, and Written those that the application wrote.
	Counted                                 bool
	Acked, Outstanding, Reinjected, Written uint64
	// Full is whether the send buffer is not writable (sk_stream_is_writeable): an application that
	// has more to send waits. Only Diag.Connection sets it.
	Full bool
}

// Connection returns the connection with that token, and false if there is none.
func (d *Diag) Connection(token uint32) (c Connection, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seq++
	request := make([]byte, diagRequestLen+8)
	d.head(request, IPv6, unix.IPPROTO_MPTCP, diagExtInfo|diagExtMemory, 0)
	// The first half of the cookie is the token.
	binary.NativeEndian.PutUint32(request[unix.NLMSG_HDRLEN+8+40:], token)
	if err = d.send(request); err != nil {
		return c, false, fmt.Errorf("query mptcp connection %08x: %w", token, err)
	}
	b, err := d.receive()
	if err == nil {
		_, err = eachMessage(b, d.seq, func(body []byte) error {
			c, err = decodeConnection(body)
			ok = err == nil && c.Token == token
			return err
		})
	}
	if errors.Is(err, unix.ENOENT) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("query mptcp connection %08x: %w", token, err)
	}
	return c, ok, nil
}

// Connections calls f for each established MPTCP connection of the family, without Full: a dump
// does not request the socket memory. Connections that are opened or closed during the dump may be
// missing.
func (d *Diag) Connections(family Family, f func(Connection)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.dump(family, unix.IPPROTO_MPTCP, diagExtInfo, 1<<tcpEstablished, nil, func(body []byte) error {
		c, err := decodeConnection(body)
		if err == nil && c.Token != 0 {
			f(c)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list mptcp connections: %w", err)
	}
	return nil
}

const (
	// mptcpInfoLen is the length of mptcp_info up to and including mptcpi_token.
	mptcpInfoLen = 16
	// The offsets of mptcpi_write_seq and _snd_una.
	mptcpInfoWritten, mptcpInfoConfirmed = 16, 24
	// The offsets of mptcpi_bytes_retrans, _sent and _acked, and the length up to and including the
	// last.
	mptcpInfoReinjected, mptcpInfoSent, mptcpInfoAcked, mptcpInfoCounted = 48, 56, 72, 80
)

func decodeConnection(b []byte) (Connection, error) {
	var c Connection
	if len(b) < diagMessageLen {
		return c, fmt.Errorf("socket of %d bytes, want %d", len(b), diagMessageLen)
	}
	native := binary.NativeEndian
	err := eachAttr(b[diagMessageLen:], func(kind uint16, v []byte) error {
		switch {
		case kind == diagAttrMemory && len(v) >= memoryLen:
			sndbuf, queued := native.Uint32(v[memorySendBuffer:]), native.Uint32(v[memoryQueued:])
			c.Full = int64(sndbuf)-int64(queued) < int64(queued/2)
			return nil
		case kind != diagAttrInfo:
			return nil
		case len(v) < mptcpInfoLen:
			return fmt.Errorf("mptcp_info of %d bytes, want %d", len(v), mptcpInfoLen)
		}
		c.Subflows, c.Announced, c.Accepted, c.Token = v[0], v[1], v[2], native.Uint32(v[12:])
		if len(v) < mptcpInfoCounted {
			return nil
		}
		c.Counted, c.Acked, c.Reinjected = true, native.Uint64(v[mptcpInfoAcked:]), native.Uint64(v[mptcpInfoReinjected:])
		c.Written = c.Acked + native.Uint64(v[mptcpInfoWritten:]) - native.Uint64(v[mptcpInfoConfirmed:])
		if sent := native.Uint64(v[mptcpInfoSent:]); sent > c.Acked {
			c.Outstanding = sent - c.Acked
		}
		return nil
	})
	return c, err
}

// errTimeWait is the error of a socket of which the kernel has only the rest that it keeps after
// the socket's end (a tcp_timewait_sock, whose state may be FIN-WAIT-2). It has no tcp_info.
var errTimeWait = errors.New("the socket has ended")

const finWait2 State = 5

// decodeSocket decodes one socket. names interns the names of congestion controls.
func decodeSocket(b []byte, names map[string]string) (Socket, error) {
	var s Socket
	if len(b) < diagMessageLen {
		return s, fmt.Errorf("socket of %d bytes, want %d", len(b), diagMessageLen)
	}
	s.State = State(b[diagOffsetState])
	s.Local, s.Remote = socketAddress(b, b[4:6], b[8:24]), socketAddress(b, b[6:8], b[24:40])
	var info []byte
	err := eachAttr(b[diagMessageLen:], func(kind uint16, v []byte) error {
		switch kind {
		case diagAttrInfo:
			info = v
		case diagAttrCongestion:
			s.Congestion = intern(names, v)
		case diagAttrULP:
			return s.upperLayer(v)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if info == nil && s.State == finWait2 {
		return s, errTimeWait
	}
	if len(info) < tcpInfoLen {
		return s, fmt.Errorf("tcp_info of %d bytes, want %d", len(info), tcpInfoLen)
	}
	s.sending(b, info)
	native := binary.NativeEndian
	s.Reordering = native.Uint32(info[88:])
	s.Retransmitted, s.DeliveryRate = native.Uint32(info[100:]), native.Uint64(info[160:])
	s.AppLimited = info[7]&1 != 0
	s.PacingRate = native.Uint64(info[104:])
	s.WindowLimited = time.Duration(native.Uint64(info[176:])) * time.Microsecond
	s.BufferLimited = time.Duration(native.Uint64(info[184:])) * time.Microsecond
	// Linux 4.19.
	if len(info) >= tcpInfoReordSeen+4 {
		s.Reordered = native.Uint32(info[tcpInfoReordSeen:])
	}
	return s, nil
}

const tcpInfoReordSeen, tcpInfoSendWindow = 220, 228

// upperLayer decodes INET_DIAG_ULP_INFO, whose upper layer protocol may be other than MPTCP.
func (s *Socket) upperLayer(b []byte) error {
	return eachAttr(b, func(kind uint16, v []byte) error {
		if kind != diagAttrMPTCP {
			return nil
		}
		return eachAttr(v, s.attr)
	})
}

func socketAddress(b, port, addr []byte) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(addr))
	if Family(b[0]) == IPv4 {
		a = netip.AddrFrom4([4]byte(addr))
	}
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(port))
}

// intern returns the zero-terminated string in b, taken from names if present, to avoid
// allocations.
func intern(names map[string]string, b []byte) string {
	for i, c := range b {
		if c == 0 {
			b = b[:i]
			break
		}
	}
	s, ok := names[string(b)]
	if !ok {
		s = string(b)
		names[s] = s
	}
	return s
}
