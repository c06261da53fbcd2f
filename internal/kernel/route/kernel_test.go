package route_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// A lab is a namespace with two pairs of links, a0-b0 and a1-b1, all up.
type lab struct {
	*route.Conn
	t    testing.TB
	name string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	name := netnstest.New(t)
	l := &lab{t: t, name: name}
	var settled *route.Watcher
	l.in(func() error {
		// No link-local addresses: the kernel would add and delete them during the test.
		if err := netns.Sysctl("net.ipv6.conf.default.addr_gen_mode", "1"); err != nil {
			return err
		}
		for i := range 2 {
			err := netlink.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("a%d", i)},
				PeerName:  fmt.Sprintf("b%d", i),
			})
			if err != nil {
				return err
			}
		}
		var err error
		if settled, err = route.Watch(context.Background(), route.Routes); err != nil {
			return err
		}
		l.Conn, err = route.Dial()
		return err
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	defer settled.Close()
	for _, link := range []string{"lo", "a0", "b0", "a1", "b1"} {
		if err := l.SetLinkUp(link, true); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel brings the links up in the background, and the multicast route of each is the
	// last that it adds.
	for n := 0; n < 4; {
		c, ok := next(t, settled).(route.ObjectChange)
		if ok && strings.Contains(c.Object.String(), "ff00::/8 ") && !c.Deleted {
			n++
		}
	}
	return l
}

func (l *lab) in(f func() error) {
	l.t.Helper()
	if err := netns.Do(l.name, f); err != nil {
		l.t.Fatal(err)
	}
}

// ip executes an iproute2 command line in the namespace without the ip program.
func (l *lab) ip(command string) string {
	l.t.Helper()
	out, err := netnstest.TryIP(l.t, l.name, command)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// iproute2 runs the program `ip FAMILY ARGS` in the namespace; the family is -4, -6 or -d, for any.
func (l *lab) iproute2(family string, args ...string) string {
	l.t.Helper()
	cmd := exec.Command(programs.Need(l.t, "ip"), append([]string{family}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := netns.Start(l.name, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		l.t.Fatalf("ip %s %s: %v\n%s", family, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func (l *lab) apply(ops ...route.Op) []error { return l.Apply(ops) }

func (l *lab) add(objects ...route.Object) {
	l.t.Helper()
	var ops []route.Op
	for _, o := range objects {
		ops = append(ops, route.Op{Protocol: route.Edge, Object: o})
	}
	l.must(ops...)
}

func (l *lab) must(ops ...route.Op) {
	l.t.Helper()
	for i, err := range l.apply(ops...) {
		if err != nil {
			l.t.Errorf("%v: %v", ops[i], err)
		}
	}
}

func (l *lab) want(objects ...route.Object) {
	l.t.Helper()
	got, err := l.Dump(route.Edge)
	if err != nil {
		l.t.Fatal(err)
	}
	a, b := lines(got), lines(objects)
	if !slices.Equal(a, b) {
		l.t.Errorf("kernel has\n\t%s\nwant\n\t%s", strings.Join(a, "\n\t"), strings.Join(b, "\n\t"))
	}
}

func lines(objects []route.Object) []string {
	var s []string
	for _, o := range objects {
		s = append(s, fmt.Sprintf("%s %s", o.Key().Class(), o))
	}
	slices.Sort(s)
	return s
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// everything returns objects that together use all fields.
func everything() []route.Object {
	return []route.Object{
		route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")},
		route.Nexthop{ID: 8, Link: "a0", SID: ip("fd00:1::2"), Encap: route.EncapFull},
		route.Nexthop{ID: 9, Link: "a1", Gateway: ip("fe80::9")},
		route.Nexthop{ID: 10, Link: "a1"},
		route.NexthopGroup{ID: 11, Members: "7,200/8,1"},
		route.Route{Table: 103, Dst: pfx("2001:db8:c::/64"), NexthopID: 11, MTU: 1524},
		route.Route{Table: 103, Dst: pfx("203.0.113.0/24"), NexthopID: 11, MTU: 1524},
		route.Route{Table: 101, Dst: pfx("::/0"), Kind: route.Unreachable, Metric: 4294967295},
		route.Route{Table: 101, Dst: pfx("2001:db8:c::/64"), NexthopID: 7},
		route.Route{Table: 102, Dst: pfx("2001:db8:c::/64"), NexthopID: 8, MTU: 1400},
		route.Route{Dst: pfx("2001:db8:d::/64"), Gateway: ip("fe80::2"), Link: "a0", Metric: 20},
		route.Route{Dst: pfx("2001:db8:d::/64"), Link: "a1", Metric: 30, PrefSrc: ip("2001:db8::1")},
		route.Route{Dst: pfx("2001:db8:e::/64"), Kind: route.Blackhole},
		route.Route{Dst: pfx("2001:db8:f::/64"), Gateway: ip("2001:db8:1::2"), Link: "a0"},
		route.Route{Dst: pfx("fd00:2::1/128"), Link: "a0", Local: route.LocalAction{Behavior: route.EndDT6, Table: 101}},
		route.Route{Dst: pfx("fd00:2::2/128"), Link: "a0",
			Local: route.LocalAction{Behavior: route.EndDX6, Nexthop: ip("2001:db8:1::2")}},
		route.Rule{Priority: 1000, From: pfx("2001:db8::1/128"), Table: 101},
		route.Rule{Priority: 1001, Table: 102},
		route.Rule{Priority: 1002, To: pfx("2001:db8::/48"), Iif: "a1", Table: route.MainTable},
		route.Rule{Priority: 1003, Iif: "a1", Unreachable: true},
		route.Rule{Priority: 1004, From: pfx("2001:db8::1/128"), Unreachable: true},
		route.Rule{Priority: 1005, Table: route.MainTable, Specific: true},
		route.Rule{Priority: 1006, Oif: "a1", Table: route.MainTable},
		route.Rule{Priority: 1007, NotMark: 7, Table: 101},
		route.Route{Table: 101, Dst: pfx("2001:db8:10::/64"), Kind: route.Throw},
		route.Route{Table: 103, Dst: pfx("::/0"), Kind: route.Deliver},
		route.Route{Table: 103, Dst: pfx("0.0.0.0/0"), Kind: route.Deliver},
		route.Address{Link: "lo", Prefix: pfx("2001:db8::1/128")},
		route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/64"), Deprecated: true},
		route.Route{Table: 101, Dst: pfx("0.0.0.0/0"), Kind: route.Unreachable, Metric: 4294967295},
		route.Route{Table: 101, Dst: pfx("203.0.113.0/24"), NexthopID: 7, MTU: 1524}, // IPv6 nexthop object
		route.Route{Dst: pfx("203.0.113.0/24"), Gateway: ip("198.51.100.2"), Link: "a0", Metric: 20},
		route.Route{Dst: pfx("203.0.113.0/24"), Gateway: ip("2001:db8:1::2"), Link: "a0", Metric: 30},
		route.Route{Dst: pfx("203.0.113.0/25"), Link: "a1", PrefSrc: ip("192.0.2.1")},
		route.Route{Dst: pfx("203.0.113.128/25"), Kind: route.Blackhole},
		route.Route{Dst: pfx("fd00:2::3/128"), Link: "a0",
			Local: route.LocalAction{Behavior: route.EndDX4, Nexthop: ip("198.51.100.2")}},
		route.Rule{Priority: 1000, From: pfx("192.0.2.1/32"), Table: 101},
		route.Rule{Priority: 1001, From: pfx("0.0.0.0/0"), Table: 102},
		route.Rule{Priority: 1002, To: pfx("192.0.2.0/24"), Iif: "a1", Table: route.MainTable},
		route.Rule{Priority: 1003, From: pfx("0.0.0.0/0"), Iif: "a1", Unreachable: true},
		route.Rule{Priority: 1004, From: pfx("192.0.2.1/32"), Unreachable: true},
		route.Rule{Priority: 1005, From: pfx("0.0.0.0/0"), Mark: 0xe4000001, Table: 101},
		route.Rule{Priority: 1006, From: pfx("0.0.0.0/0"), Table: route.MainTable, Specific: true},
		route.Rule{Priority: 1007, From: pfx("0.0.0.0/0"), Oif: "a1", Table: route.MainTable},
		route.Rule{Priority: 1008, From: pfx("0.0.0.0/0"), NotMark: 7, Table: 101, Specific: true},
		route.Route{Table: 101, Dst: pfx("192.0.2.0/24"), Kind: route.Throw},
		route.Address{Link: "lo", Prefix: pfx("192.0.2.1/32"), Deprecated: true},
		route.Address{Link: "a0", Prefix: pfx("198.51.100.1/24")},
	}
}

// marked is a route with a program, which iproute2 reads from a file.
var marked = route.Route{Dst: pfx("240.0.0.1/32"), Link: "a0", Mark: 0xe4000001}

// isIPv4 reports whether an object is configured by `ip -4`.
func isIPv4(o route.Object) bool {
	switch o := o.(type) {
	case route.Address:
		return o.Prefix.Addr().Is4()
	case route.Route:
		return o.Dst.Addr().Is4()
	case route.Rule:
		return o.From.Addr().Is4() || o.To.Addr().Is4()
	}
	return false
}

// dependent moves addresses to the front, because gateways and preferred sources depend on them.
func dependent(objects []route.Object) []route.Object {
	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b route.Object) int {
		rank := map[route.Class]int{route.ClassAddress: -1}
		return rank[a.Key().Class()] - rank[b.Key().Class()]
	})
	return objects
}

func TestKernelEverything(t *testing.T) {
	l := newLab(t)
	objects := dependent(append(everything(), marked))
	l.add(objects...)
	l.want(objects...)
	l.add(objects...)
	l.want(objects...)
	for _, o := range objects {
		op := route.Op{Protocol: route.Edge, Delete: true, Object: o}
		l.must(op)
		l.must(op)
	}
	l.want()
}

// The String of an object, passed to iproute2, adds the same object.
func TestKernelStrings(t *testing.T) {
	l := newLab(t)
	command := map[route.Class]string{
		route.ClassRule: "rule", route.ClassNexthop: "nexthop", route.ClassRoute: "route",
	}
	proto := map[route.Class]string{
		route.ClassRule: "protocol", route.ClassNexthop: "protocol", route.ClassRoute: "proto",
	}
	objects := everything()
	for _, o := range dependent(objects) {
		c, family := o.Key().Class(), "-6"
		if isIPv4(o) {
			family = "-4"
		} else if _, ok := o.(route.NexthopGroup); ok {
			family = "-d"
		}
		if c == route.ClassAddress {
			// Not every iproute2 can set the protocol of an address: check that the
			// text is accepted and has the same key.
			l.iproute2(family, slices.Concat([]string{"addr", "add"}, strings.Fields(o.String()))...)
			if err := l.apply(route.Op{Protocol: route.Edge, Object: o})[0]; !errors.Is(err, route.ErrForeign) {
				t.Errorf("%v: %v", o, err)
			}
			l.must(route.Op{Protocol: route.Edge, Delete: true, Object: o}, route.Op{Protocol: route.Edge, Object: o})
			continue
		}
		l.iproute2(family, slices.Concat([]string{command[c], "add"}, strings.Fields(o.String()), []string{proto[c], "117"})...)
	}
	l.want(objects...)
	// Conversely, iproute2 prints the objects that this package added.
	l.add(objects...)
	out := l.iproute2("-6", "route", "show", "table", "101", "proto", "117")
	if !strings.Contains(out, "2001:db8:c::/64 nhid 7") || !strings.Contains(out, "unreachable default") {
		t.Error(out)
	}
}

// Every kind of route can replace every other without remains of the old one, whether the old one
// is known or not.
func TestKernelReplaceRoute(t *testing.T) {
	for _, dst := range []string{"2001:db8:c::/64", "203.0.113.0/24"} {
		t.Run(dst, func(t *testing.T) { testReplaceRoute(t, route.Route{Table: 101, Dst: pfx(dst)}) })
	}
}

func testReplaceRoute(t *testing.T, base route.Route) {
	l := newLab(t)
	l.add(route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")}, route.Nexthop{ID: 8, Link: "a1", Gateway: ip("fe80::1")})
	var variants []route.Object
	for _, change := range []func(*route.Route){
		func(r *route.Route) { r.Kind = route.Unreachable },
		func(r *route.Route) { r.Kind = route.Blackhole },
		func(r *route.Route) { r.Kind = route.Throw },
		func(r *route.Route) { r.NexthopID = 7 },
		func(r *route.Route) { r.NexthopID, r.MTU = 8, 1300 },
		func(r *route.Route) { r.Link = "a0" },
		func(r *route.Route) { r.Link, r.Gateway = "a0", ip("fe80::1") },
		func(r *route.Route) { r.Link, r.Gateway = "a1", ip("fe80::2") },
		func(r *route.Route) {
			r.Link, r.Local = "a0", route.LocalAction{Behavior: route.EndDT6, Table: 102}
		},
	} {
		r := base
		if change(&r); r.Check() == nil { // no local action in IPv4
			variants = append(variants, r.Normal())
		}
	}
	for _, known := range []bool{true, false} {
		for _, from := range variants {
			for _, to := range variants {
				if from == to {
					continue
				}
				l.must(route.Op{Protocol: route.Edge, Object: from})
				op := route.Op{Protocol: route.Edge, Object: to}
				if known {
					op.Old = from
				}
				l.must(op)
				got, err := l.Dump(route.Edge)
				if err != nil {
					t.Fatal(err)
				}
				if len(got) != 3 || got[2] != to {
					t.Errorf("%v to %v (known %v): %v", from, to, known, lines(got))
				}
				l.must(route.Op{Protocol: route.Edge, Delete: true, Object: to})
			}
		}
	}
	l.want(route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")}, route.Nexthop{ID: 8, Link: "a1", Gateway: ip("fe80::1")})
}

// TestKernelCachedRoutes: a connected socket does not send along a route that was deleted, or whose
// nexthop object was.
func TestKernelCachedRoutes(t *testing.T) {
	for _, family := range []struct{ own, dst string }{{"2001:db8:1::10/64", "2001:db8:2::1"}, {"192.0.2.10/24", "198.51.100.1"}} {
		l := newLab(t)
		dst := ip(family.dst)
		nexthop := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")}
		r := route.Route{Dst: netip.PrefixFrom(dst, dst.BitLen()), NexthopID: 7}.Normal()
		l.add(route.Address{Prefix: pfx(family.own), Link: "a0"}, nexthop, route.Route{Dst: pfx("fd00:1::/32"), Link: "a0"})
		for _, deleted := range []route.Object{r, nexthop} {
			var conn net.Conn
			l.must(route.Op{Protocol: route.Edge, Object: r})
			l.in(func() (err error) {
				conn, err = net.Dial("udp", netip.AddrPortFrom(dst, 9).String())
				return err
			})
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			l.must(route.Op{Protocol: route.Edge, Delete: true, Object: deleted})
			if _, err := conn.Write([]byte("x")); !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("%s: without %v: %v, want %v", dst, deleted, err, unix.ENETUNREACH)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		if routes := l.ip("-6 route show table all"); strings.Contains(routes, "100::") {
			t.Errorf("a route is left:\n%s", routes)
		}
	}
}

// TestKernelDiscardedRoutes: no socket sends along a route that the kernel has discarded, whatever
// number the initial network namespace has, if that is below a few thousand. If it happens to be
// the one that a namespace is moved to, it is not when that is moved twice.
func TestKernelDiscardedRoutes(t *testing.T) {
	sent := 0
	for moves := 1; moves <= 2; moves++ {
		if sent = sentAlongDiscarded(t, moves); sent == 0 {
			return
		}
	}
	t.Errorf("the kernel drops what %d sockets send along a deleted route", sent)
}

// sentAlongDiscarded returns how many sockets send along a route after its nexthop object was
// deleted, of many that cached it under successive numbers.
func sentAlongDiscarded(t *testing.T, moves int) (sent int) {
	const sockets, discardedAfter = 200, 200 * time.Millisecond
	l := newLab(t)
	nexthop := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")}
	missing := route.Op{Protocol: route.Edge, Delete: true, Object: route.Route{Dst: pfx("2001:db8:3::/64"), Link: "a0"}.Normal()}
	l.add(route.Address{Prefix: pfx("2001:db8:1::10/64"), Link: "a0"}, route.Route{Dst: pfx("fd00:1::/32"), Link: "a0"})
	l.in(func() error {
		for range moves {
			if err := route.LeaveInitialNumber(); err != nil {
				return err
			}
		}
		return nil
	})
	l.must(route.Op{Protocol: route.Edge, Object: nexthop}, route.Op{Protocol: route.Edge, Object: route.Route{Dst: pfx("2001:db8:2::/64"), NexthopID: 7}.Normal()})
	l.in(func() error {
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		for range sockets {
			c, err := net.Dial("udp", "[2001:db8:2::1]:9")
			if err != nil {
				return err
			}
			conns = append(conns, c)
			l.must(missing) // another number
		}
		l.must(route.Op{Protocol: route.Edge, Delete: true, Object: nexthop})
		time.Sleep(discardedAfter)
		for _, c := range conns {
			if _, err := c.Write([]byte("x")); !errors.Is(err, unix.ENETUNREACH) {
				sent++
			}
		}
		return nil
	})
	return sent
}

// TestKernelUnresolvedSID: a SID that was resolved as a neighbor in vain does not have a host that
// does not forward skip the routes through its nexthop object.
func TestKernelUnresolvedSID(t *testing.T) {
	l := newLab(t)
	sid := ip("fd00:1::1")
	l.add(route.Address{Prefix: pfx("2001:db8:1::10/64"), Link: "a0"}, route.Nexthop{ID: 7, Link: "a0", SID: sid},
		route.Route{Dst: pfx("2001:db8:2::/64"), NexthopID: 7}, route.Route{Dst: pfx("::/0"), Link: "a0", Gateway: ip("2001:db8:1::1")})
	l.in(func() error {
		link, err := netlink.LinkByName("a0")
		if err != nil {
			return err
		}
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: unix.NUD_FAILED, IP: sid.AsSlice()}); err != nil {
			return err
		}
		got, err := l.SIDOf(netip.AddrPortFrom(ip("2001:db8:1::10"), 80), netip.AddrPortFrom(ip("2001:db8:2::1"), 80))
		if got != sid {
			t.Errorf("packets are encapsulated to %v, want %v", got, sid)
		}
		return err
	})
}

// TestKernelPathMTU: what a router reports of the MTU of a path that begins with a nexthop object
// applies, alone and in a group.
func TestKernelPathMTU(t *testing.T) {
	const reported = 1400
	for _, family := range []struct {
		own, dst     string
		level, query int
	}{
		{"2001:db8:1::10/64", "2001:db8:2::1", unix.IPPROTO_IPV6, unix.IPV6_MTU},
		{"192.0.2.10/24", "198.51.100.1", unix.IPPROTO_IP, unix.IP_MTU},
	} {
		l := newLab(t)
		own, dst := pfx(family.own), ip(family.dst)
		l.add(route.Address{Prefix: own, Link: "a0"}, route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")},
			route.Nexthop{ID: 8, Link: "a0", SID: ip("fd00:1::2")}, route.NexthopGroup{ID: 9, Members: "8,1"}, route.Route{Dst: pfx("fd00:1::/32"), Link: "a0"})
		for i, nexthop := range []uint32{7, 9} {
			dst := dst
			for range i {
				dst = dst.Next() // another path
			}
			l.add(route.Route{Dst: netip.PrefixFrom(dst, dst.BitLen()), NexthopID: nexthop})
			l.in(func() error {
				conn, err := net.Dial("udp", netip.AddrPortFrom(dst, 9).String())
				if err != nil {
					return err
				}
				defer conn.Close()
				from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
				raw, err := conn.(*net.UDPConn).SyscallConn()
				if err != nil {
					return err
				}
				mtu := 0
				// A busy kernel adds the route to a new address of its own later: until then the report does not
				// reach it.
				for until := time.Now().Add(5 * time.Second); (mtu == 0 || mtu > reported) && time.Now().Before(until); time.Sleep(time.Millisecond) {
					if err := tooBig(own.Addr(), from, netip.AddrPortFrom(dst, 9), reported); err != nil {
						return err
					}
					if err := errors.Join(raw.Control(func(fd uintptr) { mtu, err = unix.GetsockoptInt(int(fd), family.level, family.query) }), err); err != nil {
						return err
					}
				}
				if mtu == 0 || mtu > reported {
					t.Errorf("%s through nexthop %d: MTU %d, want at most %d", dst, nexthop, mtu, reported)
				}
				return nil
			})
		}
	}
}

// tooBig sends this host the report of a router that a UDP packet was larger than an MTU.
func tooBig(to netip.Addr, source, destination netip.AddrPort, mtu uint16) error {
	udp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source.Port()), destination.Port())
	udp = append(udp, 1400>>8, 1400&0xff, 0, 0)
	icmp, domain, protocol := []byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, unix.AF_INET6, unix.IPPROTO_ICMPV6
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: to.As16()}
	if to.Is4() {
		icmp, domain, protocol = []byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, unix.AF_INET, unix.IPPROTO_ICMP
		address = &unix.SockaddrInet4{Addr: to.As4()}
		icmp = append(icmp, 0x45, 0, 1420>>8, 1420&0xff, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else {
		icmp = append(icmp, 0x60, 0, 0, 0, 1400>>8, 1400&0xff, unix.IPPROTO_UDP, 64)
	}
	icmp = slices.Concat(icmp, source.Addr().AsSlice(), destination.Addr().AsSlice(), udp)
	if to.Is4() {
		binary.BigEndian.PutUint16(icmp[2:], checksum.Of(icmp))
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return errors.Join(unix.Sendto(fd, icmp, 0, address), unix.Close(fd))
}

// TestKernelGroupMembers: sockets that sent to a member of a group no longer do once it has left.
func TestKernelGroupMembers(t *testing.T) {
	for _, family := range []struct{ own, dst string }{{"2001:db8:1::10/64", "2001:db8:2::1"}, {"192.0.2.10/24", "198.51.100.1"}} {
		l := newLab(t)
		dst := ip(family.dst)
		group := route.NexthopGroup{ID: 9, Members: "7,1/8,1"}
		l.add(route.Address{Prefix: pfx(family.own), Link: "a0"}, route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")},
			route.Nexthop{ID: 8, Link: "a0", SID: ip("fd00:2::1")}, group,
			route.Route{Dst: netip.PrefixFrom(dst, dst.BitLen()), NexthopID: 9},
			route.Route{Dst: pfx("fd00:1::/32"), Link: "a0"}) // the other SID is unreachable
		conns := make([]net.Conn, 32)
		sent := func() (n int) {
			for _, c := range conns {
				if _, err := c.Write([]byte("x")); err == nil {
					n++
				}
			}
			return n
		}
		l.in(func() (err error) {
			for _, version := range []string{"4", "6"} {
				if err := netns.Sysctl("net.ipv"+version+".fib_multipath_hash_policy", "1"); err != nil {
					return err
				}
			}
			for i := range conns {
				if conns[i], err = net.Dial("udp", netip.AddrPortFrom(dst, 9).String()); err != nil {
					return err
				}
			}
			return nil
		})
		if n := sent(); n == 0 || n == len(conns) {
			t.Errorf("%s: %d of %d flows have the member that is reachable", dst, n, len(conns))
		}
		left := group
		left.Members = "7,1"
		l.must(route.Op{Protocol: route.Edge, Object: left, Old: group})
		if n := sent(); n != len(conns) {
			t.Errorf("%s: %d of %d flows have the only member", dst, n, len(conns))
		}
		for _, c := range conns {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestKernelReplaceOthers(t *testing.T) {
	l := newLab(t)
	a := route.Address{Link: "a0", Prefix: pfx("2001:db8::1/128")}
	deprecated, wide := a, a
	deprecated.Deprecated, wide.Prefix = true, pfx("2001:db8::1/64")
	a4 := route.Address{Link: "a0", Prefix: pfx("192.0.2.1/32")}
	deprecated4, wide4 := a4, a4
	deprecated4.Deprecated, wide4.Prefix = true, pfx("192.0.2.1/24")
	n := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00::1")}
	moved, plain := n, n
	moved.SID, moved.Link, plain.SID, plain.Gateway = ip("fd00::2"), "a1", netip.Addr{}, ip("fe80::7")
	for _, sequence := range [][]route.Object{
		{a, deprecated, wide, a, wide, deprecated, a}, {a4, deprecated4, wide4, a4, wide4, deprecated4, a4}, {a4, deprecated4, a4}, {n, moved, plain, n},
	} {
		for _, known := range []bool{true, false} {
			if !known && slices.Contains(sequence, route.Object(wide4)) {
				continue // another address to the kernel
			}
			var old route.Object
			for _, o := range sequence {
				op := route.Op{Protocol: route.Edge, Object: o}
				if known {
					op.Old = old
				}
				l.must(op)
				l.want(o)
				old = o
			}
			l.must(route.Op{Protocol: route.Edge, Delete: true, Object: old})
			l.want()
		}
	}
}

func TestKernelForeign(t *testing.T) {
	l := newLab(t)
	r := route.Route{Table: 101, Dst: pfx("2001:db8:c::/64"), Link: "a0"}
	objects := []route.Object{
		route.Nexthop{ID: 7, Link: "a0"}, r,
		route.Address{Link: "a0", Prefix: pfx("2001:db8::1/128")},
		route.Rule{Priority: 1000, From: pfx("2001:db8::1/128"), Table: 101},
	}
	for _, o := range objects {
		l.must(route.Op{Protocol: 99, Object: o})
	}
	for _, o := range objects {
		err := l.apply(route.Op{Protocol: route.Edge, Object: o})[0]
		if o.Key().Class() == route.ClassRule {
			// The protocol is part of a rule's identity, so both rules can exist.
			if err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, route.ErrForeign) {
			t.Errorf("%v: %v", o, err)
		}
		if c := o.Key().Class(); c == route.ClassRoute || c == route.ClassRule {
			l.must(route.Op{Protocol: route.Edge, Delete: true, Object: o})
		}
	}
	got, err := l.Dump(99)
	if err != nil || !slices.Equal(lines(got), lines(objects)) {
		t.Errorf("%v, %v", lines(got), err)
	}
	l.want()
}

func TestKernelErrors(t *testing.T) {
	l := newLab(t)
	good := route.Route{Dst: pfx("2001:db8:c::/64"), Link: "a0"}
	errs := l.apply(
		route.Op{Protocol: route.Edge, Object: route.Address{Link: "none", Prefix: pfx("2001:db8::1/128")}},
		route.Op{Protocol: route.Edge, Object: good},
		route.Op{Protocol: route.Edge, Object: route.Route{Dst: pfx("2001:db8:d::/64"), NexthopID: 77}},
		route.Op{Protocol: route.Edge, Object: route.Route{Dst: pfx("2001:db8:d::/64")}},
		route.Op{Protocol: route.Edge, Delete: true, Object: route.Address{Link: "none", Prefix: pfx("2001:db8::1/128")}},
		route.Op{Object: good},
	)
	if !errors.Is(errs[0], fs.ErrNotExist) || errs[1] != nil || errs[3] == nil || errs[4] != nil || errs[5] == nil {
		t.Errorf("got %v", errs)
	}
	const text = `add route "2001:db8:d::/64 table main nhid 77": invalid argument (Nexthop id does not exist)`
	if !errors.Is(errs[2], unix.EINVAL) || errs[2].Error() != text {
		t.Errorf("got %v", errs[2])
	}
	l.want(good)
}

// If the receive buffer overflows, answers are lost; every operation still returns its own result.
func TestKernelLostAnswers(t *testing.T) {
	l := newLab(t)
	if err := l.SetReadBuffer(8 << 10); err != nil {
		t.Fatal(err)
	}
	var ops []route.Op
	for i, o := range manyRoutes(2000) {
		r := o.(route.Route)
		if i%2 == 0 {
			r.NexthopID, r.Link = 0, "a0"
		}
		ops = append(ops, route.Op{Protocol: route.Edge, Object: r})
	}
	for i, err := range l.Apply(ops) {
		if failed := i%2 == 1; failed != errors.Is(err, unix.EINVAL) || failed != (err != nil) {
			t.Fatalf("%v: %v", ops[i], err)
		}
	}
	got, err := l.Dump(route.Edge)
	if err != nil || len(got) != 1000 {
		t.Errorf("%d routes, %v", len(got), err)
	}
}

func TestKernelLinks(t *testing.T) {
	l := newLab(t)
	link, err := l.Link("a0")
	if err != nil || link.Name != "a0" || !link.Up || link.MTU != 1500 {
		t.Errorf("%+v, %v", link, err)
	}
	if _, err := l.Link("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := l.SetLinkUp("none", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := l.SetLinkUp("b0", false); err != nil {
		t.Error(err)
	}
	all, err := l.Links()
	if err != nil {
		t.Fatal(err)
	}
	up := map[string]bool{}
	for _, link := range all {
		up[link.Name] = link.Up
	}
	// a0 has no carrier.
	if want := map[string]bool{"lo": true, "a0": false, "b0": false, "a1": true, "b1": true}; !maps.Equal(up, want) {
		t.Errorf("up: %v", up)
	}
}

func TestKernelNexthopTo(t *testing.T) {
	l := newLab(t)
	l.add(route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/64")},
		route.Nexthop{ID: 7, Link: "a1", Gateway: ip("fe80::7")})
	l.add(route.Address{Link: "a0", Prefix: pfx("192.0.2.1/24")},
		route.Route{Dst: pfx("198.51.100.0/25"), Gateway: ip("192.0.2.2"), Link: "a0"},
		route.Route{Dst: pfx("198.51.100.128/25"), Gateway: ip("2001:db8:1::2"), Link: "a0"},
		route.Route{Dst: pfx("203.0.113.0/24"), Kind: route.Unreachable})
	l.add(route.Route{Dst: pfx("2001:db8:2::/64"), Gateway: ip("2001:db8:1::2"), Link: "a0"},
		route.Route{Dst: pfx("2001:db8:3::/64"), NexthopID: 7},
		route.Route{Dst: pfx("2001:db8:4::/64"), Kind: route.Unreachable})
	for _, tc := range []struct {
		dst, gateway, link string
		err                error
	}{
		{dst: "2001:db8:1::2", link: "a0"},
		{dst: "2001:db8:2::9", gateway: "2001:db8:1::2", link: "a0"},
		{dst: "2001:db8:3::9", gateway: "fe80::7", link: "a1"},
		{dst: "2001:db8:4::9", err: unix.EHOSTUNREACH},
		{dst: "2001:db8:5::9", err: unix.ENETUNREACH},
		{dst: "192.0.2.2", link: "a0"},
		{dst: "198.51.100.1", gateway: "192.0.2.2", link: "a0"},
		{dst: "198.51.100.129", gateway: "2001:db8:1::2", link: "a0"},
		{dst: "203.0.113.1", err: unix.EHOSTUNREACH},
		{dst: "10.0.0.1", err: unix.ENETUNREACH},
	} {
		gateway, link, err := l.NexthopTo(ip(tc.dst))
		if tc.err != nil {
			if !errors.Is(err, tc.err) || !errors.Is(err, route.ErrNoRoute) {
				t.Errorf("%s: %v", tc.dst, err)
			}
			continue
		}
		if err != nil || link != tc.link || gateway.IsValid() != (tc.gateway != "") || gateway.IsValid() && gateway != ip(tc.gateway) {
			t.Errorf("%s: via %s dev %s, %v", tc.dst, gateway, link, err)
		}
	}
	if _, _, err := l.NexthopTo(ip("::ffff:10.0.0.1")); err == nil {
		t.Error("accepted an IPv4-mapped address")
	}
}

// TestKernelMatchOf: the route that packets follow is found, whichever program it belongs to, and
// whichever rule has it.
func TestKernelMatchOf(t *testing.T) {
	l := newLab(t)
	l.add(route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/64")}, route.Address{Link: "a0", Prefix: pfx("192.0.2.1/24")})
	for _, dst := range []string{"2001:db8:c::/64", "203.0.113.0/24"} {
		prefix := pfx(dst)
		to := prefix.Addr().Next()
		is := func(want route.Match) {
			t.Helper()
			if got, err := l.MatchOf(to); got != want || err != nil {
				t.Errorf("to %s: %+v, %v, want %+v", to, got, err, want)
			}
		}
		is(route.Match{})
		l.add(route.Route{Dst: prefix, Link: "a0", Metric: 4095})
		is(route.Match{Protocol: route.Edge, Table: route.MainTable, Dst: prefix})
		netnstest.IP(t, l.name, "route add "+dst+" dev a0 metric 10 proto static")
		is(route.Match{Protocol: unix.RTPROT_STATIC, Table: route.MainTable, Dst: prefix})
		family, all := "-6", pfx("::/0")
		if to.Is4() {
			family, all = "-4", pfx("0.0.0.0/0")
		}
		netnstest.IP(t, l.name, family+" route add default dev a0 table 777 proto static")
		netnstest.IP(t, l.name, family+" rule add pref 100 lookup 777")
		is(route.Match{Protocol: unix.RTPROT_STATIC, Table: 777, Dst: all})
	}
}

// TestKernelSIDOf: of the connections that the kernel spreads over a group, each has the SID of one
// member, and it is the same again; others have none. The way to a SID may lead over another
// interface than that of the objects.
func TestKernelSIDOf(t *testing.T) {
	l := newLab(t)
	l.add(route.Route{Dst: pfx("fd00:1::/32"), Link: "a1"})
	l.add(route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/64")}, route.Address{Link: "a0", Prefix: pfx("192.0.2.1/24")},
		route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00:1::1")}, route.Nexthop{ID: 8, Link: "a0", SID: ip("fd00:1::2")})
	// Of those with a mark, the rule's table has the SID.
	const first, second = 0x7ab50001, 0x7ab50002
	l.add(route.Nexthop{ID: 17, Link: "a0", Mark: first}, route.Nexthop{ID: 18, Link: "a0", Mark: second})
	l.add(route.NexthopGroup{ID: 9, Members: "7,1/8,1"}, route.NexthopGroup{ID: 19, Members: "17,1/18,1"})
	l.add(route.Route{Dst: pfx("2001:db8:c::/64"), NexthopID: 9}, route.Route{Dst: pfx("203.0.113.0/24"), NexthopID: 9}, route.Route{Dst: pfx("2001:db8:d::/64"), NexthopID: 8},
		route.Route{Dst: pfx("2001:db8:e::/64"), NexthopID: 19, MTU: 1460}, route.Route{Dst: pfx("198.51.100.0/24"), NexthopID: 19, MTU: 1460})
	for mark, nexthop := range map[uint32]uint32{first: 7, second: 8} {
		l.add(route.Rule{Priority: 2, Mark: mark, Table: mark & 0xff}, route.Rule{Priority: 2, From: pfx("0.0.0.0/0"), Mark: mark, Table: mark & 0xff},
			route.Route{Dst: pfx("2001:db8:e::/64"), Table: mark & 0xff, NexthopID: nexthop}, route.Route{Dst: pfx("198.51.100.0/24"), Table: mark & 0xff, NexthopID: nexthop})
	}
	l.in(func() error {
		return errors.Join(netns.Sysctl("net.ipv4.fib_multipath_hash_policy", "1"), netns.Sysctl("net.ipv6.fib_multipath_hash_policy", "1"))
	})
	for _, ends := range [][2]string{{"2001:db8:1::1", "2001:db8:c::9"}, {"192.0.2.1", "203.0.113.9"}, {"2001:db8:1::1", "2001:db8:e::9"}, {"192.0.2.1", "198.51.100.9"}} {
		found := map[netip.Addr]int{}
		for port := range uint16(64) {
			local, remote := netip.AddrPortFrom(ip(ends[0]), 443), netip.AddrPortFrom(ip(ends[1]), 40000+port)
			sid, err := l.SIDOf(local, remote)
			again, errAgain := l.SIDOf(local, remote)
			if err != nil || errAgain != nil || sid != again {
				t.Fatalf("%s to %s: %s, then %s, %v, %v", local, remote, sid, again, err, errAgain)
			}
			found[sid]++
		}
		// All 64 have the same once in 2^63 runs.
		if len(found) != 2 || found[ip("fd00:1::1")] == 0 || found[ip("fd00:1::2")] == 0 {
			t.Errorf("%s: %v", ends[1], found)
		}
	}
	for remote, want := range map[string]netip.Addr{"[2001:db8:d::9]:1": ip("fd00:1::2"), "[2001:db8:1::2]:1": {}, "[2001:db8:f::2]:1": {}} {
		if sid, err := l.SIDOf(netip.MustParseAddrPort("[2001:db8:1::1]:443"), netip.MustParseAddrPort(remote)); sid != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", remote, sid, err, want)
		}
	}
	if _, err := l.SIDOf(netip.AddrPort{}, netip.MustParseAddrPort("[2001:db8:d::9]:1")); err == nil {
		t.Error("accepted a connection without a local address")
	}
}

// TestKernelRoutedOn: a bound packet has a route only if one leads over its interface; that the
// kernel takes an address to be on the link is none.
func TestKernelRoutedOn(t *testing.T) {
	l := newLab(t)
	l.add(route.Address{Link: "a0", Prefix: pfx("192.0.2.1/24")}, route.Address{Link: "a1", Prefix: pfx("198.51.100.1/24")},
		route.Route{Dst: pfx("0.0.0.0/0"), Gateway: ip("192.0.2.2"), Link: "a0"},
		route.Route{Dst: pfx("0.0.0.0/0"), Gateway: ip("198.51.100.3"), Link: "a1", Table: 7},
		route.Rule{Priority: 100, From: pfx("0.0.0.0/0"), NotMark: 5, Table: 7}.Normal())
	for _, tc := range []struct {
		dst, link string
		mark      uint32
		want      bool
	}{
		{"10.0.0.1", "a0", 5, true}, {"10.0.0.1", "a1", 5, false}, {"10.0.0.1", "a1", 6, true}, {"198.51.100.9", "a1", 5, true},
		{"2001:db8::1", "a1", 5, false},
	} {
		link, err := l.Link(tc.link)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.RoutedOn(ip(tc.dst), link.Index, tc.mark); err != nil || got != tc.want {
			t.Errorf("%s on %s with mark %d: %v, %v, want %v", tc.dst, tc.link, tc.mark, got, err, tc.want)
		}
	}
	if _, err := l.RoutedOn(ip("::ffff:10.0.0.1"), 1, 0); err == nil {
		t.Error("accepted an IPv4-mapped address")
	}
}

// TestKernelNeighborOn: the neighbor is that on the interface, whatever the best route is, and by
// the rules for the mark.
func TestKernelNeighborOn(t *testing.T) {
	l := newLab(t)
	l.add(route.Address{Link: "a0", Prefix: pfx("192.0.2.1/24")}, route.Address{Link: "a1", Prefix: pfx("198.51.100.1/24")},
		route.Address{Link: "a1", Prefix: pfx("2001:db8:1::1/64")},
		route.Route{Dst: pfx("0.0.0.0/0"), Gateway: ip("192.0.2.2"), Link: "a0"},
		route.Route{Dst: pfx("0.0.0.0/0"), Gateway: ip("198.51.100.2"), Link: "a1", Metric: 9},
		route.Route{Dst: pfx("203.0.113.0/24"), Gateway: ip("2001:db8:1::2"), Link: "a1"},
		route.Route{Dst: pfx("0.0.0.0/0"), Gateway: ip("198.51.100.3"), Link: "a1", Table: 7},
		route.Rule{Priority: 100, From: pfx("0.0.0.0/0"), NotMark: 5, Table: 7}.Normal())
	for _, tc := range []struct {
		dst, link, want string
		mark            uint32
	}{
		{"10.0.0.1", "a0", "192.0.2.2", 5},
		{"10.0.0.1", "a1", "198.51.100.2", 5},
		{"10.0.0.1", "a1", "198.51.100.3", 6},
		{"198.51.100.9", "a1", "198.51.100.9", 5},
		{"203.0.113.1", "a1", "2001:db8:1::2", 5},
		{"203.0.113.1", "b1", "203.0.113.1", 5},
		{"2001:db8:1::9", "a1", "2001:db8:1::9", 5},
		{"2001:db8:2::9", "a1", "", 5},
	} {
		link, err := l.Link(tc.link)
		if err != nil {
			t.Fatal(err)
		}
		got, source, err := l.NeighborOn(ip(tc.dst), link.Index, tc.mark)
		if tc.want == "" && err == nil || tc.want != "" && (err != nil || got != ip(tc.want)) {
			t.Errorf("%s on %s with mark %d: %v, %v, want %s", tc.dst, tc.link, tc.mark, got, err, tc.want)
		}
		if want := map[string]string{"a0": "192.0.2.1", "a1": "198.51.100.1"}[tc.link]; ip(tc.dst).Is4() && want != "" && source != ip(want) {
			t.Errorf("%s on %s: source %v, want %s", tc.dst, tc.link, source, want)
		}
	}
	if _, _, err := l.NeighborOn(ip("::ffff:10.0.0.1"), 1, 0); err == nil {
		t.Error("accepted an IPv4-mapped address")
	}
}

// Changes by other programs to our objects are repaired; objects of other owners are not changed.
func TestKernelRepair(t *testing.T) {
	l := newLab(t)
	r := route.NewReconciler(l, route.Edge, quiet())
	want := append(everything(), marked)
	for _, o := range want {
		r.Set(o)
	}
	repaired := func(what string) {
		t.Helper()
		for range 3 {
			if err := r.Resync(); err != nil {
				t.Fatal(err)
			}
			if r.Pending() == 0 {
				break
			}
			if err := r.Flush(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if r.Pending() != 0 {
			t.Errorf("%s: %d pending", what, r.Pending())
		}
		l.want(want...)
	}
	flush(t, r)
	r.Sweep()
	l.want(want...)
	for _, command := range []string{
		"route del 2001:db8:c::/64 table 101",
		"route replace 2001:db8:c::/64 table 101 dev a0 proto 117",
		"route replace 2001:db8:c::/64 table 102 nhid 8 mtu 1400 hoplimit 3 proto 117",
		"route append 2001:db8:d::/64 via fe80::3 dev a1 metric 20 proto 117", // a multipath sibling
		"route append 2001:db8:c::/64 table 101 via fe80::3 dev a1 proto 117", // beside a nexthop object
		"route add 2001:db8:99::/64 dev a0 proto 117",
		"route replace fd00:2::1/128 encap seg6local action End dev a0 proto 117",
		"rule del priority 1000",
		"rule add priority 1000 from 2001:db8::1/128 fwmark 1 table 101 protocol 117",
		"nexthop del id 7",
		"nexthop del id 11",
		"nexthop replace id 7 dev a1 protocol 117",
		"nexthop replace id 8 encap seg6 mode encap segs fd00::1,fd00::2 dev a0 protocol 117",
		"addr del 2001:db8::1/128 dev lo",
		"-4 route del 203.0.113.0/24 table 101",
		"-4 route replace 203.0.113.0/24 table 101 nhid 7 mtu 1400 proto 117",
		"-4 route append 203.0.113.0/24 via 198.51.100.3 dev a0 metric 20 proto 117",
		"-4 route del 240.0.0.1/32",
		"-4 route replace 240.0.0.1/32 dev a0 proto 117",
		"-4 rule del priority 1000",
		"-4 rule add priority 1000 from 192.0.2.1/32 fwmark 1 table 101 protocol 117",
		"addr del 192.0.2.1/32 dev lo", // the preferred source of a route, which goes with it
		"addr del 198.51.100.1/24 dev a0",
	} {
		l.ip(command)
		if err := r.Resync(); err != nil || r.Pending() == 0 {
			t.Errorf("%s: %d pending, %v", command, r.Pending(), err)
		}
		repaired(command)
	}
	l.add(route.Address{Link: "a0", Prefix: pfx("2001:db8:1::1/72")})
	repaired("address changed by another of the same owner")
	l.add(route.NexthopGroup{ID: 11, Members: "7,10/8,1"})
	repaired("weights changed by another of the same owner")
	// A manual change clears the protocol of the address, so it belongs to another owner until
	// it is deleted.
	l.ip("addr change 2001:db8::1/128 dev lo preferred_lft 100 valid_lft 200")
	if err := errors.Join(r.Resync(), r.Flush()); !errors.Is(err, route.ErrForeign) {
		t.Errorf("got %v", err)
	}
	l.ip("addr del 2001:db8::1/128 dev lo")
	repaired("address changed by hand")

	l.ip("route add 2001:db8:77::/64 dev a0 proto 99")
	for _, up := range []bool{false, true} {
		if err := l.SetLinkUp("a0", up); err != nil {
			t.Fatal(err)
		}
		if err := r.Resync(); err != nil {
			t.Fatal(err)
		}
		if !up && r.Pending() == 0 {
			t.Error("the kernel forgets nothing when a link goes down")
		}
	}
	repaired("link down and up")

	l.ip("route add 2001:db8:77::/64 dev a1 proto 99")
	r.Clear()
	flush(t, r)
	l.want()
	if theirs, err := l.Dump(99); err != nil || len(theirs) != 1 {
		t.Errorf("of others: %v, %v", theirs, err)
	}
}

func next(t testing.TB, w *route.Watcher) route.Event {
	t.Helper()
	e, ok := <-w.Events()
	if !ok {
		t.Fatalf("watcher ended: %v", w.Err())
	}
	return e
}

func TestKernelWatch(t *testing.T) {
	l := newLab(t)
	var w *route.Watcher
	l.in(func() (err error) {
		w, err = route.Watch(t.Context(), route.Links, route.Routes, route.Nexthops)
		return err
	})
	// until reads events until f returns true.
	until := func(f func(route.Event) bool) {
		t.Helper()
		for !f(next(t, w)) {
		}
	}
	n := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00::1")}
	r := route.Route{Table: 4000, Dst: pfx("2001:db8:c::/64"), NexthopID: 7}
	l.add(n, r)
	isNexthop := func(deleted bool) func(route.Event) bool {
		return func(e route.Event) bool {
			c, ok := e.(route.ObjectChange)
			return ok && c.Object == n && c.Protocol == route.Edge && c.Deleted == deleted
		}
	}
	until(isNexthop(false))
	isRoute := func(deleted bool) func(route.Event) bool {
		return func(e route.Event) bool {
			c, ok := e.(route.ObjectChange)
			if ok && c.Time.IsZero() {
				t.Error("event has no time")
			}
			return ok && c.Object == r.Normal() && c.Protocol == route.Edge && c.Deleted == deleted
		}
	}
	until(isRoute(false))
	l.must(route.Op{Protocol: route.Edge, Delete: true, Object: r})
	until(isRoute(true))
	l.must(route.Op{Protocol: route.Edge, Delete: true, Object: n})
	until(isNexthop(true))
	// The peer interface goes down: the carrier is lost, and the kernel deletes the nexthop
	// object without an event.
	l.add(n)
	if err := l.SetLinkUp("b0", false); err != nil {
		t.Fatal(err)
	}
	until(func(e route.Event) bool {
		c, ok := e.(route.LinkChange)
		return ok && c.Link.Name == "a0" && !c.Link.Up && !c.Deleted
	})
	l.want()
	l.ip("link del a0")
	until(func(e route.Event) bool {
		c, ok := e.(route.LinkChange)
		return ok && c.Link.Name == "a0" && c.Deleted
	})
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// Changes by others to our objects are reported with everything that a Reconciler needs to restore
// them; changes through the connection itself are not.
func TestKernelWatchOwned(t *testing.T) {
	l := newLab(t)
	var w *route.Watcher
	l.in(func() (err error) {
		w, err = l.WatchOwned(t.Context(), route.Edge, route.Addresses, route.Routes, route.Rules, route.Nexthops)
		return err
	})
	n := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00::1")}
	via := route.Route{Table: 4000, Dst: pfx("2001:db8:c::/64"), NexthopID: 7}
	plain := route.Route{Table: 4000, Dst: pfx("2001:db8:d::/64"), Link: "a0"}
	rule := route.Rule{Priority: 1000, From: pfx("2001:db8:e::1/128"), Table: 4000}
	a := route.Address{Link: "a0", Prefix: pfx("2001:db8:e::1/128"), Deprecated: true}
	all := []route.Object{n, via, plain, rule, a}
	l.add(all...)
	r := route.NewReconciler(l, route.Edge, quiet())
	for _, o := range all {
		r.Set(o)
	}
	if err := r.Resync(); err != nil || r.Pending() != 0 {
		t.Fatal(err, r.Pending())
	}
	for _, o := range all {
		var other *route.Conn
		l.in(func() (err error) { other, err = route.Dial(); return err })
		if err := errors.Join(other.Apply([]route.Op{{Protocol: route.Edge, Delete: true, Object: o}})...); err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		for {
			c, ok := next(t, w).(route.ObjectChange)
			if !ok {
				t.Fatal("not a change of an object")
			}
			if !c.Deleted && c.Object == route.Object(a) {
				continue // the state of the address changes after the addition
			}
			if c.Object != o.Normal() || !c.Deleted {
				t.Fatalf("event %+v, want the deletion of %v", c, o)
			}
			r.Changed(c)
			break
		}
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
		l.want(all...)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestKernelWatchOverrun(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	var w *route.Watcher
	l.in(func() (err error) {
		w, err = route.WatchSmall(ctx, 8<<10, route.Routes)
		return err
	})
	var objects []route.Object
	for _, o := range manyRoutes(1000) {
		r := o.(route.Route)
		r.NexthopID, r.Link = 0, "a0"
		objects = append(objects, r)
	}
	l.add(objects...)
	for lost := false; !lost; _, lost = next(t, w).(route.Overrun) {
	}
	// The watcher continues after the overrun.
	last := route.Route{Table: 4000, Dst: pfx("2001:db8:ffff::/64"), Link: "a0"}
	found := make(chan bool)
	go func() {
		for e := range w.Events() {
			if c, ok := e.(route.ObjectChange); ok && c.Object == last.Normal() {
				found <- true
				return
			}
		}
		found <- false
	}()
	for seen := false; !seen; {
		l.add(last)
		select {
		case ok := <-found:
			if seen = true; !ok {
				t.Errorf("ended: %v", w.Err())
			}
		default:
			l.must(route.Op{Protocol: route.Edge, Delete: true, Object: last})
		}
	}
	cancel()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkKernel100k adds 100,000 routes through one nexthop object.
func BenchmarkKernel100k(b *testing.B) {
	l := newLab(b)
	n := route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00::1")}
	objects := manyRoutes(100_000)
	var add, remove, dump, whole time.Duration
	for b.Loop() {
		ops := make([]route.Op, len(objects))
		for i, o := range objects {
			ops[i] = route.Op{Protocol: route.Edge, Object: o}
		}
		l.add(n)
		start := time.Now()
		l.must(ops...)
		add += time.Since(start)
		start = time.Now()
		got, err := l.Dump(route.Edge)
		if err != nil || len(got) != len(objects)+1 {
			b.Fatalf("%d objects, %v", len(got), err)
		}
		dump += time.Since(start)
		start = time.Now()
		l.must(route.Op{Protocol: route.Edge, Delete: true, Object: n})
		remove += time.Since(start)
		l.want()

		start = time.Now()
		r := route.NewReconciler(l, route.Edge, quiet())
		r.Set(n)
		for _, o := range objects {
			r.Set(o)
		}
		if err := r.Flush(); err != nil {
			b.Fatal(err)
		}
		whole += time.Since(start)
		r.Clear()
		if err := r.Flush(); err != nil {
			b.Fatal(err)
		}
		l.want()
	}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
	b.ReportMetric(1e5/(per(add)/1000), "adds/s")
	b.ReportMetric(1e5/(per(whole)/1000), "reconciled/s")
	b.ReportMetric(per(dump), "dump-ms")
	b.ReportMetric(per(remove), "nexthop-del-ms")
}

// systemTime returns the time that this process has spent in the kernel.
func systemTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Stime.Nano())
}

// BenchmarkAddRoute adds routes with a gateway of their own, as those of a border router have, and
// through a nexthop object, as EPE Routes are. kernel-ns/op is the system time: no load of a table
// takes less.
func BenchmarkAddRoute(b *testing.B) {
	for _, kind := range []string{"gateway", "nexthop"} {
		b.Run(kind, func(b *testing.B) {
			l := newLab(b)
			l.add(route.Address{Link: "a0", Prefix: netip.MustParsePrefix("2001:db8:ffff::1/64")})
			l.add(route.Nexthop{ID: 7, Link: "a0", SID: ip("fd00::1")})
			ops := make([]route.Op, b.N)
			for i, o := range manyRoutes(b.N) {
				r := o.(route.Route)
				if kind == "gateway" {
					r.NexthopID, r.Gateway, r.Link = 0, ip("2001:db8:ffff::2"), "a0"
				} else {
					r.MTU = 1424
				}
				ops[i] = route.Op{Protocol: route.Edge, Object: r}
			}
			before := systemTime(b)
			b.ResetTimer()
			l.must(ops...)
			b.StopTimer()
			b.ReportMetric(float64((systemTime(b)-before).Nanoseconds())/float64(b.N), "kernel-ns/op")
		})
	}
}

// BenchmarkLinkDownStall measures how long a thread with real-time priority that must run every 2
// ms does not run on a CPU while the link of 200,000 routes goes down: the kernel deletes them with
// their table locked and softirqs disabled. ms/worst-cpu is the CPU on which it does, ms/best-cpu
// the least disturbed one.
func BenchmarkLinkDownStall(b *testing.B) {
	const routes, every = 200_000, 2 * time.Millisecond
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU())) // nothing waits for Go's scheduler
	l := newLab(b)
	address := route.Address{Link: "a0", Prefix: netip.MustParsePrefix("2001:db8:ffff::1/64")}
	ops := make([]route.Op, 0, routes)
	for _, o := range manyRoutes(routes) {
		r := o.(route.Route)
		r.NexthopID, r.Gateway, r.Link = 0, ip("2001:db8:ffff::2"), "a0"
		ops = append(ops, route.Op{Protocol: route.Edge, Object: r})
	}
	var worst, best time.Duration
	for b.Loop() {
		l.add(address)
		l.must(ops...)
		late := make([]time.Duration, runtime.NumCPU())
		var watching, ended sync.WaitGroup
		var stop atomic.Bool
		for cpu := range late {
			watching.Add(1)
			ended.Go(func() {
				runtime.LockOSThread() // which ends with this function, since it is not unlocked
				var only unix.CPUSet
				only.Set(cpu)
				err := errors.Join(unix.SchedSetaffinity(0, &only), unix.SchedSetAttr(0, &unix.SchedAttr{
					Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1,
				}, 0))
				if err != nil {
					b.Error(err)
				}
				watching.Done()
				for sleep := unix.NsecToTimespec(every.Nanoseconds()); !stop.Load(); {
					start := time.Now()
					_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &sleep, nil)
					late[cpu] = max(late[cpu], time.Since(start)-every)
				}
			})
		}
		watching.Wait()
		if err := l.SetLinkUp("a0", false); err != nil {
			b.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		stop.Store(true)
		ended.Wait()
		worst, best = worst+slices.Max(late), best+slices.Min(late)
		if err := l.SetLinkUp("a0", true); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(worst.Seconds()*1000/float64(b.N), "ms/worst-cpu")
	b.ReportMetric(best.Seconds()*1000/float64(b.N), "ms/best-cpu")
}

// TestResolveAgain: of the neighbor entries of an address, those that are not resolved are deleted,
// so that the next packet is preceded by a solicitation at once.
func TestResolveAgain(t *testing.T) {
	l := newLab(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, c := range []struct{ silent, known string }{{"2001:db8::2", "2001:db8::3"}, {"192.0.2.2", "192.0.2.3"}} {
		silent, known := net.ParseIP(c.silent), net.ParseIP(c.known)
		l.in(func() error {
			var errs []error
			for _, link := range []string{"a0", "a1"} {
				a, err := netlink.LinkByName(link)
				if err != nil {
					return err
				}
				index := a.Attrs().Index
				errs = append(errs, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: silent, State: unix.NUD_NONE, Flags: unix.NTF_USE}),
					netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: known, State: unix.NUD_REACHABLE, HardwareAddr: mac}))
			}
			return errors.Join(errs...)
		})
		entries := func(ip net.IP) (n int) {
			l.in(func() error {
				list, err := netlink.NeighList(0, 0)
				for _, e := range list {
					if e.IP.Equal(ip) {
						n++
					}
				}
				return err
			})
			return n
		}
		if n := entries(silent); n != 2 {
			t.Fatalf("%s: %d entries before, want those of 2 links", c.silent, n)
		}
		for _, a := range []string{c.silent, c.known} {
			if err := l.ResolveAgain(netip.MustParseAddr(a)); err != nil {
				t.Error(err)
			}
		}
		if silent, known := entries(silent), entries(known); silent != 0 || known != 2 {
			t.Errorf("%s has %d entries, want none; %s %d, want 2", c.silent, silent, c.known, known)
		}
	}
	if err := l.ResolveAgain(netip.MustParseAddr("2001:db8::77")); err != nil {
		t.Errorf("without an entry: %v", err)
	}
}
