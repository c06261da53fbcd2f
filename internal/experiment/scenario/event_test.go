package scenario

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/experiment/result"
)

// withEvents is the shipped scenario with an event in its first case.
func withEvents(t *testing.T, events ...Event) *Spec {
	s := steady(t)
	e := s.Experiment
	e.Traffic["bi"].EventAt, e.Traffic["cbr"].EventAt = 4*time.Second, 4*time.Second
	e.Cases[0].Events = events
	return s
}

func TestCheckEvents(t *testing.T) {
	port, asbr := &Port{"transit-a", "link-a"}, &Daemon{"asbr1", "asbr"}
	down, up := Event{Down: port}, Event{Up: port}
	set := func(after time.Duration) Event {
		return Event{After: after, Set: &LinkSet{Link: "a", Shape: Shape{Rate: 15e6}}}
	}
	flap := func(f Flap) Event { return Event{Flap: &f} }
	const cases = "experiment.cases[0].events"
	const kinds = ": must be exactly one of set, down, up, blackhole, clear, kill, stop, start, drain, advertise and flap"
	for _, tt := range []struct {
		name   string
		events []Event
		spoil  func(*Experiment)
		want   string
	}{
		{"each kind", []Event{set(0), down, up, {Blackhole: &Hole{"transit-a", "link-a", Out}}, {Clear: port}, {Kill: asbr}, {Start: asbr}, {Stop: asbr},
			flap(Flap{Node: "transit-a", Neighbor: "asbr1", Times: 5, Every: 200 * time.Millisecond})}, nil, ""},
		{"remaining links", []Event{down}, func(e *Experiment) { e.Cases[0].Remaining = []string{"b"} }, ""},
		{"no kind", []Event{{}}, nil, cases + "[0]" + kinds},
		{"two kinds", []Event{{Down: port, Kill: asbr}}, nil, cases + "[0]" + kinds + ", got down, kill"},
		{"negative time", []Event{set(-time.Second)}, nil, cases + "[0].after: must not be negative, got -1s"},
		{"times that fall", []Event{set(2 * time.Second), set(time.Second)}, nil, cases + "[1].after: must not be before the event above, at 2s, got 1s"},
		{"unknown link", []Event{{Set: &LinkSet{Link: "c"}}}, nil, cases + `[0].set.link: link "c" is not in links`},
		{"impossible shape", []Event{{Set: &LinkSet{Link: "a", Shape: Shape{Rate: -1}}}}, nil, cases + "[0].set.rate: must not be negative, got -1bit/s"},
		{"unknown node", []Event{{Down: &Port{"transit-c", "link-a"}}}, nil, cases + `[0].down.node: node "transit-c" is not in nodes`},
		{"unknown interface", []Event{{Down: &Port{"transit-a", "eth0"}}}, nil, cases + `[0].down.interface: node "transit-a" has no interface "eth0"; it has csp, link-a`},
		{"up that is not down", []Event{up}, nil, cases + `[0].up: interface "link-a" of node "transit-a" is not down`},
		{"down twice", []Event{down, down}, nil, cases + `[1].down: interface "link-a" of node "transit-a" already is down`},
		{"a direction that there is not", []Event{{Blackhole: &Hole{"transit-a", "link-a", "sideways"}}}, nil, cases + `[0].blackhole.direction: must be out, in or both, got "sideways"`},
		{"clear without a hole", []Event{{Clear: port}}, nil, cases + `[0].clear: interface "link-a" of node "transit-a" is not a black hole`},
		{"unknown role", []Event{{Kill: &Daemon{"asbr1", "frr"}}}, nil, cases + `[0].kill.role: must be one of ` + strings.Join(Roles(), ", ") + `, got "frr"`},
		{"role of another node", []Event{{Stop: &Daemon{"asbr1", "edge"}}}, nil, cases + `[0].stop.role: node "asbr1" runs no edge`},
		{"killed twice", []Event{{Kill: asbr}, {Stop: asbr}}, nil, cases + `[1].stop: asbr of node "asbr1" has ended already`},
		{"start of what runs", []Event{{Start: asbr}}, nil, cases + `[0].start: asbr of node "asbr1" has not been killed or stopped`},
		{"drained twice", []Event{{Drain: &Drain{Node: "asbr1"}}, {Drain: &Drain{Node: "asbr1"}}}, nil, cases + `[1].drain: node "asbr1" is drained already`},
		{"drained after its death", []Event{{Kill: asbr}, {Drain: &Drain{Node: "asbr1"}}}, nil, cases + `[1].drain: asbr of node "asbr1" has ended already`},
		{"drained after another start", []Event{{Drain: &Drain{Node: "asbr1"}}, {Kill: asbr}, {Start: asbr}, {Drain: &Drain{Node: "asbr1"}}}, nil, ""},
		{"drain of another role", []Event{{Drain: &Drain{Node: "server", Wait: -1}}}, nil,
			cases + "[0].drain.node: node \"server\" runs no asbr\n" + cases + "[0].drain.wait: must not be negative, got -1ns"},
		{"advertise", []Event{{Advertise: &Advertise{Node: "transit-a", Prefixes: []netip.Prefix{netip.MustParsePrefix("::/0")}, ASPath: []uint32{65000}}}}, nil, ""},
		{"advertise nothing", []Event{{Advertise: &Advertise{Node: "asbr1", ASPath: []uint32{0}}}}, nil,
			cases + "[0].advertise.prefixes: must name at least one prefix\n" + cases + "[0].advertise.as_path: AS numbers must be > 0, got [0]\n" +
				cases + `[0].advertise.node: node "asbr1" runs no router`},
		{"advertise what is advertised", []Event{
			{Advertise: &Advertise{Node: "client-isp", Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:c::/64"), netip.MustParsePrefix("::/0")}}},
			{Advertise: &Advertise{Node: "client-isp", Prefixes: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("10.0.0.1/8")}}}}, nil,
			cases + "[0].advertise.prefixes[0]: node \"client-isp\" originates 2001:db8:c::/64 already\n" +
				cases + "[1].advertise.prefixes[1]: must be an IP prefix without host bits, got 10.0.0.1/8\n" +
				cases + "[1].advertise.prefixes[0]: node \"client-isp\" originates ::/0 already"},
		{"flap of nothing", []Event{flap(Flap{Node: "transit-a", Times: 1, Every: time.Second})}, nil, cases + "[0].flap: must have either interface or neighbor"},
		{"flap of impossible numbers", []Event{flap(Flap{Node: "transit-a", Interface: "link-a", Neighbor: "asbr1", Quick: 2})}, nil,
			cases + "[0].flap: must have either interface or neighbor\n" + cases + "[0].flap.times: must be 1 to 1000, got 0\n" +
				cases + "[0].flap.quick: must be 1 to times (0), got 2\n" + cases + "[0].flap.every: must be at least 100ms, got 0s"},
		{"flap with itself", []Event{flap(Flap{Node: "transit-a", Neighbor: "transit-a", Times: 1, Every: time.Second})}, nil,
			cases + `[0].flap.neighbor: must be another node, got "transit-a"`},
		{"remaining links that there are not", []Event{down}, func(e *Experiment) {
			e.Cases[0].Remaining, e.Cases[1].Remaining = []string{"c", "b", "b"}, []string{"b"}
		},
			"experiment.cases[0].remaining[0]: link \"c\" is not in links\nexperiment.cases[0].remaining[2]: link \"b\" is named twice\n" +
				"experiment.cases[1].remaining: has no effect without events"},

		{"no time", []Event{down}, func(e *Experiment) { e.Traffic["bi"].EventAt = 0 },
			"experiment.traffic.bi.event_at: must be at least 1s where cases have events: before, connections and subflows are still being established; got 0s"},
		{"time without events", nil, func(e *Experiment) { e.Traffic["bi"].EventAt = 0 }, "experiment.traffic.cbr.event_at: has no effect: no case has events"},
		{"after a constant rate", []Event{set(26 * time.Second)}, func(e *Experiment) {
			e.Traffic["bi"].EventAt, e.Traffic["bi"].Bytes, e.Traffic["bi"].Quick, e.Traffic["cbr"].Quick = time.Second, 1e9, time.Minute, time.Minute
		},
			cases + `[0]: must be over before traffic "cbr" ends, after 30s: is at 30s`},
		{"after the last byte", []Event{set(11 * time.Second)}, func(e *Experiment) { e.Traffic["bi"].Quick, e.Traffic["cbr"].Quick = time.Minute, time.Minute },
			cases + `[0]: must be over before traffic "bi" can end, after 14.419s: is at 15s`},
		{"after a quick pass", []Event{flap(Flap{Node: "transit-a", Interface: "link-a", Times: 9, Every: time.Second, Quick: 6})}, func(e *Experiment) { e.Traffic["bi"].Quick = time.Minute },
			cases + `[0]: must be over before traffic "cbr" ends in a quick pass, after 10s: is at 10s`},
		{"long enough by the case", []Event{flap(Flap{Node: "transit-a", Neighbor: "asbr1", Times: 100, Every: time.Second, Quick: 3})}, func(e *Experiment) {
			e.Cases[0].Duration, e.Cases[0].Trials = 2*time.Minute, 1
		}, ""},
		{"after the case's deliveries", []Event{flap(Flap{Node: "transit-a", Neighbor: "asbr1", Times: 100, Every: time.Second, Quick: 3})}, func(e *Experiment) {
			e.Cases[0].Duration = 104 * time.Second
		}, cases + `[0]: must be over before traffic "bi" ends, after 1m44s: is at 1m44s` + "\n" +
			cases + `[0]: must be over before traffic "cbr" ends, after 1m44s: is at 1m44s`},
		{"impossible duration and trials", []Event{down}, func(e *Experiment) { e.Cases[0].Duration, e.Cases[0].Trials = -time.Second, -1 },
			"experiment.cases[0].duration: must not be negative, got -1s\nexperiment.cases[0].trials: must not be negative, got -1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withEvents(t, tt.events...)
			if tt.spoil != nil {
				tt.spoil(s.Experiment)
			}
			if diff := cmp.Diff(strings.Split(tt.want, "\n"), strings.Split(s.Check().Error(), "\n")); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCaseOverridesTraffic(t *testing.T) {
	e := steady(t).Experiment
	long := &e.Cases[0]
	long.Duration, long.Trials = time.Hour, 7
	for _, name := range []string{"bi", "cbr"} {
		if own := e.TrafficIn(*long, name); own.TimeLimit(false) != time.Hour || own.TimeLimit(true) != e.Traffic[name].Quick {
			t.Errorf("%s lasts %s, quick %s", name, own.TimeLimit(false), own.TimeLimit(true))
		}
		if e.TrafficIn(e.Cases[1], name) != e.Traffic[name] || e.Traffic[name].Duration == time.Hour {
			t.Errorf("%s is another in other cases", name)
		}
	}
	if took, known := result.TransferTime(e.TrafficIn(*long, "bi").Bytes, []result.Phase{{Limits: result.Limits{Links: 1e9}}}); !known || took < time.Hour {
		t.Errorf("the download is over after %s", took)
	}
	for _, tt := range []struct {
		c     Case
		asked int
		quick bool
		want  int
	}{{*long, 0, false, 7}, {*long, 2, false, 2}, {*long, 2, true, 2}, {*long, 0, true, 1}, {e.Cases[1], 0, false, e.Trials}} {
		if got := e.TrialsOf(tt.c, tt.asked, tt.quick); got != tt.want {
			t.Errorf("case %s, asked for %d, quick %v: %d trials, want %d", tt.c.Name, tt.asked, tt.quick, got, tt.want)
		}
	}
}
