package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/flows"
)

const (
	// bestPath is the name of a server's default address, whose subflows follow BGP's best path.
	bestPath = "best path"
	// other is the name of traffic that is neither of an egress peer nor of the best path.
	other = "other"
)

// series is the rate over a path, oldest sample first, in bits per second on the wire.
type series struct {
	Path string `json:"path"`
	// Out is towards the clients, In from them.
	Out []float64 `json:"out"`
	In  []float64 `json:"in"`
}

// subflow is a flow with its rate in the last interval.
type subflow struct {
	Path       string         `json:"path"`
	Connection string         `json:"connection,omitempty"` // MPTCP token
	Protocol   string         `json:"protocol"`
	Local      netip.AddrPort `json:"local"`
	Remote     netip.AddrPort `json:"remote"`
	Rate       float64        `json:"rate"` // bits per second on the wire
	// RTT is in milliseconds, Window in segments; 0 if the socket is not of this host.
	RTT           float64 `json:"rtt,omitempty"`
	Window        uint32  `json:"window,omitempty"`
	Retransmitted uint32  `json:"retransmitted,omitempty"`
	Backup        bool    `json:"backup,omitempty"`
}

// rates is the history of the rate over each path, and the latest subflows.
type rates struct {
	// addresses are those of a server's paths, sids those of a border router's.
	addresses, sids map[netip.Addr]string
	paths           map[string]*ring
	subflows        []subflow
	left            int
}

// ring holds the last samples of a path.
type ring struct {
	out, in []float64
}

func newRates() rates {
	return rates{addresses: map[netip.Addr]string{}, sids: map[netip.Addr]string{}, paths: map[string]*ring{}, subflows: []subflow{}}
}

// rename replaces the names of paths by those of the daemons' latest statuses.
func (r *rates) rename(daemons []daemon) {
	clear(r.addresses)
	clear(r.sids)
	for i := range daemons {
		r.name(&daemons[i].status)
	}
}

// name adds the paths of a status.
func (r *rates) name(s *status) {
	named := false
	for _, p := range s.Peers {
		if p.Address.IsValid() {
			r.addresses[p.Address], named = p.Name, true
		}
		if p.SID.IsValid() {
			r.sids[p.SID] = p.Name
		}
	}
	if named && s.Address.IsValid() {
		r.addresses[s.Address] = bestPath
	}
}

// path returns the path of a flow, and whether its packets are on their way to the clients. A
// border router receives them with the SID of the path. Packets that it forwards without one
// belong to no path.
func (r *rates) path(f *flows.Flow) (path string, out, ok bool) {
	if f.Routing() {
		return "", false, false
	}
	if name, ok := r.sids[f.SID]; ok && !f.Sent {
		return name, true, true
	}
	if name, ok := r.addresses[f.Local.Addr().Unmap()]; ok {
		return name, f.Sent, true
	}
	return other, f.Sent, len(r.addresses) > 0
}

// add adds a sample of each path.
func (r *rates) add(s *flows.Snapshot) {
	current := map[string]bool{}
	for _, name := range slices.Concat(slices.Collect(maps.Values(r.addresses)), slices.Collect(maps.Values(r.sids))) {
		current[name] = true
		if r.paths[name] == nil {
			r.paths[name] = &ring{}
		}
	}
	type sum struct{ out, in float64 }
	sums := map[string]sum{}
	r.subflows = r.subflows[:0:0]
	for _, f := range s.Flows {
		path, out, ok := r.path(f)
		rate := f.BitsPerSecond(s.Elapsed)
		if !ok || rate == 0 && path == other {
			continue
		}
		total := sums[path]
		if out {
			total.out += rate
			r.subflows = append(r.subflows, describe(f, path, rate))
		} else {
			total.in += rate
		}
		sums[path] = total
		if r.paths[path] == nil {
			r.paths[path] = &ring{}
		}
	}
	for name, p := range r.paths {
		p.add(sums[name].out, sums[name].in)
		if !current[name] && p.idle() {
			delete(r.paths, name)
		}
	}
	slices.SortStableFunc(r.subflows, func(a, b subflow) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Connection, b.Connection), a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
	})
	r.left = max(0, len(r.subflows)-maxSubflows)
	r.subflows = r.subflows[: len(r.subflows)-r.left : len(r.subflows)-r.left]
}

func describe(f *flows.Flow, path string, rate float64) subflow {
	one := subflow{Path: path, Protocol: f.Protocol, Local: f.Local, Remote: f.Remote, Rate: rate}
	if t := f.Token(); t != 0 {
		one.Connection = fmt.Sprintf("%08x", t)
	}
	if s, _ := f.Socket(); s != nil {
		one.RTT = float64(s.RTT) / float64(time.Millisecond)
		one.Window, one.Retransmitted, one.Backup = s.Window, s.Retransmitted, s.BackupHere || s.BackupThere
	}
	return one
}

// add appends a sample, which replaces the oldest one when the ring is full.
func (r *ring) add(out, in float64) {
	if len(r.out) == samples {
		r.out, r.in = append(r.out[:0], r.out[1:]...), append(r.in[:0], r.in[1:]...)
	}
	r.out, r.in = append(r.out, out), append(r.in, in)
}

// idle reports whether all samples are 0.
func (r *ring) idle() bool { return slices.Max(r.out) == 0 && slices.Max(r.in) == 0 }

// series returns a copy of all paths in the order of their names, the best path and other traffic
// last.
func (r *rates) series() []series {
	all := []series{}
	for name, p := range r.paths {
		all = append(all, series{Path: name, Out: slices.Clone(p.out), In: slices.Clone(p.in)})
	}
	last := func(s series) int {
		switch s.Path {
		case bestPath:
			return 1
		case other:
			return 2
		}
		return 0
	}
	slices.SortFunc(all, func(a, b series) int { return cmp.Or(last(a)-last(b), cmp.Compare(a.Path, b.Path)) })
	return all
}
