package simrun

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/internal/sim"
	"github.com/tabane/tabane/scenarios"
)

func builtIn(t testing.TB, name string) *scenario.Spec {
	t.Helper()
	var s scenario.Spec
	scenariotest.Decode(t, name, &s)
	return &s
}

// short returns a scenario whose deliveries last at most 4 s.
func short(t testing.TB, name string) *scenario.Spec {
	s := builtIn(t, name)
	for _, traffic := range s.Experiment.Traffic {
		traffic.Duration = 4 * time.Second
	}
	return s
}

func TestWays(t *testing.T) {
	s := builtIn(t, "epe-steady")
	p := newPlan(s, false)
	for _, tt := range []struct {
		transport string
		subflow   int
		want      string
	}{
		{"tcp", 0, "server asbr1 transit-a client-isp client"},
		{"mptcp-epe", 0, "server asbr1 transit-a client-isp client"},
		{"mptcp-epe", 1, "server asbr2 transit-b client-isp client"},
	} {
		path := p.cells.Paths(tt.transport)[tt.subflow]
		nodes := []string{s.Experiment.Server}
		for _, h := range path.Hops {
			nodes = append(nodes, h.To)
		}
		if got := strings.Join(nodes, " "); path.Err != nil || got != tt.want {
			t.Errorf("%s %d goes %q, %v, want %q", tt.transport, tt.subflow, got, path.Err, tt.want)
		}
	}
	// Intermediate links are part of the path only if they are shaped or an event changes them.
	config, err := p.config(result.CellKey{Case: "1.3", Traffic: "bi", Transport: "mptcp-epe"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range config.Links {
		names = append(names, l.Name+" "+l.Rate.String())
	}
	want := []string{"a from transit-a 15Mbit/s", "a from client-isp 15Mbit/s", "b from transit-b 30Mbit/s", "b from client-isp 30Mbit/s"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if c := config.Connections[0]; c.Segment != 1400 || c.Header != 114 || c.Bytes != 100*unit.MB || c.Scheduler != "default" || c.Congestion != "cubic" {
		t.Errorf("connection %+v", c)
	}
}

// TestDirections checks that the profiles of a link are applied to the right directions, whichever
// end of the link is closer to the client.
func TestDirections(t *testing.T) {
	for _, turned := range []bool{false, true} {
		s := builtIn(t, "reseq-buffer")
		want := map[string]float64{"path2 from r2": 1e-4, "path2 from r4": 0, "path1 from r1": 0, "path1 from r3": 0}
		if turned {
			slices.Reverse(s.Links["path2"].Ends)
			want["path2 from r2"], want["path2 from r4"] = 0, 1e-4
		}
		config, err := newPlan(s, false).config(result.CellKey{Case: "p1e-4-65", Traffic: "bulk", Transport: "mptcp"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range config.Links {
			if p, shaped := want[l.Name]; shaped && (l.Loss.P != p || l.Rate != 5*unit.MbitPerSecond) {
				t.Errorf("turned %v: %s loses %v at %s", turned, l.Name, l.Loss.P, l.Rate)
			}
		}
		for _, p := range config.Connections[0].Paths {
			if len(p.Out) != 3 || len(p.Back) != 3 {
				t.Errorf("path %+v", p)
			}
		}
	}
}

func TestNoWay(t *testing.T) {
	for name, spoil := range map[string]func(*scenario.Spec){
		"a node that does not forward": func(s *scenario.Spec) { s.Nodes["r4"].Forwarding = false },
		"a link that leads back":       func(s *scenario.Spec) { s.Links["exit2"].Ends[1].Node = "r2" },
	} {
		t.Run(name, func(t *testing.T) {
			s := builtIn(t, "reseq-delay")
			spoil(s)
			got := Check(s).Error()
			if !strings.Contains(got, `experiment.transports.mptcp.links[1]: there is no way from server to client over link "path2" without path1`) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// Queues with ECN are refused at every place of a scenario, with the path of the key.
func TestMarksAreRefused(t *testing.T) {
	marking := &linkmodel.Queue{Discipline: linkmodel.DisciplineCoDel, ECN: true}
	shape := scenario.Shape{Rate: unit.MbitPerSecond, Buffer: marking}
	for path, spoil := range map[string]func(*scenario.Spec){
		"links.path1.buffer.ecn":         func(s *scenario.Spec) { s.Links["path1"].Shape = shape },
		"links.path1.backward.queue.ecn": func(s *scenario.Spec) { s.Links["path1"].Backward = &linkmodel.Change{Queue: marking} },
		"links.path2.schedule[0].queue.ecn": func(s *scenario.Spec) {
			s.Links["path2"].Schedule = linkmodel.Schedule{{At: time.Second, Change: linkmodel.Change{Queue: marking}}}
		},
		"experiment.cases[0].links.path2.buffer.ecn": func(s *scenario.Spec) { s.Experiment.Cases[0].Links = map[string]scenario.Shape{"path2": shape} },
		"experiment.cases[0].events[0].set.buffer.ecn": func(s *scenario.Spec) {
			s.Experiment.Cases[0].Events = []scenario.Event{{Set: &scenario.LinkSet{Link: "path1", Shape: shape}}}
		},
	} {
		s := builtIn(t, "reseq-delay")
		spoil(s)
		got := Check(s)
		if len(got) != 1 || got[0].Path != path || !strings.Contains(got.Error(), "segments carry no ECN: this needs a lab") {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestRefused(t *testing.T) {
	if got := Check(builtIn(t, "epe-routes")).Error(); !strings.Contains(got, "experiment.kind: the simulator has no BGP") {
		t.Errorf("got %s", got)
	}
	if got := Check(builtIn(t, "webqoe")).Error(); !strings.Contains(got, "experiment.kind: the simulator has no web pages") {
		t.Errorf("got %s", got)
	}
	if got := Check(builtIn(t, "epe-clients")).Error(); !strings.Contains(got, "experiment.transports.tcp-spray.delivery: the simulator has no border routers: this needs a lab") {
		t.Errorf("got %s", got)
	}
	if got := Check(builtIn(t, "epe-lines").ForSimulator()).Error(); !strings.Contains(got, "experiment.transports: the simulator has none") {
		t.Errorf("got %s", got)
	}
	s := builtIn(t, "epe-change")
	s.Sysctls[congestionSysctl] = "bbr"
	c := &s.Experiment.Cases[0]
	asbr, link := scenario.Daemon{Node: "asbr1", Role: "asbr"}, scenario.Port{Node: "transit-a", Interface: "link-a"}
	c.Events = append(c.Events, scenario.Event{Kill: &asbr}, scenario.Event{Start: &asbr}, scenario.Event{Stop: &asbr},
		scenario.Event{Drain: &scenario.Drain{Node: "asbr2"}}, scenario.Event{Flap: &scenario.Flap{Node: "asbr1", Neighbor: "transit-a", Times: 1, Every: time.Second}},
		scenario.Event{Down: &scenario.Port{Node: "asbr1", Interface: "lan"}}, scenario.Event{Down: &link}, scenario.Event{Up: &link})
	want := `experiment.cases[0].events[1].kill: the simulator runs no daemons: this needs a lab
experiment.cases[0].events[2].start: the simulator runs no daemons: this needs a lab
experiment.cases[0].events[3].stop: the simulator runs no daemons: this needs a lab
experiment.cases[0].events[4].drain: the simulator runs no daemons: this needs a lab
experiment.cases[0].events[5].flap: the simulator has no BGP sessions: this needs a lab
experiment.cases[0].events[6].down: the simulator takes down wires only, and this is a port of a switch: it needs a lab
`
	if got := Check(s).Error(); !strings.HasPrefix(got, want) || !strings.Contains(got, `sysctls.net.ipv4.tcp_congestion_control: the simulator knows no congestion control "bbr"`) {
		t.Errorf("got %s", got)
	}
}

// TestSecondLine has a client with a second access link, over which a transport with one link has
// no subflow.
func TestSecondLine(t *testing.T) {
	s := builtIn(t, "reseq-delay")
	second := netip.MustParseAddr("2001:db8:23::2")
	s.Nodes["client"].MPTCP.From = []netip.Addr{second}
	if faults := Check(s); len(faults) > 0 {
		t.Errorf("a line that subflows pass: %v", faults)
	}
	s.Nodes["server"].MPTCP.Announce = nil
	s.Experiment.Transports["mptcp"].Links = []string{"path1"}
	want := "nodes.client.mptcp.from[0]: none of the simulated subflows of transport mptcp passes link exit2, where 2001:db8:23::2 is: name a link on that way in its links, or use a lab"
	if got := Check(s).Error(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestChanges(t *testing.T) {
	s := builtIn(t, "epe-change")
	port := scenario.Port{Node: "client-isp", Interface: "link-b"}
	s.Experiment.Cases[0].Events = append(s.Experiment.Cases[0].Events,
		scenario.Event{After: time.Second, Blackhole: &scenario.Hole{Node: port.Node, Interface: port.Interface, Direction: scenario.In}},
		scenario.Event{After: 2 * time.Second, Clear: &port},
		scenario.Event{After: 3 * time.Second, Flap: &scenario.Flap{Node: port.Node, Interface: port.Interface, Times: 2, Every: time.Second}})
	config, err := newPlan(s, false).config(result.CellKey{Case: "2.1", Traffic: "cbr", Transport: "mptcp-epe"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range config.Changes {
		text := c.At.String() + " " + config.Links[c.Link].Name
		switch {
		case c.Down:
			text += " down"
		case c.Up:
			text += " up"
		default:
			text += " " + c.Rate.String() + " " + c.Queue.Time.String()
		}
		got = append(got, text)
	}
	b, back := "b from transit-b", "b from client-isp"
	want := []string{
		"4s a from client-isp 15Mbit/s 20ms", "4s a from transit-a 15Mbit/s 20ms",
		"5s " + b + " down", "6s " + back + " up", "6s " + b + " up",
		"7s " + back + " down", "7s " + b + " down", "7.5s " + back + " up", "7.5s " + b + " up",
		"8s " + back + " down", "8s " + b + " down", "8.5s " + back + " up", "8.5s " + b + " up",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// TestLimit compares the goodput of a saturated link with the available capacity that the scenario
// computes, to check the header sizes of the simulator.
func TestLimit(t *testing.T) {
	s := builtIn(t, "epe-steady")
	p := newPlan(s, true)
	for _, k := range []result.CellKey{{Case: "1.3", Traffic: "bi", Transport: "tcp"}, {Case: "1.3", Traffic: "bi", Transport: "mptcp-epe"}} {
		run, _, err := p.simulate(context.Background(), k, 0, 1, nil)
		if err != nil || run.Err() != nil {
			t.Fatal(err, run.Err())
		}
		if share := run.Metrics[result.Goodput] / run.Metrics[result.LimitRate]; share < 0.98 || share > 1 {
			t.Errorf("%s delivers %v of its limit", k, share)
		}
	}
}

// TestScenarios runs every scenario on resequencing with Quick and checks its expectations.
func TestScenarios(t *testing.T) {
	for _, name := range scenarios.Names() {
		if !strings.HasPrefix(name, "reseq-") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := Run(context.Background(), Options{Spec: builtIn(t, name), Quick: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Expect) == 0 || result.Backend != Backend {
				t.Errorf("a result of %q with %d expectations", result.Backend, len(result.Expect))
			}
			for _, v := range result.Expect {
				if !v.Holds {
					t.Errorf("%s: %s, want %s", v.Name, v.Got, v.Want)
				}
			}
		})
	}
}

// TestTheSameWhateverIsAtOnce checks that runs do not depend on the number of jobs, and that they
// depend on the seed.
func TestTheSameWhateverIsAtOnce(t *testing.T) {
	s := short(t, "reseq-loss")
	s.Experiment.Cases = s.Experiment.Cases[4:6]
	run := func(jobs int, seed uint64) []result.Run {
		r, err := Run(context.Background(), Options{Spec: s, Trials: 2, Jobs: jobs, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return r.Runs
	}
	one := run(1, 1)
	if diff := cmp.Diff(one, run(3, 1)); diff != "" {
		t.Errorf("three jobs make other runs (-one +three):\n%s", diff)
	}
	if cmp.Equal(one, run(1, 7)) {
		t.Error("another seed makes the same runs")
	}
	if cmp.Equal(one[0].Metrics, one[1].Metrics) {
		t.Error("both trials of a cell are the same")
	}
	if second := run(1, 2); !cmp.Equal(second[0].Metrics, one[1].Metrics) {
		t.Error("the second trial does not have the next seed")
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := short(t, "reseq-loss")
	_, err := Run(ctx, Options{Spec: s, Trials: 100, Progress: func(Event) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestNothingArrives(t *testing.T) {
	s := short(t, "reseq-delay")
	for _, l := range []string{"access1", "access2"} {
		s.Links[l].Loss = &linkmodel.Loss{Kind: linkmodel.Random, P: 1}
	}
	result, err := Run(context.Background(), Options{Spec: s, Trials: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range result.Runs {
		if r.Err() == nil || !strings.Contains(r.Err().Error(), "not a byte arrived") {
			t.Errorf("%s: %v", r.CellKey, r.Err())
		}
	}
	if result.Holds() {
		t.Error("it holds")
	}
}

func axes(t *testing.T, s *scenario.Spec, texts ...string) []Axis {
	t.Helper()
	var list []Axis
	for _, text := range texts {
		a, err := ParseAxis(s, text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	return list
}

func TestParameters(t *testing.T) {
	s := builtIn(t, "reseq-delay")
	values := map[string]string{
		"LINK.rate": "7Mbit/s", "LINK.delay": "33ms", "LINK.jitter": "3ms", "LINK.loss": "25%", "LINK.forward.loss": "ge:1%:20%", "LINK.backward.delay": "3ms", "LINK.discipline": "codel", "LINK.queue": "70ms", "LINK.packets": "7", "scheduler": "round-robin",
		"congestion": "vegas", "window": "70kB", "rbuf": "77kB", "receive_buffer": "unlimited", "segment": "777", "initial_window": "7",
		"delayed_ack": "true", "rack": "true", "min_rto": "777ms", "header": "77", "min_threshold": "7", "at_once": "true", "uncounted": "true", "duration": "7s",
		"beta": "0.5", "overtaken": "7", "own": "true", "ratio": "7:1",
	}
	// Parameters of a scheduler need that scheduler.
	scheduler := map[string]string{"beta": "ecf", "overtaken": "dqj", "own": "dqj", "ratio": "ratio"}
	key := result.CellKey{Case: "d20", Traffic: "bulk", Transport: "mptcp"}
	before, err := newPlan(s, false).config(key, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Parameters() {
		tested := func(name string) bool { return p.Name == name || strings.HasSuffix(p.Name, "."+name) }
		if !strings.HasPrefix(p.Name, linkParameter) && !slices.ContainsFunc(slices.Collect(maps.Keys(values)), tested) {
			t.Errorf("%s is not tested", p.Name)
		}
	}
	for name, value := range values {
		list := axes(t, s, strings.Replace(name, "LINK", "path2", 1)+"="+value)
		c := s.Experiment.Cases[0]
		if needed := scheduler[name]; needed != "" {
			if _, err := at(s, c, list, []string{value}); err == nil || !strings.Contains(err.Error(), name+": is not a parameter of scheduler lowest-rtt") {
				t.Errorf("%s with another scheduler: %v", name, err)
			}
			c.Settings.Scheduler = needed
		}
		unset, err := at(s, c, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		without, err := newPlan(unset, false).config(key, 1)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := at(s, c, list, []string{value})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		after, err := newPlan(changed, false).config(key, 1)
		if err != nil {
			t.Fatal(err)
		}
		if value != field.Unlimited && cmp.Equal(without, after) {
			t.Errorf("%s changes nothing", name)
		}
	}
	again, err := newPlan(s, false).config(key, 1)
	if diff := cmp.Diff(before, again); err != nil || diff != "" {
		t.Errorf("a grid changes the scenario: %v\n%s", err, diff)
	}
}

func TestBadAxes(t *testing.T) {
	s := builtIn(t, "reseq-delay")
	for text, want := range map[string]string{
		"rbfu=1kB":          `did you mean "rbuf"?`,
		"path2.dleay=1ms":   `did you mean "path2.delay"?`,
		"pth2.delay=1ms":    `did you mean "path2"?`,
		"delay=1ms":         `did you mean "access1.delay"?`,
		"rbuf":              "want NAME=VALUE",
		"rbuf=":             "want NAME=VALUE",
		"rbuf=1kB,,2kB":     "a value is empty",
		"rbuf=65kB,65kB":    "given twice",
		"path2.rate=0bit/s": "must be > 0",
		"path2.loss=2":      "want a probability like 0.001",
		"path2.delay=-1ms":  "must be from 0s to 1m0s, got -1ms",
		"path2.delay=soon":  `set path2.delay to "soon"`,
		"segment=9000":      "segments of 9000 bytes do not pass",
		"scheduler=best":    "must be one of",
		"duration=0s":       "must be > 0s",
		"rack=maybe":        "want true or false",
		"path2.packets=0":   "must be > 0",
	} {
		a, err := ParseAxis(s, text)
		if err == nil {
			_, err = Grid{Spec: s, Axes: []Axis{a}, Seeds: 1}.tasks()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func sweep(t *testing.T, s *scenario.Spec, file string, jobs int) SweepResult {
	t.Helper()
	r, err := Sweep(context.Background(), SweepOptions{File: file, Jobs: jobs, Grid: Grid{
		Spec: s, Seeds: 2, Seed: 1, Transport: "mptcp", Axes: axes(t, s, "path2.delay=20ms,50ms", "path2.loss=0,1e-3"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSweepGoesOn truncates the file of a sweep at every kind of place and checks that the next
// sweep completes it to the same file.
func TestSweepGoesOn(t *testing.T) {
	s := short(t, "reseq-delay")
	file := filepath.Join(t.TempDir(), "grid.csv")
	if got := sweep(t, s, file, 1); got != (SweepResult{Rows: 8}) {
		t.Errorf("the first sweep: %+v", got)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	header, row := len(lines[0]), len(lines[1])
	for _, tt := range []struct {
		name string
		left int
		want SweepResult
	}{
		{"all is there", len(whole), SweepResult{Rows: 8, Kept: 8}},
		{"an empty file", 0, SweepResult{Rows: 8}},
		{"half a header", header / 2, SweepResult{Rows: 8, Repaired: true}},
		{"the header", header, SweepResult{Rows: 8}},
		{"half a row", header + row/2, SweepResult{Rows: 8, Repaired: true}},
		{"a row without its end", header + row - 1, SweepResult{Rows: 8, Repaired: true}},
		{"a row", header + row, SweepResult{Rows: 8, Kept: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(file, whole[:tt.left], 0o644); err != nil {
				t.Fatal(err)
			}
			if got := sweep(t, s, file, 3); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, whole) {
				t.Errorf("the file is another: %v\n%s", err, again)
			}
		})
	}
	t.Run("another scenario", func(t *testing.T) {
		other := short(t, "reseq-delay")
		other.Links["path1"].Delay = 21 * time.Millisecond
		if got := sweep(t, other, file, 2); got.Kept != 0 {
			t.Errorf("%d rows of another scenario are taken", got.Kept)
		}
	})
	t.Run("busy", func(t *testing.T) {
		g := Grid{Spec: s, Seeds: 1, Seed: 1}
		held, err := openTable(filepath.Join(t.TempDir(), "held"), g.header())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openTable(held.f.Name(), g.header()); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v", err)
		}
		if err := held.close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("no regular file", func(t *testing.T) {
		g := Grid{Spec: s, Seeds: 1, Seed: 1}
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openTable(fifo, g.header()); !errors.Is(err, ErrNotRegular) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("another file", func(t *testing.T) {
		for _, text := range []string{"a,b\n1,2\n", "hello", string(whole[:header]) + "1,2\n", "\x00\x01"} {
			name := filepath.Join(t.TempDir(), "other")
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Sweep(context.Background(), SweepOptions{File: name, Grid: Grid{
				Spec: s, Seeds: 2, Seed: 1, Transport: "mptcp", Axes: axes(t, s, "path2.delay=20ms,50ms", "path2.loss=0,1e-3"),
			}})
			if after, readErr := os.ReadFile(name); !errors.Is(err, ErrOtherFile) || readErr != nil || string(after) != text {
				t.Errorf("%q: %v, then %q", text, err, after)
			}
		}
	})
}

func TestSummary(t *testing.T) {
	s := short(t, "reseq-delay")
	g := Grid{Spec: s, Seeds: 3, Seed: 1, Transport: "mptcp", Summary: true, Axes: axes(t, s, "path2.loss=0,1e-2")}
	tasks, err := g.tasks()
	if err != nil || len(tasks) != 2 || !slices.Equal(tasks[1].seeds, []uint64{1, 2, 3}) {
		t.Fatalf("tasks %+v, %v", tasks, err)
	}
	row, err := g.run(context.Background(), tasks[1])
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i, name := range g.header() {
		got[name] = row[i]
	}
	if got["seeds"] != "3" || got["path2.loss"] != "1e-2" || got["throughput_after_sd"] == "0" || got["throughput_after_mean"] == "" {
		t.Errorf("row %v", maps.All(got))
	}
}

// BenchmarkSweep simulates 30 s on the topology of paper B, with all metrics enabled.
func BenchmarkSweep(b *testing.B) {
	s := builtIn(b, "reseq-delay")
	p := newPlan(s, false)
	k := result.CellKey{Case: "d50", Traffic: "bulk", Transport: "mptcp"}
	var events uint64
	for b.Loop() {
		config, err := p.config(k, 1)
		if err != nil {
			b.Fatal(err)
		}
		m, err := sim.New(config)
		if err != nil {
			b.Fatal(err)
		}
		r, err := m.Run(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		events += r.Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

// Lateness makes trials differ in which nothing else is random.
func TestLateness(t *testing.T) {
	s := builtIn(t, "reseq-delay")
	p := newPlan(s, true)
	p.lateness = 100 * time.Microsecond
	key := result.CellKey{Case: "d20", Traffic: "bulk", Transport: "mptcp"}
	config, err := p.config(key, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range config.Links {
		if want := (linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: p.lateness}); l.Jitter != want {
			t.Errorf("link %s has jitter %+v", l.Name, l.Jitter)
		}
	}
	on := newPlan(s, true)
	if config, err = on.config(key, 1); err != nil || config.Links[0].Jitter != (linkmodel.Jitter{}) {
		t.Errorf("link %s has jitter %+v that nobody asked for, %v", config.Links[0].Name, config.Links[0].Jitter, err)
	}
}

// TestUse: the transport's setting replaces that of the server's edge.
func TestUse(t *testing.T) {
	for _, tt := range []struct {
		node, transport edge.Use
		want            bool
	}{{"", "", false}, {edge.UseOverflow, "", true}, {edge.UseOverflow, edge.UseAll, false}, {"", edge.UseOverflow, true}} {
		s := builtIn(t, "epe-steady")
		s.Nodes["server"].Edge.MPTCP.Use = tt.node
		key := s.Experiment.Cells()[0]
		for _, k := range s.Experiment.Cells() {
			if tr := s.Experiment.Transports[k.Transport]; tr.MPTCP {
				key, tr.Use = k, tt.transport
				break
			}
		}
		if err := Check(s).Err(); err != nil {
			t.Fatal(err)
		}
		config, err := newPlan(s, true).config(key, 1)
		if err != nil || config.Connections[0].Overflow != tt.want {
			t.Errorf("%+v: %v, %v", tt, config.Connections[0].Overflow, err)
		}
	}
}
