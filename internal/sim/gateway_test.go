package sim

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// tunnelOverhead is that of the tunnel over IPv4.
const tunnelOverhead = 72

// bundle returns a TCP connection that gateways carry over these roads.
func bundle(g Gateway, roads ...road) Config {
	c := Config{Seed: 1, Duration: 30 * time.Second}
	k := Connection{Start: 2 * time.Second, Congestion: "cubic", Segment: 1388, Header: 54, RACK: true, Gateway: &g}
	for _, r := range roads {
		k.Paths = append(k.Paths, lay(&c, r))
	}
	c.Connections = []Connection{k}
	return c
}

// numbered returns a source of 10,000 datagrams of 1000 bytes in 10 s that gateways carry.
func numbered(g *Gateway, roads ...road) Config {
	c := Config{Seed: 1, Duration: 14 * time.Second}
	x := Cross{
		Kind: CBR, Rate: 8 * 1042 * unit.KbitPerSecond, Size: 1042, Payload: 1000, Start: 2 * time.Second, Stop: 12 * time.Second, Gateway: g,
	}
	for _, r := range roads {
		x.Paths = append(x.Paths, lay(&c, r))
	}
	x.Out = x.Paths[0].Out
	c.Cross = []Cross{x}
	return c
}

var eight = road{rate: 8 * unit.MbitPerSecond, delay: 20 * ms, queue: linkmodel.Limit{Packets: 100}}

// TestGatewayAddsUpPaths: one connection fills several paths, and no more than the tunnel leaves.
func TestGatewayAddsUpPaths(t *testing.T) {
	slow := eight
	slow.rate, slow.delay = 3*unit.MbitPerSecond, 60*ms
	for _, tt := range []struct {
		name  string
		roads []road
		least float64
	}{
		{"equal", []road{eight, eight}, 0.95},
		{"three", []road{eight, eight, eight}, 0.95},
		{"unequal", []road{eight, slow}, 0.92},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := bundle(Gateway{Discipline: "dq", Hold: reseq.Auto, Overhead: tunnelOverhead}, tt.roads...)
			r := run(t, c)
			var sum float64
			for _, r := range tt.roads {
				sum += float64(r.rate)
			}
			limit := sum * 1388 / (1388 + 54 + tunnelOverhead)
			got := float64(r.Connections[0].Delivered.Over(r.Connections[0].Active)) / limit
			if got < tt.least || got > 1 {
				t.Errorf("%.3f of the limit, want %g; %+v", got, tt.least, r.Connections[0].Gateway.Receiver)
			}
		})
	}
}

func TestGatewayOrder(t *testing.T) {
	far, lossy := eight, eight
	far.delay = 70 * ms
	lossy.loss = 0.2
	for _, tt := range []struct {
		name    string
		gateway *Gateway
		roads   []road
		check   func(t *testing.T, c CrossResult)
	}{
		{"in turn over different delays", &Gateway{Discipline: "ratio"}, []road{eight, far}, func(t *testing.T, c CrossResult) {
			// 50 ms are 50 packets: each of the second path is behind.
			if c.Received != c.Sent || c.Reordered < 4900 || c.Behind < 45 || c.Behind > 55 {
				t.Errorf("%+v", c)
			}
		}},
		{"held for long enough", &Gateway{Discipline: "ratio", Hold: reseq.Hold(100 * ms)}, []road{eight, far}, func(t *testing.T, c CrossResult) {
			if c.Received != c.Sent || c.Reordered != 0 || c.Gateway.Receiver.Waited < 4900 {
				t.Errorf("%+v, %+v", c, c.Gateway.Receiver)
			}
		}},
		{"held too briefly", &Gateway{Discipline: "ratio", Hold: reseq.Hold(20 * ms)}, []road{eight, far}, func(t *testing.T, c CrossResult) {
			if c.Received != c.Sent || c.Reordered < 4000 {
				t.Errorf("%+v, %+v", c, c.Gateway.Receiver)
			}
		}},
		{"auto", &Gateway{Discipline: "ratio", Hold: reseq.Auto}, []road{eight, far}, func(t *testing.T, c CrossResult) {
			if c.Received != c.Sent || c.Reordered != 0 {
				t.Errorf("%d of %d, %d reordered, want none: the delays are known; %+v", c.Received, c.Sent, c.Reordered, c.Gateway.Receiver)
			}
		}},
		{"one path alone", nil, []road{eight}, func(t *testing.T, c CrossResult) {
			if c.Reordered != 0 || c.Duplicates != 0 || c.Received >= c.Sent {
				t.Errorf("%+v, want drops in order: the path is slower than the source", c)
			}
		}},
		{"copies", &Gateway{Discipline: "redundant", Hold: reseq.Auto}, []road{{rate: 20 * unit.MbitPerSecond, delay: 20 * ms}, {rate: 20 * unit.MbitPerSecond, delay: 20 * ms, loss: 0.2}}, func(t *testing.T, c CrossResult) {
			if c.Received != c.Sent || c.Duplicates != 0 || c.Gateway.Receiver.Duplicates < 7000 {
				t.Errorf("%+v, %+v", c, c.Gateway.Receiver)
			}
		}},
		{"losses of the own path do not wait", &Gateway{Discipline: "ratio", Hold: reseq.Hold(time.Second)}, []road{eight, lossy}, func(t *testing.T, c CrossResult) {
			if r := c.Gateway.Receiver; r.Expired > 10 || r.Named+r.Passed < 900 || c.Reordered != 0 {
				t.Errorf("%+v", r)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := run(t, numbered(tt.gateway, tt.roads...)).Cross[0]
			c.Series = nil
			tt.check(t, c)
		})
	}
}

// TestGatewayRatio: packets are split in the exact ratio.
func TestGatewayRatio(t *testing.T) {
	c := numbered(&Gateway{Discipline: "ratio"}, eight, eight)
	c.Cross[0].Paths[0].Ratio, c.Cross[0].Paths[1].Ratio = 16, 3
	sent := run(t, c).Cross[0].Gateway.Sent
	if got := float64(sent[0]) / float64(sent[1]); math.Abs(got-16./3) > 0.01 {
		t.Errorf("%v sent, a ratio of %.3f, want 16:3", sent, got)
	}
}

// TestPropertyGateway: whatever the paths, disciplines and holding, a transfer ends, with each byte
// once, and the same configuration gives the same result.
func TestPropertyGateway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var roads []road
		for range rapid.IntRange(1, 3).Draw(t, "roads") {
			roads = append(roads, road{
				rate: unit.Bandwidth(rapid.IntRange(1, 20).Draw(t, "rate")) * unit.MbitPerSecond, delay: time.Duration(rapid.IntRange(1, 80).Draw(t, "delay")) * ms,
				loss: rapid.SampledFrom([]float64{0, 0.01}).Draw(t, "loss"),
			})
		}
		g := Gateway{
			Discipline: rapid.SampledFrom(sched.Disciplines()).Draw(t, "discipline"), Overhead: tunnelOverhead,
			Hold:    rapid.SampledFrom([]reseq.Hold{reseq.Off, reseq.Auto, reseq.Hold(30 * ms)}).Draw(t, "hold"),
			Replies: rapid.IntRange(0, len(roads)).Draw(t, "replies"), Probes: rapid.Bool().Draw(t, "probes"),
		}
		c := bundle(g, roads...)
		k := &c.Connections[0]
		k.Bytes, k.RACK, k.Handshake = 300*unit.KB, rapid.Bool().Draw(t, "rack"), true
		c.Seed, c.Duration = rapid.Uint64().Draw(t, "seed"), time.Minute
		r := run(t, c)
		if got := r.Connections[0]; got.Delivered != k.Bytes || got.Finish == Never || got.Gateway.Unsent != 0 {
			t.Fatalf("%s of %s delivered; %+v", got.Delivered, k.Bytes, got.Gateway)
		}
		if again := run(t, c); !reflect.DeepEqual(r, again) {
			t.Fatal("the same configuration gave another result")
		}
	})
}

// TestAutoRestsHarmfulPath: the second path loses 5 % of its packets and is slow, so that a
// connection that uses both brings less than the first one alone. auto leaves it out for most of
// the time; dq does not.
func TestAutoRestsHarmfulPath(t *testing.T) {
	lossy := eight
	lossy.loss = 0.05
	rate := func(discipline string, roads ...road) float64 {
		c := bundle(Gateway{Discipline: discipline, Overhead: tunnelOverhead, Hold: reseq.Auto}, roads...)
		c.Duration = 60 * time.Second
		r := run(t, c)
		return float64(r.Connections[0].After())
	}
	alone, dq, auto := rate("best", eight), rate("dq", eight, lossy), rate("auto", eight, lossy)
	if dq > 0.7*alone {
		t.Errorf("dq brings %.2f of the first path alone: the second does not harm", dq/alone)
	}
	if auto < 0.85*alone || auto < 1.2*dq {
		t.Errorf("auto brings %.2f of the first path alone, dq %.2f", auto/alone, dq/alone)
	}
}

// TestAutoBeginsOnJitteryPath: where a flow begins to use a path with jitter, whose first packets
// arrive before those that wait in front of the other path, all are delivered in order.
func TestAutoBeginsOnJitteryPath(t *testing.T) {
	for _, from := range []time.Duration{60 * ms, 75 * ms, 90 * ms} {
		five := road{rate: 5 * unit.MbitPerSecond, delay: 60 * ms, queue: linkmodel.Limit{Packets: 100}}
		later := five
		later.delay = from
		c := numbered(&Gateway{Discipline: "auto", Overhead: tunnelOverhead, Hold: reseq.Auto}, five, later)
		c.Links[c.Cross[0].Paths[1].Out[0]].Profile.Jitter = linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 25 * ms, Reorder: true}
		d := run(t, c).Cross[0]
		if rx := d.Gateway.Receiver; rx.Late > 5 || d.Gateway.Sent[1] < 3000 || rx.Waited < 3000 {
			t.Errorf("second path of %v: %d packets late, %d sent on it, %+v", from, rx.Late, d.Gateway.Sent[1], rx)
		}
	}
}

// TestAutoBesideShortPath: beside a line of 3 ms, one of 40 ms whose packets overtake each other
// and that loses none. What is late there comes after more than a round trip of the short line.
func TestAutoBesideShortPath(t *testing.T) {
	fiber := road{rate: 20 * unit.MbitPerSecond, delay: 3 * ms}
	lte := road{rate: 30 * unit.MbitPerSecond, delay: 40 * ms, queue: linkmodel.Limit{Packets: 250}}
	carried := func(discipline string, roads ...road) (float64, GatewayResult) {
		c := bundle(Gateway{Discipline: discipline, Overhead: tunnelOverhead, Hold: reseq.Auto}, roads...)
		c.Duration = 15 * time.Second
		for i := range c.Links { // without the links that are alike on all paths
			if c.Links[i].Profile.Rate == 100*unit.MbitPerSecond {
				c.Links[i].Profile.Delay = 0
			}
		}
		path := c.Connections[0].Paths[len(roads)-1]
		for _, i := range []int{path.Out[0], path.Back[1]} {
			c.Links[i].Profile.Jitter = linkmodel.Jitter{Kind: linkmodel.Normal, Amount: 8 * ms, Reorder: true}
		}
		r := run(t, c).Connections[0]
		return float64(r.Delivered), *r.Gateway
	}
	alone, _ := carried("best", lte)
	both, g := carried("auto", fiber, lte)
	if total := g.Sent[0] + g.Sent[1]; both < 1.3*alone || g.Repaired > total/100 {
		t.Errorf("auto brings %.2f of the later line alone, and sends %d of %d packets again", both/alone, g.Repaired, total)
	}
}

// TestAutoUsesFasterLaterPath: the second path is 23 or 70 ms later and has a multiple of the first
// one's rate. A connection that begins on the first one would hardly use it.
func TestAutoUsesFasterLaterPath(t *testing.T) {
	queue := linkmodel.Limit{Time: 100 * ms}
	for _, tt := range []struct{ near, far road }{
		{road{rate: 16 * unit.MbitPerSecond, delay: 12 * ms, queue: queue}, road{rate: 60 * unit.MbitPerSecond, delay: 35 * ms, queue: queue}},
		{road{rate: 10 * unit.MbitPerSecond, delay: 10 * ms, queue: queue}, road{rate: 30 * unit.MbitPerSecond, delay: 80 * ms, queue: queue}},
	} {
		rate := func(discipline string, roads ...road) float64 {
			c := bundle(Gateway{Discipline: discipline, Overhead: tunnelOverhead, Hold: reseq.Auto}, roads...)
			k := &c.Connections[0]
			k.RACK, k.HyStart, k.Handshake, c.Duration = true, true, true, 10*time.Second
			return float64(run(t, c).Connections[0].After())
		}
		if far, auto := rate("best", tt.far), rate("auto", tt.near, tt.far); auto < 1.2*far {
			t.Errorf("auto brings %.2f of %v alone", auto/far, tt.far)
		}
	}
}

// TestGatewayDeadPath: a path that never answers is not used, whatever the discipline.
func TestGatewayDeadPath(t *testing.T) {
	dead := eight
	dead.loss = 1
	for _, discipline := range sched.Disciplines() {
		if discipline == "redundant" {
			continue // it sends on all
		}
		g := Gateway{Discipline: discipline, Hold: reseq.Auto, Overhead: tunnelOverhead}
		alone := run(t, bundle(g, eight)).Connections[0]
		for _, roads := range [][]road{{eight, dead}, {dead, eight}} {
			got := run(t, bundle(g, roads...)).Connections[0]
			if least := alone.Delivered * 98 / 100; got.Delivered < least {
				t.Errorf("%s: %s beside a dead path, want %s at least", discipline, got.Delivered, least)
			}
		}
	}
}

// TestGatewayPathDies: a path that dies is known to be dead when three probes in succession were not
// answered, each within its own timeout, and one of which the rate falls is not, though its queue
// delays the answers.
func TestGatewayPathDies(t *testing.T) {
	long := eight
	long.delay, long.queue = 200*ms, linkmodel.Limit{Packets: 300}
	at, tenth, all := 8*time.Second, 800*unit.KbitPerSecond, linkmodel.Loss{Kind: linkmodel.Random, P: 1}
	for _, tt := range []struct {
		name   string
		change linkmodel.Change
		dies   bool
	}{{"all is lost", linkmodel.Change{Loss: &all}, true}, {"a tenth of the rate", linkmodel.Change{Rate: &tenth}, false}} {
		t.Run(tt.name, func(t *testing.T) {
			c := bundle(Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead}, eight, long)
			c.Duration, c.Series = 12*time.Second, 50*ms
			c.Changes = []Change{{At: at, Link: c.Connections[0].Paths[1].Out[0], Change: tt.change}}
			known := run(t, c).Connections[0].Gateway.Estimates[1][at/c.Series:]
			dead := slices.IndexFunc(known, func(e Estimate) bool { return !e.Usable })
			if after := time.Duration(dead) * c.Series; tt.dies != (dead >= 0) || after > 800*ms {
				t.Errorf("dead after %s (-1: never: %d)", after, dead)
			}
		})
	}
}

// TestGatewayProbeWithoutReports: a path that loses all from a time at which more than its
// configured rate is tried is paced to that rate again.
func TestGatewayProbeWithoutReports(t *testing.T) {
	c := bundle(Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead}, eight)
	c.Duration, c.Series = 12*time.Second, 50*ms
	tries := func(e Estimate) bool { return e.Rate > eight.rate }
	known := run(t, c).Connections[0].Gateway.Estimates[0]
	first := slices.IndexFunc(known, tries)
	if first < 0 {
		t.Fatal("no higher rate was tried")
	}
	all := linkmodel.Loss{Kind: linkmodel.Random, P: 1}
	c.Changes = []Change{{At: time.Duration(first+1) * c.Series, Link: c.Connections[0].Paths[0].Out[0], Change: linkmodel.Change{Loss: &all}}}
	known = run(t, c).Connections[0].Gateway.Estimates[0]
	if !tries(known[first]) {
		t.Fatal("the change came before the probe")
	}
	if tries(known[len(known)-1]) {
		t.Errorf("the estimate is %v at the end", known[len(known)-1].Rate)
	}
}

// TestGatewayWithoutUsablePath: a request for lost packets that arrives while no path can be used
// is not answered.
func TestGatewayWithoutUsablePath(t *testing.T) {
	bad := road{rate: 10 * unit.MbitPerSecond, delay: 10 * ms, queue: linkmodel.Limit{Packets: 100}, loss: 0.5}
	for seed := range uint64(20) {
		c := bundle(Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead}, bad, bad)
		c.Seed, c.Duration = seed, 10*time.Second
		run(t, c)
	}
}

// TestSharedTunnel: a call and a page through the tunnels of a download, each in its own order and
// queue: the call loses nothing and does not wait for the download, whose end does not matter.
func TestSharedTunnel(t *testing.T) {
	c := bundle(Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead}, road{rate: 20 * unit.MbitPerSecond, delay: 10 * ms}, road{rate: 20 * unit.MbitPerSecond, delay: 15 * ms})
	download := c.Connections[0]
	download.Bytes, download.Beside = 0, true
	page := download
	page.Start, page.Bytes, page.Object, page.Beside = 4*time.Second, 500_000, 50_000, false
	c.Connections = []Connection{page, download}
	c.Cross = []Cross{{
		Name: "call", Kind: CBR, Rate: unit.MbitPerSecond, Size: 562, Payload: 500, Start: 4 * time.Second, Stop: 6 * time.Second,
		Paths: download.Paths, Gateway: download.Gateway,
	}}
	c.Duration = time.Minute
	got := run(t, c)
	if p := got.Connections[0]; p.Finish == Never || len(p.Objects) != 10 {
		t.Errorf("%d objects of the page arrived", len(p.Objects))
	}
	if x := got.Cross[0]; x.Sent == 0 || x.Received-x.Duplicates != x.Sent || x.DelayP95 < 10*ms || x.DelayP95 > 60*ms {
		t.Errorf("the call: sent %d, received %d, delay %s", x.Sent, x.Received, x.DelayP95)
	}
	if d := got.Connections[1]; d.Delivered < 4*unit.MB || d.Delivered > 100*unit.MB {
		t.Errorf("the download delivered %s: it ends with the others", d.Delivered)
	}
	if page, download := got.Connections[0].Gateway.Sent, got.Connections[1].Gateway.Sent; !slices.Equal(page, download) {
		t.Errorf("they have other tunnels: %v and %v", page, download)
	}
}

// TestUploadBesideDownload: acknowledgments do not take half of a slow way back from an upload, and
// do not limit the download to what that half acknowledges.
func TestUploadBesideDownload(t *testing.T) {
	line := road{rate: 100 * unit.MbitPerSecond, delay: 15 * ms, queue: linkmodel.Limit{Packets: 200}}
	c := bundle(Gateway{Discipline: "auto", Hold: reseq.Auto, Overhead: tunnelOverhead}, line)
	k := &c.Connections[0]
	k.DelayedACK = true
	const up = 5 * unit.MbitPerSecond
	c.Links[k.Paths[0].Back[1]].Profile.Rate = up
	c.Cross = []Cross{{Kind: CBR, Rate: up * 6 / 5, Size: 1442, Payload: 1400, Start: time.Second, Gateway: k.Gateway, Paths: k.Paths, Out: k.Paths[0].Out, Reverse: true}}
	r := run(t, c)
	down := float64(r.Connections[0].Delivered.Over(r.Connections[0].Active)) / float64(line.rate)
	upload := float64(r.Cross[0].Received*1400*8) / 29 / float64(up)
	if down < 0.7 || upload < 0.6 {
		t.Errorf("%.2f of the rate down and %.2f up", down, upload)
	}
}

// TestGatewaySharesByFlow: each download and a source of datagrams have a queue of their own in
// front of a path, as in a gateway, so each has the same share of its rate.
func TestGatewaySharesByFlow(t *testing.T) {
	const downloads = 9
	c := bundle(Gateway{Discipline: "best", Hold: reseq.Auto}, eight)
	own := c.Connections[0]
	for range downloads - 1 {
		c.Connections = append(c.Connections, own)
	}
	c.Cross = []Cross{{
		Kind: CBR, Rate: 2 * unit.MbitPerSecond, Size: 500, Payload: 450, Start: 5 * time.Second, Stop: 25 * time.Second,
		Gateway: own.Gateway, Paths: own.Paths, Out: own.Paths[0].Out,
	}}
	got := float64(run(t, c).Cross[0].Received) * 500 * 8 / 20
	if fair := float64(eight.rate) / (downloads + 1); got < 0.7*fair || got > 1.2*fair {
		t.Errorf("datagrams have %.2f Mbit/s beside %d downloads, want about %.2f", got/1e6, downloads, fair/1e6)
	}
}
