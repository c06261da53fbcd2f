package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/tabane/tabane/internal/bfd"
)

// Family is a kind of route.
type Family uint8

const (
	IPv6Unicast Family = iota + 1 // AFI 2, SAFI 1
	VPNv6                         // AFI 2, SAFI 128
)

func (f Family) String() string {
	switch f {
	case IPv6Unicast:
		return "ipv6-unicast"
	case VPNv6:
		return "vpnv6"
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// Indices of the families in the configuration of GoBGP.
const (
	familyIndexUnicast = 1
	familyIndexVPN     = 5
)

const (
	// DefaultHoldTime is short because nothing else ends a session whose neighbor went silent; keepalives
	// are sent three times as often.
	DefaultHoldTime = 9 * time.Second
	// DefaultConnectRetry is the shortest that GoBGP permits.
	DefaultConnectRetry = 2 * time.Second

	minHoldTime     = 3 * time.Second // RFC 4271 section 4.2
	maxHoldTime     = 65535 * time.Second
	minConnectRetry = 2 * time.Second
)

// ImportPolicy limits what a neighbor may tell us. Routes that carry our own AS number, and, from
// another AS, routes for link-local, loopback or multicast space are always refused.
type ImportPolicy struct {
	// Reject refuses these prefixes and everything inside of them, such as our own address space.
	Reject []netip.Prefix
	// RejectVPN refuses every VPN-IPv6 route: whoever only originates them has no use for those of others.
	RejectVPN bool
	// WarnPrefixes is a number of accepted IPv6 unicast routes; beyond it a warning is logged, once for each time it is
	// exceeded. The session stays, and routes are accepted still: dropping the largest upstream because
	// it grew would be the worse fault. 0 is no limit; others need ReportAdjIn and a neighbor of another AS.
	WarnPrefixes int
}

// ExportPolicy limits what a neighbor is told.
type ExportPolicy struct {
	// Reject keeps these prefixes and everything inside of them from the neighbor.
	Reject []netip.Prefix
	// Shutdown tells the neighbor that every route is about to go: with the community GracefulShutdown and, in our own AS,
	// as the last choice.
	Shutdown bool
}

func (p ExportPolicy) equal(q ExportPolicy) bool {
	return p.Shutdown == q.Shutdown && slices.Equal(p.Reject, q.Reject)
}

// Neighbor describes a session.
type Neighbor struct {
	Name         string // appears in events and logs; unique
	Address      netip.Addr
	Interface    string     // only for, and needed with, a link-local address
	LocalAddress netip.Addr // invalid: the kernel chooses
	ASN          uint32
	Families     []Family
	Port         uint16 // 0 is DefaultPort

	ReflectorClient bool // we reflect routes to and from it (RFC 4456)
	Passive         bool // it opens the session, we wait
	Password        string
	Multihop        uint8         // 0: directly connected when of another AS; otherwise the largest hop limit
	HoldTime        time.Duration // whole seconds; 0 is DefaultHoldTime
	ConnectRetry    time.Duration // whole seconds, time between attempts to connect; 0 is DefaultConnectRetry
	BFD             bfd.Config
	// Locators are prefixes behind the neighbor that others have to know lost first when BFD finds it silent: a full table
	// is withdrawn in seconds, in no order, while these say that all of it is gone. They are announced as Blackhole until
	// the rest is withdrawn; with a neighbor of another AS, whose routes others may have in another form, until SetLost
	// takes that back, and also when the session ends from the other side.
	Locators []netip.Prefix
	// Retain keeps best paths learned from the neighbor for this long when the session ends from the other side or is
	// lost, as one to a route reflector: that carries routes, not packets. Once it is back, what it does not announce
	// again goes soon. 0: what was learned is withdrawn at once. Needs a speaker without ReportAdjIn.
	Retain time.Duration

	// NextHopSelf replaces the next hop of routes learned from other ASes by our address when they are
	// sent to this neighbor of our own AS. Neighbors of other ASes always get our address.
	NextHopSelf bool
	// LocalPref is set on everything it sends us; 0 leaves it.
	LocalPref uint32
	Import    ImportPolicy
	Export    ExportPolicy
	// ExportLocalOnly announces only what this speaker originates itself: no transit between neighbors.
	ExportLocalOnly bool
}

func (n Neighbor) check(own uint32) error {
	internal := n.ASN == own
	switch {
	case n.Name == "":
		return errors.New("name is missing")
	case n.Address.Zone() != "":
		return fmt.Errorf("address %s: give the zone as interface", n.Address)
	case n.Address.IsLinkLocalUnicast() && n.Interface == "":
		return fmt.Errorf("address %s is link-local: interface is missing", n.Address)
	case !n.Address.IsLinkLocalUnicast() && n.Interface != "":
		return fmt.Errorf("address %s is not link-local: interface %q has no use", n.Address, n.Interface)
	case !n.Address.IsLinkLocalUnicast() && len(CheckAddress(n.Address)) > 0:
		return CheckAddress(n.Address).Err()
	case n.LocalAddress.IsValid() && (!n.LocalAddress.Is6() || n.LocalAddress.Is4In6() || n.LocalAddress.Zone() != ""):
		return fmt.Errorf("local address %s is not a plain IPv6 address", n.LocalAddress)
	case n.LocalAddress.IsValid() && n.LocalAddress.IsLinkLocalUnicast() != n.Address.IsLinkLocalUnicast():
		return fmt.Errorf("local address %s and address %s must both be link-local or neither", n.LocalAddress, n.Address)
	case n.ASN == 0:
		return errors.New("as number must be > 0")
	case len(n.Families) == 0:
		return errors.New("families are missing")
	case n.ReflectorClient && !internal:
		return fmt.Errorf("reflector client has as number %d, must be our own %d", n.ASN, own)
	case n.NextHopSelf && !internal:
		return errors.New("next hop self is for neighbors of our own as")
	case n.Multihop != 0 && internal:
		return errors.New("multihop is for neighbors of another as")
	case len(CheckPassword(n.Password)) > 0:
		return CheckPassword(n.Password).Err()
	case n.HoldTime != 0 && (n.HoldTime < minHoldTime || n.HoldTime > maxHoldTime || n.HoldTime%time.Second != 0):
		return fmt.Errorf("hold time must be whole seconds from %s to %s, got %s", minHoldTime, maxHoldTime, n.HoldTime)
	case n.ConnectRetry != 0 && (n.ConnectRetry < minConnectRetry || n.ConnectRetry%time.Second != 0):
		return fmt.Errorf("connect retry must be whole seconds from %s, got %s", minConnectRetry, n.ConnectRetry)
	case n.Retain < 0:
		return fmt.Errorf("time to retain routes must be >= 0, got %s", n.Retain)
	case len(n.BFD.Check()) > 0:
		return n.BFD.Check().Err()
	case !n.BFD.Enabled() && internal && len(n.Locators) > 0:
		return errors.New("locators of a neighbor of our own as need bfd, which finds it silent")
	case n.BFD.Enabled() && n.Multihop != 0:
		return errors.New("bfd is for neighbors on a link, multihop for others")
	case n.Import.WarnPrefixes < 0:
		return fmt.Errorf("number of prefixes to warn at must be >= 0, got %d", n.Import.WarnPrefixes)
	}
	seen := map[Family]bool{}
	for _, f := range n.Families {
		if f != IPv6Unicast && f != VPNv6 {
			return fmt.Errorf("%s is not known", f)
		}
		if seen[f] {
			return fmt.Errorf("%s is given twice", f)
		}
		seen[f] = true
	}
	for _, p := range n.Locators {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("locator %s: %w", p, err)
		}
	}
	return errors.Join(checkRejected(n.Import.Reject), checkRejected(n.Export.Reject))
}

func checkRejected(prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() || p != p.Masked() {
			return fmt.Errorf("rejected prefix %s is not an IPv6 prefix without further bits", p)
		}
	}
	return nil
}

// neighbor is a Neighbor and the state of its session.
type neighbor struct {
	Neighbor
	key netip.Addr // address as GoBGP knows it: with zone
	// rules is the neighbor as it was added: its import policy never changes.
	rules policyEntry

	// Guarded by Speaker.calls.
	disabled bool
	added    time.Time // when the session was last given to GoBGP

	// Guarded by Speaker.mu.
	up   bool
	idle bool // GoBGP waits before it tries again
	// deleting: it is us who end the session.
	deleting bool
	reason   string
	adjIn    map[netip.Prefix]struct{}
	warned   bool
}

// AddNeighbor starts to keep a session. It returns before the session is up.
func (s *Speaker) AddNeighbor(ctx context.Context, conf Neighbor) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if err := s.addNeighbor(ctx, conf); err != nil {
		return fmt.Errorf("add neighbor %q: %w", conf.Name, err)
	}
	return nil
}

func (s *Speaker) addNeighbor(ctx context.Context, conf Neighbor) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := conf.check(s.opt.ASN); err != nil {
		return err
	}
	if conf.Import.WarnPrefixes > 0 && (s.opt.Report&ReportAdjIn == 0 || conf.ASN == s.opt.ASN) {
		return errors.New("a number of prefixes to warn at needs ReportAdjIn and a neighbor of another as")
	}
	if conf.Retain > 0 && s.opt.Report&ReportAdjIn != 0 {
		return errors.New("routes cannot be retained with ReportAdjIn")
	}
	if _, ok := s.neighbors[conf.Name]; ok {
		return errors.New("name is in use")
	}
	for _, other := range s.neighbors {
		// The zone is left out of the comparison: policies know neighbors by address only.
		if other.Address == conf.Address {
			return fmt.Errorf("address %s is that of neighbor %q", conf.Address, other.Name)
		}
	}
	conf.Families = slices.Clone(conf.Families)
	// Unicast goes first, so that next hops are there before, and gone before, what uses them.
	slices.Sort(conf.Families)
	conf.Locators = slices.Clone(conf.Locators)
	conf.Import.Reject, conf.Export.Reject = slices.Clone(conf.Import.Reject), slices.Clone(conf.Export.Reject)
	n := &neighbor{Neighbor: conf, key: conf.Address.WithZone(conf.Interface), adjIn: map[netip.Prefix]struct{}{},
		rules: policyEntry{Neighbor: conf, ownASN: s.opt.ASN}}
	s.neighbors[n.Name] = n
	s.mu.Lock()
	former := s.byAddr[n.key]
	s.byAddr[n.key] = n
	s.mu.Unlock()
	s.endFormer(former)
	err := s.setPolicies(ctx)
	if err == nil {
		err = s.monitor(n)
	}
	if err == nil {
		err = s.addPeer(ctx, n)
	}
	if err != nil {
		s.forget(n)
		delete(s.neighbors, n.Name)
		return errors.Join(err, s.setPolicies(ctx))
	}
	return nil
}

// DeleteNeighbor ends the session and forgets the neighbor. Its withdrawals and its Down still come;
// the same address under another name may be added after the Down only.
func (s *Speaker) DeleteNeighbor(ctx context.Context, name string) error {
	return s.change("delete", name, func(n *neighbor) error {
		s.forget(n)
		if !n.disabled {
			if err := s.deletePeer(ctx, n, "deleted"); err != nil {
				return err
			}
		}
		// byAddr keeps the neighbor: events about the end of the session may still be on their way.
		delete(s.neighbors, n.Name)
		return s.setPolicies(ctx)
	})
}

// SetExport changes what a neighbor is told while the session stays up: what it may no longer know is withdrawn from it,
// and everything else is announced to it again (a soft reset outward). The policy is in force when this returns; the
// messages to the neighbor are on their way. The same policy again changes nothing.
func (s *Speaker) SetExport(ctx context.Context, name string, policy ExportPolicy) error {
	return s.change("change export policy of", name, func(n *neighbor) error {
		if err := checkRejected(policy.Reject); err != nil {
			return err
		}
		if n.Export.equal(policy) {
			return nil
		}
		old := n.Export
		n.Export = ExportPolicy{Reject: slices.Clone(policy.Reject), Shutdown: policy.Shutdown}
		if err := s.setPolicies(ctx); err != nil {
			n.Export = old
			return errors.Join(err, s.setPolicies(ctx))
		}
		if n.disabled {
			return nil // the next session begins with the new policy
		}
		return s.server.ResetPeer(ctx, &api.ResetPeerRequest{
			Address: n.key.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT,
		})
	})
}

// Reset ends the session, withdraws what was learned from it before it returns, and starts again at once.
func (s *Speaker) Reset(ctx context.Context, name string) error {
	return s.change("reset", name, func(n *neighbor) error {
		if n.disabled {
			return errors.New("it is disabled")
		}
		s.forget(n)
		return errors.Join(s.restart(ctx, n, "reset"), s.monitor(n))
	})
}

// Disable ends the session, withdraws what was learned from it before it returns, and keeps it down until Enable.
// Disabling twice changes nothing.
func (s *Speaker) Disable(ctx context.Context, name string) error {
	return s.change("disable", name, func(n *neighbor) error {
		if n.disabled {
			return nil
		}
		n.disabled = true
		s.forget(n)
		return s.deletePeer(ctx, n, "disabled")
	})
}

// Enable undoes Disable. Enabling twice changes nothing.
func (s *Speaker) Enable(ctx context.Context, name string) error {
	return s.change("enable", name, func(n *neighbor) error {
		if !n.disabled {
			return nil
		}
		if err := s.addPeer(ctx, n); err != nil {
			return err
		}
		n.disabled = false
		return s.monitor(n)
	})
}

func (s *Speaker) change(verb, name string, f func(*neighbor) error) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	err := s.usable()
	if err == nil {
		if n, ok := s.neighbors[name]; ok {
			err = f(n)
		} else {
			err = errors.New("not known")
		}
	}
	if err != nil {
		return fmt.Errorf("%s neighbor %q: %w", verb, name, err)
	}
	return nil
}

// NeighborState is what is known of a session.
type NeighborState struct {
	Name     string
	Up       bool
	Disabled bool
	Reason   string // why it went down last; empty if it never did
	Routes   int    // IPv6 unicast routes accepted from it; -1 without ReportAdjIn and for our own AS
	// BFD: the neighbor is asked to be watched by BFD, and BFDUp: it is.
	BFD, BFDUp bool
	Retained   int // best paths that are kept although the neighbor has not announced them in its current session
}

// Neighbors gives the state of all sessions, sorted by name.
func (s *Speaker) Neighbors() []NeighborState {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]NeighborState, 0, len(s.neighbors))
	for _, n := range s.neighbors {
		st := NeighborState{Name: n.Name, Up: n.up, Disabled: n.disabled, Reason: n.reason, Routes: -1}
		if s.opt.Report&ReportAdjIn != 0 && n.ASN != s.opt.ASN {
			st.Routes = len(n.adjIn)
		}
		st.BFD, st.BFDUp = n.BFD.Enabled(), s.bfd.Up(n.Name)
		st.Retained = s.retention.stale(n.Name)
		states = append(states, st)
	}
	slices.SortFunc(states, func(a, b NeighborState) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return states
}

// restart gives GoBGP a fresh session. Its own restart would refuse connections for five seconds after
// a loss, and its own reset is remembered for the next session if there is none at the moment.
func (s *Speaker) restart(ctx context.Context, n *neighbor, reason string) error {
	if err := s.deletePeer(ctx, n, reason); err != nil {
		return err
	}
	return s.addPeer(ctx, n)
}

// endFormer tells of the end of the session that a deleted neighbor of the same address had: the BGP server's own word of
// it, which may still be on its way, would be taken for the new neighbor's.
func (s *Speaker) endFormer(n *neighbor) {
	if n == nil {
		return
	}
	s.mu.Lock()
	up := n.up
	n.up = false
	s.mu.Unlock()
	if up {
		s.retention.event(Session{Neighbor: n.Name, Reason: n.reason})
	}
}

func (s *Speaker) addPeer(ctx context.Context, n *neighbor) error {
	n.added = time.Now()
	s.mu.Lock()
	n.idle, n.deleting = false, false
	s.mu.Unlock()
	s.retention.add(n.Neighbor)
	return s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer(n)})
}

// forget is for a session that we end because we are told to: neither is it watched any more nor is anything retained.
func (s *Speaker) forget(n *neighbor) {
	s.bfd.Remove(n.Name)
	s.retention.remove(n.Name)
}

// monitor starts BFD with a neighbor that is configured for it.
func (s *Speaker) monitor(n *neighbor) error {
	local := n.LocalAddress
	if local.IsValid() {
		local = local.WithZone(n.Interface)
	}
	return s.bfd.Add(bfd.Neighbor{Name: n.Name, Local: local, Remote: n.key, Config: n.BFD})
}

// deletePeer ends a session in GoBGP, which withdraws the routes before it returns.
func (s *Speaker) deletePeer(ctx context.Context, n *neighbor, reason string) error {
	s.mu.Lock()
	if n.up {
		n.reason = reason
	}
	n.deleting = true
	s.mu.Unlock()
	return s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: n.key.String()})
}

// restartPause limits how often a session is given to GoBGP anew.
const restartPause = time.Second

// restartIdle is called when GoBGP has put a session to rest.
func (s *Speaker) restartIdle(n *neighbor) {
	s.calls.Lock()
	wait := restartPause - time.Since(n.added)
	s.calls.Unlock()
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.done:
			return
		}
	}
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	idle := n.idle
	s.mu.Unlock()
	if s.usable() != nil || s.neighbors[n.Name] != n || n.disabled || !idle {
		return
	}
	if err := s.restart(context.Background(), n, ""); err != nil {
		s.log.Error("cannot restart session", "neighbor", n.Name, "error", err)
	}
}

// peer translates a neighbor for GoBGP.
func (s *Speaker) peer(n *neighbor) *api.Peer {
	hold, retry := n.HoldTime, n.ConnectRetry
	if hold == 0 {
		hold = DefaultHoldTime
	}
	if retry == 0 {
		retry = DefaultConnectRetry
	}
	port := n.Port
	if port == 0 {
		port = DefaultPort
	}
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: n.key.String(),
			PeerAsn:         n.ASN,
			AuthPassword:    n.Password,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          uint64(hold / time.Second),
			KeepaliveInterval: uint64(hold / 3 / time.Second),
			ConnectRetry:      uint64(retry / time.Second),
		}},
		Transport: &api.Transport{
			RemotePort:  uint32(port),
			PassiveMode: n.Passive,
		},
	}
	if n.LocalAddress.IsValid() {
		p.Transport.LocalAddress = n.LocalAddress.WithZone(n.Interface).String()
	}
	for _, f := range n.Families {
		safi := api.Family_SAFI_UNICAST
		if f == VPNv6 {
			safi = api.Family_SAFI_MPLS_VPN
		}
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{
			Family: &api.Family{Afi: api.Family_AFI_IP6, Safi: safi}, Enabled: true,
		}})
	}
	if n.ASN == s.opt.ASN {
		if n.ReflectorClient {
			p.RouteReflector = &api.RouteReflector{
				RouteReflectorClient:    true,
				RouteReflectorClusterId: s.opt.RouterID.String(),
			}
		}
		// The capability without a family asks for, and promises, only the End-of-RIB marker (RFC 4724
		// section 3). No route is kept over the end of a session: see restartIdle.
		p.GracefulRestart = &api.GracefulRestart{Enabled: true, HelperOnly: true, RestartTime: 1}
		return p
	}
	// GoBGP skips a route with our AS number but forgets to withdraw the one that it replaces. So it is
	// told to let them through, and the import policy refuses them properly.
	p.Conf.AllowOwnAsn = 255
	if n.Multihop > 0 {
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(n.Multihop)}
	}
	return p
}
