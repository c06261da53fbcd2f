package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Networks is the result of Edge.Networks.
type Networks struct {
	// Default is the mode of all networks that are not listed.
	Default string `json:"default"`
	DryRun  bool   `json:"dry_run"`
	// Networks is the number of all networks whose mode is not best; List has those that were asked
	// for, at most limit.
	Networks int             `json:"networks"`
	List     []NetworkStatus `json:"list"`
	// Changes are the last changes of the mode in networks with auto that were asked for, at most
	// limit, the latest first, since the daemon started.
	Changes []NetworkChange `json:"changes,omitempty"`
}

// NetworkChange is a change of the mode of a network, so many seconds ago.
type NetworkChange struct {
	Prefix  netip.Prefix `json:"prefix"`
	Seconds int64        `json:"seconds_ago"`
	From    string       `json:"from"`
	To      string       `json:"to"`
	Why     string       `json:"why"`
}

// DeliveryStatus is the delivery in a Status.
type DeliveryStatus struct {
	// Default is the mode of all other networks.
	Default  string `json:"default"`
	DryRun   bool   `json:"dry_run,omitempty"`
	Networks int    `json:"networks"`
	Groups   int    `json:"groups"`
	// Modes counts the networks in each mode. With auto, it is the mode that is in use, which may
	// be one that is tried.
	Modes map[string]int `json:"modes,omitempty"`
	// Known is the number of networks that mode auto knows something of; Forgotten counts those
	// that it had no room for.
	Known     int    `json:"known"`
	Forgotten uint64 `json:"forgotten"`
	// Comparisons counts those that measured something, Changes the changes of the mode of a
	// network with auto, Stalls those because of no progress.
	Comparisons uint64 `json:"comparisons"`
	Changes     uint64 `json:"changes"`
	Stalls      uint64 `json:"stalls"`
	// SprayedUDP is what flows of UDP to networks with the mode spray carried through each egress
	// peer, in bytes.
	SprayedUDP map[string]uint64 `json:"sprayed_udp_bytes,omitempty"`
	// Moves counts how often a network left a link that was full, or returned to it.
	Moves uint64 `json:"moves"`
	// Store is that of the site, if there is one.
	Store StoreStatus `json:"store,omitzero"`
}

// deliveryStatus returns the delivery without the store.
func (e *egress) deliveryStatus() DeliveryStatus {
	d, a := &e.delivery, &e.auto
	return DeliveryStatus{
		Default: d.rules.fallback.mode.String(), DryRun: d.rules.dry, Networks: d.networks.Size(), Groups: len(d.groups), Modes: maps.Clone(d.modes),
		Known: a.table.Len(), Forgotten: a.table.Evicted(), Comparisons: a.compared, Changes: a.table.Changed(), Stalls: a.stalls, Moves: e.loads.balancer.Moves(),
	}
}

// count adds to the number of networks with the mode of a rule, if there is one.
func (d *delivery) count(r *deliveryRule, by int) {
	if r == nil {
		return
	}
	if d.modes == nil {
		d.modes = map[string]int{}
	}
	mode := string((&delivered{rule: r}).modeOf())
	if d.modes[mode] += by; d.modes[mode] == 0 {
		delete(d.modes, mode)
	}
}

// NetworkStatus is how packets reach a client network.
type NetworkStatus struct {
	Prefix netip.Prefix `json:"prefix"`
	// Rule is what the mode is configured for, unless it is the prefix: another prefix, an AS, or
	// default.
	Rule string `json:"rule,omitempty"`
	// Mode is the mode in use, after "auto: " if it was chosen.
	Mode string `json:"mode"`
	// Through are the egress peers that packets leave through, with the shares of the flows in
	// percent if they are spread, the first one first if packets are sprayed; the best path if no
	// peer of the mode covers the network.
	Through []string `json:"through"`
	// State is "in use", "dry run", "pending" until the kernel has the route, why this host cannot
	// do the mode, the peers of the mode that have no route to the network, or those that it left
	// because it made no progress there; or that packets follow a route of another program.
	State string `json:"state"`
	// Seconds is the time since the last change.
	Seconds int64 `json:"seconds"`
	// Why is the reason for the mode if that is auto, and Trying the mode that it is compared with
	// now.
	Why    string `json:"why,omitempty"`
	Trying string `json:"trying,omitempty"`
	// Modes are what connections achieved in each mode, and what was measured.
	Modes []NetworkMode `json:"modes,omitempty"`
	// Sprayed are the paths, in networks with the mode spray.
	Sprayed []SprayedPath `json:"sprayed,omitempty"`
}

// SprayedPath is what is known of a path to the /48 networks, /24 of IPv4, that belong to a network.
type SprayedPath struct {
	Peer string `json:"peer"`
	// TCPBytes and UDPBytes are what was carried, that of QUIC among UDP.
	TCPBytes uint64 `json:"tcp_bytes"`
	UDPBytes uint64 `json:"udp_bytes"`
	// RateBPS, in bit/s, and MinRTT are what TCP measured last, MeasuredSeconds ago, if it did.
	RateBPS         int64   `json:"tcp_rate_bps,omitempty"`
	MinRTT          float64 `json:"tcp_min_rtt_ms,omitempty"`
	MeasuredSeconds int64   `json:"tcp_seconds_ago,omitempty"`
}

// NetworkMode is a mode of a network.
type NetworkMode struct {
	Mode string `json:"mode"`
	// Gain is how much more it is believed to bring than the best path, in percent, give or take
	// Uncertainty; Trials counts the measurements.
	Gain        int `json:"gain_percent"`
	Uncertainty int `json:"uncertainty_percent"`
	Trials      int `json:"trials"`
	// RestSeconds is for how long it is not used because it made no progress.
	RestSeconds int64 `json:"rest_seconds,omitempty"`
	belief.Brought
}

// Networks lists the client networks whose mode is not best: the one that packets to the prefix
// belong to, and those inside; all for a prefix that is not valid. It returns at most limit.
func (e *Edge) Networks(ctx context.Context, within netip.Prefix, limit int) (any, error) {
	var n Networks
	var err error
	if !e.daemon.Do(ctx, func() {
		n = e.egress.networks(within, limit)
		// There are up to 65,536 paths, and no other event is handled while they are read.
		if e.sprayer == nil || !slices.ContainsFunc(n.List, e.egress.sprays) {
			return
		}
		var known []spray.Known
		if known, err = e.sprayer.Known(); err == nil {
			e.egress.addSprayed(n.List, known)
		}
	}) {
		err = errors.New("not running")
	}
	return n, errors.Join(err, e.addForeign(n.List))
}

// mostMatched bounds the networks whose route is looked up for a status, some 20 us each.
const mostMatched = 1000

const inUse = "in use"

// addForeign has the state of networks say if packets to them follow a route of another program: one
// that is preferred, or the table of a rule before the main table.
func (e *Edge) addForeign(list []NetworkStatus) error {
	return e.namespace.Do(func() error {
		conn, err := route.Dial()
		if err != nil {
			return err
		}
		for i := range list[:min(len(list), mostMatched)] {
			s := &list[i]
			to := s.Prefix.Addr()
			if s.State != inUse || s.best() {
				continue
			}
			if !s.Prefix.IsSingleIP() {
				to = to.Next()
			}
			m, failed := conn.MatchOf(to)
			if failed != nil {
				err = errors.Join(err, failed)
			} else if m.Dst.IsValid() && m.Protocol != route.Edge {
				s.State = fmt.Sprintf("overridden: packets to %s follow the route %s of another program in table %d", to, m.Dst, m.Table)
			}
		}
		return errors.Join(err, conn.Close())
	})
}

// sprays reports whether packets to a network are sprayed.
func (e *egress) sprays(s NetworkStatus) bool {
	n, ok := e.delivery.networks.Get(s.Prefix)
	return ok && n.group != nil && n.group.sprayed != nil
}

// addSprayed adds what is known of paths to the networks that are sprayed. A path belongs to a
// network whose prefix overlaps that of what is known.
func (e *egress) addSprayed(list []NetworkStatus, known []spray.Known) {
	peers := map[uint32]*peer{}
	for _, p := range e.byIndex {
		peers[p.mark()] = p
	}
	slices.SortFunc(known, func(a, b spray.Known) int { return cmp.Or(cmp.Compare(a.Mark, b.Mark), cmp.Compare(b.Age, a.Age)) })
	for i := range list {
		s := &list[i]
		if !e.sprays(*s) {
			continue
		}
		for _, k := range known {
			p := peers[k.Mark]
			if p == nil || !k.Network.Overlaps(s.Prefix) {
				continue
			}
			if n := len(s.Sprayed); n == 0 || s.Sprayed[n-1].Peer != p.Name {
				s.Sprayed = append(s.Sprayed, SprayedPath{Peer: p.Name})
			}
			to := &s.Sprayed[len(s.Sprayed)-1]
			to.TCPBytes += k.TCP
			to.UDPBytes += k.UDP
			if k.Rate > 0 {
				to.RateBPS, to.MinRTT, to.MeasuredSeconds = int64(k.Rate), float64(k.MinRTT.Microseconds())/1000, int64(k.Age/time.Second)
			}
		}
	}
}

// sprayedUDP returns what flows of UDP carried through each egress peer.
func (e *egress) sprayedUDP(volumes map[uint32]uint64) map[string]uint64 {
	by := map[string]uint64{}
	for _, p := range e.byIndex {
		if bytes, ok := volumes[p.mark()]; ok {
			by[p.Name] += bytes
		}
	}
	return by
}

func (e *egress) networks(within netip.Prefix, limit int) Networks {
	d := &e.delivery
	n := Networks{Default: d.rules.fallback.mode.String(), DryRun: d.rules.dry, Networks: d.networks.Size(), List: []NetworkStatus{}}
	var all iter.Seq2[netip.Prefix, *delivered]
	if within.IsValid() {
		if prefix, found, ok := d.networks.LookupPrefixLPM(within); ok && prefix != within && limit > 0 {
			n.List = append(n.List, e.networkStatus(prefix, found))
		}
		all = d.networks.Subnets(within)
	} else {
		all = d.networks.AllSorted()
	}
	for prefix, found := range all {
		if len(n.List) >= limit {
			break
		}
		n.List = append(n.List, e.networkStatus(prefix, found))
	}
	wanted := func(p netip.Prefix) bool { return !within.IsValid() || p.Overlaps(within) }
	for _, c := range e.auto.table.Changes(wanted, limit) {
		n.Changes = append(n.Changes, NetworkChange{c.Prefix, int64(e.now().Sub(c.At) / time.Second), string(c.From), string(c.To), c.Why})
	}
	return n
}

func (e *egress) networkStatus(prefix netip.Prefix, n *delivered) NetworkStatus {
	s := NetworkStatus{
		Prefix: prefix, Mode: n.rule.mode.name(), Through: n.through(), State: e.deliveryState(prefix, n), Seconds: int64(e.lasts(n, e.now()) / time.Second),
	}
	info, _ := e.auto.table.Network(e.now(), prefix)
	s.add(info.Modes)
	if n.rule.auto {
		s.Mode = modeAuto + ": " + s.Mode
		s.Why = cmp.Or(e.auto.reason, info.Why, "nothing is known yet")
	}
	if detour := e.detour(prefix); detour != "" {
		s.Why = strings.TrimSuffix(detour+"; "+s.Why, "; ")
	}
	if t := e.auto.trials[prefix]; t != nil {
		s.Trying = string(t.challenger)
	}
	if n.rule.name != prefix.String() {
		s.Rule = n.rule.name
	}
	return s
}

const bestPath = "best path"

func (s *NetworkStatus) best() bool { return slices.Equal(s.Through, []string{bestPath}) }

// through is Through of a NetworkStatus.
func (n *delivered) through() (list []string) {
	if n.group == nil {
		return []string{bestPath}
	}
	members, sum := n.group.members, 0
	for _, m := range members {
		sum += int(m.weight)
	}
	for _, m := range members {
		text := m.peer.Name
		if len(members) > 1 && n.group.sprayed == nil && !n.rule.spray {
			text += fmt.Sprintf(" %.0f %%", 100*float64(m.weight)/float64(sum))
		}
		list = append(list, text)
	}
	return list
}

// deliveryState is State of a NetworkStatus.
func (e *egress) deliveryState(prefix netip.Prefix, n *delivered) string {
	unsprayed := e.unsprayed
	if n.group != nil && n.group.unsprayed != nil {
		unsprayed = n.group.unsprayed
	}
	switch {
	case e.delivery.rules.dry && n.group != nil:
		return "dry run"
	case n.group != nil && !e.kernel.Settled(e.deliveredRoute(prefix, nil).Key()):
		return "pending"
	case n.rule.spray && unsprayed != nil:
		return "not sprayed: " + unsprayed.Error()
	}
	if left := e.leftPeers(prefix, n.rule); left != "" {
		return "no progress through " + left
	}
	if n.lacking && !n.rule.auto {
		return "no route of " + strings.Join(e.without(prefix, n), ", ")
	}
	if e.delivery.rules.dry {
		return "dry run"
	}
	return inUse
}

// without returns the peers of the mode of a network that packets to it do not leave through.
func (e *egress) without(prefix netip.Prefix, n *delivered) (names []string) {
	for _, w := range n.rule.peers {
		name := w.peer
		if p := e.deliveryPeer(name, bgp.IPOf(prefix.Addr())); p != nil {
			name = p.Name
		}
		if n.group == nil || !slices.ContainsFunc(n.group.members, func(m member) bool { return m.peer.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// add adds what is known of modes.
func (s *NetworkStatus) add(modes []belief.ModeInfo) {
	percent := func(x float64) int { return int(math.Round(100 * x)) }
	for _, m := range modes {
		s.Modes = append(s.Modes, NetworkMode{
			Mode: string(m.Mode), Gain: percent(m.Gain), Uncertainty: percent((1 + m.Gain) * m.SD), Trials: m.Trials,
			RestSeconds: int64(math.Ceil(m.Rest.Seconds())), Brought: m.Brought,
		})
	}
}

// hashPolicies are the kernel parameters by which a flow is hashed to the members of a group: by 1,
// from its addresses and ports; by 0, from its addresses.
var hashPolicies = []string{"net.ipv6.fib_multipath_hash_policy", "net.ipv4.fib_multipath_hash_policy"}

const addressesOnly, withPorts = "0", "1"

// hashing has the kernel spread connections, not clients, over egress peers. An administrator's
// choice of another policy than the kernel's default stays.
type hashing struct {
	mu sync.Mutex
	// wanted is false before set and after restore: an examination that began before a reload must
	// not change the policies again.
	wanted  bool
	changed []string
}

// set changes the policies.
func (h *hashing) set() error {
	h.mu.Lock()
	h.wanted = true
	h.mu.Unlock()
	return h.apply()
}

// apply changes the policies if that is wanted.
func (h *hashing) apply() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.wanted {
		return nil
	}
	var errs []error
	for _, key := range hashPolicies {
		value, err := netns.ReadSysctl(key)
		if err == nil && value == addressesOnly {
			if err = netns.Sysctl(key, withPorts); err == nil && !slices.Contains(h.changed, key) {
				h.changed = append(h.changed, key)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restore changes back what set changed, unless it was changed since.
func (h *hashing) restore() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted = false
	var errs []error
	for _, key := range h.changed {
		value, err := netns.ReadSysctl(key)
		if err == nil && value == withPorts {
			err = netns.Sysctl(key, addressesOnly)
		}
		errs = append(errs, err)
	}
	h.changed = nil
	return errors.Join(errs...)
}

// condition is that policies are as set makes them.
func (h *hashing) condition() condition.Condition {
	return condition.Condition{
		Name: "spreading of flows", Good: "connections of a client are spread over egress peers, each by its ports",
		Examine: func() (problems []health.Problem, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if !h.wanted {
				return nil, nil
			}
			for _, key := range hashPolicies {
				value, err := netns.ReadSysctl(key)
				if err != nil {
					return nil, err
				}
				if value == addressesOnly {
					problems = append(problems, health.Problem{
						Text:   "all connections of a client leave through the same egress peer, because " + key + " is " + value,
						Remedy: "sysctl -w " + key + "=" + withPorts,
					})
				}
			}
			return problems, nil
		},
		Restore: h.apply,
	}
}
