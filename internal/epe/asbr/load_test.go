package asbr

import (
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/epe/capacity"
)

// TestLoads: the load of a link is reported while its peer is up, on a change and now and then, at
// most once a second.
func TestLoads(t *testing.T) {
	c := testConfig()
	c.Peers[0].Capacity = 8000 // bit/s
	p, _ := newTestPeer(t, c)
	var l loads
	now, bytes := time.Unix(1_800_000_000, 0), uint64(0)
	pass := func(d time.Duration, rate uint64) (routes []bgp.VPNRoute, gone []bgp.VPNKey) {
		now, bytes = now.Add(d), bytes+rate*uint64(d/time.Second)
		l.apply(now, map[string]reading{"wan": {index: 3, bytes: bytes, speed: -1}, "other": {index: 4, speed: 1e9}})
		return l.changes(now, 65000, []*peer{p})
	}
	if routes, _ := pass(time.Second, 0); len(routes) > 0 {
		t.Errorf("reported without a measurement: %v", routes)
	}
	if routes, _ := pass(time.Second, 0); len(routes) > 0 {
		t.Errorf("reported while the peer is down: %v", routes)
	}
	p.session, p.link = true, true
	p.refresh()
	routes, _ := pass(time.Second, 0)
	if len(routes) != 1 {
		t.Fatalf("reported %v", routes)
	}
	r := routes[0]
	if r.Prefix != bgp.LoadPrefix(p.sid) || r.RTs[0] != bgp.LoadTarget(65000) || r.ASPath != message.MakeASPath(65001) || r.Communities[0] != bgp.NoExport ||
		r.Load != (bgp.Load{Link: 3, Sample: 1, Capacity: 1000}) {
		t.Errorf("reported %+v", r)
	}
	reports := 0
	for range 120 {
		routes, gone := pass(time.Second, 0)
		reports += len(routes)
		if len(gone) > 0 {
			t.Errorf("withdrawn: %v", gone)
		}
	}
	if want := int(2 * time.Minute / capacity.Repeat); reports != want {
		t.Errorf("%d reports of the same load in two minutes, want %d", reports, want)
	}
	if routes, _ = pass(time.Second, 900); len(routes) != 1 || routes[0].Load.Used < 300 {
		t.Errorf("reported %v", routes)
	}
	if routes, _ = pass(500*time.Millisecond, 900); len(routes) > 0 {
		t.Error("reported twice within a second")
	}
	// The interface is lost, and comes back as another one.
	l.apply(now, nil)
	if _, gone := l.changes(now, 65000, []*peer{p}); len(gone) != 1 || gone[0] != (bgp.VPNKey{RD: p.rd, Prefix: bgp.LoadPrefix(p.sid)}) {
		t.Errorf("withdrawn: %v", gone)
	}
	pass(time.Second, 0)
	if routes, _ = pass(time.Second, 0); len(routes) != 1 || routes[0].Load.Sample <= r.Load.Sample {
		t.Errorf("reported %v", routes)
	}
	p.hide(true)
	if _, gone := pass(time.Second, 0); len(gone) != 1 {
		t.Error("not withdrawn with the routes of the peer")
	}
	// Without the key, it is the speed of the interface; without either, nothing.
	p.hide(false)
	p.Capacity = 0
	if routes, _ = pass(time.Second, 0); len(routes) > 0 {
		t.Errorf("reported %v", routes)
	}
	l.apply(now.Add(time.Second), map[string]reading{"wan": {index: 3, bytes: bytes, speed: 10e9}})
	if routes, _ = l.changes(now.Add(time.Second), 65000, []*peer{p}); len(routes) != 1 || routes[0].Load.Capacity != 1.25e9 {
		t.Errorf("reported %v", routes)
	}
}

func TestCheckCapacity(t *testing.T) {
	c := testConfig()
	add := func(name string, id uint32, link string, capacity unit.Bandwidth) {
		p := c.Peers[0]
		p.Name, p.ID, p.Table, p.Interface, p.Capacity = name, id, 100+id, link, capacity
		p.RT, p.Address = bgp.LoadTarget(65000), p.Address.Next()
		if id > 2 {
			p.RT = bgp.LoadTarget(65000 + id)
		}
		for range id {
			p.Address = p.Address.Next()
		}
		c.Peers = append(c.Peers, p)
	}
	add("b", 2, "wan", 8)
	add("c", 3, "wan2", -1)
	add("d", 4, "wan3", 1<<62)
	add("e", 5, "wan4", 10*unit.GbitPerSecond)
	want := []string{
		"peers[1].rt: 0.65000:1120 is that of the loads of egress links",
		"peers[1].capacity: must be that of peers[0], which has the same interface wan",
		"peers[2].capacity: must be from 8bit/s to 1000Tbit/s, got -1bit/s",
		"peers[3].capacity: must be from 8bit/s",
	}
	got := strings.Split(c.Check().Error(), "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestReloadOfCapacity: another capacity leaves session and SID alone, and is said.
func TestReloadOfCapacity(t *testing.T) {
	old, now := testConfig(), testConfig()
	now.Peers[0].Capacity = unit.GbitPerSecond
	c, faults := difference(&old, &now, networks{}, nil)
	if len(faults) > 0 || len(c.peers.Remove) > 0 || strings.Join(c.lines(), "\n") != `capacity of egress peer "transit-a" changed` {
		t.Errorf("%v, %q", faults, c.lines())
	}
}
