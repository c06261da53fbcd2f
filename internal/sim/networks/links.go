package networks

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
)

// Policy is what decides which egress link a network has.
type Policy uint8

// The policies.
const (
	BestPath    Policy = iota // BGP alone
	AutoAlone                 // the delivery mode auto, which knows nothing of loads
	AutoAndLoad               // the same, whose networks avoid full links
)

func (p Policy) String() string {
	return [...]string{"best path", "auto, loads unknown", "auto"}[p]
}

// Policies are all of them.
func Policies() []Policy { return []Policy{BestPath, AutoAlone, AutoAndLoad} }

const (
	// peakDemand is what all networks want together at most, as a share of the capacity of all
	// links, and otherTraffic the share of a link that traffic of others has at most.
	peakDemand, otherTraffic = 0.65, 0.2
	// day is the time in which what networks want rises and falls by swing; each has another phase.
	day   = 2 * time.Hour
	swing = 0.4
	// firstLinkShare is the share of networks whose best path leads through the first link.
	firstLinkShare = 0.5
	// bulkBytes is what a bulk connection brings.
	bulkBytes = 20 << 20
)

// LinkOptions are those of a run with egress links of limited capacity.
type LinkOptions struct {
	Seed                     uint64
	Networks, Servers, Links int
	Length                   time.Duration
	// ChangeEvery is the mean time after which what the links bring in a network is drawn again.
	ChangeEvery time.Duration
	Explore     float64
	Policy      Policy
}

// LinkResult is what came of a run. Shares are of the bytes that networks wanted, or of the time of
// all links.
type LinkResult struct {
	Policy Policy
	// Best is the share of the bytes on the best mode, or one within 5 % of it, if all had room.
	Best float64
	// Brought is what networks got for 1 byte of what their best modes would have brought.
	Brought float64
	// Over is the share of the bytes beyond the capacity of their link.
	Over float64
	// Full and Overloaded are the shares of the time of links above 90 % and at 100 % of their
	// capacity.
	Full, Overloaded float64
	// Changes are how often a network at a server had another mode in an hour, and Moves how often
	// it left a full link or returned.
	Changes, Moves float64
}

// linkWorld is a run.
type linkWorld struct {
	LinkOptions
	r       *rand.Rand
	now     time.Time
	begin   time.Time
	links   []egress
	clients []client
	servers []server
	modes   []belief.Mode // best path, and each link alone
	result  LinkResult
}

// egress is an egress link. Rates are in bytes/s.
type egress struct {
	capacity, used float64
	phase          float64
	load           float64 // wanted now
}

// client is a client network, the same at all servers.
type client struct {
	prefix  netip.Prefix
	origin  uint32
	demand  float64 // in the mean, at each server
	phase   float64
	best    int       // link of the best path
	quality []float64 // of each link
	within  float64
}

// server is a server with what it believes and where its networks are.
type server struct {
	table    *belief.Table
	balancer *capacity.Balancer
	at       []int         // link of each network
	mode     []belief.Mode // as auto would have it
	next     []time.Time   // bulk connection
}

// RunLinks has networks at several servers share links.
func RunLinks(o LinkOptions) LinkResult {
	w := newLinkWorld(o)
	for w.now.Sub(w.begin) < o.Length {
		w.second()
	}
	seconds := o.Length.Seconds()
	w.result.Policy = o.Policy
	w.result.Full /= seconds * float64(o.Links)
	w.result.Overloaded /= seconds * float64(o.Links)
	for _, total := range []*float64{&w.result.Changes, &w.result.Moves} {
		*total /= float64(o.Networks*o.Servers) * seconds / 3600
	}
	return w.result
}

func newLinkWorld(o LinkOptions) *linkWorld {
	w := &linkWorld{LinkOptions: o, r: rand.New(rand.NewPCG(o.Seed, 354)), begin: time.Unix(1_800_000_000, 0)}
	w.now = w.begin
	w.modes = []belief.Mode{belief.Best}
	sum := 0.0
	for i := range o.Links {
		w.links = append(w.links, egress{capacity: math.Exp(0.3 * w.r.NormFloat64()), phase: w.r.Float64()})
		sum += w.links[i].capacity
		w.modes = append(w.modes, belief.Mode(fmt.Sprintf("single %d", i)))
	}
	for i := range w.links {
		w.links[i].capacity *= 1e9 * float64(o.Links) / sum
	}
	sum = 0
	for i := range o.Networks {
		c := client{
			prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i)}), 48), origin: uint32(64512 + i),
			demand: math.Exp(w.r.NormFloat64()), phase: 0.2 * w.r.Float64(), within: 0.03 + 0.09*w.r.Float64(), quality: make([]float64, o.Links),
		}
		if w.r.Float64() > firstLinkShare {
			c.best = w.r.IntN(o.Links)
		}
		w.draw(&c)
		sum += c.demand
		w.clients = append(w.clients, c)
	}
	for i := range w.clients {
		w.clients[i].demand *= peakDemand / (1 + swing) * 1e9 * float64(o.Links) / sum / float64(o.Servers)
	}
	for i := range o.Servers {
		s := server{
			table:    belief.New(belief.Options{Start: belief.Best, Explore: o.Explore, Networks: o.Networks}),
			balancer: capacity.New(o.Seed*1000 + uint64(i)), at: make([]int, o.Networks), mode: make([]belief.Mode, o.Networks), next: make([]time.Time, o.Networks),
		}
		for n := range s.at {
			s.at[n], s.mode[n] = w.clients[n].best, belief.Best
			s.next[n] = w.begin.Add(time.Duration(w.r.Float64() * float64(apart)))
		}
		w.servers = append(w.servers, s)
	}
	return w
}

// draw draws what the links bring in a network.
func (w *linkWorld) draw(c *client) {
	for l := range c.quality {
		c.quality[l] = math.Exp(0.2 * w.r.NormFloat64())
	}
}

// wave is from -1 to 1.
func (w *linkWorld) wave(phase float64) float64 {
	return math.Sin(2 * math.Pi * (w.now.Sub(w.begin).Seconds()/day.Seconds() + phase))
}

func (w *linkWorld) wants(c *client) float64 { return c.demand * (1 + swing*w.wave(c.phase)) }

// passes is the share of what a link is to carry that it can.
func (e *egress) passes() float64 { return min(1, e.capacity/e.load) }

// second has a second pass.
func (w *linkWorld) second() {
	w.now = w.now.Add(time.Second)
	for l := range w.links {
		e := &w.links[l]
		e.load = otherTraffic / 2 * e.capacity * (1 + w.wave(e.phase))
	}
	for n := range w.clients {
		c := &w.clients[n]
		wants := w.wants(c)
		for s := range w.servers {
			w.links[w.servers[s].at[n]].load += wants
		}
		if w.ChangeEvery > 0 && w.r.Float64() < 1/w.ChangeEvery.Seconds() {
			w.draw(c)
		}
	}
	for l := range w.links {
		e := &w.links[l]
		// As a border router measures it (capacity.Meter).
		e.used += (1 - math.Exp(-0.5)) * (min(e.load, e.capacity) - e.used)
		if e.load >= capacity.Full*e.capacity {
			w.result.Full++
		}
		if e.load >= e.capacity {
			w.result.Overloaded++
		}
	}
	w.count()
	if w.Policy == BestPath {
		return
	}
	for s := range w.servers {
		for n := range w.clients {
			if srv := &w.servers[s]; !w.now.Before(srv.next[n]) {
				srv.next[n] = srv.next[n].Add(apart)
				w.connection(srv, n)
			}
		}
		if w.Policy == AutoAndLoad {
			w.balance(&w.servers[s])
		}
	}
}

// count adds what networks got in this second. Sums become means on the fly, weighted by bytes.
func (w *linkWorld) count() {
	var wanted, best, brought, over float64
	for n := range w.clients {
		c := &w.clients[n]
		wants, most := w.wants(c), slices.Max(c.quality)
		for s := range w.servers {
			at := w.servers[s].at[n]
			passes := w.links[at].passes()
			wanted += wants
			brought += wants * passes * c.quality[at] / most
			over += wants * (1 - passes)
			if c.quality[at] >= 0.95*most {
				best += wants
			}
		}
	}
	part := 1 / w.Length.Seconds()
	w.result.Best += part * best / wanted
	w.result.Brought += part * brought / wanted
	w.result.Over += part * over / wanted
}

// link returns the link of a mode.
func (w *linkWorld) link(c *client, m belief.Mode) int {
	if i := slices.Index(w.modes, m); i > 0 {
		return i - 1
	}
	return c.best
}

// connection has a bulk connection, in which another mode may be tried.
func (w *linkWorld) connection(s *server, n int) {
	c := &w.clients[n]
	mode := s.table.Mode(w.now, c.prefix, c.origin, w.modes)
	avoids := len(s.balancer.Avoided(c.prefix)) > 0
	brings := func(m belief.Mode) float64 {
		l := w.link(c, m)
		return c.quality[l] * w.links[l].passes()
	}
	if !avoids {
		challenger, incumbent, ok := s.table.Try(w.now, c.prefix, c.origin, w.modes, bulkBytes/2, bulkBytes/parts)
		switch {
		case !ok:
		case s.balancer.Full(w.now, linkID(w.link(c, challenger))):
			s.table.Abandoned(c.prefix, challenger, 0)
		default:
			noise := c.within
			if w.r.Float64() < outliers {
				noise *= outlierFactor
			}
			ratio := brings(challenger) / brings(incumbent) * math.Exp(noise*w.r.NormFloat64())
			if err := s.table.Learn(w.now, c.prefix, belief.Pair{Challenger: challenger, Incumbent: incumbent, Ratio: ratio, Bytes: bulkBytes / parts}); err != nil {
				panic("BUG: " + err.Error())
			}
		}
		mode = s.table.Mode(w.now, c.prefix, c.origin, w.modes)
	}
	s.table.Closed(w.now, c.prefix, func() uint32 { return c.origin }, w.modes[s.at[n]+1], belief.Outcome{Bytes: bulkBytes, Goodput: bulkBytes / 10 * brings(mode)})
	if mode != s.mode[n] {
		s.mode[n] = mode
		w.result.Changes++
	}
	w.place(s, n)
}

// place has a network where its mode leads, or where it goes without the links that it avoids.
func (w *linkWorld) place(s *server, n int) {
	c := &w.clients[n]
	avoided := func(l capacity.Link) bool { return s.balancer.Avoids(c.prefix, l) }
	if to, _, ok := w.without(s, n, w.gains(s, n))(avoided); ok {
		s.at[n] = linkNumber(to[0])
	}
}

func linkID(l int) capacity.Link {
	return capacity.Link{Router: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Number: uint16(l + 1)}
}

func linkNumber(l capacity.Link) int { return int(l.Number) - 1 }

// gains is what a server believes that each link brings in a network.
func (w *linkWorld) gains(s *server, n int) []float64 {
	c := &w.clients[n]
	gains := make([]float64, w.Links)
	info, _ := s.table.Network(w.now, c.prefix)
	for _, m := range info.Modes {
		if m.Mode != belief.Best || m.Mode == s.mode[n] {
			gains[w.link(c, m.Mode)] = m.Gain
		}
	}
	return gains
}

// without returns where a network goes without some links (capacity.Use).
func (w *linkWorld) without(s *server, n int, gains []float64) func(func(capacity.Link) bool) ([]capacity.Link, float64, bool) {
	preferred := w.link(&w.clients[n], s.mode[n])
	return func(avoided func(capacity.Link) bool) ([]capacity.Link, float64, bool) {
		if !avoided(linkID(preferred)) {
			return []capacity.Link{linkID(preferred)}, 0, true
		}
		best := -1
		for l := range gains {
			if !avoided(linkID(l)) && (best < 0 || gains[l] > gains[best]) {
				best = l
			}
		}
		if best < 0 {
			return nil, 0, false
		}
		return []capacity.Link{linkID(best)}, max(0, 1-(1+gains[best])/(1+gains[preferred])), true
	}
}

// balance has networks of a server avoid full links.
func (w *linkWorld) balance(s *server) {
	for l := range w.links {
		s.balancer.Report(w.now, linkID(l), capacity.Load{Capacity: w.links[l].capacity, Used: w.links[l].used})
	}
	if !s.balancer.Due(w.now) {
		return
	}
	uses := make([]capacity.Use, len(w.clients))
	for n := range w.clients {
		c, at := &w.clients[n], s.at[n]
		uses[n] = capacity.Use{Network: c.prefix, On: map[capacity.Link]float64{linkID(at): w.wants(c) * w.links[at].passes()}, Without: w.without(s, n, w.gains(s, n))}
	}
	for _, prefix := range s.balancer.Decide(w.now, uses) {
		n, _ := slices.BinarySearchFunc(w.clients, prefix, func(c client, p netip.Prefix) int { return c.prefix.Compare(p) })
		w.result.Moves++
		w.place(s, n)
	}
}

// MeanLinks returns the mean of runs of a policy, and of each figure the worst one.
func MeanLinks(runs []LinkResult) (mean, worst LinkResult) {
	worst = runs[0]
	mean.Policy = worst.Policy
	for _, r := range runs {
		figures := func(r *LinkResult) (good, bad []*float64) {
			return []*float64{&r.Best, &r.Brought}, []*float64{&r.Over, &r.Full, &r.Overloaded, &r.Changes, &r.Moves}
		}
		good, bad := figures(&r)
		goodMean, badMean := figures(&mean)
		goodWorst, badWorst := figures(&worst)
		for i, x := range slices.Concat(good, bad) {
			*slices.Concat(goodMean, badMean)[i] += *x / float64(len(runs))
		}
		for i, x := range good {
			*goodWorst[i] = min(*goodWorst[i], *x)
		}
		for i, x := range bad {
			*badWorst[i] = max(*badWorst[i], *x)
		}
	}
	return mean, worst
}
