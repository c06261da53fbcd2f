package bgp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// dumped returns the routes of a table as text.
func dumped(t *testing.T, s *Speaker, f Filter) []string {
	t.Helper()
	var got []string
	if err := s.Dump(f, func(e RouteEntry) error {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", e.Prefix, e.RD, e.Neighbor, e.State, e.Reason)))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

// TestDump: the tables of a reflector, with filters.
func TestDump(t *testing.T) {
	origin, rr, server := newRouter(t, 60, 65000), newRouter(t, 61, 65000), newRouter(t, 62, 65000)
	rr.peer(origin, client, func(n *Neighbor) { n.Import.Reject = Within(RejectConnected, prefix("2a00:2::/32")) })
	rr.peer(server, client, func(n *Neighbor) { n.Export.Reject = append(n.Export.Reject, prefix("2a00:3::/32")) })
	origin.peer(rr)
	server.peer(rr)
	origin.must(origin.Originate(
		UnicastRoute{Prefix: prefix("2a00:1::/32"), NextHop: address(60)}, UnicastRoute{Prefix: prefix("2a00:2::/32"), NextHop: address(60)},
		UnicastRoute{Prefix: prefix("2a00:3::/32"), NextHop: address(60)}))
	origin.must(origin.OriginateVPN([]VPNRoute{
		{RD: id(t, "65000:1"), Prefix: prefix("2a00:1::/32"), NextHop: address(60), RTs: []vpn.ID{id(t, "65000:101")}, SID: sidA, Structure: structure, Behavior: 18},
		{RD: id(t, "65000:2"), Prefix: prefix("2a00:1:1::/48"), NextHop: address(60), RTs: []vpn.ID{id(t, "65000:102")}, SID: sidA, Structure: structure, Behavior: 18},
	}))
	rr.must(rr.Originate(UnicastRoute{Prefix: prefix("2a00:9::/32")}))
	server.wait("routes", func() bool { return len(server.unicast) == 2 && len(server.vpn) == 2 })
	rr.wait("routes", func() bool { return len(rr.unicast) == 3 && len(rr.vpn) == 2 })
	for _, tt := range []struct {
		filter Filter
		want   []string
	}{
		{Filter{View: ReceivedRoutes}, []string{
			"2a00:1:1::/48 65000:2 r60 best", "2a00:1::/32  r60 best", "2a00:1::/32 65000:1 r60 best",
			"2a00:2::/32  r60 refused connected: 2a00:2::/32", "2a00:3::/32  r60 best"}},
		{Filter{View: ReceivedRoutes, Neighbor: "r62"}, nil},
		{Filter{View: AcceptedRoutes}, []string{
			"2a00:1:1::/48 65000:2 r60 best", "2a00:1::/32  r60 best", "2a00:1::/32 65000:1 r60 best", "2a00:3::/32  r60 best", "2a00:9::/32  local best"}},
		{Filter{View: AcceptedRoutes, RT: id(t, "65000:102")}, []string{"2a00:1:1::/48 65000:2 r60 best"}},
		{Filter{View: AcceptedRoutes, RD: id(t, "65000:1")}, []string{"2a00:1::/32 65000:1 r60 best"}},
		{Filter{View: AcceptedRoutes, Within: prefix("2a00:1:1::/40")}, []string{"2a00:1:1::/48 65000:2 r60 best"}},
		{Filter{View: AdvertisedRoutes, Neighbor: address(62).String()}, []string{
			"2a00:1:1::/48 65000:2 r62 advertised", "2a00:1::/32  r62 advertised", "2a00:1::/32 65000:1 r62 advertised", "2a00:9::/32  r62 advertised"}},
	} {
		if got := dumped(t, rr.Speaker, tt.filter); !slices.Equal(got, tt.want) {
			t.Errorf("%+v:\n\t%s\nwant\n\t%s", tt.filter, strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
		}
	}
	full := errors.New("full")
	if err := rr.Dump(Filter{View: AcceptedRoutes}, func(RouteEntry) error { return full }); !errors.Is(err, full) {
		t.Errorf("error of the caller: %v", err)
	}
	for _, f := range []Filter{{View: "best"}, {View: AcceptedRoutes, Neighbor: "r9"}} {
		if err := rr.Dump(f, func(RouteEntry) error { return nil }); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	for _, s := range rr.Sessions() {
		checkSum(t, s)
	}
}

// poll waits for something that no event reports.
func poll(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never saw: %s", what)
		}
	}
}

// TestClear: a soft reset has both ends send their routes again in the session, a hard one opens
// another session, which retains routes where they are retained.
func TestClear(t *testing.T) {
	origin, rr := newRouter(t, 63, 65000), newRouter(t, 64, 65000)
	server := newRouterWith(t, 65, 65000, func(o *Options) { o.Report = ReportBest })
	rr.peer(origin, client)
	rr.peer(server, client)
	origin.peer(rr)
	server.peer(rr, func(n *Neighbor) { n.Retain = 1 << 40 })
	origin.must(origin.Originate(UnicastRoute{Prefix: prefix("2a00:1::/32"), NextHop: address(63)}))
	server.wait("route", func() bool { return len(server.unicast) == 1 })
	poll(t, "all routes and their End-of-RIB", func() bool {
		d, err := server.Neighbor("r64")
		return err == nil && !slices.ContainsFunc(d.Families, func(f FamilyDetail) bool { return !f.EndOfRIB })
	})
	updates := func() uint64 { return server.Sessions()[0].MessagesReceived["update"] }
	before := updates()
	text, err := server.Clear(address(64).String(), false)
	if err != nil || !strings.Contains(text, "is asked for") {
		t.Errorf("%q, %v", text, err)
	}
	poll(t, "the route again", func() bool {
		s := server.Sessions()[0]
		return s.MessagesSent["route-refresh"] > 0 && updates() > before && s.Flaps == 0
	})
	d, err := server.Neighbor("r64")
	if err != nil || d.State != "Established" || d.MessagesSent["route-refresh"] == 0 || !slices.Contains(d.CapabilitiesReceived, "graceful restart 1 s (64)") {
		t.Errorf("%+v, %v", d, err)
	}
	for _, f := range d.Families {
		if f.Family == "ipv6-unicast" && (f.Received != 1 || f.Accepted != 1 || !f.EndOfRIB) {
			t.Errorf("%+v", f)
		}
	}
	if _, err := server.Clear("r64", true); err != nil {
		t.Fatal(err)
	}
	poll(t, "another session", func() bool { s := server.Sessions()[0]; return s.Up && s.Flaps == 1 })
	server.mu.Lock()
	if log := strings.Join(server.log, "; "); strings.Contains(log, "withdrawn=true") || len(server.unicast) != 1 {
		t.Errorf("the route was lost: %s", log)
	}
	server.mu.Unlock()
	if d, err := rr.Neighbor("r65"); err != nil || !strings.Contains(d.Received, "Administrative Reset (6/4)") {
		t.Errorf("%+v, %v", d.Received, err)
	}
	if _, err := rr.Clear("r9", false); !errors.Is(err, ErrUnknownNeighbor) {
		t.Errorf("unknown neighbor: %v", err)
	}
}
