package sealed

import (
	"fmt"
	"os/exec"
	"testing"

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
