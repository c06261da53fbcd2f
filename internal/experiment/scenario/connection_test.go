package scenario

import (
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
)

func TestConnectionFaults(t *testing.T) {
	for want, change := range map[string]func(e *Experiment){
		`experiment.cases[0].connections[0].client: must be another node than the server and the client, got "server"`: func(e *Experiment) { e.Cases[0].Connections[0].Client = "server" },
		`experiment.cases[0].connections[0].client: node "x" is not in nodes`:                                          func(e *Experiment) { e.Cases[0].Connections[0].Client = "x" },
		`experiment.cases[0].connections[0]: has no client, and so the transport of the cell`:                          func(e *Experiment) { e.Cases[0].Connections[0].Client = "" },
		`experiment.cases[0].connections[0].links: must be one without mptcp, got 2`:                                   func(e *Experiment) { e.Cases[0].Connections[0].Links = []string{"p", "q"} },
		`experiment.cases[0].connections[0].links[0]: link "y" is not in links`:                                        func(e *Experiment) { e.Cases[0].Connections[0].Links = []string{"y"} },
		`experiment.cases[0].connections[0].congestion: must be one of`:                                                func(e *Experiment) { e.Cases[0].Connections[0].Congestion = "newreon" },
		`experiment.cases[0].connections[0].number: must be 1 to 100, got 101`:                                         func(e *Experiment) { e.Cases[0].Connections[0].Number = 101 },
		`experiment.cases[0].connections[0].start: must not be negative, got -1s`:                                      func(e *Experiment) { e.Cases[0].Connections[0].Start = -time.Second },
		`experiment.cases[0].connections[0].stop: must be after start, at 3s, got 2s`: func(e *Experiment) {
			e.Cases[0].Connections[0].Start, e.Cases[0].Connections[0].Stop = 3*time.Second, 2*time.Second
		},
		`experiment.cases[0].connections: never compete in traffic "bulk": all run from 5s on, with settle, and one until 4s`: func(e *Experiment) { e.Cases[0].Connections[0].Stop = 4 * time.Second },
		`experiment.cases[0].connections: never compete in traffic "bulk", quick`:                                             func(e *Experiment) { e.Traffic["bulk"].Quick = 2 * time.Second },
		`experiment.cases[0].connections: need a traffic of bytes and a duration`:                                             func(e *Experiment) { e.Traffic["bulk"].Duration, e.Cases[0].Duration = 0, 0 },
		`experiment.cases[0].settle: is the time before connections are measured`:                                             func(e *Experiment) { e.Cases[0].Connections = nil },
		`experiment.expect[0].metric: share needs connections in each case`:                                                   func(e *Experiment) { e.Cases[0].Connections = nil },
		`experiment.transports.lia.pace: needs a congestion control of tabane cc, got "bbr"`:                                  func(e *Experiment) { e.Transports["lia"].Congestion = "bbr" },
		`experiment.transports.lia.lowat: needs a congestion control of tabane cc, got "bbr"`: func(e *Experiment) {
			e.Transports["lia"].Congestion, e.Transports["lia"].Lowat = "bbr", new(bool)
		},
		`experiment.transports.tcp.lowat: is for transports with mptcp`: func(e *Experiment) {
			e.Transports["tcp"].Lowat = new(bool)
		},
	} {
		s := read(t, "cc-fairness")
		change(s.Experiment)
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestCompetition(t *testing.T) {
	e := read(t, "cc-fairness").Experiment
	e.Cases[0].Connections = append(e.Cases[0].Connections, Connection{Start: 10 * time.Second, Stop: 40 * time.Second})
	k := result.CellKey{Case: e.Cases[0].Name, Traffic: "bulk", Transport: "lia"}
	if from, to := e.Competition(k, false); from != 15*time.Second || to != 40*time.Second {
		t.Errorf("from %s to %s, want 15 s to 40 s", from, to)
	}
	settings := e.Settings(k)
	rival, own := e.Cases[0].Connections[0].Transport(e.Transports["lia"], settings), e.Cases[0].Connections[1].Transport(e.Transports["lia"], settings)
	if own != e.Transports["lia"] || rival.Congestion != "newreno" || rival.MPTCP || rival.Pace == nil || !*rival.Pace {
		t.Errorf("own %+v, rival %+v", own, rival)
	}
	if same := (Connection{Client: "neighbor2", MPTCP: true}).Transport(e.Transports["lia"], settings); same.Congestion != "lia" {
		t.Errorf("without a control of its own: %q, want that of the cell", same.Congestion)
	}
}

// TestUnsettled checks that shares are judged only from some losses of each subflow on.
func TestUnsettled(t *testing.T) {
	s, err := read(t, "cc-fairness").Select(Selection{Cases: []string{"red"}, Transports: []string{"lia"}})
	if err != nil {
		t.Fatal(err)
	}
	k := s.Experiment.Cells()[0]
	for _, c := range []struct {
		losses int64
		judged int
	}{{-1, 0}, {9, 0}, {10, 1}} {
		run := result.Run{CellKey: k, Metrics: map[string]float64{}, Notes: map[string]string{}}
		paths := []result.SidePath{{First: true, Bytes: 100, Losses: 12, RoundTrip: 60 * time.Millisecond}, {Bytes: 300, Losses: c.losses, RoundTrip: 40 * time.Millisecond}}
		result.PutCompetition(&run, 10*time.Second, []result.Side{
			{Client: "client", Connections: 1, Bytes: 1e6, Paths: paths},
			{Client: "neighbor1", Connections: 2, Bytes: 3e6, Paths: []result.SidePath{{Losses: 20}, {Losses: 30}}},
		})
		want := map[string]float64{result.Share: 0.25, result.OwnRate: 8e5, result.OthersRate: 1.2e6, result.FirstPath: 0.25, result.RoundTrip: 0.05}
		for name, value := range want {
			if got := run.Metrics[name]; got != value {
				t.Errorf("%s is %v, want %v", name, got, value)
			}
		}
		r, err := s.Conclude(result.Result{Backend: result.BackendSim, Runs: []result.Run{run}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Expect) != c.judged {
			t.Errorf("%d losses: %d expectations are judged, want %d; others: %+v", c.losses, len(r.Expect), c.judged, r.NotJudged)
		}
	}
}
