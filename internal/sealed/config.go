package sealed

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

// Config is the whole desired state of a Plane.
type Config struct {
	// Key is the static key of this gateway.
	Key session.PrivateKey
	// Paths are the lines of this gateway, at most tunnel.MaxPaths, Peers the other gateways.
	Paths []Path
	Peers []Peer
	// Policy chooses the discipline of a packet: the first rule that matches. A packet without a
	// rule is scheduled by DefaultDiscipline.
	Policy []Rule
}

// DefaultDiscipline schedules packets that no rule matches.
const DefaultDiscipline = "dq"

// Path is a line of this gateway.
type Path struct {
	// Name identifies the path in status, logs and Endpoint.Path.
	Name string
	// Interface is the interface that the path's packets leave and arrive through. Empty: any.
	Interface string
	// Listen is the local address and port. The zero address is all addresses, port 0 any free one.
	Listen netip.AddrPort
	// Up and Down are the rates from and to this gateway, on the wire. 0: measured.
	Up, Down unit.Bandwidth
	// Cost compares paths: copies are not sent on a path of a higher cost.
	Cost int
}

// Peer is another gateway.
type Peer struct {
	// Name identifies the peer in status and logs.
	Name      string
	Public    session.PublicKey
	Preshared session.PresharedKey
	// Endpoints are where the peer listens. Path i uses the endpoints that name it, else those
	// without a path: number i of them, modulo their number. Without endpoints the peer has to begin.
	Endpoints []Endpoint
	// Prefixes are the destinations behind the peer. Packets from the peer with other sources are
	// dropped.
	Prefixes []netip.Prefix
}

// Endpoint is an address and port of a peer.
type Endpoint struct {
	Address netip.AddrPort
	// Path is the name of the only path that uses the endpoint. Empty: all.
	Path string
}

// Rule schedules the packets that match.
type Rule struct {
	Match Match
	// Discipline is one of Disciplines.
	Discipline string
	// Ratio is the number of consecutive packets of each path for discipline "ratio", in the order of
	// Config.Paths.
	Ratio []int
	// Resequence is how packets of these flows are put in order by the receiver of this gateway.
	Resequence Resequence
}

// Match selects packets. The zero value selects all.
type Match struct {
	// Protocol is the IP protocol number, 0 for any.
	Protocol uint8
	// Port is the source or destination port, 0 for any.
	Port uint16
	// DSCP is a code point, if HasDSCP.
	DSCP    uint8
	HasDSCP bool
	// Prefix has the source or destination, if it is valid.
	Prefix netip.Prefix
}

// ResequenceMode is how a receiver puts packets in order.
type ResequenceMode uint8

const (
	// ResequenceAuto waits for earlier packets as long as the paths' measured spread requires.
	ResequenceAuto ResequenceMode = iota
	// ResequenceOff delivers packets as they arrive.
	ResequenceOff
	// ResequenceFixed waits for earlier packets at most a configured time.
	ResequenceFixed
)

// Resequence is a mode, and the longest wait of ResequenceFixed.
type Resequence struct {
	Mode ResequenceMode
	Wait time.Duration
}

// maxResequence bounds Resequence.Wait.
const maxResequence = 2 * time.Second

// Disciplines returns the names that Rule.Discipline may have.
func Disciplines() []string {
	return slices.DeleteFunc(sched.Names(), func(name string) bool {
		needs := sched.NeedsOf(name)
		return !datagram[name] && !needs.Delay
	})
}

// datagram are the schedulers that work without a congestion window and need no measured delay.
var datagram = map[string]bool{"ratio": true, "round-robin": true, "redundant": true}

// Check returns the faults of the configuration.
func (c *Config) Check() fault.List {
	var faults fault.List
	if c.Key == (session.PrivateKey{}) {
		faults.Add("key", "is missing")
	}
	if n := len(c.Paths); n == 0 || n > tunnel.MaxPaths {
		faults.Add("paths", "must be 1 to %d, got %d", tunnel.MaxPaths, n)
	}
	names := map[string]bool{}
	for i, p := range c.Paths {
		at := fmt.Sprintf("paths[%d]", i)
		if p.Name == "" || names[p.Name] {
			faults.Add(at+".name", "must be unique, got %q", p.Name)
		}
		names[p.Name] = true
		if p.Up < 0 || p.Down < 0 {
			faults.Add(at+".rate", "must not be negative")
		}
	}
	c.checkPeers(&faults, names)
	known := Disciplines()
	for i, r := range c.Policy {
		at := fmt.Sprintf("policy[%d]", i)
		if !slices.Contains(known, r.Discipline) {
			faults.Add(at+".discipline", "unknown discipline %q: want one of %s", r.Discipline, strings.Join(known, ", "))
		}
		if sum, bad := ratioSum(r.Ratio); bad || r.Discipline == "ratio" && sum == 0 || r.Discipline != "ratio" && r.Ratio != nil || len(r.Ratio) > len(c.Paths) {
			faults.Add(at+".ratio", "must have a number of packets for each path and not only zeros, and is for discipline ratio alone, got %v", r.Ratio)
		}
		if w := r.Resequence.Wait; r.Resequence.Mode == ResequenceFixed && (w <= 0 || w > maxResequence) {
			faults.Add(at+".resequence", "must be more than 0 and at most %v, got %v", maxResequence, w)
		}
	}
	return faults
}

func ratioSum(ratio []int) (sum int, bad bool) {
	for _, r := range ratio {
		bad = bad || r < 0 || r > 1000
		sum += r
	}
	return sum, bad
}

func (c *Config) checkPeers(faults *fault.List, paths map[string]bool) {
	names, keys := map[string]bool{}, map[session.PublicKey]bool{}
	own := c.Key.Public()
	owner := map[netip.Prefix]string{}
	for i, p := range c.Peers {
		at := fmt.Sprintf("peers[%d]", i)
		if p.Name == "" || names[p.Name] {
			faults.Add(at+".name", "must be unique, got %q", p.Name)
		}
		if keys[p.Public] || p.Public == own || p.Public == (session.PublicKey{}) {
			faults.Add(at+".public_key", "must be unique and not the key of this gateway, got %v", p.Public)
		}
		names[p.Name], keys[p.Public] = true, true
		for j, e := range p.Endpoints {
			if !e.Address.IsValid() || e.Address.Port() == 0 {
				faults.Add(fmt.Sprintf("%s.endpoints[%d]", at, j), "must have an address and a port, got %v", e.Address)
			}
			if e.Path != "" && !paths[e.Path] {
				faults.Add(fmt.Sprintf("%s.endpoints[%d]", at, j), "unknown path %q", e.Path)
			}
		}
		for j, prefix := range p.Prefixes {
			where := fmt.Sprintf("%s.prefixes[%d]", at, j)
			switch other, taken := owner[prefix]; {
			case !prefix.IsValid() || prefix != prefix.Masked():
				faults.Add(where, "has host bits set: %v", prefix)
			case taken:
				faults.Add(where, "%v belongs to peer %q already", prefix, other)
			}
			owner[prefix] = p.Name
		}
	}
}
