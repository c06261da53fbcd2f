package sealed

import (
	"cmp"
	"log/slog"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// peer is another gateway: what is common to its parts. Each part is the state of one task, and is
// in the file of its name; doc.go has the order of the locks.
type peer struct {
	plane *Plane
	own   handshake.PublicKey
	log   *slog.Logger

	// active is when a packet to or from the peer was last carried.
	active atomic.Int64
	// relaysChanged: what members relay has changed.
	relaysChanged atomic.Bool
	// scouting: both gateways keep tunnel.ScoutPath for scouts.
	scouting atomic.Bool

	mu      sync.Mutex // guards the following, except rx
	conf    dataplane.Peer
	panics  contain.Backoff
	removed bool
	due     time.Duration // when the control loop has something to send

	session    sessionState
	initiating initiating
	numbering  numbering
	matching   matching
	trains     trains
	links      links
	scheduling scheduling
	policy     policy
	selection  selection
	uses       uses
	pacing     pacing
	messages   messages
	received   controlMessage // the last one, so that none is allocated
	prober     prober
	proving    proving

	memberRequest memberRequest // if the peer is a member
	relaying      relaying      // if the peer is a leader that this gateway relays for
	registering   registering

	rx receiving // has a mutex of its own
}

func newPeer(p *Plane, own handshake.PrivateKey, c dataplane.Peer) *peer {
	r := &peer{
		plane: p, own: own.Public(), log: slog.New(&limitedLog{Handler: p.log.Handler(), now: p.now}),
		panics:     contain.Backoff{First: firstRest},
		scheduling: scheduling{mtu: baseMTU, paths: make([]sched.Path, tunnel.MaxPaths)},
		pacing:     pacing{due: pacer.Never},
	}
	r.connectParts()
	r.trains.forget()
	r.session.assoc = handshake.NewAssociation(handshake.AssociationOptions{
		Own: own, Peer: handshake.Peer{Public: c.Public, Preshared: c.Preshared},
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
	r.uses.peer, r.messages.peer, r.prober.peer, r.proving.peer, r.registering.peer = r, r, r, r, r
	r.memberRequest.peer, r.relaying.peer, r.matching.peer, r.trains.peer = r, r, r, r
}

// configure applies a configuration.
func (r *peer) configure(c dataplane.Peer, s dataplane.State, lines []*line) error {
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
	if c.Alliance.Role == dataplane.Member {
		home := homeOf(s)
		if open := home.Mode.Open(); open != r.memberRequest.open {
			r.memberRequest.open, r.memberRequest.at = open, 0
		}
		r.memberRequest.homes = home.Endpoints
	}
	r.numbering.decide(r.own, &r.conf)
	r.updateScouting(len(lines))
	if r.session.sending != nil && len(r.plane.lineStates()) < tunnel.MaxPaths != (len(lines) < tunnel.MaxPaths) {
		r.session.sending.out.Put(r.session.hello(len(lines)))
	}
	if changed || !slices.Equal(r.plane.routing.Load().lines, lines) {
		r.matching.change(r.plane.now())
		r.matching.rates = [tunnel.MaxPaths]sharedRates{}
		r.trains.forget()
	}
	for i := range r.links {
		l := &r.links[i]
		switch {
		case i < len(lines) && r.numbering.owner && c.Alliance.Uses(c.Name, s.Paths[i]):
			if l.line != lines[i] {
				*l = link{number: i, line: lines[i]}
			}
			l.more = false
			l.name, l.rates.up, l.cost = lines[i].name, s.Paths[i].Up, s.Paths[i].Cost
			if c.Alliance.Role == dataplane.HomeAgent && s.Paths[i].Member != "" {
				continue // follow has its address
			}
			l.address.candidates = rotate(c.Endpoints, i)
			if changed && !slices.Contains(c.Endpoints, l.address.remote) {
				l.address.remote = netip.AddrPort{}
			}
		case l.more && i >= len(lines) && r.numbering.owner && slices.Contains(lines, l.line) && !changed:
			// matching has its rates
		case l.line != nil && (r.numbering.owner || !slices.Contains(lines, l.line)):
			r.registering.withdraw(i)
			if r.numbering.owner {
				r.session.retract(i)
			}
			*l = link{number: i}
		case l.line != nil:
			l.rates.up = s.Paths[slices.Index(lines, l.line)].Up
		}
	}
	if err := r.policy.apply(s.Policy, &r.scheduling.queues); err != nil {
		return err
	}
	if r.numbering.owner {
		r.matching.apply()
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
func homeOf(s dataplane.State) dataplane.Peer {
	for _, c := range s.Peers {
		if c.Alliance.Role == dataplane.HomeAgent {
			return c
		}
	}
	return dataplane.Peer{}
}

// remove ends all sessions with a peer that is no longer configured.
func (r *peer) remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session.sendBye()
	r.removed = true
	r.session.end()
}

// close ends the session and the relay of the peer when this gateway stops.
func (r *peer) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session.sendBye()
	r.relaying.end("this gateway stops")
}
