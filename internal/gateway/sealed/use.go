package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// A metered path, which is a backup or has used up a quota, costs little while it carries no
// packets: it is spare. Each gateway says what its line is for (tunnel.PathUse), and both send on
// the path accordingly: probes once in an interval, no padded ones but each sparePadded, and no
// records that other paths can carry.

const (
	// spareTimeout is how long a probe of a spare path is waited for at least, if that is not more
	// than a tenth of its interval: a modem that has to wake up is slow.
	spareTimeout, spareTimeoutShare = time.Second, 10
	// sparePadded is how often the MTU of a spare path is probed.
	sparePadded = time.Hour
	// patience is how many probes, or initiations, without an answer a metered path gets in quick
	// succession. Later ones are as far apart as its interval, while others answer.
	patience = 12
	// aloneMost bounds that time while no path answers: the metered one may be the first that does
	// again. Its initiations are 1.5 MB a day then.
	aloneMost = 10 * time.Second
	// regularTries is how many initiations of a handshake spare the metered paths while another one
	// answers.
	regularTries = 3
)

// uses is when packets are sent on the paths to a peer.
type uses struct {
	peer *peer
	// said is what the peer was last sent of this gateway's lines, theirs what it said of its own.
	said   [tunnel.MaxPaths]saidUse
	theirs [tunnel.MaxPaths]dataplane.Use
	// warned: it is logged that the peer does not know metered lines.
	warned bool
	// overflow: paths that are backups for full ones carry packets, too.
	overflow pathset.Overflow
	// initiated is when an initiation was last sent over a metered path.
	initiated time.Duration
}

// saidUse is a use that was sent under these keys.
type saidUse struct {
	keys *keys
	use  dataplane.Use
}

// of returns the use of a path.
func (x *uses) of(i int) dataplane.Use {
	u := x.theirs[i]
	if l := x.peer.links[i].line; l != nil {
		u = u.With(l.conf.Load().Use)
	}
	return u
}

// say sends the peer what it does not know yet of this gateway's lines.
func (x *uses) say(k *keys) {
	for i := range x.said {
		l := x.peer.links[i].line
		if l == nil {
			continue
		}
		now := saidUse{k, l.conf.Load().Use}
		if u := now.use; now != x.said[i] && k.out.Put(tunnel.PathUse{Path: uint8(i), Backup: u.Backup, Full: u.Full, Spent: u.Spent, Interval: u.Interval}) {
			x.said[i] = now
		}
	}
}

// pathUse applies when the peer has packets sent on a path.
func (m *controlMessage) pathUse(v tunnel.PathUse) {
	m.peer.uses.theirs[v.Path] = dataplane.Use{Backup: v.Backup, Full: v.Full, Spent: v.Spent, Interval: v.Interval}
	m.changed = true
}

// apply notes whether a path carries packets.
func (x *uses) apply(i int, usable bool) {
	l := &x.peer.links[i]
	before := l.spare
	l.spare = l.line != nil && !usable && x.of(i).Metered()
	if before && usable {
		l.probing.due = 0 // it may have died since its last probe
		x.peer.wakeControlLocked()
	}
}

// pause returns the time until the next probe of a spare path: it is found dead within the
// interval, of which three timeouts are for those that are not answered.
func (x *uses) pause(i int) time.Duration {
	l, interval := &x.peer.links[i], x.of(i).Interval
	switch {
	case l.probing.alive.Alive():
		return max(interval-3*x.timeout(i), interval/2)
	case l.probing.tries < patience:
		return probeDead
	}
	return x.retry(i)
}

// retry returns the time between attempts over a metered path after many without an answer.
func (x *uses) retry(i int) time.Duration {
	u := x.of(i)
	// Without a session no path is probed, so that none is found dead.
	if !u.Spent && (x.peer.session.sending == nil || !x.peer.links.anyAlive()) {
		return min(u.Interval, aloneMost)
	}
	return u.Interval
}

// timeout returns how long a probe of a path is waited for.
func (x *uses) timeout(i int) time.Duration {
	l := &x.peer.links[i]
	timeout := l.probing.rtt.RTO(minProbeRTO)
	if l.spare {
		timeout = max(timeout, min(spareTimeout, x.of(i).Interval/spareTimeoutShare))
	}
	return timeout
}

// probeSpare has spare paths probed at once: one may be needed now.
func (x *uses) probeSpare(now time.Duration) {
	for i := range x.peer.links {
		if l := &x.peer.links[i]; l.spare {
			l.probing.due = min(l.probing.due, now)
			x.peer.wakeControlLocked()
		}
	}
}

// rests reports whether a path is spare, and known to answer: it is probed by its interval alone.
func (l *link) rests() bool { return l.spare && l.probing.alive.Alive() }

// sparesInitiation reports whether no initiation is sent over a path that is metered: another one
// answers, or many have had no answer.
func (x *uses) sparesInitiation(i int, now time.Duration) bool {
	u := x.of(i)
	if !u.Metered() {
		return false
	}
	tries := x.peer.initiating.tries
	if tries < patience {
		return tries < regularTries && x.peer.links.anyRegular()
	}
	return now-x.initiated < x.retry(i)
}

// know applies whether the peer knows metered lines.
func (x *uses) know(known bool) {
	if known {
		x.warned = false
		return
	}
	x.theirs = [tunnel.MaxPaths]dataplane.Use{}
	if x.warned {
		return // the peer says so with each session
	}
	for i := range x.peer.links {
		if l := x.peer.links[i].line; l != nil && l.conf.Load().Use.Metered() {
			x.warned = true
			x.peer.log.Warn("the peer does not know metered lines: it sends packets and probes over this one as over others", "peer", x.peer.conf.Name, "path", l.name)
		}
	}
}
