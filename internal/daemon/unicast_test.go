package daemon

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
)

// wanted is the kernel that only remembers.
type wanted map[route.Key]route.Object

func (w wanted) SetRoute(r route.Route) { w[r.Key()] = r }
func (w wanted) Delete(k route.Key)     { delete(w, k) }

// resolved resolves next hops from a map: an invalid gateway means on the link.
type resolved map[netip.Addr]struct {
	gateway netip.Addr
	link    string
}

func (t resolved) NexthopTo(dst netip.Addr) (netip.Addr, string, error) {
	way, ok := t[dst]
	if !ok {
		return netip.Addr{}, "", route.ErrNoRoute
	}
	return way.gateway, way.link, nil
}

var (
	client   = netip.MustParsePrefix("2001:db8:c::/64")
	onLink   = netip.MustParseAddr("2001:db8:1::1")
	far      = netip.MustParseAddr("2001:db8:9::9")
	igp      = netip.MustParseAddr("2001:db8:1::fd")
	zoned    = netip.MustParseAddr("fe80::1%wan")
	withLAN  = resolved{onLink: {link: "lan"}}
	announce = func(hop netip.Addr) []bgp.Event { return []bgp.Event{bgp.UnicastPath{Prefix: client, NextHop: hop}} }
)

func (w wanted) check(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for o := range maps.Values(w) {
		got = append(got, o.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestBestPathsGoToTheMainTable(t *testing.T) {
	w := wanted{}
	u := newUnicast(w, withLAN)
	u.update(announce(onLink))
	w.check(t, "2001:db8:c::/64 table main via 2001:db8:1::1 dev lan metric 4096")
	u.update(announce(zoned))
	w.check(t, "2001:db8:c::/64 table main via fe80::1 dev wan metric 4096")
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Withdrawn: true}})
	w.check(t)
}

// IPv4 paths may have IPv6 next hops, but not conversely.
func TestBestPathsOfIPv4(t *testing.T) {
	prefix, hop := netip.MustParsePrefix("203.0.113.0/24"), netip.MustParseAddr("192.0.2.1")
	w := wanted{}
	u := newUnicast(w, resolved{onLink: {link: "lan"}, hop: {link: "lan"}})
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: prefix, NextHop: hop}})
	w.check(t, "203.0.113.0/24 table main via 192.0.2.1 dev lan metric 4096")
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: prefix, NextHop: onLink}})
	w.check(t, "203.0.113.0/24 table main via inet6 2001:db8:1::1 dev lan metric 4096")
	u.update(announce(hop))
	w.check(t, "203.0.113.0/24 table main via inet6 2001:db8:1::1 dev lan metric 4096")
}

func TestOwnAndRefusedPathsStayOut(t *testing.T) {
	for name, p := range map[string]bgp.UnicastPath{
		"own":     {Prefix: client, NextHop: onLink, Local: true},
		"nowhere": {Prefix: client, NextHop: onLink, Attributes: bgp.Attributes{Communities: []uint32{1, bgp.Blackhole}}},
		"refused": {Prefix: client, NextHop: onLink, Rejected: &bgp.RejectedError{Reason: bgp.RejectNextHop}},
	} {
		t.Run(name, func(t *testing.T) {
			w := wanted{}
			u := newUnicast(w, withLAN)
			u.update(announce(onLink))
			u.update([]bgp.Event{p})
			w.check(t)
		})
	}
}

func TestNextHopsAreResolvedAgain(t *testing.T) {
	w, kernel := wanted{}, resolved{}
	u := newUnicast(w, kernel)
	u.update(announce(far))
	w.check(t)
	kernel[far] = resolved{far: {igp, "lan"}}[far]
	u.resolve()
	u.step(1)
	w.check(t, "2001:db8:c::/64 table main via 2001:db8:1::fd dev lan metric 4096")
	delete(kernel, far)
	u.resolve()
	u.step(1)
	w.check(t)
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Withdrawn: true}})
	u.resolve()
	if len(u.via) > 0 {
		t.Errorf("next hops that nothing uses are kept: %v", u.via)
	}
}

// TestSelectedBestPaths: only those that the daemon wants are installed.
func TestSelectedBestPaths(t *testing.T) {
	w := wanted{}
	u := newUnicast(w, withLAN)
	locator := netip.MustParsePrefix("fc00:1::/32")
	u.installs = func(p netip.Prefix) bool { return p == locator }
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Number: 1, NextHop: onLink}, bgp.UnicastPath{Prefix: locator, Number: 2, NextHop: onLink}})
	w.check(t, "fc00:1::/32 table main via 2001:db8:1::1 dev lan metric 4096")
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Number: 1, Withdrawn: true}, bgp.UnicastPath{Prefix: locator, Number: 2, Withdrawn: true}})
	w.check(t)
}

// TestUnresolved: best paths whose next hop has no route are counted.
func TestUnresolved(t *testing.T) {
	u := newUnicast(wanted{}, withLAN)
	other := netip.MustParsePrefix("2001:db8:d::/64")
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Number: 1, NextHop: far}, bgp.UnicastPath{Prefix: other, Number: 2, NextHop: onLink}})
	if n := u.unresolved(); n != 1 {
		t.Errorf("%d unresolved", n)
	}
	u.update([]bgp.Event{bgp.UnicastPath{Prefix: client, Number: 1, Withdrawn: true}})
	if n := u.unresolved(); n != 0 {
		t.Errorf("%d unresolved after the withdrawal", n)
	}
}
