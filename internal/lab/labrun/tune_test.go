package labrun

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/role"
)

func TestTune(t *testing.T) {
	no := false
	kernel := offers{congestion: []string{"reno", "cubic"}, schedulers: []string{"default", "bpf_rr"}}
	for _, tt := range []struct {
		name      string
		settings  scenario.Settings
		multipath bool
		want      tuning
		err       string
	}{
		{name: "nothing"},
		{
			name: "paper B", multipath: true,
			settings: scenario.Settings{Scheduler: "blest", Congestion: "newreno", Window: 53600, Segment: 1340, DelayedACK: &no, RACK: &no, InitialWindow: 2},
			want: tuning{
				server: map[string]string{congestionKey: "reno", schedulerKey: "default", recoveryKey: "0"},
				out:    scenario.RouteMetrics{Cwnd: 40, InitCwnd: 2}, back: scenario.RouteMetrics{AdvMSS: 1380, QuickACK: true},
				notes: []string{"scheduler blest: the kernel's own, default"},
			},
		},
		{
			name: "one path", settings: scenario.Settings{Scheduler: "ecf", RBuf: 1, Window: 1, Segment: 1340},
			want: tuning{out: scenario.RouteMetrics{Cwnd: 1}, back: scenario.RouteMetrics{AdvMSS: 1352}},
		},
		{
			name: "full segments", settings: scenario.Settings{Window: 14000},
			want: tuning{out: scenario.RouteMetrics{Cwnd: 10}},
		},
		{
			name: "receive buffer", multipath: true, settings: scenario.Settings{ReceiveBuffer: 100 * unit.KB, RBuf: 200 * unit.KB},
			want: tuning{client: map[string]string{receiveKey: "4096 200000 200000"}, back: scenario.RouteMetrics{Window: 100_000}},
		},
		{
			name: "the sender's rule", multipath: true, settings: scenario.Settings{ReceiveBuffer: 300 * unit.KB, RBuf: 200 * unit.KB},
			want: tuning{client: map[string]string{receiveKey: "4096 400000 400000"}, back: scenario.RouteMetrics{Window: 200_000}, notes: []string{"rbuf 200kB: a receive buffer of that size"}},
		},
		{name: "one path first", multipath: true, settings: scenario.Settings{Use: edge.UseOverflow}, want: tuning{use: edge.UseOverflow}},
		{name: "with a memory", multipath: true, settings: scenario.Settings{Use: edge.UseOverflow, Recall: time.Second}, want: tuning{use: edge.UseOverflow, recall: time.Second}},
		{name: "one path", settings: scenario.Settings{Use: edge.UseOverflow}}, // of a case, for a transport without mptcp
		{
			name: "small segments", multipath: true, settings: scenario.Settings{ReceiveBuffer: 100 * unit.KB, Segment: 536},
			want: tuning{client: map[string]string{receiveKey: "4096 298506 298506"}, back: scenario.RouteMetrics{Window: 100_000, AdvMSS: 576}},
		},
		{
			name: "near", multipath: true, settings: scenario.Settings{Scheduler: "lowest-rtt"},
			want: tuning{server: map[string]string{schedulerKey: "default"}, notes: []string{"scheduler lowest-rtt: the kernel's own, default"}},
		},
		{name: "by name", multipath: true, settings: scenario.Settings{Scheduler: "bpf_rr"}, want: tuning{server: map[string]string{schedulerKey: "bpf_rr"}}},
		{
			name: "parameters", multipath: true, settings: scenario.Settings{Scheduler: "bpf_rr", SchedulerOptions: scenario.SchedulerOptions{Beta: 0.5, Ratio: "3:1"}},
			err: "scheduler_options beta, ratio cannot be set: the kernel's schedulers have no parameters; this needs the simulator",
		},
		{
			name: "what there is not", multipath: true, settings: scenario.Settings{Scheduler: "dq", Congestion: "bbr"},
			err: "congestion control \"bbr\" is not available in this kernel, which has reno, cubic\nscheduler \"dq\" is not available in this kernel, which has default, bpf_rr",
		},
	} {
		got, err := tune(tt.settings, tt.multipath, 1400, kernel)
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, m := range []*map[string]string{&tt.want.server, &tt.want.client} {
			if *m == nil {
				*m = map[string]string{}
			}
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(tuning{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestWithoutRACK: a kernel that detects losses by time nevertheless is noted, also for the TCP of
// 2006, which had selective acknowledgments.
func TestWithoutRACK(t *testing.T) {
	no := false
	for release, want := range map[string]bool{"6.18.44-amd64": true, "6.17": true, "7.0.1": true, "6.16.9": false, "5.10.0-1": false, "": false} {
		o := offers{congestion: []string{"reno"}, onlyRACK: onlyRACKIn(release)}
		got, err := tune(scenario.Settings{RACK: &no}, false, 1400, o)
		if err != nil || (len(got.notes) > 0) != want || got.server[recoveryKey] != "0" {
			t.Errorf("%q: notes %q, sysctls %v, %v", release, got.notes, got.server, err)
		}
		old, err := tune(scenario.Settings{RACK: &no, Era: scenario.Era2006}, false, 1400, o)
		if err != nil || (len(old.notes) > 0) != want || old.server["net.ipv4.tcp_sack"] != "1" || old.client["net.ipv4.tcp_max_reordering"] != "127" {
			t.Errorf("%q: notes %q, sysctls %v, %v", release, old.notes, old.server, err)
		}
	}
}

// paths is a scenario with two paths from a server to a client, each via a router of its own.
func paths() *scenario.Spec {
	route := func(dst, via string) scenario.StaticRoute {
		return scenario.StaticRoute{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr(via)}
	}
	on := func(a, b scenario.End) *scenario.Link { return &scenario.Link{Ends: []scenario.End{a, b}} }
	s := &scenario.Spec{
		Name: "paths",
		Nodes: map[string]*scenario.Node{
			"server": {
				Sections: role.Sections{Serve: &traffic.Config{Port: 80}}, Routes: []scenario.StaticRoute{route("2001:db8:c1::/64", "2001:db8:51::2"), route("2001:db8:c2::/64", "2001:db8:52::2")},
				MPTCP: &scenario.MPTCP{Announce: []netip.Addr{netip.MustParseAddr("2001:db8:52::10")}},
			},
			"r1": {Forwarding: true}, "r2": {Forwarding: true},
			"client": {
				Routes: []scenario.StaticRoute{route("2001:db8:51::/64", "2001:db8:c1::2"), route("2001:db8:52::/64", "2001:db8:c2::2")},
				MPTCP:  &scenario.MPTCP{},
			},
		},
		Links: map[string]*scenario.Link{
			"s1": on(labtest.End("server", "p1", "2001:db8:51::10/64"), labtest.End("r1", "s", "2001:db8:51::2/64")),
			"s2": on(labtest.End("server", "p2", "2001:db8:52::10/64"), labtest.End("r2", "s", "2001:db8:52::2/64")),
			"c1": on(labtest.End("r1", "c", "2001:db8:c1::2/64"), labtest.End("client", "p1", "2001:db8:c1::10/64")),
			"c2": on(labtest.End("r2", "c", "2001:db8:c2::2/64"), labtest.End("client", "p2", "2001:db8:c2::10/64")),
		},
		Experiment: &scenario.Experiment{
			Server: "server", Client: "client", Trials: 1, Cases: []scenario.Case{{Name: "one"}},
			Traffic: map[string]*scenario.Traffic{"bulk": {Bytes: 1 * unit.GB, Duration: 800 * time.Millisecond, Quick: 500 * time.Millisecond}},
			Transports: map[string]*scenario.Transport{"mptcp": {
				MPTCP: true, Links: []string{"c1", "c2"}, Settings: scenario.Settings{Congestion: "newreno", Window: 13400, Segment: 1340, Scheduler: "blest"},
			}},
		},
	}
	s.Links["c1"].Rate, s.Links["c2"].Rate = 50*unit.MbitPerSecond, 50*unit.MbitPerSecond
	return s
}

func TestOnKernel(t *testing.T) {
	spec := &scenario.Spec{Experiment: &scenario.Experiment{
		Transports: map[string]*scenario.Transport{
			"tcp": {}, "near": {MPTCP: true, Settings: scenario.Settings{Scheduler: "lowest-rtt"}}, "own": {MPTCP: true, Settings: scenario.Settings{Scheduler: "bpf_rr"}},
		},
		Cases: []scenario.Case{{Name: "a"}, {Name: "b", Settings: scenario.Settings{Scheduler: "blest"}}},
	}}
	got := offers{schedulers: []string{"default", "bpf_rr"}}.instead(spec)
	e := got.Experiment
	if near, own, tcp := e.Transports["near"].Scheduler, e.Transports["own"].Scheduler, e.Transports["tcp"].Scheduler; near != "default" || own != "bpf_rr" || tcp != "" {
		t.Errorf("schedulers %q, %q and %q", near, own, tcp)
	}
	if e.Cases[0].Settings.Scheduler != "" || e.Cases[1].Settings.Scheduler != "default" {
		t.Errorf("cases %+v", e.Cases)
	}
	if spec.Experiment.Transports["near"].Scheduler != "lowest-rtt" || spec.Experiment.Cases[1].Settings.Scheduler != "blest" {
		t.Error("the scenario itself is changed")
	}
	if old := (offers{schedulers: []string{"bpf_rr"}}).instead(spec); old.Experiment.Transports["near"].Scheduler != "lowest-rtt" {
		t.Error("a scheduler that the kernel has not is used")
	}
}

// TestWindow: no subflow of a run has a larger window than the settings allow.
func TestWindow(t *testing.T) {
	o := runOptions(t, "window")
	o.Spec = paths()
	most, subflows := uint32(0), map[netip.Addr]bool{}
	o.Progress = func(e Event) {
		if e.Kind != RunSample {
			return
		}
		err := netns.Do("tabane-"+e.Lab+"-server", func() error {
			d, err := mptcp.DialDiag()
			if err != nil {
				return err
			}
			defer d.Close()
			return d.Sockets(mptcp.IPv6, func(s *mptcp.Socket) {
				if s.Local.Port() == 80 {
					most, subflows[s.Local.Addr()] = max(most, s.Window), true
				}
			})
		})
		if err != nil {
			t.Error(err)
		}
	}
	result, err := Run(t.Context(), o)
	if err != nil || len(result.Runs) != 1 || result.Runs[0].Err() != nil {
		t.Fatalf("%+v, %v", result.Runs, err)
	}
	if most != 10 || len(subflows) != 2 {
		t.Errorf("the largest window was %d segments, want 10; subflows of %v", most, subflows)
	}
	o.Spec.Experiment.Transports["mptcp"].Scheduler = "dq"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `case "one" with transport "mptcp": scheduler "dq" is not available`) {
		t.Errorf("a scheduler that there is not: %v", err)
	}
	o.Spec = paths()
	o.Spec.Nodes["server"].Routes = nil
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `window and initial_window need static routes on node "server"`) {
		t.Errorf("a window without a route: %v", err)
	}
}
