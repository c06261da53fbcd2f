package edge

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/kernel/route"
)

// manyPrefixes are more than one step of a walk changes.
var manyPrefixes = func() (list []netip.Prefix) {
	for i := range daemon.Step + 20 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, byte(i >> 8), byte(i)}), 48))
	}
	return list
}()

// TestRoutesFollowMTU: after any changes of routes, locators and the MTU of the interface, in any
// order and during walks over the routes, all EPE Routes have the MTU of the interface at the end
// of the walk.
func TestRoutesFollowMTU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := testConfig()
		config.Encap = rapid.SampledFrom([]Encap{EncapRed, EncapFull}).Draw(t, "encap")
		e, w := newTestEgress(config)
		sids := []string{"fc00:1:1::", "fc00:2:1::"}
		for i, prefix := range manyPrefixes {
			p := vpnPath("10.0.0.1:1", sids[i%2], "65000:101")
			p.Prefix = prefix
			if err := e.update(p); err != nil {
				t.Fatal(err)
			}
		}
		mtu := 1500
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				mtu = rapid.SampledFrom([]int{1280, 1400, 1500, 9000}).Draw(t, "mtu")
				e.setMTU(mtu)
			case 1:
				sid := rapid.SampledFrom(sids).Draw(t, "locator")
				e.locator(locator(sid[:7]+":/32", rapid.Bool().Draw(t, "withdrawn")))
			case 2:
				e.step(rapid.IntRange(0, 3).Draw(t, "most"))
			default:
				i := rapid.IntRange(0, 1).Draw(t, "route")
				p := vpnPath(fmt.Sprint("10.0.0.1:", 1+i), sids[i], rapid.SampledFrom([]string{"65000:101", "65000:102"}).Draw(t, "rt"))
				p.Prefix = rapid.SampledFrom(manyPrefixes).Draw(t, "prefix")
				p.Withdrawn = rapid.Bool().Draw(t, "withdrawn")
				if err := e.update(p); err != nil {
					t.Fatal(err)
				}
			}
		}
		for e.step(1) {
		}
		want := uint32(mtu + redHeadroom)
		if config.Encap == EncapFull {
			want = 0 // the kernel's
		}
		for _, o := range w {
			if r, ok := o.(route.Route); ok && r.NexthopID != 0 && r.MTU != want {
				t.Fatalf("MTU %d: %v", mtu, r)
			}
		}
	})
}

// TestAutoUnfit: where connections of QUIC began unseen, and may stop when they are moved, no modes
// are compared until they have ended, but for no more than some minutes.
func TestAutoUnfit(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	bulk := func() {
		r := a.report(outcome.Bulk, autoNetwork, 1<<20)
		r.Duration, r.Busy = time.Second, time.Second
		a.observed([]outcome.Report{r})
	}
	started := a.clock
	for range 40 {
		a.observed([]outcome.Report{a.report(outcome.Unfit, autoNetwork, 0)})
		a.wait(20 * time.Second)
		if bulk(); a.auto.busy() {
			break
		}
	}
	if d := a.clock.Sub(started); d < 9*time.Minute || d > 11*time.Minute {
		t.Errorf("modes are compared after %v of QUIC", d)
	}
	a = newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	a.observed([]outcome.Report{a.report(outcome.Unfit, autoNetwork, 0)})
	a.wait(time.Hour)
	a.observed([]outcome.Report{a.report(outcome.Unfit, autoNetwork, 0)})
	if bulk(); a.auto.busy() {
		t.Error("modes are compared beside QUIC an hour later")
	}
	a = newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	a.observed([]outcome.Report{a.report(outcome.Unfit, autoNetwork, 0)})
	a.wait(20 * time.Second)
	if bulk(); a.auto.busy() {
		t.Error("modes are compared beside QUIC")
	}
	a.wait(20 * time.Second)
	if bulk(); !a.auto.busy() {
		t.Error("modes are not compared after QUIC")
	}
}
