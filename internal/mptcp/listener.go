package mptcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket.
type Listener struct {
	// At is its address; the unspecified one is a wildcard, and IPv6's includes IPv4 unless Only6
	// is set.
	At    netip.AddrPort
	Only6 bool
	// Multipath: connections are accepted over MPTCP, otherwise only over TCP.
	Multipath bool
	// Inode is the number of the socket, which its processes have among their files.
	Inode uint32
}

const (
	diagAttrOnly6   = 11 // INET_DIAG_SKV6ONLY
	diagOffsetInode = 68
)

// Listeners returns the sockets that listen with MPTCP or TCP in the network namespace of d.
func (d *Diag) Listeners() ([]Listener, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Listener
	multipath := map[uint32]bool{}
	for _, family := range []Family{IPv6, IPv4} {
		// The TCP socket of one that listens with MPTCP is listed, too, under the same number.
		for _, protocol := range []uint32{unix.IPPROTO_MPTCP, unix.IPPROTO_TCP} {
			err := d.dump(family, protocol, 0, listening, nil, func(b []byte) error {
				l, err := decodeListener(b)
				if l.Multipath = protocol == unix.IPPROTO_MPTCP; l.Multipath {
					multipath[l.Inode] = true
				}
				if err == nil && (l.Multipath || !multipath[l.Inode]) {
					all = append(all, l)
				}
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("list listening sockets: %w", err)
			}
		}
	}
	return all, nil
}

func decodeListener(b []byte) (Listener, error) {
	if len(b) < diagMessageLen {
		return Listener{}, fmt.Errorf("socket of %d bytes, want %d", len(b), diagMessageLen)
	}
	l := Listener{At: socketAddress(b, b[4:6], b[8:24]), Inode: binary.NativeEndian.Uint32(b[diagOffsetInode:])}
	err := eachAttr(b[diagMessageLen:], func(kind uint16, v []byte) error {
		if kind == diagAttrOnly6 && len(v) > 0 {
			l.Only6 = v[0] != 0
		}
		return nil
	})
	return l, err
}

// Accepts reports whether the kernel may give the socket a SYN to an address of this host.
func (l *Listener) Accepts(at netip.AddrPort) bool {
	return l.At.Port() == at.Port() && l.precedence(at.Addr()) > 0
}

// precedence orders the sockets that accept a SYN to an address: the kernel prefers one of that
// address to a wildcard, and one of IPv4 to one of IPv6. 0: the socket does not accept it.
func (l *Listener) precedence(to netip.Addr) int {
	switch own := l.At.Addr(); {
	case own == to:
		return 3
	case own.IsUnspecified() && own.Is4() == to.Is4():
		return 2
	case own.IsUnspecified() && own.Is6() && to.Is4() && !l.Only6:
		return 1
	}
	return 0
}

// Answer is what this host answers to a subflow that joins a connection.
type Answer uint8

// The answers.
const (
	// JoinAccepted: all sockets that listen accept it.
	JoinAccepted Answer = iota
	// JoinMixed: some of them listen with TCP only, and reset it.
	JoinMixed
	// JoinOnlyTCP: all of them do.
	JoinOnlyTCP
	// JoinOtherAddress: nothing listens at its address, but at others of the port.
	JoinOtherAddress
	// JoinClosed: nothing listens at the port.
	JoinClosed
)

// AnswerTo returns the answer to a subflow to an address of this host with these listening sockets.
func AnswerTo(listeners []Listener, at netip.AddrPort) Answer {
	most, answer := 0, JoinClosed
	for i := range listeners {
		l := &listeners[i]
		if l.At.Port() != at.Port() {
			continue
		}
		own := JoinOnlyTCP
		if l.Multipath {
			own = JoinAccepted
		}
		switch n := l.precedence(at.Addr()); {
		case n == 0 && most == 0:
			answer = JoinOtherAddress
		case n > most:
			most, answer = n, own
		case n == most && n > 0 && answer != own:
			answer = JoinMixed
		}
	}
	return answer
}

// Problem returns why subflows to the port of an address are reset and what to do; empty if they
// are accepted.
func (a Answer) Problem(at netip.AddrPort) (text, remedy string) {
	port := strconv.Itoa(int(at.Port()))
	switch a {
	case JoinAccepted:
	case JoinMixed:
		return "port " + port + " of this host is listened to with TCP, too, and subflows that the kernel gives to that socket are reset",
			"have all of the server's processes listen with MPTCP, by tabane mptcpify; ss -ltnpM shows those that do, ss -ltnp all"
	case JoinOnlyTCP:
		return "port " + port + " of this host is listened to with TCP only, and subflows are reset", "have the server listen with MPTCP, by tabane mptcpify"
	case JoinOtherAddress:
		return fmt.Sprintf("nothing on this host listens on %v, and subflows are reset", at), "have the server listen on [::] (or 0.0.0.0)"
	case JoinClosed:
		return "nothing on this host listens on port " + port + " any more, and subflows are reset", "have the server listen while it has connections, or restart it"
	}
	return "", ""
}
