package validate

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/sim"
	"github.com/tabane/tabane/internal/unit"
)

// The segments of all comparisons: 1500 bytes on the wire, as in most of the literature.
const (
	payload = 1448
	header  = 52
)

// network is a simulation that is being put together.
type network struct {
	config sim.Config
	random *rand.Rand
}

// newNetwork begins one of that length, with figures by the second.
func newNetwork(seed uint64, duration time.Duration) *network {
	return &network{
		config: sim.Config{Seed: seed, Duration: duration, Series: time.Second},
		random: rand.New(rand.NewPCG(seed, 0x7461_6261_6e65)),
	}
}

// link adds one direction of a link.
func (n *network) link(p channel.Profile) int {
	n.config.Links = append(n.config.Links, sim.Link{Name: fmt.Sprintf("l%d", len(n.config.Links)), Profile: p})
	return len(n.config.Links) - 1
}

// path leads through those links. Its way back has that delay and nothing else.
func (n *network) path(back time.Duration, out ...int) sim.Path {
	return sim.Path{Out: out, Back: []int{n.link(channel.Profile{Delay: back})}}
}

// tcp adds a connection over one path. It starts within the first second, so that connections are
// not in step.
func (n *network) tcp(congestion string, path sim.Path) int {
	n.config.Connections = append(n.config.Connections, sim.Connection{
		Name: fmt.Sprintf("c%d", len(n.config.Connections)), Start: time.Duration(n.random.Int64N(int64(time.Second))),
		Paths: []sim.Path{path}, Congestion: congestion, Segment: payload, Header: header,
	})
	return len(n.config.Connections) - 1
}

// mptcp adds a connection over several paths that always has more to send.
func (n *network) mptcp(congestion string, paths ...sim.Path) int {
	i := n.tcp(congestion, sim.Path{})
	c := &n.config.Connections[i]
	// Each segment is sent where a window has room, so that the rates are those of congestion
	// control.
	c.MPTCP, c.Scheduler, c.Paths = true, "lowest-rtt", paths
	return i
}

// early is a bottleneck with random early detection as in the experiments of Khalili et al. (CoNEXT
// 2012): no drops up to 25 packets at 10 Mbit/s, one in ten at 50, all at 100, and in proportion at
// other rates. The queue itself is no limit.
func early(rate unit.Bandwidth, delay time.Duration) channel.Profile {
	packets := func(n int64) channel.Limit {
		return channel.Limit{Packets: int(n * int64(rate) / int64(10*unit.MbitPerSecond))}
	}
	return channel.Profile{Rate: rate, Delay: delay, Queue: channel.Queue{
		Limit: packets(200), Discipline: channel.DisciplineRED, RED: channel.RED{Min: packets(25), Max: packets(50), P: 0.1},
	}}
}

// lossy is a link that is fast and loses packets at random: congestion that does not depend on who
// uses it.
func lossy(p float64, delay time.Duration) channel.Profile {
	profile := channel.Profile{Rate: unit.GbitPerSecond, Delay: delay, Queue: channel.Queue{Limit: channel.Limit{Packets: 10_000}}}
	if p > 0 {
		profile.Loss = channel.Loss{Kind: channel.Random, P: p}
	}
	return profile
}
