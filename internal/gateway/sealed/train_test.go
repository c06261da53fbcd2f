package sealed

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/quality"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// limit has the lines of two gateways in a mesh carry these rates in both directions, in Mbit/s.
func limit(t testing.TB, g *gateway, rates ...int) {
	t.Helper()
	for i, rate := range rates {
		for device, namespace := range map[string]string{fmt.Sprintf("p%d", i): g.namespace, fmt.Sprintf("g%d-%d", g.number-1, i): g.network} {
			cmd := exec.Command(programs.Need(t, "tc"), "qdisc", "replace", "dev", device, "root", "tbf", "rate", fmt.Sprintf("%dmbit", rate), "burst", "5kb", "latency", "500ms")
			if err := netns.Start(namespace, cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestTrainsPairLines: where no rate is configured, trains show which lines fit, so that lines of
// the same rate meet, in whatever order the endpoints are. Its lines are timers of this process,
// which other tests would keep late.
func TestTrainsPairLines(t *testing.T) {
	for _, rates := range [][2][]int{{{4, 1}, {4, 1}}, {{4, 1}, {1, 4}}} {
		t.Run(fmt.Sprint(rates), func(t *testing.T) {
			a, b := mesh(t, [2]int{len(rates[0]), len(rates[1])})
			for n, g := range []*gateway{a, b} {
				limit(t, g, rates[n]...)
				for i := range g.state.Paths {
					g.state.Paths[i].Up, g.state.Paths[i].Down = dataplane.Rate{Estimated: true}, dataplane.Rate{Estimated: true}
				}
				g.run()
			}
			rate := map[string]int{}
			for n, name := range "ab" {
				for i, r := range rates[n] {
					rate[fmt.Sprintf("%c%d", name, i)] = r
				}
			}
			eventually(t, "lines of the same rate meet", func() bool {
				list := a.plane.Status().Peers[0].Links
				for _, l := range list {
					if l.State != "up" || rate[l.Line] != rate[l.Meets] {
						return false
					}
				}
				return len(list) == len(rates[0])
			})
		})
	}
}

// TestTrainsShowRecovery: a path whose estimate has fallen is measured again while no packets are
// carried, more and more seldom until it carries more, whether its rate is configured or not.
func TestTrainsShowRecovery(t *testing.T) {
	t.Parallel()
	for _, configured := range []unit.Bandwidth{0, 20 * unit.MbitPerSecond} {
		t.Run(fmt.Sprint(configured), func(t *testing.T) {
			s := simulate(t, [2][]dataplane.Use{make([]dataplane.Use, 2), make([]dataplane.Use, 1)})
			for n := range s.states {
				for i := range s.states[n].Paths {
					rate := dataplane.Rate{Bandwidth: configured, Estimated: configured == 0}
					if n == 1 {
						rate.Bandwidth *= 2
					}
					s.states[n].Paths[i].Up, s.states[n].Paths[i].Down = rate, rate
					d := direction{rate: 20 * unit.MbitPerSecond, delay: 5 * time.Millisecond, queue: time.Second, period: time.Hour, random: rand.New(rand.NewPCG(1, 1))}
					if n == 1 {
						d.rate *= 2
					}
					s.lines[n] = append(s.lines[n], &simulatedLine{d, d})
				}
				s.apply(n)
			}
			s.run(10 * time.Second)
			for n := range s.planes {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					d, l := &s.lines[0][0].up, &s.peer(n).links[0]
					if n == 1 {
						d = &s.lines[0][0].down
					}
					d.rate /= 20
					c := &l.rates.capacity
					for c.Value() > 5*unit.MbitPerSecond {
						c.Update(quality.CapacitySample{
							Interval: time.Second, Sent: unit.MB, Arrived: 100 * unit.KB, Busy: true,
							Delays: quality.Delays{RTT: 10 * time.Millisecond, Standing: 50 * time.Millisecond},
						})
					}
					low, before := unit.Bandwidth(5*unit.MbitPerSecond), s.carried(0, 0)
					s.run(10 * time.Minute)
					if c.Value() > low {
						t.Errorf("rate %v while the line carries %v, want at most %v", c.Value(), d.rate, low)
					}
					probes := s.carried(0, 0) - before
					if probes > 2_000_000 {
						t.Errorf("%d bytes in 10 minutes", probes)
					}
					d.rate *= 20
					s.run(11 * time.Minute)
					if got := c.Value(); got < 19*unit.MbitPerSecond || got > 21*unit.MbitPerSecond {
						t.Errorf("rate %v, want that of the line, %v", got, d.rate)
					}
				})
			}
		})
	}
}
