package simrun

import (
	"context"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
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
		if want := 1514 - 14 - 40 - 20 - 92; transport == "dqj-2006" && (k.Segment != want || k.Header != 74 || k.Gateway.Overhead != 92 || k.RACK) {
			t.Errorf("%s: segments of %d bytes, want %d; %+v", transport, k.Segment, want, k)
		}
		switch g := k.Gateway; transport {
		case "path1":
			if g != nil || k.Start != 0 || k.Segment != 1428 || k.Header != 86 || !k.RACK {
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
		want, least := 64e3*1428/1514, 0.85
		if run.Transport == "dq-reseq" {
			want, least = 3*64e3*(1428-92)/1514, 0.7 // the start takes longer than with one path
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
		case run.Traffic == "udp" && run.Transport == "ratio-1-1" && (m[result.LostShare] < 0.2 || m[result.LostShare] > 0.35 || m[result.ReorderedBehind] < 50):
			t.Errorf("%s: %v", run.CellKey, m)
		case run.Traffic == "udp" && run.Transport != "ratio-1-1" && (m[result.LostShare] != 0 || m[result.ReorderedShare] != 0):
			t.Errorf("%s: %v", run.CellKey, m)
		}
	}
}
