package report

import (
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

func TestHeat(t *testing.T) {
	e := &scenario.Experiment{
		Cases: []scenario.Case{
			{Name: "fast", Parameters: map[string]float64{"delay": 10, "rate": 50}}, {Name: "slow", Parameters: map[string]float64{"delay": 300, "rate": 2}},
			{Name: "other", Parameters: map[string]float64{"delay": 10}},
		},
		Traffic: map[string]*scenario.Traffic{"bi": {}}, Transports: map[string]*scenario.Transport{"mptcp": {MPTCP: true, Links: []string{"a", "b"}}},
	}
	spec := &scenario.Figure{
		Name: "matrix", Title: "A & B", Kind: scenario.FigureHeat, X: "delay", Y: "rate", Metric: result.ShareOfBest, XLabel: "Round trip", YLabel: "Rate", Traffic: "bi",
	}
	r := result.Result{Summary: []result.Cell{}}
	for name, v := range map[string]float64{"fast": 1.5, "slow": 0.25, "other": 9} {
		c := result.Cell{CellKey: result.CellKey{Case: name, Traffic: "bi", Transport: "mptcp"}, Metric: result.ShareOfBest}
		c.Median = v
		r.Summary = append(r.Summary, c)
	}
	f, err := heatFigure(spec, r, e)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{">1.50<", ">0.25<", ">300<", ">50<", ">Round trip<", ">Rate<"} {
		if !strings.Contains(string(f.svg), text) {
			t.Errorf("no %s", text)
		}
	}
	if strings.Contains(string(f.svg), ">9.00<") {
		t.Error("a case without a parameter is drawn")
	}
	if want := "2: 300 0.25. 50: 10 1.5."; !strings.Contains(f.alt, want) {
		t.Errorf("alternative text %q, want %q", f.alt, want)
	}
	if f, err := heatFigure(spec, result.Result{}, e); err != nil || f.name != "" {
		t.Errorf("without results there is figure %q, %v", f.name, err)
	}
	if half, quarter := heatColor(0.5), heatColor(0.25); heatColor(1) != paper || heatColor(0.1) != quarter || half == quarter || heatColor(2) == half {
		t.Errorf("colors %v %v %v", heatColor(1), half, quarter)
	}
}
