package scenario

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// carried returns a scenario whose only transport is carried by gateways over two links.
func carried(t *testing.T) (*Spec, *Transport) {
	s := steady(t)
	e := s.Experiment
	tr := &Transport{Links: []string{"a", "b"}, Gateway: &Gateway{Discipline: "dq"}}
	e.Transports = map[string]*Transport{"dq": tr}
	e.Baseline, e.Expect, e.Figures = "", nil, nil
	for i := range e.Cases {
		e.Cases[i].Published = nil
	}
	return s, tr
}

func TestCheckGateway(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(s *Spec, tr *Transport)
		want   string // suffix of the path and the fault; "" for none
	}{
		{"as it is", func(*Spec, *Transport) {}, ""},
		{"all keys", func(_ *Spec, tr *Transport) {
			*tr.Gateway = Gateway{Discipline: "ratio", Ratio: "16:3", Resequence: "20ms", Replies: "b", Probes: true}
			tr.Era = Era2006
		}, ""},
		{"no discipline", func(_ *Spec, tr *Transport) { tr.Gateway.Discipline = "" }, "gateway.discipline: must be one of ratio, "},
		{"a scheduler of connections", func(_ *Spec, tr *Transport) { tr.Gateway.Discipline = "lowest-rtt" }, `gateway.discipline: must be one of ratio, `},
		{"a ratio of dq", func(_ *Spec, tr *Transport) { tr.Gateway.Ratio = "1:1" }, `gateway.ratio: is for discipline ratio, got "dq"`},
		{"a ratio of three", func(_ *Spec, tr *Transport) { *tr.Gateway = Gateway{Discipline: "ratio", Ratio: "1:1:1"} }, "gateway.ratio: must have one number for each of the 2 links"},
		{"no ratio", func(_ *Spec, tr *Transport) { *tr.Gateway = Gateway{Discipline: "ratio", Ratio: "x"} }, "gateway.ratio: "},
		{"no time", func(_ *Spec, tr *Transport) { tr.Gateway.Resequence = "0s" }, "gateway.resequence: must be auto, off or a time of at most 10s"},
		{"a ratio of a case", func(s *Spec, tr *Transport) {
			*tr.Gateway, s.Experiment.Cases[0].Ratio = Gateway{Discipline: "ratio"}, "20:1"
		}, ""},
		{"a ratio of a case that all transports replace", func(s *Spec, tr *Transport) {
			*tr.Gateway, s.Experiment.Cases[0].Ratio = Gateway{Discipline: "ratio", Ratio: "2:1"}, "20:1"
		}, "ratio: has no effect"},
		{"a ratio of a case for dq", func(s *Spec, _ *Transport) { s.Experiment.Cases[0].Ratio = "20:1" }, "ratio: has no effect"},
		{"a ratio of a case, of three", func(s *Spec, tr *Transport) {
			*tr.Gateway, s.Experiment.Cases[0].Ratio = Gateway{Discipline: "ratio"}, "20:1:1"
		}, `ratio: must have one number for each of the 2 links of transport "dq", got "20:1:1"`},
		{"no ratio of a case", func(s *Spec, tr *Transport) {
			*tr.Gateway, s.Experiment.Cases[0].Ratio = Gateway{Discipline: "ratio"}, "0:x"
		}, "ratio: must be numbers"},
		{"plain", func(_ *Spec, tr *Transport) {
			*tr.Gateway = Gateway{Discipline: "ratio", Mode: "plain", Resequence: "off"}
		}, ""},
		{"plain, held", func(_ *Spec, tr *Transport) { tr.Gateway.Mode, tr.Gateway.Resequence = "plain", "auto" }, "gateway.resequence: must be off or left out with mode plain"},
		{"plain and sealed", func(_ *Spec, tr *Transport) { tr.Gateway.Mode, tr.Gateway.Seal = "plain", "all" }, "gateway.seal: must be left out with mode plain"},
		{"auto, not sealed", func(_ *Spec, tr *Transport) { tr.Gateway.Discipline, tr.Gateway.Seal = "auto", "none" }, "gateway.discipline: must be one of ratio, "},
		{"an unknown mode", func(_ *Spec, tr *Transport) { tr.Gateway.Mode = "x" }, `gateway.mode: must be one of tunnel, plain, nat, got "x"`},
		{"another link", func(_ *Spec, tr *Transport) { tr.Gateway.Replies = "c" }, "gateway.replies: must be one of the transport's links"},
		{"mptcp", func(_ *Spec, tr *Transport) { tr.MPTCP = true }, "gateway: is for transports without mptcp"},
		{"another year", func(_ *Spec, tr *Transport) { tr.Era = 2007 }, "era: must be 2006, or absent"},
		{"rack in 2006", func(_ *Spec, tr *Transport) { yes := true; tr.Era, tr.RACK = Era2006, &yes }, "rack: is not of 2006"},
		{"tcp of a case", func(s *Spec, _ *Transport) { s.Experiment.Cases[0].Settings.Era = Era2006 }, "settings.era: is for transports"},
		{"datagrams", func(s *Spec, _ *Transport) { s.Experiment.Traffic["cbr"].Datagram = 1000 }, ""},
		{"large datagrams", func(s *Spec, _ *Transport) { s.Experiment.Traffic["cbr"].Datagram = 2000 }, "traffic.cbr.datagram: must be 8 to 1140 bytes, got 2000"},
		{"a file of datagrams", func(s *Spec, _ *Transport) { s.Experiment.Traffic["bi"].Datagram = 1000 }, "traffic.bi.datagram: needs rate and duration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, tr := carried(t)
			tt.change(s, tr)
			faults := s.Check()
			if tt.want == "" {
				if err := faults.Err(); err != nil {
					t.Error(err)
				}
				return
			}
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), tt.want) {
				t.Errorf("got %v, want one fault with %q", faults, tt.want)
			}
		})
	}
}

// TestLimitOfTunnel: what two links of 30 Mbit/s carry in a tunnel over IPv6.
func TestLimitOfTunnel(t *testing.T) {
	limit := func(change func(s *Spec, tr *Transport)) float64 {
		s, tr := carried(t)
		s.Experiment.Cases[0].Links = nil
		for _, link := range tr.Links {
			s.Links[link].Shape = Shape{Rate: 30 * unit.MbitPerSecond}
		}
		change(s, tr)
		phases, err := s.Phases(result.CellKey{Case: s.Experiment.Cases[0].Name, Traffic: "bi", Transport: "dq"})
		if err != nil {
			t.Fatal(err)
		}
		return phases[0].Capacity / float64(60*unit.MbitPerSecond)
	}
	want := map[string]float64{
		"tcp": (1514 - 14 - 40 - 32 - 92) / 1514., "datagrams": 1000. / (1000 + 14 + 40 + 8 + 92),
	}
	got := map[string]float64{
		"tcp": limit(func(*Spec, *Transport) {}),
		"datagrams": limit(func(s *Spec, _ *Transport) {
			s.Experiment.Traffic["bi"] = &Traffic{Datagram: 1000, Rate: unit.GbitPerSecond, Duration: 1}
		}),
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })); diff != "" {
		t.Errorf("share of the rate (-want +got):\n%s", diff)
	}
}
