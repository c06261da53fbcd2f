package worlds

import (
	"maps"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Base is the name of the scenario whose network worlds of the kind have.
func (k Kind) Base() string {
	if k == Clients {
		k = Gateway
	}
	return "world-" + string(k)
}

// The traffic of worlds.
const (
	Bulk   = "bulk"
	Kept   = "kept"
	New    = "new"
	Stream = "stream"
	Page   = "page"
	Call   = "call"
)

// The transports of worlds that use all paths. A path alone has the name of its link.
const (
	auto   = "auto"
	dq     = "dq"
	first  = "first"
	memory = "memory"
	// again is the best of the paths alone with other random numbers.
	again = "again"
)

const (
	object      = 50 * unit.KB
	objects     = 40
	transfer    = 16 * unit.MB // of a bulk transfer in EPE
	objectsLast = 20 * time.Second
	// A page of 1 MB, and a call with video, which has a fifth of the fastest path at most.
	pageObjects  = 20
	callDatagram = 500
	callRate     = 2 * unit.MbitPerSecond
	callLasts    = 6 * time.Second
	streamLasts  = 7 * time.Second
	recalled     = 6 * time.Second
	theCase      = "world"
)

// links are the links of the paths of a kind, in the order of BGP's preference, and shared the one
// that all of them pass.
var (
	gatewayLinks = []string{"path1", "path2", "path3", "path4"}

	links  = map[Kind][]string{Gateway: gatewayLinks, EPE: {"a", "b", "c", "d"}, Clients: gatewayLinks}
	shared = map[Kind]string{EPE: "access"}

	// disciplines are those of gateways over all paths.
	disciplines = map[Kind][]string{Gateway: {auto, dq}, Clients: {auto}}
)

// Spec returns the world as a scenario on the network of its base.
func (w World) Spec(base *scenario.Spec) *scenario.Spec {
	s := *base
	s.Name, s.Title, s.Question, s.Base = w.Name(), w.Text(), "Is anything worse than over the best path alone?", w.Kind.Base()
	s.Links = maps.Clone(base.Links)
	for i, p := range w.Paths {
		l := *base.Links[links[w.Kind][i]]
		l.Shape, l.Schedule, l.Emulate, l.Seed = scenario.ShapeOf(p.Forward, p.Backward), p.Schedule, true, w.Seed
		s.Links[links[w.Kind][i]] = &l
	}
	if w.Shared.Rate > 0 {
		l := *base.Links[shared[w.Kind]]
		l.Shape = scenario.ShapeOf(w.Shared, linkmodel.Profile{Rate: w.Shared.Rate, Delay: w.Shared.Delay, Queue: w.Shared.Queue})
		s.Links[shared[w.Kind]] = &l
	}
	s.Experiment = w.experiment(base.Experiment)
	if server := base.Nodes[base.Experiment.Server]; server.Edge != nil {
		// A lab would use the egress peers without a path of the world, too.
		node, own := *server, *server.Edge
		own.Peers = own.Peers[:len(w.Paths)]
		node.Edge = &own
		s.Nodes = maps.Clone(base.Nodes)
		s.Nodes[base.Experiment.Server] = &node
	}
	return &s
}

// experiment returns the traffic of the world over each path alone and over all.
func (w World) experiment(base *scenario.Experiment) *scenario.Experiment {
	e := &scenario.Experiment{
		Server: base.Server, Client: base.Client, Trials: max(w.Runs, 1), Cases: []scenario.Case{{Name: theCase, Title: w.Text()}},
		Traffic: map[string]*scenario.Traffic{}, Transports: map[string]*scenario.Transport{},
	}
	for _, name := range append([]string{Bulk}, w.Extra...) {
		t := w.traffic(name)
		t.Quick = max(t.Duration/2, time.Second)
		e.Traffic[name] = t
	}
	own := links[w.Kind][:len(w.Paths)]
	for _, name := range own {
		t := &scenario.Transport{Title: name + " alone", Links: []string{name}}
		switch w.Kind {
		case Gateway, Clients:
			t.Gateway = &scenario.Gateway{Discipline: "best"}
			t.Congestion = w.Congestion
		case EPE:
			t.MPTCP, t.Via = true, "transit-"+name
		}
		e.Transports[name] = t
	}
	switch w.Kind {
	case Gateway, Clients:
		for _, name := range disciplines[w.Kind] {
			e.Transports[name] = &scenario.Transport{Title: "all paths, " + name, Links: own, Gateway: &scenario.Gateway{Discipline: name}, Settings: scenario.Settings{Congestion: w.Congestion}}
		}
	case EPE:
		lowat := true
		settings := scenario.Settings{Use: edge.UseOverflow, Congestion: w.Congestion, Lowat: &lowat}
		for _, name := range own[1:] {
			e.Transports[then(own[0], name)] = &scenario.Transport{
				Title: own[0] + ", then " + name + " alone", MPTCP: true, Links: []string{own[0], name},
				Settings: scenario.Settings{Use: edge.UseAll, Begin: own[0], Congestion: w.Congestion, Lowat: &lowat},
			}
		}
		e.Transports[first] = &scenario.Transport{Title: "all paths, the first connection", MPTCP: true, Links: own, Settings: settings}
		settings.Recall, settings.Begin = w.recall(), scenario.BeginBest
		e.Transports[memory] = &scenario.Transport{Title: "all paths, after another connection", MPTCP: true, Links: own, Settings: settings}
	}
	e.Baseline = own[0]
	return e
}

// judges returns the transports that a transport over all paths is compared with: each path alone.
// A first connection knows nothing and begins on BGP's best path, as those that it is compared with
// do: each of them moves to one path once it has joined.
func (w World) judges(transport string) []string {
	own := links[w.Kind][:len(w.Paths)]
	if transport != first {
		return own
	}
	list := []string{own[0]}
	for _, name := range own[1:] {
		list = append(list, then(own[0], name))
	}
	return list
}

// then is the name of a transport that begins on one link and moves to another.
func then(begins, moves string) string { return begins + "-" + moves }

// recall returns how long the connection lasts whose measurements another recalls.
func (w World) recall() time.Duration { return min(w.Lasts, recalled) }

// traffic returns the named traffic.
func (w World) traffic(name string) *scenario.Traffic {
	switch name {
	case Kept:
		return &scenario.Traffic{Title: "objects on one connection", Bytes: object, Objects: objects, Duration: objectsLast, Beside: w.Downloads}
	case New:
		return &scenario.Traffic{Title: "objects on new connections", Bytes: object, Objects: objects, NewConnections: true, Duration: objectsLast}
	case Page:
		return &scenario.Traffic{Title: "a page beside downloads", Bytes: object, Objects: pageObjects, Beside: max(w.Downloads, 1), Duration: w.Lasts}
	case Call:
		return &scenario.Traffic{
			Title: "a call beside downloads", Datagram: callDatagram, Rate: min(callRate, rounded(w.fastest()/5)), Duration: min(w.Lasts, callLasts), Beside: max(w.Downloads, 1),
		}
	case Stream:
		return &scenario.Traffic{
			Title: "a constant bit rate", Rate: rounded(unit.Bandwidth(shareOfStream * float64(w.fastest()))), Duration: max(min(w.Lasts, streamLasts), w.after()), Live: true,
		}
	}
	switch w.Kind {
	case EPE:
		return &scenario.Traffic{Title: "16 MB", Bytes: transfer, Duration: max(transferLasts(w.fastest()), w.after())}
	case Clients:
		return &scenario.Traffic{Title: "downloads at once", Bytes: unit.TiB, Duration: w.Lasts, Beside: w.Downloads - 1}
	case Gateway:
	}
	return &scenario.Traffic{Title: "bulk", Bytes: unit.TiB, Duration: w.Lasts}
}

// after returns a time after all changes.
func (w World) after() time.Duration {
	last := time.Duration(0)
	for _, p := range w.Paths {
		for _, step := range p.Schedule {
			last = max(last, step.At+time.Second)
		}
	}
	return last
}

// fastest returns the rate of the fastest path.
func (w World) fastest() unit.Bandwidth {
	fastest := unit.Bandwidth(0)
	for _, p := range w.Paths {
		fastest = max(fastest, p.Forward.Rate)
	}
	if w.Shared.Rate > 0 {
		fastest = min(fastest, w.Shared.Rate)
	}
	return fastest
}

// transferLasts bounds a transfer over a path of that rate: what takes five times as long, and some
// seconds more, is a failure.
func transferLasts(rate unit.Bandwidth) time.Duration {
	return (5*rate.TimeFor(transfer) + 20*time.Second).Round(time.Second)
}
