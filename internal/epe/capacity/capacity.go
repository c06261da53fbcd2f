// Package capacity decides which client networks of a server avoid an egress link that is nearly
// full, and when they return: whole networks, those first that lose least, and of what is too much
// only the part that this server causes.
//
// It decides by values alone. What links report, what networks carry and where they can go instead
// is given; it knows neither routes nor sockets. Rates are in bytes/s.
package capacity

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"
)

const (
	// Full is the share of its capacity from which networks leave a link, and relieved the share
	// that they leave it with: networks that grow a little do not have others leave at once.
	Full, relieved = 0.90, 0.85
	// Low is the share up to which networks return to a link. What is between Low and Full is the
	// hysteresis.
	Low = 0.75

	// Every is the least time between two decisions of a server on a link: what the one before
	// changed must be in the reports by then. Servers decide at different times within it.
	Every = 5 * time.Second
	// minAvoidance is the least time that networks avoid a link. It doubles, to maxAvoidance, each
	// time that the link is full again within maxAvoidance after networks have returned.
	minAvoidance, maxAvoidance = 10 * time.Second, 30 * time.Minute
	// Fresh is the age up to which a report counts. Reports repeat every Repeat, so that two may be
	// lost. Networks that avoid the link do so for maxAvoidance more: without a reflector no link
	// reports, and if all returned, all links that are full would be overloaded.
	Fresh, Repeat = 95 * time.Second, 30 * time.Second

	// MostCapacity bounds a capacity: 1 Pbit/s.
	MostCapacity = 1e15 / 8
	// maxLinks bounds the links that are known.
	maxLinks = 4096
	// maxCandidates bounds the networks that may leave a link or return to it in a decision, the
	// largest ones on it: the daemon does nothing else meanwhile.
	maxCandidates = 1024
	// leastShare bounds what other servers are assumed to move for each byte of this one.
	leastShare = 0.02
)

// Link identifies an egress link: the border router and the number that it gave the link. The zero
// Link is one that nothing is known of.
type Link struct {
	Router netip.Addr
	Number uint16
}

// Load is what a link carries of what it can.
type Load struct{ Capacity, Used float64 }

// Valid reports whether a load can be that of a link. A link may carry more than was configured as
// its capacity.
func (l Load) Valid() bool {
	return l.Capacity >= 1 && l.Capacity <= MostCapacity && l.Used >= 0 && l.Used <= MostCapacity // not NaN
}

// Share is the share of the capacity that is used.
func (l Load) Share() float64 { return l.Used / l.Capacity }

// Use is what a network of this server carries now, and where it can go.
type Use struct {
	Network netip.Prefix
	// On is what it carries over each link, the zero Link included.
	On      map[Link]float64
	Without Without
}

// Without returns the links that a network's packets take if they avoid some, and which share of
// its goodput it loses then against avoiding none; false if there are none.
type Without func(avoided func(Link) bool) (links []Link, loss float64, ok bool)

// total is what the network carries over all links.
func (u *Use) total() (sum float64) {
	for _, rate := range u.On {
		sum += rate
	}
	return sum
}

// Balancer decides for one server. It is not safe for concurrent use.
type Balancer struct {
	seed  uint64
	links map[Link]*link
	moved map[netip.Prefix]links
	moves uint64
}

// links are the links that a network avoids.
type links map[Link]bool

func (l links) has(at Link) bool { return l[at] }

// link is what is known of a link.
type link struct {
	Load
	received time.Time
	// full is since when it has been full; zero if it is not.
	full time.Time
	// decided is when this server last decided on it, left when networks last left it, returned
	// when they last returned.
	decided, left, returned time.Time
	stay                    time.Duration
	back                    bool // networks have returned since it was last full
	// stuck: too much of it is this server's, and has nowhere to go.
	stuck bool
}

// New returns a balancer of a server. The seed is another one in each server.
func New(seed uint64) *Balancer {
	return &Balancer{seed: seed, links: map[Link]*link{}, moved: map[netip.Prefix]links{}}
}

// Report applies the load of a link. One that cannot be counts as none.
func (b *Balancer) Report(now time.Time, at Link, load Load) {
	if !load.Valid() || at == (Link{}) {
		b.Forget(at)
		return
	}
	l := b.links[at]
	if l == nil {
		if len(b.links) >= maxLinks {
			return
		}
		l = &link{stay: minAvoidance}
		b.links[at] = l
	}
	l.Load, l.received = load, now
	switch {
	case load.Share() < Full:
		l.full, l.stuck = time.Time{}, false
	case l.full.IsZero():
		l.full = now
		switch soon := !passed(now, l.returned, maxAvoidance); {
		case soon && l.back:
			l.stay = min(2*l.stay, maxAvoidance)
		case !soon && b.Moved(at) == 0:
			l.stay = minAvoidance
		}
		l.back = false
	}
}

// Forget removes a link: nothing reports its load any more.
func (b *Balancer) Forget(at Link) { delete(b.links, at) }

// Known returns the load of a link, false if nothing fresh is known.
func (b *Balancer) Known(now time.Time, at Link) (Load, bool) {
	l := b.links[at]
	if l == nil || !l.fresh(now) {
		return Load{}, false
	}
	return l.Load, true
}

// Full reports whether a link is full.
func (b *Balancer) Full(now time.Time, at Link) bool {
	l, ok := b.Known(now, at)
	return ok && l.Share() >= Full
}

// Stuck reports whether a link is full and what this server sends over it has nowhere to go.
func (b *Balancer) Stuck(at Link) bool { return b.links[at] != nil && b.links[at].stuck }

// fresh reports whether a report is recent. The clock may have been set back.
func (l *link) fresh(now time.Time) bool {
	age := now.Sub(l.received)
	return age <= Fresh && age >= -Fresh
}

// Avoids reports whether a network avoids a link.
func (b *Balancer) Avoids(network netip.Prefix, at Link) bool { return b.moved[network][at] }

// Moved returns the number of networks that avoid a link.
func (b *Balancer) Moved(at Link) (n int) {
	for _, avoided := range b.moved {
		if avoided[at] {
			n++
		}
	}
	return n
}

// Avoided returns the links that a network avoids, in order.
func (b *Balancer) Avoided(network netip.Prefix) []Link {
	return slices.SortedFunc(maps.Keys(b.moved[network]), compare)
}

// Moves counts how often a network left a link or returned.
func (b *Balancer) Moves() uint64 { return b.moves }

func compare(a, b Link) int {
	return cmp.Or(a.Router.Compare(b.Router), cmp.Compare(a.Number, b.Number))
}

// Due reports whether Decide may change something now, for which the uses are to be measured.
func (b *Balancer) Due(now time.Time) bool {
	for at, l := range b.links {
		if b.leaves(now, at, l) {
			return true
		}
	}
	for _, avoided := range b.moved {
		for at := range avoided {
			if l := b.links[at]; l == nil || l.lost(now) || b.takesBack(now, at, l) {
				return true
			}
		}
	}
	return false
}

// leaves reports whether networks are to leave a link now.
func (b *Balancer) leaves(now time.Time, at Link, l *link) bool {
	return l.fresh(now) && l.Share() >= Full && !l.full.IsZero() &&
		passed(now, l.full, b.phase(at, l.full)) && passed(now, l.decided, Every)
}

// takesBack reports whether networks may return to a link now.
func (b *Balancer) takesBack(now time.Time, at Link, l *link) bool {
	return l.fresh(now) && l.Share() < Low &&
		passed(now, l.left, l.stay+b.phase(at, l.left)) && passed(now, l.decided, Every)
}

// passed reports whether some time has passed. A clock that was set back counts as passed.
func passed(now, since time.Time, d time.Duration) bool {
	gone := now.Sub(since)
	return gone >= d || gone < 0
}

// phase is when within Every this server decides on a link.
func (b *Balancer) phase(at Link, since time.Time) time.Duration {
	return time.Duration(b.draw(at, netip.Prefix{}, since) * float64(Every))
}

// draw returns a number from 0 to 1 for this server, a link, a network and a time.
func (b *Balancer) draw(at Link, network netip.Prefix, now time.Time) float64 {
	h := fnv.New64a()
	router, _ := at.Router.MarshalBinary()
	prefix, _ := network.MarshalBinary()
	key := binary.BigEndian.AppendUint64(nil, b.seed)
	key = binary.BigEndian.AppendUint64(key, uint64(now.UnixMilli()))
	key = binary.BigEndian.AppendUint16(key, at.Number)
	_, _ = h.Write(append(append(key, router...), prefix...))
	x := h.Sum64() // of similar keys, the upper bits are similar
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// Decide returns the networks that avoid other links from now on. The uses are those of all
// networks that carry something.
func (b *Balancer) Decide(now time.Time, uses []Use) (changed []netip.Prefix) {
	d := decision{Balancer: b, now: now, planned: map[Link]float64{}, changed: map[netip.Prefix]bool{}}
	d.settle(uses)
	at := slices.SortedFunc(maps.Keys(b.links), compare)
	for _, at := range at {
		if l := b.links[at]; b.leaves(now, at, l) {
			d.leave(at, l, uses)
		}
	}
	for _, at := range at {
		if l := b.links[at]; b.takesBack(now, at, l) {
			d.takeBack(at, l, uses)
		}
	}
	return slices.SortedFunc(maps.Keys(d.changed), netip.Prefix.Compare)
}

// decision is one call of Decide.
type decision struct {
	*Balancer
	now time.Time
	// planned is what this decision adds to links.
	planned map[Link]float64
	changed map[netip.Prefix]bool
}

// lost reports whether a link has reported nothing for so long that nothing follows from it. The
// clock may have been set back.
func (l *link) lost(now time.Time) bool {
	age := now.Sub(l.received)
	return age > Fresh+maxAvoidance || age < -Fresh
}

// settle ends what is without effect: networks avoid no link that is lost, and those that carry
// nothing none that is not full.
func (d *decision) settle(uses []Use) {
	active := make(map[netip.Prefix]bool, len(uses))
	for i := range uses {
		active[uses[i].Network] = true
	}
	for network, avoided := range d.moved {
		for at := range avoided {
			l := d.links[at]
			if l == nil || l.lost(d.now) || !active[network] && l.fresh(d.now) && l.Share() < relieved {
				d.set(network, at, false)
			}
		}
	}
	maps.DeleteFunc(d.links, func(_ Link, l *link) bool { return l.lost(d.now) })
}

// set has a network avoid a link, or not.
func (d *decision) set(network netip.Prefix, at Link, avoid bool) {
	if d.moved[network][at] == avoid {
		return
	}
	d.changed[network] = true
	if d.moves++; !avoid {
		if delete(d.moved[network], at); len(d.moved[network]) == 0 {
			delete(d.moved, network)
		}
		return
	}
	if d.moved[network] == nil {
		d.moved[network] = links{}
	}
	d.moved[network][at] = true
}

// candidate is a network that may leave a link, or return.
type candidate struct {
	*Use
	rate  float64 // on the link
	loss  float64 // by leaving, or what is regained by returning
	links []Link
}

// leave has networks avoid a full link until the rest is what this server may have there.
func (d *decision) leave(at Link, l *link, uses []Use) {
	l.decided = d.now
	var list []candidate
	mine, nowhere := 0.0, 0.0
	for i := range uses {
		if rate := uses[i].On[at]; rate > 0 {
			mine += rate
			list = append(list, candidate{Use: &uses[i], rate: rate})
		}
	}
	all := largest(list)
	list = list[:0]
	for _, c := range all {
		var ok bool
		if _, c.loss, ok = c.Without(func(x Link) bool { return x == at || d.moved[c.Network][x] }); ok {
			list = append(list, c)
		} else {
			nowhere += c.rate
		}
	}
	share := part(mine, l.Used)
	excess := (l.Used - relieved*l.Capacity) * share
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.loss, b.loss), cmp.Compare(b.rate, a.rate), a.Network.Compare(b.Network))
	})
	begin := excess
	leave := func(c candidate) {
		avoided, ok := d.detour(c, at, share)
		if !ok {
			nowhere += c.rate
			return
		}
		for x := range avoided {
			d.set(c.Network, x, true)
		}
		excess -= c.rate
		l.left = d.now
	}
	var large []candidate
	for _, c := range list {
		if c.rate <= excess {
			leave(c)
		} else {
			large = append(large, c)
		}
	}
	// What is left may be less than any network has. Of all servers, as much leaves in the mean as
	// is too much.
	slices.SortStableFunc(large, func(a, b candidate) int { return cmp.Compare(a.rate, b.rate) })
	for _, c := range large {
		if excess <= (Full-relieved)*l.Capacity*share {
			break
		}
		if d.draw(at, c.Network, d.now) < max(excess/c.rate, share) {
			leave(c)
		}
	}
	l.stuck = excess == begin && nowhere > 0 && nowhere >= excess
}

// largest returns the candidates with the highest rates, if there are many.
func largest(list []candidate) []candidate {
	if len(list) > maxCandidates {
		slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.rate, a.rate), a.Network.Compare(b.Network)) })
		list = list[:maxCandidates]
	}
	return list
}

// part is the part of this server in what a link carries.
func part(mine, all float64) float64 {
	if mine <= 0 {
		return 0
	}
	return mine / max(mine, all)
}

// detour returns the links that a network avoids so that what it has on a link goes where there is
// room for it.
func (d *decision) detour(c candidate, at Link, share float64) (avoided links, ok bool) {
	avoided = links{at: true}
	maps.Copy(avoided, d.moved[c.Network])
	for {
		to, _, ok := c.Without(avoided.has)
		if !ok || len(to) == 0 {
			return nil, false
		}
		rate := c.rate / float64(len(to))
		full := slices.IndexFunc(to, func(x Link) bool { return !d.room(x, rate, share, relieved) })
		if full < 0 {
			for _, x := range to {
				d.planned[x] += rate
			}
			return avoided, true
		}
		if avoided[to[full]] {
			return nil, false // it cannot be avoided
		}
		avoided[to[full]] = true
	}
}

// room reports whether a link can take a rate up to a share of its capacity, if other servers plan
// as much as this one in proportion to its share. One that nothing is known of can.
func (d *decision) room(at Link, rate, share, limit float64) bool {
	l, ok := d.Known(d.now, at)
	return !ok || l.Used+rate+d.planned[at]/max(share, leastShare) <= limit*l.Capacity
}

// takeBack has networks return to a link, those first that lost most, to half of what is free
// there: the others see what that brings before the rest returns.
func (d *decision) takeBack(at Link, l *link, uses []Use) {
	var list []candidate
	on, off := 0.0, 0.0
	for i := range uses {
		u := &uses[i]
		on += u.On[at]
		if !d.moved[u.Network][at] {
			continue
		}
		// Less than all may return to the link, but more may be there than is now elsewhere.
		off += u.total()
		list = append(list, candidate{Use: u, rate: u.total()})
	}
	if len(list) == 0 {
		return
	}
	list = largest(list)
	for i := range list {
		c := &list[i]
		avoided := d.moved[c.Network]
		_, loss, ok := c.Without(avoided.has)
		if !ok {
			loss = 1
		}
		links, less, ok := c.Without(func(x Link) bool { return x != at && avoided[x] })
		if c.loss = loss - less; ok {
			c.links = links
		}
	}
	l.decided = d.now
	share := part(on+off, l.Used+off)
	budget := (Low*l.Capacity - l.Used) * share / 2
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.loss, a.loss), cmp.Compare(a.rate, b.rate), a.Network.Compare(b.Network))
	})
	for _, c := range list {
		if budget <= 0 {
			break
		}
		if len(c.links) == 0 || c.rate > budget && d.draw(at, c.Network, d.now) >= max(budget/c.rate, share) {
			continue
		}
		rate := c.rate / float64(len(c.links))
		if slices.ContainsFunc(c.links, func(x Link) bool { return c.On[x] == 0 && !d.room(x, rate, share, Low) }) {
			continue
		}
		for _, x := range c.links {
			if c.On[x] == 0 {
				d.planned[x] += rate
			}
		}
		d.set(c.Network, at, false)
		budget -= c.rate
		l.returned, l.back = d.now, true
	}
}
