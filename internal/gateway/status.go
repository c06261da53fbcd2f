package gateway

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/daemon/control"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// Status is what /status shows.
type Status struct {
	Role string `json:"role"`
	health.Status
	// PublicKey is what the peers have to know this gateway by.
	PublicKey string `json:"public_key"`
	Interface string `json:"interface"`
	MTU       int    `json:"mtu"`
	// Conflicts are what keeps packets to peers out of the tunnel.
	Conflicts []string `json:"conflicts,omitempty"`
	// Pending is the number of objects that the kernel does not have as desired.
	Pending int `json:"pending"`
	// Control is the path of the socket for commands.
	Control string `json:"control"`
	// PacketsIn and BytesIn are packets from the LAN, PacketsOut and BytesOut packets to it.
	PacketsIn  uint64 `json:"packets_in"`
	BytesIn    uint64 `json:"bytes_in"`
	PacketsOut uint64 `json:"packets_out"`
	BytesOut   uint64 `json:"bytes_out"`
	HeldBytes  int64  `json:"held_bytes"`
	// LAN are the interfaces of the LAN.
	LAN []string `json:"lan"`
	// Unlisted are interfaces with addresses of the LAN that are none of it: packets of their hosts
	// to open peers are sealed, unless a listed one receives them before, such as the port of a
	// bridge.
	Unlisted []string     `json:"unlisted,omitempty"`
	Lines    []Line       `json:"lines"`
	Peers    []PeerStatus `json:"peers"`
	Paths    []PathStatus `json:"paths"`
	Rules    []RuleStatus `json:"rules"`
	// Relays are what a member relays for leaders.
	Relays []RelayStatus `json:"relays,omitempty"`
	// Unpinned is why packets to open peers are not sent while the daemon is killed; empty if they
	// are.
	Unpinned string `json:"unpinned,omitempty"`
	// Left are packets to open peers that were carried sealed, by the reason why they could not be
	// sent otherwise.
	Left map[string]uint64 `json:"left,omitempty"`
	// Dropped are packets that were not carried, by reason.
	Dropped map[string]uint64 `json:"dropped"`
}

// Line is a line of this site.
type Line struct {
	Name      string `json:"name"`
	Interface string `json:"interface"`
	// Up: the interface is up with carrier.
	Up bool `json:"up"`
	// Backup is when a backup is used: "true" while no other line carries packets, "full" also while
	// the others are full. It is empty for other lines, as are Quota and a peer's Role without any.
	Backup string `json:"backup"`
	// Quota is the part of the quota that is used, and when a new count begins; empty without one.
	// QuotaBytes are those of a month, QuotaUsedBytes those that were carried.
	Quota          string `json:"quota"`
	QuotaBytes     int64  `json:"quota_bytes,omitempty"`
	QuotaUsedBytes int64  `json:"quota_used_bytes,omitempty"`
	// Error is why no peer is reached over it: why its socket could not be opened, or why it last
	// failed to send.
	Error string `json:"error,omitempty"`
}

// PeerStatus is another gateway.
type PeerStatus struct {
	Name string `json:"name"`
	// Role is what the peer is in an alliance: home agent, member or leader; empty outside of any.
	Role string `json:"role"`
	// Mode is how packets to the peer are carried: "tunnel", "plain", "nat", or "tunnel, seal
	// none".
	Mode string `json:"mode"`
	// NATSending and NATReceiving are the NAT sessions of flows to and from the peer, with mode
	// nat.
	NATSending   int `json:"nat_sending"`
	NATReceiving int `json:"nat_receiving"`
	// NATWanted and NATEnding are sessions of flows to the peer that it has not answered NAT or FIN
	// for yet, NATDenied those that it has refused in the last minute.
	NATWanted int `json:"nat_wanted"`
	NATEnding int `json:"nat_ending"`
	NATDenied int `json:"nat_denied"`
	// NATRefused are sessions that the peer has refused, NATDeclined those that this gateway has
	// refused the peer, NATEvicted those that ended for lack of room, NATFull flows without a
	// session for lack of room.
	NATRefused  uint64 `json:"nat_refused"`
	NATDeclined uint64 `json:"nat_declined"`
	NATEvicted  uint64 `json:"nat_evicted"`
	NATFull     uint64 `json:"nat_full"`
	// Up: there is a session, with keys. Reason is why not, or why none lasts.
	Up     bool   `json:"up"`
	Reason string `json:"reason"`
	// Seconds is the age of the session, KeySeconds that of its keys.
	Seconds    float64 `json:"seconds"`
	KeySeconds float64 `json:"key_seconds"`
	Encryption string  `json:"encryption"`
	// Held are packets that wait for earlier ones. Skipped were taken for lost, Late arrived after
	// that, Duplicates arrived twice.
	Held       int    `json:"held"`
	Skipped    uint64 `json:"skipped"`
	Late       uint64 `json:"late"`
	Duplicates uint64 `json:"duplicates"`
}

// PathStatus is a path to a peer. Its rates are in bit/s of whole IP packets, tunnel included.
type PathStatus struct {
	Peer string `json:"peer"`
	Path string `json:"path"`
	// Line is the line of this site, Meets that of the peer, empty if it is not known.
	Line  string `json:"line"`
	Meets string `json:"meets"`
	// Up: the peer answers over the path. State is up, dead, down, unproven or unregistered.
	// Resting is why a path that is up is not used.
	Up       bool   `json:"up"`
	State    string `json:"state"`
	Resting  string `json:"resting"`
	Endpoint string `json:"endpoint"`
	// Seen is where the peer sees this gateway, empty if it has not reported it.
	Seen string `json:"seen"`
	// Member relays the messages of the path. CareOf is its registered address, LifetimeSeconds how
	// long the registration lasts, Reason why there is none, or why the peer does not answer.
	Member          string  `json:"member,omitempty"`
	CareOf          string  `json:"care_of,omitempty"`
	LifetimeSeconds float64 `json:"lifetime_seconds"`
	Reason          string  `json:"reason,omitempty"`
	Rate            int64   `json:"rate_bps"`
	// RTT is the round-trip time. Delay is how much longer the path is than the fastest towards the
	// peer, Jitter its variation (RFC 3550), Spread its range, Queue the standing queue.
	RTT    float64 `json:"rtt_ms"`
	Delay  float64 `json:"delay_ms"`
	Jitter float64 `json:"jitter_ms"`
	Spread float64 `json:"spread_ms"`
	Queue  float64 `json:"queue_ms"`
	// Loss is the share of packets towards the peer that were lost. LostPackets are those that the
	// peer misses, MissedPackets those from the peer that have not arrived here. With mode plain,
	// they are not known of paths that share an interface.
	Loss          float64 `json:"loss"`
	LostPackets   uint64  `json:"lost_packets"`
	MissedPackets uint64  `json:"missed_packets"`
	MTU           int     `json:"mtu"`

	SentPackets     uint64 `json:"sent_packets"`
	SentBytes       uint64 `json:"sent_bytes"`
	ReceivedPackets uint64 `json:"received_packets"`
	ReceivedBytes   uint64 `json:"received_bytes"`
}

// RelayStatus is what a member relays for a leader.
type RelayStatus struct {
	// Peer is the leader, Path the line that is used.
	Peer string `json:"peer"`
	Path string `json:"path"`
	// HomeAgent is where messages are relayed to, empty if the leader has not registered.
	HomeAgent       string  `json:"home_agent"`
	LifetimeSeconds float64 `json:"lifetime_seconds"`
	// Up are messages from the leader, Down those to it. Dropped exceeded the rate or were none of
	// the tunnel.
	UpPackets   uint64 `json:"up_packets"`
	UpBytes     uint64 `json:"up_bytes"`
	DownPackets uint64 `json:"down_packets"`
	DownBytes   uint64 `json:"down_bytes"`
	Dropped     uint64 `json:"dropped"`
}

// RuleStatus is what a rule of the policy does for a peer.
type RuleStatus struct {
	Peer string `json:"peer"`
	// Rule is its position in the policy, from 0.
	Rule       string `json:"rule"`
	Discipline string `json:"discipline"`
	// Using are the paths in use, Because why.
	Using   []string `json:"using"`
	Because string   `json:"because"`

	SentPackets uint64 `json:"sent_packets"`
	SentBytes   uint64 `json:"sent_bytes"`
	// Copies are packets that were sent on one more path.
	Copies uint64 `json:"copies"`
}

// Status returns the state of the gateway. It is ready while one of its peers has a session and
// answers over a path, and degraded while one does not or one of its paths is not up.
func (g *Gateway) Status() any {
	s := Status{Role: "gateway", Status: daemon.NotRunning}
	g.loop.Do(context.Background(), func() {
		s.PublicKey, s.MTU, s.Pending = g.keys.own.Public().String(), g.mtu, g.loop.Kernel.Pending()
		s.Control, s.Interface = control.Path(g.config.Control, s.Role), g.config.tunnelName()
		for _, p := range g.config.Paths {
			l := lineOf(&p)
			l.Up = g.links[p.Interface]
			g.metering.show(&l, &p, g.wall())
			s.Lines = append(s.Lines, l)
		}
		s.LAN, s.Unlisted = g.config.LAN.Interfaces, g.config.unlisted(g.connected)
		s.Conflicts = g.config.conflicts(g.connected, g.loop.NexthopTo)
		s.fill(g.plane.Status())
		s.explainRoutes(&g.config, g.addresses, g.loop.RoutedOn)
		s.Status = s.health(g.rejected, append(g.loop.Problems(), g.metering.problems(g.config.Paths)...))
	})
	return s
}

// lineOf returns the status of a line before anything is known of it.
func lineOf(p *Path) Line {
	l := Line{Name: p.Name, Interface: p.Interface}
	if p.Backup != NoBackup {
		l.Backup = p.Backup.String()
	}
	return l
}

// fill adds the status of the plane.
func (s *Status) fill(p dataplane.Status) {
	s.PacketsIn, s.BytesIn = p.Received.Packets, p.Received.Bytes
	s.PacketsOut, s.BytesOut = p.Delivered.Packets, p.Delivered.Bytes
	s.HeldBytes, s.Unpinned, s.Left, s.Dropped = int64(p.Held), p.Unpinned, p.Left, p.Dropped
	for _, peer := range p.Peers {
		role := ""
		if peer.Role != dataplane.NoRole {
			role = peer.Role.String()
		}
		s.Peers = append(s.Peers, PeerStatus{
			NATSending: peer.NAT.Sending, NATReceiving: peer.NAT.Receiving, NATWanted: peer.NAT.Wanted, NATEnding: peer.NAT.Ending, NATDenied: peer.NAT.Denied,
			NATRefused: peer.NAT.Refused, NATDeclined: peer.NAT.Declined, NATEvicted: peer.NAT.Evicted, NATFull: peer.NAT.Full,
			Name: peer.Name, Role: role, Mode: peer.Mode.String(), Up: peer.Up, Reason: peer.Reason, Seconds: seconds(peer.Since), KeySeconds: seconds(peer.Handshake),
			Encryption: peer.Suite, Held: peer.Held, Skipped: peer.Skipped, Late: peer.Late, Duplicates: peer.Duplicates,
		})
		for _, l := range peer.Links {
			out := PathStatus{
				Peer: peer.Name, Path: l.Path, Line: l.Line, Meets: l.Meets, Up: l.State == stateUp, State: l.State, Resting: l.Resting, Rate: int64(l.Rate),
				RTT: milliseconds(l.RTT), Delay: milliseconds(l.Delay), Jitter: milliseconds(l.Jitter), Spread: milliseconds(l.Spread), Queue: milliseconds(l.Queue),
				Loss: math.Round(l.Loss*1e4) / 1e4, LostPackets: l.Lost, MissedPackets: l.Missed, MTU: l.MTU, SentPackets: l.Sent.Packets, SentBytes: l.Sent.Bytes,
				ReceivedPackets: l.Received.Packets, ReceivedBytes: l.Received.Bytes,
			}
			out.Member, out.Reason, out.LifetimeSeconds = l.Member, l.Reason, seconds(l.Lifetime)
			out.Endpoint, out.Seen, out.CareOf = addressText(l.Endpoint), addressText(l.Seen), addressText(l.CareOf)
			s.Paths = append(s.Paths, out)
		}
		for _, r := range peer.Policies {
			s.Rules = append(s.Rules, RuleStatus{
				Peer: peer.Name, Rule: strconv.Itoa(r.Rule), Discipline: r.Discipline, Using: r.Using, Because: r.Because,
				SentPackets: r.Sent.Packets, SentBytes: r.Sent.Bytes, Copies: r.Copies,
			})
		}
	}
	for _, r := range p.Relays {
		s.Relays = append(s.Relays, RelayStatus{
			Peer: r.Leader, Path: r.Path, HomeAgent: addressText(r.HomeAgent), LifetimeSeconds: seconds(r.Lifetime),
			UpPackets: r.Up.Packets, UpBytes: r.Up.Bytes, DownPackets: r.Down.Packets, DownBytes: r.Down.Bytes, Dropped: r.Dropped,
		})
	}
	s.explain(p.Paths)
}

// addressText returns an address, empty if there is none.
func addressText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// explain adds the errors of lines that no peer is reached over: on others, only some endpoint is
// not reachable.
func (s *Status) explain(lines []dataplane.PathStatus) {
	for i := range s.Lines {
		l := &s.Lines[i]
		if slices.ContainsFunc(s.Paths, func(p PathStatus) bool { return cmp.Or(p.Line, p.Path) == l.Name && p.Up }) {
			continue
		}
		for _, line := range lines {
			if line.Name == l.Name {
				l.Error = line.Error
			}
		}
	}
}

// Translated returns the IPv6 address that a line with NAT64 reaches an IPv4 address at, by the
// well-known prefix, which is for public addresses only (RFC 6052 sections 2.1 and 3.1).
func Translated(a netip.Addr) (netip.Addr, bool) {
	if !a.Is4() || !a.IsGlobalUnicast() || a.IsPrivate() || sharedSpace.Contains(a) {
		return netip.Addr{}, false
	}
	four := a.As4()
	return netip.AddrFrom16([16]byte{1: 0x64, 2: 0xff, 3: 0x9b, 12: four[0], 13: four[1], 14: four[2], 15: four[3]}), true
}

// sharedSpace is that of carriers' NATs (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// explainRoutes says which paths have no answer because no route leads to the peer through their
// interface. routed is the kernel's answer for packets of the tunnel.
func (s *Status) explainRoutes(c *Config, addresses map[string][]netip.Addr, routed func(netip.Addr, string, uint32) (bool, error)) {
	for i := range s.Paths {
		p := &s.Paths[i]
		line := slices.IndexFunc(s.Lines, func(l Line) bool { return l.Name == cmp.Or(p.Line, p.Path) })
		peer := slices.IndexFunc(c.Peers, func(o Peer) bool { return o.Name == p.Peer })
		if p.State != stateUnproven && p.State != stateDead || p.Member != "" || line < 0 || peer < 0 {
			continue
		}
		endpoints := resolved(c.Peers[peer].Endpoints, addresses)
		leads := func(e netip.AddrPort) bool {
			ok, err := routed(e.Addr(), s.Lines[line].Interface, SocketMark)
			return ok || err != nil // nothing is known
		}
		if len(endpoints) == 0 {
			continue
		}
		if i := slices.IndexFunc(endpoints, leads); i >= 0 {
			if p.State == stateUnproven && p.Reason == "" {
				p.Reason = fmt.Sprintf("the peer has not answered over it yet: the line has to let UDP to %v pass", endpoints[i])
			}
			continue
		}
		p.Reason = fmt.Sprintf("no route through %q: add a default route with a metric, or `via`", s.Lines[line].Interface)
		for _, e := range endpoints {
			if at, ok := Translated(e.Addr()); ok && leads(netip.AddrPortFrom(at, e.Port())) {
				p.Reason = fmt.Sprintf("%q has a route of IPv6 only, and the peer no endpoint of IPv6: if the line has NAT64, add the endpoint %q", s.Lines[line].Interface, netip.AddrPortFrom(at, e.Port()))
				break
			}
		}
	}
}

// milliseconds and seconds are rounded to what is readable.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()/10) / 100 }
func seconds(d time.Duration) float64      { return float64(d.Milliseconds()/100) / 10 }

// health judges the rest of the status. rejected is why the plane keeps an earlier state, lacking
// are problems of the host.
func (s *Status) health(rejected error, lacking []health.Problem) health.Status {
	var r health.Report
	r.Lack(lacking...)
	if s.Pending > 0 {
		r.Degrade("%d objects are not in the kernel", s.Pending)
	}
	for _, conflict := range s.Conflicts {
		r.Degrade("%s", conflict)
	}
	if rejected != nil {
		r.Degrade("%v", rejected)
	}
	var problems []string
	// Leaders and members come and go: neither is missed.
	needed := 0
	allies := map[string]bool{}
	for _, p := range s.Peers {
		if p.Role == dataplane.Leader.String() || p.Role == dataplane.Member.String() {
			allies[p.Name] = true
			continue
		}
		needed++
		switch {
		case !p.Up:
			problems = append(problems, strings.TrimSuffix(fmt.Sprintf("peer %q has no session: %s", p.Name, p.Reason), ": "))
		case !s.answers(p.Name):
			problems = append(problems, fmt.Sprintf("peer %q answers over no path", p.Name))
		}
	}
	r.NeedOne(needed, problems)
	for _, p := range s.Peers {
		if p.Up && p.Reason != "" {
			r.Degrade("peer %q: %s", p.Name, p.Reason)
		}
	}
	for _, l := range s.Lines {
		switch {
		case !l.Up:
			r.Degrade("interface %q of path %q is down", l.Interface, l.Name)
		case l.Error != "":
			r.Degrade("line %q: %s", l.Name, l.Error)
		}
	}
	for _, p := range s.Paths {
		if p.State != stateUp && p.State != stateDown && !allies[p.Peer] && p.Member == "" {
			r.Degrade("path %q to peer %q is %s%s", p.Path, p.Peer, p.State, stateMeaning(p))
		}
	}
	contain.Report(&r)
	return r.Status()
}

// answers reports whether a path to a peer is up, or none has been reported yet.
func (s *Status) answers(peer string) bool {
	known := false
	for _, p := range s.Paths {
		if p.Peer == peer {
			if p.Up {
				return true
			}
			known = true
		}
	}
	return !known
}

// The states of a path without a problem of its own: the line has it, or there is none.
const stateUp, stateDown = "up", "down"

// The states of a path whose peer may have another address.
const stateDead, stateUnproven = "dead", "unproven"

// stateMeaning explains a state, after a colon.
func stateMeaning(p PathStatus) string {
	switch {
	case p.Member == "" && p.Reason != "":
		return ": " + p.Reason
	case p.State == stateDead:
		return ": the peer does not answer over it any more"
	case p.State == stateUnproven:
		return ": the peer has not answered over it yet"
	case p.Reason != "":
		return ": " + p.Reason
	}
	return ""
}
