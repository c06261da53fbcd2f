package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
)

// rig is a daemon's loop between a made-up speaker, kernel and machine.
type rig struct {
	*Daemon
	t      *testing.T
	mu     sync.Mutex    // of the kernel: the background reads it
	hold   chan struct{} // if set, the kernel is read once it is closed
	kernel *routetest.Kernel
	// dumpErr and linksErr, when set, are what reading the kernel gives; reads counts both, dumps
	// those of objects.
	dumpErr, linksErr error
	reads, dumps      int
	table             resolved
	resolveErr        error
	learned           chan []bgp.Event
	events            chan route.Event

	links    map[string]bool
	settled  int
	connects int // calls of connect
	learnt   int
	finished chan error
	slow     func(method string) // unless nil, called in BGP and Settled
}

// Apply, DumpEach, Links and NexthopTo are the kernel's.
func (r *rig) Apply(ops []route.Op) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kernel.Apply(ops)
}

func (r *rig) DumpEach(p route.Protocol, each func([]route.Object)) (bool, error) {
	if r.hold != nil {
		<-r.hold
	}
	r.mu.Lock()
	r.reads++
	r.dumps++
	objects, err := r.kernel.Dump(p), r.dumpErr
	r.mu.Unlock()
	if err != nil {
		return false, err
	}
	each(objects)
	return true, nil
}

func (r *rig) Links() ([]route.Link, error) {
	r.reads++
	return []route.Link{{Index: 2, Name: "lan", Up: true}}, r.linksErr
}

func (r *rig) NexthopTo(dst netip.Addr) (netip.Addr, string, error) {
	if r.resolveErr != nil {
		return netip.Addr{}, "", r.resolveErr
	}
	return r.table.NexthopTo(dst)
}

// Events and Err are the watcher's.
func (r *rig) Events() <-chan route.Event { return r.events }
func (r *rig) Err() error                 { return errors.New("closed") }

// silent is a watcher without events.
type silent struct{}

func (silent) Events() <-chan route.Event { return nil }
func (silent) Err() error                 { return nil }

// BGP, Link and Settled are the machine's.
func (r *rig) BGP(events []bgp.Event) {
	if r.learnt += len(events); r.slow != nil {
		r.slow("BGP")
	}
}
func (r *rig) Link(name string, up bool) { r.links[name] = up }
func (r *rig) Settled() bool {
	if r.settled++; r.slow != nil {
		r.slow("settled")
	}
	return false
}

// run starts the loop in a synctest bubble. It ends with the test.
func run(t *testing.T, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, kernel: &routetest.Kernel{}, table: resolved{onLink: {link: "lan"}},
			learned: make(chan []bgp.Event), events: make(chan route.Event), links: map[string]bool{}, finished: make(chan error, 1),
		}
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		r.Daemon = extend(newLoop(LoopOptions{Protocol: route.Edge, Log: log}, r, r, r), r)
		r.connect, r.up["rr"] = func() { r.connects++ }, false
		r.startTimers(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		r.reactor, r.inputs, r.apply = r, r.learned, r.learner(r)
		go func() { r.finished <- r.loop(ctx, r, silent{}) }()
		test(r)
		cancel()
		if err := <-r.finished; err != nil {
			t.Error(err)
		}
		r.stopTimers()
	})
}

func (r *rig) learn(events ...bgp.Event) {
	r.learned <- events
	synctest.Wait()
}

// in runs f in the loop, once that has nothing else to do: all of the rig is the loop's.
func (r *rig) in(f func()) {
	r.t.Helper()
	synctest.Wait()
	if !r.Do(context.Background(), f) {
		r.t.Fatal("the loop has ended")
	}
}

var clientKey = route.Route{Dst: client, Metric: unicastMetric}.Key()

func (r *rig) want(what string, there bool) {
	r.t.Helper()
	r.in(func() {
		if o, ok := r.kernel.All()[clientKey]; ok != there {
			r.t.Errorf("%s: the kernel has %v, want it there: %t", what, o.Object, there)
		}
	})
}

// clientNumber is the number of client, beyond those of large tables.
const clientNumber = 50_000

func path(hop netip.Addr) bgp.UnicastPath {
	return bgp.UnicastPath{Prefix: client, Number: clientNumber, NextHop: hop}
}

func TestRefusedChangesAreRetried(t *testing.T) {
	for _, refusal := range []error{unix.ENOMEM, unix.EBUSY, unix.ENOBUFS, unix.EINTR} {
		t.Run(refusal.Error(), func(t *testing.T) {
			run(t, func(r *rig) {
				r.in(func() { r.kernel.Fault = func(route.Op) error { return refusal } })
				r.learn(path(onLink))
				r.want("refused", false)
				r.in(func() {
					if r.settled == 0 {
						t.Error("Settled was not called")
					}
				})
				time.Sleep(3 * time.Second)
				r.want("still refused", false)
				r.in(func() {
					if tries := len(r.kernel.Log); tries < 4 || tries > 20 {
						t.Errorf("%d attempts in three seconds", tries)
					}
					r.kernel.Fault = nil
				})
				time.Sleep(retryMost + time.Second)
				r.want("accepted", true)
				r.in(func() {
					if r.retry.pause != 0 {
						t.Errorf("the pause is %s after a success", r.retry.pause)
					}
				})
			})
		})
	}
}

func TestLostEventsCauseResync(t *testing.T) {
	run(t, func(r *rig) {
		r.learn(path(onLink))
		r.want("at first", true)
		r.in(func() { r.kernel.Remove(clientKey); clear(r.links) })
		r.events <- route.Overrun{}
		r.want("after an overrun", true)
		r.in(func() {
			if !r.links["lan"] {
				t.Error("the links were not read again")
			}
		})
	})
}

func TestFailedReadsAreRetried(t *testing.T) {
	for name, fail := range map[string]func(*rig, error){
		"objects": func(r *rig, err error) { r.dumpErr = err },
		"links":   func(r *rig, err error) { r.linksErr = err },
		"ways":    func(r *rig, err error) { r.resolveErr = err },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *rig) {
				r.learn(path(onLink))
				r.want("at first", true)
				r.in(func() { fail(r, unix.ENOBUFS) })
				r.events <- route.Overrun{}
				r.want("nothing is thrown away in doubt", true)
				r.in(func() {
					if r.Kernel.Pending() != 0 {
						t.Errorf("%d objects are to change", r.Kernel.Pending())
					}
					r.kernel.Remove(clientKey)
					fail(r, nil)
				})
				time.Sleep(retryFirst + time.Millisecond)
				r.want("read again", true)
				var reads int
				r.in(func() { reads = r.reads })
				time.Sleep(resyncEvery / 2)
				r.in(func() {
					if r.reads != reads {
						t.Errorf("it is read %d times more", r.reads-reads)
					}
				})
			})
		})
	}
}

func TestUnresolvedNextHopKeepsTheOldRoute(t *testing.T) {
	run(t, func(r *rig) {
		r.in(func() { r.resolveErr = unix.ENOMEM })
		r.learn(path(onLink))
		r.want("the way is unknown", false)
		r.in(func() { r.resolveErr = nil })
		time.Sleep(retryFirst + time.Millisecond)
		r.want("the way is known", true)
		// A next hop that cannot be resolved yet: the old route stays.
		r.in(func() { r.resolveErr = unix.ENOMEM })
		r.learn(path(far))
		r.want("the new next hop cannot be resolved", true)
		r.in(func() { r.resolveErr = nil })
		time.Sleep(time.Second)
		r.want("the next hop is unreachable", false)
	})
}

func TestNothingIsSweptWithoutASession(t *testing.T) {
	run(t, func(r *rig) {
		stale := route.Route{Table: 7, Dst: client, Kind: route.Unreachable}
		r.in(func() {
			r.kernel.Put(route.Edge, stale)
			if err := r.Kernel.Resync(); err != nil {
				t.Error(err)
			}
		})
		there := func(what string, want bool) {
			t.Helper()
			r.in(func() {
				if _, ok := r.kernel.All()[stale.Key()]; ok != want {
					t.Errorf("%s: route of the previous instance present: %t", what, ok)
				}
			})
		}
		time.Sleep(3 * sweepAfter)
		there("no session", true)
		r.learn(bgp.Session{Neighbor: "rr", Up: true})
		time.Sleep(sweepQuiet - time.Second)
		there("the session is young", true)
		time.Sleep(2 * time.Second)
		there("the session is up", false)
	})
}

// TestKernelConverges: whatever is refused, lost and changed from outside, the kernel has what the
// last path says once the faults are over.
func TestTheKernelEndsUpAsWanted(t *testing.T) {
	faults := []error{nil, unix.ENOMEM, unix.EBUSY, unix.ENOBUFS}
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 30).Draw(rt, "steps")
		fault := rapid.SampledFrom(faults)
		run(t, func(r *rig) {
			r.in(func() {
				r.table[far] = struct {
					gateway netip.Addr
					link    string
				}{igp, "lan"}
			})
			there := false
			for _, step := range seed {
				switch step {
				case 0, 1:
					r.learn(path(onLink))
					there = true
				case 2:
					r.learn(path(far))
					there = true
				case 3:
					r.learn(bgp.UnicastPath{Prefix: client, Number: clientNumber, Withdrawn: true})
					there = false
				case 4:
					refused := fault.Draw(rt, "refused")
					r.in(func() { r.kernel.Fault = func(route.Op) error { return refused } })
				case 5:
					err := fault.Draw(rt, "dump")
					r.in(func() { r.dumpErr = err })
				case 6:
					err := fault.Draw(rt, "way")
					r.in(func() { r.resolveErr = err })
				case 7:
					r.in(func() { r.kernel.Remove(clientKey) })
					r.events <- route.Overrun{}
				case 8:
					r.events <- route.LinkChange{Link: route.Link{Name: "lan", Up: true}}
				case 9:
					time.Sleep(time.Second)
				}
			}
			r.in(func() { r.kernel.Fault, r.dumpErr, r.resolveErr = nil, nil, nil })
			time.Sleep(resyncEvery + retryMost)
			r.want("in the end", there)
			r.in(func() {
				if r.Kernel.Pending() != 0 {
					rt.Errorf("%d objects are pending", r.Kernel.Pending())
				}
			})
		})
	})
}

func TestTheLoopEndsWithItsSources(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"speaker": func(r *rig) { close(r.learned) },
		"watcher": func(r *rig) { close(r.events) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *rig) {
				end(r)
				if err := <-r.finished; err == nil {
					t.Error("no error")
				}
				r.finished <- nil
			})
		})
	}
}

func TestChangeSettlesAndDoDoesNot(t *testing.T) {
	run(t, func(r *rig) {
		settled := func() (n int) { r.in(func() { n = r.settled }); return n }
		before := settled()
		if n := settled(); n != before {
			t.Error("looking settles")
		}
		r.Change(context.Background(), func() {})
		if n := settled(); n != before+1 {
			t.Errorf("a change settled %d times", n-before)
		}
	})
}

// An object that another program deletes is restored although the kernel cannot be read; one of
// another protocol is left alone.
func TestDeletedObjectIsRestored(t *testing.T) {
	for _, o := range []route.Object{
		route.Rule{Priority: 1000, From: netip.MustParsePrefix("2001:db8::1/128"), Table: 101},
		route.Route{Table: 101, Dst: client, Kind: route.Unreachable},
		route.Nexthop{ID: 7, Link: "lan"},
		route.Address{Link: "lan", Prefix: netip.MustParsePrefix("2001:db8::1/128")},
	} {
		run(t, func(r *rig) {
			o := o.Normal()
			r.Change(context.Background(), func() { r.Kernel.Set(o) })
			protocol := r.options.Protocol
			r.in(func() {
				r.kernel.Remove(o.Key())
				r.dumpErr = unix.ENOBUFS
			})
			r.events <- route.ObjectChange{Object: o, Protocol: protocol + 1, Deleted: true}
			r.in(func() {
				if len(r.kernel.All()) != 0 {
					t.Errorf("after the deletion of another protocol's object: %v", r.kernel.All())
				}
			})
			r.events <- route.ObjectChange{Object: o, Protocol: protocol, Deleted: true}
			r.in(func() {
				if _, ok := r.kernel.All()[o.Key()]; !ok {
					t.Errorf("kernel %v, want %v", r.kernel.All(), o)
				}
			})
		})
	}
}

// The reaction to an own link comes before the kernel is read, however long that takes, and links
// without objects cause no read at all.
func TestLinkDuringLoad(t *testing.T) {
	run(t, func(r *rig) {
		const routes = 5 * Step
		applied, at := 0, 0
		r.in(func() {
			r.kernel.Fault = func(route.Op) error {
				if applied++; applied == 1 {
					go func() { r.events <- route.LinkChange{Link: route.Link{Index: 3, Name: "wan"}} }()
					time.Sleep(time.Microsecond) // of the bubble: the event waits when it is over
				}
				if _, known := r.links["wan"]; known && at == 0 {
					at = applied
				}
				return nil
			}
		})
		var events []bgp.Event
		for i := range routes {
			a := netip.AddrFrom16([16]byte{0x2a, byte(i >> 16), byte(i >> 8), byte(i)})
			events = append(events, bgp.UnicastPath{Prefix: netip.PrefixFrom(a, 48), Number: uint32(len(events)), NextHop: onLink})
		}
		r.learn(events...)
		time.Sleep(time.Second)
		r.in(func() {
			if at == 0 || at > 2*Step+1 || applied != routes || r.Kernel.Pending() != 0 {
				t.Errorf("the link was handled before route %d of %d, %d pending", at, applied, r.Kernel.Pending())
			}
		})
	})
}

// TestNextHopChangeInSteps: the routes of a next hop follow it in steps, between which paths
// change.
func TestNextHopChangeInSteps(t *testing.T) {
	run(t, func(r *rig) {
		prefix := func(i int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x2a, byte(i >> 16), byte(i >> 8), byte(i)}), 48)
		}
		const routes = 2*Step + 10
		var events []bgp.Event
		for i := range routes {
			events = append(events, bgp.UnicastPath{Prefix: prefix(i), Number: uint32(i), NextHop: far})
		}
		r.learn(events...)
		time.Sleep(time.Second)
		var once sync.Once
		r.in(func() {
			r.table[far] = struct {
				gateway netip.Addr
				link    string
			}{igp, "lan"}
			r.kernel.Fault = func(route.Op) error {
				once.Do(func() {
					go func() {
						r.learned <- []bgp.Event{bgp.UnicastPath{Prefix: prefix(routes - 1), Number: routes - 1, Withdrawn: true}}
					}()
				})
				return nil
			}
		})
		r.events <- route.Overrun{}
		time.Sleep(time.Second)
		r.in(func() {
			if n := len(r.kernel.All()); n != routes-1 || r.Kernel.Pending() != 0 {
				t.Errorf("%d routes in the kernel, want %d; %d pending", n, routes-1, r.Kernel.Pending())
			}
		})
	})
}

func TestLinkBeforeResync(t *testing.T) {
	run(t, func(r *rig) {
		nexthop := route.Nexthop{ID: 7, Link: "lan"}
		r.Change(context.Background(), func() { r.Kernel.Set(nexthop) })
		reads := 0
		r.in(func() { reads = r.reads })
		for i := range 5 {
			r.events <- route.LinkChange{Link: route.Link{Index: 10 + i, Name: "veth", Admin: true, Up: true}}
			r.events <- route.LinkChange{Link: route.Link{Index: 10 + i, Name: "veth"}, Deleted: true}
		}
		time.Sleep(time.Second)
		r.in(func() {
			if r.reads != reads {
				t.Errorf("%d reads for links without objects", r.reads-reads)
			}
			r.kernel.Remove(nexthop.Key())
			r.hold = make(chan struct{})
		})
		r.events <- route.LinkChange{Link: route.Link{Index: 2, Name: "lan", Admin: true}}
		time.Sleep(time.Millisecond)
		r.in(func() {
			if up, known := r.links["lan"]; up || !known || r.reads != reads {
				t.Errorf("link up: %t, known: %t, %d reads", up, known, r.reads-reads)
			}
		})
		r.events <- route.LinkChange{Link: route.Link{Index: 2, Name: "lan", Admin: true, Up: true}}
		r.in(func() {
			if _, ok := r.kernel.All()[nexthop.Key()]; !ok {
				t.Error("the nexthop object is not restored when the link is up")
			}
			if r.connects != 5+1 {
				t.Errorf("%d times connected to the neighbors, want once for each link that came up", r.connects)
			}
			close(r.hold)
		})
	})
}

// A link that is renamed while it is up is down under its old name, and up again when it has that
// back.
func TestRenamedLink(t *testing.T) {
	run(t, func(r *rig) {
		up := func(name string, want bool) {
			t.Helper()
			r.events <- route.LinkChange{Link: route.Link{Index: 3, Name: name, Admin: true, Up: true}}
			r.in(func() {
				if r.links["wan"] != want {
					t.Errorf("named %s: wan is up: %t", name, !want)
				}
			})
		}
		up("wan", true)
		up("other", false)
		up("other", false)
		up("wan", true)
	})
}

// The kernel reports a link before it has the routes over it, and the routes of an IGP not at all.
func TestNextHopBecomesReachable(t *testing.T) {
	run(t, func(r *rig) {
		lan := route.Link{Index: 2, Name: "lan", Admin: true, Up: true}
		r.learn(path(onLink))
		r.want("at first", true)
		connected := r.table[onLink]
		r.in(func() { delete(r.table, onLink) })
		down := lan
		down.Up = false
		r.events <- route.LinkChange{Link: down}
		time.Sleep(time.Minute)
		r.want("link down", false)
		r.events <- route.LinkChange{Link: lan}
		r.want("link up without routes", false)
		r.in(func() { r.table[onLink] = connected })
		time.Sleep(4 * resolveFirst)
		r.want("link up with routes", true)
		// A path whose next hop nobody has a route to yet.
		r.in(func() { delete(r.table, onLink) })
		r.learn(bgp.UnicastPath{Prefix: client, Number: clientNumber, Withdrawn: true})
		r.learn(path(far))
		time.Sleep(time.Minute)
		r.want("before the route to the next hop", false)
		r.in(func() { r.table[far] = connected })
		time.Sleep(2 * resolveMost)
		r.want("after it", true)
	})
}

// TestLargeTableIsComparedWhenQuiet: a large table is not read while it changes, neither begun nor
// continued, unless it changes for a very long time.
func TestLargeTableIsComparedWhenQuiet(t *testing.T) {
	run(t, func(r *rig) {
		var events []bgp.Event
		for i := range resyncLargeRoutes {
			a := netip.AddrFrom16([16]byte{0x2a, byte(i >> 16), byte(i >> 8), byte(i)})
			events = append(events, bgp.UnicastPath{Prefix: netip.PrefixFrom(a, 48), Number: uint32(len(events)), NextHop: onLink})
		}
		r.learn(events...)
		changes := 0
		change := func() {
			if changes++; changes%2 == 1 {
				r.learn(path(onLink))
			} else {
				r.learn(bgp.UnicastPath{Prefix: client, Number: clientNumber, Withdrawn: true})
			}
		}
		dumps := func() (n int) { r.in(func() { n = r.dumps }); return n }
		r.events <- route.Overrun{}
		before := dumps()
		for range 20 {
			change()
			time.Sleep(resyncBusyPause / 2)
		}
		if n := dumps(); n != before {
			t.Errorf("%d dumps while the table changes", n-before)
		}
		r.in(func() { r.hold = make(chan struct{}) })
		time.Sleep(2 * resyncBusyPause)
		change()
		close(r.hold)
		running := func() (is bool) { r.in(func() { is = r.resync.state != resyncIdle }); return is }
		if !running() {
			t.Error("the comparison is not paused by a change")
		}
		time.Sleep(2 * resyncBusyPause)
		if running() || dumps() != before+1 {
			t.Errorf("the comparison is running: %t, %d dumps", running(), dumps()-before)
		}
		before = dumps()
		r.events <- route.Overrun{}
		for range resyncMaxDelay/(resyncBusyPause/2) + 100 {
			change()
			time.Sleep(resyncBusyPause / 2)
		}
		if dumps() == before {
			t.Error("a table that always changes is never read")
		}
	})
}

// A loop without a speaker deletes what the previous instance left and its reactor does not want.
func TestLoopAloneSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, kernel: &routetest.Kernel{}, events: make(chan route.Event), links: map[string]bool{}}
		l := newLoop(LoopOptions{Protocol: route.Edge, Log: slog.New(slog.DiscardHandler)}, r, r, r)
		stale, wanted := route.Route{Table: 7, Dst: client, Kind: route.Unreachable}, route.Route{Table: 8, Dst: client, Kind: route.Unreachable}
		r.kernel.Put(route.Edge, stale)
		if err := l.Kernel.Resync(); err != nil {
			t.Fatal(err)
		}
		l.startTimers(time.Hour)
		defer l.stopTimers()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		l.reactor = r
		go func() { ended <- l.loop(ctx, r, silent{}) }()
		l.Change(ctx, func() { l.Kernel.Set(wanted) })
		r.events <- route.LinkChange{Link: route.Link{Index: 2, Name: "lan", Admin: true, Up: true}}
		time.Sleep(sweepAfter + time.Second)
		l.Do(ctx, func() {
			objects := r.kernel.All()
			if _, ok := objects[stale.Key()]; ok || len(objects) != 1 || !r.links["lan"] {
				t.Errorf("objects %v, link up: %t", objects, r.links["lan"])
			}
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLinkChangeIsLoggedIfItLasts: the kernel refuses objects on a link that has just gone down,
// and next hops on one that has just come up and has no addresses yet. Other events have them
// retried again and again meanwhile.
func TestLinkChangeIsLoggedIfItLasts(t *testing.T) {
	for _, refusal := range []error{unix.ENETDOWN, unix.EHOSTUNREACH, unix.ENETUNREACH} {
		synctest.Test(t, func(t *testing.T) {
			var logged strings.Builder
			l := &Loop{options: LoopOptions{Log: slog.New(slog.NewTextHandler(&logged, nil))}, retry: retry{timer: time.NewTimer(time.Hour)}}
			defer l.retry.timer.Stop()
			err := &route.FlushError{Failed: 1, Errs: []error{&route.OpError{Err: refusal, Op: route.Op{Object: route.Route{Link: "wan"}}}}}
			for begun := time.Now(); time.Since(begun) < linkChangeTime; time.Sleep(linkChangeTime / 10) {
				if l.retryLater(err); logged.Len() > 0 {
					t.Fatalf("%v: logged after %s: %s", refusal, time.Since(begun), &logged)
				}
			}
			l.retryLater(err)
			l.retryLater(err)
			if n := strings.Count(logged.String(), "\n"); n != 1 {
				t.Errorf("%v: %d lines logged, want 1: %s", refusal, n, &logged)
			}
		})
	}
}

// TestOverrunsAreLoggedOnce: messages of the kernel that are missing again and again are logged
// once a minute.
func TestOverrunsAreLoggedOnce(t *testing.T) {
	run(t, func(r *rig) {
		var logged strings.Builder
		r.in(func() { r.options.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
		for range 2 {
			for range 3 {
				r.events <- route.Overrun{Reason: errors.New("decode message")}
			}
			time.Sleep(overrunPause)
		}
		r.in(func() {
			if n := strings.Count(logged.String(), "are missing"); n != 2 {
				t.Errorf("%d lines, want 2: %s", n, logged.String())
			}
		})
	})
}
