package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/route"
)

func reloadConfig(t *testing.T) Config {
	rt := func(s string) vpn.ID {
		id, err := vpn.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	return Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.10"), Interface: "lan",
		Address: netip.MustParseAddr("2001:db8:1::10"), Prefix: netip.MustParsePrefix("2001:db8:1::/64"),
		Reflectors: []Reflector{{Address: netip.MustParseAddr("2001:db8:1::fe")}},
		Locators:   []netip.Prefix{netip.MustParsePrefix("fc00::/16")},
		Peers: []Peer{
			{Name: "a", RT: rt("65000:101"), Address: netip.MustParseAddr("2001:db8:1::a"), Table: 101},
			{Name: "b", RT: rt("65000:102"), Address: netip.MustParseAddr("2001:db8:1::b"), Table: 102},
		},
	}
}

func TestDifference(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
		faults string
	}{
		"nothing":  {func(*Config) {}, "", ""},
		"order":    {func(c *Config) { slices.Reverse(c.Peers) }, "", ""},
		"removed":  {func(c *Config) { c.Peers = c.Peers[:1] }, `egress peer "b" removed`, ""},
		"replaced": {func(c *Config) { c.Peers[0].Table = 111 }, `egress peer "a" replaced`, ""},
		"renamed":  {func(c *Config) { c.Peers[0].Name = "c" }, "egress peer \"a\" removed\negress peer \"c\" added", ""},
		"prefix": {func(c *Config) {
			c.Peers[0].Prefix, c.Peers[0].Address = netip.MustParsePrefix("2001:db8:1:a::/64"), netip.MustParseAddr("2001:db8:1:a::1")
		}, "egress peer \"a\" replaced\npolicy of session \"reflector 2001:db8:1::fe\" changed", ""},
		"reflector": {func(c *Config) {
			c.Reflectors = append(c.Reflectors, Reflector{Address: netip.MustParseAddr("2001:db8:1::fd")})
		},
			`session "reflector 2001:db8:1::fd" added`, ""},
		"path manager": {func(c *Config) { c.MPTCP.PathManager = KernelPathManager }, "", "mptcp: cannot change from "},
		"use":          {func(c *Config) { c.MPTCP.Use = UseOverflow }, "mptcp.use changed to overflow", ""},
		"same use":     {func(c *Config) { c.MPTCP.Use = UseAll }, "", ""},
		"policies":     {func(c *Config) { c.MPTCP.Policies = []Policy{{Port: 80, Policy: "latency"}} }, "mptcp.policies changed", ""},
		"interface":    {func(c *Config) { c.Interface = "eth0" }, "", "interface: cannot change from lan to eth0 while the daemon runs; a restart is needed"},
		"same encap":   {func(c *Config) { c.Encap = EncapRed }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			old, now := reloadConfig(t), reloadConfig(t)
			tt.change(&now)
			if err := now.Check().Err(); err != nil {
				t.Fatal(err)
			}
			c, faults := difference(&old, &now)
			if got := faults.Error(); !strings.HasPrefix(got, tt.faults) || got != "" && tt.faults == "" {
				t.Errorf("faults %q, want %q", got, tt.faults)
			}
			if got := strings.Join(c.lines(), "\n"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestReloadImportsOnlyWhatChanged: without a change of egress peers no policy changes on the way,
// which would import all routes again.
func TestReloadImportsOnlyWhatChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   int // sessions whose policy changes before the peers do, and after
	}{
		"nothing":  {func(*Config) {}, 0},
		"use":      {func(c *Config) { c.MPTCP.Use = UseOverflow }, 0},
		"removed":  {func(c *Config) { c.Peers = c.Peers[:1] }, 1},
		"replaced": {func(c *Config) { c.Peers[0].RT = c.Peers[1].RT; c.Peers = c.Peers[:1] }, 1},
	} {
		old, now := reloadConfig(t), reloadConfig(t)
		tt.change(&now)
		c, faults := difference(&old, &now)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		both := between(&old, &now, c.peers)
		before, after := bgp.Compare(old.neighbors(), both), bgp.Compare(both, now.neighbors())
		if len(before.Policy) != tt.want || len(after.Policy) != tt.want {
			t.Errorf("%s: policies change %d and %d times, want %d", name, len(before.Policy), len(after.Policy), tt.want)
		}
	}
}

// TestRemovedPeer: the routes of a removed peer are removed in steps, its rules only when it is
// freed; the next peer reuses their priorities.
func TestRemovedPeer(t *testing.T) {
	config := reloadConfig(t)
	kernel := fakeDesired{}
	e := newEgress(&config, 1500, kernel)
	removed := e.peers[0]
	const routes = 2*daemon.Step + 1
	installed := func() (n int) {
		for _, o := range kernel {
			if r, ok := o.(route.Route); ok && r.Table == 101 && r.NexthopID != 0 {
				n++
			}
		}
		return n
	}
	for i := range routes {
		p := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
		p.Prefix = netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/32", i))
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	e.locator(locator("fc00:1::/32", true))
	for e.step(daemon.Step) {
	}
	if n := installed(); n != routes {
		t.Fatalf("%d routes, want %d", n, routes)
	}
	e.removePeer(removed)
	for left := routes; ; {
		more := e.removeRoutes(removed, daemon.Step)
		n := installed()
		if left-n > daemon.Step || more != (n > 0) {
			t.Errorf("%d of %d routes are left after a step, more: %t", n, left, more)
		}
		if left = n; !more {
			break
		}
	}
	if !kernel.has(e.fixed(removed)) || len(e.peers) != 1 || e.byRT[removed.target()] != nil {
		t.Errorf("removed: %v", kernel)
	}
	for _, o := range e.fixed(removed) {
		kernel.Delete(o.Key())
	}
	e.free(removed)
	e.addPeer(removed.Peer, 7)
	if added := e.peers[1]; added.rulePosition != removed.rulePosition || !kernel.has(e.fixed(added)) || e.byIndex[7] != added {
		t.Errorf("added: %+v", added)
	}
}

type fakeDesired map[route.Key]route.Object

func (f fakeDesired) Set(o route.Object)     { f[o.Key()] = o }
func (f fakeDesired) SetRoute(r route.Route) { f.Set(r) }
func (f fakeDesired) Delete(k route.Key)     { delete(f, k) }
func (f fakeDesired) Hasten(route.Key)       {}
func (f fakeDesired) Suspend(k route.Key)    { delete(f, k) }
func (f fakeDesired) Settled(route.Key) bool { return true }

func (f fakeDesired) Outdated(route.Key) bool { return false }
func (f fakeDesired) has(objects []route.Object) bool {
	return !slices.ContainsFunc(objects, func(o route.Object) bool { return f[o.Key()] != o })
}
