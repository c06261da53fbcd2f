package scenario

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/sched"
)

// Gateway is how a pair of gateways carries a transport's connections over its links: packet by
// packet, in a tunnel, whatever is in the packets.
type Gateway struct {
	// Discipline distributes the packets over the links: ratio, dq, dqj, redundant, auto, best or
	// flow. Example: dq
	Discipline string `yaml:"discipline"`
	// Ratio is the number of consecutive packets that discipline ratio sends on each link, in the
	// order of the transport's links. Default: 1 for every link. Example: "16:3"
	Ratio string `yaml:"ratio,omitempty"`
	// Resequence is how long the gateway at the receiver may hold packets to restore their order:
	// auto, off, or a time. Default: auto. Example: 20ms
	Resequence string `yaml:"resequence,omitempty"`
	// Replies is the link that carries the packets from the receiver of the data to its sender.
	// Default: the discipline chooses among all links in both directions. Example: path1
	Replies string `yaml:"replies,omitempty"`
	// Probes makes the gateways measure delay and jitter only by a probe each second, as in paper
	// D, instead of by every packet.
	Probes bool `yaml:"probes,omitempty"`
}

// The values of Gateway.Resequence that are no times.
const (
	ResequenceAuto = "auto"
	ResequenceOff  = "off"
)

// The bytes that a tunnel between gateways adds to a packet on a link (docs/wire.md).
const (
	tunnelIPv4 = 72
	tunnelIPv6 = 92
)

// maxResequence bounds the time for which packets are held.
const maxResequence = 10 * time.Second

// Hold returns how long packets may be held to restore their order; auto says that it is measured.
// The value must have passed Check.
func (g *Gateway) Hold() (hold time.Duration, auto bool) {
	switch g.Resequence {
	case "", ResequenceAuto:
		return 0, true
	case ResequenceOff:
		return 0, false
	}
	hold, _ = time.ParseDuration(g.Resequence)
	return hold, false
}

// Ratios returns the numbers of Ratio, or nil if it is empty. The value must have passed Check.
func (g *Gateway) Ratios() []int { return SchedulerOptions{Ratio: g.Ratio}.Ratios() }

// gateway checks how gateways carry a transport.
func (c *checker) gateway(path string, t *Transport) {
	g := t.Gateway
	if !slices.Contains(sched.Disciplines(), g.Discipline) {
		c.Add(path+".discipline", "must be one of %s, got %q", strings.Join(sched.Disciplines(), ", "), g.Discipline)
	}
	if g.Ratio != "" {
		switch _, err := (SchedulerOptions{Ratio: g.Ratio}).ratios(); {
		case g.Discipline != sched.ParameterRatio:
			c.Add(path+".ratio", "is for discipline ratio, got %q", g.Discipline)
		case err != nil:
			c.Add(path+".ratio", "%v", err)
		case len(g.Ratios()) != len(t.Links):
			c.Add(path+".ratio", "must have one number for each of the %d links, got %q", len(t.Links), g.Ratio)
		}
	}
	switch g.Resequence {
	case "", ResequenceAuto, ResequenceOff:
	default:
		if hold, err := time.ParseDuration(g.Resequence); err != nil || hold <= 0 || hold > maxResequence {
			c.Add(path+".resequence", "must be %s, %s or a time of at most %s, got %q", ResequenceAuto, ResequenceOff, maxResequence, g.Resequence)
		}
	}
	if g.Replies != "" && !slices.Contains(t.Links, g.Replies) {
		c.Add(path+".replies", "must be one of the transport's links, got %q", g.Replies)
	}
	if t.MPTCP {
		c.Add(path, "is for transports without mptcp: the gateways split one connection")
	}
}

// Era2006 is a value of Settings.Era.
const Era2006 = 2006

// HasEra reports whether a transport has the TCP of that year.
func (e *Experiment) HasEra(year int) bool {
	for _, t := range e.Transports {
		if t.Era == year {
			return true
		}
	}
	return false
}

// maxDatagram is the largest payload of a datagram that fits a packet of the smallest MTU in a
// tunnel, in bytes.
const maxDatagram = minMTU - tunnelIPv6 - 48

// datagrams checks a traffic of datagrams.
func (c *checker) datagrams(path string, t *Traffic) {
	switch {
	case t.Datagram < 0 || t.Datagram > maxDatagram:
		c.Add(path+".datagram", "must be 1 to %d bytes, got %d", maxDatagram, t.Datagram)
	case t.Datagram > 0 && t.Bytes != 0:
		c.Add(path+".datagram", "needs rate and duration: datagrams are not repeated, so a size is never complete")
	}
}

// era checks Settings.Era.
func (c *checker) era(path string, s Settings) {
	if s.Era != 0 && s.Era != Era2006 {
		c.Add(path+".era", "must be %s, or absent for today's, got %d", strconv.Itoa(Era2006), s.Era)
	}
	if s.Era != 0 && s.RACK != nil && *s.RACK {
		c.Add(path+".rack", "is not of %d", s.Era)
	}
}
