package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RouteMetrics are the metrics of a route that TCP reads (ip-route(8)); 0 leaves one to the kernel.
type RouteMetrics struct {
	// Cwnd is the maximum congestion window in segments. It locks what the kernel would otherwise
	// save of connections, so that each starts like the first. The kernel applies it from the
	// second connection between two addresses on.
	Cwnd int
	// InitCwnd is the initial congestion window in segments.
	InitCwnd int
	// AdvMSS is the advertised maximum segment size in bytes, with TCP's options.
	AdvMSS int
	// Window is the largest advertised receive window in bytes.
	Window int
	// QuickACK disables delayed acknowledgments.
	QuickACK bool
}

// ReplaceRoute adds a route to the main table, or replaces that to the same destination. An IPv4
// route may have an IPv6 gateway (RFC 8950). Its protocol is boot, as that of `ip route`.
func ReplaceRoute(dst netip.Prefix, via netip.Addr, m RouteMetrics) error {
	if err := request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, nl.NewRtMsg(), dst, via, m); err != nil {
		return fmt.Errorf("replace route %q via %s: %w", dst, via, err)
	}
	return nil
}

// DeleteRoute removes a route that ReplaceRoute has added.
func DeleteRoute(dst netip.Prefix, via netip.Addr) error {
	if err := request(unix.RTM_DELROUTE, 0, nl.NewRtDelMsg(), dst, via, RouteMetrics{}); err != nil {
		return fmt.Errorf("delete route %q via %s: %w", dst, via, err)
	}
	return nil
}

// request sends a request for a route to the kernel.
func request(kind, flags int, msg *nl.RtMsg, dst netip.Prefix, via netip.Addr, m RouteMetrics) error {
	family := uint8(unix.AF_INET)
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	msg.Family, msg.Dst_len, msg.Protocol = family, uint8(dst.Bits()), unix.RTPROT_BOOT
	req.AddData(msg)
	if dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, dst.Masked().Addr().AsSlice()))
	}
	if via.Is6() && dst.Addr().Is4() {
		gateway := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
		req.AddData(nl.NewRtAttr(unix.RTA_VIA, append(gateway, via.AsSlice()...)))
	} else {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, via.AsSlice()))
	}
	if m != (RouteMetrics{}) {
		req.AddData(m.attribute())
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// savedMetrics are those that the kernel saves of connections in place of the route's, unless they
// are locked.
var savedMetrics = []int{unix.RTAX_RTT, unix.RTAX_RTTVAR, unix.RTAX_SSTHRESH, unix.RTAX_CWND, unix.RTAX_REORDERING}

func (m RouteMetrics) attribute() *nl.RtAttr {
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	add := func(kind, value int) {
		if value > 0 {
			metrics.AddRtAttr(kind, nl.Uint32Attr(uint32(value)))
		}
	}
	if m.Cwnd > 0 {
		lock := 0
		for _, kind := range savedMetrics {
			lock |= 1 << kind
		}
		add(unix.RTAX_LOCK, lock)
	}
	add(unix.RTAX_CWND, m.Cwnd)
	add(unix.RTAX_INITCWND, m.InitCwnd)
	add(unix.RTAX_ADVMSS, m.AdvMSS)
	add(unix.RTAX_WINDOW, m.Window)
	if m.QuickACK {
		add(unix.RTAX_QUICKACK, 1)
	}
	return metrics
}
