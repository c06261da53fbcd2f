package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ResolveAgain deletes the neighbor entries of an address that the kernel has not resolved, on any
// link: with the next packet it solicits the neighbor at once, instead of a second after the last
// time (RFC 4861 section 10, RETRANS_TIMER; ARP alike).
func (c *Conn) ResolveAgain(a netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a = a.WithZone("")
	var links []uint32
	header := make([]byte, sizeofNdmsg)
	header[0] = family(a)
	_, err := c.dumpOnce(message(unix.RTM_GETNEIGH, netlink.Dump, header), func(b []byte) error {
		n, err := decodeNeighbor(b)
		if n.address == a && n.state&(unix.NUD_INCOMPLETE|unix.NUD_FAILED) != 0 {
			links = append(links, n.link)
		}
		return err
	})
	for _, link := range links {
		b := make([]byte, sizeofNdmsg)
		b[0] = family(a)
		native.PutUint32(b[4:], link)
		_, failed := c.nl.Execute(message(unix.RTM_DELNEIGH, netlink.Acknowledge, putAddr(b, unix.NDA_DST, a)))
		if !isGone(failed) {
			err = errors.Join(err, cause(failed))
		}
	}
	if err != nil {
		return fmt.Errorf("resolve neighbor %s again: %w", a, err)
	}
	return nil
}

// ErrNoRoute: the kernel has no route to an address.
var ErrNoRoute = errors.New("no route")

// noRoute reports whether the kernel's error means that there is no route: no entry, or an
// unreachable, prohibit or blackhole route.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) })
}

// NexthopTo resolves an address, such as a BGP next hop. The address is on-link if the returned
// gateway is not valid. If there is no route, the error matches ErrNoRoute and the kernel's error.
func (c *Conn) NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	if err := checkAddr("destination", dst); err != nil {
		return netip.Addr{}, "", fmt.Errorf("resolve next hop: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	gateway, link, err = c.nexthopTo(dst)
	if noRoute(err) {
		err = fmt.Errorf("%w: %w", ErrNoRoute, err)
	}
	if err != nil {
		return netip.Addr{}, "", fmt.Errorf("resolve next hop %q: %w", dst, err)
	}
	return gateway, link, nil
}

func (c *Conn) nexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	r, err := c.routeTo(dst, nil)
	if err != nil {
		return netip.Addr{}, "", err
	}
	l, err := c.link("", r.index)
	return r.gateway, l.Name, err
}

// NeighborOn returns the neighbor on an interface that packets to dst with a mark are sent to
// there: the gateway of the route, whose IP version may differ (RFC 8950), or dst itself if it is
// on the link. In IPv4 it is dst, too, if there is no route over the interface, as for the kernel.
// source is the address that the kernel sends them from, not valid if it has none.
func (c *Conn) NeighborOn(dst netip.Addr, index int, mark uint32) (neighbor, source netip.Addr, err error) {
	if err := checkAddr("destination", dst); err != nil {
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("resolve neighbor: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.routeTo(dst, putUint32(putUint32(nil, unix.RTA_OIF, uint32(index)), unix.RTA_MARK, mark))
	switch {
	case err != nil:
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("resolve neighbor for %q on interface %d: %w", dst, index, err)
	case !r.gateway.IsValid():
		r.gateway = dst
	}
	return r.gateway, r.source, nil
}

// RoutedOn reports whether a route over an interface leads to dst, for packets with a mark that are
// bound to it. Without one, the kernel takes an IPv4 address to be on the link.
func (c *Conn) RoutedOn(dst netip.Addr, index int, mark uint32) (bool, error) {
	if err := checkAddr("destination", dst); err != nil {
		return false, fmt.Errorf("look up route: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.route(dst, netip.Addr{}, unix.RTM_F_FIB_MATCH, putUint32(putUint32(nil, unix.RTA_OIF, uint32(index)), unix.RTA_MARK, mark))
	switch {
	case noRoute(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up route to %q on interface %d: %w", dst, index, err)
	}
	return true, nil
}

// SIDOf returns the SID that the kernel encapsulates the packets of a TCP connection to; it is not
// valid if it encapsulates none.
func (c *Conn) SIDOf(local, remote netip.AddrPort) (netip.Addr, error) {
	if err := errors.Join(checkAddr("source", local.Addr()), checkAddr("destination", remote.Addr())); err != nil {
		return netip.Addr{}, fmt.Errorf("look up connection: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := putAddr(nil, unix.RTA_SRC, local.Addr())
	b = putAttr(b, unix.RTA_IP_PROTO, []byte{unix.IPPROTO_TCP})
	b = putAttr(b, unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, local.Port()))
	b = putAttr(b, unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, remote.Port()))
	r, err := c.route(remote.Addr(), local.Addr(), 0, b)
	if err == nil && r.mark != 0 { // the packets are routed again, with the mark of a Nexthop
		r, err = c.route(remote.Addr(), local.Addr(), 0, putUint32(b, unix.RTA_MARK, r.mark))
	}
	if err != nil && !noRoute(err) {
		return netip.Addr{}, fmt.Errorf("look up connection %s to %s: %w", local, remote, err)
	}
	return r.sid, nil
}

// A Match is the route, of any program, that the kernel finds for packets to an address. It is the zero
// Match if there is none.
type Match struct {
	Protocol Protocol
	Table    uint32
	Dst      netip.Prefix
}

// MatchOf returns the route that the kernel finds for packets of this host to an address.
func (c *Conn) MatchOf(dst netip.Addr) (Match, error) {
	if err := checkAddr("destination", dst); err != nil {
		return Match{}, fmt.Errorf("look up route: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	flags := uint32(unix.RTM_F_FIB_MATCH)
	if dst.Is4() { // IPv6 has the table in any case, and refuses the flag
		flags |= unix.RTM_F_LOOKUP_TABLE
	}
	r, err := c.route(dst, netip.Addr{}, flags, nil)
	if err != nil && !noRoute(err) {
		return Match{}, fmt.Errorf("look up route to %s: %w", dst, err)
	}
	return r.match, nil
}

// resolved is how the kernel sends a packet. The gateway is not valid if its destination is on the
// link.
type resolved struct {
	gateway, source netip.Addr
	index           uint32     // of the interface
	sid             netip.Addr // that it encapsulates it to; not valid if it does not
	mark            uint32     // that it sets, to route the packet again; 0: it does not
	match           Match      // of an answer with RTM_F_FIB_MATCH
}

// routeTo asks the kernel for its route to dst, with further attributes of the packet.
func (c *Conn) routeTo(dst netip.Addr, more []byte) (r resolved, err error) {
	return c.route(dst, netip.Addr{}, 0, more)
}

// route is routeTo with flags of the request (rtnetlink(7)). more has the source, if there is one.
func (c *Conn) route(dst, src netip.Addr, flags uint32, more []byte) (r resolved, err error) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1], b[2] = family(dst), uint8(dst.BitLen()), uint8(src.BitLen())
	binary.NativeEndian.PutUint32(b[8:], flags) // rtm_flags
	got, err := c.execute(message(unix.RTM_GETROUTE, 0, append(putAddr(b, unix.RTA_DST, dst), more...)))
	if err != nil {
		return resolved{}, err
	}
	for _, m := range got {
		if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
			continue
		}
		at := attrs{b: m.Data[unix.SizeofRtMsg:], v4: dst.Is4()}
		var encap []byte
		var kind uint16
		r.match.Table, r.match.Protocol = uint32(m.Data[4]), Protocol(m.Data[5])
		to := unspecified(dst)
		for at.next() {
			switch at.typ {
			case unix.RTA_DST:
				to = at.addr()
			case unix.RTA_TABLE:
				r.match.Table = at.uint32()
			case unix.RTA_ENCAP:
				encap = at.data
			case unix.RTA_ENCAP_TYPE:
				kind = at.uint16()
			case unix.RTA_GATEWAY:
				r.gateway = at.addr()
			case unix.RTA_VIA:
				r.gateway = at.via()
			case unix.RTA_PREFSRC:
				r.source = at.addr()
			case unix.RTA_OIF:
				r.index = at.uint32()
			}
		}
		switch kind {
		case unix.LWTUNNEL_ENCAP_SEG6:
			r.sid, _, _ = decodeSegment(encap)
		case unix.LWTUNNEL_ENCAP_BPF:
			r.mark, _ = decodeSentMark(encap)
		}
		r.match.Dst = netip.PrefixFrom(to, int(m.Data[1])).Masked()
		return r, at.err
	}
	return resolved{}, errors.New("no answer")
}

// unspecified returns 0.0.0.0 or ::, as dst is.
func unspecified(dst netip.Addr) netip.Addr {
	if dst.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
