package router

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

// BenchmarkKernelLoad adds the routes of a generated table of b.N prefixes to the kernel as a
// border router and a server do, two for each prefix, and nothing else. kernel-ns/op is the system
// time of a prefix: no load of a table takes less than the sum of both.
func BenchmarkKernelLoad(b *testing.B) {
	link, gateway := "wan", netip.MustParseAddr("2001:db8:ffff::2")
	best := route.Route{Table: route.MainTable, Metric: 4096, Gateway: gateway, Link: link}
	const nexthop = 7
	for _, role := range []struct {
		name string
		epe  route.Route
	}{
		{"border-router", route.Route{Table: 101, Metric: 20, Gateway: gateway, Link: link}},
		{"server", route.Route{Table: 101, Metric: 20, NexthopID: nexthop, MTU: 1524}},
	} {
		b.Run(role.name, func(b *testing.B) {
			var conn *route.Conn
			if err := netns.Do(netnstest.New(b), func() (err error) {
				err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "peer"})
				if err == nil {
					conn, err = route.Dial()
				}
				return err
			}); err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			apply := func(ops []route.Op) {
				if err := errors.Join(conn.Apply(ops)...); err != nil {
					b.Fatal(err)
				}
			}
			for _, name := range []string{"lo", link, "peer"} {
				if err := conn.SetLinkUp(name, true); err != nil {
					b.Fatal(err)
				}
			}
			apply([]route.Op{
				{Protocol: route.Router, Object: route.Address{Link: link, Prefix: netip.MustParsePrefix("2001:db8:ffff::1/64")}},
				{Protocol: route.Router, Object: route.Nexthop{ID: nexthop, Link: link, SID: netip.MustParseAddr("fc00:1:1::")}},
			})
			ops := make([]route.Op, 0, 2048)
			var spent time.Duration
			flush := func() {
				before := systemTime(b)
				apply(ops)
				spent += systemTime(b) - before
				ops = ops[:0]
			}
			for r := range (Generate{IPv6: b.N, Seed: 1}).routes() {
				for _, o := range []route.Route{role.epe, best} {
					o.Dst = r.Prefix
					if ops = append(ops, route.Op{Protocol: route.Router, Object: o}); len(ops) == cap(ops) {
						flush()
					}
				}
			}
			flush()
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "kernel-ns/op")
		})
	}
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
