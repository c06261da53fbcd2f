package sealed

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// Status returns what the plane does now.
func (p *Plane) Status() dataplane.Status {
	lines, peers := p.configured()
	s := dataplane.Status{Received: p.counts.received.value(), Delivered: p.counts.delivered.value(), Dropped: map[string]uint64{}}
	for r, name := range reasonNames {
		if n := p.counts.dropped[r].Load(); n > 0 {
			s.Dropped[name] = n
		}
	}
	for _, l := range lines {
		s.Paths = append(s.Paths, l.status())
	}
	now := p.now()
	for _, r := range peers {
		state, relays := r.status(now)
		s.Peers, s.Relays = append(s.Peers, state), append(s.Relays, relays...)
	}
	slices.SortFunc(s.Relays, func(a, b dataplane.RelayStatus) int { return compare(a.Leader, b.Leader) })
	slices.SortFunc(s.Peers, func(a, b dataplane.PeerStatus) int { return compare(a.Name, b.Name) })
	return s
}

// configured returns the paths and peers.
func (p *Plane) configured() ([]*line, []*peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines), slices.Collect(maps.Values(p.peers))
}

// status returns the state of the path.
func (l *line) status() dataplane.PathStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return dataplane.PathStatus{
		Name: l.name, Interface: l.device, Usable: l.conf.Load().Usable, Sent: l.sent.value(), Received: l.received.value(), Carried: l.carried.Load(), Error: l.err,
	}
}

// resting returns why a spare path carries no packets.
func resting(u dataplane.Use) string {
	if u.Spent {
		return "its quota is used up"
	}
	return "backup: another line carries the packets"
}

func compare(a, b string) int { return cmp.Compare(a, b) }

// status returns the state of the peer, and what is relayed for it.
func (r *peer) status(now time.Duration) (s dataplane.PeerStatus, relays []dataplane.RelayStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = dataplane.PeerStatus{Name: r.conf.Name, Role: r.conf.Alliance.Role, Mode: r.conf.Mode, Epoch: r.session.epoch}
	if s.Role == dataplane.Leader {
		relays = []dataplane.RelayStatus{r.relaying.status(now)}
	}
	if k := r.session.sending; k != nil {
		s.Up, s.Suite, s.Since, s.Handshake = true, suite(k.Session), now-r.session.since, now-r.session.keysSince
	} else {
		s.Reason = "no response"
		if !r.numbering.owner && !r.links[0].address.remote.IsValid() {
			s.Reason = "the peer has not begun, and has no endpoints here"
		} else if len(r.conf.Endpoints) > 0 {
			s.Reason = fmt.Sprintf("no response from %v", r.conf.Endpoints[0])
		}
	}
	if r.session.repeated(now) {
		s.Reason = tooMany
	}
	names := r.links.names()
	r.rx.Lock()
	defer r.rx.Unlock()
	// carries are the paths that any rule may use, rests those of them that auto does not.
	var carries, rests sched.Set
	s.Links, carries, rests = r.linksStatusLocked(names, now)
	if x := &r.rx; x.order.receiver != nil {
		st := x.order.receiver.Stats()
		s.Held, s.Late, s.Duplicates, s.Skipped = st.Held, st.Late, st.Duplicates, st.Named+st.Passed+st.Expired+st.Forced
	}
	s.Policies = r.rulesStatusLocked(names, carries, rests)
	return s, relays
}

// linksStatusLocked returns the state of the paths, those that carry packets, and those of them that
// auto does not use. The caller holds the mutexes of the peer and of what it receives.
func (r *peer) linksStatusLocked(names []string, now time.Duration) (list []dataplane.LinkStatus, carries, rests sched.Set) {
	shortest := time.Duration(math.MaxInt64)
	for i := range r.scheduling.paths {
		if r.scheduling.paths[i].Usable {
			shortest = min(shortest, r.scheduling.paths[i].Delay)
		}
	}
	for i := range r.links {
		l := &r.links[i]
		if l.line == nil {
			continue
		}
		x := &r.rx.links[i]
		ls := dataplane.LinkStatus{
			Path: names[i], Line: l.line.name, Meets: r.matching.meets(l), Endpoint: l.address.remote, Seen: l.nat.seen, State: r.stateLocked(l, now), Sent: l.sent.value(),
			Member: l.line.conf.Load().Member, CareOf: l.registration.careOf, Reason: l.registration.reason,
			Received: dataplane.Count{Packets: x.packets, Bytes: x.bytes}, RTT: l.probing.rtt.SRTT, Jitter: l.reports.last.Jitter, Spread: l.reports.last.Spread,
			Loss: l.lossShare(), Lost: l.reports.lost, Missed: x.missed, Rate: l.knownRate(), MTU: l.search.mtu,
		}
		asked := ls.Member != "" && r.conf.Alliance.Role == dataplane.Member
		switch x := &l.registration; {
		case x.until > now:
			ls.Lifetime = x.until - now
		case asked && r.memberRequest.until > now:
			ls.Lifetime = r.memberRequest.until - now
		case asked:
			ls.Reason = r.memberRequest.reason
		}
		if i < len(r.scheduling.paths) && r.scheduling.paths[i].Usable {
			if d := &r.selection.decision; r.scheduling.paths[i].Resting {
				ls.Resting = d.Explain(names)
				rests |= sched.One(i)
			}
			ls.Delay, ls.Queue = r.scheduling.paths[i].Delay-shortest, r.scheduling.queues.Wait(i, now)
		}
		if ls.Use = r.uses.of(i); l.spare && ls.State == "up" {
			ls.Resting = resting(ls.Use)
		} else if ls.State == "up" {
			carries |= sched.One(i)
		}
		list = append(list, ls)
	}
	return list, carries, rests
}

// stateLocked returns the state of a path with a line. The caller holds the mutex of the peer.
func (r *peer) stateLocked(l *link, now time.Duration) string {
	switch {
	case !l.line.conf.Load().Usable || l.line.socket.Load() == nil:
		return "down"
	case r.session.sending != nil && l.probing.alive.Alive() && !r.registering.allows(l, now):
		return "unregistered"
	case r.session.sending != nil && l.probing.alive.Alive():
		return "up"
	case l.probing.alive.Proven():
		return "dead"
	}
	return "unproven"
}

// rulesStatusLocked returns what each rule uses and has sent. The caller holds the mutex of the peer.
func (r *peer) rulesStatusLocked(names []string, carries, rests sched.Set) (list []dataplane.RuleStatus) {
	for i := range r.policy.rules {
		u := &r.policy.rules[i]
		st := dataplane.RuleStatus{Rule: i, Discipline: u.discipline.String(), Sent: u.sent, Copies: u.copies}
		using := u.used & carries
		if u.discipline.Name == dataplane.Auto && r.session.sending != nil {
			st.Because = r.selection.decision.Explain(names)
			using &^= rests
		}
		for j := range r.links {
			if using.Has(j) {
				st.Using = append(st.Using, names[j])
			}
		}
		list = append(list, st)
	}
	return list
}
