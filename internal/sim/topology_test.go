package sim

import (
	"context"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

const ms = time.Millisecond

// road is one path of the paper: a rate-limited link and a link of 10 ms, in each direction.
type road struct {
	rate  unit.Bandwidth
	delay time.Duration
	loss  float64
	queue linkmodel.Limit
}

// lay adds the links of a road, and returns the Path over them.
func lay(c *Config, r road) Path {
	n := len(c.Links)
	limited := linkmodel.Profile{Rate: r.rate, Delay: r.delay, Queue: linkmodel.Queue{Limit: r.queue}}
	if r.queue == (linkmodel.Limit{}) {
		limited.Queue.Limit = linkmodel.Limit{Packets: 50}
	}
	back := limited
	if r.loss > 0 {
		limited.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: r.loss}
	}
	short := linkmodel.Profile{Rate: 100 * unit.MbitPerSecond, Delay: 10 * ms, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Packets: 50}}}
	c.Links = append(c.Links, Link{Profile: limited}, Link{Profile: short}, Link{Profile: back}, Link{Profile: short})
	return Path{Out: []int{n, n + 1}, Back: []int{n + 3, n + 2}}
}

// paper returns a connection of the paper over these roads.
func paper(roads ...road) Config {
	c := Config{Seed: 1, Duration: 30 * time.Second}
	k := Connection{MPTCP: len(roads) > 1, Congestion: "newreno", Segment: 1340, Header: 40, Window: 53600, InitialWindow: 2}
	for _, r := range roads {
		k.Paths = append(k.Paths, lay(&c, r))
	}
	if k.MPTCP {
		k.Scheduler = "lowest-rtt"
	}
	c.Connections = []Connection{k}
	return c
}

var (
	first  = road{rate: 5 * unit.MbitPerSecond, delay: 20 * ms}
	second = road{rate: 10 * unit.MbitPerSecond, delay: 50 * ms, loss: 1e-3}
)

func run(t rapid.TB, c Config) Result {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return r
}
