package labrun

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labtest"
	"github.com/tabane/tabane/internal/role"
)

func TestRunClockTakesTheLeastLateSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRunClock()
		begun := time.Now()
		at := make(chan time.Duration)
		go func() {
			now, err := c.until(t.Context(), 250*time.Millisecond)
			if err != nil {
				t.Error(err)
			}
			at <- now
		}()
		time.Sleep(140 * time.Millisecond)
		c.observe(time.Now(), 100*time.Millisecond) // 40 ms late
		time.Sleep(65 * time.Millisecond)
		c.observe(time.Now(), 200*time.Millisecond) // 5 ms late
		if got := c.began().Sub(begun); got != 5*time.Millisecond {
			t.Errorf("the run seems to have begun %s late", got)
		}
		// The wait started from the first estimate.
		if now := <-at; now != 285*time.Millisecond {
			t.Errorf("it is %s", now)
		}
		time.Sleep(time.Second)
		c.observe(time.Now(), 300*time.Millisecond)
		if got := c.began().Sub(begun); got != 5*time.Millisecond {
			t.Errorf("a late sample moves the beginning to %s", got)
		}
	})
}

func TestRunClockIsNotWaitedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := errors.New("over")
		for _, observed := range []bool{false, true} {
			c := newRunClock()
			if observed {
				c.observe(time.Now(), 0)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(ended) })
			if _, err := c.until(ctx, time.Hour); !errors.Is(err, ended) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestSubflows(t *testing.T) {
	start := time.Unix(1000, 0)
	a, b := netip.MustParseAddr("2001:db8::a"), netip.MustParseAddr("2001:db8::b")
	to := func(local netip.Addr, port uint16) pair {
		return pair{netip.AddrPortFrom(local, 80), netip.AddrPortFrom(netip.MustParseAddr("2001:db8::c"), port)}
	}
	at := func(ms int, acked map[pair]uint64) reading {
		return reading{start.Add(time.Duration(ms) * time.Millisecond), acked}
	}
	earlier := to(a, 9)
	readings := []reading{
		at(-50, map[pair]uint64{earlier: 7000}),
		at(50, map[pair]uint64{earlier: 8000, to(a, 1): 1000}),
		at(150, map[pair]uint64{to(a, 1): 2000, to(b, 1): 600}),
		at(250, map[pair]uint64{to(a, 1): 2000, to(b, 1): 600, to(a, 2): 400}),
		at(350, map[pair]uint64{to(a, 2): 100}), // another connection with the same addresses and ports
	}
	want := []result.Subflow{{Name: "2001:db8::b", Bytes: []int64{300, 300, 0}}, {Name: "transit-a", Bytes: []int64{1000, 700, 250}}}
	if diff := cmp.Diff(want, subflows(readings, map[netip.Addr]string{a: "transit-a"}, start, 3)); diff != "" {
		t.Errorf("subflows (-want +got):\n%s", diff)
	}
	if got := subflows(nil, nil, start, 3); got != nil {
		t.Errorf("subflows of nothing: %v", got)
	}
}

func TestSpreadLosesNothing(t *testing.T) {
	intervals := make([]float64, 10)
	spread(intervals, 100, 130*time.Millisecond, 130*time.Millisecond) // no time, no bytes
	spread(intervals, 1000, 130*time.Millisecond, 655*time.Millisecond)
	sum := 0.0
	for _, v := range intervals {
		sum += v
	}
	if math.Abs(sum-1000) > 1e-9 || intervals[0] != 0 || intervals[7] != 0 || intervals[6] == 0 {
		t.Errorf("%v", intervals)
	}
}

func TestDifference(t *testing.T) {
	got := difference([]string{"a", "b", "c", "c"}, []string{"b", "c", "d"})
	if want := "missing a; missing c; too much d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := difference([]string{"a", "b", "c", "d", "e", "f"}, nil); !strings.HasSuffix(got, "missing d; and 2 more") {
		t.Errorf("got %q", got)
	}
}

func happen(t *testing.T, l *lab.Lab, events ...scenario.Event) {
	t.Helper()
	for _, e := range events {
		if _, err := apply(t.Context(), l, e, true); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
	}
}

// reconnecting keeps a connection to the BGP port between two nodes open until cuts is called,
// which returns how often it was reset.
func reconnecting(t *testing.T, l *lab.Lab, from, to, address string) (cuts func() int) {
	t.Helper()
	server := netip.AddrPortFrom(netip.MustParseAddr(address), bgpPort).String()
	var listener net.Listener
	err := netns.Do("tabane-"+l.Name()+"-"+to, func() (err error) {
		listener, err = net.Listen("tcp", server)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			g.Go(func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() })
		}
	})
	n := -1 // the first connection follows no reset
	first := make(chan struct{})
	g.Go(func() {
		for ctx.Err() == nil {
			var conn net.Conn
			err := netns.Do("tabane-"+l.Name()+"-"+from, func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "tcp", server)
				return err
			})
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			if n++; n == 0 {
				close(first)
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, _ = conn.Read(make([]byte, 1))
			stop()
			_ = conn.Close()
		}
	})
	<-first
	return func() int {
		cancel()
		_ = listener.Close()
		g.Wait()
		return n
	}
}

// TestEvents applies all kinds of events and checks their effects on the nodes; then it restores
// the lab.
func TestEvents(t *testing.T) {
	l := start(t, "events", labtest.Routed())
	whole, err := settle(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	carrier := func() string { return labtest.Run(t, l, "b", "cat /sys/class/net/wire/carrier") }
	rate := func(node string) unit.Bandwidth { return labtest.Rate(t, l.Name(), node, "wire") }
	wire := scenario.Port{Node: "a", Interface: "wire"}

	down := scenario.Event{Down: &wire}
	happen(t, l, down)
	if got := carrier(); got != "0" {
		t.Error("b does not see that the wire is down")
	}
	happen(t, l, scenario.Event{Up: &wire})
	if err := labtest.Reach(l.Name(), "a", "b", "2001:db8:1::b"); err != nil {
		t.Errorf("after up: %v", err)
	}
	// The node's static routes are restored with its interface.
	lan := scenario.Port{Node: "c", Interface: "lan"}
	happen(t, l, scenario.Event{Down: &lan}, scenario.Event{Up: &lan})
	if err := labtest.Reach(l.Name(), "c", "a", "2001:db8:1::a"); err != nil {
		t.Errorf("after up: %v", err)
	}

	hole := scenario.Event{Blackhole: &scenario.Hole{Node: "a", Interface: "wire", Direction: scenario.Out}}
	set := scenario.Event{Set: &scenario.LinkSet{Link: "wire", Shape: scenario.Shape{Rate: 5e6}}}
	happen(t, l, hole, set)
	if got := carrier(); got != "1" {
		t.Errorf("the carrier is %s at a black hole", got)
	}
	if out, in := rate("a"), rate("b"); out != 10*unit.MbitPerSecond || in != 5*unit.MbitPerSecond {
		t.Errorf("a sends at %s, b at %s", out, in)
	}
	happen(t, l, scenario.Event{Clear: &wire})
	if got := rate("a"); got != 5*unit.MbitPerSecond {
		t.Errorf("after the hole a sends at %s", got)
	}
	both := scenario.Event{Blackhole: &scenario.Hole{Node: "c", Interface: "lan"}}
	happen(t, l, both, scenario.Event{Clear: &lan})
	if err := labtest.Reach(l.Name(), "c", "a", "2001:db8:1::a"); err != nil {
		t.Errorf("after the hole: %v", err)
	}

	daemon := scenario.Daemon{Node: "b", Role: role.Router}
	kill, stop, again := scenario.Event{Kill: &daemon}, scenario.Event{Stop: &daemon}, scenario.Event{Start: &daemon}
	for _, end := range []scenario.Event{kill, stop} {
		happen(t, l, end)
		if _, err := l.Daemons().Status(t.Context(), scenario.Daemon{Node: "b", Role: role.Router}); err == nil {
			t.Errorf("%+v: it still answers", end)
		}
		if _, err := apply(t.Context(), l, kill, true); err == nil || !strings.Contains(err.Error(), "b (router) does not run") {
			t.Errorf("killed when it is not there: %v", err)
		}
		if err := l.Daemons().Exited(); err != nil {
			t.Errorf("what was ended counts as lost: %v", err)
		}
		happen(t, l, again)
	}
	recorded, err := lab.Processes(l.Name())
	if err != nil || len(recorded) != 1 || !recorded[0].Running {
		t.Errorf("recorded %+v, %v", recorded, err)
	}

	happen(t, l, scenario.Event{Flap: &scenario.Flap{Node: "a", Interface: "wire", Times: 99, Quick: 2, Every: 100 * time.Millisecond}})
	flap := scenario.Event{Flap: &scenario.Flap{Node: "a", Neighbor: "b", Times: 99, Quick: 3, Every: 100 * time.Millisecond}}
	soon, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errors.New("long enough"))
	defer cancel()
	if _, err := apply(soon, l, flap, true); err == nil || !strings.Contains(err.Error(), "flap 1 of 3: ") || !errors.Is(err, context.Cause(soon)) {
		t.Errorf("flap of a session that is not there: %v", err)
	}
	cuts := reconnecting(t, l, "a", "b", "2001:db8:1::b")
	happen(t, l, flap)
	if got := cuts(); got != 3 {
		t.Errorf("%d sessions were cut, want 3", got)
	}

	happen(t, l, down, both, kill)
	if err := l.Links().Set("wire", l.Spec().Links["wire"].Shape); err != nil {
		t.Error(err)
	}
	if err := restore(t.Context(), l, []scenario.Event{down, both, kill}, whole); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Reach(l.Name(), "c", "a", "2001:db8:1::a"); err != nil || carrier() != "1" {
		t.Errorf("after restoring: %v, wire %s", err, carrier())
	}
	opened, err := lab.Open(l.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []scenario.Event{kill, again} {
		if _, err := apply(t.Context(), opened, e, true); !errors.Is(err, lab.ErrNotOurs) {
			t.Errorf("of another's lab: %v", err)
		}
	}
	for want, e := range map[string]scenario.Event{
		`no link "x"`:                      {Set: &scenario.LinkSet{Link: "x"}},
		`node "a" has no interface "eth0"`: {Blackhole: &scenario.Hole{Node: "a", Interface: "eth0"}},
		`node "a" runs no daemon "edge"`:   {Start: &scenario.Daemon{Node: "a", Role: role.Edge}},
		`node "b" runs no daemon "asbr"`:   {Drain: &scenario.Drain{Node: "b"}},
		`no node "z"`:                      {Up: &scenario.Port{Node: "z"}},
		"events of this kind":              {},
	} {
		if _, err := apply(t.Context(), l, e, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// restore reports what is missing if the lab does not return to its previous state.
func TestRestoreFails(t *testing.T) {
	l := start(t, "lost", labtest.Plain())
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("not as it was"))
	err := restore(ctx, l, nil, []string{"b: route 2001:db8::/64"})
	if err == nil || !strings.Contains(err.Error(), "not as it was") {
		t.Errorf("got %v", err)
	}
}

// changing is an experiment in which the wire loses half of its rate, then drops all packets for a
// moment, and the router is killed.
func changing() *scenario.Spec {
	s := labtest.Experiment()
	s.Nodes["b"].Router = labtest.Routed().Nodes["b"].Router
	e := s.Experiment
	e.Trials = 1
	e.Cases = []scenario.Case{{Name: "change", Links: map[string]scenario.Shape{"wire": {Rate: 10e6}}, Events: []scenario.Event{
		{Set: &scenario.LinkSet{Link: "wire", Shape: scenario.Shape{Rate: 5e6}}},
		{After: 400 * time.Millisecond, Blackhole: &scenario.Hole{Node: "b", Interface: "wire", Direction: scenario.Out}},
		{After: 600 * time.Millisecond, Clear: &scenario.Port{Node: "b", Interface: "wire"}},
		{After: 600 * time.Millisecond, Kill: &scenario.Daemon{Node: "b", Role: role.Router}},
	}}}
	e.Traffic = map[string]*scenario.Traffic{"bulk": {Bytes: 100e6, EventAt: time.Second, Quick: 2500 * time.Millisecond}}
	e.Expect = nil
	return s
}

func TestRunWithEvents(t *testing.T) {
	o := runOptions(t, "eventful")
	o.Spec, o.Quick = changing(), true
	var traces []*result.Trace
	o.Progress = func(e Event) {
		if e.Kind == RunDone {
			traces = append(traces, e.Trace)
		}
	}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !outcome.Holds() || len(outcome.Runs) != 2 || len(traces) != 2 {
		t.Fatalf("result %+v", outcome)
	}
	for i, r := range outcome.Runs {
		trace := traces[slices.IndexFunc(traces, func(x *result.Trace) bool { return x.CellKey == r.CellKey })]
		if len(trace.Events) != 4 || trace.Events[0] < time.Second || trace.Events[1] < 1400*time.Millisecond {
			t.Errorf("%s: events at %v", r.CellKey, trace.Events)
		}
		// 5 Mbit/s for 1.5 s less 0.2 s, after 10 Mbit/s for 1 s; the gap is due to the
		// black hole.
		if m := r.Metrics; m[result.GoodputBefore] > 11e6 || m[result.LimitAfter] > 5e6 || m[result.GapAfter] < 0.15 || m[result.ConnectionsLost] != 0 {
			t.Errorf("run %d: %v", i, m)
		}
		if r.Transport != "mptcp" {
			continue
		}
		var brought int64
		for _, f := range trace.Subflows {
			for _, b := range f.Bytes {
				brought += b
			}
		}
		if all := r.Metrics[result.Bytes]; float64(brought) < 0.8*all || float64(brought) > 1.2*all {
			t.Errorf("subflows brought %d of %v bytes", brought, all)
		}
	}
	labtest.NothingLeft(t, o.Name)
}

// A delivery that ends before the case's events are applied is a failed run.
func TestRunEndsBeforeEvents(t *testing.T) {
	t.Setenv(fakeFetch, "garbage")
	o := runOptions(t, "early")
	o.Spec, o.Quick = changing(), true
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range outcome.Runs {
		if r.Err() == nil || r.Metrics[result.ConnectionsLost] != 1 {
			t.Errorf("%s: %v, %v", r.CellKey, r.Err(), r.Metrics)
		}
	}
	labtest.NothingLeft(t, o.Name)
}
