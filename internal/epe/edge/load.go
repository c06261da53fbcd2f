package edge

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/epe/flowcount"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/mptcp"
)

// The loads of egress links. Border routers report them; while one is full, what each network
// carries is measured, and some networks avoid the link until there is room again. Nothing is
// measured otherwise.

const (
	// loadsEvery is how often the edge checks whether a link is full, or has room again.
	loadsEvery = time.Second
	// measureFor is how long the connections of networks are measured for a decision.
	measureFor = time.Second
	// maxReports bounds the reports that are kept.
	maxReports = 4096
	// namedLoss is the share that a network counts as losing without the egress peers that the
	// configuration names for it: all, so that it is the last one to leave a full link.
	namedLoss = 1
)

// egressLoads is what is known of egress links.
type egressLoads struct {
	balancer *capacity.Balancer
	// reports are those of the links, by their routes; links those of SIDs.
	reports map[pathKey]linkReport
	links   map[netip.Addr]capacity.Link
	// best are the links that best paths lead through, of networks that had packets on them when
	// they were last measured.
	best map[netip.Prefix]capacity.Link
	// reason is why networks cannot be measured, "" if they can.
	reason string
}

// linkReport is a report of the load of a link.
type linkReport struct {
	link   capacity.Link
	sid    netip.Addr
	sample uint32
	// firstAS is the AS of the egress peer.
	firstAS uint32
}

// newLoads returns the state without reports. The address of the server has it decide at other
// times than others.
func newLoads(server netip.Addr) egressLoads {
	h := fnv.New64a()
	_, _ = h.Write(server.AsSlice())
	return egressLoads{
		balancer: capacity.New(h.Sum64()), reports: map[pathKey]linkReport{}, links: map[netip.Addr]capacity.Link{}, best: map[netip.Prefix]capacity.Link{},
	}
}

// isLoad reports whether a VPN path is a report of a load.
func (e *egress) isLoad(p bgp.VPNPath) bool {
	return !p.Withdrawn && p.Rejected == nil && p.Load != (bgp.Load{}) && p.Prefix == bgp.LoadPrefix(p.SID) &&
		slices.Contains(p.RTs, bgp.LoadTarget(e.config.ASN)) &&
		bgp.Inside(e.config.Locators, host(p.SID))
}

// updateLoad applies a VPN path if it is a report of a load, or was one.
func (e *egress) updateLoad(p bgp.VPNPath) {
	key, l := pathKey{p.RD, p.Prefix}, &e.loads
	old, had := l.reports[key]
	if !e.isLoad(p) {
		if had {
			delete(l.reports, key)
			l.forget(old)
		}
		return
	}
	if !had && len(l.reports) >= maxReports {
		return
	}
	now := linkReport{capacity.Link{Router: p.NextHop, Number: p.Load.Link}, p.SID, p.Load.Sample, p.ASPath.First()}
	if had && now == old {
		return // it was applied again, and is as old as before
	}
	l.reports[key], l.links[p.SID] = now, now.link
	if had && old.link != now.link {
		l.forget(old)
		l.links[p.SID] = now.link
	}
	l.balancer.Report(e.now(), now.link, capacity.Load{Capacity: float64(p.Load.Capacity), Used: float64(p.Load.Used)})
}

// forget removes what followed from a report that is no more.
func (l *egressLoads) forget(old linkReport) {
	link, sid := false, false
	for _, r := range l.reports {
		link, sid = link || r.link == old.link, sid || r.sid == old.sid
	}
	if !link {
		l.balancer.Forget(old.link)
	}
	if !sid {
		delete(l.links, old.sid)
	}
}

// linkOf returns the link that packets to a prefix leave through by a peer.
func (e *egress) linkOf(p *peer, prefix netip.Prefix) capacity.Link {
	return e.loads.links[e.covering(p, prefix).sid]
}

// avoids reports whether a network avoids the link behind a SID.
func (e *egress) avoids(prefix netip.Prefix, sid netip.Addr) bool {
	link, ok := e.loads.links[sid]
	return ok && e.loads.balancer.Avoids(prefix, link)
}

// option is a mode that a network can have, the links that it leads through, and what it brings as
// a multiple of the best path.
type option struct {
	mode   belief.Mode
	links  []capacity.Link
	brings float64
}

// without returns what is left of an option if some links are avoided: of several egress peers the
// others, with what they are believed to add in proportion. The best path is in multipath for the
// clients that have no other.
func (o option) without(avoided func(capacity.Link) bool) (left option, ok bool) {
	left = o
	left.links = slices.DeleteFunc(slices.Clone(o.links), avoided)
	switch {
	case len(left.links) == len(o.links):
		return left, true
	case len(left.links) == 0 || o.mode == modeMultipath && avoided(o.links[0]):
		return left, false
	}
	left.brings = 1 + (o.brings-1)*float64(len(left.links))/float64(len(o.links))
	return left, true
}

// options returns the modes that a network with auto can have.
func (e *egress) options(prefix netip.Prefix, able []belief.Mode) []option {
	gains := map[belief.Mode]float64{}
	info, _ := e.auto.table.Network(e.now(), prefix)
	for _, m := range info.Modes {
		gains[m.Mode] = m.Gain
	}
	var through []capacity.Link // all peers
	list := make([]option, 0, len(able))
	for _, m := range able {
		o := option{mode: m, brings: 1 + gains[m]}
		if name, ok := singlePeer(m); ok {
			if p := e.deliveryPeer(name, bgp.IPOf(prefix.Addr())); p != nil {
				o.links = []capacity.Link{e.linkOf(p, prefix)}
				through = append(through, o.links...)
			}
		}
		list = append(list, o)
	}
	best := e.loads.best[prefix]
	for i := range list {
		switch o := &list[i]; o.mode {
		case belief.Best:
			o.links = []capacity.Link{best}
		case modeMultipath:
			o.links = append([]capacity.Link{best}, through...)
		case modeSpread:
			o.links = through
		}
	}
	return list
}

// pick returns what brings most of the options without some links, and which share of what the
// preferred one brings is lost by it.
func pick(options []option, preferred belief.Mode, avoided func(capacity.Link) bool) (best option, loss float64, ok bool) {
	full := 0.0
	for _, o := range options {
		left, usable := o.without(avoided)
		if o.mode == preferred {
			if full = o.brings; usable && left.brings == o.brings {
				return left, 0, true
			}
		}
		if usable && (!ok || left.brings > best.brings) {
			best, ok = left, true
		}
	}
	if full > 0 {
		loss = min(max(1-best.brings/full, 0), 1)
	}
	return best, loss, ok
}

// detoured returns the mode that a network with auto has instead of the preferred one while it
// avoids links.
func (e *egress) detoured(prefix netip.Prefix, preferred belief.Mode, able []belief.Mode) belief.Mode {
	if len(e.loads.balancer.Avoided(prefix)) == 0 || e.delivery.rules.dry {
		return preferred
	}
	if o, _, ok := pick(e.options(prefix, able), preferred, e.avoided(prefix)); ok {
		return o.mode
	}
	return preferred
}

// avoided returns the function that reports which links a network avoids.
func (e *egress) avoided(prefix netip.Prefix) func(capacity.Link) bool {
	return func(l capacity.Link) bool { return e.loads.balancer.Avoids(prefix, l) }
}

// elsewhere returns where a network goes without some links. Most networks are never asked.
func (e *egress) elsewhere(prefix netip.Prefix) capacity.Without {
	var without capacity.Without
	return func(avoided func(capacity.Link) bool) ([]capacity.Link, float64, bool) {
		if without == nil {
			without = e.alternatives(prefix)
		}
		return without(avoided)
	}
}

// alternatives looks up what elsewhere needs.
func (e *egress) alternatives(prefix netip.Prefix) capacity.Without {
	rule := e.deliveryRule(prefix)
	if rule == nil {
		return func(func(capacity.Link) bool) ([]capacity.Link, float64, bool) { return nil, 0, false }
	}
	if rule.auto {
		able := e.able(prefix)
		preferred := e.auto.table.Mode(e.now(), prefix, e.originOf(prefix), able)
		options := e.options(prefix, able)
		return func(avoided func(capacity.Link) bool) ([]capacity.Link, float64, bool) {
			o, loss, ok := pick(options, preferred, avoided)
			return o.links, loss, ok
		}
	}
	var named []capacity.Link
	for _, w := range rule.peers {
		if p := e.deliveryPeer(w.peer, bgp.IPOf(prefix.Addr())); p != nil && e.covering(p, prefix).sid.IsValid() {
			named = append(named, e.linkOf(p, prefix))
		}
	}
	best := e.loads.best[prefix]
	return func(avoided func(capacity.Link) bool) ([]capacity.Link, float64, bool) {
		left := slices.DeleteFunc(slices.Clone(named), avoided)
		switch {
		case len(left) > 0 && len(left) == len(named):
			return left, 0, true
		case len(left) > 0:
			return left, namedLoss, true
		}
		return []capacity.Link{best}, namedLoss, best != (capacity.Link{}) && !avoided(best)
	}
}

// flowEnds are the ends of connections of a client: the server's address, and the client's.
type flowEnds struct{ local, remote netip.Addr }

// networkUse is what a network carries in bytes/s: by EPE addresses, and from all other addresses.
type networkUse struct {
	byPeer map[*peer]float64
	rest   float64
}

// networkUses sums up what connections carry by network.
func (e *egress) networkUses(rates map[flowEnds]float64) map[netip.Prefix]*networkUse {
	uses := map[netip.Prefix]*networkUse{}
	byAddress := map[netip.Addr]*peer{}
	for _, p := range e.peers {
		byAddress[p.Address] = p
	}
	for ends, rate := range rates {
		prefix, n, ok := e.delivery.networks.LookupPrefixLPM(host(ends.remote))
		if !ok || n.rule == nil {
			continue
		}
		u := uses[prefix]
		if u == nil {
			u = &networkUse{byPeer: map[*peer]float64{}}
			uses[prefix] = u
		}
		if p := byAddress[ends.local]; p != nil {
			u.byPeer[p] += rate
		} else {
			u.rest += rate
		}
	}
	return uses
}

// on returns what a network carries on each link.
func (e *egress) on(prefix netip.Prefix, u *networkUse) map[capacity.Link]float64 {
	on := map[capacity.Link]float64{}
	for p, rate := range u.byPeer {
		on[e.linkOf(p, prefix)] += rate
	}
	n, ok := e.delivery.networks.Get(prefix)
	if !ok || n.group == nil {
		on[e.loads.best[prefix]] += u.rest
		return on
	}
	members := n.group.present()
	sum := 0.0
	for _, m := range members {
		sum += float64(m.weight)
	}
	for _, m := range members {
		on[e.loads.links[m.sid]] += u.rest * float64(m.weight) / sum
	}
	return on
}

// balance decides which networks avoid which links from now on. Some of those that were measured
// may have gone since.
func (e *egress) balance(measured map[netip.Prefix]*networkUse, best map[netip.Prefix]capacity.Link) {
	e.loads.best = best
	uses := make([]capacity.Use, 0, len(measured))
	for prefix, u := range measured {
		if _, ok := e.delivery.networks.Get(prefix); ok {
			uses = append(uses, capacity.Use{Network: prefix, On: e.on(prefix, u), Without: e.elsewhere(prefix)})
		}
	}
	slices.SortFunc(uses, func(a, b capacity.Use) int { return a.Network.Compare(b.Network) })
	for _, prefix := range e.loads.balancer.Decide(e.now(), uses) {
		if t := e.auto.trials[prefix]; t != nil {
			e.endTrial(prefix, t)
		}
		e.deliver(prefix)
		e.offer(prefix)
	}
}

// tryable reports whether no link that a mode leads through is full, and the network avoids none.
func (e *egress) tryable(prefix netip.Prefix, mode belief.Mode) bool {
	now := e.now()
	for _, o := range e.options(prefix, e.able(prefix)) {
		if o.mode == mode && slices.ContainsFunc(o.links, func(l capacity.Link) bool { return e.loads.balancer.Full(now, l) }) {
			return false
		}
	}
	return len(e.loads.balancer.Avoided(prefix)) == 0
}

// bestLink returns the link that the best path to a prefix leads through: the only one of its
// border router to a peer of the AS that the path begins with.
func (e *egress) bestLink(nextHop netip.Addr, firstAS uint32) (found capacity.Link) {
	for _, r := range e.loads.reports {
		if r.link.Router != nextHop || r.firstAS != firstAS || r.link == found {
			continue
		}
		if found != (capacity.Link{}) {
			return capacity.Link{}
		}
		found = r.link
	}
	return found
}

// balanceLinks has networks avoid full links until ctx ends.
func (e *Edge) balanceLinks(ctx context.Context) {
	var diag *mptcp.Diag
	defer func() {
		if diag != nil {
			if err := diag.Close(); err != nil {
				e.log.Error("close connection to sockets", "err", err)
			}
		}
	}()
	contain.Every(ctx, loadsEvery, contain.Reconcile, e.log, func() {
		due := false
		e.daemon.Do(ctx, func() { due = e.egress.balances() })
		if !due {
			return
		}
		var err error
		if diag == nil {
			err = e.namespace.Do(func() (err error) { diag, err = mptcp.DialDiag(); return err })
		}
		var rates map[flowEnds]float64
		if err == nil {
			rates, err = e.measureFlows(ctx, diag)
		}
		if err != nil {
			e.loadsFailed(ctx, err)
			return
		}
		var uses map[netip.Prefix]*networkUse
		e.daemon.Do(ctx, func() { uses = e.egress.networkUses(rates) })
		best := e.bestLinks(ctx, slices.Collect(maps.Keys(uses)))
		e.daemon.Change(ctx, func() {
			e.egress.loads.reason = ""
			e.egress.balance(uses, best)
		})
	})
}

// balances reports whether something is to be decided. A dry run changes nothing.
func (e *egress) balances() bool {
	return !e.delivery.rules.dry && e.loads.balancer.Due(e.now())
}

// loadsFailed records why networks cannot be measured.
func (e *Edge) loadsFailed(ctx context.Context, err error) {
	e.daemon.Do(ctx, func() {
		if e.egress.loads.reason == "" {
			e.log.Warn("measure networks failed: they stay on full links", "err", err)
		}
		e.egress.loads.reason = err.Error()
	})
}

// countPackets begins to count packets, for those of UDP, QUIC among them, of which the kernel has
// no sockets to ask. It returns nil where the host cannot.
func (e *Edge) countPackets() (counter *flowcount.Counter) {
	err := e.namespace.Do(func() (err error) {
		if counter, err = flowcount.New(flowcount.Options{}); err != nil {
			return err
		}
		for _, link := range e.config.links() {
			if err := counter.Attach(link); err != nil {
				return errors.Join(err, counter.Close())
			}
		}
		return nil
	})
	if err != nil {
		e.log.Debug("packets are not counted: networks with UDP alone stay on full links", "err", err)
		return nil
	}
	return counter
}

// measureFlows returns what connections carry, in bytes/s.
func (e *Edge) measureFlows(ctx context.Context, diag *mptcp.Diag) (_ map[flowEnds]float64, err error) {
	counter := e.countPackets()
	if counter != nil {
		defer func() { err = errors.Join(err, counter.Close()) }()
	}
	read := func() (map[mptcp.Ends]uint64, error) {
		acked := map[mptcp.Ends]uint64{}
		for _, family := range []mptcp.Family{mptcp.IPv4, mptcp.IPv6} {
			if err := diag.Sockets(family, func(s *mptcp.Socket) { acked[mptcp.Ends{Local: s.Local, Remote: s.Remote}] = s.Acked }); err != nil {
				return nil, err
			}
		}
		return acked, nil
	}
	start := time.Now()
	before, err := read()
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(measureFor):
	}
	elapsed := time.Since(start).Seconds()
	after, err := read()
	if err != nil {
		return nil, err
	}
	rates := map[flowEnds]float64{}
	for ends, acked := range after {
		// One that is new has carried all of it meanwhile.
		if was := before[ends]; acked > was {
			rates[flowEnds{ends.Local.Addr(), ends.Remote.Addr()}] += float64(acked-was) / elapsed
		}
	}
	if counter != nil {
		counter.Each(func(_ int, k *flowcount.Key, c flowcount.Count) {
			if k.Sent() && k.Protocol == unix.IPPROTO_UDP {
				rates[flowEnds{k.Src().Addr(), k.Dst().Addr()}] += float64(c.Bytes) / elapsed
			}
		})
	}
	return rates, nil
}

// bestLinks returns the links of the best paths to networks that have connections. Where best paths
// are left to other programs, they are not known.
func (e *Edge) bestLinks(ctx context.Context, networks []netip.Prefix) map[netip.Prefix]capacity.Link {
	links := map[netip.Prefix]capacity.Link{}
	if e.config.BestPaths == LeaveBestPaths || len(networks) == 0 {
		return links
	}
	type hop struct {
		prefix  netip.Prefix
		nextHop netip.Addr
		firstAS uint32
	}
	var hops []hop
	for _, prefix := range networks {
		if nextHop, firstAS, ok := e.daemon.Speaker.BestPath(prefix); ok {
			hops = append(hops, hop{prefix, nextHop, firstAS})
		}
	}
	e.daemon.Do(ctx, func() {
		for _, h := range hops {
			links[h.prefix] = e.egress.bestLink(h.nextHop, h.firstAS)
		}
	})
	return links
}

// LinkStatus is an egress link in a Status.
type LinkStatus struct {
	// Name are the egress peers behind it and its border router.
	Name string `json:"name"`
	// Capacity and Used are in bit/s.
	Capacity int64 `json:"capacity_bps"`
	Used     int64 `json:"used_bps"`
	// Avoiding is the number of client networks that avoid it because it is or was full.
	Avoiding int `json:"avoiding"`
	// Stuck: it is full, and what this server sends over it has nowhere else to go.
	Stuck bool `json:"stuck"`
}

// linkNames are the egress peers behind each link and its border router.
func (e *egress) linkNames() map[capacity.Link]string {
	peers := map[capacity.Link][]string{}
	for _, p := range e.peers {
		for n := range p.sids {
			if link, ok := e.loads.links[e.sids.Value(n)]; ok && p.sids[n] > 0 && !slices.Contains(peers[link], p.Name) {
				peers[link] = append(peers[link], p.Name)
			}
		}
	}
	names := map[capacity.Link]string{}
	for link, list := range peers {
		slices.Sort(list)
		names[link] = strings.Join(list, ", ") + " at " + link.Router.String()
	}
	return names
}

// linkStatus returns the links of the egress peers, in order of their names, and adds what keeps
// networks from avoiding them.
func (e *egress) linkStatus(report *health.Report) []LinkStatus {
	list := []LinkStatus{}
	now := e.now()
	for link, name := range e.linkNames() {
		if load, ok := e.loads.balancer.Known(now, link); ok {
			s := LinkStatus{name, bits(load.Capacity), bits(load.Used), e.loads.balancer.Moved(link), e.loads.balancer.Stuck(link)}
			list = append(list, s)
			if s.Stuck {
				report.Degrade("the link to %s is full, and networks have nowhere else to go", name)
			}
		}
	}
	if e.loads.reason != "" {
		report.Degrade("networks stay on full links: %s", e.loads.reason)
	}
	slices.SortFunc(list, func(a, b LinkStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func bits(bytes float64) int64 { return int64(math.Round(8 * bytes)) }

// detour describes the links that a network avoids, "" for none.
func (e *egress) detour(prefix netip.Prefix) string {
	avoided := e.loads.balancer.Avoided(prefix)
	if len(avoided) == 0 {
		return ""
	}
	names := e.linkNames()
	var list []string
	for _, l := range avoided {
		list = append(list, cmp.Or(names[l], l.Router.String()))
	}
	return "avoids the link to " + strings.Join(list, " and to ") + ", which is or was full"
}
