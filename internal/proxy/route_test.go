package proxy

import (
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/proxy/relay"
	"github.com/tabane/tabane/internal/proxy/request"
)

// TestLoopback: only a client of this host is connected to loopback, whatever a PROXY header says.
func TestLoopback(t *testing.T) {
	r := newRouter(quiet)
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
	r := newRouter(quiet)
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
