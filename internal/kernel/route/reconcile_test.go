package route_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
	"github.com/tabane/tabane/internal/testkit/heap"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newReconciler(k route.Kernel) *route.Reconciler {
	return route.NewReconciler(k, route.Edge, quiet())
}

func flush(t *testing.T, r *route.Reconciler) {
	t.Helper()
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
}

func logLines(k *routetest.Kernel) []string {
	var s []string
	for _, op := range k.Log {
		s = append(s, op.String())
	}
	k.Log = nil
	return s
}

func expectLog(t *testing.T, k *routetest.Kernel, want ...string) {
	t.Helper()
	if got := logLines(k); !slices.Equal(got, want) {
		t.Errorf("ops\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// peer returns the objects that an edge configures for one egress peer.
func peer() (guard, epe route.Route, nh route.Nexthop, rule route.Rule, addr route.Address) {
	guard = route.Route{Table: 101, Dst: pfx("::/0"), Kind: route.Unreachable, Metric: 4294967295}
	epe = route.Route{Table: 101, Dst: pfx("2001:db8:c::/64"), NexthopID: 7}
	nh = route.Nexthop{ID: 7, Link: "eth0", SID: ip("fd00::1")}
	rule = route.Rule{Priority: 1000, From: pfx("2001:db8::1/128"), Table: 101}
	addr = route.Address{Link: "lo", Prefix: pfx("2001:db8::1/128"), Deprecated: true}
	return
}

// TestHasten: what is hastened is applied before what has changed earlier, once.
func TestHasten(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	_, first, nh, _, _ := peer()
	second, third := first, first
	second.Dst, third.Dst = pfx("2001:db8:d::/64"), pfx("2001:db8:e::/64")
	r.Set(nh)
	flush(t, r)
	k.Log = nil
	for _, o := range []route.Route{first, second, third} {
		r.Set(o)
	}
	r.Hasten(third.Key())
	r.Hasten(nh.Key()) // is applied
	for _, want := range []route.Route{third, first, second} {
		if _, err := r.FlushPart(1); err != nil {
			t.Fatal(err)
		}
		expectLog(t, k, route.Op{Protocol: route.Edge, Object: want}.String())
	}
}

func TestFlushOrder(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	guard, epe, nh, rule, addr := peer()
	other := epe
	other.Dst = pfx("2001:db8:d::/64")
	for _, o := range []route.Object{addr, rule, epe, other, guard, nh} {
		r.Set(o)
	}
	if r.Pending() != 6 {
		t.Errorf("pending %d", r.Pending())
	}
	flush(t, r)
	expectLog(t, k,
		"nexthop add id 7 encap seg6 mode encap.red segs fd00::1 via fe80::7ab5:0:7 dev eth0 proto 117",
		"route add unreachable default table 101 metric 4294967295 proto 117",
		"route add 2001:db8:c::/64 table 101 nhid 7 proto 117",
		"route add 2001:db8:d::/64 table 101 nhid 7 proto 117",
		"rule add priority 1000 from 2001:db8::1/128 table 101 proto 117",
		"address add 2001:db8::1/128 dev lo nodad preferred_lft 0 proto 117",
	)
	for _, o := range []route.Object{addr, rule, epe, guard} {
		r.Set(o)
	}
	flush(t, r)
	expectLog(t, k)

	epe.MTU = 1400
	r.Set(epe)
	flush(t, r)
	expectLog(t, k, "route replace 2001:db8:c::/64 table 101 nhid 7 mtu 1400 proto 117")

	r.Clear()
	flush(t, r)
	expectLog(t, k,
		"address delete 2001:db8::1/128 dev lo nodad preferred_lft 0 proto 117",
		"rule delete priority 1000 from 2001:db8::1/128 table 101 proto 117",
		"route delete unreachable default table 101 metric 4294967295 proto 117",
		"nexthop delete id 7 encap seg6 mode encap.red segs fd00::1 via fe80::7ab5:0:7 dev eth0 proto 117",
	)
	if len(k.All()) > 0 || r.Pending() > 0 || len(r.Want()) > 0 {
		t.Errorf("left: %v, pending %d, want %v", k.All(), r.Pending(), r.Want())
	}
	for class, c := range r.Counts() {
		if c != (route.Count{}) {
			t.Errorf("%s: %+v", class, c)
		}
	}
}

// TestUnreachableRulesGoLast: a packet that they stop never finds a route.
func TestUnreachableRulesGoLast(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	_, epe, nh, rule, _ := peer()
	guard := route.Rule{Priority: 901, Iif: "wan", Unreachable: true}
	for _, o := range []route.Object{rule, guard, epe, nh} {
		r.Set(o)
	}
	flush(t, r)
	k.Log = nil
	r.Clear()
	flush(t, r)
	lines := logLines(k)
	if want := "rule delete priority 901 from all iif wan unreachable proto 117"; len(lines) != 3 || lines[2] != want {
		t.Errorf("ops %q, want %q last", lines, want)
	}
	if len(k.All()) > 0 || r.Pending() > 0 {
		t.Errorf("left: %v, pending %d", k.All(), r.Pending())
	}
}

// The kernel deletes the routes of a nexthop object; desired ones are added again with the object.
func TestNexthopTakesRoutesAlong(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	_, epe, nh, _, _ := peer()
	r.Set(nh)
	r.Set(epe)
	flush(t, r)
	k.Log = nil

	r.Delete(nh.Key())
	flush(t, r)
	if r.Pending() != 1 || r.Counts()[route.ClassRoute] != (route.Count{Want: 1}) {
		t.Errorf("pending %d, counts %v", r.Pending(), r.Counts())
	}
	err := r.Flush()
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "Nexthop id does not exist") {
		t.Errorf("route without its nexthop: %v", err)
	}
	if c := r.Counts()[route.ClassRoute]; c.Errors != 1 {
		t.Errorf("counts %+v", c)
	}
	r.Set(nh)
	flush(t, r)
	if len(k.All()) != 2 || r.Pending() != 0 {
		t.Errorf("kernel %v, pending %d", k.All(), r.Pending())
	}

	// If a nexthop object cannot be deleted, its withdrawn routes still have to be deleted.
	k.Fault = func(op route.Op) error {
		if op.Delete && op.Object.Key() == nh.Key() {
			return unix.EBUSY
		}
		return nil
	}
	r.Delete(epe.Key())
	r.Delete(nh.Key())
	if err := r.Flush(); !errors.Is(err, unix.EBUSY) || r.Pending() != 2 {
		t.Errorf("%v, pending %d", err, r.Pending())
	}
	k.Fault = nil
	r.Set(nh)
	flush(t, r)
	if len(k.All()) != 1 || r.Pending() != 0 {
		t.Errorf("kernel %v, pending %d", k.All(), r.Pending())
	}
}

// A route may have a preferred source that is added after the route and deleted before it.
func TestPreferredSource(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	addr := route.Address{Link: "lo", Prefix: pfx("2001:db8::1/128")}
	rt := route.Route{Dst: pfx("::/0"), Gateway: ip("fe80::1"), Link: "eth0", PrefSrc: ip("2001:db8::1")}
	r.Set(rt)
	r.Set(addr)
	flush(t, r)
	r.Delete(addr.Key())
	flush(t, r)
	if r.Pending() != 1 {
		t.Errorf("pending %d, want the route", r.Pending())
	}
	r.Set(addr)
	flush(t, r)
	if got := k.All()[rt.Key()].Object; got != rt.Normal() {
		t.Errorf("route is %v", got)
	}
}

// A restarted daemon does not change correct objects and deletes stale ones only after Sweep.
func TestTakeOver(t *testing.T) {
	k := &routetest.Kernel{}
	guard, epe, nh, rule, addr := peer()
	for _, o := range []route.Object{guard, epe, nh, rule, addr} {
		k.Put(route.Edge, o)
	}
	stale := route.Route{Table: 101, Dst: pfx("2001:db8:dead::/64"), NexthopID: 7}
	k.Put(route.Edge, stale)
	foreign := route.Route{Table: 101, Dst: pfx("2001:db8:bead::/64"), Link: "eth0"}
	k.Put(99, foreign)

	r := newReconciler(k)
	resync := func() {
		t.Helper()
		if err := r.Resync(); err != nil {
			t.Fatal(err)
		}
	}
	resync()
	for _, o := range []route.Object{guard, epe, nh, rule, addr} {
		r.Set(o)
	}
	flush(t, r)
	resync()
	flush(t, r)
	expectLog(t, k)
	r.Sweep()
	flush(t, r)
	expectLog(t, k, "route delete 2001:db8:dead::/64 table 101 nhid 7 proto 117")
	if len(k.All()) != 6 {
		t.Errorf("kernel %v", k.All())
	}
	// After Sweep, unknown objects of our protocol are stale as soon as they are found.
	k.Put(route.Edge, stale)
	resync()
	flush(t, r)
	expectLog(t, k, "route delete 2001:db8:dead::/64 table 101 nhid 7 proto 117")
}

// Found objects that were never desired are deleted by Delete, and all of them by Clear, without
// Sweep.
func TestDeleteInherited(t *testing.T) {
	k := &routetest.Kernel{}
	guard, epe, nh, rule, addr := peer()
	for _, o := range []route.Object{guard, epe, nh, rule, addr} {
		k.Put(route.Edge, o)
	}
	r := newReconciler(k)
	if err := r.Resync(); err != nil {
		t.Fatal(err)
	}
	r.Delete(rule.Key())
	r.Delete(route.Rule{Priority: 1, Table: 1}.Key())
	flush(t, r)
	expectLog(t, k, "rule delete priority 1000 from 2001:db8::1/128 table 101 proto 117")
	r.Clear()
	flush(t, r)
	if len(k.All()) != 0 || r.Pending() != 0 {
		t.Errorf("kernel %v, pending %d", k.All(), r.Pending())
	}
}

func TestForeignObjectIsLeftAlone(t *testing.T) {
	k := &routetest.Kernel{}
	mine := route.Route{Dst: pfx("2001:db8::/32"), Link: "eth0"}
	theirs := route.Route{Dst: pfx("2001:db8::/32"), Link: "eth1"}
	k.Put(99, theirs)
	r := newReconciler(k)
	r.Set(mine)
	if err := r.Flush(); !errors.Is(err, route.ErrForeign) {
		t.Errorf("got %v", err)
	}
	if got := k.All()[mine.Key()]; got.Protocol != 99 || got.Object != theirs.Normal() {
		t.Errorf("kernel has %v", got)
	}
	k.Remove(mine.Key())
	flush(t, r)
}

func TestFlushErrorIsShort(t *testing.T) {
	k := &routetest.Kernel{Fault: func(route.Op) error { return unix.ENOMEM }}
	r := newReconciler(k)
	for i := range 1000 {
		r.Set(route.Rule{Priority: uint32(i), Table: 101})
	}
	err := r.Flush()
	var fe *route.FlushError
	if !errors.As(err, &fe) || fe.Failed != 1000 || !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("got %v", err)
	}
	if s := err.Error(); len(s) > 500 || !strings.HasPrefix(s, "1000 kernel objects failed: ") ||
		!strings.Contains(s, "and 997 more") {
		t.Errorf("text: %s", s)
	}
	if r.Pending() != 1000 || r.Counts()[route.ClassRule] != (route.Count{Want: 1000, Errors: 1000}) {
		t.Errorf("pending %d, counts %v", r.Pending(), r.Counts())
	}
	k.Fault = nil
	flush(t, r)
}

func TestStrings(t *testing.T) {
	for _, tc := range []struct {
		object route.Object
		want   string
	}{
		{route.Route{Table: 101, Dst: pfx("2001:db8:c::/64"), NexthopID: 7}, "2001:db8:c::/64 table 101 nhid 7"},
		{route.Route{Dst: pfx("::/0"), Gateway: ip("fe80::1"), Link: "eth0", PrefSrc: ip("2001:db8::1"), Metric: 10, MTU: 1400},
			"default table main via fe80::1 dev eth0 src 2001:db8::1 metric 10 mtu 1400"},
		{route.Route{Dst: pfx("fd00::1/128"), Link: "eth0", Local: route.LocalAction{Behavior: route.EndDT6, Table: 9}},
			"fd00::1/128 table main encap seg6local action End.DT6 table 9 dev eth0"},
		{route.Route{Dst: pfx("fd00::1/128"), Link: "eth0", Local: route.LocalAction{Behavior: route.EndDX6, Nexthop: ip("fd00::2")}},
			"fd00::1/128 table main encap seg6local action End.DX6 nh6 fd00::2 dev eth0"},
		{route.Route{Dst: pfx("fd00::/8"), Kind: route.Blackhole}, "blackhole fd00::/8 table main"},
		{route.Nexthop{ID: 1, Link: "eth0", Gateway: ip("fe80::1")}, "id 1 via fe80::1 dev eth0"},
		{route.Nexthop{ID: 1, Link: "eth0", SID: ip("fd00::1"), Encap: route.EncapFull},
			"id 1 encap seg6 mode encap segs fd00::1 via fe80::7ab5:0:1 dev eth0"},
		{route.Rule{Priority: 5, Table: 254}, "priority 5 from all table main"},
		{route.Rule{Priority: 5, To: pfx("2001:db8::/48"), Iif: "wan", Table: 254}, "priority 5 from all to 2001:db8::/48 iif wan table main"},
		{route.Rule{Priority: 5, Iif: "wan", Unreachable: true}, "priority 5 from all iif wan unreachable"},
		{route.Rule{Priority: 5, Oif: "wan", Table: 254, Specific: true}, "priority 5 from all oif wan table main suppress_prefixlength 0"},
		{route.Rule{Priority: 5, NotMark: 7, Table: 254}, "priority 5 not from all fwmark 0x7 table main"},
		{route.Route{Table: 101, Dst: pfx("fd00::/8"), Kind: route.Throw}, "throw fd00::/8 table 101"},
		{route.Altered{Object: route.Rule{Priority: 5, Table: 254}}, "priority 5 from all table main (altered)"},
		{route.Address{Link: "lo", Prefix: pfx("fd00::1/64")}, "fd00::1/64 dev lo nodad"},
		{route.Address{Link: "lo", Prefix: pfx("192.0.2.1/32"), Deprecated: true}, "192.0.2.1/32 dev lo scope link"},
		{route.Route{Dst: pfx("0.0.0.0/0"), Kind: route.Unreachable}, "unreachable 0.0.0.0/0 table main"},
		{route.Route{Dst: pfx("192.0.2.0/24"), Gateway: ip("fe80::1"), Link: "eth0", Metric: 1024},
			"192.0.2.0/24 table main via inet6 fe80::1 dev eth0 metric 1024"},
		{route.Route{Dst: pfx("fd00::1/128"), Link: "eth0", Local: route.LocalAction{Behavior: route.EndDX4, Nexthop: ip("192.0.2.1")}},
			"fd00::1/128 table main encap seg6local action End.DX4 nh4 192.0.2.1 dev eth0"},
		{route.Route{Dst: pfx("240.0.0.1/32"), Link: "eth0", Mark: 0xe4000001}, "240.0.0.1/32 table main encap bpf in tabane-mark-e4000001 dev eth0"},
		{route.Rule{Priority: 5, From: pfx("0.0.0.0/0"), Mark: 0xe4000001, Table: 101}, "priority 5 from 0.0.0.0/0 fwmark 0xe4000001 table 101"},
		{route.Rule{Priority: 5, From: pfx("0.0.0.0/0"), Iif: "wan", Unreachable: true}, "priority 5 from 0.0.0.0/0 iif wan unreachable"},
		{route.Rule{Priority: 5, To: pfx("192.0.2.0/24"), Table: 254}, "priority 5 from 0.0.0.0/0 to 192.0.2.0/24 table main"},
	} {
		if got := tc.object.String(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
		if err := tc.object.Check(); (err != nil) != strings.Contains(tc.want, "altered") {
			t.Errorf("%s: %v", tc.want, err)
		}
	}
}

func TestCheck(t *testing.T) {
	dst, a := pfx("2001:db8::/32"), ip("2001:db8::1")
	for _, o := range []route.Object{
		route.Address{Link: "lo"}, route.Address{Prefix: dst}, route.Address{Link: "lo", Prefix: pfx("::ffff:10.0.0.1/128")},
		route.Address{Link: "lo", Prefix: pfx("ff02::1/128")}, route.Address{Link: "a/b", Prefix: dst},
		route.Address{Link: "sixteen-bytes-xx", Prefix: dst}, route.Address{Link: "lo", Prefix: pfx("::/128")},
		route.Rule{Priority: 1, Table: 1, Unreachable: true}, route.Rule{Table: 1, To: pfx("2001:db8::1/64")}, route.Rule{Table: 1, Iif: "a:b"},
		route.Rule{Table: 1, From: pfx("2001:db8::/64"), To: pfx("2001:db8::/64")},
		route.Rule{Table: 1, Iif: "a", Oif: "b"}, route.Rule{Table: 1, Oif: "a", NotMark: 1}, route.Rule{Table: 1, Mark: 2, NotMark: 1}, route.Rule{Unreachable: true, Specific: true}, route.Rule{Table: 1, Oif: "a:b"},
		route.Rule{Priority: 1}, route.Rule{Table: 1, From: pfx("10.0.0.1/8")}, route.Rule{Table: 1, From: pfx("2001:db8::1/64")},
		route.Nexthop{Link: "a"}, route.Nexthop{ID: 1}, route.Nexthop{ID: 1, Link: "a", Gateway: ip("10.0.0.1")},
		route.Nexthop{ID: 1, Link: "a", SID: ip("fe80::1%a")}, route.Nexthop{ID: 1, Link: "a", Encap: 9},
		route.Nexthop{ID: 1, Link: "a", SID: ip("::")}, route.Nexthop{ID: 1, Link: "a", SID: ip("::ffff:1.2.3.4")},
		route.Route{Link: "a"}, route.Route{Dst: dst}, route.Route{Dst: pfx("2001:db8::1/32"), Link: "a"},
		route.Route{Dst: dst, Gateway: a}, route.Route{Dst: dst, NexthopID: 1, Link: "a"},
		route.Route{Dst: dst, NexthopID: 1, Gateway: a}, route.Route{Dst: dst, Kind: route.Unreachable, Link: "a"},
		route.Route{Dst: dst, Kind: 9}, route.Route{Dst: dst, Link: "a", PrefSrc: ip("1.2.3.4")},
		route.Route{Dst: dst, Link: "lo", Local: route.LocalAction{Behavior: route.EndDT6, Table: 1}},
		route.Route{Dst: dst, NexthopID: 1, Local: route.LocalAction{Behavior: route.EndDT6, Table: 1}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDT6}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDX6}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDX6, Table: 1, Nexthop: a}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDT6, Table: 1, Nexthop: a}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Table: 1}},
		route.Route{Dst: dst, Link: "a", Gateway: a, Local: route.LocalAction{Behavior: route.EndDT6, Table: 1}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: 9}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDX4, Nexthop: a}},
		route.Route{Dst: dst, Link: "a", Local: route.LocalAction{Behavior: route.EndDX6, Nexthop: ip("192.0.2.1")}},
		route.Route{Dst: dst, Link: "a", Mark: 1}, route.Route{Dst: pfx("240.0.0.1/32"), Link: "a", Gateway: ip("192.0.2.1"), Mark: 1},
		route.Route{Dst: pfx("192.0.2.1/32"), Link: "a", Local: route.LocalAction{Behavior: route.EndDX4, Nexthop: ip("192.0.2.1")}},
		route.Route{Dst: dst, Link: "a", Gateway: ip("192.0.2.1")},
		route.Route{Dst: pfx("192.0.2.0/24"), Link: "a", PrefSrc: a},
	} {
		if o.Check() == nil {
			t.Errorf("accepted %s %v", o.Key().Class(), o)
		}
	}
}

// universe has several objects for each of a few keys, so that random sequences collide often.
func universe() map[route.Key][]route.Object {
	var all []route.Object
	for id := range uint32(3) {
		for _, sid := range []string{"fd00::1", "fd00::2"} {
			all = append(all, route.Nexthop{ID: id + 1, Link: "eth0", SID: ip(sid)})
		}
	}
	for _, members := range []string{"1,1/2,1", "1,1/2,7", "3,1"} {
		all = append(all, route.NexthopGroup{ID: 4, Members: members})
	}
	for table := range uint32(2) {
		for _, dst := range []string{"::/0", "2001:db8:1::/48", "2001:db8:2::/48"} {
			r := route.Route{Table: table + 101, Dst: pfx(dst), Metric: 7}
			for id := range uint32(4) {
				r.NexthopID = id + 1
				all = append(all, r)
			}
			r.NexthopID, r.Kind = 0, route.Unreachable
			all = append(all, r)
			r.Kind, r.Link, r.PrefSrc = route.Unicast, "eth0", ip("2001:db8::1")
			all = append(all, r)
		}
		r4 := route.Route{Table: table + 101, Dst: pfx("192.0.2.0/24"), Metric: 7, NexthopID: 1}
		all = append(all, r4, route.Rule{Priority: 1000, From: pfx("192.0.2.1/32"), Table: table + 101})
		r4.NexthopID, r4.Link, r4.PrefSrc = 0, "eth0", ip("192.0.2.1")
		all = append(all, r4)
		all = append(all, route.Rule{Priority: 1000, From: pfx("2001:db8::1/128"), Table: table + 101})
	}
	for i := range 3 {
		prefix := netip.PrefixFrom(ip(fmt.Sprintf("2001:db8::%d", i)).Next(), 64)
		all = append(all, route.Address{Link: "lo", Prefix: prefix},
			route.Address{Link: "lo", Prefix: prefix, Deprecated: true},
			route.Address{Link: "lo", Prefix: netip.PrefixFrom(prefix.Addr(), 128)})
	}
	all = append(all, route.Address{Link: "lo", Prefix: pfx("192.0.2.1/32")}, route.Address{Link: "lo", Prefix: pfx("192.0.2.1/24"), Deprecated: true})
	m := map[route.Key][]route.Object{}
	for _, o := range all {
		o = o.Normal()
		m[o.Key()] = append(m[o.Key()], o)
	}
	return m
}

// grouped reports whether a group of that ID is wanted.
func grouped(want map[route.Key]route.Object, id uint32) bool {
	for _, o := range want {
		if g, ok := o.(route.NexthopGroup); ok && g.ID == id {
			return true
		}
	}
	return false
}

// A suspended nexthop object is deleted before anything that waits. Its routes are lost with it, are
// not tried meanwhile, and are added again with the object.
func TestSuspend(t *testing.T) {
	k := &routetest.Kernel{}
	r := newReconciler(k)
	guard, epe, nh, _, _ := peer()
	routes := []route.Route{epe, epe, epe}
	for i := range routes {
		routes[i].Dst = pfx(fmt.Sprintf("2001:db8:%d::/64", i))
		r.Set(routes[i])
	}
	r.Set(nh)
	flush(t, r)
	// A route to change and one to delete wait for the next flush.
	routes[0].MTU = 1400
	r.Set(routes[0])
	r.Set(guard)
	r.Delete(routes[1].Key())
	k.Log = nil
	r.Suspend(nh.Key())
	if len(k.Log) != 1 || !k.Log[0].Delete || len(k.All()) != 0 {
		t.Errorf("operations %v, kernel %v, want the deletion of the object alone", k.Log, k.All())
	}
	k.Log = nil
	for range 3 {
		flush(t, r)
	}
	if len(k.Log) != 1 || r.Pending() != 2 {
		t.Errorf("operations %v, %d pending, want one guard, and two routes that wait", k.Log, r.Pending())
	}
	r.Set(nh)
	flush(t, r)
	if len(k.All()) != 4 || r.Pending() != 0 {
		t.Errorf("kernel %v, %d pending", k.All(), r.Pending())
	}

	// A deletion that fails is tried again.
	k.Fault = func(op route.Op) error { return unix.ENOBUFS }
	r.Suspend(nh.Key())
	k.Fault = nil
	flush(t, r)
	if len(k.All()) != 1 || r.Pending() != 2 {
		t.Errorf("kernel %v, %d pending", k.All(), r.Pending())
	}
	// After the object was deleted, nothing waits for it.
	r.Delete(nh.Key())
	if err := r.Flush(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("routes without their nexthop: %v", err)
	}
}

// After any sequence of changes and faults, the kernel has the desired objects, and objects of
// other owners are unchanged.
func TestConverge(t *testing.T) {
	objects := universe()
	keys := slices.SortedFunc(maps.Keys(objects), func(a, b route.Key) int { return strings.Compare(a.String(), b.String()) })
	const foreign route.Protocol = 99
	rapid.Check(t, func(t *rapid.T) {
		k := &routetest.Kernel{}
		r := newReconciler(k)
		want := map[route.Key]route.Object{}
		theirs := map[route.Key]route.Object{}
		key := func() route.Key { return rapid.SampledFrom(keys).Draw(t, "key") }
		object := func(key route.Key) route.Object { return rapid.SampledFrom(objects[key]).Draw(t, "object") }
		resync := func() {
			if err := r.Resync(); err != nil {
				t.Fatal(err)
			}
		}
		set := func(t *rapid.T) {
			key := key()
			want[key] = object(key)
			r.Set(want[key])
		}
		faulty := func(t *rapid.T) {
			seed := rapid.Uint32().Draw(t, "seed")
			k.Fault = func(route.Op) error {
				seed = seed*1664525 + 1013904223
				return []error{nil, nil, unix.ENOMEM, unix.EINVAL}[seed>>30]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": set, "set too": set,
			"delete": func(*rapid.T) {
				key := key()
				delete(want, key)
				r.Delete(key)
			},
			"hasten": func(*rapid.T) { r.Hasten(key()) },
			"suspend": func(t *rapid.T) {
				if key := key(); key.Class() == route.ClassNexthop {
					delete(want, key)
					r.Suspend(key)
				}
			},
			"flush": func(t *rapid.T) {
				err := r.Flush()
				if err == nil && k.Fault == nil && r.Pending() == 0 {
					n := len(k.Log)
					if err := r.Flush(); err != nil || len(k.Log) != n {
						t.Fatalf("second flush: %v, ops %v", err, k.Log[n:])
					}
				}
			},
			"flush part": func(t *rapid.T) {
				routes := 0
				k.Log = nil
				more, err := r.FlushPart(rapid.IntRange(1, 2).Draw(t, "routes"))
				for _, op := range k.Log {
					route, ok := op.Object.(route.Route)
					if ok && route.Kind == 0 && route.Dst.Bits() > 0 && !op.Delete {
						routes++
					}
				}
				if routes > 6 { // the limit, the retry and separate
					t.Fatalf("%d routes in a part", routes)
				}
				if !more && err == nil && r.Pending() > 0 && k.Fault == nil {
					// What was lost with a nexthop object or an address.
					if more, _ := r.FlushPart(1 << 20); more {
						t.Fatal("there is more after everything")
					}
				}
			},
			"fault":    faulty,
			"no fault": func(*rapid.T) { k.Fault = nil },
			"resync":   func(*rapid.T) { resync() },
			"tamper": func(t *rapid.T) {
				if key := key(); theirs[key] == nil {
					o := object(key)
					if !possible(o, k.All()) {
						return
					}
					if rapid.Bool().Draw(t, "altered") {
						o = route.Altered{Object: o}
					}
					k.Put(route.Edge, o)
				}
				resync()
			},
			"remove": func(*rapid.T) {
				if key := key(); theirs[key] == nil {
					k.Remove(key)
				}
				resync()
			},
			"foreign": func(*rapid.T) {
				key := key()
				o := object(key)
				if rt, ok := o.(route.Route); ok && (rt.NexthopID != 0 || rt.PrefSrc.IsValid()) {
					return // the kernel deletes it together with our objects
				}
				if _, ok := o.(route.NexthopGroup); ok {
					return // it loses members that are ours
				}
				theirs[key] = o
				k.Put(foreign, o)
				resync()
			},
			"foreign gone": func(*rapid.T) {
				if key := key(); theirs[key] != nil {
					delete(theirs, key)
					k.Remove(key)
				}
				resync()
			},
			"link": func(t *rapid.T) {
				l := route.Link{Index: 2, Name: rapid.SampledFrom([]string{"eth0", "eth1"}).Draw(t, "link"), Admin: true, Up: true}
				if rapid.Bool().Draw(t, "down") {
					// The test kernel does not delete objects when a link goes
					// down, so objects recorded as lost are found again.
					r.Link(route.LinkChange{Link: route.Link{Index: 2, Name: l.Name}})
				}
				r.Link(route.LinkChange{Link: l})
				resync()
			},
			"deleted": func(t *rapid.T) {
				key := key()
				o := k.All()[key].Object
				if o == nil || theirs[key] != nil {
					return
				}
				k.Remove(key)
				r.Changed(route.ObjectChange{Object: o, Protocol: route.Edge, Deleted: true})
			},
			"compare": func(t *rapid.T) {
				c := r.Compare()
				dump := k.Dump(route.Edge)
				set(t)
				n := len(k.Log)
				_ = r.Flush() // may fail
				if len(k.Log) > n {
					dump = slices.DeleteFunc(dump, func(o route.Object) bool { // as by a change during the dump
						return o.Key().Class() == route.ClassRoute && rapid.Bool().Draw(t, "left out")
					})
				}
				c.Add(dump)
				c.End(true)
			},
			"sweep": func(*rapid.T) { r.Sweep() },
			"clear": func(*rapid.T) {
				clear(want)
				r.Clear()
			},
			"restart": func(t *rapid.T) {
				resync()
				_ = r.Flush() // may fail
				before := k.All()
				n := len(k.Log)
				r = newReconciler(k)
				resync()
				for _, o := range want {
					r.Set(o)
				}
				_ = r.Flush()
				for _, op := range k.Log[n:] {
					if op.Delete || before[op.Object.Key()] == (routetest.Owned{Protocol: route.Edge, Object: op.Object}) {
						t.Fatalf("the new start disturbed what was there: %v", op)
					}
				}
			},
			"": func(t *rapid.T) {
				for key, o := range theirs {
					if got := k.All()[key]; got.Protocol != foreign || got.Object != o {
						t.Fatalf("%v of another owner became %v", o, got)
					}
				}
				if got := len(r.Want()); got != len(want) {
					t.Fatalf("wants %d objects, not %d", got, len(want))
				}
			},
		})

		k.Fault = nil
		r.Sweep()
		resync()
		_ = r.Flush() // a dependency may be missing, or another owner may have the key
		_ = r.Flush()
		expect := map[route.Key]routetest.Owned{}
		for key, o := range theirs {
			expect[key] = routetest.Owned{Protocol: foreign, Object: o}
		}
		there := maps.Clone(expect)
		for key, o := range want {
			if _, taken := there[key]; !taken {
				there[key] = routetest.Owned{Protocol: route.Edge, Object: o}
			}
		}
		blocked, standing := 0, 0
		for key, o := range want {
			if theirs[key] != nil || !possible(o, there) {
				blocked++
				if rt, ok := o.(route.Route); ok && grouped(want, rt.NexthopID) {
					standing++ // perhaps: the kernel keeps a group, and its routes, with the members that are left
				}
				continue
			}
			expect[key] = routetest.Owned{Protocol: route.Edge, Object: o}
		}
		got := k.All()
		// A route that cannot be replaced stays unchanged: compare only achievable objects.
		for key := range want {
			if _, reachable := expect[key]; !reachable && theirs[key] == nil {
				delete(got, key)
			}
		}
		if !maps.Equal(got, expect) {
			t.Fatalf("kernel has %v\nwant %v", got, expect)
		}
		if r.Pending() > blocked || r.Pending() < blocked-standing {
			t.Fatalf("%d pending, %d cannot be reached", r.Pending(), blocked)
		}
		errs := 0
		for _, c := range r.Counts() {
			errs += c.Errors
		}
		if errs > blocked || errs < blocked-standing {
			t.Fatalf("%d errors counted, %d cannot be reached", errs, blocked)
		}
	})
}

// possible reports whether the nexthop object and preferred source of a route exist, and the
// members of a group.
func possible(o route.Object, there map[route.Key]routetest.Owned) bool {
	if g, ok := o.(route.NexthopGroup); ok {
		return !slices.ContainsFunc(g.List(), func(m route.GroupMember) bool {
			_, ok := there[route.Nexthop{ID: m.ID}.Key()]
			return !ok
		})
	}
	r, ok := o.(route.Route)
	if !ok {
		return true
	}
	if nexthop, ok := there[route.Nexthop{ID: r.NexthopID}.Key()]; r.NexthopID != 0 && (!ok || !possible(nexthop.Object, there)) {
		return false
	}
	_, ok = there[route.Address{Link: "lo", Prefix: netip.PrefixFrom(r.PrefSrc, 128)}.Key()]
	return !r.PrefSrc.IsValid() || ok
}

func manyRoutes(n int) []route.Object {
	objects := make([]route.Object, n)
	base := ip("2001:db8::").As16()
	for i := range objects {
		base[5], base[6], base[7] = byte(i>>16), byte(i>>8), byte(i)
		objects[i] = route.Route{Table: 101, Dst: netip.PrefixFrom(netip.AddrFrom16(base), 64), NexthopID: 7}.Normal()
	}
	return objects
}

// free is a Kernel that accepts all operations at no cost, for benchmarks.
type free struct{}

func (free) Apply(ops []route.Op) []error                                { return make([]error, len(ops)) }
func (free) DumpEach(route.Protocol, func([]route.Object)) (bool, error) { return true, nil }

func BenchmarkFlush100k(b *testing.B) {
	objects := manyRoutes(100_000)
	for b.Loop() {
		r := newReconciler(free{})
		for _, o := range objects {
			r.Set(o)
		}
		if err := r.Flush(); err != nil || r.Pending() != 0 {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1e5/b.Elapsed().Seconds(), "routes/s")
}

// Whatever is delayed of a comparison and of the events of the reconciler's own changes, the kernel
// has the desired objects without a further comparison.
func TestLateEventsAndDumps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &routetest.Kernel{}
		r := newReconciler(k)
		if rapid.Bool().Draw(t, "swept") {
			r.Sweep()
		}
		nexthops := []route.Object{route.Nexthop{ID: 1, Link: "eth0", SID: ip("fd00::1")}, route.Nexthop{ID: 2, Link: "eth0", SID: ip("fd00::2")}}
		via := map[route.Key]uint32{} // the nexthop objects of the desired routes
		routes := func(id uint32) (all []route.Route) {
			for _, dst := range []string{"2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:3::/48"} {
				all = append(all, route.Route{Table: 101, Dst: pfx(dst), Metric: 20, NexthopID: id})
			}
			return all
		}
		var events []route.ObjectChange
		flush := func() {
			for {
				before := k.All()
				err := r.Flush()
				if err != nil {
					t.Fatal(err)
				}
				after := k.All()
				for key, o := range before {
					now, there := after[key]
					switch {
					case !there:
						events = append(events, route.ObjectChange{Object: o.Object, Protocol: route.Edge, Deleted: true})
					case now != o:
						events = append(events, route.ObjectChange{Object: now.Object, Protocol: route.Edge})
					}
				}
				if r.Pending() == 0 {
					return
				}
			}
		}
		var comparison *route.Comparison
		var parts [][]route.Object
		read := 0 // classes
		part := func() {
			dump := k.Dump(route.Edge)
			class := []route.Class{route.ClassNexthop, route.ClassRoute}[read]
			parts = append(parts, slices.DeleteFunc(dump, func(o route.Object) bool { return o.Key().Class() != class }))
			read++
		}
		change := func(id uint32) {
			chosen := rapid.IntRange(1, 7).Draw(t, "routes")
			for i, o := range routes(id) {
				if chosen>>i&1 == 0 {
					continue
				}
				if id == 0 {
					delete(via, o.Key())
					r.Delete(o.Key())
				} else {
					via[o.Key()] = id
					r.Set(o)
				}
			}
			// Nexthop objects are desired while routes use them.
			for i, n := range nexthops {
				if slices.Contains(slices.Collect(maps.Values(via)), uint32(i+1)) {
					r.Set(n)
				} else {
					r.Delete(n.Key())
				}
			}
		}
		event := func() {
			r.Changed(events[0])
			events = events[1:]
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) { change(uint32(rapid.IntRange(0, 2).Draw(t, "id"))) },
			"flush":  func(*rapid.T) { flush() },
			"change and flush": func(t *rapid.T) {
				change(uint32(rapid.IntRange(0, 2).Draw(t, "id")))
				flush()
			},
			"event": func(*rapid.T) {
				if len(events) > 0 {
					event()
				}
			},
			"compare": func(*rapid.T) {
				if comparison == nil {
					comparison, read, parts = r.Compare(), 0, nil
				}
			},
			"dump": func(*rapid.T) {
				if comparison != nil && read < 2 {
					part()
				}
			},
			"part": func(*rapid.T) {
				if len(parts) > 0 {
					comparison.Add(parts[0])
					parts = parts[1:]
				}
			},
			"end": func(t *rapid.T) {
				if comparison != nil && read == 2 && len(parts) == 0 && !comparison.EndPart(true, rapid.IntRange(1, 5).Draw(t, "entries")) {
					comparison = nil
				}
			},
			"": func(t *rapid.T) {},
		})
		for len(events) > 0 {
			event()
		}
		flush()
		events = nil
		want := map[route.Key]routetest.Owned{}
		for i, n := range nexthops {
			if slices.Contains(slices.Collect(maps.Values(via)), uint32(i+1)) {
				want[n.Key()] = routetest.Owned{Protocol: route.Edge, Object: n.Normal()}
			}
		}
		for key, id := range via {
			o := routes(id)[slices.IndexFunc(routes(id), func(o route.Route) bool { return o.Key() == key })]
			want[key] = routetest.Owned{Protocol: route.Edge, Object: o.Normal()}
		}
		if got := k.All(); !maps.Equal(got, want) {
			t.Fatalf("kernel %v, want %v", got, want)
		}
	})
}

// A route takes less than 100 bytes, in tables of any size, and none of them is a pointer: a
// collection of garbage does not take longer because of it.
func TestRouteMemory(t *testing.T) {
	const n = 200_000
	objects := manyRoutes(n)
	r := newReconciler(free{})
	before := heap.InUse()
	for _, o := range objects {
		r.Set(o)
	}
	flush(t, r)
	if per := float64(heap.InUse()-before) / n; per > 100 {
		t.Errorf("%.0f bytes a route", per)
	}
	for _, o := range objects {
		r.Delete(o.Key())
	}
	flush(t, r)
	for _, o := range objects {
		r.Set(o)
	}
	flush(t, r)
	if per := float64(heap.InUse()-before) / n; per > 100 {
		t.Errorf("%.0f bytes a route after all were deleted and added again", per)
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive(objects)
}

// BenchmarkFlushOneOf100k changes one route of 100,000.
func BenchmarkFlushOneOf100k(b *testing.B) {
	objects := manyRoutes(100_000)
	r := newReconciler(free{})
	for _, o := range objects {
		r.Set(o)
	}
	if err := r.Flush(); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i++
		rt := objects[i%len(objects)].(route.Route)
		rt.MTU = uint32(1300 + i%50)
		r.Set(rt)
		if err := r.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

// Objects that another program deletes or replaces are restored by the next flush, without a
// resync, together with the routes that the kernel drops with them; events of outdated objects have
// no effect.
func TestChanged(t *testing.T) {
	guard, via, nexthop, rule, address := peer()
	src := route.Route{Table: 9, Dst: pfx("2001:db8:9::/64"), Link: "eth9", PrefSrc: address.Prefix.Addr()}
	all := []route.Object{address, nexthop, via, rule, guard, src}
	setup := func() (*routetest.Kernel, *route.Reconciler) {
		k := &routetest.Kernel{}
		r := newReconciler(k)
		for _, o := range all {
			r.Set(o)
		}
		flush(t, r)
		return k, r
	}
	_, r := setup()
	before := r.Pending()
	for _, o := range all {
		t.Run(o.Key().String(), func(t *testing.T) {
			k, r := setup()
			want := k.All()
			k.Remove(o.Key())
			if !r.Changed(route.ObjectChange{Object: o, Protocol: route.Edge, Deleted: true}) || r.Settled(o.Key()) {
				t.Error("the deletion changed nothing")
			}
			flush(t, r)
			if got := k.All(); !maps.Equal(got, want) {
				t.Errorf("kernel %v, want %v", got, want)
			}
			if o.Key().Class() == route.ClassAddress {
				return
			}
			k.Put(route.Edge, route.Altered{Object: o})
			r.Changed(route.ObjectChange{Object: route.Altered{Object: o}, Protocol: route.Edge})
			flush(t, r)
			if got := k.All(); !maps.Equal(got, want) {
				t.Errorf("after a replacement: kernel %v, want %v", got, want)
			}
		})
	}
	for _, c := range []route.ObjectChange{
		{Object: rule, Protocol: route.Edge + 1, Deleted: true},
		{Object: nexthop, Protocol: route.Edge},
		{Object: route.Altered{Object: address}, Protocol: route.Edge},
		{Object: route.Rule{Priority: 1, Table: 1}, Protocol: route.Edge, Deleted: true},
		{Object: route.Rule{Priority: 1, Table: 1}, Protocol: route.Edge + 1},
	} {
		if r.Changed(c) || r.Pending() != before {
			t.Errorf("%+v made %d objects pending", c, r.Pending()-before)
		}
	}
	// A deletion event of an object that has been replaced since has no effect.
	old := nexthop
	old.SID = ip("fd00::99")
	if r.Changed(route.ObjectChange{Object: old, Protocol: route.Edge, Deleted: true}); r.Pending() != before {
		t.Error("the deletion of an older object counts")
	}
	// An object of another owner is not replaced, and an error is reported.
	k, r := setup()
	k.Put(99, guard)
	r.Changed(route.ObjectChange{Object: guard, Protocol: 99})
	if err := r.Flush(); !errors.Is(err, route.ErrForeign) {
		t.Errorf("flush: %v, want %v", err, route.ErrForeign)
	}
}

// The objects on a link are lost when it goes down. They are added when it comes up, not before.
func TestLink(t *testing.T) {
	guard, via, nexthop, rule, _ := peer()
	plain := route.Route{Table: 9, Dst: pfx("2001:db8:9::/64"), Link: nexthop.Link}
	down := func(admin bool) route.LinkChange {
		return route.LinkChange{Link: route.Link{Index: 2, Name: nexthop.Link, Admin: admin}}
	}
	for name, change := range map[string]route.LinkChange{
		"carrier": down(true), "admin": down(false), "deleted": {Link: route.Link{Index: 2, Name: nexthop.Link, Admin: true, Up: true}, Deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := &routetest.Kernel{}
			r := newReconciler(k)
			for _, o := range []route.Object{nexthop, via, rule, guard, plain} {
				r.Set(o)
			}
			flush(t, r)
			want := k.All()
			k.Remove(nexthop.Key())
			gone := 2
			if name != "carrier" {
				k.Remove(plain.Key())
				gone++
			}
			if !r.Link(change) || r.Pending() != gone {
				t.Errorf("%d pending with the link down, want %d", r.Pending(), gone)
			}
			n := len(k.Log)
			flush(t, r)
			if len(k.Log) != n {
				t.Errorf("with the link down: %v", k.Log[n:])
			}
			// An object that becomes desired while the link is down waits too; one that
			// is no longer desired does not.
			late := via
			late.Dst = pfx("2001:db8:77::/64")
			r.Set(late)
			r.Delete(via.Key())
			flush(t, r)
			want[late.Key()] = routetest.Owned{Protocol: route.Edge, Object: late.Normal()}
			delete(want, via.Key())
			r.Link(route.LinkChange{Link: route.Link{Index: 3, Name: nexthop.Link, Admin: true, Up: true}})
			flush(t, r)
			if got := k.All(); !maps.Equal(got, want) || r.Pending() != 0 {
				t.Errorf("kernel %v, want %v", got, want)
			}
			if r.Link(route.LinkChange{Link: route.Link{Index: 9, Name: "other"}}) {
				t.Error("a link without objects counts as used")
			}
		})
	}
}

// A route is changed to another nexthop object while it waits for one on a link that is down.
func TestWaitingRouteMoves(t *testing.T) {
	_, via, nexthop, _, _ := peer()
	k := &routetest.Kernel{}
	r := newReconciler(k)
	r.Link(route.LinkChange{Link: route.Link{Index: 2, Name: nexthop.Link, Admin: true}})
	r.Set(nexthop)
	r.Set(via)
	flush(t, r)
	if r.Pending() != 2 || len(k.Log) != 0 {
		t.Fatalf("%d pending, ops %v", r.Pending(), k.Log)
	}
	other := nexthop
	other.ID, other.Link = nexthop.ID+1, "other"
	r.Set(other)
	via.NexthopID = other.ID
	r.Set(via)
	flush(t, r)
	if got := k.All()[via.Key()]; got.Object != via.Normal() || r.Pending() != 1 {
		t.Errorf("kernel has %v, %d pending", got.Object, r.Pending())
	}
}

// A route that a dump leaves out is not added again at once if the table changed during the dump,
// but if it is left out twice or nothing changed.
func TestIncompleteDump(t *testing.T) {
	_, epe, nexthop, _, _ := peer()
	k := &routetest.Kernel{}
	r := newReconciler(k)
	r.Set(nexthop)
	r.Set(epe)
	flush(t, r)
	other := epe
	compare := func(change, consistent bool, found ...route.Object) int {
		t.Helper()
		c := r.Compare()
		if change {
			other.MTU++
			other.Dst = pfx("2001:db8:d::/64")
			r.Set(other)
			flush(t, r)
		}
		c.Add(append(found, nexthop))
		c.End(consistent)
		return r.Pending()
	}
	if n := compare(true, true); n != 0 {
		t.Errorf("%d pending after the first dump without the route", n)
	}
	if n := compare(true, true, epe, epe); n != 0 { // returned twice
		t.Errorf("%d pending after a dump with the route", n)
	}
	if n := compare(false, false, other.Normal()); n != 0 {
		t.Errorf("%d pending after an inconsistent dump", n)
	}
	if n := compare(true, true); n != 1 {
		t.Errorf("%d pending after two dumps without the route", n)
	}
	flush(t, r)
	if n := compare(false, true, other.Normal()); n != 1 {
		t.Errorf("%d pending after a complete dump without the route", n)
	}
}

// Objects that change during a dump are not compared with the outdated dump.
func TestComparisonLeavesOutChanges(t *testing.T) {
	guard, via, nexthop, rule, address := peer()
	k := &routetest.Kernel{}
	r := newReconciler(k)
	for _, o := range []route.Object{address, nexthop, via, rule} {
		r.Set(o)
	}
	flush(t, r)
	c := r.Compare()
	dump := k.Dump(route.Edge)
	r.Delete(via.Key())
	r.Set(guard)
	moved := nexthop
	moved.SID = ip("fd00::99")
	r.Set(moved)
	flush(t, r)
	k.Remove(rule.Key())
	r.Changed(route.ObjectChange{Object: rule, Protocol: route.Edge, Deleted: true})
	for _, o := range dump {
		c.Add([]route.Object{o})
	}
	c.End(true)
	flush(t, r)
	want := map[route.Key]routetest.Owned{}
	for _, o := range []route.Object{address, moved, rule, guard} {
		want[o.Key()] = routetest.Owned{Protocol: route.Edge, Object: o.Normal()}
	}
	if got := k.All(); !maps.Equal(got, want) {
		t.Errorf("kernel %v, want %v", got, want)
	}
	// Also those that are desired again after they were deleted.
	r.Set(via)
	flush(t, r)
	if _, there := k.All()[via.Key()]; !there {
		t.Error("a route that an outdated dump has is not added")
	}
	c, dump = r.Compare(), k.Dump(route.Edge)
	r.Delete(via.Key())
	flush(t, r)
	c.Add(dump)
	before := r.Entries()
	if c.End(true); r.Entries() != before-1 || r.Pending() != 0 {
		t.Errorf("%d entries after the comparison, %d before its end, %d pending", r.Entries(), before, r.Pending())
	}
	// A comparison has no effect after another one was started.
	old := r.Compare()
	if err := r.Resync(); err != nil {
		t.Fatal(err)
	}
	old.Add(dump)
	if old.End(true); r.Pending() != 0 {
		t.Errorf("%d pending after an old comparison", r.Pending())
	}
}
