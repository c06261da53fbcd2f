package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/mptcp"
)

// Node is a node of a lab.
type Node struct{ node *node }

// Node finds a node by its name.
func (l *Lab) Node(name string) (Node, error) {
	n, err := l.plan.node(name)
	return Node{n}, err
}

// Do calls f on a thread in the node's network namespace. Goroutines started by f are not in it.
func (n Node) Do(f func() error) error { return netns.Do(n.node.netns, f) }

// Packets opens a packet socket on an interface of the node, or on all except the loopback if iface
// is empty. At most snap bytes of a packet are kept.
func (n Node) Packets(iface string, snap int) (*Packets, error) {
	return openPackets(n.node.netns, iface, snap)
}

// SetJoining sets whether the node, as an MPTCP client, opens further subflows: those of the
// scenario's limits, or none. Connections that are open keep theirs.
func (n Node) SetJoining(allowed bool) error {
	var limits mptcp.Limits
	if allowed {
		limits = n.node.limits()
	}
	return n.Do(func() error {
		c, err := mptcp.Dial()
		if err != nil {
			return err
		}
		return errors.Join(c.SetLimits(limits), c.Close())
	})
}

// SetRouteMetrics sets the metrics of the node's static routes to those of m; metrics that m omits
// are the scenario's. They also apply to routes that are restored later. It reports whether any
// route then bounds the congestion window.
func (n Node) SetRouteMetrics(m scenario.RouteMetrics) (bounded bool, err error) {
	err = n.Do(func() error {
		for i, r := range n.node.spec.Routes {
			r.RouteMetrics = over(r.RouteMetrics, m)
			bounded = bounded || r.Cwnd > 0
			if slices.Contains(n.node.routes, r) {
				continue
			}
			if err := replaceRoute(r); err != nil {
				return fmt.Errorf("change metrics on node %q: %w", n.node.name, err)
			}
			n.node.routes = slices.Clone(n.node.routes)
			n.node.routes[i] = r
		}
		return nil
	})
	return bounded, err
}

// over returns m, with the metrics that m omits taken from own.
func over(own, m scenario.RouteMetrics) scenario.RouteMetrics {
	if m.Cwnd > 0 {
		own.Cwnd = m.Cwnd
	}
	if m.InitCwnd > 0 {
		own.InitCwnd = m.InitCwnd
	}
	if m.AdvMSS > 0 {
		own.AdvMSS = m.AdvMSS
	}
	if m.Window > 0 {
		own.Window = m.Window
	}
	own.QuickACK = own.QuickACK || m.QuickACK
	return own
}

// writeFiles writes the files for the node's Exec.
func (n *node) writeFiles(dir string) error {
	if n.spec.Exec == "" {
		return nil
	}
	if err := os.MkdirAll(filesDir(dir, n.name), 0o700); err != nil {
		return err
	}
	for name, content := range n.spec.Files {
		if err := writeFile(filepath.Join(filesDir(dir, n.name), name), []byte(content)); err != nil {
			return err
		}
	}
	return nil
}
