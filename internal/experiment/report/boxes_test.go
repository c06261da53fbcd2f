package report

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// routesResult returns a result of an experiment on routes, in which all times of one kind of
// routers are ten times the other's.
func routesResult() (*scenario.Spec, result.Result) {
	spec := &scenario.Spec{Name: "routes", Title: "Routes", Experiment: &scenario.Experiment{
		Kind: scenario.KindRoutes, Baseline: "embedded",
		Cases: []scenario.Case{
			{Name: "3.1", Title: "starts", Change: scenario.ChangeAnnounce, Published: []scenario.Published{{Metric: result.EPERoute, Value: 0.190, Source: "Paper A, Fig. 10"}}},
			{Name: "3.2", Title: "stops", Change: scenario.ChangeWithdraw},
		},
		Traffic: map[string]*scenario.Traffic{"cbr": {}},
		Transports: map[string]*scenario.Transport{
			"embedded": {Title: "embedded routers", Routers: scenario.RoutersEmbedded}, "frr": {Title: "FRR", Routers: scenario.RoutersFRR},
		},
	}}
	r := result.Result{Schema: result.Schema, Scenario: "routes", Backend: "lab"}
	for _, k := range spec.Experiment.Cells() {
		for trial := range 5 {
			ms := float64(trial+1) / 1000
			if k.Transport == "frr" {
				ms *= 10
			}
			run := result.Run{CellKey: k, Trial: trial, Metrics: map[string]float64{result.EPERoute: ms, result.BestPath: 2 * ms}}
			if k.Case == "3.2" {
				run.Metrics[result.SubflowTime] = 0
			}
			if k.Case == "3.1" && k.Transport == "frr" && trial == 4 {
				run.Notes = map[string]string{result.NoteError: "waited in vain"}
			}
			r.Runs = append(r.Runs, run)
		}
	}
	cells, err := result.Summarize(r.Runs)
	if err != nil {
		panic(err)
	}
	r.Summary = cells
	return spec, r
}

func TestRoutesTable(t *testing.T) {
	spec, r := routesResult()
	var b bytes.Buffer
	if err := Table(&b, r, spec, 0); err != nil {
		t.Fatal(err)
	}
	want := `PATTERN  ROUTERS           EPE ROUTE (ms)  BEST PATH (ms)  SUBFLOW (ms)  ASBR RECVD (ms)  REFLECTOR (ms)  ASBR+SERVER (ms)        TRIALS
3.1      embedded routers             3.0             6.0             -                -               -                 -             5
3.1      FRR                         25.0            50.0             -                -               -                 -  5 (1 failed)
3.2      embedded routers             3.0             6.0           0.0                -               -                 -             5
3.2      FRR                         30.0            60.0           0.0                -               -                 -             5
`
	if b.String() != want {
		t.Errorf("got:\n%s", b.String())
	}
}

func TestRoutesReport(t *testing.T) {
	spec, r := routesResult()
	files, err := assemble(r, spec, Extra{})
	if err != nil {
		t.Fatal(err)
	}
	var page, svg string
	for _, f := range files {
		switch f.name {
		case "report.html":
			page = string(f.data)
		case "figures/routes.svg":
			svg = string(f.data)
		}
		if strings.HasPrefix(f.name, "figures/goodput") {
			t.Errorf("%s says nothing here", f.name)
		}
	}
	for _, want := range []string{">3.1  starts<", ">published median<", ">100<", ">EPE Route<", ">25.0<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the figure lacks %q", want)
		}
	}
	for _, want := range []string{
		"3.1 embedded routers EPE Route 3.0, ", "<td>FRR</td><td class=\"number\">25.0 (17.5 to 32.5)</td>", "(1 failed)", "<td class=\"number\">-</td>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "Median goodput") {
		t.Error("the page has a table of goodput")
	}
}

// TestRoutesFigureWithoutRuns: what could not be measured is drawn as nothing.
func TestRoutesFigureWithoutRuns(t *testing.T) {
	spec, r := routesResult()
	r.Runs, r.Summary = nil, nil
	if _, err := assemble(r, spec, Extra{}); err != nil {
		t.Error(err)
	}
}

func TestDecades(t *testing.T) {
	var got []string
	for _, tick := range (decades{}).Ticks(math.Log10(0.5), math.Log10(25)) {
		got = append(got, fmt.Sprintf("%.2g:%s", math.Pow(10, tick.Value), tick.Label))
	}
	want := "0.5: 0.6: 0.7: 0.8: 0.9: 1:1 2: 3: 4: 5: 6: 7: 8: 9: 10:10 20:"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q", got)
	}
}
