package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/session"
)

// NeighborDetail is all that is known of a neighbor.
type NeighborDetail struct {
	SessionStatus
	State string `json:"state"` // of the finite state machine (RFC 4271 section 8.2.2)
	Group string `json:"group,omitempty"`
	ASN   uint32 `json:"asn"`
	// Address and port of both ends of the session that is up; Remote is the configured one
	// otherwise.
	Local    string     `json:"local,omitempty"`
	Remote   string     `json:"remote"`
	RouterID netip.Addr `json:"router_id,omitzero"`
	Passive  bool       `json:"passive"`
	Password bool       `json:"md5"`
	GTSM     bool       `json:"gtsm"`
	// Times in seconds; those of the hold timer and of KEEPALIVEs are negotiated.
	HoldTime     float64 `json:"hold_seconds"`
	Keepalive    float64 `json:"keepalive_seconds"`
	ConnectRetry float64 `json:"connect_retry_seconds"`
	// FlapsInRow are sessions in a row that were up for less than 10 s, and HeldDown for how long
	// the next one is delayed for that.
	FlapsInRow int     `json:"flaps_in_row"`
	HeldDown   float64 `json:"held_down_seconds"`
	// IgnoredRefreshes counts ROUTE-REFRESH messages of families and kinds that the session does
	// not have.
	IgnoredRefreshes uint64 `json:"refreshes_ignored"`
	// CapabilitiesSent and CapabilitiesReceived are those of the OPEN messages.
	CapabilitiesSent     []string       `json:"capabilities_sent"`
	CapabilitiesReceived []string       `json:"capabilities_received"`
	Families             []FamilyDetail `json:"families"`
}

// FamilyDetail is a family of a session.
type FamilyDetail struct {
	Family string `json:"family"`
	Count
	Advertised int `json:"advertised"`
	// EndOfRIB: the neighbor has sent the marker.
	EndOfRIB bool `json:"end_of_rib"`
}

// Neighbor returns all that is known of the neighbor with a name or an address.
func (s *Speaker) Neighbor(name string) (NeighborDetail, error) {
	n := s.find(name)
	if n == nil {
		return NeighborDetail{}, fmt.Errorf("neighbor %q: %w", name, ErrUnknownNeighbor)
	}
	var d NeighborDetail
	for _, status := range s.Sessions() {
		if status.Neighbor == n.conf.Name {
			d.SessionStatus = status
		}
	}
	st := n.session.Status()
	s.mu.Lock()
	defer s.mu.Unlock()
	d.State, d.Group, d.ASN, d.Passive, d.Password, d.GTSM = st.State.String(), n.group, n.conf.ASN, n.conf.Passive, n.conf.Password != "", n.conf.GTSM
	d.Remote = netip.AddrPortFrom(n.key, cmp.Or(n.conf.Port, s.opt.Port, DefaultPort)).String()
	d.ConnectRetry = cmp.Or(n.conf.ConnectRetry, DefaultConnectRetry).Seconds()
	d.HoldTime = cmp.Or(n.conf.HoldTime, DefaultHoldTime).Seconds()
	d.FlapsInRow, d.IgnoredRefreshes = st.FlapsInRow, st.Ignored
	if left := time.Until(st.HeldUntil); !st.Up() && left > 0 {
		d.HeldDown = left.Round(time.Millisecond).Seconds()
	}
	ours := n.sessionConfig().Capabilities
	ours.FourOctetAS = true // as in each OPEN
	d.CapabilitiesSent = ours.Names()
	if e := st.Established; st.Up() {
		d.Local, d.Remote, d.RouterID = e.Local.String(), e.Remote.String(), e.Open.RouterID
		d.HoldTime, d.Keepalive = e.HoldTime.Seconds(), (e.HoldTime / 3).Seconds()
		d.CapabilitiesReceived = e.Open.Names()
	}
	for f := range n.stale.families.All() {
		detail := FamilyDetail{Family: f.String(), Count: n.count(f), EndOfRIB: !n.stale.markers.Has(f)}
		if c := n.feed.consumers[f]; c != nil {
			detail.Advertised = c.Held()
		}
		d.Families = append(d.Families, detail)
	}
	return d, nil
}

// ErrUnknownNeighbor is the error for a neighbor that the speaker does not have.
var ErrUnknownNeighbor = errors.New("unknown neighbor")

// find returns the neighbor with a name or an address, or nil.
func (s *Speaker) find(name string) *neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.neighbors[name]; n != nil {
		return n
	}
	for _, n := range s.neighbors {
		if n.is(name) {
			return n
		}
	}
	return nil
}

// Clear resets the session with the neighbor with a name or an address, and says what it did. A
// soft reset keeps the session: the neighbor is asked for all of its routes and sent all of ours
// again. A hard one ends the session with Cease/Administrative Reset; stale routes are retained as
// after a failure if Neighbor.Retain says so.
func (s *Speaker) Clear(name string, hard bool) (string, error) {
	n := s.find(name)
	if n == nil {
		return "", fmt.Errorf("clear neighbor %q: %w", name, ErrUnknownNeighbor)
	}
	switch {
	case !hard:
		return n.clearSoft()
	case n.conf.Retain == 0:
		return "session reset", s.Reset(n.conf.Name)
	}
	return "session reset, its routes are retained", s.call("clear", n.conf.Name, func(n *neighbor) error {
		if n.disabled.Load() {
			return errors.New("it is disabled")
		}
		n.session.Reset(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeReset}, "reset by an operator")
		return nil
	})
}

func (n *neighbor) clearSoft() (string, error) {
	st := n.session.Status()
	if st.State != session.StateEstablished {
		return "", fmt.Errorf("clear neighbor %q: its session is not up (%s): there is nothing to refresh; see --hard", n.conf.Name, st.Down)
	}
	text := fmt.Sprintf("up to %d routes are advertised again", n.resend())
	if !st.Established.RouteRefresh {
		n.reimport()
		return text + "; the neighbor cannot refresh its routes (no route refresh capability), so policy is applied to those received before", nil
	}
	for f := range st.Established.Families.All() {
		n.session.SendRefresh(message.Refresh{Family: f})
	}
	return text + "; the neighbor is asked for its " + st.Established.Families.String() + " routes", nil
}

// resend has all routes sent again, and returns how many there are.
func (n *neighbor) resend() (routes int) {
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	for _, c := range n.feed.consumers {
		if c != nil {
			c.MarkAll()
			routes += c.Pending()
		}
	}
	return routes
}
