package worlds

import (
	"fmt"
	"math"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
)

// Measure is what worlds are judged by: how a traffic over all paths compares with the best of the
// paths alone.
type Measure struct {
	Name, Title string
	// Unit is that of a difference, empty for a ratio.
	Unit string
	Kind Kind
	// Less is better; otherwise more is.
	Less bool
	// Goal is the bound in 99 % of worlds, Worst that in all of them; NaN is none.
	Goal, Worst float64

	// Traffic and Transport are the cell that is compared with those of the paths alone.
	Traffic, Transport string
	// Against is the transport that it is compared with, if that is not the best of the paths alone.
	Against string
	// Chance is the goal of the measure that this one, which has none, shows the chance of: no
	// decision meets it in many more worlds than the best path itself does with other random
	// numbers. 0: none.
	Chance float64
	// Carried: it is judged only where the best path alone carries all of the traffic's rate. Where
	// none does, a stream is a bulk transfer.
	Carried bool

	judge func(all, best map[string]float64) float64
}

// The units of measures that are differences.
const (
	milliseconds = "ms"
	points       = "points"
)

var none = math.NaN()

// measures are all measures, in the order of tables.
var measures = []Measure{
	{Name: "bulk", Title: "bulk goodput / best line", Kind: Gateway, Goal: 0.97, Worst: 0.9, Traffic: Bulk, Transport: auto, judge: goodput},
	{Name: "bulk_dq", Title: "the same by dq", Kind: Gateway, Goal: none, Worst: none, Traffic: Bulk, Transport: dq, judge: goodput},
	{Name: "bulk_of_dq", Title: "bulk goodput / that of dq", Kind: Gateway, Goal: none, Worst: none, Traffic: Bulk, Transport: auto, Against: dq, judge: goodput},
	{Name: "bulk_again", Title: "the same by that line again", Kind: Gateway, Goal: none, Worst: none, Chance: 0.97, Traffic: Bulk, Transport: again, judge: goodput},
	{Name: "bulk_of_again", Title: "bulk goodput / that line again", Kind: Gateway, Goal: none, Worst: none, Traffic: Bulk, Transport: auto, Against: again, judge: goodput},
	{Name: "kept", Title: "object time / best line", Kind: Gateway, Less: true, Goal: 1.1, Worst: none, Traffic: Kept, Transport: auto, judge: slowness},
	{Name: "stream", Title: "stream goodput / best line", Kind: Gateway, Goal: 1, Worst: none, Traffic: Stream, Transport: auto, judge: goodput},
	{Name: "stream_again", Title: "the same by that line again", Kind: Gateway, Goal: none, Worst: none, Chance: 1, Traffic: Stream, Transport: again, judge: goodput},
	{Name: "stream_carried", Title: "where that line carries all", Kind: Gateway, Goal: 0.99, Worst: none, Traffic: Stream, Transport: auto, Carried: true, judge: goodput},
	{Name: "stream_pause", Title: "stream pause beyond it, ms", Unit: milliseconds, Kind: Gateway, Less: true, Goal: 30, Worst: none, Traffic: Stream, Transport: auto, Carried: true, judge: pause},
	{Name: "page", Title: "page by a download / best line", Kind: Gateway, Less: true, Goal: 1.1, Worst: none, Traffic: Page, Transport: auto, judge: slowness},
	{Name: "call_loss", Title: "call: loss beyond it, points", Kind: Gateway, Unit: points, Less: true, Goal: 0.1, Worst: none, Traffic: Call, Transport: auto, judge: lossBeyond},
	{Name: "call_delay", Title: "call: delay beyond it, ms", Kind: Gateway, Unit: milliseconds, Less: true, Goal: 20, Worst: none, Traffic: Call, Transport: auto, judge: delayBeyond},
	{Name: "downloads", Title: "downloads at once / best line", Kind: Clients, Goal: 0.97, Worst: 0.9, Traffic: Bulk, Transport: auto, judge: goodput},
	{Name: "slowest", Title: "the slowest / that by that line", Kind: Clients, Goal: 0.9, Worst: none, Traffic: Bulk, Transport: auto, judge: slowest},
	{Name: "kept_beside", Title: "object time by downloads / best line", Kind: Clients, Less: true, Goal: 1.1, Worst: none, Traffic: Kept, Transport: auto, judge: slowness},
	{Name: "page_beside", Title: "page by downloads / best line", Kind: Clients, Less: true, Goal: 1.1, Worst: none, Traffic: Page, Transport: auto, judge: slowness},
	{Name: "call_beside_loss", Title: "call: loss beyond it, points", Kind: Clients, Unit: points, Less: true, Goal: 0.1, Worst: none, Traffic: Call, Transport: auto, judge: lossBeyond},
	{Name: "call_beside_delay", Title: "call: delay beyond it, ms", Kind: Clients, Unit: milliseconds, Less: true, Goal: 20, Worst: none, Traffic: Call, Transport: auto, judge: delayBeyond},
	{Name: "bulk_first", Title: "16 MB goodput / best path", Kind: EPE, Goal: 0.93, Worst: 0.85, Traffic: Bulk, Transport: first, judge: goodput},
	{Name: "bulk_memory", Title: "16 MB, with memory", Kind: EPE, Goal: 0.97, Worst: 0.93, Traffic: Bulk, Transport: memory, judge: goodput},
	{Name: "bulk_path_again", Title: "the best path again", Kind: EPE, Goal: none, Worst: none, Chance: 0.97, Traffic: Bulk, Transport: again, judge: goodput},
	{Name: "kept_first", Title: "object time / best path", Kind: EPE, Less: true, Goal: 1.1, Worst: none, Traffic: Kept, Transport: first, judge: slowness},
	{Name: "kept_memory", Title: "objects, with memory", Kind: EPE, Less: true, Goal: 1.1, Worst: none, Traffic: Kept, Transport: memory, judge: slowness},
	{Name: "kept_path_again", Title: "the best path again", Kind: EPE, Less: true, Goal: none, Worst: none, Chance: 1.1, Traffic: Kept, Transport: again, judge: slowness},
	{Name: "new_first", Title: "objects on new connections", Kind: EPE, Less: true, Goal: 1.1, Worst: none, Traffic: New, Transport: first, judge: slowness},
	{Name: "new_memory", Title: "the same with memory", Kind: EPE, Less: true, Goal: 1.1, Worst: none, Traffic: New, Transport: memory, judge: slowness},
	{Name: "new_path_again", Title: "the best path again", Kind: EPE, Less: true, Goal: none, Worst: none, Chance: 1.1, Traffic: New, Transport: again, judge: slowness},
	{Name: "stream_first", Title: "stream goodput / best path", Kind: EPE, Goal: 1, Worst: none, Traffic: Stream, Transport: first, judge: goodput},
	{Name: "stream_carried_first", Title: "where that path carries all", Kind: EPE, Goal: 0.99, Worst: none, Traffic: Stream, Transport: first, Carried: true, judge: goodput},
	{Name: "stream_pause_first", Title: "stream pause beyond it, ms", Unit: milliseconds, Kind: EPE, Less: true, Goal: 30, Worst: none, Traffic: Stream, Transport: first, Carried: true, judge: pause},
}

// Measures returns the measures of a kind.
func Measures(k Kind) []Measure {
	return slices.DeleteFunc(slices.Clone(measures), func(m Measure) bool { return m.Kind != k })
}

// Judged returns the transports of a kind whose measures have goals.
func Judged(k Kind) []string {
	var list []string
	for _, m := range Measures(k) {
		if !math.IsNaN(m.Goal) && !slices.Contains(list, m.Transport) {
			list = append(list, m.Transport)
		}
	}
	return list
}

// Traffic returns the traffic that worlds of a kind may have.
func Traffic(k Kind) []string {
	var list []string
	for _, m := range Measures(k) {
		if !slices.Contains(list, m.Traffic) {
			list = append(list, m.Traffic)
		}
	}
	return list
}

// carried is what a run delivers: of downloads at once, all of them.
func carried(metrics map[string]float64) float64 {
	if v, several := metrics[result.AllRate]; several {
		return v
	}
	return metrics[result.Goodput]
}

func goodput(all, best map[string]float64) float64 { return carried(all) / carried(best) }

// slowest compares the slowest of downloads at once. One that gets nothing over the best line is as
// slow over any.
func slowest(all, best map[string]float64) float64 {
	if best[result.LeastRate] == 0 {
		return 1
	}
	return all[result.LeastRate] / best[result.LeastRate]
}

func slowness(all, best map[string]float64) float64 {
	return best[result.Goodput] / all[result.Goodput]
}

func pause(all, best map[string]float64) float64 {
	return 1e3 * (all[result.LongestGap] - best[result.LongestGap])
}

func lossBeyond(all, best map[string]float64) float64 {
	return 100 * (all[result.LostShare] - best[result.LostShare])
}

func delayBeyond(all, best map[string]float64) float64 {
	return 1e3 * (all[result.DatagramDelayP95] - best[result.DatagramDelayP95])
}

// better reports whether a run over one path is better than one over another: a call that loses
// less by a tenth of a point, or else is faster, anything else that delivers more.
func better(traffic string, a, b map[string]float64) bool {
	if traffic != Call {
		return carried(a) > carried(b)
	}
	const tenth = 0.001
	if d := a[result.LostShare] - b[result.LostShare]; math.Abs(d) > tenth {
		return d < 0
	}
	return a[result.DatagramDelayP95] < b[result.DatagramDelayP95]
}

// failed is what a measure is where nothing arrived over all paths and something over one of them.
func (m Measure) failed() float64 {
	if m.Less {
		return math.Inf(1)
	}
	return 0
}

// Again returns the runs that are to be repeated with other random numbers, as Repeated returns
// them: the best of the paths alone, of each traffic that has a measure of it. A measure that is no
// farther from its goal than that is as good as its judge. A traffic that no path alone delivers
// has none.
func (w World) Again(runs []result.Run) []result.Run {
	var list []result.Run
	for _, m := range Measures(w.Kind) {
		if m.Transport != again {
			continue
		}
		if best := w.best(runsOf(runs, m.Traffic), m.Traffic, again); best != nil {
			list = append(list, *best)
		}
	}
	return list
}

// Repeated marks a run as the repetition of one that Again returned.
func Repeated(r result.Run) result.Run {
	r.Transport = again
	return r
}

// best returns the best of the runs that one over all paths is compared with, by transport, or nil.
func (w World) best(own map[string]*result.Run, traffic, transport string) *result.Run {
	var best *result.Run
	for _, name := range w.judges(transport) {
		if r := own[name]; r != nil && r.Err() == nil && (best == nil || better(traffic, r.Metrics, best.Metrics)) {
			best = r
		}
	}
	return best
}

// Needs reports whether a measure judges the cell of a traffic over a transport, or another one by it.
func (w World) Needs(traffic, transport string) bool {
	return slices.ContainsFunc(Measures(w.Kind), func(m Measure) bool {
		return m.Traffic == traffic && (m.Transport == transport || m.Against == transport || slices.Contains(w.judges(m.Transport), transport))
	})
}

// carriedShare is the share of a stream's rate that arrives where a path carries it: it begins with
// the handshake and slow start.
const carriedShare = 0.9

// Judge compares the runs of a world. A measure without runs, or that no path alone delivers, has
// no value.
func (w World) Judge(runs []result.Run) map[string]float64 {
	values := map[string]float64{}
	for _, m := range Measures(w.Kind) {
		own := runsOf(runs, m.Traffic)
		all, best := own[m.Transport], w.best(own, m.Traffic, m.Transport)
		if m.Against != "" {
			if best = own[m.Against]; best != nil && best.Err() != nil {
				best = nil
			}
		}
		switch {
		case all == nil || best == nil:
		case m.Carried && best.Metrics[result.Goodput] < carriedShare*float64(w.traffic(m.Traffic).Rate):
		case all.Err() != nil:
			values[m.Name] = m.failed()
		default:
			values[m.Name] = m.judge(all.Metrics, best.Metrics)
		}
	}
	return values
}

// runsOf returns the means of the runs of a traffic by transport. One that failed has delivered
// nothing; only where all failed is there an error.
func runsOf(runs []result.Run, traffic string) map[string]*result.Run {
	all := map[string][]result.Run{}
	for _, r := range runs {
		if r.Traffic == traffic {
			all[r.Transport] = append(all[r.Transport], r)
		}
	}
	own := map[string]*result.Run{}
	for transport, list := range all {
		mean := list[0]
		ran := slices.DeleteFunc(slices.Clone(list), func(r result.Run) bool { return r.Err() != nil })
		if len(ran) > 0 {
			mean = ran[0]
			mean.Metrics = map[string]float64{}
			for _, r := range ran {
				for name, v := range r.Metrics {
					mean.Metrics[name] += v / float64(len(ran))
				}
			}
			mean.Metrics[result.Goodput] *= float64(len(ran)) / float64(len(list))
		}
		own[transport] = &mean
	}
	return own
}

// Distribution are the values of a measure over many worlds.
type Distribution struct {
	Measure
	// Worlds is the number of worlds with a value.
	Worlds int
	// Worst is the worst value, and P1, P5, Median and P95 those below which, or with Less above
	// which, so many percent of the worlds are.
	Least, P1, P5, Median, P95 float64
	// Met is the share of worlds that meet the goal, or Chance, from 0 to 1; NaN if there is none.
	Met float64
}

// Distribute returns the distributions of the measures of a kind that have values.
func Distribute(k Kind, worlds []map[string]float64) ([]Distribution, error) {
	var list []Distribution
	for _, m := range Measures(k) {
		var values []float64
		for _, w := range worlds {
			if v, ok := w[m.Name]; ok {
				if m.Less {
					v = -v
				}
				values = append(values, max(v, -unbounded))
			}
		}
		if len(values) == 0 {
			continue
		}
		d := Distribution{Measure: m, Worlds: len(values), Met: none}
		judged := m
		if m.Chance > 0 {
			judged.Goal = m.Chance
		}
		if !math.IsNaN(judged.Goal) {
			met := 0
			for _, w := range worlds {
				if v, ok := w[m.Name]; ok && judged.Beyond(v) <= 0 {
					met++
				}
			}
			d.Met = float64(met) / float64(len(values))
		}
		for _, q := range []struct {
			p  float64
			to *float64
		}{{0, &d.Least}, {0.01, &d.P1}, {0.05, &d.P5}, {0.5, &d.Median}, {0.95, &d.P95}} {
			v, err := stat.Quantile(q.p, values)
			if err != nil {
				return nil, err
			}
			if m.Less {
				v = -v
			}
			*q.to = v
		}
		list = append(list, d)
	}
	return list, nil
}

// unbounded stands for the time that a failed delivery takes, as a finite number.
const unbounded = 1e6

// Beyond returns by how much a value misses the goal, less than 0 if it does not, and -Inf if there
// is none. Values of different measures are compared by it: a ratio by the logarithm of what it
// misses, a time by what it misses in seconds, points by what they are of 1.
func (m Measure) Beyond(v float64) float64 {
	switch {
	case math.IsNaN(m.Goal):
		return math.Inf(-1)
	case m.Unit == milliseconds:
		return (v - m.Goal) / 1e3
	case m.Unit == points:
		return (v - m.Goal) / 100
	case m.Less:
		return math.Log(v / m.Goal)
	}
	return math.Log(m.Goal / max(v, 1/unbounded))
}

// Noise is by how much Beyond changes before it counts: 5 %, 30 ms, or 0.05 points.
func (m Measure) Noise() float64 {
	switch m.Unit {
	case milliseconds:
		return 0.03
	case points:
		return 0.0005
	}
	return 0.05
}

// Text formats a value of the measure.
func (m Measure) Text(v float64) string {
	switch {
	case math.Abs(v) >= unbounded:
		return "failed"
	case m.Unit == milliseconds:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// MetText formats the share of worlds that meet the goal, empty if there is none.
func (d Distribution) MetText() string {
	if math.IsNaN(d.Met) {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*d.Met)
}

// GoalText formats the goal, empty if there is none.
func (m Measure) GoalText() string {
	if math.IsNaN(m.Goal) {
		return ""
	}
	return m.Text(m.Goal)
}
