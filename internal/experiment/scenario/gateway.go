package scenario

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/sched"
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
	// auto, off, or a time. It must be off or left out if packets are not encrypted. Default: auto,
	// or off then. Example: 20ms
	Resequence string `yaml:"resequence,omitempty"`
	// Mode is how packets are carried: tunnel, which encrypts them unless seal is none, plain,
	// which sends them as they are, or nat, which gives them the address of their path as source.
	// Default: tunnel
	Mode string `yaml:"mode,omitempty"`
	// Seal is which packets in the tunnel are encrypted: all or none. Default: all
	Seal string `yaml:"seal,omitempty"`
	// Replies is the link that carries the packets from the receiver of the data to its sender.
	// Default: the discipline chooses among all links in both directions. Example: path1
	Replies string `yaml:"replies,omitempty"`
	// Rates has for each link the ratio of the rate that the gateways are configured with to the
	// one that it has. Default: 1 for every link. Example: [1.3, 0.7]
	Rates []float64 `yaml:"rates,omitempty"`
	// Probes makes the gateways measure delay and jitter only by a probe each second, as in paper
	// D, instead of by every packet.
	Probes bool `yaml:"probes,omitempty"`
}

// The values of Gateway.Resequence that are no times.
const (
	ResequenceAuto = "auto"
	ResequenceOff  = "off"
)

// overheads are the bytes that gateways add to a packet over IPv6 and IPv4 (docs/wire.md).
var overheads = map[dataplane.Mode][2]int{
	dataplane.Tunnel:   {maxTunnel, 72},
	dataplane.Unsealed: {openbpf.OverheadIPv6, openbpf.OverheadIPv4},
	dataplane.Plain:    {},
	dataplane.NAT:      {},
}

// maxTunnel is the largest of the overheads.
const maxTunnel = 92

// maxRates bounds the elements of Gateway.Rates, and those of its inverse.
const maxRates = 100

// maxResequence bounds the time for which packets are held.
const maxResequence = 10 * time.Second

// Hold returns how long packets may be held to restore their order; auto means that it is measured.
// The value must have passed Check.
func (g *Gateway) Hold() (hold time.Duration, auto bool) {
	switch {
	case g.Resequence == ResequenceOff || g.Carried().Open():
		return 0, false
	case g.Resequence == "" || g.Resequence == ResequenceAuto:
		return 0, true
	}
	hold, _ = time.ParseDuration(g.Resequence)
	return hold, false
}

// Carried is how packets are carried. The values must have passed Check.
func (g *Gateway) Carried() dataplane.Mode { return gateway.ModeOf(g.Mode, g.Seal) }

// overhead returns the bytes that the gateways add to a packet on a link.
func (g *Gateway) overhead(ipv4 bool) int {
	i := 0
	if ipv4 {
		i = 1
	}
	return overheads[g.Carried()][i]
}

// WarmUp is how long gateways measure the paths before a run begins: until the estimates have
// settled. An estimate by probes has a memory of 16 s.
func (g *Gateway) WarmUp() time.Duration {
	if g.Probes {
		return time.Minute
	}
	return 10 * time.Second
}

// Ratios returns the numbers of Ratio, or nil if it is empty. The value must have passed Check.
func (g *Gateway) Ratios() []int { return SchedulerOptions{Ratio: g.Ratio}.Ratios() }

// GatewayOf returns the gateways of a cell's transport, with the ratio of the case if they have
// none of their own; nil if it has no gateways.
func (e *Experiment) GatewayOf(k result.CellKey) *Gateway {
	g := e.Transports[k.Transport].Gateway
	if !g.ratioOfCase() {
		return g
	}
	changed := *g
	changed.Ratio = e.Case(k.Case).Ratio
	return &changed
}

// ratioOfCase reports whether the gateways have the ratio of the case.
func (g *Gateway) ratioOfCase() bool {
	return g != nil && g.Discipline == sched.ParameterRatio && g.Ratio == ""
}

// caseRatio checks the ratio of a case.
func (c *checker) caseRatio(path, ratio string) {
	if ratio == "" {
		return
	}
	numbers, err := SchedulerOptions{Ratio: ratio}.ratios()
	if err != nil {
		c.Add(path, "%v", err)
		return
	}
	used := false
	for _, name := range sortedKeys(c.spec.Experiment.Transports) {
		t := c.spec.Experiment.Transports[name]
		if t == nil || !t.Gateway.ratioOfCase() {
			continue
		}
		used = true
		if n := len(t.Links); n != len(numbers) {
			c.Add(path, "must have one number for each of the %d links of transport %q, got %q", n, name, ratio)
		}
	}
	if !used {
		c.Add(path, "has no effect: no transport has a gateway with discipline %s and no ratio of its own", sched.ParameterRatio)
	}
}

// Configured returns the rate that gateways are configured with for link i of the transport.
func (g *Gateway) Configured(i int, rate unit.Bandwidth) unit.Bandwidth {
	if i >= len(g.Rates) {
		return rate
	}
	return unit.Bandwidth(float64(rate) * g.Rates[i])
}

// gateway checks how gateways carry a transport.
func (c *checker) gateway(path string, t *Transport) {
	g := t.Gateway
	gateway.CheckMode(&c.List, path, g.Mode, g.Seal)
	if known := g.Carried().Disciplines(); !slices.Contains(known, g.Discipline) {
		c.Add(path+".discipline", "must be one of %s with mode %s, got %q", strings.Join(known, ", "), g.Carried(), g.Discipline)
	}
	if g.Carried().Open() && g.Resequence != "" && g.Resequence != ResequenceOff {
		c.Add(path+".resequence", "must be off or left out with mode %s, whose packets are not held", g.Carried())
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
	if len(g.Rates) > 0 && len(g.Rates) != len(t.Links) {
		c.Add(path+".rates", "must have one number for each of the %d links, got %d", len(t.Links), len(g.Rates))
	}
	for i, r := range g.Rates {
		if !(r >= 1./maxRates && r <= maxRates) {
			c.Add(index(path+".rates", i), "must be from %g to %d, got %g", 1./maxRates, maxRates, r)
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
const maxDatagram = minMTU - maxTunnel - 48

// datagrams checks a traffic of datagrams.
func (c *checker) datagrams(path string, t *Traffic) {
	switch {
	case t.Datagram != 0 && t.Datagram < traffic.MinDatagram || t.Datagram > maxDatagram:
		c.Add(path+".datagram", "must be %d to %d bytes, got %d", traffic.MinDatagram, maxDatagram, t.Datagram)
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
