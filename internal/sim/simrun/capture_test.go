package simrun

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/capture"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// TestCapture compares the analysis of a simulated capture with the metrics of the simulator.
func TestCapture(t *testing.T) {
	for _, tt := range []struct {
		name, scenario string
		cells          scenario.Selection
		change         func(*scenario.Transport)
	}{
		{"handshakes", "reseq-rate", scenario.Selection{Cases: []string{"r2"}, Transports: []string{"mptcp"}}, func(*scenario.Transport) {}},
		{"subflows at once", "reseq-delay", scenario.Selection{Cases: []string{"d100"}, Transports: []string{"ns2"}}, func(*scenario.Transport) {}},
		{"losses", "reseq-loss", scenario.Selection{Cases: []string{"p1e-2"}, Transports: []string{"mptcp"}}, func(*scenario.Transport) {}},
		{"reinjection and a receive buffer", "reseq-loss", scenario.Selection{Cases: []string{"p1e-2"}, Transports: []string{"mptcp"}}, func(t *scenario.Transport) {
			t.Scheduler, t.ReceiveBuffer = "default", 65*unit.KB
		}},
		{"redundant", "reseq-loss", scenario.Selection{Cases: []string{"p1e-2"}, Transports: []string{"mptcp"}}, func(t *scenario.Transport) { t.Scheduler = "redundant" }},
		{"one path", "reseq-loss", scenario.Selection{Cases: []string{"p1e-2"}, Transports: []string{"mptcp"}}, func(t *scenario.Transport) {
			t.MPTCP, t.Scheduler, t.Links = false, "", []string{"path2"}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := builtIn(t, tt.scenario).Select(tt.cells)
			if err != nil {
				t.Fatal(err)
			}
			transport := s.Experiment.Transports[tt.cells.Transports[0]]
			tt.change(transport)
			if !transport.MPTCP {
				s.Nodes["server"].MPTCP.Announce = nil
			}
			// A packet that arrives at its very end would be in the capture only.
			s.Experiment.Traffic["bulk"].Duration = 3001 * time.Millisecond
			file := filepath.Join(t.TempDir(), "run.pcap")
			f, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := Run(context.Background(), Options{Spec: s, Trials: 1, Capture: f})
			if err != nil {
				t.Fatal(err)
			}
			report, err := capture.Read(context.Background(), []string{file}, capture.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Connections) != 1 || len(report.Connections[0].Subflows) != len(transport.Links) {
				t.Fatalf("connections %+v", report.Connections)
			}
			d := report.Connections[0].ToClient
			m := r.Runs[0].Metrics
			near := func(what string, got, want, within float64) {
				t.Helper()
				if math.Abs(got-want) > within {
					t.Errorf("%s is %g in the capture, %g in the simulator", what, got, want)
				}
			}
			// Segments still in the reorder buffer at the end have arrived, but are not
			// delivered.
			near("data", float64(d.Bytes), m[result.Bytes], 0)
			near("uncaptured", float64(d.Uncaptured), 0, 0)
			if transport.MPTCP {
				near("mean delay", d.Delay.Mean.Seconds(), m[result.ReseqDelayMean], 1e-8)
				near("longest delay", d.Delay.Max.Seconds(), m[result.ReseqDelayMax], 0)
				near("longest burst", float64(d.Bursts.Max), m[result.BurstMax], 0)
				near("held", float64(d.PeakOccupancy.Bytes), m[result.BufferMax], 0)
			}
			if tt.name == "handshakes" || tt.name == "losses" {
				checkDissection(t, file)
			}
		})
	}
}

func TestCaptureOfManyCells(t *testing.T) {
	if _, err := Run(context.Background(), Options{Spec: short(t, "reseq-rate"), Trials: 1, Capture: io.Discard}); !errors.Is(err, ErrCells) {
		t.Errorf("several cells: %v", err)
	}
	s, err := short(t, "reseq-rate").Select(scenario.Selection{Cases: []string{"r5"}, Transports: []string{"ns2"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), Options{Spec: s, Trials: 1, Capture: full{}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a capture that cannot be written: %v", err)
	}
}

// full is a writer whose every write fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

// checkDissection checks that tshark, if installed, reports no malformed packets in a capture.
func checkDissection(t *testing.T, file string) {
	t.Helper()
	t.Run("tshark", func(t *testing.T) { dissect(t, file) })
}

func dissect(t *testing.T, file string) {
	out, err := exec.Command(programs.Need(t, "tshark"), "-r", file, "-c", "1000", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-Y", "_ws.malformed || tcp.checksum.status == 0 || !tcp", "-T", "fields", "-e", "frame.number").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if len(out) > 0 {
		t.Errorf("tshark finds faults in packets %.200q", out)
	}
}
