package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

const (
	// NoExport is the community NO_EXPORT (RFC 1997): the route is not advertised to other ASes.
	NoExport = message.NoExport
	// GracefulShutdown is the community GRACEFUL_SHUTDOWN of routes that will be withdrawn soon
	// (RFC 8326). A route received with it from another AS gets the lowest LOCAL_PREF;
	// ExportPolicy.Shutdown adds it.
	GracefulShutdown = message.GracefulShutdown
	// Blackhole is the community BLACKHOLE (RFC 7999). Inside our AS, a locator or SID advertised
	// with it is lost, and so is everything reached through it.
	Blackhole = message.Blackhole
)

// UnicastRoute is a route that this speaker originates.
type UnicastRoute struct {
	Prefix netip.Prefix
	// NextHop is for neighbors of our own AS. If invalid, it is our address in each session.
	// Neighbors of other ASes always receive our address.
	NextHop    netip.Addr
	Attributes // LocalPref 0 is 100
}

// VPNRoute is a VPN route that this speaker originates, with its SRv6 service SID.
type VPNRoute struct {
	RD      vpn.ID
	Prefix  netip.Prefix
	NextHop netip.Addr
	RTs     []vpn.ID // at least one
	SID     netip.Addr
	// Structure is that of the SID. If TransposeLen > 0, those bits are encoded in the label;
	// otherwise the label is 3, implicit null (RFC 9252 section 4).
	Structure srv6.Structure
	Behavior  uint16 // endpoint behavior (RFC 8986 section 10.2)
	// Load, unless zero, is what the link behind the SID carries.
	Load Load
	// Attributes are those of the route as received; LocalPref 0 means 100.
	Attributes
}

// VPNKey identifies a VPN destination.
type VPNKey struct {
	RD     vpn.ID
	Prefix netip.Prefix
}

// Originate advertises routes, replacing those with the same prefix. If one of them is invalid,
// none is advertised.
func (s *Speaker) Originate(routes ...UnicastRoute) error {
	list := make([]ownRoute, len(routes))
	for i, r := range routes {
		var err error
		if list[i], err = s.unicast(r); err != nil {
			return fmt.Errorf("originate route %q: %w", r.Prefix, err)
		}
	}
	return s.announce(list)
}

// Withdraw withdraws routes that were originated by Originate. Other prefixes are ignored.
func (s *Speaker) Withdraw(prefixes ...netip.Prefix) error {
	keys := make([]message.Key, len(prefixes))
	for i, p := range prefixes {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("withdraw route %q: %w", p, err)
		}
		keys[i] = message.KeyOf(p)
	}
	return s.withdraw(keys)
}

// OriginateVPN advertises routes, replacing those with the same RD and prefix. If one of them is
// invalid, none is advertised.
func (s *Speaker) OriginateVPN(routes []VPNRoute) error {
	list := make([]ownRoute, len(routes))
	var last encodedVPN
	for i, r := range routes {
		var err error
		if list[i], err = s.vpn(r, &last); err != nil {
			return fmt.Errorf("originate vpn route \"%s %s\": %w", r.RD, r.Prefix, err)
		}
	}
	return s.announce(list)
}

// WithdrawVPN withdraws routes that were originated by OriginateVPN. Other keys are ignored.
func (s *Speaker) WithdrawVPN(list []VPNKey) error {
	keys := make([]message.Key, len(list))
	for i, k := range list {
		var err error
		if keys[i], err = vpnKey(k.RD, k.Prefix); err != nil {
			return fmt.Errorf("withdraw vpn route \"%s %s\": %w", k.RD, k.Prefix, err)
		}
	}
	return s.withdraw(keys)
}

// SetBlackhole advertises prefixes with BLACKHOLE inside our AS (NO_EXPORT), before other pending
// changes, or withdraws these routes. They replace other routes of this speaker, but have the
// lowest LOCAL_PREF at neighbors.
func (s *Speaker) SetBlackhole(on bool, prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		if err := checkPrefix(p); err != nil {
			return fmt.Errorf("advertise blackhole %q: %w", p, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return fmt.Errorf("advertise blackholes: %w", errNotRunning)
	}
	s.blackhole(on, prefixes)
	return nil
}

// blackhole is SetBlackhole for callers that hold mu, with valid prefixes.
func (s *Speaker) blackhole(on bool, prefixes []netip.Prefix) {
	if len(prefixes) == 0 {
		return
	}
	id := s.rib.Hold(s.interner.Intern(message.Fields{
		LocalPref: blackholePref, HasLocalPref: true, Communities: []uint32{Blackhole, NoExport},
	}))
	defer s.rib.Release(id)
	for _, p := range prefixes {
		if k := message.KeyOf(p); on {
			s.rib.Announce(k, rib.Path{Received: id, Accepted: id}, true)
		} else {
			s.rib.Withdraw(k, rib.Local, true)
		}
	}
}

// ownRoute is a route that this speaker originates.
type ownRoute struct {
	message.NLRI
	attributes *message.Attributes
}

var errNotRunning = errors.New("bgp speaker is not running")

func (s *Speaker) announce(routes []ownRoute) error {
	urgent := s.urgent(len(routes))
	for part := range slices.Chunk(routes, slice) {
		if err := s.locally(func() {
			var last *message.Attributes
			var id rib.ID
			for _, r := range part {
				if r.attributes != last {
					s.rib.Release(id)
					last, id = r.attributes, s.rib.Hold(r.attributes)
				}
				s.rib.Announce(r.Key, rib.Path{Received: id, Accepted: id, Label: r.Label}, urgent)
			}
			s.rib.Release(id)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Speaker) withdraw(keys []message.Key) error {
	urgent := s.urgent(len(keys))
	for part := range slices.Chunk(keys, slice) {
		if err := s.locally(func() {
			for _, k := range part {
				s.rib.Withdraw(k, rib.Local, urgent)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// urgent reports whether n changes of local routes are urgent.
func (s *Speaker) urgent(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local.take(n, time.Now())
}

// locally changes routes that this speaker originates.
func (s *Speaker) locally(change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return fmt.Errorf("change originated routes: %w", errNotRunning)
	}
	change()
	return nil
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return errors.New("not an IPv4 or IPv6 prefix")
	case p != p.Masked():
		return fmt.Errorf("has host bits set: use %s", p.Masked())
	}
	return nil
}

func checkNextHop(a netip.Addr) error {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("next hop %s is not a unicast address", a)
	}
	return nil
}

func vpnKey(rd vpn.ID, p netip.Prefix) (message.Key, error) {
	if err := checkPrefix(p); err != nil {
		return message.Key{}, err
	}
	if !rd.IsValid() {
		return message.Key{}, errors.New("route distinguisher is missing")
	}
	return message.KeyOfVPN(rd, p), nil
}

func (s *Speaker) unicast(r UnicastRoute) (ownRoute, error) {
	if err := checkPrefix(r.Prefix); err != nil {
		return ownRoute{}, err
	}
	f := r.fields()
	if r.NextHop.IsValid() {
		if err := checkNextHop(r.NextHop); err != nil {
			return ownRoute{}, err
		}
		f.NextHop = r.NextHop
	}
	return ownRoute{message.NLRI{Key: message.KeyOf(r.Prefix)}, s.interner.Intern(f)}, nil
}

// fields returns the attributes for the interner.
func (a Attributes) fields() message.Fields {
	return message.Fields{
		ASPath: a.ASPath, Origin: a.Origin, MED: a.MED, HasMED: a.HasMED,
		LocalPref: a.LocalPref, HasLocalPref: a.LocalPref > 0, Communities: a.Communities,
	}
}

// service is the encoded SID and route targets of a route. Those of the routes of one egress peer
// are equal.
type service struct {
	sid       netip.Addr
	structure srv6.Structure
	behavior  uint16
	rts       []vpn.ID

	label     uint32
	prefixSID string
	targets   []uint64
}

// same reports whether the service is that of the route.
func (v *service) same(r VPNRoute) bool {
	return v.sid.IsValid() && v.sid == r.SID && v.structure == r.Structure && v.behavior == r.Behavior && slices.Equal(v.rts, r.RTs)
}

func (v *service) fill(r VPNRoute) error {
	if v.same(r) {
		return nil
	}
	encoded, label, err := message.NewService(r.SID, r.Structure, r.Behavior)
	if err != nil {
		return err
	}
	if len(r.RTs) == 0 {
		return errors.New("no route target")
	}
	targets := make([]uint64, len(r.RTs))
	for i, rt := range r.RTs {
		if !rt.IsValid() {
			return errors.New("invalid route target")
		}
		targets[i] = rt.Target()
	}
	*v = service{r.SID, r.Structure, r.Behavior, slices.Clone(r.RTs), label, encoded.PrefixSID(), targets}
	return nil
}

// encodedVPN has the attributes of a route, which successive routes mostly have in common.
type encodedVPN struct {
	service
	route      VPNRoute
	attributes *message.Attributes // nil: none
}

func (v *encodedVPN) has(r VPNRoute) bool {
	return v.attributes != nil && v.same(r) && v.route.NextHop == r.NextHop && v.route.Load == r.Load && v.route.Attributes.equal(r.Attributes)
}

func (s *Speaker) vpn(r VPNRoute, last *encodedVPN) (ownRoute, error) {
	if !last.has(r) {
		if err := checkNextHop(r.NextHop); err != nil {
			return ownRoute{}, err
		}
		if err := last.fill(r); err != nil {
			return ownRoute{}, err
		}
		f := r.fields()
		f.NextHop, f.Extended, f.PrefixSID = r.NextHop, last.targets, last.prefixSID
		if r.Load != (Load{}) {
			f.Extended = slices.Concat(f.Extended, r.Load.communities(s.opt.ASN))
		}
		last.route, last.attributes = r, s.interner.Intern(f)
	}
	k, err := vpnKey(r.RD, r.Prefix)
	return ownRoute{message.NLRI{Key: k, Label: last.label}, last.attributes}, err
}
