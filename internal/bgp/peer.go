package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/session"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// families is the size of arrays that are indexed by a Family.
const families = message.VPNv6 + 1

// neighbor is a Neighbor with its session and its routes.
type neighbor struct {
	speaker  *Speaker
	key      netip.Addr // address with zone
	internal bool
	group    string // name of the group that it is a member of; empty: none
	session  *session.Session
	stopping chan struct{} // closed before the session is stopped

	disabled atomic.Bool // changed with calls held

	in  receiving // used by the session in one goroutine
	out sending   // used by the session in another goroutine

	// Guarded by the speaker's mu.
	conf     Neighbor
	importer *importer
	exporter *exporter // nil before the first session
	up       bool
	ended    chan struct{} // closed when the end of the session that is up has been processed
	source   rib.Source    // Local: none
	// keep: the end of the session is not requested, so that routes are retained.
	keep bool
	// lost: the neighbor's locators are advertised as lost until its routes are withdrawn.
	lost bool
	feed feed
	// readers take the Adj-RIB-In for the reader of events.
	readers [families]*rib.Consumer
	limit   limit
	stale   retention
	faults  faults
	// reported are the reasons of rejected routes that were logged.
	reported map[uint16]bool
}

// receiving decodes the UPDATEs of a neighbor.
type receiving struct {
	decoder *message.Decoder
	update  message.Update
	credit  credit
}

// sending encodes the routes that a neighbor receives.
type sending struct {
	encoder *message.Encoder
	batch   batch
}

// feed is what a neighbor has yet to be sent.
type feed struct {
	consumers [families]*rib.Consumer // of best paths
	// initial is where the neighbor has every route for the first time; endOfRIB are the families
	// in which it has not been sent End-of-RIB yet.
	initial  [families]rib.Barrier
	endOfRIB message.FamilySet
}

func newNeighbor(s *Speaker, conf Neighbor) (*neighbor, error) {
	n := &neighbor{
		speaker: s, key: conf.Address.WithZone(conf.Interface), internal: conf.ASN == s.opt.ASN,
		stopping: make(chan struct{}), conf: conf,
	}
	n.importer = s.newImporter(n)
	var err error
	n.session, err = session.New(n.sessionConfig(), session.Handler{
		Up: n.established, Update: n.receive, Refresh: n.refresh, Fill: n.fill, Down: n.terminated,
	})
	return n, err
}

// sessionConfig returns the configuration of the session.
func (n *neighbor) sessionConfig() session.Config {
	c := n.conf
	conf := session.Config{
		Remote: netip.AddrPortFrom(n.key, cmp.Or(c.Port, DefaultPort)), Local: c.LocalAddress,
		LocalASN: n.speaker.opt.ASN, RemoteASN: c.ASN, RouterID: n.speaker.opt.RouterID,
		HoldTime: cmp.Or(c.HoldTime, DefaultHoldTime), ConnectRetry: cmp.Or(c.ConnectRetry, DefaultConnectRetry),
		Passive: c.Passive, Password: c.Password, Multihop: c.Multihop, GTSM: c.GTSM,
		Unreached: n.speaker.opt.Unreached, Listener: n.speaker.listener, Log: n.speaker.log.With("neighbor", c.Name),
	}
	conf.Families = message.Families(c.Families...)
	for f := range conf.Families.All() {
		if f.Is4() {
			conf.ExtendedNextHop |= message.Families(f)
		}
	}
	conf.RouteRefresh, conf.ExtendedMessage, conf.Role = true, true, c.Role
	if n.internal {
		// Without a family, the capability concerns only the End-of-RIB marker (RFC 4724
		// section 3).
		conf.Restart = message.Restart{Advertised: true, Time: 1}
	}
	return conf
}

// established is called when the session is up.
func (n *neighbor) established(e session.Established) {
	n.awaitDelivery()
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	n.ended = make(chan struct{}) // first: terminated closes it, also if the following panics
	n.in.decoder = message.NewDecoder(e.Negotiated, n.internal, n.speaker.interner)
	n.out.encoder = message.NewEncoder(e.Negotiated)
	peer := rib.Peer{External: !n.internal, RouterID: e.Open.RouterID, Address: n.key}
	if n.source == rib.Local {
		n.source = n.speaker.rib.AddSource(peer)
		for len(n.speaker.sources) <= int(n.source) {
			n.speaker.sources = append(n.speaker.sources, nil)
		}
		n.speaker.sources[n.source] = n
	} else {
		n.speaker.rib.SetPeer(n.source, peer) // which has stale paths
	}
	n.up, n.keep, n.lost = true, true, false
	n.exporter = &exporter{
		Neighbor: n.conf, own: n.speaker.opt, internal: n.internal, self: e.Local.Addr().WithZone(""), extended: e.ExtendedNextHop, routerID: e.Open.RouterID,
	}
	n.feed.endOfRIB = 0
	n.limit.exceeded, n.limit.discarded = 0, 0
	if e.EndOfRIB {
		n.feed.endOfRIB = e.Families
	}
	n.stale.established(n, e)
	for f := range e.Families.All() {
		c := n.speaker.rib.NewConsumer(f, n.session.Wake)
		n.feed.consumers[f], n.feed.initial[f] = c, c.Barrier()
		if n.speaker.opt.Report&ReportAdjIn != 0 && !n.internal && !f.VPN() {
			n.readers[f] = n.speaker.rib.NewReader(f, n.source, n.speaker.reader.wake)
		}
	}
	n.speaker.reader.up(n)
}

// awaitDelivery waits until the end of the previous session has been delivered to the reader of
// events, so that its withdrawals are not mixed with the routes of the next session.
func (n *neighbor) awaitDelivery() {
	n.speaker.mu.Lock()
	ending := n.speaker.ending[n.conf.Name]
	n.speaker.mu.Unlock()
	if ending == nil {
		return
	}
	select {
	case <-ending:
	case <-n.stopping:
	case <-n.speaker.done:
	}
}

// receive applies an UPDATE.
func (n *neighbor) receive(body []byte) error {
	u := &n.in.update
	if err := n.in.decoder.Update(body, u); err != nil {
		return err
	}
	count := len(u.Withdrawn)
	for _, a := range u.Announced {
		count += len(a.NLRI)
	}
	now := time.Now()
	urgent := n.in.credit.take(count, now)
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	n.stale.heard = now
	if len(u.Faults) > 0 {
		n.faults.add(n.speaker.log.With("neighbor", n.conf.Name), u.Faults, now)
	}
	if n.limit.held { // the session is about to end
		for _, a := range u.Announced {
			n.limit.count += uint64(len(a.NLRI))
		}
		return nil
	}
	for _, k := range u.Withdrawn {
		n.speaker.rib.Withdraw(k, n.source, urgent)
	}
	for _, a := range u.Announced {
		id := n.speaker.rib.Hold(a.Attributes)
		c := n.importer.classify(a.NLRI[0].Key.Family(), a.Attributes)
		for _, r := range a.NLRI {
			if n.discards(r.Key) {
				continue
			}
			p := rib.Path{Received: id, Label: r.Label, Source: n.source}
			p.Accepted, p.Reason = n.importer.accept(n, c, r.Key, r.Label, id)
			n.speaker.rib.Announce(r.Key, p, urgent)
		}
		n.speaker.rib.Release(id)
	}
	if u.EndOfRIB != 0 {
		n.stale.marker(n, u.EndOfRIB)
		n.speaker.reader.endOfRIB(n, u.EndOfRIB)
	}
	n.checkLimit()
	return nil
}

// accepted returns the number of accepted unicast routes. Callers hold mu.
func (n *neighbor) accepted() int {
	if n.source == rib.Local {
		return 0
	}
	_, v4 := n.speaker.rib.Received(IPv4Unicast, n.source)
	_, v6 := n.speaker.rib.Received(IPv6Unicast, n.source)
	return v4 + v6
}

// refresh sends all routes of a family again (RFC 2918).
func (n *neighbor) refresh(r message.Refresh) error {
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	if c := n.feed.consumers[r.Family]; c != nil {
		c.MarkAll()
	}
	return nil
}

// terminated is called when the session has ended. It withdraws the neighbor's routes, or retains
// them.
func (n *neighbor) terminated(r session.Reason) {
	n.speaker.mu.Lock()
	n.up = false
	n.stale.ended()
	for f, c := range n.feed.consumers {
		if c != nil {
			c.Close()
			n.feed.consumers[f] = nil
		}
	}
	if !r.Local && !n.internal && len(n.conf.Locators) > 0 {
		n.speaker.blackhole(true, n.conf.Locators)
	}
	retain, from := n.keep && n.conf.Retain > 0, n.source
	n.speaker.mu.Unlock()
	switch {
	case from == rib.Local: // established has panicked before; the routes are those of this speaker
	case retain:
		n.stale.begin(n)
	default:
		n.speaker.purge(from)
	}
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	if n.lost {
		n.speaker.blackhole(false, n.conf.Locators)
	}
	n.speaker.reader.down(n, r.Text)
	close(n.ended)
}

// purge removes all paths of a source.
func (s *Speaker) purge(from rib.Source) {
	s.inSlices(func(f Family) bool { return s.rib.Purge(f, from, slice) })
}

// inSlices calls step for each family until it reports that it is done. It holds mu during each
// call, so that urgent work can be done in between.
func (s *Speaker) inSlices(step func(Family) (done bool)) {
	for f := IPv4Unicast; f < families; f++ {
		for done := false; !done; {
			select {
			case <-s.done:
				return
			default:
			}
			func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				done = step(f)
			}()
			// Without this, the mutex is taken again before a goroutine that waits for it runs, until
			// that has waited for a millisecond.
			runtime.Gosched()
		}
	}
}

// freeSource frees the neighbor's source if there is no path left. Callers hold mu.
func (n *neighbor) freeSource() {
	if n.up || n.source == rib.Local {
		return
	}
	select {
	case <-n.ended:
	default:
		return // terminated uses it
	}
	for f := IPv4Unicast; f < families; f++ {
		if all, _ := n.speaker.rib.Received(f, n.source); all > 0 || n.readers[f] != nil {
			return
		}
	}
	n.speaker.rib.RemoveSource(n.source)
	n.speaker.sources[n.source] = nil
	n.source = rib.Local
}

// stop ends the session, which is not started again.
func (n *neighbor) stop(m message.Notification, reason string) {
	n.speaker.mu.Lock()
	n.keep = false
	n.speaker.mu.Unlock()
	close(n.stopping)
	n.session.Stop(m, reason)
	n.stale.drop(n)
}

// release makes the session end without retaining routes, and returns a function that waits until
// its routes are withdrawn. end starts the end of the session.
func (n *neighbor) release(end func()) {
	n.speaker.mu.Lock()
	n.keep = false
	up, ended := n.up, n.ended
	n.speaker.mu.Unlock()
	end()
	if up {
		select {
		case <-ended:
		case <-n.speaker.done:
		}
	}
	n.stale.drop(n)
}

// monitor starts BFD with the neighbor if it is configured.
func (n *neighbor) monitor() error {
	local := n.conf.LocalAddress
	if local.IsValid() {
		local = local.WithZone(n.conf.Interface)
	}
	return n.speaker.bfd.Add(bfd.Neighbor{Name: n.conf.Name, Local: local, Remote: n.key, Config: n.conf.BFD})
}

// credit distinguishes single changes, which are urgent, from the transfer of a table: a token
// bucket of urgent changes, by source of routes.
type credit struct {
	spent float64
	last  time.Time
}

const (
	urgentBurst = 500
	urgentRate  = 2000 // per second
)

// take reports whether n changes are urgent.
func (c *credit) take(n int, now time.Time) bool {
	c.spent = max(0, c.spent-now.Sub(c.last).Seconds()*urgentRate)
	c.last = now
	if c.spent+float64(n) > urgentBurst {
		return false
	}
	c.spent += float64(n)
	return true
}

// batch is what is sent to a neighbor at once.
type batch struct {
	exporter  *exporter // that decided about the routes
	withdrawn [families][]message.Key
	groups    []group
	byKey     map[groupKey]int32
	routes    []groupedRoute
	endOfRIB  message.FamilySet
	nlri      []message.NLRI
	// class is that of the attributes that were classified last, by these rules.
	rules      *policy.Policy
	classified *message.Attributes
	class      policy.Class
	// unsent counts routes that could not be encoded since that was last logged.
	unsent int
	logged time.Time
}

type groupKey struct {
	id     rib.ID
	source rib.Source
	rules  uint64 // that change the attributes
}

// group is routes of one family with the same attributes.
type group struct {
	groupKey
	family      Family
	attributes  *message.Attributes
	from        origin
	first, last int32 // in routes
}

type groupedRoute struct {
	message.NLRI
	next int32 // of the same group; -1: none
}

// batchSize is the number of destinations that are taken at once.
const batchSize = 512

// fill appends messages to send; see session.Handler.
func (n *neighbor) fill(buf []byte) []byte {
	start := len(buf)
	for len(buf) == start {
		more := n.pull()
		buf = n.encode(buf)
		if !more {
			break
		}
	}
	return buf
}

// pull takes changed destinations, and reports whether there are more.
func (n *neighbor) pull() (more bool) {
	b := &n.out.batch
	for f := range b.withdrawn {
		b.withdrawn[f] = b.withdrawn[f][:0]
	}
	clear(b.groups)
	b.groups, b.routes, b.endOfRIB = b.groups[:0], b.routes[:0], 0
	if b.byKey == nil {
		b.byKey = map[groupKey]int32{}
	}
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	if !n.up {
		return false
	}
	b.exporter = n.exporter
	left := batchSize
	for _, c := range n.feed.consumers {
		if c != nil && c.Urgent() {
			clear(b.byKey)
			left -= c.PullUrgent(left, n.take)
		}
	}
	for f, c := range n.feed.consumers {
		if c == nil {
			continue
		}
		clear(b.byKey)
		left -= c.Pull(left, n.take)
		if n.feed.endOfRIB.Has(Family(f)) && c.Passed(n.feed.initial[f]) {
			n.feed.endOfRIB &^= message.Families(Family(f))
			b.endOfRIB |= message.Families(Family(f))
		}
		more = more || c.Pending() > 0
	}
	return more
}

// take adds a destination to the batch, and reports whether the neighbor has a route to it then:
// not after a panic.
func (n *neighbor) take(item rib.Item) (held bool) {
	b := &n.out.batch
	defer func() {
		if value := recover(); value != nil {
			n.speaker.contained(value, item.Key)
			if held = false; item.Held {
				b.withdraw(item.Key)
			}
		}
	}()
	contain.PointAt(contain.BGPRoute, item.Key)
	if p := item.Path; p.Received != 0 && p.Source != n.source {
		a, from := n.speaker.rib.Attributes(p.Accepted), n.speaker.originOf(p.Source)
		if b.exporter.admits(item.Key, a, from) {
			if rules, ok := b.evaluate(b.exporter.Export.Rules, a, item.Key); ok {
				b.add(item, a, from, rules)
				return true
			}
		}
	}
	if item.Held {
		b.withdraw(item.Key)
	}
	return false
}

// withdraw adds a destination that the neighbor has no route to any more.
func (b *batch) withdraw(k message.Key) {
	f := k.Family()
	b.withdrawn[f] = append(b.withdrawn[f], k)
}

// contained counts a panic about one route, which nobody is advertised or reported then, as one
// with a malformed attribute (RFC 7606): it was received in another session than the one that
// fails.
func (s *Speaker) contained(value any, k message.Key) error {
	return contain.Caught(value, contain.BGPRoute, s.log.With("route", k.Prefix()), nil)
}

// originOf describes a source. Callers hold mu.
func (s *Speaker) originOf(source rib.Source) origin {
	o := origin{source: source, peer: s.rib.Peer(source)}
	if from := s.sources[source]; from != nil {
		o.client = from.conf.ReflectorClient
	}
	return o
}

// evaluate applies the rules of export to a route, and returns those that change it.
func (b *batch) evaluate(rules *policy.Policy, a *message.Attributes, k message.Key) (changed uint64, ok bool) {
	if rules == nil {
		return 0, true
	}
	if b.rules != rules || b.classified != a {
		b.rules, b.classified, b.class = rules, a, classify(rules, a)
	}
	v := rules.Evaluate(b.class, k.Prefix())
	return v.Changed, v.Accept
}

func (b *batch) add(item rib.Item, a *message.Attributes, from origin, rules uint64) {
	key := groupKey{item.Path.Accepted, item.Path.Source, rules}
	at := int32(len(b.routes))
	b.routes = append(b.routes, groupedRoute{message.NLRI{Key: item.Key, Label: item.Path.Label}, -1})
	i := int32(len(b.groups)) - 1
	if i < 0 || b.groups[i].groupKey != key || b.groups[i].family != item.Key.Family() {
		var known bool
		if i, known = b.byKey[key]; !known {
			i = int32(len(b.groups))
			b.byKey[key] = i
			b.groups = append(b.groups, group{groupKey: key, family: item.Key.Family(), attributes: a, from: from, first: at, last: at})
			return
		}
	}
	g := &b.groups[i]
	b.routes[g.last].next, g.last = at, at
}

// encode appends the messages of the batch: withdrawals first.
func (n *neighbor) encode(buf []byte) []byte {
	b := &n.out.batch
	for _, keys := range b.withdrawn {
		buf = n.withdraw(buf, keys)
	}
	for i := range b.groups {
		buf = n.announce(buf, &b.groups[i])
	}
	for f := range b.endOfRIB.All() {
		buf = message.AppendEndOfRIB(buf, f)
	}
	return buf
}

func (n *neighbor) withdraw(buf []byte, keys []message.Key) []byte {
	for len(keys) > 0 {
		var sent int
		buf, sent = n.out.encoder.Withdraw(buf, keys)
		keys = keys[sent:]
	}
	return buf
}

func (n *neighbor) announce(buf []byte, g *group) []byte {
	b := &n.out.batch
	b.nlri = b.nlri[:0]
	for i := g.first; i >= 0; i = b.routes[i].next {
		b.nlri = append(b.nlri, b.routes[i].NLRI)
	}
	buf, left, err := n.encodeGroup(buf, g)
	if err == nil {
		return buf
	}
	b.unsent += len(left)
	if now := time.Now(); now.Sub(b.logged) >= faultPause {
		n.speaker.log.Warn("route not advertised", "neighbor", b.exporter.Name, "err", err, "routes", b.unsent)
		b.unsent, b.logged = 0, now
	}
	keys := make([]message.Key, len(left))
	for i, r := range left {
		keys[i] = r.Key
	}
	return n.withdraw(buf, keys)
}

// encodeGroup appends the routes of the batch's nlri with the attributes of a group. After an
// error, left are those that were not appended.
func (n *neighbor) encodeGroup(buf []byte, g *group) (all []byte, left []message.NLRI, err error) {
	b := &n.out.batch
	start, x := len(buf), b.exporter
	defer func() {
		if value := recover(); value != nil {
			all, left, err = buf[:start], b.nlri, n.speaker.contained(value, b.nlri[0].Key)
		}
	}()
	contain.PointAt(contain.BGPRoute, b.nlri[0].Key)
	f, ok := x.fields(g.family, g.attributes, g.from, g.rules)
	if !ok {
		return buf, b.nlri, errors.New("our address cannot be the next hop")
	}
	for left = b.nlri; len(left) > 0 && err == nil; {
		var sent int
		buf, sent, err = n.out.encoder.AnnounceFields(buf, &f, left)
		left = left[sent:]
	}
	return buf, left, err
}

// addNeighbor is AddNeighbor for callers that hold calls. The neighbor is a member of a group
// unless the name of the group is empty.
func (s *Speaker) addNeighbor(conf Neighbor, group string) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := conf.check(s.opt.ASN); err != nil {
		return err
	}
	if conf.Retain > 0 && s.opt.Report&ReportAdjIn != 0 {
		return errors.New("routes cannot be retained with ReportAdjIn")
	}
	conf.Families = slices.Clone(conf.Families)
	conf.Locators = slices.Clone(conf.Locators)
	conf.Import, conf.Export = conf.Import.clone(), conf.Export.clone()
	key := conf.Address.WithZone(conf.Interface)
	if group == "" {
		s.dismiss(key)
	}
	s.mu.Lock()
	_, taken := s.neighbors[conf.Name]
	for _, other := range s.neighbors {
		if other.key == key {
			s.mu.Unlock()
			return fmt.Errorf("address %s is that of neighbor %q", conf.Address, other.conf.Name)
		}
	}
	if taken {
		s.mu.Unlock()
		return errors.New("name is in use")
	}
	n, err := newNeighbor(s, conf)
	if err == nil {
		n.group = group
		s.neighbors[conf.Name] = n
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err = n.monitor(); err == nil {
		err = n.session.Start()
	}
	if err != nil {
		s.bfd.Remove(conf.Name)
		s.mu.Lock()
		delete(s.neighbors, conf.Name)
		s.mu.Unlock()
	}
	return err
}
