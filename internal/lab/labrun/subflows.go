package labrun

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/mptcp"
)

// pair identifies a connection on a host.
type pair struct{ local, remote netip.AddrPort }

// reading is the acknowledged bytes of each subflow of a server at one time.
type reading struct {
	at    time.Time
	acked map[pair]uint64
}

// dialDiag opens a socket for the sockets of a node.
func dialDiag(l *lab.Lab, node string) (diag *mptcp.Diag, err error) {
	n, err := l.Node(node)
	if err != nil {
		return nil, err
	}
	err = n.Do(func() error { diag, err = mptcp.DialDiag(); return err })
	return diag, err
}

// observe reads a node's subflows until ctx ends. It calls begun after the first reading, which
// has the subflows of earlier runs.
func observe(ctx context.Context, l *lab.Lab, node string, port uint16, begun func()) ([]reading, error) {
	diag, err := dialDiag(l, node)
	if err != nil {
		return nil, err
	}
	defer diag.Close()
	var all []reading
	read := func() error {
		r := reading{at: time.Now(), acked: map[pair]uint64{}}
		for _, family := range []mptcp.Family{mptcp.IPv6, mptcp.IPv4} {
			err := diag.Subflows(family, func(s mptcp.Subflow) {
				if s.Local.Port() == port {
					r.acked[pair{s.Local, s.Remote}] = s.Acked
				}
			})
			if err != nil {
				return err
			}
		}
		all = append(all, r)
		return nil
	}
	err = read()
	begun()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return all, read()
		case <-tick.C:
			err = read()
		}
	}
	return nil, fmt.Errorf("observe subflows of node %q: %w", node, err)
}

// subflowNames maps the addresses of a server to the names of their subflows.
func subflowNames(spec *scenario.Spec, node string) map[netip.Addr]string {
	e := spec.Nodes[node].Edge
	if e == nil {
		return nil
	}
	names := map[netip.Addr]string{e.Address: "best path"}
	for _, p := range e.Peers {
		names[p.Address] = p.Name
	}
	return names
}

// subflows returns the bytes acknowledged in each of n intervals from start, by address of the
// server. Between two readings the rate is assumed constant. An address without a name is named by
// its text.
func subflows(readings []reading, names map[netip.Addr]string, start time.Time, n int) []result.Subflow {
	if len(readings) == 0 {
		return nil
	}
	seen := readings[0].acked
	last := map[pair]uint64{}
	brought := map[string][]float64{}
	before := readings[0].at
	for _, r := range readings[1:] {
		for p, acked := range r.acked {
			if _, old := seen[p]; old {
				continue
			}
			name, ok := names[p.local.Addr()]
			if !ok {
				name = p.local.Addr().String()
			}
			if brought[name] == nil {
				brought[name] = make([]float64, n)
			}
			// A decreasing counter belongs to a new connection with the same addresses
			// and ports.
			added := acked
			if acked >= last[p] {
				added = acked - last[p]
			}
			last[p] = acked
			spread(brought[name], float64(added), before.Sub(start), r.at.Sub(start))
		}
		before = r.at
	}
	var list []result.Subflow
	for name, values := range brought {
		s := result.Subflow{Name: name, Bytes: make([]int64, n)}
		for i, v := range values {
			s.Bytes[i] = int64(v + 0.5)
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b result.Subflow) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// spread distributes bytes that arrived between two times over the intervals in proportion. Bytes
// outside of all intervals are not counted.
func spread(intervals []float64, bytes float64, from, to time.Duration) {
	if to <= from {
		return
	}
	for i := range intervals {
		begin, end := time.Duration(i)*interval, time.Duration(i+1)*interval
		if share := min(to, end) - max(from, begin); share > 0 {
			intervals[i] += bytes * float64(share) / float64(to-from)
		}
	}
}
