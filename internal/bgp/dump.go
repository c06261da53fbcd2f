package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// View is a table of routes.
type View string

const (
	// ReceivedRoutes are those that neighbors advertise, before policy (Adj-RIB-In).
	ReceivedRoutes View = "received"
	// AcceptedRoutes are those of them that the import policy accepts, as it changes them, and
	// those that this speaker originates (Loc-RIB).
	AcceptedRoutes View = "accepted"
	// AdvertisedRoutes are those that neighbors are sent (Adj-RIB-Out).
	AdvertisedRoutes View = "advertised"
)

// Views are all views.
var Views = []View{ReceivedRoutes, AcceptedRoutes, AdvertisedRoutes}

// Filter selects routes of a table; what is not set selects all.
type Filter struct {
	View     View
	Neighbor string // name or address
	RT, RD   vpn.ID
	Within   netip.Prefix // these prefixes and longer ones inside
}

// RouteEntry is a route of a table.
type RouteEntry struct {
	Prefix   netip.Prefix `json:"prefix"`
	RD       string       `json:"rd,omitempty"`
	Family   string       `json:"family"`
	Neighbor string       `json:"neighbor"` // "local" for a route of this speaker
	// State is best, accepted, refused, unused or advertised, and Reason why it is refused or
	// unused.
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Stale     bool       `json:"stale,omitempty"` // retained from a session that has ended
	NextHop   netip.Addr `json:"next_hop,omitzero"`
	SID       netip.Addr `json:"sid,omitzero"`
	RTs       []string   `json:"rts,omitempty"`
	LocalPref uint32     `json:"local_pref"`
	MED       uint32     `json:"med"`
	ASPath    string     `json:"as_path"`
}

// dumpSlice is the number of routes that are described with mu held.
const dumpSlice = 256

// Dump calls yield for each route of a table, without a lock, and ends with its error. Routes that
// change meanwhile may be missing.
func (s *Speaker) Dump(f Filter, yield func(RouteEntry) error) error {
	if !slices.Contains(Views, f.View) {
		return fmt.Errorf("dump routes: unknown table %q", f.View)
	}
	s.mu.Lock()
	var neighbors []*neighbor
	for _, n := range s.neighbors {
		if f.Neighbor == "" || n.is(f.Neighbor) {
			neighbors = append(neighbors, n)
		}
	}
	s.mu.Unlock()
	if f.Neighbor != "" && len(neighbors) == 0 {
		return fmt.Errorf("dump routes of neighbor %q: unknown neighbor", f.Neighbor)
	}
	slices.SortFunc(neighbors, func(a, b *neighbor) int { return strings.Compare(a.conf.Name, b.conf.Name) })
	d := dumper{speaker: s, Filter: f, yield: yield}
	if f.View == AcceptedRoutes && f.Neighbor == "" {
		if err := d.source(func() rib.Source { return rib.Local }, nil); err != nil {
			return err
		}
	}
	for _, n := range neighbors {
		var err error
		if f.View == AdvertisedRoutes {
			err = d.advertised(n)
		} else {
			err = d.source(func() rib.Source { return n.source }, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// is reports whether a neighbor has a name or an address.
func (n *neighbor) is(name string) bool { return n.conf.Name == name || n.key.String() == name }

// dumper is a Dump in progress.
type dumper struct {
	speaker *Speaker
	Filter
	yield func(RouteEntry) error
	part  []RouteEntry
}

// walk calls step with mu held, from one index on to the next, until that is 0, and yields in
// between what it added.
func (d *dumper) walk(step func(from uint32) (next uint32)) error {
	for at := uint32(0); ; {
		at = d.locked(step, at)
		for _, r := range d.part {
			if err := d.yield(r); err != nil {
				return err
			}
		}
		if at == 0 {
			return nil
		}
	}
}

// locked calls step with mu held, which is unlocked also if a route makes it panic.
func (d *dumper) locked(step func(from uint32) (next uint32), from uint32) (next uint32) {
	d.part = d.part[:0]
	d.speaker.mu.Lock()
	defer d.speaker.mu.Unlock()
	return step(from)
}

// source dumps the routes of a neighbor, or those of this speaker if it is nil. of is called with
// mu held: the source of a neighbor changes.
func (d *dumper) source(of func() rib.Source, n *neighbor) error {
	for f := IPv4Unicast; f < families; f++ {
		if err := d.walk(func(from uint32) uint32 {
			source := of()
			if n != nil && source == rib.Local {
				return 0
			}
			return d.speaker.rib.Each(f, source, from, dumpSlice, func(r rib.Route) { d.add(n, r) })
		}); err != nil {
			return err
		}
	}
	return nil
}

// add adds a route of a neighbor, or of this speaker.
func (d *dumper) add(n *neighbor, r rib.Route) {
	if d.View == AcceptedRoutes && r.Accepted == 0 {
		return
	}
	a := d.speaker.rib.Attributes(r.Received)
	if d.View == AcceptedRoutes {
		a = d.speaker.rib.Attributes(r.Accepted)
	}
	if !d.selects(r.Key, a) {
		return
	}
	e := entry(r.Key, r.Label, a)
	e.Stale = r.Stale
	if n == nil {
		e.Neighbor, e.NextHop = "local", a.NextHop()
	} else {
		e.Neighbor, e.NextHop = n.conf.Name, n.nextHop(r.Key.Family(), a)
	}
	switch {
	case r.Best:
		e.State = "best"
	case r.Accepted != 0:
		e.State = "accepted"
	default:
		e.State = "refused"
		reason := d.speaker.reasons[r.Reason]
		if Unused(reason) {
			e.State = "unused"
		}
		e.Reason = n.importer.refusal(r, a, reason)
	}
	d.part = append(d.part, e)
}

// refusal describes why a route is refused. Where the policy has panicked, it is not evaluated
// again.
func (m *importer) refusal(r rib.Route, a *message.Attributes, reason RejectReason) string {
	if reason == rejectPanic {
		return errPanic.Error()
	}
	if _, err := m.evaluate(m.classify(r.Key.Family(), a), r.Key, r.Label); err != nil {
		return err.Error()
	}
	return string(reason)
}

// advertised dumps what a neighbor is sent.
func (d *dumper) advertised(n *neighbor) error {
	for f := IPv4Unicast; f < families; f++ {
		var b batch
		if err := d.walk(func(from uint32) uint32 {
			c := n.feed.consumers[f]
			if c == nil {
				return 0
			}
			return c.Each(from, dumpSlice, func(item rib.Item) {
				p := item.Path
				if p.Received == 0 {
					return // its withdrawal is on the way
				}
				a, from := d.speaker.rib.Attributes(p.Accepted), n.speaker.originOf(p.Source)
				rules, ok := b.evaluate(n.exporter.Export.Rules, a, item.Key)
				if !ok || !n.exporter.admits(item.Key, a, from) {
					return
				}
				if fields, ok := n.exporter.fields(f, a, from, rules); ok && d.selects(item.Key, a) {
					sent := d.speaker.interner.Intern(fields)
					e := entry(item.Key, p.Label, sent)
					e.Neighbor, e.State, e.NextHop = n.conf.Name, "advertised", fields.NextHop
					d.part = append(d.part, e)
				}
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

// selects reports whether the filter selects a route.
func (d *dumper) selects(k message.Key, a *message.Attributes) bool {
	switch {
	case d.RD.IsValid() && (!k.Family().VPN() || k.RD() != d.RD):
		return false
	case d.RT.IsValid() && !slices.Contains(a.Targets(), d.RT):
		return false
	}
	return !d.Within.IsValid() || Inside([]netip.Prefix{d.Within}, k.Prefix())
}

// entry describes a route with these attributes.
func entry(k message.Key, label uint32, a *message.Attributes) RouteEntry {
	e := RouteEntry{Prefix: k.Prefix(), Family: k.Family().String(), LocalPref: rib.LocalPref(a), ASPath: a.ASPath().String()}
	e.MED, _ = a.MED()
	if k.Family().VPN() {
		e.RD = k.RD().String()
		e.SID, _ = a.Service().SID(label)
		for _, rt := range a.Targets() {
			e.RTs = append(e.RTs, rt.String())
		}
	}
	return e
}
