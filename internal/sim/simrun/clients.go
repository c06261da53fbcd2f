package simrun

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/arrival"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/worlds"
	"github.com/tabane/tabane/internal/sim"
)

// Several are what downloads to several client networks at once brought together, which know nothing
// of each other and share the egress paths of a drawn network.
type Several struct {
	World worlds.World
	// Alone are TCP over each path alone, and Again is the first path with other random numbers;
	// StaggeredAlone are downloads that begin one after the other, ShortAlone those with short ones
	// beside them, and AccessAlone those to clients with access lines of their own.
	Alone, StaggeredAlone, ShortAlone, AccessAlone []Together
	Again                                          Together
	// First are sprayed downloads to networks that nothing is known of, Next those after them, and
	// Datagrams the same if their acknowledgments cannot be read. Staggered, Short and Access are as
	// Next, First and Next, AccessFirst as First.
	First, Next, Datagrams, Staggered, Short, AccessFirst, Access, AccessDatagrams Together
	// TurnsDatagrams are those after downloads of one client at a time. OneNext and OneDatagrams are
	// one download after several at once, OneAlone over a path.
	TurnsDatagrams, OneNext, OneDatagrams Together
	OneAlone                              []Together
}

// Together is what downloads at once brought.
type Together struct {
	Bytes float64
	// Least is what the least one brought of the median.
	Least float64
	// Retransmitted is the share of segments that were sent again.
	Retransmitted float64
	// Median is the median time of the short downloads, and Most that of 95 %, in seconds.
	Median, Most float64
}

// SeveralRatios are the rows of a table.
func SeveralRatios() []Ratio[Several] {
	better := func(list []Together) float64 {
		return slices.MaxFunc(list, func(a, b Together) int { return cmp.Compare(a.Bytes, b.Bytes) }).Bytes
	}
	sum := func(list []Together) (all float64) {
		for _, t := range list {
			all += t.Bytes
		}
		return all
	}
	var rows []Ratio[Several]
	add := func(title string, of func(Several) float64) { rows = append(rows, Ratio[Several]{title, of}) }
	add("the first path again / the first path", func(s Several) float64 { return ratio(s.Again.Bytes, s.Alone[0].Bytes) })
	for _, k := range []struct {
		name  string
		of    func(Several) Together
		alone func(Several) []Together
	}{
		{"TCP, the first ones", func(s Several) Together { return s.First }, func(s Several) []Together { return s.Alone }},
		{"TCP, the next ones", func(s Several) Together { return s.Next }, func(s Several) []Together { return s.Alone }},
		{"TCP, the next ones, staggered", func(s Several) Together { return s.Staggered }, func(s Several) []Together { return s.StaggeredAlone }},
		{"datagrams, the next ones", func(s Several) Together { return s.Datagrams }, func(s Several) []Together { return s.Alone }},
		{"datagrams, after TCP of one at a time", func(s Several) Together { return s.TurnsDatagrams }, func(s Several) []Together { return s.Alone }},
		{"TCP, one after several", func(s Several) Together { return s.OneNext }, func(s Several) []Together { return s.OneAlone }},
		{"datagrams, one after several", func(s Several) Together { return s.OneDatagrams }, func(s Several) []Together { return s.OneAlone }},
		{"access lines, TCP, the first ones", func(s Several) Together { return s.AccessFirst }, func(s Several) []Together { return s.AccessAlone }},
		{"access lines, TCP, the next ones", func(s Several) Together { return s.Access }, func(s Several) []Together { return s.AccessAlone }},
		{"access lines, datagrams, the next ones", func(s Several) Together { return s.AccessDatagrams }, func(s Several) []Together { return s.AccessAlone }},
	} {
		add(k.name+" / the first path", func(s Several) float64 { return ratio(k.of(s).Bytes, k.alone(s)[0].Bytes) })
		add(k.name+" / the best path", func(s Several) float64 { return ratio(k.of(s).Bytes, better(k.alone(s))) })
		add(k.name+" / the sum of all paths", func(s Several) float64 { return ratio(k.of(s).Bytes, sum(k.alone(s))) })
	}
	add("the first path: least / median", func(s Several) float64 { return s.Alone[0].Least })
	add("TCP, the next ones: least / median", func(s Several) float64 { return s.Next.Least })
	add("datagrams, the next ones: least / median", func(s Several) float64 { return s.Datagrams.Least })
	add("the first path: retransmitted, %", func(s Several) float64 { return 100 * s.Alone[0].Retransmitted })
	add("TCP, the next ones: retransmitted, %", func(s Several) float64 { return 100 * s.Next.Retransmitted })
	add("datagrams, the next ones: retransmitted, %", func(s Several) float64 { return 100 * s.Datagrams.Retransmitted })
	add("time of 200 kB beside them / over the first path, median", func(s Several) float64 { return ratio(s.Short.Median, s.ShortAlone[0].Median) })
	add("the same, 95 %", func(s Several) float64 { return ratio(s.Short.Most, s.ShortAlone[0].Most) })
	add("those beside 200 kB / the first path", func(s Several) float64 { return ratio(s.Short.Bytes, s.ShortAlone[0].Bytes) })
	return rows
}

// What short downloads are, and how they begin beside others.
const (
	shortBytes = 200 * unit.KB
	shortEvery = 250 * time.Millisecond
)

// SpraySeveral simulates downloads at once to so many client networks.
func SpraySeveral(ctx context.Context, o SprayOptions, clients int) ([]Several, error) {
	list := make([]Several, o.Count)
	err := parallel(ctx, o.Jobs, o.Count, func(ctx context.Context, i int) (err error) {
		list[i], err = severalWorld(ctx, o.draw(i), clients)
		return err
	})
	return list, err
}

// several are downloads at once over some of the paths.
type several struct {
	paths     []int
	clients   int
	seed      uint64
	rounds    int  // one after the other, to the same clients; the last one counts
	turns     bool // the clients take turns in all rounds but the last
	single    bool // only one client in the last round
	staggered bool
	unread    bool // in the last round
	short     bool // short ones beside them
	access    bool // each client has an access line, which it draws
}

// severalWorld simulates one network.
func severalWorld(ctx context.Context, w worlds.World, clients int) (Several, error) {
	w.Shared = linkmodel.Profile{}
	w.Paths = w.Paths[:min(len(w.Paths), arrival.MaxPaths)]
	r := Several{World: w}
	n := len(w.Paths)
	for _, list := range []*[]Together{&r.Alone, &r.StaggeredAlone, &r.ShortAlone, &r.AccessAlone, &r.OneAlone} {
		*list = make([]Together, n)
	}
	type run struct {
		to *Together
		several
	}
	var all []int
	var runs []run
	for i := range w.Paths {
		all = append(all, i)
		one := []int{i}
		runs = append(runs,
			run{&r.Alone[i], several{paths: one, rounds: 1}},
			run{&r.StaggeredAlone[i], several{paths: one, rounds: 1, staggered: true}},
			run{&r.ShortAlone[i], several{paths: one, rounds: 1, short: true}},
			run{&r.AccessAlone[i], several{paths: one, rounds: 1, access: true}},
			run{&r.OneAlone[i], several{paths: one, rounds: 1, single: true}})
	}
	runs = append(runs,
		run{&r.Again, several{paths: all[:1], rounds: 1, seed: otherSeed}},
		run{&r.First, several{paths: all, rounds: 1}},
		run{&r.Next, several{paths: all, rounds: 2}},
		run{&r.Datagrams, several{paths: all, rounds: 2, unread: true}},
		run{&r.Staggered, several{paths: all, rounds: 2, staggered: true}},
		run{&r.Short, several{paths: all, rounds: 1, short: true}},
		run{&r.TurnsDatagrams, several{paths: all, rounds: 2, turns: true, unread: true}},
		run{&r.OneNext, several{paths: all, rounds: 2, single: true}},
		run{&r.OneDatagrams, several{paths: all, rounds: 2, single: true, unread: true}},
		run{&r.AccessFirst, several{paths: all, rounds: 1, access: true}},
		run{&r.Access, several{paths: all, rounds: 2, access: true}},
		run{&r.AccessDatagrams, several{paths: all, rounds: 2, access: true, unread: true}})
	for _, x := range runs {
		x.clients = clients
		t, err := x.run(ctx, w)
		if err != nil {
			return r, err
		}
		*x.to = t
	}
	return r, nil
}

// run simulates the downloads. What happens in the network happens in the last round.
func (x several) run(ctx context.Context, w worlds.World) (t Together, err error) {
	round := w.Lasts + apart
	if x.turns {
		round *= time.Duration(x.clients)
	}
	begin := time.Duration(x.rounds-1) * round
	c, ways := sprayLinks(w, x.paths, begin)
	c.Seed, c.Duration = w.SimulatorSeed()+x.seed, begin+w.Lasts
	random := rand.New(rand.NewPCG(w.SimulatorSeed(), uint64(x.clients)))
	// The clients begin within so long.
	within := min(time.Second, w.Lasts/8)
	if x.staggered {
		within = w.Lasts / 2
	}
	add := func(start time.Duration, network *sim.Spray, unread bool) *sim.Connection {
		d := sprayDownload(fmt.Sprint("download", len(c.Connections)+1), start, ways)
		if len(x.paths) > 1 {
			d.Spray, d.Unread = network, unread
		}
		c.Connections = append(c.Connections, d)
		return &c.Connections[len(c.Connections)-1]
	}
	sum := unit.Bandwidth(0)
	for _, p := range w.Paths {
		sum += p.Forward.Rate
	}
	var counts []int
	for i := range x.clients {
		if x.access {
			ways = throughAccess(&c, ways, accessLine(random, sum/unit.Bandwidth(x.clients)))
		}
		after, network := time.Duration(random.Float64()*float64(within)), &sim.Spray{Network: fmt.Sprint(w.Name(), i)}
		for k := range x.rounds {
			last := k == x.rounds-1
			if last && x.single && i > 0 {
				break
			}
			start := time.Duration(k) * round
			if x.turns && !last {
				start += time.Duration(i) * (w.Lasts + apart)
			}
			d := add(start+after, network, last && x.unread)
			if last {
				counts = append(counts, len(c.Connections)-1)
			} else {
				d.Stop = start + w.Lasts
			}
		}
	}
	long := len(c.Connections)
	if x.short {
		for at := w.Lasts / 4; at < w.Lasts*3/4; at += shortEvery {
			add(begin+at, &sim.Spray{Network: fmt.Sprint(w.Name(), len(c.Connections))}, false).Bytes = shortBytes
		}
	}
	result, err := simulate(ctx, w, c)
	if err != nil {
		return t, err
	}
	return together(result.Connections, counts, result.Connections[long:])
}

// together measures the downloads of these numbers, and short ones.
func together(all []sim.ConnectionResult, counts []int, short []sim.ConnectionResult) (t Together, err error) {
	var each, times []float64
	var sent, again uint64
	for _, i := range counts {
		d := &all[i]
		each = append(each, float64(d.Delivered))
		t.Bytes += float64(d.Delivered)
		sent += d.Paths[0].Segments
		again += d.Paths[0].Retransmissions
	}
	for _, d := range short {
		times = append(times, d.Active.Seconds())
	}
	if sent > 0 {
		t.Retransmitted = float64(again) / float64(sent)
	}
	for _, q := range []struct {
		to   *float64
		p    float64
		list []float64
	}{{&t.Least, 0.5, each}, {&t.Median, 0.5, times}, {&t.Most, 0.95, times}} {
		if len(q.list) > 0 {
			if *q.to, err = stat.Quantile(q.p, q.list); err != nil {
				return t, err
			}
		}
	}
	t.Least = ratio(slices.Min(each), t.Least)
	return t, nil
}

// accessLine draws the access line of a client whose share of all paths has a rate.
func accessLine(random *rand.Rand, share unit.Bandwidth) linkmodel.Profile {
	const leastShare, mostShare, leastRate, mostDelay, leastQueue, mostQueue = 0.25, 2, unit.MbitPerSecond / 2, 10 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond
	log := func(from, to float64) float64 { return from * math.Pow(to/from, random.Float64()) }
	return linkmodel.Profile{
		Rate:  max(unit.Bandwidth(float64(share)*log(leastShare, mostShare)), leastRate),
		Delay: time.Duration(random.Float64() * float64(mostDelay)),
		Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: time.Duration(log(float64(leastQueue), float64(mostQueue)))}},
	}
}

// throughAccess returns the paths with an access line behind them, which it adds.
func throughAccess(c *sim.Config, ways []sim.Path, line linkmodel.Profile) (all []sim.Path) {
	for _, p := range ways {
		p.Out = []int{p.Out[0], len(c.Links)}
		all = append(all, p)
	}
	c.Links = append(c.Links, sim.Link{Name: fmt.Sprint("access", len(c.Links)), Profile: line})
	return all
}
