package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

// A route that another program deletes is restored, and a path that changes is installed, at the
// moment of the event: no timer and no comparison with the kernel comes in between, which is being
// made here and does not end.
func TestReactionsWaitForNothing(t *testing.T) {
	run(t, func(r *rig) {
		r.learn(path(onLink))
		r.want("at first", true)
		var installed route.Object
		r.in(func() {
			installed = r.kernel.All()[clientKey].Object
			r.hold = make(chan struct{})
		})
		r.events <- route.Overrun{} // begins a comparison
		time.Sleep(time.Second)
		start := time.Now()
		for range 3 {
			r.in(func() { r.kernel.Remove(clientKey) })
			r.events <- route.ObjectChange{Object: installed, Protocol: route.Edge, Deleted: true}
			r.want("after it was deleted", true)
		}
		r.learn(bgp.UnicastPath{Prefix: client, Number: clientNumber, Withdrawn: true})
		r.want("after it was withdrawn", false)
		r.learn(path(onLink))
		r.want("after it was advertised", true)
		if took := time.Since(start); took > 0 {
			t.Errorf("the reactions took %s", took)
		}
		r.in(func() {
			if r.resync.state == resyncIdle {
				t.Error("the comparison has ended")
			}
		})
		close(r.hold)
	})
}

// never reads no objects until it is closed.
type never chan struct{}

func (n never) DumpEach(route.Protocol, func([]route.Object)) (bool, error) {
	<-n
	return false, nil
}

// static is a reactor whose desired state does not change.
type static struct{}

func (static) Link(string, bool) {}
func (static) Settled() bool     { return false }

// Objects of each kind that another program deletes in a real kernel are restored by the events
// alone: the comparison that would find them never ends.
func TestKernelRepairsByEvents(t *testing.T) {
	ns := netnstest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	var l *Loop
	var other *route.Conn
	if err := netns.Do(ns, func() (err error) {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if other, err = route.Dial(); err != nil {
			return err
		}
		for _, link := range []string{"lan0", "lan1"} {
			if err := other.SetLinkUp(link, true); err != nil {
				return err
			}
		}
		l, err = NewLoop(LoopOptions{Protocol: route.Edge, Log: slog.New(slog.DiscardHandler)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}()
	comparison := make(never)
	l.resync.kernel = comparison
	prefix := netip.MustParsePrefix
	epe := netip.MustParseAddr("2001:db8:1::a")
	objects := []route.Object{
		route.Nexthop{ID: 1 << 30, Link: "lan0", SID: netip.MustParseAddr("fc00:1:1::")},
		route.Route{Table: 101, Dst: prefix("::/0"), Metric: 1<<32 - 1, Kind: route.Unreachable},
		route.Route{Table: 101, Dst: prefix("2001:db8:c::/64"), Metric: 20, NexthopID: 1 << 30},
		route.Route{Table: 101, Dst: prefix("192.0.2.0/24"), Metric: 20, NexthopID: 1 << 30},
		route.Rule{Priority: 1000, From: netip.PrefixFrom(epe, 128), Table: 101},
		route.Rule{Priority: 1001, From: netip.PrefixFrom(epe, 128), Unreachable: true},
		route.Address{Link: "lan0", Prefix: netip.PrefixFrom(epe, 128), Deprecated: true},
	}
	for i, o := range objects {
		objects[i] = o.Normal()
		l.Kernel.Set(o)
	}
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(ns, func() error { return l.Run(ctx, static{}) }) }()
	// missing returns a desired object that the kernel does not have.
	missing := func() route.Object {
		found, err := other.Dump(route.Edge)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if !slices.Contains(found, o) {
				return o
			}
		}
		return nil
	}
	complete := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); missing() != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the kernel has no %v", what, missing())
			}
		}
	}
	complete("at first")
	for _, o := range objects {
		for _, err := range other.Apply([]route.Op{{Protocol: route.Edge, Delete: true, Object: o}}) {
			if err != nil {
				t.Fatalf("delete %v: %v", o, err)
			}
		}
		complete("after the deletion of " + o.String())
	}
	l.Do(ctx, func() {
		if l.resync.state == resyncIdle {
			t.Error("no comparison is being made, or one has ended")
		}
	})
	cancel()
	close(comparison)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// refusing is an extension that cannot start.
type refusing struct{ alone }

var errRefused = errors.New("refused")

func (refusing) start() error { return errRefused }

// A start that fails after the initial state was applied leaves the kernel as it was: empty, or with
// all objects of a previous instance that was killed, the initial ones among them.
func TestFailedStartLeavesNothing(t *testing.T) {
	prefix := netip.MustParsePrefix
	guards := []route.Object{
		route.Route{Table: 101, Dst: prefix("::/0"), Metric: 1<<32 - 1, Kind: route.Unreachable}.Normal(),
		route.Rule{Priority: 901, From: prefix("::/0"), Iif: "wan", Unreachable: true}.Normal(),
	}
	inherited := route.Route{Table: 101, Dst: prefix("2001:db8:c::/64"), Metric: 20, Kind: route.Unreachable}.Normal()
	for _, before := range [][]route.Object{nil, guards, append(slices.Clone(guards), inherited)} {
		ns := netnstest.New(t)
		if err := netns.Do(ns, func() error {
			other, err := route.Dial()
			if err != nil {
				return err
			}
			defer other.Close()
			for _, o := range before {
				if err := errors.Join(other.Apply([]route.Op{{Protocol: route.ASBR, Object: o}})...); err != nil {
					return err
				}
			}
			l, err := NewLoop(LoopOptions{Protocol: route.ASBR, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				return err
			}
			l.more = refusing{}
			for _, o := range guards {
				l.Kernel.Set(o)
			}
			if err := l.Run(t.Context(), static{}); !errors.Is(err, errRefused) {
				t.Errorf("Run: %v", err)
			}
			found, err := other.Dump(route.ASBR)
			if want := len(before) > len(guards); len(found) > 0 != want || want && len(found) != len(before) {
				t.Errorf("with %v before, the kernel has %v", before, found)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// A second daemon with the same route protocol does not start in a network namespace, whatever its
// ports, until the first has ended.
func TestSecondInstance(t *testing.T) {
	ns := netnstest.New(t)
	start := func(p route.Protocol) (d *Daemon, err error) {
		_ = netns.Do(ns, func() error {
			d, err = New(t.Context(), Options{
				Protocol: p, Log: slog.New(slog.DiscardHandler),
				Speaker: bgp.Options{ASN: 65000, RouterID: netip.MustParseAddr("192.0.2.1"), NoListen: true},
			})
			return nil
		})
		return d, err
	}
	first, err := start(route.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start(route.Edge); !errors.Is(err, ErrRunning) {
		t.Errorf("a second daemon: %v, want %v", err, ErrRunning)
	}
	other, err := start(route.Router)
	if err != nil {
		t.Fatalf("a daemon with another protocol: %v", err)
	}
	if err := errors.Join(other.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := start(route.Edge)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
