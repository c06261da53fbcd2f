package scenario

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/epe/edge"
)

// MPTCP is what the kernel's path manager does on a node without edge: its limits, and addresses
// for further subflows.
type MPTCP struct {
	edge.MPTCP `yaml:",inline"`
	// Announce are addresses of the node that are advertised to every client, which opens a
	// subflow to each. Example: ["2001:db8:2::1"]
	Announce []netip.Addr `yaml:"announce,omitempty"`
	// From are addresses of the node that further subflows are opened from. Example:
	// ["2001:db8:2::1"]
	From []netip.Addr `yaml:"from,omitempty"`
	// Fullmesh opens a subflow from each address in from to each address of the other end, instead
	// of one. Only a lab has it. Example: true
	Fullmesh bool `yaml:"fullmesh,omitempty"`
}

// maxEndpoints is the kernel path manager's limit of endpoints (MPTCP_PM_ADDR_MAX of
// net/mptcp/protocol.h).
const maxEndpoints = 8

// StaticRoute is a static route, such as a client's default route.
type StaticRoute struct {
	// Dst is the destination prefix.
	Dst netip.Prefix `yaml:"dst"`
	// Via is the next hop, on a network of the node; that of an IPv4 route may be IPv6.
	Via          netip.Addr `yaml:"via"`
	RouteMetrics `yaml:",inline"`
}

// RouteMetrics are the metrics of a route that TCP uses; 0 leaves a metric unset.
type RouteMetrics struct {
	// Cwnd is the most segments that a connection over the route may have in flight. The kernel
	// applies it from the second connection between two addresses on.
	// Example: 20
	Cwnd int `yaml:"cwnd,omitempty"`
	// InitCwnd is the initial congestion window in segments.
	// Example: 10
	InitCwnd int `yaml:"initcwnd,omitempty"`
	// AdvMSS is the maximum segment size that the node advertises, in bytes and with TCP's
	// options.
	// Example: 1220
	AdvMSS int `yaml:"advmss,omitempty"`
	// Window is the largest receive window that the node advertises, in bytes.
	// Example: 65535
	Window int `yaml:"window,omitempty"`
	// QuickACK acknowledges every segment at once.
	// Example: true
	QuickACK bool `yaml:"quickack,omitempty"`
}

// maxRouteWindow is far more than any path needs, and fits the kernel's integers; maxReceiveWindow
// is TCP's largest window (RFC 7323 section 2.3).
const maxRouteWindow, maxReceiveWindow = 1 << 20, 1 << 30

func (m RouteMetrics) check() fault.List {
	var faults fault.List
	for _, w := range []struct {
		name  string
		value int
	}{{"cwnd", m.Cwnd}, {"initcwnd", m.InitCwnd}} {
		if w.value < 0 || w.value > maxRouteWindow {
			faults.Add(w.name, "must be 1 to %d segments, got %d", maxRouteWindow, w.value)
		}
	}
	if m.Window < 0 || m.Window > maxReceiveWindow {
		faults.Add("window", "must be 1 to %d bytes, got %d", maxReceiveWindow, m.Window)
	}
	if m.AdvMSS != 0 && (m.AdvMSS < minSegment || m.AdvMSS > maxSegment) {
		faults.Add("advmss", "must be %d to %d bytes, got %d", minSegment, maxSegment, m.AdvMSS)
	}
	return faults
}

func (c *checker) mptcp(path, name string, n *Node) {
	if n.Edge != nil {
		c.Add(path, "must be left out: edge sets the limits of this node in edge.mptcp")
	}
	c.Merge(path, n.MPTCP.MPTCP.Check())
	if n.MPTCP.Fullmesh && len(n.MPTCP.From) == 0 {
		c.Add(path+".fullmesh", "has no effect without from")
	}
	seen := map[netip.Addr]string{}
	for _, l := range []struct {
		key  string
		list []netip.Addr
	}{{"announce", n.MPTCP.Announce}, {"from", n.MPTCP.From}} {
		for i, a := range l.list {
			where := index(fault.Join(path, l.key), i)
			first, twice := seen[a]
			switch {
			case !c.usable(where, a):
			case !c.has(name, a):
				c.Add(where, "%s is not on an interface of this node", a)
			case twice:
				c.Add(where, "%s is already given in %s", a, first)
			}
			seen[a] = where
		}
	}
	if both := slices.Concat(n.MPTCP.Announce, n.MPTCP.From); len(both) > maxEndpoints {
		c.Add(path, "must have at most %d addresses in announce and from together, got %d", maxEndpoints, len(both))
	}
}
