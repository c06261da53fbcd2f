package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/route"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// egress reports the changes of one link.
type egress struct{ changed chan bool }

func (egress) BGP([]bgp.Event) {}
func (egress) Settled() bool   { return false }
func (e egress) Link(name string, up bool) {
	if name == "wan0" {
		e.changed <- up
	}
}

// BenchmarkLinkDown measures the time from an egress link going down to the reaction of the
// machine, with 100,000 routes in the kernel, alone and right after five unrelated veth pairs were
// made. Most of it is the kernel's, which walks all routes; "after-event" is the time since the
// kernel's message.
func BenchmarkLinkDown(b *testing.B) {
	for _, pairs := range []int{0, 5} {
		b.Run(fmt.Sprintf("unrelated=%d", pairs), func(b *testing.B) {
			ns := netnstest.New(b)
			in := func(f func() error) {
				b.Helper()
				if err := netns.Do(ns, f); err != nil {
					b.Fatal(err)
				}
			}
			veth := func(name string) error {
				link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "0"}, PeerName: name + "1"}
				if err := netlink.LinkAdd(link); err != nil {
					return err
				}
				for _, end := range []string{"0", "1"} {
					if err := up(name+end, true); err != nil {
						return err
					}
				}
				return nil
			}
			var d *daemon.Daemon
			var watcher *route.Watcher
			m := egress{make(chan bool, 1000)}
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			in(func() (err error) {
				for _, name := range []string{"lan", "wan"} {
					if err := veth(name); err != nil {
						return err
					}
				}
				if watcher, err = route.Watch(ctx, route.Links); err != nil {
					return err
				}
				d, err = daemon.New(ctx, daemon.Options{
					Protocol: route.ASBR, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
					Speaker: bgp.Options{ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.1"), NoListen: true},
				})
				if err != nil {
					return err
				}
				d.Kernel.Set(route.Nexthop{ID: 7, Link: "lan0", SID: netip.MustParseAddr("fd00::1")})
				for i := range 100_000 {
					a := netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, byte(i >> 16), byte(i >> 8), byte(i)})
					d.Kernel.Set(route.Route{Table: 4000, Dst: netip.PrefixFrom(a, 64), NexthopID: 7})
				}
				return nil
			})
			reported := make(chan time.Time, 1000)
			go func() {
				for e := range watcher.Events() {
					if l, ok := e.(route.LinkChange); ok && l.Link.Name == "wan0" && !l.Link.Up {
						reported <- time.Now()
					}
				}
			}()
			go func() { ended <- netns.Do(ns, func() error { return d.Run(ctx, m) }) }()
			settled := func() {
				for d.Do(ctx, func() {}); len(m.changed) > 0; d.Do(ctx, func() {}) {
					<-m.changed
				}
			}
			settled()
			var total, after, worst time.Duration
			for b.Loop() {
				var start time.Time
				for len(reported) > 0 {
					<-reported // of an earlier round
				}
				in(func() error {
					for i := range pairs {
						if err := veth(fmt.Sprint("other", i, "x")); err != nil {
							return err
						}
					}
					start = time.Now()
					return up("wan0", false)
				})
				for <-m.changed {
				}
				reacted := time.Now()
				total, worst = total+reacted.Sub(start), max(worst, reacted.Sub(start))
				after += max(0, reacted.Sub(<-reported))
				in(func() error {
					for i := range pairs {
						if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("other", i, "x0")}}); err != nil {
							return err
						}
					}
					return up("wan0", true)
				})
				for !<-m.changed {
				}
				settled()
			}
			b.ReportMetric(total.Seconds()*1000/float64(b.N), "ms/reaction")
			b.ReportMetric(after.Seconds()*1000/float64(b.N), "ms/after-event")
			b.ReportMetric(worst.Seconds()*1000, "ms/worst")
			cancel()
			if err := errors.Join(<-ended, watcher.Close()); err != nil {
				b.Error(err)
			}
		})
	}
}

func up(name string, up bool) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}
