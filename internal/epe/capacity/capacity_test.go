package capacity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

func at(n int) Link {
	return Link{netip.AddrFrom16([16]byte{0xfc, 15: byte(n)}), uint16(n + 1)}
}

func prefix(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(n >> 8), byte(n)}), 48)
}

// demand is what a network has at one server: a rate, and the links from the best to the worst,
// with what it loses on each.
type demand struct {
	rate  float64
	links []int
	loss  []float64
}

// takes returns the link that it takes without some.
func (d *demand) takes(avoided func(Link) bool) (link int, loss float64, ok bool) {
	for i, n := range d.links {
		if !avoided(at(n)) {
			return n, d.loss[i], true
		}
	}
	return 0, 0, false
}

// world are servers that share links.
type world struct {
	now      time.Time
	servers  []*Balancer
	demands  [][]demand // of each server, by network
	capacity []float64
	others   []float64 // what others have on the links
	used     []float64 // as the routers report it
	changes  int
}

// smoothing is how a border router smooths what it reports, each second.
const smoothing = 0.4

func (w *world) load() []float64 {
	load := slices.Clone(w.others)
	for s, b := range w.servers {
		for n := range w.demands[s] {
			d := &w.demands[s][n]
			if link, _, ok := d.takes(func(x Link) bool { return b.Avoids(prefix(n), x) }); ok {
				load[link] += d.rate
			} else {
				load[d.links[0]] += d.rate
			}
		}
	}
	return load
}

// second has a second pass. What a link carries is what it can at most.
func (w *world) second() []float64 {
	w.now = w.now.Add(time.Second)
	load := w.load()
	for l := range load {
		w.used[l] += smoothing * (min(load[l], w.capacity[l]) - w.used[l])
	}
	for s, b := range w.servers {
		for l := range load {
			b.Report(w.now, at(l), Load{w.capacity[l], w.used[l]})
		}
		if !b.Due(w.now) {
			continue
		}
		var uses []Use
		for n := range w.demands[s] {
			d := &w.demands[s][n]
			link, _, _ := d.takes(func(x Link) bool { return b.Avoids(prefix(n), x) })
			uses = append(uses, Use{
				Network: prefix(n), On: map[Link]float64{at(link): d.rate * min(1, w.capacity[link]/load[link])},
				Without: func(avoided func(Link) bool) ([]Link, float64, bool) {
					to, loss, ok := d.takes(avoided)
					return []Link{at(to)}, loss, ok
				},
			})
		}
		w.changes += len(b.Decide(w.now, uses))
	}
	return load
}

// newWorld has servers with networks that all take link 0 and may take two others.
func newWorld(servers, networks int, factor float64, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 4))
	w := &world{now: start, capacity: []float64{1e9, 1e9, 1e9}, others: []float64{0, 2e8, 2e8}, used: make([]float64, 3)}
	sum := 0.0
	for s := range servers {
		w.servers = append(w.servers, New(uint64(s)+1000*seed))
		var list []demand
		for range networks {
			d := demand{math.Exp(r.NormFloat64()), []int{0, 1, 2}, []float64{0, r.Float64() / 10, 0.1 + r.Float64()/10}}
			sum += d.rate
			list = append(list, d)
		}
		w.demands = append(w.demands, list)
	}
	for s := range w.demands {
		for n := range w.demands[s] {
			w.demands[s][n].rate *= factor * 1e9 / sum
		}
	}
	return w
}

// TestServers: servers relieve a link that all of them want 30 % too much of, without moving more
// than needed, filling another one, or moving again.
func TestServers(t *testing.T) {
	for servers, runs := range map[int]uint64{1: 20, 10: 20, 100: 2} {
		for seed := range runs {
			w := newWorld(servers, 20, 1.3, seed)
			relieved, least, last := -1, 2.0, 0
			for s := range 600 {
				before := w.changes
				load := w.second()
				if w.changes > before {
					last = s
				}
				share := load[0] / w.capacity[0]
				if share < Full && relieved < 0 {
					relieved = s
				}
				if relieved >= 0 && share >= 1 {
					t.Errorf("%d servers, seed %d: overloaded again after %d s", servers, seed, s)
				}
				least = min(least, share)
				if m := max(load[1], load[2]) / 1e9; m >= Full {
					t.Errorf("%d servers, seed %d: another link is at %.2f after %d s", servers, seed, m, s)
				}
			}
			t.Logf("%d servers, seed %d: relieved after %d s, least %.2f, %d changes, the last after %d s", servers, seed, relieved, least, w.changes, last)
			if relieved < 0 || relieved > 60 || least < 0.70 || last > 120 {
				t.Errorf("%d servers, seed %d: relieved after %d s, least %.2f, the last change after %d s", servers, seed, relieved, least, last)
			}
		}
	}
}

// TestReturns: when the load falls, all networks return, and the link is not full again meanwhile.
func TestReturns(t *testing.T) {
	for _, servers := range []int{1, 10} {
		for seed := range uint64(20) {
			w := newWorld(servers, 20, 0.6, seed)
			w.others[0] = 6e8
			for range 300 {
				w.second()
			}
			left := 0
			for _, b := range w.servers {
				left += b.Moved(at(0))
			}
			w.others[0] = 0
			worst, away := 0.0, 0
			for s := range 600 {
				load := w.second()
				worst = max(worst, load[0]/w.capacity[0])
				n := 0
				for _, b := range w.servers {
					n += b.Moved(at(0))
				}
				if n > 0 {
					away = s + 1
				}
			}
			t.Logf("%d servers, seed %d: %d left, the last returned after %d s", servers, seed, left, away)
			if left == 0 || away > 300 || worst >= Full {
				t.Errorf("%d servers, seed %d: %d left, the last returned after %d s, at most %.2f", servers, seed, left, away, worst)
			}
		}
	}
}

// TestReturnsInPart: of what left, as much returns as there is room for, and nothing leaves again.
func TestReturnsInPart(t *testing.T) {
	for servers, networks := range map[int]int{1: 20, 10: 20, 30: 1} {
		for seed := range uint64(6) {
			w := newWorld(servers, networks, 0.6, seed)
			w.others[0] = 6e8
			for range 300 {
				w.second()
			}
			w.others[0] = 3e8 // all that wants to be there is 90 %
			before, worst, load := w.changes, 0.0, []float64(nil)
			for range 600 {
				load = w.second()
				worst = max(worst, load[0]/w.capacity[0])
			}
			left := 0
			for _, b := range w.servers {
				left += b.Moved(at(0))
			}
			t.Logf("%d servers, seed %d: at most %.2f, %.2f in the end, %d still elsewhere", servers, seed, worst, load[0]/w.capacity[0], left)
			if worst > 0.80 || load[0] < 0.6*w.capacity[0] || left == 0 || w.changes == before {
				t.Errorf("%d servers, seed %d: at most %.2f, %.2f in the end, %d still elsewhere", servers, seed, worst, load[0]/w.capacity[0], left)
			}
		}
	}
}

// TestDemandAtTheEdge: with a load that swings around the bounds, networks move ever more rarely.
func TestDemandAtTheEdge(t *testing.T) {
	for seed := range uint64(4) {
		w := newWorld(10, 20, 0.6, seed)
		var hours []int
		for range 4 {
			before := w.changes
			for s := range 3600 {
				w.others[0] = 3e8 + 3e8*math.Sin(2*math.Pi*float64(s)/120)
				w.second()
			}
			hours = append(hours, w.changes-before)
		}
		t.Log("changes in each hour:", hours)
		if hours[3] > 4*200 || hours[3] > hours[0]/2 { // four of each network of a server
			t.Errorf("seed %d: changes in each hour: %v", seed, hours)
		}
	}
}

// one has one server with networks of equal rate on link 0, of which the later ones lose more
// elsewhere.
func one(b *Balancer, n int, rate float64) (uses []Use) {
	for i := range n {
		uses = append(uses, Use{
			Network: prefix(i), On: map[Link]float64{at(0): rate},
			Without: func(avoided func(Link) bool) ([]Link, float64, bool) {
				if !avoided(at(0)) {
					return []Link{at(0)}, 0, true
				}
				return []Link{at(1)}, float64(i) / 100, !avoided(at(1))
			},
		})
	}
	return uses
}

func TestLeastLossFirst(t *testing.T) {
	b := New(1)
	b.Report(start, at(0), Load{1000, 1000})
	b.Report(start, at(1), Load{1000, 0})
	now := start.Add(Every)
	if !b.Due(now) {
		t.Fatal("not due")
	}
	got := b.Decide(now, one(b, 20, 50)) // 150 are too much
	if want := []netip.Prefix{prefix(0), prefix(1), prefix(2)}; !slices.Equal(got, want) {
		t.Errorf("%v left", got)
	}
	if b.Moved(at(0)) != 3 || !b.Avoids(prefix(2), at(0)) || b.Avoids(prefix(3), at(0)) || b.Due(now) {
		t.Error("what Decide returned is not what Avoids reports")
	}
}

// TestOnlyTheOwnShare: of what is too much, a server moves what it causes.
func TestOnlyTheOwnShare(t *testing.T) {
	moved := 0.0
	for seed := range uint64(200) {
		b := New(seed)
		b.Report(start, at(0), Load{1000, 950}) // 100 are too much, a fifth of it from this server
		b.Report(start, at(1), Load{1000, 0})
		moved += 10 * float64(len(b.Decide(start.Add(Every), one(b, 19, 10)))) / 200
	}
	if moved < 15 || moved > 25 {
		t.Errorf("moved %.1f in the mean, want 20", moved)
	}
}

// TestNowhere: networks stay where they are if the other link has no room, or there is none.
func TestNowhere(t *testing.T) {
	for name, other := range map[string]Load{"full": {1000, 900}, "small": {50, 0}} {
		b := New(1)
		b.Report(start, at(0), Load{1000, 1000})
		b.Report(start, at(1), other)
		if got := b.Decide(start.Add(Every), one(b, 20, 50)); len(got) > 0 || !b.Stuck(at(0)) {
			t.Errorf("%s: %v left, stuck %v", name, got, b.Stuck(at(0)))
		}
	}
}

// TestReportsAge: a link without reports is one that nothing is known of.
func TestReportsAge(t *testing.T) {
	for name, lose := range map[string]func(*Balancer) time.Time{
		"aged":       func(*Balancer) time.Time { return start.Add(2*Fresh + maxAvoidance) },
		"withdrawn":  func(b *Balancer) time.Time { b.Forget(at(0)); return start.Add(2 * Every) },
		"clock back": func(*Balancer) time.Time { return start.Add(-2 * Fresh) },
	} {
		b := New(1)
		b.Report(start, at(0), Load{1000, 1000})
		uses := one(b, 20, 50)
		if len(b.Decide(start.Add(Every), uses)) == 0 {
			t.Fatal("none left")
		}
		if old := start.Add(2 * Fresh); b.Full(old, at(0)) || b.Due(old) || b.Moved(at(0)) == 0 {
			t.Errorf("%s: an old report counts, or networks return to a link that nothing is known of", name)
		}
		now := lose(b)
		if !b.Due(now) {
			t.Errorf("%s: not due", name)
		}
		b.Decide(now, uses)
		if n := b.Moved(at(0)); n > 0 || b.Full(now, at(0)) {
			t.Errorf("%s: %d networks avoid it", name, n)
		}
	}
}

// TestNoSense: what cannot be a load counts as no report.
func TestNoSense(t *testing.T) {
	for _, l := range []Load{
		{}, {0, 100}, {-1, 100}, {math.NaN(), 100}, {100, math.NaN()}, {math.Inf(1), 100}, {100, math.Inf(1)}, {100, -1}, {math.SmallestNonzeroFloat64, 1}, {1e300, 1e300}, {100, 1e30},
	} {
		b := New(1)
		b.Report(start, at(0), l)
		if _, ok := b.Known(start, at(0)); ok || b.Due(start.Add(time.Hour)) {
			t.Errorf("%v counts", l)
		}
	}
	b := New(1)
	for i := range 2 * maxLinks {
		b.Report(start, Link{at(0).Router, uint16(i)}, Load{100, 99})
	}
	if len(b.links) > maxLinks {
		t.Errorf("%d links", len(b.links))
	}
}

// TestAnything: whatever is reported and carried, no decision fills a link that reports, moves a
// network whose links are not full, or has a network avoid all links that it may take.
func TestAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := New(rapid.Uint64().Draw(t, "seed"))
		now := start
		const links = 3
		for round := range rapid.IntRange(1, 20).Draw(t, "rounds") {
			now = now.Add(time.Duration(rapid.IntRange(-20, 200).Draw(t, "passed")) * time.Second)
			for l := range links {
				if rapid.Bool().Draw(t, "reports") {
					b.Report(now, at(l), Load{rapid.Float64().Draw(t, "capacity"), rapid.Float64().Draw(t, "used")})
				} else if rapid.Bool().Draw(t, "sound") {
					b.Report(now, at(l), Load{1000, rapid.Float64Range(0, 1500).Draw(t, "used")})
				}
			}
			var uses []Use
			before := map[netip.Prefix][]Link{}
			for n := range rapid.IntRange(0, 10).Draw(t, "networks") {
				order := rapid.Permutation([]int{0, 1, 2}).Draw(t, "order")
				d := demand{rapid.Float64Range(0, 500).Draw(t, "rate"), order[:rapid.IntRange(1, 3).Draw(t, "links")], []float64{0, 0.1, 0.2}}
				before[prefix(n)] = b.Avoided(prefix(n))
				link, _, _ := d.takes(func(x Link) bool { return b.Avoids(prefix(n), x) })
				uses = append(uses, Use{Network: prefix(n), On: map[Link]float64{at(link): d.rate}, Without: func(avoided func(Link) bool) ([]Link, float64, bool) {
					to, loss, ok := d.takes(avoided)
					return []Link{at(to)}, loss, ok
				}})
			}
			full := false
			for l := range links {
				full = full || b.Full(now, at(l))
			}
			b.Decide(now, uses)
			for i := range uses {
				u := &uses[i]
				now, was := b.Avoided(u.Network), before[u.Network]
				grew := slices.ContainsFunc(now, func(l Link) bool { return !slices.Contains(was, l) })
				if grew && !full {
					t.Fatal(fmt.Sprintf("round %d: %v left links although none is full", round, u.Network))
				}
				if _, _, ok := u.Without(func(x Link) bool { return slices.Contains(now, x) }); grew && !ok {
					t.Fatal("no link is left")
				}
			}
		}
	})
}
