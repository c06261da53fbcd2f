package edge

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/outcome"
)

// shortDownload has a connection of a network that carries 2 MiB and ends, at a rate by where its
// packets go. It returns where they went.
func (a *autoEgress) shortDownload(prefix string, rates map[string]float64, local string) (through string) {
	a.t.Helper()
	const bytes = 2 << 20
	through = a.delivered(prefix)
	r := a.report(outcome.Bulk, prefix, bytes/2)
	if local != "" {
		r.Local = netip.MustParseAddrPort(local)
	}
	r.Duration = time.Duration(bytes / rates[through] * float64(time.Second))
	r.Busy = r.Duration
	a.wait(r.Duration / 2)
	a.observed([]outcome.Report{r})
	a.wait(r.Duration / 2)
	r.Kind, r.Acked = outcome.Closed, bytes
	a.observed([]outcome.Report{r})
	return through
}

// wait lets time pass, in which connections are read as often as they are due.
func (a *autoEgress) wait(d time.Duration) {
	for end := a.clock.Add(d); a.clock.Before(end); {
		a.clock = a.clock.Add(min(sampleEvery, end.Sub(a.clock)))
		if a.auto.busy() {
			a.sampled(map[netip.Prefix]sample{netip.MustParsePrefix(autoNetwork): {}})
		}
	}
}

// TestAutoShort: where downloads are too short to compare modes inside one, and come one at a time,
// the mode that measured best is used all the same, and comparisons have no more than their share.
func TestAutoShort(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	rates := map[string]float64{"none": 2e6, sidA: 1e6, sidB: 4e6, sidA + "*1 " + sidB + "*1": 1.5e6}
	started, elsewhere, worse := a.clock, time.Duration(0), 0
	const downloads = 400
	for range downloads {
		before := a.clock
		through := a.shortDownload(autoNetwork, rates, "")
		a.wait(2 * time.Second)
		if a.status(autoNetwork).Trying != "" {
			elsewhere += a.clock.Sub(before)
		}
		if rates[through] < 2e6 {
			worse++
		}
	}
	if s := a.status(autoNetwork); a.delivered(autoNetwork) != sidB || s.Mode != "auto: single" || a.auto.compared < 4 {
		t.Errorf("through %s after %d comparisons: %+v", a.delivered(autoNetwork), a.auto.compared, s)
	}
	if all := a.clock.Sub(started); worse > downloads/10 || elsewhere > all/8 {
		t.Errorf("%d of %d downloads over worse paths, %s of %s in other modes", worse, downloads, elsewhere, all)
	}
	if a.auto.aparts != 0 && len(a.auto.trials) == 0 {
		t.Errorf("%d trials are counted, of %d", a.auto.aparts, len(a.auto.trials))
	}
}

// TestAutoShortDry: with dry_run, and without a share to explore, no route changes.
func TestAutoShortDry(t *testing.T) {
	for _, dry := range []bool{true, false} {
		a := newAutoEgress(t, dry)
		if !dry {
			a.auto.table.SetExplore(0)
		}
		for range 100 {
			if a.shortDownload(autoNetwork, map[string]float64{"none": 2e6}, ""); a.auto.busy() && !dry || a.auto.aparts > 0 {
				t.Fatal("modes are compared")
			}
			a.wait(time.Second)
		}
	}
}

// TestAutoShortJoined: the subflows of a client that joins other paths are connections of their own
// in reports, so what one of them achieved says nothing of the mode.
func TestAutoShortJoined(t *testing.T) {
	a := newAutoEgress(t, false)
	for range 100 {
		a.shortDownload(autoNetwork, map[string]float64{"none": 2e6}, netip.AddrPortFrom(a.peers[0].Address, 80).String())
		a.shortDownload(autoNetwork, map[string]float64{"none": 2e6}, "")
		if a.auto.aparts > 0 {
			t.Fatal("modes are compared")
		}
		a.wait(time.Second)
	}
}

// object has a connection of a network carry 100 kB, in a time by where its packets go. It returns
// where they went.
func (a *autoEgress) object(prefix string, takes map[string]time.Duration) (through string) {
	a.t.Helper()
	through = a.delivered(prefix)
	r := a.report(outcome.Closed, prefix, 100_000)
	r.Busy, r.MinRTT = takes[through], takes[through]/4
	r.Duration = r.Busy + 300*time.Millisecond // until the client closes it
	a.wait(r.Duration)
	a.observed([]outcome.Report{r})
	return through
}

// TestAutoSmall: where all connections carry small objects, these leave through the peer over which
// they take least, and comparisons have no more than their share of the time.
func TestAutoSmall(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	const ms = time.Millisecond
	takes := map[string]time.Duration{"none": 240 * ms, sidA: 250 * ms, sidB: 80 * ms, sidA + "*1 " + sidB + "*1": 165 * ms}
	started, elsewhere := a.clock, time.Duration(0)
	late := 0
	for a.clock.Sub(started) < 20*time.Minute {
		before := a.clock
		through := a.object(autoNetwork, takes)
		a.wait(200 * ms)
		if a.status(autoNetwork).Trying != "" {
			elsewhere += a.clock.Sub(before)
		}
		if through != sidB && a.clock.Sub(started) > 10*time.Minute {
			late++
		}
	}
	if s := a.status(autoNetwork); a.delivered(autoNetwork) != sidB || s.Mode != "auto: single" || a.auto.compared < 3 {
		t.Errorf("through %s after %d comparisons: %+v", a.delivered(autoNetwork), a.auto.compared, s)
	}
	if all := a.clock.Sub(started); elsewhere > all/9 || late > 150 {
		t.Errorf("%s of %s in other modes, %d objects over others", elsewhere, all, late)
	}
}

// TestAutoObjects: objects of connections that go on count as connections do; what was reported as
// such does not count again when the connection ends.
func TestAutoObjects(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	object := func(kind outcome.Kind) {
		r := a.report(kind, autoNetwork, 100_000)
		r.Busy, r.MinRTT, r.Duration, r.Objects = 80*time.Millisecond, 20*time.Millisecond, time.Second, true
		if a.delivered(autoNetwork) == sidB {
			r.Busy /= 2
		}
		a.observed([]outcome.Report{r})
		a.wait(500 * time.Millisecond)
	}
	for range 100 {
		if object(outcome.Closed); a.auto.aparts > 0 {
			t.Fatal("modes are compared by connections that have counted")
		}
	}
	for range 1200 {
		object(outcome.Object)
	}
	if s := a.status(autoNetwork); a.delivered(autoNetwork) != sidB || a.auto.compared < 3 {
		t.Errorf("through %s after %d comparisons: %+v", a.delivered(autoNetwork), a.auto.compared, s)
	}
}

// TestAutoKept: of a connection that goes on not each object is reported, but what all of them carry
// counts, once. A comparison inside the connection that measured nothing delays those in its objects
// by its share of that, not of the objects that were reported.
func TestAutoKept(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	bulk := a.report(outcome.Bulk, autoNetwork, 1<<20)
	bulk.Busy, bulk.Duration = 3*time.Second, 6*time.Second
	a.observed([]outcome.Report{bulk})
	for _, acked := range []uint64{0, 250_000, 500_000, 500_000, 500_000} {
		a.sampled(a.samples(autoNetwork, acked, 1))
		a.clock = a.clock.Add(incumbentFor)
	}
	if len(a.auto.trials) > 0 || a.auto.compared > 0 {
		t.Fatalf("%d trials, %d comparisons", len(a.auto.trials), a.auto.compared)
	}
	const all = 420_000
	began, objects := a.clock, uint64(0)
	for a.auto.aparts == 0 && a.clock.Sub(began) < 10*time.Minute {
		r := a.report(outcome.Object, autoNetwork, 100_000)
		r.Busy, r.MinRTT, r.Duration, r.Objects, r.Carried = 270*time.Millisecond, 130*time.Millisecond, 700*time.Millisecond, true, all
		a.observed([]outcome.Report{r})
		a.wait(2400 * time.Millisecond)
		objects++
	}
	if took := a.clock.Sub(began); took > 2*time.Minute {
		t.Errorf("modes are compared in objects after %s", took)
	}
	n, _ := a.delivery.networks.Get(netip.MustParsePrefix(autoNetwork))
	closed := outcome.Report{Objects: true, Acked: objects*all + 50_000, Carried: 50_000}
	if got := n.apart.counted(closed); got != objects*all {
		t.Errorf("%d of %d bytes counted", got, objects*all)
	}
	if got := n.apart.counted(closed); got != 0 {
		t.Errorf("%d bytes counted twice", got)
	}
}

// TestAutoSmallBesideBulk: small connections do not count while others carry much.
func TestAutoSmallBesideBulk(t *testing.T) {
	a := newAutoEgress(t, false)
	a.auto.table.SetExplore(0.1)
	takes := map[string]time.Duration{"none": 240 * time.Millisecond}
	for range 60 {
		a.shortDownload(autoNetwork, map[string]float64{"none": 2e5}, "")
		for range 20 {
			if a.object(autoNetwork, takes); a.auto.aparts > 0 {
				t.Fatal("modes are compared")
			}
		}
	}
}
