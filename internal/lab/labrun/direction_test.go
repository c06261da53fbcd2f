package labrun

import (
	"maps"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// TestRunBothDirections: datagrams and uploads are measured at their receiver. Only the way to the
// client loses packets, and only the way to the server is slow.
func TestRunBothDirections(t *testing.T) {
	o := runOptions(t, "ways")
	slow := 2 * unit.MbitPerSecond
	e := o.Spec.Experiment
	e.Cases = []scenario.Case{{Name: "one", Links: map[string]scenario.Shape{"wire": {
		Rate: 20 * unit.MbitPerSecond, Forward: &linkmodel.Change{Rate: &slow},
		Backward: &linkmodel.Change{Loss: &linkmodel.Loss{Kind: linkmodel.Random, P: 0.2}},
	}}}}
	stream := scenario.Traffic{Rate: unit.MbitPerSecond, Duration: time.Second, Quick: time.Second, Datagram: 100}
	back := stream
	back.Upload = true
	e.Traffic = map[string]*scenario.Traffic{
		// A lost SYN is sent again after 1 s, 3 s and 7 s.
		"down": &stream, "up": &back, "tcp": {Bytes: 10 * unit.MB, Duration: 8 * time.Second, Quick: 8 * time.Second, Upload: true},
	}
	e.Transports = map[string]*scenario.Transport{"tcp": {Links: []string{"wire"}, Settings: scenario.Settings{Congestion: "newreno"}}}
	o.Trials, e.Expect = 1, nil
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Runs) != 3 {
		t.Fatalf("%d runs", len(outcome.Runs))
	}
	for _, r := range outcome.Runs {
		m := r.Metrics
		lost, numbered := m[result.LostShare], m[result.DatagramsSent] == 1250
		switch {
		case r.Err() != nil:
			t.Errorf("%s: %v", r.CellKey, r.Err())
		case r.Traffic == "down" && (!numbered || lost < 0.1 || lost > 0.3 || m[result.ReorderedShare] != 0):
			t.Errorf("1250 datagrams of which the link loses 20 %%: %v", m)
		case r.Traffic == "up" && (!numbered || lost != 0 || m[result.Bytes] != 125_000 || m[result.Goodput] > 1.1e6):
			t.Errorf("1250 datagrams without loss: %v", m)
		case r.Traffic == "tcp" && (m[result.Goodput] > 2e6 || m[result.Goodput] < 0.1*m[result.LimitRate] || m[result.LimitRate] > 2e6):
			t.Errorf("an upload of 2 Mbit/s: %v", m)
		}
	}
}

func TestCheckDirections(t *testing.T) {
	e := labtest.Experiment()
	e.Experiment.Traffic["cbr"].Datagram = 100
	e.Experiment.Traffic["bulk"].Upload = true
	if faults := Check(e); len(faults) != 1 || faults[0].Path != "experiment.traffic.cbr.datagram" {
		t.Errorf("faults %v, want that MPTCP carries no datagrams", faults)
	}
	e.Experiment.Expect = append(e.Experiment.Expect, scenario.Expectation{Metric: result.BurstMax})
	if faults := Check(e); len(faults) != 2 || faults[0].Path != "experiment.traffic.bulk.upload" {
		t.Errorf("faults %v, want that bursts of uploads are not observed", faults)
	}
	e.Experiment.Traffic["bulk"].Upload, e.Experiment.Traffic["bulk"].Beside = false, 1
	if faults := Check(e); len(faults) != 2 || faults[0].Path != "experiment.traffic.bulk.beside" {
		t.Errorf("faults %v, want that bursts beside downloads are not observed", faults)
	}
}

// TestTuneUpload: the settings of sender and receiver change sides.
func TestTuneUpload(t *testing.T) {
	s := labtest.Experiment()
	s.Nodes["a"].Routes = s.Nodes["c"].Routes
	s.Nodes["b"].Routes = s.Nodes["c"].Routes
	s.Experiment.Traffic["bulk"].Upload = true
	s.Experiment.Transports = map[string]*scenario.Transport{
		"tcp": {Links: []string{"wire"}, Settings: scenario.Settings{Congestion: "newreno", InitialWindow: 3, ReceiveBuffer: 65 * unit.KB}},
	}
	all, _, err := tunings(s)
	if err != nil {
		t.Fatal(err)
	}
	down, up := all[result.CellKey{Case: "slow", Traffic: "cbr", Transport: "tcp"}], all[result.CellKey{Case: "slow", Traffic: "bulk", Transport: "tcp"}]
	if !maps.Equal(down.server, up.client) || !maps.Equal(down.client, up.server) || down.out != up.back || down.back != up.out || down.server[congestionKey] != "reno" {
		t.Errorf("download %+v, upload %+v", down, up)
	}
	if !up.restarts(down) {
		t.Error("the listening socket keeps the receive buffer of downloads")
	}
	s.Experiment.Transports["tcp"].Window = 10 * unit.KB
	if _, _, err := tunings(s); err == nil {
		t.Error("a bound of the window of an upload is accepted")
	}
}
