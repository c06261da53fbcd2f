package bgp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// refreshPause is the time from when discarded routes fit again until the neighbor is asked
// for them.
const refreshPause = 5 * time.Second

// limit is the state of a neighbor's limit of prefixes, guarded by the speaker's mu.
type limit struct {
	exceeded message.FamilySet
	crossed  int // how often since that was last logged
	logged   time.Time
	// discarded are the families with routes that were not accepted into the table.
	discarded message.FamilySet
	count     uint64 // of discarded routes
	// refresh are the timers after which the neighbor is asked for discarded routes; one for each
	// family, however often the number of prefixes crosses the limit.
	refresh [families]*time.Timer
	// held: the session is closed until the timer fires.
	held  bool
	timer *time.Timer
}

// prefixes returns the number of routes of a family that the neighbor advertises. Callers hold mu.
func (n *neighbor) prefixes(f Family) int {
	if n.source == rib.Local {
		return 0
	}
	all, _ := n.speaker.rib.Received(f, n.source)
	return all
}

// discards reports whether a route is beyond the limit and must not be added. Callers hold mu.
func (n *neighbor) discards(k message.Key) bool {
	conf, f := &n.conf.Import.MaxPrefixes, k.Family()
	if most := conf.Limit; conf.Action != LimitDiscard || most == 0 || f.VPN() || n.prefixes(f) < most || n.speaker.rib.Has(k, n.source) {
		return false
	}
	n.limit.discarded |= message.Families(f)
	n.limit.count++
	return true
}

// checkLimit applies the limit of prefixes to the routes that the neighbor advertises now. Callers
// hold mu.
func (n *neighbor) checkLimit() {
	conf := n.conf.Import.MaxPrefixes
	for _, f := range []Family{IPv4Unicast, IPv6Unicast} {
		most, count, family := conf.Limit, n.prefixes(f), message.Families(f)
		beyond := most > 0 && (count > most || count == most && n.limit.discarded.Has(f))
		if beyond && !n.limit.exceeded.Has(f) {
			n.limit.exceeded |= family
			n.limit.crossed++
			if now := time.Now(); now.Sub(n.limit.logged) >= faultPause {
				n.speaker.log.Warn("neighbor exceeds max_prefixes", "neighbor", n.conf.Name, "family", f, "limit", most, "action", cmp.Or(conf.Action, LimitWarn), "times", n.limit.crossed)
				n.limit.crossed, n.limit.logged = 0, now
			}
			if conf.Action == LimitDown {
				n.hold(f, most)
			}
		}
		if beyond {
			continue
		}
		n.limit.exceeded &^= family
		if n.limit.discarded.Has(f) {
			n.limit.discarded &^= family
			if n.limit.refresh[f] == nil {
				n.limit.refresh[f] = time.AfterFunc(refreshPause, func() { n.refetch(f) })
			}
		}
	}
}

// refetch asks the neighbor for all routes of a family.
func (n *neighbor) refetch(f Family) {
	n.speaker.mu.Lock()
	n.limit.refresh[f] = nil
	n.speaker.mu.Unlock()
	n.session.SendRefresh(message.Refresh{Family: f})
}

// hold closes the session because of its limit, and opens it again after a while. Callers hold mu.
func (n *neighbor) hold(f Family, most int) {
	if n.limit.held {
		return
	}
	n.limit.held, n.keep = true, false
	restart := cmp.Or(n.conf.Import.MaxPrefixes.Restart, DefaultRestart)
	data := binary.BigEndian.AppendUint16(nil, f.AFI())
	data = binary.BigEndian.AppendUint32(append(data, f.SAFI()), uint32(most)) // RFC 4486 section 4
	n.session.Disable(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeMaxPrefixes, Data: data},
		fmt.Sprintf("more than %d %s prefixes; opens again %s after %s", most, f, restart, time.Now().UTC().Format(time.TimeOnly)))
	n.limit.timer = time.AfterFunc(restart, n.unhold)
}

// unhold opens a session again that was closed because of its limit.
func (n *neighbor) unhold() {
	n.speaker.calls.Lock()
	defer n.speaker.calls.Unlock()
	n.speaker.mu.Lock()
	held := n.limit.held
	n.limit.held, n.limit.exceeded = false, 0
	n.speaker.mu.Unlock()
	if held && !n.disabled.Load() && n.speaker.usable() == nil {
		n.session.Enable()
	}
}
