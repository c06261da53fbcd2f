package sealed

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// pathBuffer bounds the virtual queue: a modem's buffer is seldom longer.
const pathBuffer = time.Second

// beginBuffer bounds the virtual queue of a path whose rate is not known yet, to which packets are
// not paced. It has paths of about the same delay take turns, so that all of them are filled; a
// longer one waits until the rate of the shorter one is known.
const beginBuffer = 5 * time.Millisecond

// baseJitters is by how many times the jitter the mean delay of a path without a queue is longer
// than its least one, at most.
const baseJitters = 3

// scheduling is what schedulers see of the links.
type scheduling struct {
	peer   *peer
	paths  []sched.Path // one for each link, up to the last usable one
	queues sched.Queues
	mtu    int // largest packet that all usable links carry
	// refreshed is when paths were last brought up to date, outdated: records have changed links
	// since.
	refreshed time.Duration
	outdated  bool
}

// refresh brings what schedulers see up to date.
func (x *scheduling) refresh() {
	x.paths = x.paths[:tunnel.MaxPaths]
	x.mtu = 0
	highest := 0
	now := x.peer.plane.now()
	usable := x.usable(now)
	x.refreshed, x.outdated = now, false
	for i := range x.peer.links {
		l, p := &x.peer.links[i], &x.paths[i]
		p.Usable = usable.Has(i)
		x.peer.uses.apply(i, p.Usable)
		if !p.Usable {
			continue
		}
		highest = i + 1
		p.Rate, p.Cost, p.Buffer = l.upRate(), l.cost, pathBuffer
		// Packets of open peers do not pass here, but for a few.
		l.shaped = p.Rate > 0 && p.Rate <= MaxShaped && !x.peer.conf.Mode.Open()
		if c := l.configuredRate(); x.peer.prober.intervals.Compatible && c > 0 {
			// As in paper D: the rate is that of the registration, and the queue is in the path.
			p.Rate, l.shaped = c, false
		}
		if l.shaped {
			if l.queue == nil {
				l.queue = newShaper(x.peer.plane, &x.peer.pacing.signals)
			}
			l.queue.Set(l.pace())
		}
		p.Delay, p.Jitter, p.SRTT = l.reports.last.Delay, l.reports.last.Jitter, l.probing.rtt.SRTT
		if !l.reports.received {
			p.Delay = l.probing.rtt.SRTT / 2
		}
		if l.paced = l.shaped && l.pace() <= p.Rate; l.shaped && !l.paced && l.rates.capacity.Begins() {
			l.begin(p)
		}
		p.Loss = int(l.lossShare() * 1e6)
		if m := l.mtu(); x.mtu == 0 || m < x.mtu {
			x.mtu = m
		}
	}
	// All report their delay in the peer's time, or none does.
	for i := range x.peer.links {
		if x.paths[i].Usable && !x.peer.links[i].reports.received {
			for j := range x.peer.links {
				x.paths[j].Delay = x.peer.links[j].probing.rtt.SRTT / 2
			}
			break
		}
	}
	if x.peer.prober.intervals.Compatible {
		x.byProbes()
	}
	x.paths = x.paths[:max(highest, 1)]
	for i := range x.paths {
		if x.paths[i].Usable && x.peer.links[i].shaped {
			x.peer.links[i].queue.SetLag(sched.Lag(x.paths, i, pacer.MostLag()))
			x.peer.links[i].queue.SetRTT(x.peer.links[i].probing.rtt.SRTT)
		}
	}
	x.peer.selection.version++
	if x.mtu == 0 {
		x.mtu = baseMTU // no path is usable
	}
	x.mtu = max(x.mtu, leastMTU)
	x.peer.rx.clamp.Store(int32(x.mtu))
	x.reportMeasured()
}

// carrying returns those of a set of paths that carry a packet of n bytes whole; if none does, the
// usable one that does and on which it arrives first; if there is none either, the set.
func (x *scheduling) carrying(set sched.Set, n int, now time.Duration) sched.Set {
	fit, best, arrives := set, -1, time.Duration(0)
	for i := range x.paths {
		p, l := &x.paths[i], &x.peer.links[i]
		if !p.Usable || l.mtu() < n {
			fit &^= sched.One(i)
			continue
		}
		if at := x.wait(i, now) + p.Delay; best < 0 || at < arrives {
			best, arrives = i, at
		}
	}
	switch {
	case best < 0:
		return set
	case fit == 0:
		return sched.One(best)
	}
	return fit
}

// begin has a path whose rate is not known yet filled beside others, until it shows its rate.
func (l *link) begin(p *sched.Path) {
	p.Buffer = beginBuffer
	if l.reports.received {
		// What is more than the jitter of the path is a queue on the line, of this gateway's own
		// packets: a path that was avoided for it would not be full for long enough.
		p.Delay = min(p.Delay, l.reports.last.Base+baseJitters*p.Jitter)
	}
}

// usable returns the paths that packets are sent on: those that answer, without backups unless
// there is no other one; while no path answers, those that did.
func (x *scheduling) usable(now time.Duration) sched.Set {
	if x.peer.session.sending == nil {
		return 0
	}
	var regular, backup, proven sched.Set
	carry := false // a regular one does: it may have a rate of 0
	for i := range x.peer.links {
		l, u := &x.peer.links[i], x.peer.uses.of(i)
		switch alive := &l.probing.alive; {
		case u.Spent || !l.ready() || !l.line.conf.Load().Usable || !x.peer.registering.allows(l, now):
		case alive.Alive() && u.Backup && !(u.Full && x.peer.uses.overflow.Carries()):
			backup |= sched.One(i)
		case alive.Alive():
			regular |= sched.One(i)
			carry = carry || l.upRate() > 0
		case alive.Proven():
			proven |= sched.One(i)
		}
	}
	if !carry {
		regular |= backup
	}
	return cmp.Or(regular, proven)
}

// reportMeasured reports the paths to the plane that carries the packets.
func (x *scheduling) reportMeasured() {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Open() {
		return
	}
	list, names := make([]dataplane.Measured, len(x.paths)), x.peer.links.names()
	for i := range list {
		l := &x.peer.links[i]
		list[i] = dataplane.Measured{Path: x.paths[i], Remote: l.address.remote, Seen: l.nat.seen, MTU: l.mtu() + overhead(l.address.remote.Addr().Unmap().Is4())}
		if l.line != nil {
			list[i].Name, list[i].Interface, list[i].Local = names[i], l.line.device, l.source(l.line, l.address.remote)
			if socket := l.line.socket.Load(); socket != nil {
				list[i].Port = socket.Local().Port()
			}
		}
	}
	x.peer.plane.opened.Measured(x.peer.conf.Name, list, x.peer.session.openCookie)
}

// wait returns how long packets wait in front of a path.
func (x *scheduling) wait(i int, now time.Duration) time.Duration {
	if l := &x.peer.links[i]; l.shaped {
		return l.queue.Wait(now)
	}
	return x.queues.Wait(i, now)
}

// byProbes replaces the delays and jitters that schedulers see by those of compatible probes. A
// path without a reply so far has half of its round-trip time: delays must be comparable.
func (x *scheduling) byProbes() {
	for i := range x.peer.links {
		l, p := &x.peer.links[i], &x.paths[i]
		if !p.Usable {
			continue
		}
		p.Delay, p.Jitter = l.probing.rtt.SRTT/2, 0
		if c := &l.compatible; c.answered {
			p.Delay, p.Jitter = c.delay.Value, c.jitter
		}
	}
}
