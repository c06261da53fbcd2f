package simrun

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// TestGatewayCells: what a scenario says of gateways is what is simulated.
func TestGatewayCells(t *testing.T) {
	s := builtIn(t, "shake-dynamic")
	config := func(transport string) (first time.Duration) {
		c, err := newPlan(s, false).config(result.CellKey{Case: "table1", Traffic: "ftp", Transport: transport}, 1)
		if err != nil {
			t.Fatal(err)
		}
		k := c.Connections[0]
		if want := 1514 - 14 - 20 - 32; transport == "dqj-2006" && (k.Segment != want || k.Header != 66 || k.Gateway.Overhead != 0 || k.RACK || !k.Linux24 || k.InitialReceive != k.ReceiveBuffer) {
			t.Errorf("%s: segments of %d bytes, want %d; %+v", transport, k.Segment, want, k)
		}
		switch g := k.Gateway; transport {
		case "path1":
			if g != nil || k.Start != 0 || k.Segment != 1448 || k.Header != 66 || !k.RACK {
				t.Errorf("%s: %+v", transport, k)
			}
		case "dqj-2006":
			if !g.Probes || g.Replies != 1 || g.Hold != reseq.Off || g.Discipline != "dqj" || len(k.Paths) != 3 {
				t.Errorf("%s: %+v", transport, g)
			}
		case "auto-reseq":
			if g.Probes || g.Replies != 0 || g.Hold != reseq.Auto {
				t.Errorf("%s: %+v", transport, g)
			}
		}
		// Path 3 changes 10 s after the request, whatever was measured before.
		if len(c.Changes) > 0 {
			return c.Changes[0].At - k.Start
		}
		return 10 * time.Second
	}
	for _, transport := range []string{"path1", "dqj-2006", "auto-reseq"} {
		if got := config(transport); got != 10*time.Second {
			t.Errorf("%s: path 3 changes %v after the request", transport, got)
		}
	}
}

// TestRefusesAlliances: what only a lab has is refused, each with its place.
func TestRefusesAlliances(t *testing.T) {
	faults := Check(builtIn(t, "gateway-alliance"))
	for _, want := range []string{
		"nodes.home.gateway.role: ", "nodes.leader.gateway.role: ", "nodes.member1.gateway.role: ", "nodes.nat0.masquerade: ",
		"experiment.cases[1].events[0].stop: ", "experiment.cases[3].events[0].down: ",
	} {
		if !slices.ContainsFunc(faults, func(f fault.Fault) bool { return strings.HasPrefix(f.Error(), want) }) {
			t.Errorf("no fault %q in:\n%v", want, faults.Err())
		}
	}
}

// TestOpenGateways: packets that are not encrypted are sent at once, also by disciplines that
// depend on what is measured.
func TestOpenGateways(t *testing.T) {
	s := builtIn(t, "datagram-tcp")
	c, err := newPlan(s, false).config(result.CellKey{Case: "8M-0", Traffic: "ftp", Transport: "both"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	k := c.Connections[0]
	if g := k.Gateway; g.Overhead != 0 || !g.Open || g.Probes || g.Hold != reseq.Off || k.Segment != 1448 || k.Header != 66 {
		t.Errorf("%+v of %+v", g, k)
	}
	// A second line that is 20 ms longer: in turn, datagrams overtake each other; dq knows the
	// delay from probes alone.
	sweep, err := builtIn(t, "gateway-sweep").Select(scenario.Selection{
		Cases: []string{"dsl-lte"}, Traffic: []string{"udp"}, Transports: []string{"plain-cubic", "dq-plain-cubic", "dq-nat-cubic"},
	})
	if err != nil {
		t.Fatal(err)
	}
	sweep.Experiment.Traffic["udp"].Duration = 4 * time.Second
	r, err := Run(context.Background(), Options{Spec: sweep, Trials: 1, Jobs: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range r.Runs {
		m := run.Metrics
		if inTurn := run.Transport == "plain-cubic"; inTurn != (m[result.ReorderedShare] > 0.2) || m[result.LostShare] > 0.01 {
			t.Errorf("%s: %v", run.CellKey, m)
		}
	}
}

// TestUpload: data of an upload goes over the links towards the server, and is compared with their
// rates.
func TestUpload(t *testing.T) {
	s, err := builtIn(t, "shake-static").Select(scenario.Selection{Cases: []string{"j0"}, Transports: []string{"path1", "dq-reseq"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Experiment.Traffic["ftp"] = &scenario.Traffic{Bytes: 1e9, Duration: time.Minute, Quick: time.Minute, Upload: true}
	r, err := Run(context.Background(), Options{Spec: s, Trials: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range r.Runs {
		want, least := 64e3*1448/1514, 0.85
		if run.Transport == "dq-reseq" {
			want, least = 3*64e3*(1448-72)/1514, 0.7 // the start takes longer than with one path
		}
		got, limit := run.Metrics[result.Goodput], run.Metrics[result.LimitRate]
		if limit < want*0.999 || limit > want*1.001 || got < least*want || got > want {
			t.Errorf("%s: goodput %.0f of %.0f bit/s, want about %.0f", run.Transport, got, limit, want)
		}
	}
}

// TestGatewayRuns: datagrams and connections over gateways have their metrics, from the request on.
func TestGatewayRuns(t *testing.T) {
	s, err := builtIn(t, "datagram-unequal").Select(scenario.Selection{Cases: []string{"rate"}, Transports: []string{"ratio-1-1", "today-dq-reseq", "primary"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, traffic := range s.Experiment.Traffic {
		traffic.Duration = 4 * time.Second
	}
	traces := map[result.CellKey]*result.Trace{}
	r, err := Run(context.Background(), Options{Spec: s, Trials: 1, Jobs: 1, Progress: func(e Event) { traces[e.Run.CellKey] = e.Trace }})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range r.Runs {
		if run.Err() != nil {
			t.Errorf("%s: %v", run.CellKey, run.Err())
			continue
		}
		m := run.Metrics
		if m[result.FirstByte] > 0.1 || m[result.Duration] > 4.2 || m[result.Goodput] > 1.0001*m[result.LimitRate] {
			t.Errorf("%s: %v", run.CellKey, m)
		}
		carried := 0.
		for _, path := range traces[run.CellKey].Subflows {
			for _, n := range path.Bytes {
				carried += float64(n)
			}
		}
		// Headers and the tunnel are 4 to 17 % of the payload; besides, packets are dropped.
		if run.Transport != "primary" && carried < m[result.Bytes]*1.04 {
			t.Errorf("%s: %.0f bytes on the links for %.0f bytes of payload", run.CellKey, carried, m[result.Bytes])
		}
		switch _, has := m[result.TripleDuplicates]; {
		case run.Traffic == "ftp" && has != (run.Transport != "primary"):
			t.Errorf("%s: triple duplicates: %v", run.CellKey, has)
		case run.Traffic == "udp" && run.Transport == "ratio-1-1" && (m[result.LostShare] < 0.15 || m[result.LostShare] > 0.35 || m[result.ReorderedBehind] < 50):
			t.Errorf("%s: %v", run.CellKey, m)
		case run.Traffic == "udp" && run.Transport != "ratio-1-1" && (m[result.LostShare] != 0 || m[result.ReorderedShare] != 0):
			t.Errorf("%s: %v", run.CellKey, m)
		}
	}
}

// TestGatewayFollowsRate: half a second after a path became slower, the gateway sends no more over
// it than it carries, but for a probe of a rate that is higher by a tenth, of 300 ms.
func TestGatewayFollowsRate(t *testing.T) {
	s, err := builtIn(t, "gateway-pair").Select(scenario.Selection{Cases: []string{"equal"}, Transports: []string{"auto"}})
	if err != nil {
		t.Fatal(err)
	}
	const at = 4 * time.Second
	rate := 10 * unit.MbitPerSecond
	s.Links["path2"].Schedule = linkmodel.Schedule{{At: at, Change: linkmodel.Change{Rate: &rate}}}
	s.Experiment.Traffic["bulk"].Duration = 6 * time.Second
	var trace *result.Trace
	if _, err := Run(context.Background(), Options{Spec: s, Trials: 1, Jobs: 1, Progress: func(e Event) { trace = e.Trace }}); err != nil {
		t.Fatal(err)
	}
	sent := func(from, to time.Duration) float64 {
		bytes := int64(0)
		for _, path := range trace.Subflows {
			if path.Name == "path2" {
				for _, n := range path.Bytes[from/interval : to/interval] {
					bytes += n
				}
			}
		}
		return float64(bytes) * 8 / (to - from).Seconds() / 1e6
	}
	if before := sent(at-time.Second, at); before < 17 {
		t.Errorf("%.1f Mbit/s before the change", before)
	}
	if after := sent(at+500*time.Millisecond, at+time.Second); after > 10.6 || after < 7 {
		t.Errorf("%.1f Mbit/s half a second after the change to 10 Mbit/s", after)
	}
}
