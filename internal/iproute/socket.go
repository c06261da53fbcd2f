package iproute

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
)

// States of a Socket.
const (
	Established = netlink.TCP_ESTABLISHED
	Listening   = netlink.TCP_LISTEN
)

// Socket is a TCP socket; a subflow is one, an MPTCP connection is not.
type Socket struct {
	State         int
	Local, Remote netip.AddrPort
	PathMTU       uint32 // bytes
}

// Sockets lists the TCP sockets of a network namespace in one of the states, as ss does.
func Sockets(namespace string, state int) ([]Socket, error) {
	var sockets []Socket
	err := netns.Do(namespace, func() error {
		for _, family := range []uint8{unix.AF_INET6, unix.AF_INET} {
			found, err := netlink.SocketDiagTCPInfo(family)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			for _, x := range found {
				if x.InetDiagMsg == nil || int(x.InetDiagMsg.State) != state {
					continue
				}
				id := x.InetDiagMsg.ID
				local, _ := netip.AddrFromSlice(id.Source)
				remote, _ := netip.AddrFromSlice(id.Destination)
				s := Socket{State: state, Local: netip.AddrPortFrom(local, id.SourcePort), Remote: netip.AddrPortFrom(remote, id.DestinationPort)}
				if x.TCPInfo != nil {
					s.PathMTU = x.TCPInfo.Pmtu
				}
				sockets = append(sockets, s)
			}
		}
		return nil
	})
	return sockets, err
}
