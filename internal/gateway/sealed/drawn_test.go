package sealed

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/pairing"
)

var (
	drawnSets = flag.Int("sets", 40, "how many sets of lines TestDrawnLines draws")
	drawnSeed = flag.Uint64("sets-seed", 1, "the seed that it draws them with")
)

// simulatedLine is what a line is like in simulated time.
type simulatedLine struct{ up, down direction }

// direction is one of a line: a queue with a rate, and half of the delay of a path.
type direction struct {
	rate          unit.Bandwidth
	delay, jitter time.Duration // jitter keeps the order
	queue         time.Duration // what has to wait longer is lost
	loss          float64
	// others take a share of the rate in every second period.
	others float64
	period time.Duration
	random *rand.Rand
	free   time.Duration // when all that was sent has left
	last   time.Duration // when the last message arrives
}

// carry returns when a message arrives that is sent at a time, if it does.
func (d *direction) carry(now time.Duration, size int) (time.Duration, bool) {
	rate := float64(d.rate)
	if now/d.period%2 == 1 {
		rate *= 1 - d.others
	}
	begins := max(d.free, now)
	if begins-now > d.queue || d.random.Float64() < d.loss {
		return 0, false
	}
	d.free = begins + time.Duration(float64(size)*8/rate*1e9)
	d.last = max(d.last, d.free+d.delay+time.Duration(d.random.Float64()*float64(d.jitter)))
	return d.last, true
}

// modemQueue is what a modem's queue holds at least.
const modemQueue = 48 * unit.KB

// drawLine returns a random line: 2 Mbit/s to 1 Gbit/s down, a 20th of it to all of it up, 1 to 75
// ms, one of two with jitter, with loss and with others that use it, too.
func drawLine(r *rand.Rand) *simulatedLine {
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	down := unit.Bandwidth(between(2, 1000) * float64(unit.MbitPerSecond))
	l := &simulatedLine{direction{rate: unit.Bandwidth(float64(down) / between(1, 20))}, direction{rate: down}}
	delay, jitter, loss, others := between(1, 75), 0.0, 0.0, [2]float64{}
	if r.IntN(2) == 0 {
		jitter = between(0.1, 10)
	}
	if r.IntN(2) == 0 {
		loss = between(0.0001, 0.02)
	}
	if r.IntN(2) == 0 {
		others = [2]float64{r.Float64() * 0.5, r.Float64() * 0.5}
	}
	for n, d := range []*direction{&l.up, &l.down} {
		d.delay, d.jitter, d.loss, d.others = time.Duration(delay*1e6), time.Duration(jitter*1e6), loss, others[n]
		d.queue = max(time.Duration(between(30, 500)*1e6), d.rate.TimeFor(modemQueue))
		d.period, d.random = time.Duration(between(20, 2000)*1e6), rand.New(rand.NewPCG(r.Uint64(), 1))
	}
	return l
}

// drawnSites are random lines of two gateways.
type drawnSites struct {
	uses  [2][]dataplane.Use
	lines [2][]*simulatedLine
	// away is a line that is away in the beginning, of the gateway 0, 1 or none of them (2).
	away [2]int
}

func drawSites(r *rand.Rand) (d drawnSites) {
	for n := range d.lines {
		for i := range 1 + r.IntN(4) {
			d.lines[n] = append(d.lines[n], drawLine(r))
			d.uses[n] = append(d.uses[n], dataplane.Use{Backup: i > 0 && r.IntN(6) == 0})
		}
	}
	d.away = [2]int{2, 0}
	if n := r.IntN(8); n < 2 && len(d.lines[n]) > 1 {
		d.away = [2]int{n, r.IntN(len(d.lines[n]))}
	}
	return d
}

// truth returns the lines of the two gateways that are no backups with their real rates, and their
// numbers.
func (d *drawnSites) truth() (s pairing.Sites, numbers [2][]int) {
	for n, list := range []*[]pairing.Line{&s.Here, &s.There} {
		for i, l := range d.lines[n] {
			if !d.uses[n][i].Backup {
				*list = append(*list, pairing.Line{Up: l.up.rate, Down: l.down.rate})
				numbers[n] = append(numbers[n], i)
			}
		}
	}
	s.Answers = func(pairing.Pair) bool { return true }
	return s, numbers
}

// carriedBy returns what pairs carry in both directions at most, in Mbit/s.
func carriedBy(s *pairing.Sites, pairs []pairing.Pair) float64 {
	direction := func(here, there func(pairing.Line) unit.Bandwidth) unit.Bandwidth {
		least := unit.Bandwidth(math.MaxInt64)
		for cut := range 1 << len(s.Here) { // the lines here whose pairs are cut at the other end
			sum, at := unit.Bandwidth(0), 0
			for i, l := range s.Here {
				if cut>>i&1 == 0 {
					sum += here(l)
				}
			}
			for _, p := range pairs {
				if cut>>p.Here&1 == 1 {
					at |= 1 << p.There
				}
			}
			for j, l := range s.There {
				if at>>j&1 == 1 {
					sum += there(l)
				}
			}
			least = min(least, sum)
		}
		return least
	}
	up, down := func(l pairing.Line) unit.Bandwidth { return l.Up }, func(l pairing.Line) unit.Bandwidth { return l.Down }
	return float64(direction(up, down)+direction(down, up)) / float64(unit.MbitPerSecond)
}

// best returns the most that a set of pairs of that size carries which has all lines.
func best(s *pairing.Sites, size int) (most float64) {
	var every []pairing.Pair
	for i := range s.Here {
		for j := range s.There {
			every = append(every, pairing.Pair{Here: i, There: j})
		}
	}
	for set := range 1 << len(every) {
		var pairs []pairing.Pair
		here, there := map[int]bool{}, map[int]bool{}
		for n, p := range every {
			if set>>n&1 == 1 {
				pairs, here[p.Here], there[p.There] = append(pairs, p), true, true
			}
		}
		if len(pairs) == size && len(here) == len(s.Here) && len(there) == len(s.There) {
			most = max(most, carriedBy(s, pairs))
		}
	}
	return most
}

// TestDrawnLines: of random lines whose rates are not configured, each is used, and those that meet
// carry nearly what the best pairs do, by brute force. A line that is away returns.
func TestDrawnLines(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*drawnSeed, 36))
	var shares []float64
	for n := range *drawnSets {
		d := drawSites(r)
		s := simulate(t, d.uses)
		s.lines = d.lines
		s.cut[d.away] = true
		s.run(20 * time.Second)
		delete(s.cut, d.away)
		s.run(40 * time.Second)
		truth, numbers := d.truth()
		var pairs []pairing.Pair
		used := map[string]bool{}
		for _, l := range s.planes[0].Status().Peers[0].Links {
			used[l.Line], used[l.Meets] = true, true
			var here, there int
			if _, err := fmt.Sscanf(l.Line+" "+l.Meets, "a%d b%d", &here, &there); err != nil || l.State != "up" {
				continue // it is not known yet where the path leads
			}
			if p := (pairing.Pair{Here: slices.Index(numbers[0], here), There: slices.Index(numbers[1], there)}); p.Here >= 0 && p.There >= 0 {
				pairs = append(pairs, p)
			}
		}
		for end := range d.lines {
			for i := range d.lines[end] {
				if name := s.states[end].Paths[i].Name; !used[name] {
					t.Errorf("set %d: %s is not used", n, name)
				}
			}
		}
		if len(truth.Here) > 1 && len(truth.There) > 1 { // else there is no choice
			shares = append(shares, carriedBy(&truth, pairs)/best(&truth, max(len(pairs), len(truth.Here), len(truth.There))))
		}
	}
	slices.Sort(shares)
	mean := 0.0
	for _, v := range shares {
		mean += v / float64(len(shares))
	}
	median := shares[len(shares)/2]
	t.Logf("%d sets with a choice: mean %.3f, median %.3f, a tenth has less than %.3f, a twentieth %.3f, least %.3f", len(shares), mean, median, shares[len(shares)/10], shares[len(shares)/20], shares[0])
	if median < 0.99 || mean < 0.92 {
		t.Errorf("mean %.3f, median %.3f of what the best pairs carry", mean, median)
	}
}
