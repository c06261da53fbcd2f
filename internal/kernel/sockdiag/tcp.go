// Package sockdiag lists and destroys the TCP connections of a network namespace (sock_diag(7)),
// sets static routes with the metrics that TCP reads, and reads and flushes those that the kernel
// saves of connections (ip-tcp_metrics(8)). All calls act on the network namespace of the calling
// thread. It opens no connection itself.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Connection is a TCP socket of a connection.
type Connection struct {
	Local, Remote netip.AddrPort
	// Established is whether the connection is in state ESTABLISHED.
	Established bool

	family uint8
	id     netlink.SocketID
}

// Connections lists the TCP connections over IPv4 and IPv6, listening sockets included.
func Connections() ([]Connection, error) {
	var all []Connection
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return nil, fmt.Errorf("list TCP connections: %w", err)
		}
		for _, s := range sockets {
			local, _ := netip.AddrFromSlice(s.ID.Source)
			remote, _ := netip.AddrFromSlice(s.ID.Destination)
			all = append(all, Connection{
				Local:       netip.AddrPortFrom(local.Unmap(), s.ID.SourcePort),
				Remote:      netip.AddrPortFrom(remote.Unmap(), s.ID.DestinationPort),
				Established: s.State == netlink.TCP_ESTABLISHED,
				family:      s.Family, id: s.ID,
			})
		}
	}
	return all, nil
}

// destroyRequest is struct inet_diag_req_v2 of include/uapi/linux/inet_diag.h.
type destroyRequest [56]byte

func (r *destroyRequest) Len() int          { return len(r) }
func (r *destroyRequest) Serialize() []byte { return r[:] }

// Destroy closes the connection with a reset to the other end (SOCK_DESTROY, which needs
// CONFIG_INET_DIAG_DESTROY). The error for a connection that has ended matches fs.ErrNotExist.
func (c Connection) Destroy() error {
	// netlink.SocketDestroy does this for IPv4 alone.
	var r destroyRequest
	r[0], r[1] = c.family, unix.IPPROTO_TCP
	native := binary.NativeEndian
	native.PutUint32(r[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(r[8:], c.id.SourcePort)
	binary.BigEndian.PutUint16(r[10:], c.id.DestinationPort)
	source, destination := c.id.Source, c.id.Destination
	if c.family == unix.AF_INET {
		source, destination = source.To4(), destination.To4()
	}
	copy(r[12:28], source)
	copy(r[28:44], destination)
	native.PutUint32(r[44:], c.id.Interface)
	native.PutUint32(r[48:], c.id.Cookie[0])
	native.PutUint32(r[52:], c.id.Cookie[1])
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.AddData(&r)
	if _, err := req.Execute(unix.NETLINK_INET_DIAG, 0); err != nil {
		return fmt.Errorf("destroy TCP connection from %q to %q: %w", c.Local, c.Remote, err)
	}
	return nil
}

// The netlink family of saved metrics (include/uapi/linux/tcp_metrics.h).
const (
	metricsFamily = "tcp_metrics"
	metricsGet    = 1
	metricsDelete = 2
	metricsVals   = 6
	// metricsCwnd is TCP_METRIC_CWND, counted from 1 as the attributes are.
	metricsCwnd = 3 + 1
)

// FlushMetrics deletes all saved metrics.
func FlushMetrics() error {
	_, err := metrics(metricsDelete, unix.NLM_F_ACK)
	// None are saved.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// CwndMetrics is the number of pairs of addresses for which a congestion window is saved.
func CwndMetrics() (int, error) {
	messages, err := metrics(metricsGet, unix.NLM_F_DUMP)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, m := range messages {
		attrs, err := nl.ParseRouteAttr(m[min(len(m), nl.SizeofGenlmsg):])
		if err != nil {
			return 0, fmt.Errorf("decode saved TCP metrics: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK != metricsVals {
				continue
			}
			values, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return 0, fmt.Errorf("decode saved TCP metrics: %w", err)
			}
			for _, v := range values {
				if v.Attr.Type == metricsCwnd && len(v.Value) >= 4 && binary.NativeEndian.Uint32(v.Value) > 0 {
					n++
				}
			}
		}
	}
	return n, nil
}

func metrics(command uint8, flags int) ([][]byte, error) {
	family, err := netlink.GenlFamilyGet(metricsFamily)
	if err != nil {
		return nil, fmt.Errorf("find netlink family %q: %w", metricsFamily, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	return req.Execute(unix.NETLINK_GENERIC, 0)
}
