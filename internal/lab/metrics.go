package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
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

// remembered are the metrics that the kernel keeps of connections, in place of the route's, unless they are locked.
var remembered = []int{unix.RTAX_RTT, unix.RTAX_RTTVAR, unix.RTAX_SSTHRESH, unix.RTAX_CWND, unix.RTAX_REORDERING}

// metricsOf is what the route says of TCP, or nil. Where the window is bounded, nothing else is remembered of connections:
// each starts like the first.
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

// The family that shows and clears what the kernel remembers of connections (include/uapi/linux/tcp_metrics.h).
const (
	tcpMetricsFamily = "tcp_metrics"
	tcpMetricsGet    = 1
	tcpMetricsDelete = 2
	tcpMetricsVals   = 6
	// tcpMetricsCwnd is TCP_METRIC_CWND, counted from 1 as the attributes are.
	tcpMetricsCwnd = 3 + 1
)

// forgetConnections clears what the kernel of the caller's namespace remembers of TCP connections.
func forgetConnections() error {
	_, err := tcpMetrics(tcpMetricsDelete, unix.NLM_F_ACK)
	// Nothing is remembered.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// bounded is between how many pairs of addresses the kernel of the caller's namespace bounds the window.
func bounded() (int, error) {
	messages, err := tcpMetrics(tcpMetricsGet, unix.NLM_F_DUMP)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, m := range messages {
		attrs, err := nl.ParseRouteAttr(m[min(len(m), nl.SizeofGenlmsg):])
		if err != nil {
			return 0, fmt.Errorf("read what is remembered of connections: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK != tcpMetricsVals {
				continue
			}
			values, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return 0, fmt.Errorf("read what is remembered of connections: %w", err)
			}
			for _, v := range values {
				if v.Attr.Type == tcpMetricsCwnd && len(v.Value) >= 4 && binary.NativeEndian.Uint32(v.Value) > 0 {
					n++
				}
			}
		}
	}
	return n, nil
}

func tcpMetrics(command uint8, flags int) ([][]byte, error) {
	family, err := netlink.GenlFamilyGet(tcpMetricsFamily)
	if err != nil {
		return nil, fmt.Errorf("find netlink family %s: %w", tcpMetricsFamily, err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	return req.Execute(unix.NETLINK_GENERIC, 0)
}
