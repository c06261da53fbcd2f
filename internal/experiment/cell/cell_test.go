package cell

import (
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/scenarios"
)

func builtIn(t *testing.T, name string) *scenario.Spec {
	t.Helper()
	var s scenario.Spec
	scenariotest.Decode(t, name, &s)
	return &s
}

// TestWayWithoutTheOthers checks that the path of a subflow avoids the links of the other subflows,
// even if it becomes longer.
func TestWayWithoutTheOthers(t *testing.T) {
	s := &scenario.Spec{Nodes: map[string]*scenario.Node{"s": {}, "x": {Forwarding: true}, "m": {Forwarding: true}, "c": {}}, Links: map[string]*scenario.Link{}}
	for name, ends := range map[string][2]string{"a": {"s", "m"}, "b": {"m", "c"}, "round": {"s", "x"}, "again": {"x", "m"}} {
		s.Links[name] = &scenario.Link{Ends: []scenario.End{{Node: ends[0]}, {Node: ends[1]}}}
	}
	n := newNetwork(s)
	for _, tt := range []struct {
		avoid []string
		want  []Hop
	}{
		{nil, []Hop{{"a", "s", "m"}, {"b", "m", "c"}}},
		{[]string{"a"}, []Hop{{"round", "s", "x"}, {"again", "x", "m"}, {"b", "m", "c"}}},
	} {
		got, err := n.over("s", "c", "b", tt.avoid)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("without %v: %v, %v, want %v", tt.avoid, got, err, tt.want)
		}
	}
}

// TestCells: every cell of every scenario is translated: the payload goes between server and
// client, each path begins at the sender and ends at the receiver, and passes its own link and none
// of the others.
func TestCells(t *testing.T) {
	for _, name := range scenarios.Names() {
		spec := builtIn(t, name)
		if spec.Experiment == nil {
			continue
		}
		cells := New(spec, true)
		for _, k := range spec.Experiment.Cells() {
			c, err := cells.Cell(k)
			if err != nil {
				t.Errorf("%s %s: %v", name, k, err)
				continue
			}
			if c.Sender == c.Receiver || c.Traffic.Upload != (c.Sender == spec.Experiment.Client) || len(c.Phases) == 0 || !c.Own().Own {
				t.Errorf("%s %s: %s to %s, %d phases", name, k, c.Sender, c.Receiver, len(c.Phases))
			}
			for _, x := range c.Connections {
				ends := [2]string{spec.Experiment.Server, x.Client}
				if c.Traffic.Upload {
					ends[0], ends[1] = ends[1], ends[0]
				}
				for _, p := range x.Paths {
					if p.Err != nil {
						continue // of a network with other routes than forwarding nodes
					}
					var links []string
					at := ends[0]
					for _, h := range p.Hops {
						if h.From != at {
							t.Errorf("%s %s: %v has a gap at %s", name, k, p.Hops, at)
						}
						at = h.To
						links = append(links, h.Link)
					}
					others := slices.ContainsFunc(x.Transport.Links, func(l string) bool { return l != p.Link && slices.Contains(links, l) })
					if at != ends[1] || others || !slices.Contains(links, p.Link) {
						t.Errorf("%s %s over %s: %v", name, k, p.Link, p.Hops)
					}
				}
			}
		}
	}
	if _, err := New(builtIn(t, "epe-steady"), true).Cell(result.CellKey{Case: "none"}); err == nil {
		t.Error("a cell that is not one of the experiment's is translated")
	}
}

// TestDelivery: what a cell delivers, until when, and when its events are.
func TestDelivery(t *testing.T) {
	s := builtIn(t, "epe-change")
	k := s.Experiment.Cells()[0]
	traffic := &scenario.Traffic{Rate: 8 * unit.MbitPerSecond, Duration: 20 * time.Second, Quick: 5 * time.Second, EventAt: 3 * time.Second}
	s.Experiment.Traffic[k.Traffic] = traffic
	s.Experiment.Cases[0].Events = []scenario.Event{{After: 2 * time.Second}}
	for quick, want := range map[bool]time.Duration{false: 20 * time.Second, true: 5 * time.Second} {
		c, err := New(s, quick).Cell(k)
		if err != nil || c.Limit != want || c.Bytes != unit.Size(1e6*want.Seconds()) || c.Events[0].At != 5*time.Second {
			t.Errorf("quick %t: %+v, %v", quick, c, err)
		}
	}
	*traffic = scenario.Traffic{Bytes: 1000, Objects: 3, EventAt: 3 * time.Second, Upload: true}
	c, err := New(s, false).Cell(k)
	if err != nil || c.Limit != 0 || c.Bytes != 3000 || c.Sender != s.Experiment.Client {
		t.Errorf("%+v, %v", c, err)
	}
	if took, known := c.TransferTime(); !known || took <= 0 {
		t.Errorf("takes %s, %t", took, known)
	}
}

// TestConnections: those beside that of the cell are with their clients, settings and times, and
// have a side for each client; those without a client are of the cell's transport.
func TestConnections(t *testing.T) {
	s := builtIn(t, "cc-fairness")
	e := s.Experiment
	k := e.Cells()[0]
	i := slices.IndexFunc(e.Cases[0].Connections, func(x scenario.Connection) bool { return !x.Own() })
	if i < 0 {
		t.Fatal("the first case has no neighbor")
	}
	other := e.Cases[0].Connections[i]
	other.Number, other.Start, other.Stop, other.Congestion = 3, time.Second, time.Minute, "newreno"
	e.Cases[0].Connections = []scenario.Connection{other, {Number: 2}}
	c, err := New(s, false).Cell(k)
	if err != nil || len(c.Beside()) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	if x := c.Beside()[0]; x.Own || x.Client != other.Client || x.Count != 3 || x.Start != time.Second || x.Stop != time.Minute ||
		x.Settings.Congestion != "newreno" || len(x.Paths) != len(other.Links) || x.Paths[0].Err != nil {
		t.Errorf("the neighbor's: %+v", x)
	}
	if x := c.Beside()[1]; !x.Own || x.Client != e.Client || x.Count != 2 || x.Transport != c.Own().Transport || x.Stop != 0 {
		t.Errorf("the cell's: %+v", x)
	}
	sides, of := c.Sides()
	if len(sides) != 2 || sides[0].Connections != 3 || sides[1].Connections != 3 || !slices.Equal(of, []int{0, 1, 0}) {
		t.Errorf("sides %+v, of %v", sides, of)
	}
}

// TestMaxSegment: a full segment passes every link on the paths, and without any one of the default
// MTU.
func TestMaxSegment(t *testing.T) {
	s := builtIn(t, "epe-steady")
	k := result.CellKey{Case: "1.3", Traffic: "bi", Transport: "mptcp-epe"}
	segment := func() int {
		c, err := New(s, false).Cell(k)
		if err != nil {
			t.Fatal(err)
		}
		return c.MaxSegment(c.Own())
	}
	own := segment()
	c, err := New(s, false).Cell(k)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range c.Own().Paths[0].Hops {
		before := s.Links[h.Link].MTU
		s.Links[h.Link].MTU = 1400
		if got := segment(); got != own-100 {
			t.Errorf("with an MTU of 1400 on %s: %d, without %d", h.Link, got, own)
		}
		s.Links[h.Link].MTU = before
	}
	if got := c.MaxSegment(&Connection{Transport: c.Own().Transport}); got != own {
		t.Errorf("without paths: %d, want %d", got, own)
	}
}

// TestProfile: each end of a link has the profile of what it sends.
func TestProfile(t *testing.T) {
	s := builtIn(t, "reseq-delay")
	c, err := New(s, false).Cell(s.Experiment.Cells()[0])
	if err != nil {
		t.Fatal(err)
	}
	forward, backward := linkmodel.Profile{Delay: time.Millisecond}, linkmodel.Profile{Delay: time.Second}
	h := c.Own().Paths[0].Hops[0]
	if s.Links[h.Link].Ends[0].Node != h.From {
		h = h.Back()
	}
	for want, h := range map[linkmodel.Profile]Hop{forward: h, backward: h.Back()} {
		if got := Profile(s, scenario.ShapeOf(forward, backward), h); got != want {
			t.Errorf("%v: delay %s, want %s", h, got.Delay, want.Delay)
		}
	}
}
