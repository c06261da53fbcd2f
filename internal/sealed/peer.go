package sealed

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/contain"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/shape"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

func compare(a, b string) int { return cmp.Compare(a, b) }

const (
	ipUDP4, ipUDP6 = ipv4Len + udpLen, ipv6Len + udpLen
	// baseMTU is the largest packet, without the tunnel, that every path is taken to carry: what is
	// left of 1280 bytes of IPv6 (RFC 8200, section 5).
	baseMTU = leastMTU - ipUDP6 - tunnel.Overhead
	// pathBuffer bounds the virtual queue: a modem's buffer is seldom longer.
	pathBuffer = time.Second
)

// peer is another gateway: what is common to its parts. Each part is the state of one task, and is in
// the file of its name; doc.go has the order of the locks.
type peer struct {
	plane *Plane
	own   session.PublicKey
	log   *slog.Logger

	// active is when a packet to or from the peer was last carried.
	active atomic.Int64
	// relaysChanged: what members relay has changed.
	relaysChanged atomic.Bool

	mu      sync.Mutex // guards the following, except rx
	conf    plane.Peer
	panics  contain.Backoff
	removed bool
	due     time.Duration // when the control loop has something to send

	session    sessionState
	initiating initiating
	numbering  numbering
	links      links
	scheduling scheduling
	policy     policy
	selection  selection
	pacing     pacing
	messages   messages
	prober     prober
	proving    proving

	memberRequest memberRequest // if the peer is a member
	relaying      relaying      // if the peer is a leader that this gateway relays for
	registering   registering

	rx receiving // has a mutex of its own
}

// place is where a message came from.
type place struct {
	line *line
	from netip.AddrPort
}

// policy has the rules that choose a scheduler for packets.
type policy struct {
	rules    []rule
	fallback rule // packets without a rule
}

// rule schedules the packets of a policy rule to a peer.
type rule struct {
	discipline plane.Discipline
	scheduler  sched.Scheduler
	hold       plane.Resequence
	sent       plane.Count
	copies     uint64
	used       sched.Set
}

// scheduling is what schedulers see of the links.
type scheduling struct {
	peer   *peer
	paths  []sched.Path // one for each link, up to the last usable one
	queues sched.Queues
	mtu    int // largest packet that all usable links carry
	// refreshed is when paths were last brought up to date, outdated: records have changed links since.
	refreshed time.Duration
	outdated  bool
}

// sessionState is the session that packets are sent in.
type sessionState struct {
	peer      *peer
	assoc     *session.Association
	sending   *keys         // nil without a session
	since     time.Duration // when there was none before
	keysSince time.Duration
	proven    bool   // a probe was answered under the current keys
	epoch     uint32 // number of handshakes
	// openCookie is that which the peer accepts open messages with, 0 for none.
	openCookie uint64
}

// initiating is what is known of handshakes that this gateway has begun.
type initiating struct {
	peer     *peer
	pending  []uint32 // indices of initiations
	tries    int      // initiations without an answer
	proofs   proofs
	stale    stale
	unproven session.Limit // of responses without proof
}

// numbering is which gateway numbers the paths (decide).
type numbering struct {
	owner            bool // this gateway does
	peerHasEndpoints bool // so that the peer could
}

// pacing is the pace of the queues in front of paths.
type pacing struct {
	peer    *peer
	due     time.Duration // of the next queued packet
	signals shape.Signals
}

// messages composes control messages.
type messages struct {
	peer  *peer
	body  []byte
	lanes tunnel.Progress
}

// links are the paths to a peer by their numbers.
type links [tunnel.MaxPaths]link

// link is a path to a peer.
type link struct {
	number int
	line   *line  // nil: the path is not known yet
	name   string // as the gateway that numbers it has it
	cost   int
	sent   count

	address      linkAddress
	nat          natAddress
	probing      probing
	compatible   compatible
	search       mtuSearch
	rates        rates
	reports      reports
	repairs      repairs
	registration registration

	// queue holds packets in front of the path, if shaped.
	queue  *shape.Queue[*queued]
	shaped bool
}

// linkAddress is where the peer is on a path.
type linkAddress struct {
	remote     netip.AddrPort   // where packets are sent: the peer has answered a probe there, or invalid
	candidates []netip.AddrPort // that are configured
	unproved   unproved
	probed     time.Duration    // when the last probe to unproved was sent
	waiting    *tunnel.Register // a request that waits until an address is proved
}

// natAddress is where the peer sees this gateway on a path.
type natAddress struct {
	seen netip.AddrPort
	// reported is where this gateway sees the peer, as last sent to it at reportedAt.
	reported   netip.AddrPort
	reportedAt time.Duration
}

// probing is what the probes of a path show, and when they are due.
type probing struct {
	alive quality.Liveness
	rtt   quality.RTT
	sent  sentProbes
	tries int           // probes without an answer
	due   time.Duration // of the next one
	// controlLen is the length of the last control message, as an IPv4 packet.
	controlLen int
	answers    answers
	progress   time.Duration // when a report last showed that the peer receives
}

// rates are the rates towards the peer on a path.
type rates struct {
	up     plane.Rate     // as configured at this gateway
	down   unit.Bandwidth // as configured at the peer
	known  bool           // down is
	strict bool           // down is never to be exceeded
	// capacity estimates the rate, which is at most limit unless that is 0.
	capacity quality.CapacityMeter
	limit    unit.Bandwidth
}

// reports are what the peer has reported of a path.
type reports struct {
	last     tunnel.Report // Bytes are those since the first one
	received bool          // last is
	bytes    uint64        // in the last report as they arrived
	at       time.Duration // when the peer sent it, on its clock but for a constant
	clock    quality.Clock

	loss      quality.LossMeter
	openLoss  quality.LossMeter // of the open plane
	lost      uint64            // packets towards the peer, of both planes
	oversized uint64            // probes under the current keys that were known to be too long
}

// keys are a session with the keys made of its secrets. number and counters are guarded by the mutex
// of the peer, in and out as well; the rest has mutexes of its own.
type keys struct {
	*session.Session
	peer          *peer
	send, receive *tunnel.Key
	number        tunnel.Numbering
	counters      [tunnel.MaxPaths]uint64
	cookie        uint64 // that the peer sends open messages with, 0 for none
	announced     bool   // cookie was
	lanes         lanes
	in            tunnel.Inbox
	out           tunnel.Outbox
	ack           bool // records have arrived since the last Ack was sent

	replay [tunnel.MaxPaths]replay
}

// replay is what has arrived over a path: counters, and where the last message came from.
type replay struct {
	sync.Mutex
	tunnel.Replay
	// at is where the newest message came from, bytes how many have come from there since.
	at    place
	bytes int
}

// lanes are those in use since a time.
type lanes struct {
	used [tunnel.Lanes]time.Duration
}

func newPeer(p *Plane, own session.PrivateKey, c plane.Peer) *peer {
	r := &peer{
		plane: p, own: own.Public(), log: slog.New(&limitedLog{Handler: p.log.Handler(), now: p.now}),
		panics:     contain.Backoff{First: restFirst},
		scheduling: scheduling{mtu: baseMTU, paths: make([]sched.Path, tunnel.MaxPaths)},
		pacing:     pacing{due: shape.Never},
	}
	r.connectParts()
	r.session.assoc = session.NewAssociation(session.AssociationOptions{
		Own: own, Peer: session.Peer{Public: c.Public, Preshared: c.Preshared},
		Offers: p.offers(), Choose: p.choose, Random: random{}, NewIndex: p.newIndex,
	})
	for i := range r.links {
		r.links[i].number = i
		r.scheduling.paths[i].Room = math.MaxInt
	}
	return r
}

// connectParts has the parts know their peer.
func (r *peer) connectParts() {
	r.session.peer, r.initiating.peer, r.scheduling.peer, r.selection.peer, r.pacing.peer = r, r, r, r, r
	r.messages.peer, r.prober.peer, r.proving.peer, r.registering.peer = r, r, r, r
	r.memberRequest.peer, r.relaying.peer = r, r
}

// offers returns the encryptions of data that this gateway offers: AES only if its CPU is fast at it.
// Without such instructions AES is many times slower, and its time depends on the key.
func (p *Plane) offers() session.Suites {
	return 1<<(p.fastest-1) | 1<<(tunnel.ChaCha20Poly1305-1)
}

// choose returns the encryption of those that a peer offers, 0 if none is known: AES only if both
// CPUs are fast at it, or the peer offers nothing else.
func (p *Plane) choose(offered session.Suites) uint8 {
	for _, s := range [...]tunnel.Suite{p.fastest, tunnel.ChaCha20Poly1305, tunnel.AES256GCM} {
		if offered.Has(uint8(s)) {
			return uint8(s)
		}
	}
	return 0
}

// configure applies a configuration.
func (r *peer) configure(c plane.Peer, s plane.State, lines []*line) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := !slices.Equal(r.conf.Endpoints, c.Endpoints)
	if r.relaying.current != nil && !reflect.DeepEqual(r.conf.Alliance, c.Alliance) {
		r.relaying.cut("the configuration has changed")
	}
	reach := new(bart.Table[bool])
	for prefix, allowed := range c.Reach() {
		reach.Insert(prefix, allowed)
	}
	r.rx.reach.Store(reach)
	r.conf, r.prober.intervals = c, s.Probes
	r.prober.intervals.Idle, r.prober.intervals.Busy = cmp.Or(s.Probes.Idle, probeIdle), cmp.Or(s.Probes.Busy, probeBusy)
	if c.Alliance.Role == plane.Member {
		home := homeOf(s)
		if open := home.Mode.Open(); open != r.memberRequest.open {
			r.memberRequest.open, r.memberRequest.at = open, 0
		}
		r.memberRequest.homes = home.Endpoints
	}
	r.numbering.decide(r.own, &r.conf)
	for i := range r.links {
		l := &r.links[i]
		switch {
		case i < len(lines) && r.numbering.owner && c.Alliance.Uses(c.Name, s.Paths[i]):
			if l.line != lines[i] {
				*l = link{number: i, line: lines[i]}
			}
			l.name, l.rates.up, l.cost = lines[i].name, s.Paths[i].Up, s.Paths[i].Cost
			if c.Alliance.Role == plane.HomeAgent && s.Paths[i].Member != "" {
				continue // follow has its address
			}
			l.address.candidates = rotate(c.Endpoints, i)
			if changed && !slices.Contains(c.Endpoints, l.address.remote) {
				l.address.remote = netip.AddrPort{}
			}
		case l.line != nil && (r.numbering.owner || !slices.Contains(lines, l.line)):
			r.registering.withdraw(i)
			*l = link{number: i}
		case l.line != nil:
			l.rates.up = s.Paths[slices.Index(lines, l.line)].Up
		}
	}
	if err := r.policy.apply(s.Policy, &r.scheduling.queues); err != nil {
		return err
	}
	if r.session.sending != nil && r.numbering.owner {
		r.session.announce(s.Paths)
	}
	if r.numbering.owner && r.session.assoc.Current() == nil {
		r.session.assoc.Want(r.plane.now())
	}
	r.session.acceptOpen()
	r.registering.applyGrants(r.plane.now())
	r.scheduling.refresh()
	r.due = 0
	return nil
}

// homeOf returns the home agent of a leader, the zero value if it has none.
func homeOf(s plane.State) plane.Peer {
	for _, c := range s.Peers {
		if c.Alliance.Role == plane.HomeAgent {
			return c
		}
	}
	return plane.Peer{}
}

// decide decides whose numbers paths have: those of the gateway that has endpoints, of two that
// have, the one with the lower key.
func (x *numbering) decide(own session.PublicKey, c *plane.Peer) {
	x.owner = len(c.Endpoints) > 0 && (!x.peerHasEndpoints || slices.Compare(own[:], c.Public[:]) < 0)
}

// rotate returns the list from element i on, so that gateways with equally many lines use pairs.
func rotate(list []netip.AddrPort, i int) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	i %= len(list)
	return slices.Concat(list[i:], list[:i])
}

// apply makes schedulers of a policy. Rules that stay the same keep theirs.
func (x *policy) apply(policy plane.Policy, queues *sched.Queues) error {
	rules := make([]rule, len(policy))
	for i, c := range policy {
		if i < len(x.rules) && equal(x.rules[i].discipline, c.Discipline) {
			rules[i] = x.rules[i]
			rules[i].hold = c.Resequence
			continue
		}
		s, err := newScheduler(c.Discipline, queues)
		if err != nil {
			return err
		}
		rules[i] = rule{discipline: c.Discipline, scheduler: s, hold: c.Resequence}
	}
	if x.fallback.scheduler == nil {
		d := plane.Discipline{Name: plane.Auto}
		s, err := newScheduler(d, queues)
		if err != nil {
			return err
		}
		x.fallback = rule{discipline: d, scheduler: s}
	}
	x.rules = rules
	return nil
}

func equal(a, b plane.Discipline) bool {
	return a.Name == b.Name && a.Choice == b.Choice && a.CopyCostlier == b.CopyCostlier && slices.Equal(a.Ratio, b.Ratio)
}

func newScheduler(d plane.Discipline, queues *sched.Queues) (sched.Scheduler, error) {
	return sched.New(d.Name, sched.Options{
		Queues: queues, Choice: d.Choice, Tie: sched.Tie, Size: sched.FullSize, CopyCostlier: d.CopyCostlier,
	})
}

// refresh brings what schedulers see up to date.
func (x *scheduling) refresh() {
	x.paths = x.paths[:tunnel.MaxPaths]
	x.mtu = 0
	highest := 0
	alive, now := x.peer.links.anyAlive(), x.peer.plane.now()
	x.refreshed, x.outdated = now, false
	for i := range x.peer.links {
		l, p := &x.peer.links[i], &x.paths[i]
		// While no path answers, packets are sent on those that did.
		p.Usable = x.peer.session.sending != nil && l.ready() && l.line.conf.Load().Usable && (l.probing.alive.Alive() || !alive && l.probing.alive.Proven()) && x.peer.registering.allows(l, now)
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
		p.Delay, p.Jitter = l.reports.last.Delay, l.reports.last.Jitter
		if !l.reports.received {
			p.Delay = l.probing.rtt.SRTT / 2
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
			x.peer.links[i].queue.SetLag(sched.Lag(x.paths, i, shape.MostLag))
			x.peer.links[i].queue.SetRTT(x.peer.links[i].probing.rtt.SRTT)
		}
	}
	x.peer.selection.version++
	x.mtu = max(x.mtu, baseMTU)
	x.peer.rx.clamp.Store(int32(x.mtu))
	x.reportMeasured()
}

// reportMeasured reports the paths to the plane that carries the packets.
func (x *scheduling) reportMeasured() {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Open() {
		return
	}
	list, names := make([]plane.Measured, len(x.paths)), x.peer.links.names()
	for i := range list {
		l := &x.peer.links[i]
		list[i] = plane.Measured{Path: x.paths[i], Remote: l.address.remote, Seen: l.nat.seen, MTU: l.mtu() + overhead(l.address.remote.Addr().Unmap().Is4())}
		if l.line != nil {
			list[i].Name, list[i].Interface = names[i], l.line.device
			if socket := l.line.socket.Load(); socket != nil {
				list[i].Port = socket.Local().Port()
			}
		}
	}
	x.peer.plane.opened.Measured(x.peer.conf.Name, list, x.peer.session.openCookie)
}

// anyAlive reports whether any path answers.
func (x *links) anyAlive() bool {
	for i := range x {
		if x[i].probing.alive.Alive() {
			return true
		}
	}
	return false
}

// mtu returns the largest packet to send on a path, without the tunnel.
func (l *link) mtu() int {
	if l.line == nil {
		return 0
	}
	return l.search.limit(int(l.line.mtu.Load()), l.address.remote.Addr().Is4())
}

// exceeds reports whether a message is too long for the path.
func (l *link) exceeds(message []byte) bool { return len(message)-tunnel.Overhead > l.mtu() }

// ready reports whether the path has a socket and an address.
func (l *link) ready() bool {
	return l.line != nil && l.line.socket.Load() != nil && l.address.remote.IsValid()
}

// configuredRate returns the rate towards the peer that is configured on either side, 0 if none is.
func (l *link) configuredRate() unit.Bandwidth {
	down := l.rates.known && l.rates.down != tunnel.UnknownRate
	switch {
	case !l.rates.up.Estimated && down:
		return min(l.rates.up.Bandwidth, l.rates.down)
	case !l.rates.up.Estimated:
		return l.rates.up.Bandwidth
	case down:
		return l.rates.down
	}
	return 0
}

// ceiling returns the rate towards the peer that is never to be exceeded, 0 if there is none.
func (l *link) ceiling() unit.Bandwidth {
	most := unit.Bandwidth(math.MaxInt64)
	if l.line != nil && l.line.strict() > 0 {
		most = l.line.strict()
	}
	if l.rates.strict && l.rates.known && l.rates.down != tunnel.UnknownRate {
		most = min(most, l.rates.down)
	}
	if most == math.MaxInt64 {
		return 0
	}
	return most
}

// upRate returns the rate towards the peer.
func (l *link) upRate() unit.Bandwidth {
	configured := l.configuredRate()
	if configured == 0 && (!l.rates.up.Estimated || l.rates.known && l.rates.down == 0) {
		return 0 // nothing is carried
	}
	if configured > 0 && configured != l.rates.limit {
		return configured
	}
	return l.rates.capacity.Value()
}

// pace returns the rate that packets to the peer are paced to.
func (l *link) pace() unit.Bandwidth {
	if l.configuredRate() != l.rates.limit {
		return l.upRate()
	}
	return l.rates.capacity.Pace()
}

// suite returns the name of a session's encryption.
func suite(s *session.Session) string { return tunnel.Suite(s.Suite).String() }

// install derives the keys of a session and registers them for received messages.
func (x *sessionState) install(s *session.Session) (*keys, error) {
	send, err := tunnel.NewKey(tunnel.Suite(s.Suite), s.Send)
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	receive, err := tunnel.NewKey(tunnel.Suite(s.Suite), s.Receive)
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	k := &keys{Session: s, peer: x.peer, send: send, receive: receive}
	p := x.peer.plane
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	for i, old := range p.keys {
		if old.peer == x.peer && x.assoc.Find(i) == nil {
			delete(p.keys, i)
		}
	}
	p.keys[s.Local] = k
	return k, nil
}

// use starts to send with keys.
func (x *sessionState) use(k *keys, now time.Duration) {
	if x.sending == nil {
		x.since = now
	}
	x.sending, x.keysSince, x.proven, x.peer.initiating.tries = k, now, false, 0
	x.peer.initiating.stale.end()
	x.epoch++
	k.out.Put(tunnel.Hello{Endpoints: len(x.peer.conf.Endpoints) > 0})
	x.acceptOpen()
	if x.peer.numbering.owner {
		x.announce(x.peer.plane.lineStates())
	}
	for i := range x.peer.links {
		l := &x.peer.links[i]
		// A gateway that was restarted has no registrations, and no record of what it has sent.
		l.probing.due, l.registration.at, l.nat.reported = 0, 0, netip.AddrPort{}
		l.reports.last.Next, l.reports.oversized = 0, 0
		l.reports.loss.Renumber()
		if !l.probing.alive.Alive() {
			l.probing.alive = quality.Liveness{} // the first answer is enough
		}
	}
	x.peer.memberRequest.at = 0
	x.peer.scheduling.refresh()
	x.peer.wakeControlLocked()
}

// announce sends the paths of this gateway to the peer.
func (x *sessionState) announce(paths []plane.Path) {
	for i, c := range paths {
		if x.peer.conf.Alliance.Uses(x.peer.conf.Name, c) {
			x.sending.out.Put(tunnel.PathAdd{Path: uint8(i), Up: announced(c.Up), Down: announced(c.Down), Cost: int32(c.Cost), Strict: c.Strict, Name: c.Name})
		}
	}
}

// remove ends all sessions with a peer that is no longer configured.
func (r *peer) remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session.sendBye()
	r.removed = true
	r.session.end()
}

// end ends all sessions.
func (x *sessionState) end() {
	x.assoc.Forget()
	x.sending = nil
	x.peer.memberRequest.end("the member has ended the session")
	x.peer.relaying.end("the leader has ended the session")
	for i := range x.peer.links {
		l := &x.peer.links[i]
		l.registration, l.address.unproved, l.address.waiting = registration{}, unproved{}, nil
	}
	x.openCookie = 0
	x.acceptOpen()
	p := x.peer.plane
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	for i, k := range p.keys {
		if k.peer == x.peer {
			delete(p.keys, i)
		}
	}
	for _, i := range x.peer.initiating.pending {
		delete(p.pending, i)
	}
	x.peer.initiating.pending = nil
	x.peer.scheduling.refresh()
}

// close ends the session and the relay of the peer when this gateway stops.
func (r *peer) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session.sendBye()
	r.relaying.end("this gateway stops")
}

// status returns the state of the peer, and what is relayed for it.
func (r *peer) status(now time.Duration) (s plane.PeerStatus, relays []plane.RelayStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = plane.PeerStatus{Name: r.conf.Name, Role: r.conf.Alliance.Role, Mode: r.conf.Mode, Epoch: r.session.epoch}
	if s.Role == plane.Leader {
		relays = []plane.RelayStatus{r.relaying.status(now)}
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
	names := r.links.names()
	shortest := time.Duration(math.MaxInt64)
	for i := range r.scheduling.paths {
		if r.scheduling.paths[i].Usable {
			shortest = min(shortest, r.scheduling.paths[i].Delay)
		}
	}
	r.rx.Lock()
	defer r.rx.Unlock()
	for i := range r.links {
		l := &r.links[i]
		if l.line == nil {
			continue
		}
		state := "unproven"
		switch {
		case !l.line.conf.Load().Usable || l.line.socket.Load() == nil:
			state = "down"
		case r.session.sending != nil && l.probing.alive.Alive() && !r.registering.allows(l, now):
			state = "unregistered"
		case r.session.sending != nil && l.probing.alive.Alive():
			state = "up"
		case l.probing.alive.Proven():
			state = "dead"
		}
		x := &r.rx.links[i]
		ls := plane.LinkStatus{
			Path: names[i], Endpoint: l.address.remote, Seen: l.nat.seen, State: state, Sent: l.sent.value(),
			Member: l.line.conf.Load().Member, CareOf: l.registration.careOf, Reason: l.registration.reason,
			Received: plane.Count{Packets: x.packets, Bytes: x.bytes}, RTT: l.probing.rtt.SRTT, Jitter: l.reports.last.Jitter, Spread: l.reports.last.Spread,
			Loss: l.lossShare(), Lost: l.reports.lost, Missed: x.missed, Rate: l.upRate(), MTU: l.search.mtu,
		}
		switch x := &l.registration; {
		case x.until > now:
			ls.Lifetime = x.until - now
		case ls.Member != "" && s.Role == plane.Member && r.memberRequest.until > now:
			ls.Lifetime = r.memberRequest.until - now
		case ls.Member != "" && s.Role == plane.Member:
			ls.Reason = r.memberRequest.reason
		}
		if i < len(r.scheduling.paths) && r.scheduling.paths[i].Usable {
			if d := &r.selection.decision; r.scheduling.paths[i].Resting {
				ls.Resting = d.Explain(names)
			}
			ls.Delay, ls.Queue = r.scheduling.paths[i].Delay-shortest, r.scheduling.queues.Wait(i, now)
		}
		s.Links = append(s.Links, ls)
	}
	if x := &r.rx; x.order.receiver != nil {
		st := x.order.receiver.Stats()
		s.Held, s.Late, s.Duplicates, s.Skipped = st.Held, st.Late, st.Duplicates, st.Named+st.Passed+st.Expired+st.Forced
	}
	for i := range r.policy.rules {
		u := &r.policy.rules[i]
		st := plane.RuleStatus{Rule: i, Discipline: u.discipline.String(), Sent: u.sent, Copies: u.copies}
		if u.discipline.Name == plane.Auto && s.Up {
			st.Because = r.selection.decision.Explain(names)
		}
		for j := range r.links {
			if u.used.Has(j) && r.links[j].line != nil {
				st.Using = append(st.Using, names[j])
			}
		}
		s.Policies = append(s.Policies, st)
	}
	return s, relays
}
