package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/proxy/relay"
	"github.com/tabane/tabane/internal/proxy/request"
)

// TestLoopback: only a client of this host is connected to loopback, whatever a PROXY header says.
func TestLoopback(t *testing.T) {
	r := newRouter(quiet, nil)
	local, remote := netip.MustParseAddrPort("127.0.0.1:1000"), netip.MustParseAddrPort("192.0.2.1:1000")
	l := forward(t, "tcp://127.0.0.1:1", "tcp")
	l.AcceptProxyProtocol = true
	s := &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: r.serve(l)}}
	asked := netip.MustParseAddrPort("127.0.0.1:7777")
	for _, test := range []struct {
		peer, client netip.AddrPort
		refused      bool
	}{{local, local, false}, {remote, local, true}, {local, remote, true}, {remote, remote, true}} {
		for _, q := range []relay.Query{
			{Local: asked, Headed: true},
			{Protocol: request.SOCKS5, Asked: request.Destination{Address: asked.Addr(), Port: asked.Port()}},
		} {
			q.Service, q.Peer, q.Client = s, test.peer, test.client
			if plan, ok := r.Route(q, nil); !ok || (plan.Err != nil) != test.refused {
				t.Errorf("peer %v, client %v: plan %+v, %v", test.peer, test.client, plan, ok)
			}
		}
	}
}

// TestActive: a connection counts from its attempt on, so that those that come at once are spread.
func TestActive(t *testing.T) {
	r := newRouter(quiet, nil)
	l := Listener{Listen: listen(t, "tcp://127.0.0.1:1"), Upstreams: []Upstream{to(t, "tcp://192.0.2.1:80"), to(t, "tcp://192.0.2.2:80")}}
	q := relay.Query{Service: &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: r.serve(l)}}}
	first := func() relay.Target {
		plan, ok := r.Route(q, nil)
		if !ok || len(plan.Targets) != 2 {
			t.Fatalf("plan %+v, %v", plan, ok)
		}
		return plan.Targets[0]
	}
	a := first()
	r.Began(a)
	if b := first(); b == a {
		t.Errorf("while a connection to %v begins, another goes there, too", a.Address)
	}
	r.Closed(a)
	if b := first(); b != a {
		t.Errorf("after the end of the attempt, a connection goes to %v", b.Address)
	}
}

// TestUpstreamItself: an upstream that leads back to the proxy is down, and the other one is used.
func TestUpstreamItself(t *testing.T) {
	r := newRouter(quiet, nil)
	itself := netip.MustParseAddrPort("127.0.0.1:1")
	r.listen([]netip.AddrPort{itself})
	l := Listener{Listen: listen(t, "tcp://127.0.0.1:1"), Upstreams: []Upstream{to(t, "tcp://127.0.0.1:1"), to(t, "tcp://192.0.2.2:80")}}
	s := r.serve(l)
	q := relay.Query{Service: &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: s}}}
	for range 2 {
		plan, ok := r.Route(q, nil)
		if !ok || len(plan.Targets) != 1 || plan.Targets[0].Address == itself {
			t.Fatalf("plan %+v, %v", plan, ok)
		}
	}
	if u := r.upstreams[s.upstreams[0]]; !u.state.Down() || !strings.Contains(u.lastError, "this proxy itself") {
		t.Errorf("the upstream is down: %v, because of %q", u.state.Down(), u.lastError)
	}
	if r.upstreams[s.upstreams[1]].state.Down() {
		t.Error("the other one is down")
	}
}

// TestNoPort: an upstream that was not asked, for want of a local port, is not down, and the status
// says what is missing.
func TestNoPort(t *testing.T) {
	r := newRouter(quiet, nil)
	s := r.serve(Listener{Listen: listen(t, "tcp://127.0.0.1:1"), Upstreams: []Upstream{to(t, "tcp://192.0.2.1:80")}})
	target := relay.Target{Address: netip.MustParseAddrPort("192.0.2.1:80"), Upstream: int32(s.upstreams[0])}
	for range 3 {
		r.Tried(relay.Outcome{Target: target, Err: relay.ErrNoPort})
	}
	probe := &net.OpError{Op: "dial", Addr: net.TCPAddrFromAddrPort(target.Address), Err: unix.EADDRNOTAVAIL}
	if !r.lacksPort(probe) {
		t.Error("a probe that lacks a port is one of the upstream")
	}
	if r.upstreams[s.upstreams[0]].state.Down() {
		t.Error("the upstream is down")
	}
	var report health.Report
	r.portlessness(&report)
	if now := report.Status(); !now.Degraded || !strings.Contains(now.Reason, "ip_local_port_range") {
		t.Errorf("status %+v", now)
	}
}

// TestNames: a client that asks for many names blocks neither others nor upstreams, and names that
// get no turn fail in time.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(quiet, nil)
		blocked := make(chan struct{})
		r.lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
			if host != "quick.test" && host != "upstream.test" {
				<-blocked // not even at the end of its time
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
		}
		service := &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: r.serve(forward(t, "socks5://127.0.0.1:1", "tcp"))}}
		route := func(client, name string, answer func(relay.Plan)) (relay.Plan, bool) {
			at := netip.AddrPortFrom(netip.MustParseAddr(client), 1)
			return r.Route(relay.Query{Service: service, Peer: at, Client: at, Protocol: request.SOCKS5, Asked: request.Destination{Name: name, Port: 80}}, answer)
		}
		many := func(client string) (refused int) {
			for i := range 2 * maxLookups {
				if plan, ok := route(client, fmt.Sprintf("%d.%s.test", i, client), func(relay.Plan) {}); ok && plan.Err != nil {
					refused++
				}
			}
			synctest.Wait()
			return refused
		}
		var mu sync.Mutex
		var list []relay.Plan
		add := func(p relay.Plan) {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, p)
		}
		answered := func() []relay.Plan { // when all wait
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(list)
		}
		if n := many("192.0.2.10"); n != 2*maxLookups-maxClientLookups {
			t.Errorf("%d names of one client are refused", n)
		}
		route("192.0.2.11", "quick.test", add)
		if answers := answered(); len(answers) != 1 || answers[0].Err != nil {
			t.Fatalf("another client gets %+v", answers)
		}
		many("192.0.2.12")
		route("192.0.2.13", "late.test", add)
		upstream := relay.Query{Service: &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: r.serve(forward(t, "tcp://127.0.0.1:2", "tcp://upstream.test:80"))}}}
		r.Route(upstream, add)
		if answers := answered(); len(answers) != 2 || answers[1].Err != nil {
			t.Fatalf("a connection to an upstream gets %+v", answers)
		}
		time.Sleep(nameTimeout)
		if answers := answered(); len(answers) != 3 || answers[2].Err == nil {
			t.Errorf("a name without a turn gets %+v", answers)
		}
		close(blocked)
	})
}

// TestResolverFails: the addresses of a name are used on while the resolver fails, for as long as
// ones that are being asked for again. A name that is gone has none.
func TestResolverFails(t *testing.T) {
	failing := &net.DNSError{Err: "server misbehaving", Name: "upstream.test", IsTemporary: true}
	gone := &net.DNSError{Err: "no such host", Name: "upstream.test", IsNotFound: true}
	for _, test := range []struct {
		name  string
		err   error
		after time.Duration
		used  bool
	}{
		{"fails", failing, nameFresh, true},
		{"fails for long", failing, nameStale - nameFresh, true},
		{"fails for too long", failing, nameStale, false},
		{"is gone", gone, nameFresh, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRouter(quiet, nil)
				var err error
				r.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
					return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, err
				}
				s := r.serve(forward(t, "tcp://127.0.0.1:1", "tcp://upstream.test:80"))
				q := relay.Query{Service: &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: s}}}
				route := func() (plan relay.Plan) {
					p, ok := r.Route(q, func(p relay.Plan) { plan = p })
					if ok {
						plan = p
					}
					synctest.Wait()
					return plan
				}
				if plan := route(); len(plan.Targets) != 1 {
					t.Fatalf("plan %+v", plan)
				}
				err = test.err
				time.Sleep(test.after)
				route()
				time.Sleep(nameFailed / 2)
				plan := route()
				if got := len(plan.Targets) == 1; got != test.used {
					t.Errorf("addresses are used: %v, plan %+v", got, plan)
				}
				if u := r.upstreams[s.upstreams[0]]; test.used && u.failures > 0 {
					t.Errorf("upstream has %d failures, the last one %s", u.failures, u.lastError)
				}
				err = nil
				time.Sleep(nameFailed)
				route()
				if plan := route(); len(plan.Targets) != 1 {
					t.Errorf("after the failure, plan %+v", plan)
				}
			})
		})
	}
}

// TestManyAddresses: where the addresses of an upstream that were tried failed, the next connection
// tries others of its name.
func TestManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter(quiet, nil)
		r.lookup = func(context.Context, string, string) (list []netip.Addr, err error) {
			for i := range byte(6) {
				list = append(list, netip.AddrFrom4([4]byte{192, 0, 2, i}))
			}
			return list, nil
		}
		s := r.serve(forward(t, "tcp://127.0.0.1:1", "tcp://many.test:80"))
		q := relay.Query{Service: &relay.Service{ServiceOptions: relay.ServiceOptions{Tag: s}}}
		targets := func() (plan relay.Plan) {
			if p, ok := r.Route(q, func(p relay.Plan) { plan = p }); ok {
				return p
			}
			synctest.Wait()
			return plan
		}
		first := targets().Targets
		for _, failed := range first {
			r.Tried(relay.Outcome{Target: failed, Err: syscall.ETIMEDOUT})
		}
		next := targets().Targets
		if len(first) != maxAddresses || len(next) != maxAddresses || next[0].Address.Addr() != netip.MustParseAddr("192.0.2.4") || next[1].Address.Addr() != netip.MustParseAddr("192.0.2.5") {
			t.Fatalf("first %+v, then %+v", first, next)
		}
		r.Tried(relay.Outcome{Target: first[0]})
		if again := targets().Targets; again[0] != first[0] {
			t.Errorf("after an address answered again, %+v", again)
		}
	})
}
