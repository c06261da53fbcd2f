package bgp

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// maxBatch is the maximum length of a batch, which keeps a reader responsive, and is formed with
// the speaker's mu held.
const maxBatch = 2048

// reader forms the events. Events of routes are formed from the current state when the reader of
// events is ready for them, so there is no queue of them. Callers hold the speaker's mu, except for
// wake.
type reader struct {
	speaker *Speaker
	best    [families]*rib.Consumer
	adjIn   []*neighbor // with consumers in neighbor.readers
	notices []notice
	signal  chan struct{}
	// shared holds the attributes of recent events, which share their slices. The last ones are
	// mostly those of the next event too.
	shared map[*message.Attributes]Attributes
	last   *message.Attributes
	lastAs Attributes
}

// notice is an event of a session, which follows the events of the routes that changed before.
type notice struct {
	event     Event
	neighbor  *neighbor
	barriers  []passing
	delivered func()
}

// passing is a point that a consumer must have passed.
type passing struct {
	*rib.Consumer
	at rib.Barrier
}

func newReader(s *Speaker) reader {
	r := reader{speaker: s, signal: make(chan struct{}, 1), shared: map[*message.Attributes]Attributes{}}
	for f := IPv4Unicast; f < families; f++ {
		if s.opt.Report&ReportVPN != 0 && f.VPN() || s.opt.Report&ReportUnicast != 0 && !f.VPN() {
			r.best[f] = s.rib.NewConsumer(f, r.wake)
		}
	}
	return r
}

func (r *reader) wake() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// up reports that a session is up, before any of its routes.
func (r *reader) up(n *neighbor) {
	if n.readers != [families]*rib.Consumer{} {
		r.adjIn = append(r.adjIn, n)
	}
	r.notices = append(r.notices, notice{event: Session{Neighbor: n.conf.Name, Up: true}, neighbor: n})
	r.wake()
}

// barriers returns the current point of each consumer.
func (r *reader) barriers(n *neighbor) []passing {
	var all []passing
	for _, list := range [][families]*rib.Consumer{r.best, n.readers} {
		for _, c := range list {
			if c != nil {
				all = append(all, passing{c, c.Barrier()})
			}
		}
	}
	return all
}

// endOfRIB reports an End-of-RIB, after the routes before it, unless one of the same family and
// session is still to be reported: a neighbor may send any number of them.
func (r *reader) endOfRIB(n *neighbor, f Family) {
	for _, pending := range slices.Backward(r.notices) {
		if pending.neighbor != n {
			continue
		}
		end, ok := pending.event.(EndOfRIB)
		if !ok {
			break
		}
		if end.Family == f {
			return
		}
	}
	r.notices = append(r.notices, notice{event: EndOfRIB{Neighbor: n.conf.Name, Family: f}, neighbor: n, barriers: r.barriers(n)})
	r.wake()
}

// down reports the end of a session, after the withdrawals of its routes.
func (r *reader) down(n *neighbor, reason string) {
	name, delivered := n.conf.Name, make(chan struct{})
	r.speaker.ending[name] = delivered
	r.notices = append(r.notices, notice{
		event: Session{Neighbor: name, Reason: reason}, neighbor: n, barriers: r.barriers(n),
		delivered: func() {
			for f, c := range n.readers {
				if c != nil {
					c.Close()
					n.readers[f] = nil
				}
			}
			r.adjIn = slices.DeleteFunc(r.adjIn, func(other *neighbor) bool { return other == n })
			n.freeSource()
			if r.speaker.ending[name] == delivered {
				delete(r.speaker.ending, name)
			}
			close(delivered)
		},
	})
	r.wake()
}

// due appends the notices whose time has come. Those of one session stay in order.
func (r *reader) due(events []Event) []Event {
	waiting := r.notices[:0]
	for _, n := range r.notices {
		blocked := slices.ContainsFunc(n.barriers, func(p passing) bool { return !p.Passed(p.at) }) ||
			slices.ContainsFunc(waiting, func(other notice) bool { return other.neighbor == n.neighbor })
		if blocked {
			waiting = append(waiting, n)
			continue
		}
		events = append(events, n.event)
		if n.delivered != nil {
			n.delivered()
		}
	}
	clear(r.notices[len(waiting):])
	r.notices = waiting
	return events
}

// collect returns the next events, at most about maxBatch, and whether there may be more. There may
// be more even if it returns none: routes that were withdrawn before they were reported have no
// event.
func (r *reader) collect() (events []Event, more bool) {
	events = r.due(nil)
	left := maxBatch
	pull := func(c *rib.Consumer, urgent bool, take func(rib.Item) bool) {
		switch {
		case c == nil:
		case !urgent:
			events = slices.Grow(events, min(left, c.Pending()))
			left -= c.Pull(left, take)
		case c.Urgent():
			left -= c.PullUrgent(left, take)
		}
	}
	for _, urgent := range []bool{true, false} {
		for _, n := range r.adjIn {
			for _, c := range n.readers {
				pull(c, urgent, func(item rib.Item) bool { return r.update(&events, n, item) })
			}
		}
		for f, c := range r.best {
			if Family(f).VPN() {
				pull(c, urgent, func(item rib.Item) bool { return r.vpn(&events, item) })
			} else {
				pull(c, urgent, func(item rib.Item) bool { return r.unicast(&events, item) })
			}
		}
	}
	if len(events) == 0 {
		events = r.due(nil)
	}
	return events, left < maxBatch
}

// update appends the event of a route of the Adj-RIB-In.
func (r *reader) update(events *[]Event, n *neighbor, item rib.Item) (held bool) {
	u := Update{Neighbor: n.conf.Name, Prefix: item.Key.Prefix()}
	defer func() {
		if value := recover(); value != nil {
			held = r.withdrawn(value, events, item, Update{Neighbor: u.Neighbor, Prefix: u.Prefix, Withdrawn: true})
		}
	}()
	contain.PointAt(contain.BGPRoute, item.Key)
	switch p := item.Path; {
	case p.Received == 0 && !item.Held:
		return false
	case p.Received == 0:
		u.Withdrawn = true
	case p.Accepted == 0:
		a := r.speaker.rib.Attributes(p.Received)
		_, u.Rejected = n.importer.evaluate(n.importer.classify(item.Key.Family(), a), item.Key, p.Label)
	default:
		a := r.speaker.rib.Attributes(p.Accepted)
		u.NextHop, u.Attributes = n.nextHop(item.Key.Family(), a), r.attributes(a)
	}
	*events = append(*events, u)
	return !u.Withdrawn && u.Rejected == nil
}

// withdrawn reports a route as withdrawn after a panic. The reader of events does not have it then.
func (r *reader) withdrawn(value any, events *[]Event, item rib.Item, event Event) (held bool) {
	_ = r.speaker.contained(value, item.Key) // it is logged
	if item.Held {
		*events = append(*events, event)
	}
	return false
}

// unicast appends the event of a best path.
func (r *reader) unicast(events *[]Event, item rib.Item) (held bool) {
	if item.Path.Received == 0 && !item.Held {
		return false
	}
	defer func() {
		if value := recover(); value != nil {
			held = r.withdrawn(value, events, item, UnicastPath{Prefix: item.Key.Prefix(), Number: item.Number, Withdrawn: true})
		}
	}()
	contain.PointAt(contain.BGPRoute, item.Key)
	u := r.unicastPath(item.Key, item.Path)
	u.Number = item.Number
	*events = append(*events, u)
	return !u.Withdrawn
}

// vpn appends the event of a best path.
func (r *reader) vpn(events *[]Event, item rib.Item) (held bool) {
	if item.Path.Received == 0 && !item.Held {
		return false
	}
	defer func() {
		if value := recover(); value != nil {
			held = r.withdrawn(value, events, item, VPNPath{RD: item.Key.RD(), Prefix: item.Key.Prefix(), Withdrawn: true})
		}
	}()
	contain.PointAt(contain.BGPRoute, item.Key)
	v := r.vpnPath(item.Key, item.Path)
	*events = append(*events, v)
	return !v.Withdrawn
}

// unicastPath is the event of a best path; it is withdrawn if there is none.
func (r *reader) unicastPath(k message.Key, p rib.Path) UnicastPath {
	u := UnicastPath{Prefix: k.Prefix(), Withdrawn: p.Received == 0}
	if u.Withdrawn {
		return u
	}
	a := r.speaker.rib.Attributes(p.Accepted)
	u.Attributes = r.attributes(a)
	if n := r.speaker.sources[p.Source]; n != nil {
		u.Neighbor, u.NextHop = n.conf.Name, n.nextHop(k.Family(), a)
	} else if u.Local, u.NextHop = true, a.NextHop(); !u.NextHop.IsValid() {
		u.NextHop = netip.IPv6Unspecified()
		if k.Family().Is4() {
			u.NextHop = netip.IPv4Unspecified()
		}
	}
	return u
}

// vpnPath is the event of a best path; it is withdrawn if there is none.
func (r *reader) vpnPath(k message.Key, p rib.Path) VPNPath {
	v := VPNPath{RD: k.RD(), Prefix: k.Prefix(), Withdrawn: p.Received == 0}
	if v.Withdrawn {
		return v
	}
	a := r.speaker.rib.Attributes(p.Accepted)
	v.Attributes, v.RTs, v.NextHop = r.attributes(a), a.Targets(), a.NextHop()
	if n := r.speaker.sources[p.Source]; n != nil {
		v.Neighbor = n.conf.Name
	} else {
		v.Local = true
	}
	if len(v.RTs) == 0 {
		v.Rejected = message.Reject(RejectNoTarget, "no route target")
		return v
	}
	service := a.Service()
	v.SID, v.Rejected = service.SID(p.Label)
	v.Structure, v.Behavior = service.Structure, service.Behavior
	if v.Rejected == nil && v.Prefix == LoadPrefix(v.SID) {
		v.Load = loadOf(a.Fields().Extended)
	}
	return v
}

// nextHop returns the next hop of a route of the neighbor, with the zone of a link-local one.
func (n *neighbor) nextHop(f Family, a *message.Attributes) netip.Addr {
	hop := nextHop(f, a, n.key)
	if hop.Is6() && hop.IsLinkLocalUnicast() {
		return hop.WithZone(n.conf.Interface)
	}
	return hop
}

// nextHop returns the next hop of a route of a neighbor: in a session between link-local addresses,
// the link-local one (RFC 2545 section 3), because the other one may not be reachable. An
// IPv4-mapped one of IPv4 routes is the IPv4 address.
func nextHop(f Family, a *message.Attributes, neighbor netip.Addr) netip.Addr {
	if local := a.LinkLocal(); local.IsValid() && neighbor.IsLinkLocalUnicast() {
		return local
	}
	if f.Is4() {
		return a.NextHop().Unmap()
	}
	return a.NextHop()
}

// maxShared bounds reader.shared.
const maxShared = 4096

// attributes converts attributes for events.
func (r *reader) attributes(a *message.Attributes) Attributes {
	if a == r.last {
		return r.lastAs
	}
	if known, ok := r.shared[a]; ok {
		r.last, r.lastAs = a, known
		return known
	}
	out := Attributes{ASPath: a.ASPath(), Origin: a.Origin(), Communities: a.Communities().Slice()}
	out.LocalPref, _ = a.LocalPref()
	out.MED, out.HasMED = a.MED()
	if len(r.shared) >= maxShared {
		clear(r.shared)
	}
	r.shared[a], r.last, r.lastAs = out, a, out
	return out
}

// collect is that of the reader, for callers that do not hold mu.
func (s *Speaker) collect() (events []Event, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.collect()
}

// deliver passes events to the reader until Stop.
func (s *Speaker) deliver() {
	for {
		events, more := s.collect()
		if len(events) == 0 {
			if more {
				continue
			}
			select {
			case <-s.reader.signal:
				continue
			case <-s.done:
				return
			}
		}
		select {
		case s.events <- events:
		case <-s.done:
			return
		}
	}
}

// someVPN appends the next best paths of a family to list, and returns where to go on; 0: nowhere.
func (s *Speaker) someVPN(f Family, at uint32, list []VPNPath) ([]VPNPath, uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = s.rib.Best(f, at, slice, func(k message.Key, p rib.Path) { list = append(list, s.reader.vpnPath(k, p)) })
	return list, at
}

// BestVPN calls f for the current best path to each VPN destination.
func (s *Speaker) BestVPN(f func(VPNPath)) {
	for family := IPv4Unicast; family < families; family++ {
		if !family.VPN() {
			continue
		}
		var part []VPNPath
		for at := uint32(0); ; {
			part, at = s.someVPN(family, at, part[:0])
			for _, p := range part {
				f(p)
			}
			if at == 0 {
				break
			}
		}
	}
}
