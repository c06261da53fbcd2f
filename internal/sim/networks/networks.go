// Package networks draws client networks and the goodput of their connections in each mode of
// delivery, and judges what `auto` makes of them by the best mode of each.
//
// It simulates no packets: what a mode brings in a network is given, and so is by how much
// measurements of it scatter.
package networks

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
)

// The modes of all networks.
const (
	multipath = belief.Mode("multipath")
	single    = belief.Mode("single transit-b")
)

var modes = []belief.Mode{belief.Best, multipath, single}

const (
	// parts of a connection are of equal length. In one of them another mode may be tried.
	parts = 10
	// partBytes is what a part brings in a mode that is as good as the best path, at the median.
	partBytes = 2 << 20
	// apart is the time from one bulk connection of a network to its next.
	apart = time.Minute
	// outliers is the share of measurements that scatter by outlierFactor times as much.
	outliers, outlierFactor = 0.05, 4
)

// Kind is a kind of client network.
type Kind struct {
	Name string
	// Gain is how much more multipath brings than the best path, and Single how much more another
	// single path does, as fractions.
	Gain, Single float64
	// Between is the standard deviation of the logarithm of goodput between connections, Within
	// that of the ratio of two modes in one connection.
	Between, Within float64
}

// Nine are networks in which multipath helps, does nothing or does harm as in those of paper A,
// Table 4: five mobile ones with one of them harmed by 8 %, a fixed one that is harmed by 8 %, and
// three behind fast lines. What they have in the single path is not in the paper.
var Nine = []Kind{
	{"mobile +70 %", 0.70, -0.2, 0.35, 0.12},
	{"mobile -8 %", -0.08, -0.2, 0.35, 0.12},
	{"mobile +12 %", 0.12, -0.2, 0.35, 0.12},
	{"mobile +55 %", 0.55, -0.2, 0.35, 0.12},
	{"fixed -8 %", -0.08, -0.2, 0.15, 0.06},
	{"cloud equal", 0, -0.1, 0.08, 0.03},
	{"cloud +60 %", 0.60, -0.1, 0.08, 0.03},
	{"cloud +100 %", 1.00, -0.1, 0.08, 0.03},
	{"cloud, another path +40 %", 0.20, 0.40, 0.08, 0.03},
}

// Many draws networks whose quality changes.
func Many(n int, r *rand.Rand) []Kind {
	all := make([]Kind, n)
	for i := range all {
		all[i] = Kind{fmt.Sprintf("network %d", i), math.Exp(0.3*r.NormFloat64()) - 1, math.Exp(0.3*r.NormFloat64()) - 1, 0.05 + 0.3*r.Float64(), 0.03 + 0.09*r.Float64()}
	}
	return all
}

// Options are those of a run.
type Options struct {
	Seed        uint64
	Connections int // of each network
	// ChangeEvery is the mean number of connections after which what the modes bring in a network
	// is drawn again; 0: never.
	ChangeEvery int
	Explore     float64
	// Start is the mode of networks that nothing is known of.
	Start belief.Mode
	// Short: connections end before two modes can be compared inside one, and come one at a time.
	Short bool
}

// Network is what became of a network.
type Network struct {
	Kind
	// Lost is the share of what its best mode would have brought in each connection that was not.
	Lost []float64
	// Within is whether all of a connection but what was tried was in a mode within 5 % of the
	// best.
	Within []bool
	// Tried is the share of the bytes that were carried in a mode to compare it; Exploring is the
	// loss by it, as a share of what else was brought.
	Tried, Exploring float64
	Changes          int
	// OverSingle is what all connections brought as a multiple of what the better of the two single
	// paths would have.
	OverSingle float64
}

// Loss is the mean of Lost over some connections.
func (n *Network) Loss(from, to int) (mean float64) {
	for _, l := range n.Lost[from:to] {
		mean += l / float64(to-from)
	}
	return mean
}

// Run has the connections of all networks, in turn.
func Run(kinds []Kind, o Options) []Network {
	r := rand.New(rand.NewPCG(o.Seed, 35))
	table := belief.New(belief.Options{Start: o.Start, Explore: o.Explore, Networks: len(kinds)})
	all := make([]Network, len(kinds))
	worlds := make([]world, len(kinds))
	for i, k := range kinds {
		all[i].Kind = k
		worlds[i] = world{Kind: k, prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i)}), 48), origin: uint32(64512 + i)}
	}
	now := time.Unix(1_800_000_000, 0)
	for range o.Connections {
		now = now.Add(apart)
		for i := range worlds {
			w := &worlds[i]
			if o.ChangeEvery > 0 && r.IntN(o.ChangeEvery) == 0 {
				k := Many(1, r)[0]
				w.Gain, w.Single = k.Gain, k.Single
			}
			if o.Short {
				w.shortConnection(now, table, &all[i], r)
			} else {
				w.connection(now, table, &all[i], r)
			}
		}
	}
	for i := range all {
		w := &worlds[i]
		all[i].Tried, all[i].Exploring = w.tried/(w.tried+w.rest), w.lost/w.rest
		all[i].OverSingle = (w.tried + w.rest) / w.onSingle
	}
	return all
}

// world is a network with what the modes bring there.
type world struct {
	Kind
	prefix            netip.Prefix
	origin            uint32
	mode              belief.Mode
	tried, rest, lost float64 // bytes
	onSingle          float64 // bytes that the better single path would have brought
	// usual is what connections achieve in the mode, challenger what the next one is in to be
	// compared with it, "": nothing.
	usual      belief.Usual
	challenger belief.Mode
}

// brings is what a mode brings, as a multiple of the best path.
func (w *world) brings(m belief.Mode) float64 {
	switch m {
	case multipath:
		return 1 + w.Gain
	case single:
		return 1 + w.Single
	default:
		return 1
	}
}

// most is what the best mode brings.
func (w *world) most() float64 {
	most := 0.0
	for _, m := range modes {
		most = max(most, w.brings(m))
	}
	return most
}

// enter returns the mode of the network, and counts a change.
func (w *world) enter(now time.Time, t *belief.Table, n *Network) belief.Mode {
	m := t.Mode(now, w.prefix, w.origin, modes)
	if w.mode != "" && m != w.mode {
		n.Changes++
	}
	w.mode = m
	return m
}

// scatter draws the logarithm of what a measurement with this standard deviation is off by.
func scatter(noise float64, r *rand.Rand) float64 {
	if r.Float64() < outliers {
		noise *= outlierFactor
	}
	return noise * r.NormFloat64()
}

// connection has a bulk connection, part by part.
func (w *world) connection(now time.Time, t *belief.Table, n *Network, r *rand.Rand) {
	level := math.Exp(w.Between*r.NormFloat64()) * partBytes
	most := w.most()
	brought, tried, within := 0.0, false, true
	for part := range parts {
		m := w.enter(now, t, n)
		if part > 0 && !tried {
			tried = true
			if c, i, ok := t.Try(now, w.prefix, w.origin, modes, level*brought, level*w.brings(w.mode)); ok {
				ratio := w.brings(c) / w.brings(i)
				bytes := level * w.brings(c)
				err := t.Learn(now, w.prefix, belief.Pair{Challenger: c, Incumbent: i, Ratio: ratio * math.Exp(scatter(w.Within, r)), Bytes: bytes})
				if err != nil {
					panic("BUG: " + err.Error())
				}
				brought += w.brings(c)
				w.tried += bytes
				w.lost += max(level*w.brings(i)-bytes, 0)
				continue
			}
		}
		brought += w.brings(m)
		w.rest += level * w.brings(m)
		within = within && w.brings(m) >= 0.95*most
	}
	w.onSingle += level * parts * max(w.brings(belief.Best), w.brings(single))
	t.Closed(now, w.prefix, func() uint32 { return w.origin }, w.mode, belief.Outcome{Bytes: uint64(level * brought), Goodput: level * brought / parts})
	n.Lost = append(n.Lost, 1-brought/(parts*most))
	n.Within = append(n.Within, within)
}

// shortConnection has a connection that is in one mode from its start to its end.
func (w *world) shortConnection(now time.Time, t *belief.Table, n *Network, r *rand.Rand) {
	off := scatter(w.Between, r)
	m, most := w.enter(now, t, n), w.most()
	at := m
	if w.challenger != "" && w.usual.Of(m) {
		at = w.challenger
	}
	w.challenger = ""
	// All have the same size. What they would have brought in the time of one is what counts.
	bytes := parts * float64(partBytes) * w.brings(at)
	goodput := bytes * math.Exp(off)
	t.Closed(now, w.prefix, func() uint32 { return w.origin }, at, belief.Outcome{Bytes: uint64(bytes), Goodput: goodput})
	if at != m {
		pair := belief.Pair{Challenger: at, Incumbent: m, Apart: 1, Ratio: w.usual.Ratio([]float64{goodput}), Bytes: bytes}
		if err := t.Learn(now, w.prefix, pair); err != nil {
			panic("BUG: " + err.Error())
		}
		w.tried += bytes
		w.lost += max(w.brings(m)-w.brings(at), 0) * parts * partBytes
	} else {
		w.rest += bytes
		w.usual.Add(m, goodput, time.Second)
		if w.usual.Of(m) {
			if c, _, ok := t.TryApart(now, w.prefix, w.origin, modes, bytes); ok {
				w.challenger = c
			}
		}
	}
	w.onSingle += parts * partBytes * max(w.brings(belief.Best), w.brings(single))
	n.Lost = append(n.Lost, 1-w.brings(at)/most)
	n.Within = append(n.Within, w.brings(m) >= 0.95*most)
}

// Summary is a row of the table of runs.
type Summary struct {
	Kind
	// First, Next and Rest are the mean losses in the connections 1 to 20, 21 to 100 and beyond.
	First, Next, Rest float64
	// Within20 and Within100 are the shares of runs within 5 % of the best mode after that many
	// connections.
	Within20, Within100 float64
	// Tried and Exploring are means, Changes the mean number of changes of mode in 100 connections.
	Tried, Exploring, Changes float64
}

// Summarize returns a row for each network of several runs.
func Summarize(runs [][]Network) []Summary {
	list := make([]Summary, len(runs[0]))
	for _, run := range runs {
		for i := range run {
			n, s := &run[i], &list[i]
			share := func(x float64) float64 { return x / float64(len(runs)) }
			s.Kind = n.Kind
			s.First += share(n.Loss(0, 20))
			s.Next += share(n.Loss(20, 100))
			s.Rest += share(n.Loss(100, len(n.Lost)))
			if n.Within[20] {
				s.Within20 += share(1)
			}
			if n.Within[100] {
				s.Within100 += share(1)
			}
			s.Tried += share(n.Tried)
			s.Exploring += share(n.Exploring)
			s.Changes += share(float64(n.Changes) * 100 / float64(len(n.Lost)))
		}
	}
	return list
}

// OverSingle returns the OverSingle of all networks in all runs, the least first.
func OverSingle(runs [][]Network) (all []float64) {
	for _, run := range runs {
		for i := range run {
			all = append(all, run[i].OverSingle)
		}
	}
	slices.Sort(all)
	return all
}

// Mean returns the row of all networks, Worst the largest losses of any.
func Mean(list []Summary) (mean Summary) {
	mean.Name = "mean"
	share := func(x float64) float64 { return x / float64(len(list)) }
	for _, s := range list {
		for _, sum := range [][2]*float64{
			{&mean.First, &s.First}, {&mean.Next, &s.Next}, {&mean.Rest, &s.Rest}, {&mean.Within20, &s.Within20}, {&mean.Within100, &s.Within100},
			{&mean.Tried, &s.Tried}, {&mean.Exploring, &s.Exploring}, {&mean.Changes, &s.Changes},
		} {
			*sum[0] += share(*sum[1])
		}
	}
	return mean
}

// Worst is documented with Mean.
func Worst(list []Summary) (worst Summary) {
	worst = slices.MaxFunc(list, func(a, b Summary) int { return cmp.Compare(a.First, b.First) })
	worst.Name = "worst"
	for _, s := range list {
		worst.Next, worst.Rest = max(worst.Next, s.Next), max(worst.Rest, s.Rest)
		worst.Within20, worst.Within100 = min(worst.Within20, s.Within20), min(worst.Within100, s.Within100)
		worst.Tried, worst.Exploring, worst.Changes = max(worst.Tried, s.Tried), max(worst.Exploring, s.Exploring), max(worst.Changes, s.Changes)
	}
	return worst
}
