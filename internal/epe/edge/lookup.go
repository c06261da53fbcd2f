package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/selection"
)

// Routes are the paths to a destination.
type Routes struct {
	Destination netip.Prefix `json:"destination"`
	// EPE are the paths through each egress peer.
	EPE []EPERoute `json:"epe_routes"`
	// BestPaths is "leave" if the main table has no best paths of unicast routes.
	BestPaths BestPaths `json:"best_paths,omitempty"`
	// BGP are the paths of the unicast route, which the default address uses, and of the VPN routes
	// behind the EPE Routes.
	BGP []bgp.Candidate `json:"bgp"`
}

// EPERoute is a path to the longest matching prefix through one egress peer and ASBR.
type EPERoute struct {
	Peer   string       `json:"peer"`
	Prefix netip.Prefix `json:"prefix,omitzero"`
	Used   bool         `json:"used"`
	Reason string       `json:"reason"`
	RD     string       `json:"rd,omitempty"`
	SID    netip.Addr   `json:"sid,omitzero"`
}

// Routes looks up a destination. The VPN routes returned are those of the EPE Routes, and those of
// rd if it is valid.
func (e *Edge) Routes(ctx context.Context, dst netip.Prefix, rd vpn.ID) (any, error) {
	r := Routes{Destination: dst}
	if e.config.BestPaths == LeaveBestPaths {
		r.BestPaths = LeaveBestPaths
	}
	rds := []vpn.ID{rd}
	if !e.daemon.Do(ctx, func() {
		for _, p := range e.egress.peers {
			if bgp.IPOf(p.Address) != bgp.IPOf(dst.Addr()) {
				continue
			}
			r.EPE = append(r.EPE, e.egress.lookup(p, dst)...)
			_, paths := e.egress.longest(p, dst)
			for _, h := range paths {
				rds = append(rds, h.rd)
			}
		}
	}) {
		return nil, errors.New("not running")
	}
	var err error
	r.BGP, err = e.daemon.Speaker.Lookup(dst, rds...)
	return r, err
}

// lookup returns the paths of a peer to a destination, the installed one first.
func (e *egress) lookup(p *peer, dst netip.Prefix) []EPERoute {
	prefix, paths := e.longest(p, dst)
	if len(paths) == 0 {
		return []EPERoute{{Peer: p.Name, Reason: "no route covers it: the EPE address is not announced to it"}}
	}
	var all []EPERoute
	reasons := explain(paths)
	for i, h := range paths {
		route := EPERoute{Peer: p.Name, Prefix: prefix, Used: i == 0, Reason: reasons[i], RD: h.rd.String(), SID: h.sid}
		if i == 0 && !e.installed(p.index, prefix) {
			route.Used, route.Reason = false, "not in the kernel yet"
		}
		if h.draining {
			route.Reason += "; draining (GRACEFUL_SHUTDOWN)"
		}
		all = append(all, route)
	}
	return all
}

// longest returns the longest prefix that covers dst and is reachable through a peer, and its
// paths, best first.
func (e *egress) longest(p *peer, dst netip.Prefix) (netip.Prefix, []egressPath) {
	for n := range p.routes.Covering(dst) {
		if paths := e.usable(p.routes.Value(n).paths); len(paths) > 0 {
			return p.routes.Key(n).Netip(), paths
		}
	}
	return netip.Prefix{}, nil
}

// Connections is the result of Edge.Connections.
type Connections struct {
	// Connections is the number of all connections; Subflows contains those of at most limit
	// connections.
	Connections int       `json:"connections"`
	Subflows    []Subflow `json:"subflows"`
	// Remembered is what connections learned of paths, with mptcp.use: overflow or a policy, and
	// which carry no data: at most limit, the newest first.
	Remembered []Remembered `json:"remembered,omitempty"`
}

// Remembered is what connections learned of the path through an egress peer to the clients of a
// prefix. It counts for 10 minutes, or while the path rests.
type Remembered struct {
	Egress string       `json:"egress"`
	Client netip.Prefix `json:"client"`
	// Rate is what the path carried while it was saturated, for all subflows of one client that
	// shared it, MinRTT its least round-trip time; 0: not known.
	Rate   unit.Bandwidth `json:"rate"`
	MinRTT time.Duration  `json:"min_rtt_ns"`
	// Verdict is why the path last rested, "unused" if it helped since, and RestUntil when that
	// rest ends.
	Verdict   selection.Reason `json:"verdict"`
	RestUntil time.Time        `json:"rest_until,omitzero"`
	Learned   time.Time        `json:"learned"`
}

// Subflow is a subflow of a client's connection.
type Subflow struct {
	Connection string         `json:"connection"`
	Client     netip.AddrPort `json:"client"`
	Address    netip.Addr     `json:"address"`
	// Egress is the name of the egress peer, or "best path" on the default address, "main table"
	// with best_paths: leave.
	Egress  string `json:"egress"`
	Backup  bool   `json:"backup"`
	Stalled bool   `json:"stalled"`
	Parked  bool   `json:"parked"`
	// Policy is that of the connection, and Use why the subflow carries data or rests, with
	// mptcp.use: overflow or a policy.
	Policy string `json:"policy,omitempty"`
	Use    string `json:"use,omitempty"`
}

// Connections lists the subflows of at most limit connections.
func (e *Edge) Connections(ctx context.Context, limit int) (any, error) {
	if e.paths == nil {
		return nil, errors.New("the kernel's path manager does not list connections; see tabane flows")
	}
	list, n, err := e.paths.List(ctx, limit)
	if err != nil {
		return nil, err
	}
	c := Connections{Connections: n, Subflows: []Subflow{}}
	for _, s := range list {
		egress := "best path"
		if e.config.BestPaths == LeaveBestPaths {
			egress = "main table"
		}
		if s.Peer >= 0 {
			egress = e.config.Peers[s.Peer].Name
		}
		c.Subflows = append(c.Subflows, Subflow{
			Connection: fmt.Sprintf("%08x", s.Token), Client: s.Remote, Address: s.Local.Addr(), Egress: egress,
			Backup: s.Backup, Stalled: s.Stalled, Parked: s.Parked, Policy: s.Policy, Use: s.Use,
		})
	}
	paths, err := e.paths.Memory(ctx)
	if err != nil {
		return nil, err
	}
	names := map[netip.Addr]string{}
	for _, p := range e.config.Peers {
		names[p.Address] = p.Name
	}
	for _, p := range slices.Backward(paths) {
		if name := names[p.Peer]; name != "" && len(c.Remembered) < limit {
			c.Remembered = append(c.Remembered, Remembered{name, p.Client, unit.Bandwidth(8 * p.Rate), p.MinRTT, p.Verdict, p.RestUntil, p.Learned})
		}
	}
	return c, nil
}
