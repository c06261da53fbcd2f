package lab

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/scenario"
)

// replaceRoute makes a static route, or changes its metrics, in the caller's namespace.
func replaceRoute(r scenario.StaticRoute) error {
	family, bits := unix.AF_INET, 32
	if r.Dst.Addr().Is6() {
		family, bits = unix.AF_INET6, 128
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Protocol = uint8(family), uint8(min(r.Dst.Bits(), bits)), unix.RTPROT_BOOT
	req.AddData(msg)
	if r.Dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Masked().Addr().AsSlice()))
	}
	req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Via.AsSlice()))
	if m := metricsOf(r.RouteMetrics); m != nil {
		req.AddData(m)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// remembered are the metrics that the kernel keeps of connections, in place of the route's, unless
// they are locked.
var remembered = []int{unix.RTAX_RTT, unix.RTAX_RTTVAR, unix.RTAX_SSTHRESH, unix.RTAX_CWND, unix.RTAX_REORDERING}

// metricsOf is what the route says of TCP, or nil. Where the window is bounded, nothing else is
// remembered of connections: each starts like the first.
func metricsOf(m scenario.RouteMetrics) *nl.RtAttr {
	if m == (scenario.RouteMetrics{}) {
		return nil
	}
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	add := func(kind, value int) {
		if value > 0 {
			metrics.AddRtAttr(kind, nl.Uint32Attr(uint32(value)))
		}
	}
	if m.Cwnd > 0 {
		lock := 0
		for _, kind := range remembered {
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
