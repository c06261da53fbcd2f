package sealed

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/pairing"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// The gateway that numbers the paths decides which lines meet (package pairing). It sends scouts
// from each of its lines to each endpoint of the peer, to learn at which line of the peer they
// arrive. The path with the number of a line leads to the endpoint of the line that was chosen for
// it; a line that meets several has more paths, with numbers that no line has.

const (
	// scoutSoon is the time between scouts of a pair of which a line has no path: one that returns
	// is to be used within 5 s. scoutSeldom is that between lines that both have one.
	scoutSoon, scoutSeldom = time.Second, 30 * time.Second
	// scoutMetered is that between lines that both have one, if one of them is metered. Where a
	// metered line is concerned that has none, scoutsSoon scouts are sent soon after a change, and
	// then after pauses that double up to scoutSeldom.
	scoutMetered, scoutsSoon = 10 * time.Minute, 4
	// settling is how long after a change scouts are waited for that have no answer: more than the
	// round trip by a satellite.
	settling = time.Second
	// matchingIdle is how long after a packet lines are matched as if none were carried: TCP that has
	// lost packets may wait for seconds before it sends the next one.
	matchingIdle = 5 * time.Second
	// mostMissed is how many scouts in a row may have no answer before a pair does not answer.
	mostMissed = 3
)

// matching decides which lines of both gateways meet.
type matching struct {
	peer   *peer
	scouts map[place]*scout
	// live is where paths were alive at the last look, since when that or the lines have changed.
	live    [tunnel.MaxPaths]place
	since   time.Duration
	decided time.Duration
	// rates are those of paths that share a line of this gateway, as far as they are known.
	rates [tunnel.MaxPaths]sharedRates
	// announced is the record of a path that the peer was last sent.
	announced [tunnel.MaxPaths]tunnel.PathAdd
	// metered are the lines of the peer that are, by their numbers.
	metered [tunnel.MaxPaths]bool
}

// sharedRates are the rates from and to this gateway of a path that shares its line; the zero value
// is of one that has it alone.
type sharedRates struct {
	shared   bool
	up, down dataplane.Rate
}

// scout is what is known of a line and an endpoint.
type scout struct {
	id       uint64 // of the last one
	due      time.Duration
	sent     bool          // one was, and is not answered
	missed   int           // so many in a row were not
	count    int           // sent since the last change
	answered time.Duration // when the last answer came, 0: none has
	far      tunnel.Scouted
}

// updateScouting notes whether both gateways have scouts, with so many lines here.
func (r *peer) updateScouting(lines int) {
	r.scouting.Store(r.numbering.peerScouts && lines < tunnel.MaxPaths)
}

// isScout reports whether a path has scouts only.
func (r *peer) isScout(path int) bool { return path == tunnel.ScoutPath && r.scouting.Load() }

// active reports whether this gateway decides which lines meet.
func (x *matching) active() bool {
	r := x.peer
	return r.numbering.owner && r.scouting.Load() && r.conf.Alliance.Role == dataplane.NoRole && len(r.conf.Endpoints) > 0 &&
		r.session.sending != nil && r.session.sending.out.Greeted()
}

// change has everything scouted again, because lines or endpoints have changed.
func (x *matching) change(now time.Duration) {
	x.since, x.decided = now, 0
	for _, s := range x.scouts {
		s.due, s.sent, s.missed, s.count = 0, false, 0, 0
	}
}

// alive returns the place of a path that is alive, or none.
func (x *matching) alive(i int) place {
	if l := &x.peer.links[i]; l.ready() && l.line.conf.Load().Usable && l.probing.alive.Alive() {
		return l.place()
	}
	return place{}
}

// advance sends scouts that are due and decides which lines meet. It returns when it is due again.
func (x *matching) advance(b *batch, k *keys, now time.Duration) time.Duration {
	never := now + time.Hour
	if !x.active() {
		return never
	}
	var live [tunnel.MaxPaths]place
	for i := range live {
		live[i] = x.alive(i)
	}
	if live != x.live || x.scouts == nil {
		x.live = live
		x.change(now)
	}
	for i, at := range live {
		if far, known := x.far(at); known {
			x.metered[far.Line] = x.peer.uses.theirs[i].Metered()
		}
	}
	due := x.scout(b, k, now)
	settled := x.since + settling
	switch {
	case now < settled && !x.complete():
		return min(due, settled)
	case x.decided == 0 || now-x.decided >= scoutSoon:
		x.decided = now
		x.decide(now)
	}
	return min(due, x.decided+scoutSoon)
}

// complete reports whether all scouts have been answered since the last change.
func (x *matching) complete() bool {
	for _, s := range x.scouts {
		if s.sent || s.answered < x.since {
			return false
		}
	}
	return true
}

// places returns the places that may be scouted: each line with each endpoint, and where paths are.
func (x *matching) places() []place {
	var all []place
	lines := x.peer.plane.routing.Load().lines
	for _, l := range lines {
		if l.socket.Load() == nil || !l.conf.Load().Usable || !x.peer.conf.Alliance.Uses(x.peer.conf.Name, *l.conf.Load()) {
			continue
		}
		for _, e := range x.peer.conf.Endpoints {
			all = append(all, place{l, e})
		}
		for _, at := range x.live {
			if at.line == l && !slices.Contains(all, at) {
				all = append(all, at)
			}
		}
	}
	return all
}

// scout sends scouts that are due, and returns when the next one is.
func (x *matching) scout(b *batch, k *keys, now time.Duration) time.Duration {
	places := x.places()
	known := make(map[place]*scout, len(places))
	due := now + time.Hour
	for _, at := range places {
		s := x.scouts[at]
		if s == nil {
			s = &scout{}
		}
		known[at] = s
		if now >= s.due {
			if s.sent {
				s.missed++
			}
			if s.missed >= mostMissed && !slices.Contains(x.live[:], at) {
				s.answered = 0
			}
			s.id, s.sent, s.due = unguessable(), true, now+x.pause(at, s)
			s.count++
			x.peer.messages.sendBare(b, k, tunnel.ScoutPath, at, now, tunnel.Scout{ID: s.id})
		}
		due = min(due, s.due)
	}
	x.scouts = known
	return due
}

// pause returns the time until a pair of lines is scouted again.
func (x *matching) pause(at place, s *scout) time.Duration {
	here, there := false, false
	for _, p := range x.live {
		if p.line == nil {
			continue
		}
		here = here || p.line == at.line
		other := x.scouts[p]
		there = there || p.from == at.from || other != nil && other.answered > 0 && s.answered > 0 && other.far.Line == s.far.Line
	}
	metered := at.line.conf.Load().Use.Metered() || s.answered > 0 && x.metered[s.far.Line]
	switch seldom := here && there && (s.missed == 0 || s.missed >= mostMissed); {
	case seldom && metered:
		return scoutMetered
	case seldom:
		return scoutSeldom
	case metered:
		return min(scoutSoon<<min(max(s.count-scoutsSoon, 0), 16), scoutSeldom)
	}
	return scoutSoon
}

// scouted applies the answer to a scout.
func (x *matching) scouted(v tunnel.Scouted, now time.Duration) {
	for _, s := range x.scouts {
		if s.sent && s.id == v.ID {
			s.sent, s.missed, s.answered, s.far = false, 0, now, v
			decides := max(now, x.since+settling)
			if x.complete() {
				decides = now
			}
			x.peer.due = min(x.peer.due, decides)
			return
		}
	}
}

// far returns the line of the peer at a place, if it is known.
func (x *matching) far(at place) (tunnel.Scouted, bool) {
	s := x.scouts[at]
	if s == nil || s.answered == 0 {
		return tunnel.Scouted{}, false
	}
	return s.far, true
}

// meets returns the line of the peer that a path leads to, as the peer calls it; empty if it is not
// known.
func (x *matching) meets(l *link) string {
	if x.peer.numbering.owner {
		far, _ := x.far(l.place())
		return far.Name
	}
	// The peer named a path beside that of its line's number after both lines.
	for i := range x.peer.links {
		if other := &x.peer.links[i]; other.name != "" && l.name == besides(other.name, l.line.name) {
			return other.name
		}
	}
	return l.name
}

// besides returns the name of a path between these lines of the gateway that numbers it and of the
// other one, if the former has another path.
func besides(own, other string) string {
	if name := own + "-" + other; tunnel.ValidName(name) {
		return name
	}
	return own
}

// unmeasured returns the places whose rates trains of both gateways show: those of lines that
// answer, if neither has a configured rate or is metered, and there is a choice.
func (x *matching) unmeasured() []place {
	if !x.active() {
		return nil
	}
	var all []place
	here, there := map[*line]bool{}, map[uint8]bool{}
	for _, at := range x.places() {
		far, known := x.far(at)
		if c := at.line.conf.Load(); !known || !c.Up.Estimated || far.Down != tunnel.UnknownRate || c.Use.Metered() || x.metered[far.Line] {
			continue
		}
		here[at.line], there[far.Line] = true, true
		all = append(all, at)
	}
	if len(here) < 2 || len(there) < 2 || len(all) > tunnel.MaxPaths {
		return nil
	}
	return all
}

// ratedWait is for how long after a change what trains of the peer show is waited for: it may be of
// a version that does not send any between lines that have no path.
const ratedWait = 20 * time.Second

// measured returns the sites with the rates that trains have shown in place of those that are not
// configured, once no more are sent. A rate from the peer that is not known is taken for the same as
// that to it.
func (x *matching) measured(s *sites, now time.Duration) *pairing.Sites {
	m := &pairing.Sites{Here: slices.Clone(s.Here), There: slices.Clone(s.There), Answers: s.Answers, Idle: s.Idle}
	raise := func(known *unit.Bandwidth, configured, to unit.Bandwidth) {
		if configured == pairing.Unknown && to > 0 && (*known == pairing.Unknown || *known < to) {
			*known = to
		}
	}
	for _, at := range x.unmeasured() {
		shown := x.peer.trains.shown[at]
		back, rated := x.peer.trains.rated[at]
		far, _ := x.far(at)
		i, j := slices.Index(s.lines, at.line), slices.IndexFunc(s.far, func(f tunnel.Scouted) bool { return f.Line == far.Line })
		switch {
		case !shown.ended() || !rated && now < x.since+ratedWait:
			return &s.Sites
		case i < 0 || j < 0:
			continue // the place has not answered since a change
		}
		raise(&m.Here[i].Up, s.Here[i].Up, shown.rate)
		raise(&m.There[j].Down, s.There[j].Down, shown.rate)
		back = cmp.Or(back, shown.rate)
		raise(&m.Here[i].Down, s.Here[i].Down, back)
		raise(&m.There[j].Up, s.There[j].Up, back)
	}
	return m
}

// sites are the lines of both gateways, and the places at which they reach each other.
type sites struct {
	pairing.Sites
	lines  []*line
	far    []tunnel.Scouted
	places map[pairing.Pair][]netip.AddrPort
}

// sites returns the lines that have answered since the last change.
func (x *matching) sites() *sites {
	s := &sites{places: map[pairing.Pair][]netip.AddrPort{}}
	for _, at := range x.places() {
		far, known := x.far(at)
		if !known || x.scouts[at].answered < x.since && !slices.Contains(x.live[:], at) {
			continue
		}
		here := slices.Index(s.lines, at.line)
		if here < 0 {
			here = len(s.lines)
			c := at.line.conf.Load()
			s.lines = append(s.lines, at.line)
			s.Here = append(s.Here, pairing.Line{Up: announced(c.Up), Down: announced(c.Down), Backup: c.Use.Metered()})
		}
		there := slices.IndexFunc(s.far, func(f tunnel.Scouted) bool { return f.Line == far.Line })
		if there < 0 {
			there = len(s.far)
			s.far = append(s.far, far)
			s.There = append(s.There, pairing.Line{Up: far.Up, Down: far.Down, Backup: x.metered[far.Line]})
		}
		p := pairing.Pair{Here: here, There: there}
		s.places[p] = append(s.places[p], at.from)
	}
	s.Answers = func(p pairing.Pair) bool { return len(s.places[p]) > 0 }
	return s
}

// pairAt returns the pair of a place, and false if it is none.
func (s *sites) pairAt(at place) (pairing.Pair, bool) {
	here := slices.Index(s.lines, at.line)
	for p, list := range s.places {
		if p.Here == here && slices.Contains(list, at.from) {
			return p, true
		}
	}
	return pairing.Pair{}, false
}

// decide has lines meet as they are to.
func (x *matching) decide(now time.Duration) {
	s := x.sites()
	active := time.Duration(x.peer.active.Load())
	s.Idle = active == 0 || now-active >= matchingIdle
	at := map[pairing.Pair]int{} // the path of each pair
	var current []pairing.Pair
	for i := range x.live {
		// The path of a line's own number goes before others, which are higher.
		if p, ok := s.pairAt(x.live[i]); ok && x.live[i].line != nil {
			if _, twice := at[p]; !twice {
				at[p] = i
				current = append(current, p)
			}
		}
	}
	pairs := x.measured(s, now).Choose(current)
	rates := s.Rates(pairs)
	lines := x.peer.plane.routing.Load().lines
	used := map[int]bool{}
	chosen := map[int]int{} // the pair of each path
	give := func(path, pair int) {
		used[path], chosen[path] = true, pair
		x.lead(path, s, pairs[pair], now)
	}
	// First the path of each line's number, where it is or at a pair that no other path has, or
	// that of another one, which ends.
	own := func(p pairing.Pair) int { return slices.Index(lines, s.lines[p.Here]) }
	for _, fits := range []func(pair, path int) bool{
		func(pair, path int) bool { i, ok := at[pairs[pair]]; return ok && i == path },
		func(pair, path int) bool { _, ok := at[pairs[pair]]; return !ok },
		func(int, int) bool { return true },
	} {
		for n, p := range pairs {
			if i := own(p); !used[i] && fits(n, i) {
				give(i, n)
			}
		}
	}
	// Then others that stay, and those that are new.
	for n, p := range pairs {
		if i, ok := at[p]; ok && !used[i] && !given(chosen, n) {
			give(i, n)
		}
	}
	for n := range pairs {
		if i := x.free(used); !given(chosen, n) && i >= 0 {
			give(i, n)
		}
	}
	x.end(used)
	for i := range x.rates {
		x.rates[i] = sharedRates{}
		if n, ok := chosen[i]; ok && s.Shares(pairs, pairs[n]) {
			x.rates[i] = sharedRates{true, planeRate(rates[n].Up), planeRate(rates[n].Down)}
		}
	}
	x.apply()
}

// given reports whether a pair has a path.
func given(chosen map[int]int, pair int) bool {
	for _, n := range chosen {
		if n == pair {
			return true
		}
	}
	return false
}

// planeRate returns a rate as the configuration has it.
func planeRate(rate unit.Bandwidth) dataplane.Rate {
	if rate == pairing.Unknown {
		return dataplane.Rate{Estimated: true}
	}
	return dataplane.Rate{Bandwidth: rate}
}

// lead has a path lead to a pair. Those that are there stay.
func (x *matching) lead(i int, s *sites, p pairing.Pair, now time.Duration) {
	l, line, endpoints := &x.peer.links[i], s.lines[p.Here], s.places[p]
	if l.line == line && slices.Contains(endpoints, l.address.remote) {
		return
	}
	to := place{line, endpoints[0]}
	if l.line != nil { // the scout has proved the address
		x.peer.log.Info("lines meet otherwise", "peer", x.peer.conf.Name, "path", l.title(), "line of peer", s.far[p.There].Name)
		x.peer.proving.proved(i, to, now)
		return
	}
	name := besides(line.name, s.far[p.There].Name)
	*l = link{number: i, line: line, name: name, more: true, address: linkAddress{remote: to.from, candidates: endpoints}}
	x.peer.log.Info("lines meet besides", "peer", x.peer.conf.Name, "path", name, "address", to.from)
	x.peer.wakeControlLocked()
}

// free returns the number of a path for a line that has one already, -1 if there is none. The plane
// for open messages has one path for each line.
func (x *matching) free(used map[int]bool) int {
	if x.peer.conf.Mode.Open() {
		return -1
	}
	for i := len(x.peer.plane.routing.Load().lines); i < tunnel.ScoutPath; i++ {
		if !used[i] && x.peer.links[i].line == nil {
			return i
		}
	}
	return -1
}

// end ends the paths beside those of lines' numbers which are no longer used.
func (x *matching) end(used map[int]bool) {
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if !l.more || used[i] {
			continue
		}
		x.peer.log.Info("lines meet no longer", "peer", x.peer.conf.Name, "path", l.title())
		x.peer.session.retract(i)
		*l = link{number: i}
		x.peer.scheduling.refresh()
	}
}

// apply sets the rates of paths, and announces those that have changed to the peer.
func (x *matching) apply() {
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if l.line == nil {
			continue
		}
		if r := &x.rates[i]; r.shared {
			l.rates.up = r.up
		} else if x.peer.conf.Alliance.Role == dataplane.NoRole {
			l.rates.up = l.line.conf.Load().Up
		}
		if l.more {
			l.cost = l.line.conf.Load().Cost
		}
		if x.describe(i) != x.announced[i] && x.peer.session.sending != nil {
			x.announce(i)
			x.peer.wakeControlLocked()
		}
	}
}

// announce sends the peer the record of a path.
func (x *matching) announce(i int) {
	x.announced[i] = x.describe(i)
	x.peer.session.sending.out.Put(x.announced[i])
}

// describe returns the record of a path.
func (x *matching) describe(i int) tunnel.PathAdd {
	l := &x.peer.links[i]
	c := l.line.conf.Load()
	v := tunnel.PathAdd{Path: uint8(i), Up: announced(c.Up), Down: announced(c.Down), Cost: int32(c.Cost), Strict: c.Strict, Name: c.Name}
	if l.more {
		v.Name = l.name
	}
	if r := &x.rates[i]; r.shared {
		v.Up, v.Down = announced(r.up), announced(r.down)
	}
	return v
}

// scout answers which line of this gateway a scout has arrived at. The answer goes to where it came
// from, which is not proved: it is authentic and new, and the answer is less than 3 times as long.
func (m *controlMessage) scout(v tunnel.Scout) {
	r := m.peer
	i := slices.Index(r.plane.routing.Load().lines, m.from.line)
	if !r.isScout(m.path) || i < 0 || r.session.sending == nil {
		m.drop(dropUnexpected)
		return
	}
	c := m.from.line.conf.Load()
	answer := []tunnel.Record{tunnel.Scouted{ID: v.ID, Line: uint8(i), Up: announced(c.Up), Down: announced(c.Down), Name: c.Name}}
	if rate, known := r.trains.offer(m.from); known {
		answer = append(answer, tunnel.Rated{Rate: rate})
	}
	r.messages.sendBare(m.batch, r.session.sending, tunnel.ScoutPath, m.from, m.now, answer...)
}

// scouted applies the answer to a scout.
func (m *controlMessage) scouted(v tunnel.Scouted) {
	if !m.peer.trains.answered(v, m.sent, m.now) {
		m.peer.matching.scouted(v, m.now)
	}
}

// rated applies what trains of the peer have shown.
func (m *controlMessage) rated(v tunnel.Rated) {
	if x := &m.peer.matching; m.peer.isScout(m.path) && x.active() && x.scouts[m.from] != nil {
		m.peer.trains.rated[m.from] = v.Rate
	}
}
