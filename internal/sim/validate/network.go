package validate

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/sim"
)

// Segment sizes of all comparisons: IP packets of 1500 bytes, as in most of the literature.
const (
	payload = 1448
	header  = 52
)

// network builds a simulation.
type network struct {
	config sim.Config
	random *rand.Rand
}

// newNetwork returns an empty network, with series of one second.
func newNetwork(seed uint64, duration time.Duration) *network {
	return &network{
		config: sim.Config{Seed: seed, Duration: duration, Series: time.Second},
		random: rand.New(rand.NewPCG(seed, 0x7461_6261_6e65)),
	}
}

// link adds one direction of a link.
func (n *network) link(p linkmodel.Profile) int {
	n.config.Links = append(n.config.Links, sim.Link{Name: fmt.Sprintf("l%d", len(n.config.Links)), Profile: p})
	return len(n.config.Links) - 1
}

// path returns a path over the links. Its acknowledgements have that delay alone.
func (n *network) path(back time.Duration, out ...int) sim.Path {
	return sim.Path{Out: out, Back: []int{n.link(linkmodel.Profile{Delay: back})}}
}

// tcp adds a TCP connection. It starts within the first second, to avoid synchronization.
func (n *network) tcp(congestion string, path sim.Path) int {
	n.config.Connections = append(n.config.Connections, sim.Connection{
		Name: fmt.Sprintf("c%d", len(n.config.Connections)), Start: time.Duration(n.random.Int64N(int64(time.Second))),
		Paths: []sim.Path{path}, Congestion: congestion, Segment: payload, Header: header,
	})
	return len(n.config.Connections) - 1
}

// mptcp adds an MPTCP connection with bulk data.
func (n *network) mptcp(congestion string, paths ...sim.Path) int {
	i := n.tcp(congestion, sim.Path{})
	c := &n.config.Connections[i]
	// A segment is sent wherever a window has room, so that congestion control alone decides the
	// rates.
	c.MPTCP, c.Scheduler, c.Paths = true, "lowest-rtt", paths
	return i
}

// early is a bottleneck with RED as in the experiments of Khalili et al. (CoNEXT 2012): at 10
// Mbit/s no drops up to 25 packets, 10 % at 50, all at 100, and in proportion at other rates. The
// queue has no other limit.
func early(rate unit.Bandwidth, delay time.Duration) linkmodel.Profile {
	packets := func(n int64) linkmodel.Limit {
		return linkmodel.Limit{Packets: int(n * int64(rate) / int64(10*unit.MbitPerSecond))}
	}
	return linkmodel.Profile{Rate: rate, Delay: delay, Queue: linkmodel.Queue{
		Limit: packets(200), Discipline: linkmodel.DisciplineRED, RED: linkmodel.RED{Min: packets(25), Max: packets(50), P: 0.1},
	}}
}

// lossy is a fast link with random loss: congestion that does not depend on its users.
func lossy(p float64, delay time.Duration) linkmodel.Profile {
	profile := linkmodel.Profile{Rate: unit.GbitPerSecond, Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Packets: 10_000}}}
	if p > 0 {
		profile.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: p}
	}
	return profile
}
