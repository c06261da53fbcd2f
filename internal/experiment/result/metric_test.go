package result

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/fault"
)

// declared are the values of the constants that metric.go declares before its first type: the names
// of metrics.
func declared(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "metric.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range file.Decls[1].(*ast.GenDecl).Specs {
		for _, v := range s.(*ast.ValueSpec).Values {
			name, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
	}
	return names
}

func TestEveryMetricHasOneRow(t *testing.T) {
	rows := Select(func(Metric) bool { return true })
	names := declared(t)
	if len(names) < 40 {
		t.Fatalf("found only the metrics %q", names)
	}
	for _, name := range names {
		if n := len(slices.DeleteFunc(slices.Clone(rows), func(row string) bool { return row != name })); n != 1 {
			t.Errorf("metric %q has %d rows, want 1", name, n)
		}
	}
	for _, m := range Metrics() {
		if !slices.Contains(names, m.Name) || m.Title == "" || checkMetricName(m.Name) != nil {
			t.Errorf("row %+v", m)
		}
		if m.Compare && m.Backend != "" {
			t.Errorf("%s is compared, but only %s measures it", m.Name, m.Backend)
		}
		if m.Sweep && !m.Measures(BackendSim) {
			t.Errorf("%s is a column of sweeps, but the simulator does not measure it", m.Name)
		}
	}
}

func TestPropertiesOfMetrics(t *testing.T) {
	steady, _ := MetricNamed(BurstSteady)
	if !steady.Packets || !steady.Sweep || !steady.MPTCP {
		t.Errorf("%+v", steady)
	}
	timeouts, _ := MetricNamed(Timeouts)
	if timeouts.Measures(BackendLab) || !timeouts.Measures(BackendSim) {
		t.Errorf("%+v", timeouts)
	}
	goodput, _ := MetricNamed(Goodput)
	if !goodput.On(OnDelivery) || goodput.On(OnRouteChange) || !goodput.Measures(BackendLab) {
		t.Errorf("%+v", goodput)
	}
}

func TestCheckMetricSuggests(t *testing.T) {
	var faults fault.List
	if CheckMetric(&faults, "x", "goodput_bp") || len(faults) != 1 || faults[0].Path != "x" {
		t.Fatalf("faults %v", faults)
	}
	if want := `got "goodput_bp", did you mean "goodput_bps"?`; !strings.Contains(faults[0].Message, want) {
		t.Errorf("got %q, want %q in it", faults[0].Message, want)
	}
}
